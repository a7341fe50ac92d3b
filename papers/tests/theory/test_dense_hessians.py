"""Closed forms against double backward in plain PyTorch, and against our own products."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape import errors
from eigenscape.curvature import Hessian
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.testing import dense_hessian
from eigenscape_papers.theory import (
    dense_hessians,
    hidden_block_norms,
    linear_block_norms,
    linear_hessian,
    one_hidden_layer_hessian,
)

N, D, M, C = 7, 5, 3, 4
ACTIVATIONS: dict[str, Any] = {"relu": torch.relu, "tanh": torch.tanh, "gelu": F.gelu}
WIDTHS = {"few hidden units": M, "more hidden units than classes": 6}


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


X = normal(N, D, seed=0)
LABELS = torch.tensor([3, 0, 1, 2, 1, 3, 3])
# Rows that sum to 1, one that sums to more, and one that holds nothing: a weight of 0.
SOFT = normal(N, C, seed=1).softmax(1) * torch.tensor([1.0, 1, 1, 1, 1, 1.5, 0])[:, None]
VALUES = normal(N, C, seed=2)

LossCase = tuple[str, Tensor, Callable[[Tensor], Tensor]]
LOSSES: dict[str, LossCase] = {
    "classes": ("cross-entropy", LABELS, lambda z: F.cross_entropy(z, LABELS)),
    "some ignored": (
        "cross-entropy",
        torch.tensor([3, -100, 1, 2, 1, -100, 3]),
        lambda z: F.cross_entropy(z, torch.tensor([3, -100, 1, 2, 1, -100, 3])),
    ),
    "probabilities": ("cross-entropy", SOFT, lambda z: F.cross_entropy(z, SOFT)),
    "values": ("squared-error", VALUES, lambda z: 0.5 * (z - VALUES).square().sum(1).mean()),
}
each_loss = pytest.mark.parametrize(
    ("loss", "targets", "mean_loss"), LOSSES.values(), ids=LOSSES.keys()
)


def weights(m: int = M) -> tuple[Tensor, Tensor]:
    """W and V, scaled so that probabilities are far from uniform."""
    return normal(m, D, seed=3), 1.5 * normal(C, m, seed=4)


def assert_exact(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# --- against double backward ---------------------------------------------------------------------


@each_loss
@pytest.mark.parametrize("d", [3, D], ids=["fewer inputs than classes", "more inputs"])
def test_linear_model(
    loss: str, targets: Tensor, mean_loss: Callable[[Tensor], Tensor], d: int
) -> None:
    x, V = X[:, :d], normal(C, d, seed=5)
    found = linear_hessian(x, V, targets, loss=loss)
    assert_exact(found, dense_hessian(lambda p: mean_loss(x @ p["V"].T), {"V": V}))
    assert torch.equal(found, found.T)


@each_loss
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("m", WIDTHS.values(), ids=WIDTHS.keys())
def test_one_hidden_layer(
    loss: str, targets: Tensor, mean_loss: Callable[[Tensor], Tensor], name: str, m: int
) -> None:
    W, V = weights(m)
    found = one_hidden_layer_hessian(X, W, V, targets, loss=loss, activation=name)
    sigma = ACTIVATIONS[name]
    expected = dense_hessian(lambda p: mean_loss(sigma(X @ p["W"].T) @ p["V"].T), {"W": W, "V": V})
    assert_exact(found, expected)
    assert torch.equal(found, found.T)


def test_any_entrywise_function_is_an_activation() -> None:
    W, V = weights()
    leaky = partial(F.leaky_relu, negative_slope=0.2)
    for sigma in (F.silu, torch.square, leaky, lambda u: 2 * u, nn.ReLU(inplace=True)):
        found = one_hidden_layer_hessian(X, W, V, LABELS, activation=sigma)
        expected = dense_hessian(
            lambda p, s=sigma: F.cross_entropy(s(X @ p["W"].T) @ p["V"].T, LABELS),
            {"W": W, "V": V},
        )
        assert_exact(found, expected)


@pytest.mark.parametrize(
    ("loss", "ours", "targets"),
    [
        ("cross-entropy", CrossEntropy(), LABELS),
        ("cross-entropy", CrossEntropy(), SOFT),
        ("squared-error", SquaredError(), VALUES),
    ],
    ids=["classes", "probabilities", "values"],
)
def test_the_products_of_a_network_give_the_same_matrix(
    loss: str, ours: Any, targets: Tensor
) -> None:
    net = nn.Sequential(nn.Linear(D, M, bias=False), nn.ReLU(), nn.Linear(M, C, bias=False))
    W, V = net[0].weight, net[2].weight
    found = one_hidden_layer_hessian(X, W, V, targets, loss=loss)
    assert not found.requires_grad
    assert_exact(found, Hessian(EmpiricalRisk(net, ours, (X, targets))).to_dense())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_classes_of_any_integer_dtype(dtype: torch.dtype) -> None:
    W, V = weights()
    found = one_hidden_layer_hessian(X, W, V, LABELS.to(dtype))
    assert torch.equal(found, one_hidden_layer_hessian(X, W, V, LABELS))


# --- Dong's formulas, term by term ---------------------------------------------------------------


def test_dongs_squared_error_has_twice_the_printed_diagonal_blocks() -> None:
    """‖z − y‖² without ½: (11) holds as printed, (3), (8) and (9) lack a factor of 2."""
    W, V = weights()
    H = 2 * one_hidden_layer_hessian(X, W, V, VALUES, loss="squared-error")
    active = (X @ W.T > 0).double()
    h = torch.relu(X @ W.T)
    r = h @ V.T - VALUES
    i, j, c = 0, 2, 1
    printed_8 = (V[:, i] @ V[:, j]) * (X * (active[:, i] * active[:, j])[:, None]).T @ X / N
    assert_exact(H[i * D : (i + 1) * D, j * D : (j + 1) * D], 2 * printed_8)
    last = M * D
    own, other = (slice(last + k * M, last + (k + 1) * M) for k in (c, c + 1))
    assert_exact(H[own, own], 2 * h.T @ h / N)
    assert torch.equal(H[own, other], torch.zeros(M, M))  # 0_{m×m}, where (9) prints 0_{d×d}
    on = active[:, i, None] * X
    printed_11 = 2 / N * V[c, i] * on.T @ h
    printed_11[:, i] += 2 / N * on.T @ r[:, c]
    assert_exact(H[i * D : (i + 1) * D, own], printed_11)
    linear = 2 * linear_hessian(X, normal(C, D, seed=5), VALUES, loss="squared-error")
    assert_exact(linear, torch.block_diag(*[2 * X.T @ X / N] * C))


def test_confident_float32_models_keep_their_digits() -> None:
    """1 − p of 1e-6 has no digit left in float32; it is computed in float64."""
    x, V = torch.tensor([[1.0, 0.5]]), torch.tensor([[14.0, 0.0], [0.0, 0.0], [0.0, 0.3]])
    y = torch.tensor([0])
    exact = linear_hessian(x, V, y)
    assert 0 < exact[0, 0] < 1e-5
    found = linear_hessian(x.float(), V.float(), y)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0.0)


def test_float32_is_as_exact_as_its_products() -> None:
    x, W, V = normal(400, D, seed=6), *weights()
    y = torch.arange(400) % C
    rounded = [t.float() for t in (x, W, V)]
    again = [t.double() for t in rounded]
    exact = one_hidden_layer_hessian(*again, y, activation="gelu")
    found = one_hidden_layer_hessian(*rounded, y, activation="gelu")
    assert found.dtype == torch.float32
    assert (found.double() - exact).norm() < 1e-6 * exact.norm()


# --- chunks --------------------------------------------------------------------------------------


@each_loss
@pytest.mark.parametrize("m", WIDTHS.values(), ids=WIDTHS.keys())
def test_chunks_change_nothing(
    loss: str,
    targets: Tensor,
    mean_loss: Callable[[Tensor], Tensor],
    m: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    W, V = weights(m)
    compute = (
        lambda: one_hidden_layer_hessian(X, W, V, targets, loss=loss, activation="gelu"),
        lambda: linear_hessian(X[:, :3], V[:, :3], targets, loss=loss),
        lambda: linear_block_norms(X, normal(C, D, seed=5), targets, loss=loss),
        lambda: hidden_block_norms(X, W, V, targets, loss=loss, activation="gelu"),
    )
    whole = [function() for function in compute]
    for samples in (1, 3):
        # Three samples at a time make a ragged last chunk.
        per_sample = 8 * (4 * D + 8 * m + 10 * C)
        monkeypatch.setattr(dense_hessians, "_CHUNK_BYTES", samples * per_sample)
        for function, expected in zip(compute, whole, strict=True):
            assert_exact(function(), expected)


def test_panels_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    W, V = weights()
    whole = one_hidden_layer_hessian(X, W, V, LABELS)
    monkeypatch.setattr(dense_hessians, "_NARROWEST", 2)
    assert_exact(one_hidden_layer_hessian(X, W, V, LABELS), whole)


# --- norms of blocks -----------------------------------------------------------------------------


def norms_of(H: Tensor, blocks: int) -> Tensor:
    size = len(H) // blocks
    return H.view(blocks, size, blocks, size).norm(dim=(1, 3))


@each_loss
@pytest.mark.parametrize("d", [2, D], ids=["d² < N", "d² > N"])
def test_norms_of_blocks_of_a_linear_model(
    loss: str, targets: Tensor, mean_loss: Callable[[Tensor], Tensor], d: int
) -> None:
    x, V = X[:, :d], normal(C, d, seed=5)
    expected = norms_of(linear_hessian(x, V, targets, loss=loss), C)
    found = linear_block_norms(x, V, targets, loss=loss)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)


@each_loss
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("d", [2, D], ids=["d² < N", "d² > N"])
def test_norms_of_hidden_blocks(
    loss: str, targets: Tensor, mean_loss: Callable[[Tensor], Tensor], name: str, d: int
) -> None:
    x, (W, V) = X[:, :d], weights()
    options: dict[str, Any] = {"loss": loss, "activation": name}
    H = one_hidden_layer_hessian(x, W[:, :d], V, targets, **options)
    found = hidden_block_norms(x, W[:, :d], V, targets, **options)
    expected = norms_of(H[: M * d, : M * d].contiguous(), M)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)


# --- refusals ------------------------------------------------------------------------------------

W0, V0 = weights()
REFUSALS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "loss": (
        lambda: linear_hessian(X, normal(C, D, seed=5), LABELS, loss="mse"),
        errors.UnknownNameError,
        "'cross-entropy', 'squared-error'; got 'mse'",
    ),
    "activation": (
        lambda: one_hidden_layer_hessian(X, W0, V0, LABELS, activation="relu6"),
        errors.UnknownNameError,
        "'relu', 'tanh', 'gelu'; got 'relu6'",
    ),
    "activation that mixes units": (
        lambda: one_hidden_layer_hessian(X, W0, V0, LABELS, activation=lambda u: u.softmax(1)),
        errors.InvalidArgumentError,
        "each entry on its own",
    ),
    "activation that changes the shape": (
        lambda: one_hidden_layer_hessian(X, W0, V0, LABELS, activation=lambda u: u.sum(1)),
        errors.InvalidArgumentError,
        "keep the shape",
    ),
    "no tensor": (
        lambda: linear_hessian([[1.0]], W0, LABELS),
        errors.WrongTypeError,
        r"inputs=...\)` must be a tensor; got list",
    ),
    "no matrix": (
        lambda: linear_hessian(X[0], W0, LABELS),
        errors.ShapeError,
        r"must be a matrix; got shape \(5,\)",
    ),
    "transposed weight": (
        lambda: one_hidden_layer_hessian(X, W0.T, V0, LABELS),
        errors.ShapeError,
        r"hidden=...\)` needs rows of 5 numbers.* got shape \(5, 3\)",
    ),
    "transposed output": (
        lambda: one_hidden_layer_hessian(X, W0, V0.T, LABELS),
        errors.ShapeError,
        r"output=...\)` needs rows of 3 numbers",
    ),
    "two dtypes": (
        lambda: one_hidden_layer_hessian(X, W0.float(), V0, LABELS),
        errors.ShapeError,
        r"hidden in torch.float32 .* `hidden.double\(\)`",
    ),
    "half precision": (
        lambda: linear_hessian(X.half(), V0.half(), LABELS),
        errors.ShapeError,
        "float32 or all in float64",
    ),
    "targets of another kind": (
        lambda: linear_hessian(X, normal(C, D, seed=5), "cats"),
        errors.WrongTypeError,
        r"targets=...\)` must be a real tensor; got str",
    ),
    "too few classes": (
        lambda: linear_hessian(X, normal(C, D, seed=5), LABELS[:-1]),
        errors.ShapeError,
        r"classes \(7,\) .* or class probabilities \(7, 4\) on cpu; got \(6,\)",
    ),
    "classes for squared errors": (
        lambda: linear_hessian(X, normal(C, D, seed=5), LABELS, loss="squared-error"),
        errors.ShapeError,
        r"needs values \(7, 4\) on cpu; got \(7,\)",
    ),
    "class out of range": (
        lambda: linear_hessian(X, normal(3, D, seed=5), LABELS),
        errors.InvalidArgumentError,
        r"from 0 to 2 .* got 0 to 3",
    ),
    "no sample": (
        lambda: linear_hessian(X[:0], normal(C, D, seed=5), LABELS[:0]),
        errors.EmptySelectionError,
        "no sample",
    ),
    "all ignored": (
        lambda: linear_hessian(X, normal(C, D, seed=5), LABELS * 0 - 100),
        errors.EmptySelectionError,
        "ignores every sample",
    ),
    "not finite": (
        lambda: one_hidden_layer_hessian(X / 0.0, W0, V0, LABELS),
        errors.NonFiniteError,
        "NaN or infinite",
    ),
    "too large": (
        lambda: one_hidden_layer_hessian(X, W0, V0, LABELS, max_bytes=1000),
        errors.TooLargeError,
        "27 × 27 matrix of 5.8e\\+03 bytes",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
