"""Bounds that hold for every measure with the same moments, and rules that share them."""

import math

import pytest
import torch
from torch import Tensor

from eigenscape.linalg import lanczos
from eigenscape.linalg._quadrature import (
    Rule,
    largest_atoms,
    next_rule,
    sampling_error,
    shares_up_to,
)
from eigenscape.operator import Dense
from tests.linalg.matrices import SPECTRA

STEPS = 9


def rule(values: Tensor, num_steps: int = STEPS) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Return nodes, weights and residuals of three probes, and their shares of each eigenvalue."""
    run = lanczos(Dense(torch.diag(values)), num_steps=num_steps, num_probes=3)
    assert run.basis is not None
    nodes, weights = run.quadrature()
    return (nodes, weights, run.ritz()[1]), run.basis[:, 0].square()


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_bounds_hold_at_every_point(name: str, scale: float) -> None:
    values = SPECTRA[name](200)
    (nodes, weights, residuals), shares = rule(values)
    points = torch.linspace(float(values.min()) - 0.5, float(values.max()) + 0.5, 61)
    for point in [*points.tolist(), *values[:5].tolist()]:
        least, most = shares_up_to(nodes * scale, weights, residuals * scale, point * scale)
        true = (shares * (values <= point)).sum(1)
        assert bool((least <= true + 1e-9).all())
        assert bool((true <= most + 1e-9).all())


def test_bounds_are_no_wider_than_the_weights_around() -> None:
    values = SPECTRA["indefinite"](200)
    (nodes, weights, residuals), _ = rule(values)
    least, most = shares_up_to(nodes, weights, residuals, 0.5)
    inside = (nodes <= 0.5).sum(1)
    around = torch.stack(
        [row[at - 1 : at + 1].sum() for row, at in zip(weights, inside, strict=True)]
    )
    assert bool((most - least <= around + 1e-12).all())
    assert bool((most > least + 0.01).all())


def test_nothing_is_unknown_beyond_the_ends_or_once_all_is_found() -> None:
    values = torch.tensor([1.0] * 30 + [2.0] * 10, dtype=torch.float64)
    (nodes, weights, residuals), shares = rule(values, 5)
    for point in (-math.inf, 0.0, 1.0, 1.5, 2.0, 7.0, math.inf):
        least, most = shares_up_to(nodes, weights, residuals, point)
        torch.testing.assert_close(least, most, rtol=0, atol=1e-12)
        true = (shares * (values <= point)).sum(1)
        torch.testing.assert_close(least, true, rtol=0, atol=1e-9)


def test_the_next_rule_has_the_same_moments_and_other_nodes() -> None:
    (nodes, weights, residuals), _ = rule(SPECTRA["indefinite"](200))
    others, shares = next_rule(nodes, weights, residuals)
    assert others.shape == (3, STEPS + 1)
    for power in range(2 * STEPS):
        mine = (weights * nodes**power).sum(1)
        torch.testing.assert_close((shares * others**power).sum(1), mine, rtol=1e-9, atol=1e-9)
    ordered = others.sort(1).values
    assert bool((ordered[:, :-1] < nodes).all() and (nodes < ordered[:, 1:]).all())


def test_sampling_errors_are_those_of_random_vectors() -> None:
    # For F with eigenvalues f, vᵀFv of a unit vector v has variance 2/(n + 2) (mean f² − mean² f).
    f = SPECTRA["indefinite"](50)
    draw = torch.Generator().manual_seed(0)
    V = torch.randn(20000, 50, generator=draw, dtype=torch.float64)
    V = (V / V.norm(dim=1, keepdim=True)).square()
    first, second, fourth = (V @ f**power for power in (1, 2, 4))
    expected = float(first.std()) / math.sqrt(20000)
    found = sampling_error(first, second, fourth, 50, 20000)
    assert float(found) == pytest.approx(expected, rel=0.03)  # 4 deviations of it are 2 %


def test_eigenvalues_that_were_all_formed_have_no_error() -> None:
    values = SPECTRA["indefinite"](30)[None]
    formed = Rule(values, torch.full((1, 30), 1 / 30).double(), None, 30, 0)
    share, error = formed.share(0.0, 5.0)
    assert share == pytest.approx(float((values > 0).double().mean()))
    assert error == 0.0
    assert formed.mean(lambda nodes: nodes, 1) == (pytest.approx(float(values.mean())), 0.0)
    assert float(formed.curve(torch.zeros(1).double(), 0.1, "linear", 0.0)[1]) == 0.0


def test_an_atom_is_what_the_bounds_leave_open() -> None:
    (nodes, weights, residuals), _ = rule(SPECTRA["indefinite"](200))
    points = torch.tensor([-0.7, 0.1, float(nodes[0, 4]), 1.9], dtype=torch.float64)
    atoms = largest_atoms(nodes, weights, residuals, points)
    for point, found in zip(points.tolist(), atoms.T, strict=True):
        least, most = shares_up_to(nodes, weights, residuals, point)
        torch.testing.assert_close(found, most - least, rtol=1e-6, atol=1e-9)
