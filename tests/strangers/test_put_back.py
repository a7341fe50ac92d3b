"""Old defects put back, one at a time: what guards the place notices, and does not know them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.curvature.products import graphs as _batch_graphs
from eigenscape.curvature.products import linearised as _linearised
from eigenscape.errors import SelfTestError, UnsupportedModelError
from eigenscape.risk import leaf_copies
from tests.strangers.named_cases import CASES, Activation, SavesSigmoid, net
from tests.strangers.oracle import Case, direction


def made(name: str) -> Case:
    return CASES[name][0]()


def multiplied(matrix: Any) -> Tensor:
    product: Tensor = matrix @ direction(matrix.shape[0]).to(matrix.dtype)
    return product


def test_a_trace_of_another_object_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kind_of = _linearised._kind_of
    by_print = lambda leaf: kind_of(leaf) if isinstance(leaf, Tensor) else repr(leaf)
    monkeypatch.setattr(_linearised, "_kind_of", by_print)
    H = es.Hessian(made("objects_that_print_alike").risk(), representation="linearised")
    with pytest.raises(UnsupportedModelError, match="disagrees with double backward"):
        multiplied(H)


def test_a_trace_that_misses_what_later_batches_hold_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(es.EmpiricalRisk, "without_padding", lambda risk, rows: rows)
    risk = made("padding_in_later_batches").risk(self_test=False)
    with pytest.raises(UnsupportedModelError, match="disagrees with double backward"):
        multiplied(es.Hessian(risk, representation="linearised"))


def test_a_trace_is_tried_again_where_weights_moved_and_a_batch_adds_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, X, y = net(3, 7, 4), torch.randn(12, 3), torch.randint(0, 4, (12,))
    y[:6] = -100
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), [(X[:6], y[:6]), (X[6:], y[6:])])
    H = es.Hessian(risk, representation="linearised")
    multiplied(H)
    pull = _linearised.Program.pull
    twice = lambda *given, **options: [p if p is None else 2 * p for p in pull(*given, **options)]
    monkeypatch.setattr(_linearised.Program, "pull", twice)
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    with pytest.raises(UnsupportedModelError, match="disagrees with double backward"):
        multiplied(H)


def test_copies_of_parameters_that_the_loss_holds_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(es.EmpiricalRisk, "leaves", lambda risk: leaf_copies(risk.parameters()))
    H = es.Hessian(made("weight_in_a_partial").risk())
    with pytest.raises(SelfTestError, match="not that of the loss"):
        multiplied(H)


@pytest.mark.parametrize(
    "name", ["weight_decay_in_the_loss", "loss_module_that_owns_the_model", "weight_in_a_partial"]
)
def test_a_matrix_of_the_output_alone_is_refused_where_the_loss_holds_parameters(
    name: str,
) -> None:
    """The self-test would pass: this is the matrix of the output, and leaves the penalty out."""
    with pytest.raises(UnsupportedModelError, match="also reaches '"):
        multiplied(es.GaussNewton(made(name).risk()))


@pytest.mark.parametrize("silent", [slice(0, 6), slice(6, 12)])
def test_a_false_derivative_shows_behind_a_batch_that_adds_nothing(silent: slice) -> None:
    """It is symmetric, so that nothing but differences of the function can show it."""
    model = nn.Sequential(nn.Linear(3, 7), Activation(SavesSigmoid.apply), nn.Linear(7, 4))
    X, y = torch.randn(12, 3), torch.randint(0, 4, (12,))
    y[silent] = -100
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), [(X[:6], y[:6]), (X[6:], y[6:])])
    with pytest.raises(SelfTestError, match="would not be the matrix of your function"):
        multiplied(es.Hessian(risk))


def test_asymmetry_shows_behind_a_batch_that_adds_nothing_without_a_self_test() -> None:
    H = es.Hessian(made("weight_norm_behind_ignored_targets").risk(self_test=False))
    with pytest.raises(UnsupportedModelError, match="is not symmetric"):
        multiplied(H)


def test_a_float32_model_is_compared_to_more_digits_than_float32_differences_have() -> None:
    """The false part is 1 % of a product: differences in float32 show no more than 2 %."""
    mixed = Activation(lambda h: torch.tanh(h) + 0.1 * SavesSigmoid.apply(h))
    model = nn.Sequential(nn.Linear(3, 7), mixed, nn.Linear(7, 4)).float()
    data = torch.randn(12, 3).float(), torch.randint(0, 4, (12,))
    with pytest.raises(SelfTestError, match="would not be the matrix of your function"):
        multiplied(es.Hessian(es.EmpiricalRisk(model, es.CrossEntropy(), data)))


def test_a_matrix_that_is_zero_where_the_function_is_not_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_zero = lambda tensor: torch.zeros_like(tensor).requires_grad_()
    monkeypatch.setattr(_batch_graphs, "_random_like", at_zero)
    G = es.GaussNewton(made("logcumsumexp_at_last").risk(), representation="graph")
    with pytest.raises(SelfTestError, match="would not be the matrix of your function"):
        multiplied(G)


@pytest.mark.parametrize("seed", [1, 8])
def test_what_the_start_saw_of_copies_shows_that_some_were_missed(seed: int) -> None:
    """At these seeds the look for missed pairs alone ends with six of the ten copies."""
    X, model = torch.randn(2000, 200), nn.Linear(200, 10, bias=False)
    risk = es.EmpiricalRisk(model, es.SquaredError(), (X, torch.randn(2000, 10)))
    pairs = es.eigsh(es.GaussNewton(risk), num_pairs=10, seed=seed)
    top = torch.linalg.eigvalsh(X.T @ X / 2000)[-1]
    torch.testing.assert_close(pairs.values, top.expand(10), rtol=1e-5, atol=0)
