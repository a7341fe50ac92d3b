"""Pictures of estimates: every number drawn is one of the record's."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eigenscape.linalg import (
    block_norms,
    block_traces,
    diagonal,
    eigsh,
    lanczos,
    spectral_density,
    trace,
)
from eigenscape.linalg._pictures import (
    abscissae,
    blocks_picture,
    density_marks,
    density_picture,
    diagonal_picture,
    heights,
    is_zero,
    lanczos_picture,
    one_eigenvalue,
    traces_picture,
    value_picture,
    zero_marks,
)
from eigenscape.operator import Dense
from eigenscape.records import Band, Bars, Heat, Line, Picture, Points, Rule, with_error
from eigenscape.space import ParamSpace, Partition
from tests.linalg.matrices import with_spectrum

N = 17
VALUES = torch.linspace(-1.0, 3.0, N, dtype=torch.float64)
SPACE = ParamSpace({"a": (4,), "b": (2, 3), "c": (7,)})


def matrix() -> Tensor:
    return with_spectrum(VALUES)


def marks(picture: Picture, kind: type) -> list:
    return [mark for panel in picture.panels for mark in panel.marks if isinstance(mark, kind)]


def same(drawn: object, truth: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(drawn), truth, rtol=1e-12, atol=1e-12)


def test_a_density_is_drawn_with_its_band() -> None:
    density = spectral_density(Dense(matrix()), num_steps=7, num_probes=3)
    picture = density_picture(density)
    (line,), (band,) = marks(picture, Line), marks(picture, Band)
    same(line.x, density.grid)
    same(line.y, density.density)
    floor, top = heights([density])
    assert picture.panels[0].y.limits == (floor, top)
    assert floor < one_eigenvalue(density) < top
    assert max(line.y) < top
    same(band.high, (density.density + 2 * density.stderr).clamp_min(floor / 10))
    same(band.low, (density.density - 2 * density.stderr).clamp_min(floor / 10))
    assert len(line.hover) == len(line.x)
    assert picture.table["density"] == density.density.tolist()
    with pytest.raises(AssertionError):
        same(line.y, 1.01 * density.density)


def test_one_eigenvalue_is_as_high_as_its_share_of_the_density() -> None:
    density = spectral_density(Dense(matrix()), num_steps=7, num_probes=3)
    width = density.sigma
    normal = torch.distributions.Normal(0.0, width).log_prob(torch.tensor(0.0)).exp()
    assert one_eigenvalue(density) == pytest.approx(float(normal) / N)


def test_an_unknown_error_is_no_band() -> None:
    known = spectral_density(Dense(matrix()), num_steps=5, num_probes=2)
    assert len(density_marks(known, 0.01, "hessian", None)) == 2
    unknown = replace(known, stderr=torch.full_like(known.stderr, math.nan))
    (line,) = density_marks(unknown, 0.01, "hessian", None)
    assert isinstance(line, Line)
    assert line.hover[0].startswith("density\n")


def test_a_logarithmic_density_has_positive_places() -> None:
    density = spectral_density(Dense(matrix()), num_steps=7, num_probes=3, scale="log")
    same(abscissae(density), density.grid.exp())
    picture = density_picture(density)
    assert picture.panels[0].x.log
    assert picture.panels[0].x.label == "|λ| + ε"


def test_a_matrix_of_zeros_is_said_to_be_one() -> None:
    zero = spectral_density(Dense(torch.zeros(N, N)), num_steps=3, num_probes=2)
    assert is_zero(zero)
    picture = density_picture(zero)
    (rule,) = marks(picture, Rule)
    assert rule == zero_marks(N)[0]
    assert rule.text == f"all {N} eigenvalues are 0"
    assert not marks(picture, Line)
    # It does not stretch the axis that it shares with another.
    other = spectral_density(Dense(matrix()), num_steps=7, num_probes=3)
    assert heights([zero, other]) == heights([other])
    assert heights([zero]) == (0.1, 1.0)


def test_deflated_eigenvalues_stand_as_stems() -> None:
    A = Dense(matrix())
    pairs = eigsh(A, num_pairs=2)
    density = spectral_density(A, num_steps=7, num_probes=3, outliers=pairs)
    (points,) = marks(density_picture(density), Points)
    same(sorted(points.x), VALUES[-2:])
    assert points.y == [one_eigenvalue(density)] * 2
    assert points.stem == heights([density])[0]


def test_a_number_has_its_error_as_a_bar() -> None:
    estimate = trace(Dense(matrix()), num_products=6)
    picture = value_picture(estimate, estimate.value, 2 * estimate.stderr, "The trace", "± 2 s.e.")
    (points,) = marks(picture, Points)
    assert points.x == [estimate.value]
    assert points.x_error == [2 * estimate.stderr]
    assert picture.name == "the-trace"
    assert with_error(estimate.value, 2 * estimate.stderr) in picture.panels[0].title


@pytest.mark.parametrize("constant", [False, True])
def test_all_entries_of_a_diagonal_are_counted_once(constant: bool) -> None:
    A = Dense(3.0 * torch.eye(N) if constant else matrix())
    estimate = diagonal(A, num_products=N)
    (bars,) = marks(diagonal_picture(estimate), Bars)
    assert sum(bars.heights) == N
    assert len(bars.edges) == len(bars.heights) + 1
    assert bars.edges[0] < float(estimate.values.min())
    assert float(estimate.values.max()) < bars.edges[-1]


def test_coefficients_of_each_probe_are_lines() -> None:
    run = lanczos(Dense(matrix()), num_steps=5, num_probes=3)
    picture = lanczos_picture(run)
    first, second = picture.panels
    for panel, rows in ((first, run.alphas), (second, run.betas)):
        same([line.y for line in panel.marks], rows)
        assert panel.marks[0].x == [float(i) for i in range(1, rows.shape[1] + 1)]
    assert picture.groups() == ["probe 0", "probe 1", "probe 2"]
    assert picture.pick


def test_layer_against_layer_is_a_map_and_says_what_is_empty() -> None:
    A = matrix()
    A[:4, 10:] = A[10:, :4] = 0.0  # a × c
    blocks = block_norms(Dense(A, space=SPACE), Partition.by_tensor(SPACE), num_probes=3)
    picture = blocks_picture(blocks)
    (heat,) = marks(picture, Heat)
    same(heat.values, blocks.values)
    assert list(heat.rows) == list(heat.columns) == ["a", "b", "c"]
    assert heat.hover[1][2].startswith("b × c\n")
    assert picture.notes == ("2 blocks are zero and stay empty.",)


def test_traces_of_blocks_are_dots_with_two_standard_errors() -> None:
    A = Dense(matrix() + 2 * torch.eye(N), space=SPACE)
    traces = block_traces(A, Partition.by_tensor(SPACE), num_products=5)
    (points,) = marks(traces_picture(traces), Points)
    same(points.x, traces.values)
    same(points.x_error, torch.minimum(2 * traces.stderr, 0.999 * traces.values.abs()))
    assert traces_picture(traces).rows == 3
    assert not any(map(math.isnan, points.x_error))
