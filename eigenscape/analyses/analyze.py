"""Everything about one network's curvature, in one call."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eigenscape.analyses import findings
from eigenscape.analyses._stages import Compute, Overall, StageStore
from eigenscape.analyses.gradient_overlap import GradientOverlap, gradient_overlap
from eigenscape.analyses.layer_curvature import LayerCurvature, layer_curvature, layer_names
from eigenscape.analyses.matrix_spectrum import MatrixSpectrum, matrix_spectrum
from eigenscape.analyses.outliers import Outliers, outliers
from eigenscape.analyses.plan import Budget, Plan, as_budget, num_pairs, plan_analysis
from eigenscape.analyses.point import Point, point
from eigenscape.checkpoint import Checkpoint, Key
from eigenscape.errors import InvalidArgumentError
from eigenscape.files import crc
from eigenscape.linalg import BlockNorms, block_norms
from eigenscape.linear_operator import LinearOperator
from eigenscape.operators import GaussNewton, Hessian, Residual
from eigenscape.pairs import EigenPairs
from eigenscape.partition import Partition
from eigenscape.progress import ProgressCallback
from eigenscape.records import Columns, Record, Status
from eigenscape.risk import EmpiricalRisk

_KEEP_VECTOR_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class Analysis(Record):
    """The answers of `analyze`, each a record of its own.

    Attributes:
        title: What was analysed, in a few words.
        description: Facts about model, loss and data, name to text, in the order to show them.
        point: Loss and gradient.
        hessian: Spectrum of H.
        gauss_newton: Spectrum of G; None where it was not asked for.
        residual: Spectrum of H − G; None where it was not asked for.
        outliers: Gaps between the largest eigenvalues of H.
        gradient_overlap: Share of the gradient in the top eigenspaces of H.
        layers: Each layer's block; None where the model is a pure function.
        blocks: Frobenius norms of H between all pairs of layers.
        plan: What was predicted before it ran.
        stage_seconds: Wall time of each stage, by the plan's stage names.
        findings: What was found, in sentences.
    """

    title: str
    description: dict[str, str]
    point: Point
    hessian: MatrixSpectrum
    gauss_newton: MatrixSpectrum | None
    residual: MatrixSpectrum | None
    outliers: Outliers
    gradient_overlap: GradientOverlap
    layers: LayerCurvature | None
    blocks: BlockNorms
    plan: Plan
    stage_seconds: dict[str, float]
    findings: tuple[str, ...]

    def spectra(self) -> tuple[MatrixSpectrum, ...]:
        """Return the spectra that are there: H, then G and H − G."""
        return tuple(s for s in (self.hessian, self.gauss_newton, self.residual) if s is not None)

    def columns(self) -> Columns:
        """Return the key numbers: quantity, value and its error (residual or standard error)."""
        rows: list[tuple[str, float, float | None]] = [("loss", self.point.loss, None)]
        if self.point.accuracy is not None:
            rows.append(("accuracy", self.point.accuracy, None))
        rows.append(("gradient norm", self.point.gradient_norm, None))
        for spectrum in self.spectra():
            rows += [(f"{spectrum.matrix}: {what}", v, e) for what, v, e in _numbers(spectrum)]
        rows.append(("outliers", self.outliers.num_outliers, None))
        names = ("quantity", "value", "error")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def __str__(self) -> str:
        """Return title, key numbers and findings."""
        return "\n".join([self.title, super().__str__(), *self.findings])


def analyze(
    risk: EmpiricalRisk,
    *,
    budget: str | Budget = "standard",
    plan: Plan | None = None,
    title: str | None = None,
    description: Mapping[str, str] | None = None,
    seed: int = 0,
    keep_vector_bytes: int = _KEEP_VECTOR_BYTES,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Analysis:
    """Look at a network's curvature from all sides.

    Loss and gradient; the Hessian H, the Gauss-Newton matrix G and H − G with certified ends,
    densities, traces and norms; outliers against classes; the gradient in the top eigenspace; each
    layer's block with its Kronecker approximation; norms between all pairs of layers.

    Cost: see `plan_analysis`, which predicts products, memory and time.

    Args:
        risk: What to analyse.
        budget: "quick", "standard", "thorough", or a `Budget` of your own.
        plan: The plan, if you made it already.
        title: What to call it; the model's class by default.
        description: Facts to show in the report, name to text.
        seed: Fixes all random numbers.
        keep_vector_bytes: Eigenvectors of a matrix are kept in the record if they need no more
            than this; otherwise its pairs have vectors of shape (n, 0).
        checkpoint: Folder for finished parts. A killed analysis started again with the same
            arguments continues there, and gives the same numbers.
        progress: Called with progress over the whole plan.

    Returns:
        The records. Not converged where a part is not; the status says which.

    Raises:
        InvalidArgumentError: If the plan was made for another budget.
        EigenscapeError: One of its other kinds, if the risk or the checkpoint cannot be used.

    Examples:
        >>> from eigenscape.losses import SquaredError
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> risk = EmpiricalRisk(torch.nn.Linear(3, 2), SquaredError(), (x, torch.zeros(50, 2)))
        >>> analyze(risk, budget="quick").residual.frobenius < 1e-6  # a linear model: H = G
        True
    """
    chosen = as_budget(budget)
    if plan is not None and plan.budget != chosen:
        raise InvalidArgumentError(
            f"`analyze(plan=...)` was made for the budget '{plan.budget.name}'; got "
            f"budget='{chosen.name}'. Pass the same budget to both."
        )
    folder = risk.ranks.folder(checkpoint)
    if folder is not None:
        Checkpoint(folder, _key(risk, chosen, seed))  # refuses that of another analysis
    plan = plan or plan_analysis(risk, budget=chosen)
    store = StageStore(folder, Overall(progress, plan))

    here = store.run("loss and gradient", lambda steps, tick: point(risk))

    def spectrum(name: str, operator: LinearOperator) -> MatrixSpectrum:
        return store.run(name, _spectrum(operator, name, chosen, here.num_classes, seed))

    hessian = spectrum("Hessian", Hessian(risk))
    gauss_newton = spectrum("Gauss-Newton", GaussNewton(risk))
    residual = spectrum("residual", Residual(risk))
    layers = store.run("layers", _layers(risk, chosen, seed)) if layer_names(risk) else None
    blocks = store.run("block norms", _blocks(risk, chosen, seed))
    gaps = outliers(hessian.largest, num_classes=here.num_classes)
    overlap = gradient_overlap(here.gradient, hessian.largest)
    parts = [part for part in (hessian, gauss_newton, residual, layers, blocks) if part is not None]
    problems = [str(part.status) for part in parts if not part.status]
    return Analysis(
        status=Status(not problems, " ".join(problems) or "Everything converged."),
        num_products=plan.num_products + sum(part.num_products for part in parts),
        seed=seed,
        title=title or _name(risk),
        description=dict(description or {}),
        point=here,
        hessian=_slim(hessian, keep_vector_bytes),
        gauss_newton=_slim(gauss_newton, keep_vector_bytes),
        residual=_slim(residual, keep_vector_bytes),
        outliers=gaps,
        gradient_overlap=overlap,
        layers=layers,
        blocks=blocks,
        plan=plan,
        stage_seconds=store.seconds,
        findings=(
            findings.describe_point(here),
            findings.describe_ends(hessian),
            findings.describe_outliers(gaps),
            findings.describe_parts(hessian, residual),
            findings.describe_gradient(overlap, here.num_classes),
            *([] if layers is None else [findings.describe_layers(layers)]),
            findings.describe_blocks(blocks),
        ),
    )


def _spectrum(
    operator: LinearOperator, name: str, budget: Budget, num_classes: int | None, seed: int
) -> Compute[MatrixSpectrum]:
    largest, smallest = num_pairs(name, budget, num_classes)

    def compute(steps: Path | None, progress: ProgressCallback | None) -> MatrixSpectrum:
        return matrix_spectrum(
            operator,
            name,
            num_pairs=largest,
            num_smallest=smallest,
            num_steps=budget.num_steps,
            num_probes=budget.num_probes,
            tolerance=budget.tolerance,
            seed=seed,
            checkpoint=steps,
            progress=progress,
        )

    return compute


def _layers(risk: EmpiricalRisk, budget: Budget, seed: int) -> Compute[LayerCurvature]:
    def compute(steps: Path | None, progress: ProgressCallback | None) -> LayerCurvature:
        return layer_curvature(
            risk,
            num_pairs=budget.num_layer_pairs,
            num_probes=budget.num_layer_probes,
            tolerance=budget.tolerance,
            seed=seed,
            progress=progress,
        )

    return compute


def _blocks(risk: EmpiricalRisk, budget: Budget, seed: int) -> Compute[BlockNorms]:
    def compute(steps: Path | None, progress: ProgressCallback | None) -> BlockNorms:
        return block_norms(
            Hessian(risk),
            Partition.by_layer(risk.space),
            num_probes=budget.num_block_probes,
            seed=seed,
            progress=progress,
        )

    return compute


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


def _slim(spectrum: MatrixSpectrum, most_bytes: int) -> MatrixSpectrum:
    """Leave out eigenvectors that are too large to keep."""

    def slimmed(pairs: EigenPairs) -> EigenPairs:
        vectors = pairs.vectors
        fits = vectors.numel() * vectors.element_size() <= most_bytes
        return dataclasses.replace(pairs, vectors=vectors if fits else vectors[:, :0])

    return dataclasses.replace(
        spectrum, largest=slimmed(spectrum.largest), smallest=slimmed(spectrum.smallest)
    )


def _key(risk: EmpiricalRisk, budget: Budget, seed: int) -> Key:
    """Tell this analysis from others: where it looks, at what, and how closely."""
    flat = torch.cat([tensor.reshape(-1) for tensor in risk.parameters().values()])
    return {
        "what": "analyze",
        "parameters": crc(flat),
        "size": risk.space.size,
        "samples": risk.num_samples,
        "loss": repr(risk.value()),
        "budget": dataclasses.asdict(budget),
        "seed": seed,
    }


def _name(risk: EmpiricalRisk) -> str:
    model: Any = risk.module
    return "a function" if model is None else type(model).__name__
