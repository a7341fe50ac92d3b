"""E[M]: against second derivatives one sample at a time, alone, at many positions, and jointly."""

import pytest
import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.curvature import KroneckerHessian, OutputHessian
from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.testing import check_operator
from tests.curvature.classes.test_moments import LAYOUTS, OTHER_ROWS, Bag, Mixing, bag_risk

N, CLASSES = 7, 4


def fully_connected(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 3), activation(), nn.Linear(3, 6), activation(), nn.Linear(6, CLASSES)
    )


def convolutional(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2)), activation(), nn.Conv2d(3, 5, 2), activation(),
        nn.Flatten(), nn.LazyLinear(CLASSES),
    )  # fmt: skip


def risk_of(model: nn.Module, x: Tensor, **settings: object) -> es.EmpiricalRisk:
    model(x)  # lazy layers take their shape
    y = torch.randint(0, CLASSES, (len(x),))
    return es.EmpiricalRisk(model, es.CrossEntropy(), (x, y), **settings)


def logits(model: nn.Sequential, x: Tensor, shifts: list[Tensor], indices: list[int]) -> Tensor:
    for i, module in enumerate(model):
        x = module(x)
        if i in indices:
            x = x + shifts[indices.index(i)]
    return x


def dense_sample(
    model: nn.Sequential, x: Tensor, y: Tensor, indices: list[int], *, gauss_newton: bool
) -> Tensor:
    """Form one sample's Hessian in shifts of some modules' outputs (channels, positions), flat."""
    shapes = [model[: i + 1](x).shape for i in indices]

    def output(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes])
        shifts = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        return logits(model, x, shifts, indices)

    zero = torch.zeros(sum(shape.numel() for shape in shapes))
    if not gauss_newton:
        return torch.autograd.functional.hessian(
            lambda flat: nn.functional.cross_entropy(output(flat), y), zero
        )
    J, p = torch.autograd.functional.jacobian(output, zero)[0], output(zero)[0].softmax(0)
    return J.T @ (torch.diag(p) - p[:, None] * p) @ J


def dense(risk: es.EmpiricalRisk, indices: list[int], *, gauss_newton: bool) -> Tensor:
    """Average over the samples, by double backward one at a time."""
    data = [(x, y) for b in risk.batches for x, y in zip(b.args[0], b.target, strict=True)]
    parts = [
        dense_sample(risk.module, x[None], y[None], indices, gauss_newton=gauss_newton)
        for x, y in data
    ]
    return torch.stack(parts).mean(0).detach()


def own_blocks(M: Tensor, m: int) -> Tensor:
    P = len(M) // m
    return torch.einsum("apbp->ab", M.reshape(m, P, m, P)) / P


