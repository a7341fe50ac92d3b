"""Every record has a picture, with its certificates, and drawing changes nobody's settings."""

import dataclasses
import math
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure

from eigenscape.errors import EigenscapeError, WrongTypeError
from eigenscape.linalg import (
    Hutchinson,
    block_norms,
    block_traces,
    diagonal,
    eigsh,
    frobenius_norm,
    lanczos,
    solve,
    spectral_density,
    spectral_norm,
    trace,
)
from eigenscape.operator import Dense
from eigenscape.records import Record
from eigenscape.report import compare, draw
from eigenscape.space import ParamSpace, Partition
from tests.report import samples

SPACE = ParamSpace({"a": (4,), "b": (3,), "c": (5,)})
MATRIX = torch.diag(torch.linspace(-1.0, 4.0, 12)) + 0.1
A = Dense((MATRIX + MATRIX.T) / 2, space=SPACE)


def records() -> dict[str, Any]:
    whole = samples.analysis(n=40)
    blocks = Partition.by_tensor(SPACE)
    log = spectral_density(
        A, num_steps=6, num_probes=3, scale="log", outliers=eigsh(A, num_pairs=2)
    )
    return {
        "Analysis": whole,
        "tiny Analysis": samples.tiny(),
        "MatrixSpectrum": whole.hessian,
        "Outliers": whole.outliers,
        "GradientOverlap": whole.gradient_overlap,
        "LayerCurvature": whole.layers,
        "layers without Kronecker": samples.layer_curvature(["a", "b"], kronecker=False),
        "Plan": whole.plan,
        "Point": whole.point,
        "EigenPairs": eigsh(A, num_pairs=4),
        "EigenPairs of both signs": eigsh(A, num_pairs=4, which="both"),
        "SpectralDensity": spectral_density(A, num_steps=6, num_probes=3),
        "one probe": spectral_density(A, num_steps=6, num_probes=1),
        "log density": log,
        "BlockNorms": block_norms(A, blocks, num_probes=2),
        "BlockTraces": block_traces(A, blocks, num_products=4),
        "DiagonalEstimate": diagonal(A, num_products=4),
        "LanczosRun": lanczos(A, num_steps=5, num_probes=2),
        "NormEstimate": frobenius_norm(A, num_products=4),
        "SpectralNorm": spectral_norm(A),
        "TraceEstimate": trace(A, num_products=4, method=Hutchinson()),
        "Training": samples.training(),
        "Comparison": compare([whole, samples.tiny()]),
        "zero": spectral_density(Dense(torch.zeros(4, 4)), num_steps=2, num_probes=2),
        "zero pairs": eigsh(Dense(torch.zeros(4, 4)), num_pairs=2),
        "constant diagonal": diagonal(Dense(torch.eye(4)), num_products=4),
    }


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    found = records()
    torch.set_default_dtype(before)
    return found


def test_every_record_is_drawn_on_given_axes(made: dict[str, Any]) -> None:
    for name, record in made.items():
        figure = Figure()
        axes = figure.subplots()
        assert draw(record, axes) is axes, name
        assert axes.has_data(), name
        figure.canvas.draw()


def test_plot_opens_a_figure_with_all_panels(made: dict[str, Any]) -> None:
    axes = made["LayerCurvature"].plot()
    assert len(axes.figure.axes) == 3
    plt.close(axes.figure)
    axes = made["EigenPairs"].plot()
    assert len(axes.figure.axes) == 1
    plt.close(axes.figure)


def test_settings_of_others_are_left_alone(made: dict[str, Any]) -> None:
    before = dict(mpl.rcParams)
    numbers = plt.get_fignums()
    draw(made["Outliers"], Figure().subplots())
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == numbers


def test_residuals_are_error_bars() -> None:
    pairs = eigsh(A, num_pairs=3)
    pairs = dataclasses.replace(pairs, residuals=torch.tensor([0.5, 0.25, 0.125]))
    axes = draw(pairs, Figure().subplots())
    arms = axes.containers[0].lines[2][0].get_segments()
    assert [arm[1][1] - arm[0][1] for arm in arms] == pytest.approx([1.0, 0.5, 0.25])


def test_band_is_two_standard_errors() -> None:
    density = spectral_density(A, num_steps=6, num_probes=4)
    axes = draw(density, Figure().subplots())
    top = axes.collections[0].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(float((density.density + 2 * density.stderr).max()))


def test_an_error_that_is_not_known_has_no_band() -> None:
    density = spectral_density(A, num_steps=6, num_probes=1)
    unknown = dataclasses.replace(density, stderr=torch.full_like(density.stderr, math.nan))
    assert not draw(unknown, Figure().subplots()).collections


def test_names_with_dollars_and_underscores_are_drawn_as_they_are() -> None:
    record = samples.layer_curvature(["$x_", "_private", samples.NASTY])
    figure = Figure()
    axes = draw(record, figure.subplots())
    figure.canvas.draw()
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["$x_", "_private"]


def test_epochs_without_evaluation_are_left_out() -> None:
    axes = draw(samples.training(), Figure().subplots())
    assert all(math.isfinite(v) for line in axes.lines for v in line.get_ydata())
    assert sorted({len(line.get_xdata()) for line in axes.lines}) == [2, 5]


def test_unknown_records_and_axes_are_refused() -> None:
    solution = solve(Dense(torch.eye(3)), torch.ones(3))
    assert isinstance(solution, Record)
    with pytest.raises(EigenscapeError, match=r"no picture of a Solution.*to_frame"):
        draw(solution)
    with pytest.raises(EigenscapeError, match="must be a record"):
        draw(3)
    with pytest.raises(WrongTypeError, match="must be matplotlib axes; got Figure"):
        draw(samples.plan(), Figure())
