"""Everything about one network's curvature, in one call."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from eigenscape.analyses.layers.layer_curvature import LayerCurvature
from eigenscape.analyses.whole import findings
from eigenscape.analyses.whole._budget import (
    BLOCKS,
    LAYERS,
    MATRICES,
    OTHERS,
    POINT,
    Budget,
    as_budget,
    as_stages,
)
from eigenscape.analyses.whole._machine import require_room
from eigenscape.analyses.whole._parts import Measure, key_of, slim
from eigenscape.analyses.whole._pictures import plan_picture, spent
from eigenscape.analyses.whole._spectrum_pictures import (
    hessian_spectrum,
    log_spectrum,
    side_by_side,
)
from eigenscape.analyses.whole._stages import StageStore
from eigenscape.analyses.whole._subsample import OtherSamples, Subsample, subsample
from eigenscape.analyses.whole.gradient_overlap import GradientOverlap, gradient_overlap
from eigenscape.analyses.whole.matrix_spectrum import MatrixSpectrum
from eigenscape.analyses.whole.outliers import Outliers, outliers
from eigenscape.analyses.whole.plan import Plan, plan_analysis
from eigenscape.analyses.whole.point import Point, point
from eigenscape.errors import InvalidArgumentError
from eigenscape.linalg import BlockNorms
from eigenscape.records import Checkpoint, Columns, Picture, ProgressCallback, Record, Status
from eigenscape.risk import EmpiricalRisk

_KEEP_VECTOR_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class Analysis(Record):
    """The answers of `analyze`, each a record of its own.

    A part that was not asked for, or that failed, is None; `failures` says which failed and why.

    Attributes:
        title: What was analysed, in a few words.
        description: Facts about model, loss and data, name to text, in the order to show them.
        point: Loss and gradient.
        hessian: Spectrum of H.
        gauss_newton: Spectrum of G.
        residual: Spectrum of H − G.
        outliers: Gaps between the largest eigenvalues of H; None where there are fewer than three.
        gradient_overlap: Share of the gradient in the top eigenspaces of H.
        layers: Each layer's block; None where the model is a pure function.
        blocks: Frobenius norms of H between all pairs of layers.
        plan: What was predicted before it ran.
        stage_seconds: Wall time of each stage, by the plan's stage names.
        findings: What was found, in sentences.
        failures: Parts that failed, or that needed one that did, name to reason. A layer of its own
            is called "layer fc1".
        subsample: Which samples were looked at; None for all.
        other_samples: What other samples gave, as many; None where all were looked at.
    """

    title: str
    description: dict[str, str]
    point: Point | None
    hessian: MatrixSpectrum | None
    gauss_newton: MatrixSpectrum | None
    residual: MatrixSpectrum | None
    outliers: Outliers | None
    gradient_overlap: GradientOverlap | None
    layers: LayerCurvature | None
    blocks: BlockNorms | None
    plan: Plan
    stage_seconds: dict[str, float]
    findings: tuple[str, ...]
    failures: dict[str, str] = field(default_factory=dict)
    subsample: Subsample | None = None
    other_samples: OtherSamples | None = None

    def spectra(self) -> tuple[MatrixSpectrum, ...]:
        """Return the spectra that are there: H, then G and H − G."""
        return tuple(s for s in (self.hessian, self.gauss_newton, self.residual) if s is not None)

    def parts(self) -> tuple[Record, ...]:
        """Return the parts that are there and took products, in the plan's order."""
        every = (*self.spectra(), self.layers, self.blocks, self.other_samples)
        return tuple(record for record in every if record is not None)

    def slow_parts(self) -> list[str]:
        """Return what did not converge, in sentences; parts that failed are not among them."""
        slow = [record for record in self.parts() if not record.status]
        if self.layers is not None and all(block.converged for block in self.layers.layers):
            slow = [record for record in slow if record is not self.layers]
        return [str(record.status) for record in slow]

    def columns(self) -> Columns:
        """Return the key numbers: quantity, value and its error (residual or standard error)."""
        rows: list[tuple[str, float, float | None]] = []
        if self.point is not None:
            rows.append(("loss", self.point.loss, None))
            if self.point.accuracy is not None:
                rows.append(("accuracy", self.point.accuracy, None))
            rows.append(("gradient norm", self.point.gradient_norm, None))
        for spectrum in self.spectra():
            rows += [(f"{spectrum.matrix}: {what}", v, e) for what, v, e in _numbers(spectrum)]
        if self.outliers is not None:
            rows.append(("outliers", self.outliers.num_outliers, None))
        names = ("quantity", "value", "error")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def __str__(self) -> str:
        """Return title, key numbers and findings."""
        return "\n".join([self.title, super().__str__(), *self.findings])

    def pictures(self) -> tuple[Picture, ...]:
        """Return the spectrum of H first, then what else was computed, section by section."""
        spectra = self.spectra()
        num_outliers = 0 if self.outliers is None else self.outliers.num_outliers
        whole_matrix: list[Picture] = []
        if self.hessian is not None:
            whole_matrix.append(hessian_spectrum(self.hessian, num_outliers))
        if spectra:
            whole_matrix.append(log_spectrum(spectra))
        if len(spectra) > 1:
            whole_matrix.append(side_by_side(spectra, num_outliers))
        for record in (self.outliers, self.gradient_overlap):
            whole_matrix += () if record is None else record.pictures()
        by_layer: list[Picture] = []
        if self.layers is not None and self.layers.layers:
            by_layer += self.layers.pictures()
        if self.blocks is not None:
            cost = spent(self.blocks.num_products, self.stage_seconds.get(BLOCKS) or None)
            by_layer += [dataclasses.replace(p, cost=cost) for p in self.blocks.pictures()]
        cost_picture = plan_picture(self.plan, self.stage_seconds, self.num_products)
        return (
            *_in_section("The whole matrix", whole_matrix),
            *_in_section("Layer by layer", by_layer),
            *_in_section("What it cost", [cost_picture]),
        )


