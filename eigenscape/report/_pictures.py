"""Which pictures a record has. `pictures_of.register` adds a kind of record."""

from functools import singledispatch

from eigenscape.analyses import (
    Analysis,
    Autocorrelation,
    Autocorrelations,
    BlockPreconditioning,
    BlockSpectra,
    BlockStructure,
    EigenspaceOverlap,
    EigenvectorCorrespondence,
    EigenvectorRank,
    ExactTrace,
    FullApproximation,
    GradientOverlap,
    KroneckerFit,
    LayerCurvature,
    LayerSpectrum,
    LogitGradients,
    MatrixSpectrum,
    Outliers,
    OutputSpaceOverlap,
    OverlapPrediction,
    Plan,
    Point,
    SquaredBlockNorms,
    Stripes,
)
from eigenscape.errors import EigenscapeError
from eigenscape.linalg import (
    BlockNorms,
    BlockTraces,
    DiagonalEstimate,
    LanczosRun,
    NormEstimate,
    SpectralDensity,
    SpectralNorm,
    TraceEstimate,
)
from eigenscape.pairs import EigenPairs
from eigenscape.records import Record
from eigenscape.report import (
    _block_record_pictures,
    _layer_pictures,
    _spectra,
    _theory_pictures,
    _values,
    kronecker_pictures,
)
from eigenscape.report._marks import Picture
from eigenscape.report.study_result import StudyResult
from eigenscape.theory import Decoupling, FiniteWidthCurve, TwoLayerHessian
from eigenscape.train import Training


@singledispatch
def pictures_of(record: object) -> list[Picture]:
    """Return the pictures of a record, the main one first; refuse kinds that have none."""
    what = type(record).__name__
    if not isinstance(record, Record):
        raise EigenscapeError(f"`draw(record)` must be a record of this package; got {what}.")
    raise EigenscapeError(
        f"`draw(record)` has no picture of a {what}. Use `record.to_frame()` and plot its columns."
    )


@pictures_of.register
def _(record: Analysis) -> list[Picture]:
    spectra = record.spectra()
    outliers = 0 if record.outliers is None else record.outliers.num_outliers
    found: list[Picture] = []
    if record.hessian is not None:
        found.append(_spectra.hessian_spectrum(record.hessian, outliers))
    if spectra:
        found.append(_spectra.log_spectrum(spectra))
    if len(spectra) > 1:
        found.append(_spectra.side_by_side(spectra, outliers))
    if record.outliers is not None:
        found.append(_spectra.scree(record.outliers))
    if record.gradient_overlap is not None:
        found.append(_spectra.overlap_picture(record.gradient_overlap))
    if record.layers is not None and record.layers.layers:
        found += pictures_of(record.layers)
    if record.blocks is not None:
        found.append(_layer_pictures.blocks_picture(record.blocks))
    return [*found, _values.plan_picture(record.plan, record.stage_seconds)]


@pictures_of.register
def _(record: MatrixSpectrum) -> list[Picture]:
    return [_spectra.hessian_spectrum(record), _spectra.log_spectrum([record])]


@pictures_of.register
def _(record: EigenPairs) -> list[Picture]:
    return [_spectra.pairs_picture(record)]


@pictures_of.register
def _(record: SpectralDensity) -> list[Picture]:
    return [_spectra.density_picture(record)]


@pictures_of.register
def _(record: Outliers) -> list[Picture]:
    return [_spectra.scree(record)]


@pictures_of.register
def _(record: GradientOverlap) -> list[Picture]:
    return [_spectra.overlap_picture(record)]


@pictures_of.register
def _(record: LayerCurvature) -> list[Picture]:
    found = [
        _layer_pictures.layers_picture(record),
        _layer_pictures.kronecker_picture(record),
        _layer_pictures.factors_picture(record),
    ]
    return [picture for picture in found if picture is not None]


@pictures_of.register
def _(record: LayerSpectrum) -> list[Picture]:
    return [_spectra.layer_picture(record)]


@pictures_of.register
def _(record: ExactTrace) -> list[Picture]:
    return [_layer_pictures.exact_traces_picture(record)]


