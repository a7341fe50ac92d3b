"""Complete named runs that reproduce a paper's figures and tables, with their claims."""

from eigenscape_papers.dong import beyond_study as dong_beyond
from eigenscape_papers.dong import binary_study as dong_binary
from eigenscape_papers.dong import blocks_study as dong_blocks
from eigenscape_papers.dong import clusters_study as dong_clusters
from eigenscape_papers.dong import networks_study as dong_networks
from eigenscape_papers.dong import norms_study as dong_norms
from eigenscape_papers.dong import spectra_study as dong_spectra
from eigenscape_papers.dong import training_study as dong_training
from eigenscape_papers.papyan import attribution_study as papyan_attribution
from eigenscape_papers.papyan import dynamics_study as papyan_dynamics
from eigenscape_papers.papyan import kronecker_study as papyan_kronecker
from eigenscape_papers.papyan import lanczos_study as papyan_lanczos
from eigenscape_papers.papyan import layers_study as papyan_layers
from eigenscape_papers.papyan import mixture_study as papyan_mixture
from eigenscape_papers.papyan import spectra_study as papyan_spectra
from eigenscape_papers.papyan import tail_study as papyan_tail
from eigenscape_papers.runner import SCALES as SCALES
from eigenscape_papers.runner import Cast as Cast
from eigenscape_papers.runner import Claim as Claim
from eigenscape_papers.runner import Finding as Finding
from eigenscape_papers.runner import Measured as Measured
from eigenscape_papers.runner import Networks as Networks
from eigenscape_papers.runner import Outcome as Outcome
from eigenscape_papers.runner import Own as Own
from eigenscape_papers.runner import Setting as Setting
from eigenscape_papers.runner import Study as Study
from eigenscape_papers.runner import StudyResult as StudyResult
from eigenscape_papers.runner import Workshop as Workshop
from eigenscape_papers.runner import all_findings as all_findings
from eigenscape_papers.runner import read_result as read_result
from eigenscape_papers.runner import read_results as read_results
from eigenscape_papers.runner import results_folder as results_folder
from eigenscape_papers.runner import run_study as run_study
from eigenscape_papers.runner import to_json as to_json
from eigenscape_papers.runner import write_pages as write_pages
from eigenscape_papers.runner import write_result as write_result
from eigenscape_papers.thesis import anchor_fit_study as anchor_fit
from eigenscape_papers.thesis import anchor_transfer_study as anchor_transfer
from eigenscape_papers.thesis import coding_recovery_study as coding_recovery
from eigenscape_papers.thesis import coding_theory_study as coding_theory
from eigenscape_papers.thesis import stepsize_learned_study as stepsize_learned
from eigenscape_papers.thesis import stepsize_quadratic_study as stepsize_quadratic
from eigenscape_papers.thesis import stepsize_tasks_study as stepsize_tasks
from eigenscape_papers.wu import approximation_study as wu_approximation
from eigenscape_papers.wu import autocorrelation_study as wu_autocorrelation
from eigenscape_papers.wu import bounds_study as wu_bounds
from eigenscape_papers.wu import clusters_study as wu_clusters
from eigenscape_papers.wu import correspondence_study as wu_correspondence
from eigenscape_papers.wu import full_hessian_study as wu_full_hessian
from eigenscape_papers.wu import inputs_study as wu_inputs
from eigenscape_papers.wu import layers_study as wu_2020_layers
from eigenscape_papers.wu import output_space_study as wu_output_space
from eigenscape_papers.wu import overlap_study as wu_overlap
from eigenscape_papers.wu import rank_study as wu_rank
from eigenscape_papers.wu import spectra_study as wu_spectra
from eigenscape_papers.wu import two_layer_study as wu_two_layer

_ALL = (
    wu_inputs.STUDY,
    wu_2020_layers.STUDY,
    wu_autocorrelation.STUDY,
    wu_approximation.STUDY,
    wu_correspondence.STUDY,
    wu_correspondence.DEEP,
    wu_overlap.STUDY,
    wu_overlap.TRAININGS,
    wu_overlap.WIDTHS,
    wu_overlap.DEEP,
    wu_rank.STUDY,
    wu_spectra.STUDY,
    wu_full_hessian.STUDY,
    wu_clusters.STUDY,
    wu_output_space.STUDY,
    wu_two_layer.STUDY,
    wu_bounds.STUDY,
    dong_norms.STUDY,
    dong_blocks.STUDY,
    dong_clusters.STUDY,
    dong_training.STUDY,
    dong_binary.STUDY,
    dong_spectra.STUDY,
    dong_beyond.STUDY,
    dong_networks.STUDY,
    coding_recovery.STUDY,
    coding_theory.STUDY,
    anchor_fit.STUDY,
    anchor_transfer.STUDY,
    stepsize_quadratic.STUDY,
    stepsize_tasks.STUDY,
    stepsize_learned.STUDY,
    papyan_spectra.STUDY,
    papyan_lanczos.STUDY,
    papyan_attribution.STUDY,
    papyan_dynamics.STUDY,
    papyan_tail.STUDY,
    papyan_layers.STUDY,
    papyan_kronecker.STUDY,
    papyan_mixture.STUDY,
)
STUDIES = {study.name: study for study in _ALL}

__all__ = [
    "SCALES",
    "STUDIES",
    "Cast",
    "Claim",
    "Finding",
    "Measured",
    "Networks",
    "Outcome",
    "Own",
    "Setting",
    "Study",
    "StudyResult",
    "Workshop",
    "all_findings",
    "read_result",
    "read_results",
    "results_folder",
    "run_study",
    "to_json",
    "write_pages",
    "write_result",
]
