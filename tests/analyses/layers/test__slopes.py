"""Derivatives of outputs at a layer, against Jacobians from plain autograd, sample by sample."""

import pytest
import torch
from torch import Tensor, nn

from eigenscape.analyses.layers._slopes import (
    all_slopes,
    batch_slopes,
    roots,
)
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk, find_layer
from eigenscape_papers.wu.weights_above import unit_vectors
from tests.cases import N, case, normal

Y = torch.arange(N) % 3


def risk_of(*layers: nn.Module, batch_size: int | None = 4) -> EmpiricalRisk:
    data = (normal(N, 4), Y)
    return EmpiricalRisk(nn.Sequential(*layers), CrossEntropy(), data, batch_size=batch_size)


def jacobian(risk: EmpiricalRisk, names: list[str]) -> Tensor:
    """∂z/∂(parameters) (N·C, q) of all data at once."""
    model = risk.module.eval()
    z = model(torch.cat([batch.args[0] for batch in risk.batches]))
    leaves = [dict(model.named_parameters())[name] for name in names]
    rows = [torch.autograd.grad(entry, leaves, retain_graph=True) for entry in z.flatten()]
    return torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows])


def rows_of(inputs: Tensor, slopes: Tensor, *, has_bias: bool) -> Tensor:
    """Σ_p b_p x̃_pᵀ as rows (N·J, q), the bias last as the parameters have it."""
    R = torch.einsum("njpm,npi->njmi", slopes, inputs).flatten(0, 1)
    if not has_bias:
        return R.flatten(1)
    return torch.cat([R[:, :, :-1].flatten(1), R[:, :, -1]], 1)


def check(rows: Tensor, truth: Tensor) -> None:
    assert (rows - truth).norm() <= 1e-12 * truth.norm()


LAYERS = {"mlp-tanh": ["0", "2", "4"], "cnn-batchnorm": ["0", "4", "7"], "conv1d": ["3"]}


@pytest.mark.parametrize(("name", "layer"), [(k, v) for k in LAYERS for v in LAYERS[k]])
def test_slopes_and_inputs_make_the_jacobian(name: str, layer: str) -> None:
    risk = case(name).risk(4)
    owner = find_layer(risk, layer)
    all_of = list(all_slopes(risk, owner, unit_vectors, "test(risk)"))
    assert [len(slopes.inputs) for slopes in all_of] == [4, 4, 3]
    rows = torch.cat([rows_of(s.inputs, s.slopes, has_bias="bias" in owner.fields) for s in all_of])
    truth = jacobian(risk, list(owner.params))
    check(rows, truth)
    with pytest.raises(AssertionError):
        check(rows.roll(1, 0), truth)
    outputs = torch.cat([s.output for s in all_of])
    with torch.no_grad():
        expected = risk.module(torch.cat([batch.args[0] for batch in risk.batches]))
    torch.testing.assert_close(outputs, expected)


def test_roots_make_the_gauss_newton_block() -> None:
    c = case("mlp-tanh")
    risk = c.risk(7)
    layer = find_layer(risk, "2")
    slopes = all_slopes(risk, layer, roots(risk), "test(risk)")
    rows = torch.cat([rows_of(s.inputs, s.slopes, has_bias=True) for s in slopes])
    index = risk.space.block("2").index()
    check(rows.T @ rows / N, c.gauss_newton()[index][:, index])


def test_combinations_are_linear() -> None:
    risk = risk_of(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), batch_size=None)
    layer, batch = find_layer(risk, "0"), next(iter(risk.batches))
    weights = torch.randn(N, 3)
    units = batch_slopes(risk, layer, batch, unit_vectors).slopes
    (one,) = batch_slopes(risk, layer, batch, lambda z, _: [weights]).slopes.unbind(1)
    torch.testing.assert_close(one, torch.einsum("nj,njpm->npm", weights, units))


def test_nothing_is_left_behind() -> None:
    risk = risk_of(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    slopes = batch_slopes(risk, find_layer(risk, "0"), next(iter(risk.batches)), unit_vectors)
    assert not any(t.requires_grad for t in (slopes.inputs, slopes.slopes, slopes.output))
    assert all(p.grad is None and p.requires_grad for p in risk.module.parameters())


def test_outputs_that_are_no_rows_of_logits_are_refused() -> None:
    risk = case("squared-positions").risk()
    with pytest.raises(UnsupportedModelError, match=r"'0' need.*got \(11, 2, 3\)"):
        list(all_slopes(risk, find_layer(risk, "0"), unit_vectors, "test(risk)"))
