"""Spectra of a layer, of KFAC and of CFAC against dense ones, and the distances between them."""

import dataclasses
import math

import pytest
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor, nn

import eigenscape as es
from eigenscape.analyses import spectral_distance
from eigenscape.errors import InvalidArgumentError, UnknownNameError, UnsupportedModelError
from eigenscape.linalg import spectral_density
from eigenscape.operator import Dense
from eigenscape_papers.papyan import kronecker_spectra

LABELS = torch.tensor([0, 2, 0, 1, 2, 0, 0, 2, 1, 0])
N, CLASSES = len(LABELS), 4


def network(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 3), activation(), nn.Linear(3, 6), activation(), nn.Linear(6, CLASSES)
    )


def risk_of(model: nn.Module, x: Tensor) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model, es.CrossEntropy(), (x, LABELS), batch_size=4)


def spectrum(operator: es.LinearOperator) -> Tensor:
    return torch.linalg.eigvalsh(operator.to_dense()).flip(0)


# "2": the tail has an activation; behind a tanh the Hessian is not the Gauss-Newton matrix.
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("max_exact", [4096, 5])
def test_spectra_are_those_of_the_dense_matrices(
    activation: type[nn.Module], max_exact: int
) -> None:
    risk = risk_of(network(activation), torch.randn(N, 5))
    found = kronecker_spectra(risk, "2", max_exact=max_exact, tolerance=1e-8)
    k = len(found.values)
    assert (found.num_parameters, found.num_classes) == (24, 3)
    assert (found.method, k) == (("exact", 24) if max_exact > 24 else ("pairs", 9))
    assert bool(found.status)
    room = dict(rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(found.values, spectrum(es.GaussNewton(risk)["2"])[:k], **room)
    torch.testing.assert_close(
        found.kronecker, spectrum(es.KroneckerHessian(risk, "2"))[:k], **room
    )
    torch.testing.assert_close(
        found.class_kronecker, spectrum(es.ClassKronecker(risk, "2"))[:k], **room
    )
    assert float(found.values.min()) >= 0
    for residuals in (found.residuals, found.class_residuals):
        assert bool((residuals <= 1e-8 * found.values[0]).all())
        assert bool((residuals > 0).any()) == (found.method == "pairs")
    assert (found.num_products > 0) == (found.method == "pairs")


def test_distances_are_those_of_scipy_for_every_part() -> None:
    found = kronecker_spectra(risk_of(network(), torch.randn(N, 5)), "2", floor=1e-3)
    assert found.epsilon == pytest.approx(1e-3 * float(found.values[0]))
    for other, distances in (
        (found.kronecker, found.kronecker_distances),
        (found.class_kronecker, found.class_distances),
    ):
        for j in (1, 3, 9, 24):
            logs = [(values[:j] + found.epsilon).log().numpy() for values in (found.values, other)]
            expected = wasserstein_distance(*logs)
            assert float(distances[j - 1]) == pytest.approx(expected, rel=1e-9)
            assert expected > 0
    ratio = float(found.class_distances[8] / found.kronecker_distances[8])
    assert found.ratio(9) == pytest.approx(ratio)


def test_the_whole_distance_is_that_of_spectral_distance() -> None:
    found = kronecker_spectra(risk_of(network(), torch.randn(N, 5)), "2")
    any_ = spectral_density(Dense(torch.eye(24)), num_steps=1, num_probes=1)
    densities = [
        dataclasses.replace(
            any_,
            nodes=values[None],
            weights=torch.full((1, 24), 1 / 24),
            epsilon=found.epsilon,
        )
        for values in (found.values, found.kronecker)
    ]
    expected = spectral_distance(*densities)
    assert expected > 0.1
    assert float(found.kronecker_distances[-1]) == pytest.approx(expected, rel=1e-9)


def test_inputs_constant_within_classes_have_no_distance() -> None:
    risk = risk_of(network(nn.Tanh), torch.randn(CLASSES, 5)[LABELS])
    found = kronecker_spectra(risk, "2")
    assert float(found.class_distances.max()) < 1e-9
    assert float(found.kronecker_distances[8]) > 0.2  # the largest C²
    assert found.ratio(9) < 1e-9


def test_one_sample_beside_ignored_ones_has_no_distance_from_either() -> None:
    y = torch.full((N,), -100)
    y[6] = 2
    risk = es.EmpiricalRisk(
        network(nn.Tanh), es.CrossEntropy(), (torch.randn(N, 5), y), batch_size=4
    )
    found = kronecker_spectra(risk, "2")
    assert found.num_classes == 1
    assert float(found.values[0]) > 1e-3
    assert float(found.class_distances.max()) < 1e-9
    assert float(found.kronecker_distances.max()) < 1e-9


def test_the_floor_decides_about_small_eigenvalues() -> None:
    risk = risk_of(network(), torch.randn(N, 5))
    low, high = (kronecker_spectra(risk, "2", floor=floor) for floor in (1e-12, 1e-1))
    assert float(high.kronecker_distances[-1]) < 0.5 * float(low.kronecker_distances[-1])
    assert float(high.kronecker_distances[0]) == pytest.approx(
        float(low.kronecker_distances[0]), rel=0.2
    )


def test_a_zero_matrix_has_no_distance() -> None:
    model = network()
    nn.init.zeros_(model[4].weight)
    found = kronecker_spectra(risk_of(model, torch.randn(N, 5)), "2")
    assert float(found.values[0]) == 0
    assert float(found.kronecker_distances.max()) == 0
    assert math.isnan(found.ratio(1))


def test_the_table_has_one_row_for_each_eigenvalue() -> None:
    found = kronecker_spectra(risk_of(network(), torch.randn(N, 5)), "2", num_values=5)
    table = found.columns()
    assert {len(column) for column in table.values()} == {5}
    assert table["CFAC distance"] == found.class_distances.tolist()


def test_refusals() -> None:
    x = torch.randn(N, 5)
    risk = risk_of(network(), x)
    for wrong in (dict(num_values=25), dict(floor=0.0), dict(max_exact=0)):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            kronecker_spectra(risk, "2", **wrong)
    with pytest.raises(InvalidArgumentError, match="ratio"):
        kronecker_spectra(risk, "2", num_values=2).ratio(3)
    squares = es.EmpiricalRisk(network(), es.SquaredError(), (x, torch.randn(N, CLASSES)))
    with pytest.raises(UnsupportedModelError, match="`CrossEntropy`, whose labels are classes"):
        kronecker_spectra(squares, "2")
    with pytest.raises(UnknownNameError, match=r"`kronecker_spectra\(risk, '7'\)` found no layer"):
        kronecker_spectra(risk, "7")
