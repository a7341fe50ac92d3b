"""Wu et al. (2020): layer-wise Hessians and their Kronecker structure."""

from eigenscape_papers.wu.approximation_study import measured_of as measured_of
from eigenscape_papers.wu.autocorrelation_study import AutocorrelationPart as AutocorrelationPart
from eigenscape_papers.wu.autocorrelation_study import RatioAlong as RatioAlong
from eigenscape_papers.wu.autocorrelation_study import autocorrelation_part as autocorrelation_part
from eigenscape_papers.wu.correspondence_study import CorrespondenceOfLayer as CorrespondenceOfLayer
from eigenscape_papers.wu.eigenvector_correspondence import (
    EigenvectorCorrespondence as EigenvectorCorrespondence,
)
from eigenscape_papers.wu.eigenvector_correspondence import (
    eigenvector_correspondence as eigenvector_correspondence,
)
from eigenscape_papers.wu.full_approximation import FullApproximation as FullApproximation
from eigenscape_papers.wu.full_approximation import full_approximation as full_approximation
from eigenscape_papers.wu.logit_gradients import LogitGradients as LogitGradients
from eigenscape_papers.wu.logit_gradients import logit_gradients as logit_gradients
from eigenscape_papers.wu.output_space import OutputSpaceOverlap as OutputSpaceOverlap
from eigenscape_papers.wu.output_space import output_space_overlap as output_space_overlap
from eigenscape_papers.wu.output_space_study import OutputSpaceLayer as OutputSpaceLayer
from eigenscape_papers.wu.overlap_prediction import OverlapPrediction as OverlapPrediction
from eigenscape_papers.wu.overlap_prediction import overlap_prediction as overlap_prediction
from eigenscape_papers.wu.overlap_study import OverlapOfLayer as OverlapOfLayer
from eigenscape_papers.wu.overlap_study import first_peak as first_peak
from eigenscape_papers.wu.spectra_study import gap_size as gap_size
from eigenscape_papers.wu.two_layer_study import rectified_gap as rectified_gap

__all__ = [
    "EigenvectorCorrespondence",
    "FullApproximation",
    "LogitGradients",
    "OutputSpaceOverlap",
    "OverlapPrediction",
    "eigenvector_correspondence",
    "full_approximation",
    "logit_gradients",
    "output_space_overlap",
    "overlap_prediction",
]
