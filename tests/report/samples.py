"""Small records with known content, for the tests of figures, runs and reports."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from eigenscape.analyses import (
    Analysis,
    Budget,
    GradientOverlap,
    LayerBlock,
    LayerCurvature,
    MatrixSpectrum,
    Outliers,
    Plan,
    Point,
    Stage,
)
from eigenscape.linalg import BlockNorms, eigsh, frobenius_norm, spectral_density, trace
from eigenscape.operator import Dense
from eigenscape.records import Picture, Status
from eigenscape.testing import matrix_with_spectrum
from eigenscape_papers.ensemble import Training

GOOD = Status(True, "Everything reached its tolerance.")
POOR = Status(False, "2 of 5 residuals are above the tolerance. Give more products.")
NASTY = '<script>alert("x")</script> & "q" $a_b$'


def bulk_and_outliers(n: int = 200, *, shift: float = 0.0) -> Tensor:
    """Nine outliers from 3 to 11 above a decaying bulk with a negative tail."""
    generator = torch.Generator().manual_seed(n)
    values = 0.3 * torch.randn(n, dtype=torch.float64, generator=generator) ** 3
    values[:9] = torch.arange(3.0, 12.0, dtype=torch.float64)
    return values + shift


def spectrum_of(matrix: Tensor, name: str = "Hessian", *, probes: int = 4) -> MatrixSpectrum:
    """Return the spectrum of a dense matrix by the package's own solvers."""
    A, n = Dense(matrix), len(matrix)
    most = max(1, min(14, n - 2))
    largest = eigsh(A, num_pairs=most)
    smallest = eigsh(A, num_pairs=max(1, min(2, n - most)), which="smallest")
    steps = min(40, n)
    ends = {"num_steps": steps, "num_probes": probes}
    outliers = largest if n > most else None
    rho = spectral_density(A, **ends, outliers=outliers)
    log = rho.redraw(scale="log", epsilon=1e-6)
    products = min(60, n)
    size = trace(A, num_products=products)
    norm = frobenius_norm(A, num_products=products)
    return MatrixSpectrum(
        status=GOOD,
        num_products=largest.num_products + rho.num_products,
        seed=0,
        matrix=name,
        size=n,
        largest=largest,
        smallest=smallest,
        density=rho,
        log_density=log,
        trace=size.value,
        trace_stderr=size.stderr,
        frobenius=norm.value,
        frobenius_stderr=norm.stderr,
        seconds=1.25,
    )


def layer(
    name: str, place: int = 0, *, kronecker: bool = True, converged: bool = True
) -> LayerBlock:
    """Return one layer's block with numbers that vary with its place."""
    generator = torch.Generator().manual_seed(place)
    values = torch.tensor([5.0 / (place + 1), 1.0, 0.5, 0.1], dtype=torch.float64)
    ramp = torch.linspace(1.0, 0.6, 4, dtype=torch.float64)
    decay = torch.logspace(1, -8, 30, dtype=torch.float64)
    noise = 1 + 0.2 * torch.rand(30, dtype=torch.float64, generator=generator)
    return LayerBlock(
        name=name,
        kind="Linear",
        num_parameters=1000 * (place + 1),
        num_positions=1 if kronecker else None,
        trace=12.0 / (place + 1) if place % 5 != 3 else -0.4,
        trace_stderr=0.2,
        frobenius=6.0,
        frobenius_stderr=0.1,
        values=values,
        residuals=1e-7 * values,
        converged=converged,
        stable_rank=1.4 + place,
        rank_one=0.9 * ramp if kronecker else None,
        input_values=decay * noise if kronecker else None,
        output_values=decay[:10] if kronecker else None,
        kronecker_error=0.2 + 0.5 * math.sin(place) ** 2 if kronecker else None,
        kronecker_error_stderr=0.03 if kronecker else None,
        kronecker_overlap=ramp * (1 - 0.01 * place) if kronecker else None,
    )


def layer_curvature(names: list[str], **each: Any) -> LayerCurvature:
    """Return blocks for layers of these names."""
    rows = tuple(layer(name, place, **each) for place, name in enumerate(names))
    return LayerCurvature(GOOD, 320, 0, rows, 2.5)


def block_norms(names: list[str]) -> BlockNorms:
    """Return norms that fall off away from the diagonal."""
    places = torch.arange(len(names), dtype=torch.float64)
    values = 10.0 ** (-0.3 * (places[:, None] - places).abs())
    return BlockNorms(GOOD, 64, 0, values, 0.02 * values, tuple(names), tuple(names), 8)