def analyze(
    risk: EmpiricalRisk,
    *,
    budget: str | Budget = "standard",
    num_pairs: int | None = None,
    stages: str | Iterable[str] | None = None,
    plan: Plan | None = None,
    title: str | None = None,
    description: Mapping[str, str] | None = None,
    seed: int = 0,
    keep_vector_bytes: int = _KEEP_VECTOR_BYTES,
    ignore_limits: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Analysis:
    """Look at a network's curvature from all sides.

    Loss and gradient; the Hessian H, the Gauss-Newton matrix G and H − G with certified ends,
    densities, traces and norms; outliers against classes; the gradient in the top eigenspace; each
    layer's block with its Kronecker approximation; norms between all pairs of layers.

    A part that fails costs no other: it is None, and `failures` says why.

    Cost: see `plan_analysis`, which predicts products, memory and time.

    Args:
        risk: What to analyse.
        budget: "quick", "standard", "thorough", or a `Budget` of your own. "first-look" takes
            about a minute: largest eigenvalues, trace and gradient overlap on so few samples that
            it can, and names them; its stage "other samples" looks at as many others to compare.
        num_pairs: Largest eigenpairs of each matrix, exactly so many; by default the budget's, and
            more for many classes.
        stages: The parts to compute, e.g. "Hessian" or ["layers", "block norms"]; all by default.
        plan: The plan, if you made it already; its stages are run.
        title: What to call it; the model's class by default.
        description: Facts to show in the report, name to text.
        seed: Fixes all random numbers.
        keep_vector_bytes: Eigenvectors of a matrix are kept in the record if they need no more
            than this; otherwise its pairs have vectors of shape (n, 0).
        ignore_limits: Start even if the plan needs more memory or disk than this machine has left.
        checkpoint: Folder for finished parts. A killed analysis started again with the same
            arguments continues there, and gives the same numbers; parts that failed are tried
            again.
        progress: Called with progress over the whole plan.

    Returns:
        The records. Not converged where a part is not, or failed; the status says which.

    Raises:
        InvalidArgumentError: If the plan was made for another budget or other stages, or needs
            more memory or disk than there is.
        EigenscapeError: One of its other kinds, if the risk or the checkpoint cannot be used, or
            everything failed but loss and gradient.

    Examples:
        >>> import torch
        >>> from eigenscape.risk.losses import SquaredError
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> risk = EmpiricalRisk(torch.nn.Linear(3, 2), SquaredError(), (x, torch.zeros(50, 2)))
        >>> analyze(risk, budget="quick").residual.frobenius < 1e-6  # a linear model: H = G
        True
    """
    chosen = as_budget(budget, num_pairs=num_pairs)
    _require_fits(plan, chosen, stages)
    folder = risk.ranks.folder(checkpoint)
    if folder is not None:
        Checkpoint(folder, key_of(risk, chosen, seed))  # refuses that of another analysis
    plan = plan or plan_analysis(risk, budget=chosen, stages=stages)
    if not ignore_limits:
        disk = 0 if folder is None else plan.disk_bytes
        require_room(plan.memory_bytes, disk, risk.device, folder)
    looked, samples = risk, None
    if plan.num_samples is not None:
        looked, samples = subsample(risk, plan.num_samples, seed=seed)
    store = StageStore(folder, plan, progress)
    run = store.run
    here = run(POINT, lambda steps, tick: point(looked))
    classes = None if here is None else here.num_classes
    measure = Measure(looked, chosen, seed)
    hessian, gauss_newton, residual = (
        run(name, partial(measure.spectrum, name, classes)) for name in MATRICES
    )
    layers, blocks = run(LAYERS, measure.layers), run(BLOCKS, measure.blocks)
    others = run(OTHERS, partial(Measure(risk, chosen, seed).others, plan.num_samples or 0))
    store.require_any(hessian, gauss_newton, residual, layers, blocks)

    gaps = overlap = None
    if hessian is not None:
        if len(hessian.largest) >= 3:
            gaps = outliers(hessian.largest, num_classes=classes)
        if here is not None:
            overlap = gradient_overlap(here.gradient, hessian.largest)
    analysis = Analysis(
        status=Status(True, "Everything converged."),
        num_products=plan.num_products,
        seed=seed,
        title=title or _name(risk),
        description=(risk.loss_choice.facts if risk.loss_choice else {}) | dict(description or {}),
        point=here,
        hessian=slim(hessian, keep_vector_bytes),
        gauss_newton=slim(gauss_newton, keep_vector_bytes),
        residual=slim(residual, keep_vector_bytes),
        outliers=gaps,
        gradient_overlap=overlap,
        layers=layers,
        blocks=blocks,
        plan=plan,
        stage_seconds=store.seconds,
        findings=(),
        failures=_failures(store, layers),
        subsample=samples,
        other_samples=others,
    )
    return _summed_up(analysis)


def _require_fits(plan: Plan | None, budget: Budget, stages: str | Iterable[str] | None) -> None:
    """Refuse a plan that was made for something else."""
    names = as_stages(stages, budget)  # refuses what does not exist
    if plan is None:
        return
    if plan.budget != budget:
        raise InvalidArgumentError(
            f"`analyze(plan=...)` was made for the budget '{plan.budget.name}' with "
            f"{plan.budget.num_pairs} pairs; got budget='{budget.name}' with {budget.num_pairs}. "
            "Pass the same budget and `num_pairs` to both."
        )
    if stages is not None and (more := [name for name in plan.names if name not in names]):
        raise InvalidArgumentError(
            f"`analyze(plan=...)` was made for other stages than `stages=`: {', '.join(more)} too. "
            "Pass the same stages to both, or leave them out here."
        )


def _failures(store: StageStore, layers: LayerCurvature | None) -> dict[str, str]:
    """Name what failed, single layers too, and what needed it."""
    reasons = dict(store.failures)
    if layers is not None:
        reasons |= {f"layer {name}": reason for name, reason in layers.failures.items()}
    for name, needed in {
        "outliers": ("Hessian",),
        "gradient overlap": (POINT, "Hessian"),
    }.items():
        if lost := [requirement for requirement in needed if requirement in store.failures]:
            reasons[name] = f"Skipped: it needs the part '{lost[0]}', which failed."
    return reasons


def _summed_up(analysis: Analysis) -> Analysis:
    """Add what is said and counted over all parts."""
    failed = [name for name in analysis.failures]
    texts = [f"Failed: {', '.join(failed)}."] if failed else []
    texts += analysis.slow_parts()
    spent = sum(record.num_products for record in analysis.parts())
    return dataclasses.replace(
        analysis,
        status=Status(not texts, " ".join(texts) or "Everything converged."),
        num_products=analysis.num_products + spent,
        findings=findings.describe(analysis),
    )


def _in_section(title: str, pictures: Iterable[Picture]) -> list[Picture]:
    return [dataclasses.replace(picture, section=title) for picture in pictures]


def _numbers(spectrum: MatrixSpectrum) -> list[tuple[str, float, float | None]]:
    rows = [
        ("largest eigenvalue", spectrum.largest, 0),
        ("smallest eigenvalue", spectrum.smallest, -1),
    ]
    return [
        *((what, float(p.values[i]), float(p.residuals[i])) for what, p, i in rows if len(p)),
        ("trace", spectrum.trace, spectrum.trace_stderr),
        ("Frobenius norm", spectrum.frobenius, spectrum.frobenius_stderr),
    ]


def _name(risk: EmpiricalRisk) -> str:
    model: Any = risk.module
    return "a function" if model is None else type(model).__name__