@pictures_of.register
def _(record: BlockNorms) -> list[Picture]:
    return [_layer_pictures.blocks_picture(record)]


@pictures_of.register
def _(record: BlockTraces) -> list[Picture]:
    return [_layer_pictures.traces_picture(record)]


@pictures_of.register
def _(record: DiagonalEstimate) -> list[Picture]:
    return [_values.diagonal_picture(record)]


@pictures_of.register
def _(record: LanczosRun) -> list[Picture]:
    return [_values.lanczos_picture(record)]


@pictures_of.register
def _(record: Point) -> list[Picture]:
    return [_values.point_picture(record)]


@pictures_of.register
def _(record: Plan) -> list[Picture]:
    return [_values.plan_picture(record)]


@pictures_of.register
def _(record: TraceEstimate) -> list[Picture]:
    return [_values.value_picture(record, record.value, record.stderr, "trace", "s.e.")]


@pictures_of.register
def _(record: NormEstimate) -> list[Picture]:
    return [_values.value_picture(record, record.value, record.stderr, "Frobenius norm", "s.e.")]


@pictures_of.register
def _(record: SpectralNorm) -> list[Picture]:
    return [
        _values.value_picture(record, record.value, record.residual, "spectral norm", "residual")
    ]


@pictures_of.register
def _(record: Training) -> list[Picture]:
    return [_values.training_picture(record)]


@pictures_of.register
def _(record: StudyResult) -> list[Picture]:
    return list(record.pictures)


@pictures_of.register
def _(record: Autocorrelation) -> list[Picture]:
    return [kronecker_pictures.autocorrelation_picture(record)]


@pictures_of.register
def _(record: Autocorrelations) -> list[Picture]:
    return [kronecker_pictures.autocorrelations_picture(record)]


@pictures_of.register
def _(record: EigenspaceOverlap) -> list[Picture]:
    return [kronecker_pictures.overlap_picture(record)]


@pictures_of.register
def _(record: OverlapPrediction) -> list[Picture]:
    return [kronecker_pictures.prediction_picture(record)]


@pictures_of.register
def _(record: EigenvectorCorrespondence) -> list[Picture]:
    return [kronecker_pictures.correspondence_picture(record)]


@pictures_of.register
def _(record: EigenvectorRank) -> list[Picture]:
    return [kronecker_pictures.rank_picture(record)]


@pictures_of.register
def _(record: KroneckerFit) -> list[Picture]:
    return [kronecker_pictures.fit_picture(record)]


@pictures_of.register
def _(record: FullApproximation) -> list[Picture]:
    return [kronecker_pictures.full_picture(record)]


@pictures_of.register
def _(record: LogitGradients) -> list[Picture]:
    return [kronecker_pictures.logit_picture(record)]


@pictures_of.register
def _(record: OutputSpaceOverlap) -> list[Picture]:
    return [kronecker_pictures.output_space_picture(record)]


@pictures_of.register
def _(record: FiniteWidthCurve) -> list[Picture]:
    return [_theory_pictures.width_picture(record)]


@pictures_of.register
def _(record: TwoLayerHessian) -> list[Picture]:
    return [_theory_pictures.two_layer_picture(record)]


@pictures_of.register
def _(record: Decoupling) -> list[Picture]:
    return [_theory_pictures.decoupling_picture(record)]


@pictures_of.register
def _(record: SquaredBlockNorms) -> list[Picture]:
    return [_block_record_pictures.norms_picture(record)]


@pictures_of.register
def _(record: BlockStructure) -> list[Picture]:
    return [_block_record_pictures.structure_picture(record)]


@pictures_of.register
def _(record: Stripes) -> list[Picture]:
    return [_block_record_pictures.stripes_picture(record)]


@pictures_of.register
def _(record: BlockSpectra) -> list[Picture]:
    return [_block_record_pictures.spectra_picture(record)]


@pictures_of.register
def _(record: BlockPreconditioning) -> list[Picture]:
    return [_block_record_pictures.preconditioning_picture(record)]