def plan() -> Plan:
    """Return a plan of three stages."""
    counts = {f.name: 4 for f in dataclasses.fields(Budget) if f.name != "name"}
    budget = Budget(name="quick", **counts)
    stages = (
        Stage("Hessian spectrum", 300, 1.1),
        Stage("layers", 320, 2.0),
        Stage("block norms", 64, 0.3),
    )
    return Plan(GOOD, 0, 0, budget, stages, 10_000_000, 2_000_000, 200, "cpu")


def analysis(
    *, n: int = 200, names: list[str] | None = None, title: str = "A small network", **changes: Any
) -> Analysis:
    """Return an analysis of matrices with known spectra, with any field replaced."""
    names = ["fc1", "fc2", "fc3"] if names is None else names
    matrix = matrix_with_spectrum(bulk_and_outliers(n), seed=1)
    gauss = matrix_with_spectrum(bulk_and_outliers(n).clamp_min(0.0), seed=1)
    H = spectrum_of(matrix)
    values, residuals = H.largest.values, H.largest.residuals
    gaps = values[:-1] / values[1:]
    k = len(values)
    shares = torch.linspace(0.3, 0.9, k, dtype=torch.float64)
    record = Analysis(
        status=GOOD,
        num_products=4321,
        seed=7,
        title=title,
        description={"model": "fc 64–32–10, tanh", "loss": "cross-entropy", "data": "1 797 digits"},
        point=Point(
            GOOD, 0, 0, 0.0123, 0.987, torch.ones(n) / n, 0.0456, 12.5, n, 1797, 1797.0, 10
        ),
        hessian=H,
        gauss_newton=spectrum_of(gauss, "Gauss-Newton"),
        residual=spectrum_of(matrix - gauss, "residual"),
        outliers=Outliers(GOOD, 0, 0, values, residuals, gaps, min(9, k), 3.2, True, 10),
        gradient_overlap=GradientOverlap(
            GOOD, 0, 0, values, shares, torch.arange(1.0, k + 1) / n, 0.0456
        ),
        layers=layer_curvature(names),
        blocks=block_norms(names),
        plan=plan(),
        stage_seconds={"Hessian spectrum": 1.3, "layers": 2.2, "block norms": 0.25},
        findings=(
            "The loss is nearly flat but for 9 directions, one fewer than there are classes.",
            "The largest curvature is 11.0, found to 8 digits.",
            "66 % of the gradient lies in the 9 steepest of 200 directions.",
        ),
    )
    return dataclasses.replace(record, **changes)


def tiny() -> Analysis:
    """Return an analysis of a network with three parameters, one layer, one probe, no G."""
    H = spectrum_of(torch.diag(torch.tensor([-1.0, -2.0, -3.0])), probes=1)
    H = dataclasses.replace(H, trace_stderr=math.nan, largest=without_vectors(H.largest))
    values, residuals = H.largest.values, H.largest.residuals
    none = torch.zeros(0, dtype=torch.float64)
    return analysis(
        names=["only"],
        hessian=H,
        gauss_newton=None,
        residual=None,
        layers=None,
        point=Point(POOR, 0, 0, 0.0, None, torch.zeros(3), 0.0, 1.0, 3, 4, 4.0, None),
        outliers=Outliers(POOR, 0, 0, values, residuals, none, 0, 1.0, False, None),
        gradient_overlap=GradientOverlap(
            POOR, 0, 0, values, torch.full((1,), math.nan), torch.ones(1) / 3, 0.0
        ),
        findings=(),
        stage_seconds={},
    )


def without_vectors(pairs: Any) -> Any:
    """Return pairs whose vectors were not kept."""
    return dataclasses.replace(pairs, vectors=pairs.vectors[:, :0])


def training(epochs: int = 5, seeds: int = 2) -> Training:
    """Return a training of a few epochs, tested every other one."""
    loss = torch.logspace(0, -2, epochs, dtype=torch.float64)[:, None].repeat(1, seeds)
    test = loss * 1.5
    test[::2] = math.nan
    accuracy = 1 - loss / 2
    return Training(
        status=GOOD,
        num_products=0,
        seed=0,
        seeds=tuple(range(seeds)),
        epochs_done=epochs,
        train_loss=loss,
        train_accuracy=accuracy,
        test_loss=test,
        test_accuracy=1 - test / 2,
        learning_rates=torch.full((epochs,), 0.1, dtype=torch.float64),
        weights={"0.weight": torch.ones(seeds, 2, 3)},
        seconds=3.5,
        device="cpu",
        recipe="SGD, 5 epochs",
    )


# --- what a picture holds ---

SIZE = 40  # of the analyses whose pictures are looked at


def marks(picture: Picture, kind: type, panel: int = 0) -> list[Any]:
    return [mark for mark in picture.panels[panel].marks if isinstance(mark, kind)]


def same(drawn: object, truth: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(drawn), truth.double(), rtol=1e-12, atol=1e-12)
