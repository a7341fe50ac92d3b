"""Kronecker products between layers: every block against plain autograd, and when it is exact."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.curvature import ClassKronecker, KroneckerHessian
from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    UnknownNameError,
    UnsupportedModelError,
)
from eigenscape.testing import check_operator
from eigenscape_papers.papyan import KhatriRao

CLASSES = 4
LABELS = torch.tensor([0, 2, 0, 1, 2, 0, 0, 2, 1, 0])
N = len(LABELS)
LINEAR = (0, 2, 4)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 6, bias=False), nn.ReLU(), nn.Linear(6, CLASSES)
    )


def risk_of(
    model: nn.Module, x: Tensor, y: Tensor = LABELS, **settings: object
) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model, es.CrossEntropy(), (x, y), **settings)


def captured(
    model: nn.Sequential, x: Tensor
) -> tuple[dict[int, Tensor], dict[int, Tensor], Tensor]:
    """Errors δ^l (N, C, m) with every label and inputs x̃^l (N, n) of each layer, and p (N, C)."""
    inputs, outputs = {}, {}
    for index, module in enumerate(model):
        if index in LINEAR:
            inputs[index] = x.detach()
            if module.bias is not None:
                inputs[index] = F.pad(inputs[index], (0, 1), value=1.0)
        x = module(x)
        outputs[index] = x
    errors = {index: [] for index in LINEAR}
    for label in range(CLASSES):
        loss = F.cross_entropy(x, torch.full((len(x),), label), reduction="sum")
        found = torch.autograd.grad(loss, [outputs[i] for i in LINEAR], retain_graph=True)
        for index, slope in zip(LINEAR, found, strict=True):
            errors[index].append(slope)
    stacked = {index: torch.stack(found, 1) for index, found in errors.items()}
    return stacked, inputs, x.softmax(1).detach()


def rows_to_parameters(m: int, n: int, *, has_bias: bool) -> Tensor:
    where = torch.arange(m * n).view(m, n)
    return torch.cat([where[:, :-1].flatten(), where[:, -1]]) if has_bias else where.flatten()


def oracle(model: nn.Sequential, x: Tensor, indices: list[int], *, per_class: bool) -> Tensor:
    """Σ_c π_c Δ_c ⊙ H_c, block by block, in the order of the given layers."""
    errors, inputs, p = captured(model, x)
    groups = LABELS.unique() if per_class else [None]
    rows = []
    for k in indices:
        row = []
        for j in indices:
            total = 0
            for group in groups:
                mine = slice(None) if group is None else group == LABELS
                q, a, b = p[mine], errors[k][mine], errors[j][mine]
                left = torch.einsum("nc,nca,ncb->ab", q, a, b) / len(q)
                right = inputs[k][mine].T @ inputs[j][mine] / len(q)
                total = total + torch.kron(left, right) * len(q) / N
            sizes = [(errors[i].shape[2], inputs[i].shape[1]) for i in (k, j)]
            order = [
                rows_to_parameters(*size, has_bias=model[i].bias is not None)
                for size, i in zip(sizes, (k, j), strict=True)
            ]
            row.append(total[order[0]][:, order[1]])
        rows.append(torch.cat(row, 1))
    return torch.cat(rows)


@pytest.mark.parametrize("per_class", [True, False])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_every_block_is_a_kronecker_product(per_class: bool, batch_size: int | None) -> None:
    model, x = network(), torch.randn(N, 5)
    risk = risk_of(model, x, batch_size=batch_size)
    expected = oracle(model, x, [0, 2, 4], per_class=per_class)
    check_operator(KhatriRao(risk, ["0", "2", "4"], per_class=per_class), expected)
    assert float(torch.linalg.eigvalsh(expected)[0]) > -1e-14
    # Blocks between layers are no small matter.
    assert float(expected[:18, 18:].norm()) > 0.05 * float(expected.norm())


def test_layers_may_come_in_any_order() -> None:
    model, x = network(), torch.randn(N, 5)
    K = KhatriRao(risk_of(model, x), ["4", "0"])
    assert K.layers == ("4", "0")
    assert K.space.names == ("0.weight", "0.bias", "4.weight", "4.bias")
    check_operator(K, oracle(model, x, [0, 4], per_class=True))


def test_diagonal_blocks_are_those_of_the_layers() -> None:
    risk = risk_of(network(), torch.randn(N, 5))
    for layer in ("0", "2", "4.weight"):
        others = [name for name in ("0", "2", "4") if not layer.startswith(name)]
        for per_class, alone in ((True, ClassKronecker), (False, KroneckerHessian)):
            K = KhatriRao(risk, [layer, *others], per_class=per_class)
            torch.testing.assert_close(K[layer].to_dense(), alone(risk, layer).to_dense())


def test_one_sample_loses_nothing() -> None:
    risk = risk_of(network(), torch.randn(1, 5), LABELS[:1])
    for per_class in (True, False):
        K = KhatriRao(risk, ["0", "2", "4"], per_class=per_class)
        torch.testing.assert_close(K.to_dense(), es.GaussNewton(risk).to_dense())


def test_inputs_constant_within_classes_lose_nothing() -> None:
    risk = risk_of(network(), torch.randn(CLASSES, 5)[LABELS], batch_size=4)
    G = es.GaussNewton(risk).to_dense()
    torch.testing.assert_close(KhatriRao(risk, ["0", "2", "4"]).to_dense(), G)
    blurred = KhatriRao(risk, ["0", "2", "4"], per_class=False).to_dense()
    assert float((blurred - G).norm()) > 0.05 * float(G.norm())


def test_positions_with_equal_inputs_lose_nothing() -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 3, 4), nn.ReLU(), nn.Conv1d(3, 5, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(20, CLASSES),
    )  # fmt: skip
    flat = torch.randn(CLASSES, 2)[LABELS][:, :, None].expand(N, 2, 8)
    risk = risk_of(model, flat, batch_size=4)
    K = KhatriRao(risk, ["0", "2", "5"])
    torch.testing.assert_close(K.to_dense(), es.GaussNewton(risk).to_dense())


def test_ignored_samples_are_as_if_they_were_not_there() -> None:
    model, x, y = network(), torch.randn(N, 5), LABELS.clone()
    y[[0, 3, 6]] = -100
    kept = y >= 0
    for per_class in (True, False):
        settings: dict[str, bool] = {"per_class": per_class}
        found = KhatriRao(risk_of(model, x, y, batch_size=4), ["0", "2", "4"], **settings)
        alone = KhatriRao(risk_of(model, x[kept], y[kept]), ["0", "2", "4"], **settings)
        torch.testing.assert_close(found.to_dense(), alone.to_dense())
    # Also of one layer, whose Kronecker product is KFAC.
    mixed = KroneckerHessian(risk_of(model, x, y, batch_size=4), "2").to_dense()
    torch.testing.assert_close(mixed, found["2"].to_dense())


def test_drawn_targets_do_not_depend_on_batches() -> None:
    model, x = network(), torch.randn(N, 5)
    found = [
        KhatriRao(risk_of(model, x, batch_size=size), ["0", "4"], num_samples=2, seed=seed)
        for size, seed in ((None, 1), (3, 1), (None, 2))
    ]
    assert found[0].num_samples == 2
    torch.testing.assert_close(found[0].output_factors, found[1].output_factors)
    assert float((found[0].output_factors - found[2].output_factors).norm()) > 0.01


class Twice(nn.Module):
    """One of its layers runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(self.first(x)))


def test_refusals() -> None:
    x = torch.randn(N, 5)
    risk = risk_of(network(), x)
    with pytest.raises(EmptySelectionError, match="at least one layer"):
        KhatriRao(risk, [])
    with pytest.raises(InvalidArgumentError, match="different layers"):
        KhatriRao(risk, ["0.weight", "0"])
    with pytest.raises(InvalidArgumentError, match="num_samples"):
        KhatriRao(risk, ["0"], num_samples=0)
    with pytest.raises(UnsupportedModelError, match="weight is not among"):
        KhatriRao(risk, ["0.bias"])
    with pytest.raises(UnknownNameError, match=r"`KhatriRao\(risk, layers\)`.*'5'"):
        KhatriRao(risk, ["0", "5"])
    with pytest.raises(UnsupportedModelError, match="'first' ran 2 times"):
        KhatriRao(risk_of(Twice(), x), ["first", "last"])
