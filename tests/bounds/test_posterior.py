"""Bases against dense rotations, variances against dense covariances, and priors that are none."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

from eigenscape.bounds import Basis, Posterior, basis_curvature, layer_basis, make_posterior
from eigenscape.curvature import GaussNewton, LayerHessian, OutputHessian
from eigenscape.errors import (
    FileError,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from tests.bounds.conftest import Problem

KINDS = ("standard", "kronecker", "exact")


@pytest.fixture(scope="module")
def mixed() -> EmpiricalRisk:
    """A convolution, a normalisation, a layer with bias and one without; nothing is square."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(27),
        nn.Linear(27, 5),
        nn.ReLU(),
        nn.Linear(5, 3, bias=False),
    ).double()
    x = torch.randn(20, 1, 4, 4, dtype=torch.float64)
    return EmpiricalRisk(model, CrossEntropy(), (x, torch.arange(20) % 3), batch_size=7)


def dense(basis: Basis) -> Tensor:
    """Return Q, its columns the basis vectors."""
    return basis.to_standard(torch.eye(basis.size, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_rotations_are_orthonormal_and_undo_each_other(mixed: EmpiricalRisk, kind: str) -> None:
    basis = layer_basis(mixed, kind, most_exact=100)
    assert basis.orthonormality() < 1e-12
    Q = dense(basis)
    torch.testing.assert_close(Q.T @ Q, torch.eye(basis.size).double(), rtol=0, atol=1e-12)
    X = torch.randn(basis.size, 4, dtype=torch.float64)
    torch.testing.assert_close(basis.to_basis(X), Q.T @ X)
    torch.testing.assert_close(basis.to_standard(basis.to_basis(X[:, 0])), X[:, 0])
    own = {layer.name: layer.kind for layer in basis.layers}
    large = "kronecker" if kind == "exact" else kind
    expected = {"0": kind, "3.weight": "standard", "3.bias": "standard", "4": large, "6": kind}
    assert own == expected


@pytest.mark.parametrize("layer", ["0", "4", "6"])
def test_an_exact_basis_diagonalises_the_layers_hessian(mixed: EmpiricalRisk, layer: str) -> None:
    basis = layer_basis(mixed, "exact")
    (own,) = (part for part in basis.layers if part.name == layer)
    H = LayerHessian(mixed, layer).to_dense()
    Q = own.rotate(torch.eye(own.size, dtype=torch.float64), back=True).T
    torch.testing.assert_close(Q.T @ H @ Q, own.eigenvalues.diag(), rtol=0, atol=1e-12)
    assert bool((own.eigenvalues.diff() <= 1e-15).all())


@pytest.mark.parametrize("old", KINDS)
@pytest.mark.parametrize("new", KINDS)
def test_variances_are_carried_to_the_diagonal_in_the_new_basis(
    mixed: EmpiricalRisk, old: str, new: str
) -> None:
    one, two = layer_basis(mixed, old), layer_basis(mixed, new)
    with torch.no_grad():  # two Kronecker bases of the same kind must not be the same one
        mixed.parameters()["4.weight"].mul_(1.3)
        two = layer_basis(mixed, new)
    s = torch.rand(one.size, dtype=torch.float64) + 0.1
    Q, R = dense(one), dense(two)
    carried = one.carry(s, two)
    torch.testing.assert_close(carried, (R.T @ Q @ s.diag() @ Q.T @ R).diagonal())
    torch.testing.assert_close(carried.sum(), s.sum())
    assert float(carried.log().sum()) >= float(s.log().sum()) - 1e-9  # Hadamard


@pytest.mark.parametrize("kind", KINDS)
def test_curvature_is_the_diagonal_of_gauss_newton(mixed: EmpiricalRisk, kind: str) -> None:
    basis = layer_basis(mixed, kind)
    Q = dense(basis)
    diagonal = (Q.T @ GaussNewton(mixed).to_dense() @ Q).diagonal().clone()
    for layer in basis.layers:
        if layer.name.startswith("3"):
            diagonal[layer.start : layer.start + layer.size] = 0.0
    torch.testing.assert_close(basis_curvature(mixed, basis), diagonal)


def test_the_approximate_basis_has_the_row_space_of_the_weights_above(problem: Problem) -> None:
    basis = layer_basis(problem.risk, "approximate")
    first, last = basis.layers
    U, V = first.rotations
    W = problem.model[2].weight.detach()
    A = OutputHessian(problem.risk, "2").matrix
    M = 0.25 * W.T @ A @ W
    x = torch.cat([problem.data[0], torch.ones(90, 1, dtype=torch.float64)], dim=1)
    values = torch.outer((U.T @ M @ U).diagonal(), (V.T @ x.T @ x @ V).diagonal() / 90)
    torch.testing.assert_close(first.eigenvalues, values.flatten())
    torch.testing.assert_close(U.T @ M @ U, (U.T @ M @ U).diagonal().diag(), rtol=0, atol=1e-14)
    # At the last layer nothing is approximated.
    exact = layer_basis(problem.risk).layers[1]
    torch.testing.assert_close(last.eigenvalues, exact.eigenvalues)


def test_bases_refuse_what_they_cannot_do(mixed: EmpiricalRisk) -> None:
    with pytest.raises(UnsupportedModelError, match="chains of linear layers"):
        layer_basis(mixed, "approximate")
    with pytest.raises(UnknownNameError, match="kind"):
        layer_basis(mixed, "fourier")
    with pytest.raises(ShapeError, match=r"to_basis\(X\)"):
        layer_basis(mixed, "standard").to_basis(torch.zeros(3))
    x = torch.ones(4, 2, dtype=torch.float64)
    weight = {"w": torch.ones(2, 3, dtype=torch.float64)}
    function = EmpiricalRisk(
        lambda p, x: x @ p["w"], SquaredError(), (x, x @ weight["w"]), params=weight
    )
    assert layer_basis(function, "standard").size == 6
    with pytest.raises(UnsupportedModelError, match="pure function"):
        layer_basis(function, "kronecker")


def test_draws_and_divergence_are_those_of_the_gaussian(problem: Problem) -> None:
    basis = layer_basis(problem.risk)
    s = torch.linspace(0.01, 0.5, basis.size, dtype=torch.float64)
    posterior = make_posterior(
        problem.risk, problem.prior, basis=basis, variances=s, prior_variance=0.05
    )
    Q = dense(basis)
    covariance = Q @ s.diag() @ Q.T
    ours = MultivariateNormal(posterior.means, covariance)
    P = MultivariateNormal(posterior.prior_means, 0.05 * torch.eye(basis.size).double())
    torch.testing.assert_close(posterior.kl(), kl_divergence(ours, P))
    noise = torch.randn(basis.size, 100_000, dtype=torch.float64)
    draws = posterior.draw(noise)
    torch.testing.assert_close(draws[:, 3], posterior.draw(noise[:, 3]))
    torch.testing.assert_close(draws.cov(), covariance, rtol=0, atol=0.015)
    ratios = ours.log_prob(draws.T) - P.log_prob(draws.T)
    deviation = float(ratios.std()) / math.sqrt(len(ratios))
    assert abs(float(ratios.mean() - posterior.kl())) < 5 * deviation
    assert float(posterior.kl(0.04)) != float(posterior.kl())


def test_the_first_variances_are_squares_of_the_weights(problem: Problem) -> None:
    with torch.no_grad():
        problem.model[0].bias[1] = 0.0  # log 0 would be the end of it
    posterior = make_posterior(problem.risk, problem.prior)
    w = problem.risk.space.flatten(problem.risk.parameters())
    zero = int((w == 0).nonzero())
    torch.testing.assert_close(posterior.variances[zero], 1e-6 * w.square().mean())
    others = torch.arange(len(w)) != zero
    torch.testing.assert_close(posterior.variances[others], w.square()[others])
    assert posterior.prior_variance == math.exp(-6.0)


def test_a_prior_that_equals_the_trained_weights_is_refused(problem: Problem) -> None:
    with pytest.raises(InvalidArgumentError, match="equals the posterior's mean, the trained"):
        make_posterior(problem.risk, problem.model.state_dict())


def test_a_prior_with_a_recorded_epoch_is_refused(problem: Problem, tmp_path: Path) -> None:
    wrapped = {"epoch": 3, "state_dict": problem.prior}
    with pytest.raises(InvalidArgumentError, match="after epoch 3"):
        make_posterior(problem.risk, wrapped)
    for number, suffix in ((0, ".safetensors"), (12, ".safetensors"), (12, ".pt")):
        file = tmp_path / f"epoch-{number:04d}{suffix}"
        save_file(problem.prior, file) if suffix != ".pt" else torch.save(problem.prior, file)
        if number:
            with pytest.raises(InvalidArgumentError, match="after epoch 12"):
                make_posterior(problem.risk, file)
        else:
            assert make_posterior(problem.risk, file).prior_source == "initialisation"
    make_posterior(problem.risk, {**wrapped, "epoch": 0})
    make_posterior(problem.risk, wrapped, prior_source="other data")
    with pytest.raises(FileError, match="cannot be read"):
        make_posterior(problem.risk, tmp_path / "nothing.pt")


def test_a_prior_that_was_fitted_to_the_data_is_refused(problem: Problem) -> None:
    fitted = {name: 0.9 * tensor for name, tensor in problem.model.state_dict().items()}
    with pytest.raises(InvalidArgumentError, match="seems fitted"):
        make_posterior(problem.risk, fitted)
    posterior = make_posterior(problem.risk, fitted, prior_source="other data")
    assert posterior.prior_source == "other data"


def test_what_all_networks_share_must_come_from_before_training(problem: Problem) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()
    prior = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    risk = EmpiricalRisk(model, CrossEntropy(), problem.data)
    make_posterior(risk, prior)
    with torch.no_grad():
        model[1].running_mean.add_(0.1)
    with pytest.raises(InvalidArgumentError, match=r"'1\.running_mean' is no parameter"):
        make_posterior(risk, prior)
    part = EmpiricalRisk(problem.model, CrossEntropy(), problem.data, params=["2"])
    with pytest.raises(InvalidArgumentError, match=r"'0\.weight' is no parameter"):
        make_posterior(part, problem.prior)


def test_weights_that_are_no_numbers_are_refused(problem: Problem) -> None:
    bad = {name: tensor.clone() for name, tensor in problem.prior.items()}
    bad["0.weight"][1, 2] = math.nan
    with pytest.raises(NonFiniteError, match="prior has NaN"):
        make_posterior(problem.risk, bad)
    risk = problem.risk
    with torch.no_grad():
        problem.model[0].weight[1, 2] = math.nan
    with pytest.raises(NonFiniteError, match="model has NaN"):
        make_posterior(risk, problem.prior)


def test_priors_of_other_models_are_refused(problem: Problem) -> None:
    lacking = {name: t for name, t in problem.prior.items() if name != "2.bias"}
    with pytest.raises(InvalidArgumentError, match="lacks 1 of"):
        make_posterior(problem.risk, lacking)
    with pytest.raises(InvalidArgumentError, match=r"'2\.bias' is"):
        make_posterior(problem.risk, {**problem.prior, "2.bias": torch.zeros(7)})


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("variances", torch.zeros(39), InvalidArgumentError),
        ("variances", torch.ones(38), ShapeError),
        ("means", torch.full((39,), math.inf), NonFiniteError),
        ("prior_variance", 0.0, InvalidArgumentError),
        ("prior_source", "hearsay", UnknownNameError),
    ],
)
def test_posteriors_refuse_what_is_no_gaussian(
    problem: Problem, field: str, value: object, error: type[Exception]
) -> None:
    good = vars(make_posterior(problem.risk, problem.prior))
    with pytest.raises(error, match=field):
        Posterior(**{**good, field: value})