def shared(M: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
    """Add up positions: sizes are (channels, positions) of each layer."""
    S = torch.block_diag(*(torch.kron(torch.eye(m), torch.ones(P, 1)) for m, P in sizes))
    return S.T @ M @ S


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_linear_layers(index: int, batch_size: int | None) -> None:
    risk = risk_of(fully_connected(), torch.randn(N, 5), batch_size=batch_size)
    M = OutputHessian(risk, str(index))
    expected = dense(risk, [index], gauss_newton=True)
    torch.testing.assert_close(M.matrix, expected)
    check_operator(M, expected)
    torch.testing.assert_close(expected, dense(risk, [index], gauss_newton=False))  # ReLU
    torch.testing.assert_close(M.matrix, KroneckerHessian(risk, str(index)).output_factor)
    assert (M.num_samples, M.positions, M.num_positions) == (None, "own", {str(index): 1})
    assert M.space.names == (str(index),)


@pytest.mark.parametrize("kind", ["gauss-newton", "hessian"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("positions", ["own", "shared"])
def test_convolutions(kind: str, activation: type[nn.Module], positions: str) -> None:
    risk = risk_of(convolutional(activation), torch.randn(N, 2, 4, 7), batch_size=3)
    M = OutputHessian(risk, "0", kind=kind, positions=positions)
    full = dense(risk, [0], gauss_newton=kind == "gauss-newton")
    P = len(full) // 3
    assert M.num_positions == {"0": P}
    assert P > 1
    expected = own_blocks(full, 3) if positions == "own" else shared(full, [(3, P)])
    torch.testing.assert_close(M.matrix, expected)
    if (kind, positions) == ("gauss-newton", "own"):  # (36) has 1/P, the Kronecker factor has not
        torch.testing.assert_close(P * M.matrix, KroneckerHessian(risk, "0").output_factor)


def test_kinds_differ_behind_a_curved_tail() -> None:
    risk = risk_of(fully_connected(nn.Tanh), torch.randn(N, 5), batch_size=4)
    one, two = (OutputHessian(risk, "0", kind=k).matrix for k in ("gauss-newton", "hessian"))
    torch.testing.assert_close(one, dense(risk, [0], gauss_newton=True))
    torch.testing.assert_close(two, dense(risk, [0], gauss_newton=False))
    assert float((one - two).norm() / one.norm()) > 0.01
    assert float(torch.linalg.eigvalsh(one)[0]) > -1e-15


@pytest.mark.parametrize("kind", ["gauss-newton", "hessian"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_all_layers_at_once(kind: str, activation: type[nn.Module]) -> None:
    risk = risk_of(fully_connected(activation), torch.randn(N, 5), batch_size=3)
    M = OutputHessian(risk, kind=kind)
    expected = dense(risk, [0, 2, 4], gauss_newton=kind == "gauss-newton")
    check_operator(M, expected)
    assert dict(M.space.shapes) == {"0": (3,), "2": (6,), "4": (CLASSES,)}
    torch.testing.assert_close(M["0", "4"].to_dense(), expected[:3, 9:])
    alone = OutputHessian(risk, "2", kind=kind)
    torch.testing.assert_close(M["2"].to_dense(), alone.matrix)
    chosen = OutputHessian(risk, ["4", "0"], kind=kind)  # in the order asked for
    torch.testing.assert_close(chosen["0", "4"].to_dense(), expected[:3, 9:])
    # Outputs are what biases shift (Wu (25)).
    biases = es.Hessian(risk) if kind == "hessian" else es.GaussNewton(risk)
    torch.testing.assert_close(M.matrix, biases["*.bias"].to_dense())


def test_layers_of_several_shapes_share_their_shifts() -> None:
    risk = risk_of(convolutional(nn.Tanh), torch.randn(N, 2, 4, 7), batch_size=3)
    M = OutputHessian(risk)
    full = dense(risk, [0, 2, 5], gauss_newton=True)
    P = M.num_positions
    assert P["0"] != P["2"]
    assert P["5"] == 1
    expected = shared(full, [(3, P["0"]), (5, P["2"]), (CLASSES, 1)])
    torch.testing.assert_close(M.matrix, expected)
    torch.testing.assert_close(M.matrix, es.GaussNewton(risk)["*.bias"].to_dense())


def test_stacked_convolutions_have_the_second_derivatives_of_the_loss() -> None:
    risk = risk_of(convolutional(), torch.randn(N, 2, 5, 7), batch_size=3)
    M = OutputHessian(risk, kind="hessian")
    full = dense(risk, [0, 2, 5], gauss_newton=False)
    P = M.num_positions
    sizes = [(3, P["0"]), (5, P["2"]), (CLASSES, 1)]
    torch.testing.assert_close(M.matrix, shared(full, sizes))
    # Behind ReLUs the cross blocks are the slopes of what lies between: they are not small.
    assert float(M["0", "2"].to_dense().norm()) > 0.01 * float(M.matrix.norm())


def test_top_pairs_are_those_of_the_matrix() -> None:
    M = OutputHessian(risk_of(fully_connected(), torch.randn(N, 5)), "2")
    pairs = M.top_pairs(4)
    assert pairs.space == M.space
    torch.testing.assert_close(pairs.values, torch.linalg.eigvalsh(M.matrix).flip(0)[:4])
    torch.testing.assert_close(M @ pairs.vectors, pairs.vectors * pairs.values)
    assert float(pairs.residuals.max()) < 1e-14
    with pytest.raises(InvalidArgumentError, match="num_pairs"):
        M.top_pairs(7)


def test_drawn_targets_are_those_of_the_kronecker_factor() -> None:
    risk = risk_of(fully_connected(), torch.randn(N, 5), batch_size=2)
    drawn = OutputHessian(risk, "2", num_samples=3, seed=5)
    assert drawn.num_samples == 3
    twin = KroneckerHessian(risk, "2", num_samples=3, seed=5).output_factor
    torch.testing.assert_close(drawn.matrix, twin)
    exact = OutputHessian(risk, "2").matrix
    draws = torch.stack(
        [OutputHessian(risk, "2", num_samples=4, seed=s).matrix for s in range(200)]
    )
    stderr = draws.std(0) / 200**0.5
    assert bool(((draws.mean(0) - exact).abs() <= 5.0 * stderr + 1e-15).all())
    assert float(stderr.max()) < 0.2 * float(exact.abs().max())


class Attention(nn.Module):
    """A model of sequences, with a layer that runs twice and one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.twice, self.never = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.twice(self.twice(self.inner(x))))
        return self.head(torch.softmax(z @ z.mT, -1) @ z).mean(1)


def test_sequences_and_refusals() -> None:
    risk = risk_of(Attention(), torch.randn(N, 5, 3), batch_size=3)
    M = OutputHessian(risk, "inner", kind="hessian", positions="shared")
    torch.testing.assert_close(M.matrix, es.Hessian(risk)["inner.bias"].to_dense())
    own = OutputHessian(risk, "inner")
    assert own.num_positions == {"inner": 5}
    torch.testing.assert_close(5 * own.matrix, KroneckerHessian(risk, "inner").output_factor)
    for layer, words in (("twice", "2 times"), ("never", "0 times"), ("norm", "got LayerNorm")):
        with pytest.raises(UnsupportedModelError, match=words):
            OutputHessian(risk, layer)
    with pytest.raises(UnsupportedModelError, match="'twice' ran 2 times"):
        OutputHessian(risk)
    with pytest.raises(InvalidArgumentError, match="each once"):
        OutputHessian(risk, ["head.weight", "head.bias"])
    with pytest.raises(InvalidArgumentError, match="positions='shared'"):
        OutputHessian(risk, ["head", "inner"], positions="own")
    with pytest.raises(UnknownNameError, match=r"`OutputHessian\(risk, layers\)` found.*inner"):
        OutputHessian(risk, "iner")
    with pytest.raises(UnknownNameError, match="kind"):
        OutputHessian(risk, "head", kind="fisher")
    with pytest.raises(EmptySelectionError, match="no linear layer"):
        OutputHessian(risk.restricted(["norm"]))


def test_a_model_that_is_a_layer_and_one_that_is_a_function() -> None:
    x = torch.randn(N, 5)
    M = OutputHessian(risk_of(nn.Linear(5, CLASSES), x))
    assert M.space.names == ("weight",)
    assert M.shape == (CLASSES, CLASSES)
    risk = es.EmpiricalRisk(
        lambda params, x: x @ params["w"], es.CrossEntropy(), (x, torch.zeros(N).long()),
        params={"w": torch.randn(5, CLASSES)},
    )  # fmt: skip
    with pytest.raises(WrongTypeError, match="pure function"):
        OutputHessian(risk)


# --- layers whose first dimension is not that of the samples ---


def in_another_layout(layout: str, positions: int) -> tuple[es.EmpiricalRisk, es.EmpiricalRisk]:
    """Return one function with samples first and in another layout, in two batches."""
    plain, other = Bag(), Bag(layout)
    other.load_state_dict(plain.state_dict())
    sizes = (4, 2)
    return bag_risk(plain, positions, sizes), bag_risk(other, positions, sizes)


@pytest.mark.parametrize(("layout", "positions"), [("folded", 5), ("positions first", 4)])
@pytest.mark.parametrize("settings", [{}, {"kind": "hessian", "positions": "shared"}])
def test_samples_that_need_not_be_told_apart(
    layout: str, positions: int, settings: dict[str, str]
) -> None:
    plain, other = (
        OutputHessian(r, "fc", **settings) for r in in_another_layout(layout, positions)
    )
    assert other.num_positions == plain.num_positions == {"fc": positions}
    torch.testing.assert_close(other.matrix, plain.matrix)


@pytest.mark.parametrize(("layout", "positions"), LAYOUTS)
@pytest.mark.parametrize(
    "settings",
    [{"positions": "shared"}, {"kind": "hessian"}, {"layers": None}, {"layers": ["out", "fc"]}],
)
def test_rows_that_should_be_samples(
    layout: str, positions: int, settings: dict[str, object]
) -> None:
    chosen = {"layers": "fc", **settings}
    with pytest.raises(UnsupportedModelError, match=rf"{OTHER_ROWS}.*kind='hessian'"):
        OutputHessian(bag_risk(Bag(layout), positions), **chosen)
    OutputHessian(bag_risk(Bag(), positions), **chosen)


def test_vectors_that_do_not_divide_among_samples() -> None:
    class Ragged(Bag):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc(x.flatten(0, 1)[:-1])  # the last position of the last sample is not there
            return self.out(nn.functional.pad(h, (0, 0, 0, 1)).unflatten(0, x.shape[:2]).mean(1))

    with pytest.raises(UnsupportedModelError, match=r"'fc' has \(29, 4\)"):
        OutputHessian(bag_risk(Ragged(), 5), "fc")


@pytest.mark.parametrize("sizes", [(6,), (1, 5)])
def test_samples_that_mix(sizes: tuple[int, ...]) -> None:
    risk = bag_risk(Mixing(), 5, sizes)
    for settings in ({}, {"positions": "shared"}, {"kind": "hessian"}):
        with pytest.raises(UnsupportedModelError, match="change each other's outputs"):
            OutputHessian(risk, "fc", **settings)
    M = OutputHessian(risk, "fc", kind="hessian", positions="shared")
    torch.testing.assert_close(M.matrix, es.Hessian(risk)["fc.bias"].to_dense())


def test_drawn_targets_are_unbiased_where_samples_mix() -> None:
    """Every sample has noise of its own, so that products of two samples' roots vanish."""
    model = Mixing()
    risk = bag_risk(model, 2)
    (batch,) = risk.batches
    z = model.fc(batch.args[0]).detach()

    def output(z: Tensor) -> Tensor:
        h = torch.tanh(z).mean(1)
        return model.out(h - 0.5 * h.mean(0))

    J, p = torch.autograd.functional.jacobian(output, z), output(z).softmax(1).detach()
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = torch.einsum("iajpm,iab,ibjpn->mn", J, A, J) / (2 * len(z))
    draws = torch.stack(
        [OutputHessian(risk, "fc", num_samples=8, seed=s).matrix for s in range(100)]
    )
    stderr = draws.std(0) / 10
    assert bool(((draws.mean(0) - expected).abs() <= 5.0 * stderr + 1e-15).all())
    assert float(stderr.max()) < 0.2 * float(expected.abs().max())
