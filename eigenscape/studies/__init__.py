"""Complete named runs that reproduce a paper's figures and tables, with their claims."""

from eigenscape.report import Finding as Finding
from eigenscape.report import StudyResult as StudyResult
from eigenscape.studies import (
    anchor_fit,
    anchor_transfer,
    coding_recovery,
    coding_theory,
    dong_beyond,
    dong_binary,
    dong_blocks,
    dong_clusters,
    dong_networks,
    dong_norms,
    dong_spectra,
    dong_training,
    papyan_attribution,
    papyan_dynamics,
    papyan_kronecker,
    papyan_lanczos,
    papyan_layers,
    papyan_mixture,
    papyan_spectra,
    papyan_tail,
    stepsize_learned,
    stepsize_quadratic,
    stepsize_tasks,
    wu_2020_layers,
    wu_approximation,
    wu_autocorrelation,
    wu_bounds,
    wu_clusters,
    wu_correspondence,
    wu_full_hessian,
    wu_inputs,
    wu_output_space,
    wu_overlap,
    wu_overlap_variants,
    wu_rank,
    wu_spectra,
    wu_two_layer,
)
from eigenscape.studies.cast import Cast as Cast
from eigenscape.studies.cast import Own as Own
from eigenscape.studies.claim import Claim as Claim
from eigenscape.studies.claim import Measured as Measured
from eigenscape.studies.page import write_page as write_page
from eigenscape.studies.results import all_findings as all_findings
from eigenscape.studies.results import read_result as read_result
from eigenscape.studies.results import read_results as read_results
from eigenscape.studies.results import results_folder as results_folder
from eigenscape.studies.results import to_json as to_json
from eigenscape.studies.results import write_result as write_result
from eigenscape.studies.study import SCALES as SCALES
from eigenscape.studies.study import Outcome as Outcome
from eigenscape.studies.study import Setting as Setting
from eigenscape.studies.study import Study as Study
from eigenscape.studies.study import run_study as run_study
from eigenscape.studies.workshop import Networks as Networks
from eigenscape.studies.workshop import Workshop as Workshop

_ALL = (
    wu_inputs.STUDY,
    wu_2020_layers.STUDY,
    wu_autocorrelation.STUDY,
    wu_approximation.STUDY,
    wu_correspondence.STUDY,
    wu_correspondence.DEEP,
    wu_overlap.STUDY,
    wu_overlap_variants.TRAININGS,
    wu_overlap_variants.WIDTHS,
    wu_overlap_variants.DEEP,
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
    "write_page",
    "write_result",
]
