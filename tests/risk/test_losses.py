"""Losses against `torch.nn.functional` over all data at once, their curvature against autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import (
    EigenscapeError,
    InvalidArgumentError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk import (
    BinaryCrossEntropy,
    CallableLoss,
    CrossEntropy,
    Loss,
    SquaredError,
    as_loss,
)
from eigenscape.testing import dense_hessian
from tests.oracles.memory import Live

W = torch.tensor([0.5, 2.0, 1.5, 0.2], dtype=torch.float64)
Mean = Callable[[Tensor, Tensor], Tensor]


def logits(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def classes(*shape: int, ignored: int | None = None) -> Tensor:
    y = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(1))
    if ignored is not None:
        y.view(-1)[::3] = ignored
    return y


def last(mean: Mean) -> Mean:
    """Classes last to classes second, as PyTorch wants them."""
    return lambda z, y: mean(z.movedim(-1, 1), y)


SOFT = logits(6, 4).softmax(1)
BITS = (logits(6, 3) > 0).double()
P = torch.tensor([3.0, 0.5, 1.0], dtype=torch.float64)

# loss, output, target, the mean by torch.nn.functional
EXACT: dict[str, tuple[Loss, Tensor, Tensor, Mean]] = {
    "ce": (CrossEntropy(), logits(6, 4), classes(6), F.cross_entropy),
    "ce int32": (
        CrossEntropy(),
        logits(6, 4),
        classes(6).int(),
        lambda z, y: F.cross_entropy(z, y.long()),
    ),
    "ce ignored": (CrossEntropy(), logits(6, 4), classes(6, ignored=-100), F.cross_entropy),
    "ce ignores a class": (
        CrossEntropy(ignore_index=2),
        logits(7, 4),
        classes(7),
        lambda z, y: F.cross_entropy(z, y, ignore_index=2),
    ),
    "ce everything": (
        CrossEntropy(W, ignore_index=1, label_smoothing=0.3),
        logits(9, 4),
        classes(9),
        lambda z, y: F.cross_entropy(z, y, W, ignore_index=1, label_smoothing=0.3),
    ),
    "ce tokens": (
        CrossEntropy(),
        logits(3, 5, 4),
        classes(3, 5, ignored=-100),
        last(F.cross_entropy),
    ),
    "ce images": (CrossEntropy(), logits(2, 4, 3, 5), classes(2, 3, 5), F.cross_entropy),
    "ce square": (CrossEntropy(class_dim=1), logits(2, 4, 4), classes(2, 4), F.cross_entropy),
    "ce square last": (
        CrossEntropy(class_dim=-1),
        logits(2, 4, 4),
        classes(2, 4),
        last(F.cross_entropy),
    ),
    "ce first": (
        CrossEntropy(class_dim=0),
        logits(4, 7),
        classes(7),
        lambda z, y: F.cross_entropy(z.T, y),
    ),
    "soft": (CrossEntropy(), logits(6, 4), SOFT, F.cross_entropy),
    "soft everything": (
        CrossEntropy(W, ignore_index=2, label_smoothing=0.2),
        logits(6, 4),
        SOFT * 1.7,  # need not sum to one
        lambda z, y: F.cross_entropy(z, y, W, label_smoothing=0.2),
    ),
    "soft positions": (
        CrossEntropy(class_dim=-1),
        logits(3, 5, 4),
        logits(3, 5, 4).softmax(-1),
        lambda z, y: F.cross_entropy(z.movedim(-1, 1), y.movedim(-1, 1)),
    ),
    "next token": (
        CrossEntropy(next_token=True),
        logits(3, 5, 4),
        classes(3, 5, ignored=-100),
        lambda z, y: F.cross_entropy(z[:, :-1].reshape(-1, 4), y[:, 1:].reshape(-1)),
    ),
    "squared": (SquaredError(), logits(6, 3), BITS, lambda z, y: (z - y).square().sum() / 12),
    "squared elements": (SquaredError(1.0, "elements"), logits(6, 3), BITS, F.mse_loss),
    "squared vector": (
        SquaredError(2.5),
        logits(6),
        BITS[:, 0],
        lambda z, y: 2.5 * F.mse_loss(z, y),
    ),
    "binary": (BinaryCrossEntropy(), logits(6, 3), BITS, F.binary_cross_entropy_with_logits),
    "binary bool": (
        BinaryCrossEntropy(),
        logits(6, 3),
        BITS.bool(),
        lambda z, y: F.binary_cross_entropy_with_logits(z, y.double()),
    ),
    "binary weighted": (
        BinaryCrossEntropy(P, "samples"),
        logits(6, 3),
        BITS,
        lambda z, y: 3 * F.binary_cross_entropy_with_logits(z, y, pos_weight=P),
    ),
    "binary vector": (
        BinaryCrossEntropy(),
        logits(6),
        BITS[:, 0],
        F.binary_cross_entropy_with_logits,
    ),
    "callable": (CallableLoss(F.huber_loss), logits(6, 3), 3 * BITS, F.huber_loss),
    "callable linear": (
        CallableLoss(lambda z, y: (z * y).mean()),
        logits(6, 3),
        BITS,
        lambda z, y: (z * y).mean(),
    ),
    "nll": (
        as_loss(nn.NLLLoss(W, ignore_index=1)),
        logits(9, 4).log_softmax(1),
        classes(9),
        lambda z, y: F.nll_loss(z, y, W, ignore_index=1),
    ),
}
EVERY = pytest.mark.parametrize("name", EXACT)


@EVERY
def test_total_and_count_are_the_mean(name: str) -> None:
    loss, z, y, mean = EXACT[name]
    total, count = loss.total(z, y)
    assert count.dtype == torch.float64
    torch.testing.assert_close(total / count, mean(z, y), rtol=1e-14, atol=0)


@EVERY
def test_parts_add_up_to_the_whole(name: str) -> None:
    loss, z, y, mean = EXACT[name]
    if name == "ce first":  # samples are not the first dimension
        return
    parts = [loss.total(z[i : i + 4], y[i : i + 4]) for i in range(0, len(z), 4)]
    total, count = sum(t for t, _ in parts), sum(c for _, c in parts)
    torch.testing.assert_close(total / count, mean(z, y), rtol=1e-14, atol=0)


@EVERY
def test_curvature_at_the_output(name: str) -> None:
    loss, z, y, mean = EXACT[name]
    count = loss.total(z, y)[1]
    B = count * dense_hessian(lambda p: mean(p["z"].view(z.shape), y), {"z": z.reshape(-1)})
    product = loss.hessian_at(z, y)
    found = torch.stack([product(e.view(z.shape)).reshape(-1) for e in torch.eye(z.numel())])
    torch.testing.assert_close(found, B, atol=1e-13, rtol=1e-12)


@EVERY
def test_residual_is_the_slope(name: str) -> None:
    loss, z, y, mean = EXACT[name]
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mean(leaf, y) * loss.total(z, y)[1], leaf)
    found = loss.output_gradient(z, y)
    assert not found.requires_grad
    torch.testing.assert_close(found, slope, atol=1e-14, rtol=1e-13)


@EVERY
def test_term_dims_are_dimensions_of_the_output(name: str) -> None:
    loss, z, y, _ = EXACT[name]
    assert set(loss.term_dims(z, y)) <= set(range(z.ndim))


MANY = 5003


@pytest.mark.parametrize("next_token", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_many_classes_are_held_once(next_token: bool, smoothing: float, weighted: bool) -> None:
    """The curvature keeps one tensor like the output; a product makes its result and no other."""
    z, t = logits(3, 7, MANY), logits(3, 7, MANY).flip(0)
    y = torch.arange(21).reshape(3, 7) * 200
    y[1, 2] = -100
    weights = torch.linspace(0.5, 2.0, MANY, dtype=torch.float64) if weighted else None
    loss = CrossEntropy(weights, label_smoothing=smoothing, next_token=next_token)
    with Live() as live:
        product = loss.hessian_at(z, y)
    assert sum(live.sizes.values()) < 1.1 * z.nbytes
    with Live() as live:
        found = product(t)
    assert live.peak < 1.1 * z.nbytes
    shifted = torch.cat([y[:, 1:], torch.full((3, 1), -100)], 1) if next_token else y
    p, kept = z.softmax(-1), shifted != -100
    w = torch.ones(MANY, dtype=torch.float64) if weights is None else weights
    s = ((1 - smoothing) * w[shifted.clamp_min(0)] + smoothing * w.mean()) * kept
    expected = s[..., None] * (p * t - p * (p * t).sum(-1, keepdim=True))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in EXACT if not n.startswith(("callable", "nll"))])
def test_drawn_residuals_have_the_curvature_as_second_moment(name: str) -> None:
    """E[r rᵀ] = B and E[r] = 0 within a term, over 2000 draws, to 5 standard errors.

    About 500 numbers are compared per case; one of them is beyond 5 standard errors in one of 3000
    runs of a correct loss, and the seed is fixed.
    """
    loss, z, y, _ = EXACT[name]
    generator = torch.Generator().manual_seed(7)
    noise = lambda shape: torch.rand(shape, generator=generator, dtype=torch.float64)
    r = torch.stack([loss.drawn_output_gradient(z, y, noise).reshape(-1) for _ in range(2000)])
    limit = lambda x: 5 * x.std(0) / len(x) ** 0.5 + 1e-12
    assert (r.mean(0).abs() <= limit(r)).all()
    product = loss.hessian_at(z, y)
    B = torch.stack([product(e.view(z.shape)).reshape(-1) for e in torch.eye(z.numel())])
    for i in range(0, z.numel(), 5):  # some rows of the second moment, terms apart included
        moment = r[:, i : i + 1] * r
        # Two rare labels may never have met in 2000 draws: then their true spread counts.
        rare = 5 * (B[i, i] * B.diagonal() / len(r)).sqrt()
        assert ((moment.mean(0) - B[i]).abs() <= limit(moment).maximum(rare)).all()


def test_extreme_noise_draws_existing_classes() -> None:
    z, y = torch.tensor([[0.0, 40.0, -40.0]]), torch.tensor([0])
    for u in (1e-16, 0.5, 1 - 1e-16):
        r = CrossEntropy().drawn_output_gradient(z, y, lambda shape, u=u: torch.full(shape, u))
        assert r.isfinite().all()
        assert float(r.sum().abs()) < 1e-12
    r = SquaredError().drawn_output_gradient(z, z, lambda shape: torch.full(shape, 1 - 1e-16))
    assert r.isfinite().all()


def test_batches_without_terms_count_for_nothing() -> None:
    y = torch.full((3,), -100)
    total, count = CrossEntropy(W).total(logits(3, 4), y)
    assert (float(total), float(count)) == (0.0, 0.0)
    assert not CrossEntropy(W).output_gradient(logits(3, 4), y).any()
    constant = CallableLoss(lambda z, t: (torch.zeros(()), len(t)))
    assert not constant.output_gradient(logits(3, 4), y).any()
    assert not constant.hessian_at(logits(3, 4), y)(logits(3, 4)).any()


def test_forms_of_a_callable() -> None:
    z, y = logits(6, 3), BITS
    single = (z - y).square().sum(1)
    for function in (
        lambda z, y: (z - y).square().sum(1).mean(),
        lambda z, y: (z - y).square().sum(1),
        lambda z, y: ((z - y).square().sum(), 6),
        lambda z, y: ((z - y).square().sum(), torch.tensor(6)),
    ):
        total, count = CallableLoss(function).total(z, y)
        torch.testing.assert_close(total, single.sum())
        assert float(count) == 6.0
    # No target: samples are counted at the output.
    assert float(CallableLoss(lambda z, y: z.mean()).total(z, None)[1]) == 6.0


# --- what users bring ---


def test_pytorch_losses_are_translated() -> None:
    assert isinstance(as_loss(nn.MSELoss()), SquaredError)
    cross = as_loss(nn.CrossEntropyLoss(W, ignore_index=3, label_smoothing=0.1))
    assert isinstance(cross, CrossEntropy)
    assert (cross.ignore_index, cross.label_smoothing, cross.class_dim) == (3, 0.1, 1)
    assert isinstance(as_loss(nn.BCEWithLogitsLoss(pos_weight=P)), BinaryCrossEntropy)
    assert isinstance(as_loss(nn.NLLLoss()), CallableLoss)
    assert isinstance(as_loss(nn.L1Loss()), CallableLoss)
    ours = CrossEntropy()
    assert as_loss(ours) is ours


@pytest.mark.parametrize(
    ("loss", "error", "text"),
    [
        (
            nn.CrossEntropyLoss,
            WrongTypeError,
            r"the class CrossEntropyLoss. Write `CrossEntropyLoss\(",
        ),
        (nn.CrossEntropyLoss(reduction="sum"), InvalidArgumentError, "ambiguous over batches"),
        (nn.L1Loss(reduction="sum"), InvalidArgumentError, r"`L1Loss\(reduction='sum'\)`"),
        (nn.BCEWithLogitsLoss(weight=P), InvalidArgumentError, "weighs elements by position"),
        (None, WrongTypeError, "got NoneType"),
        ("mse", WrongTypeError, "got str"),
    ],
)
def test_as_loss_refuses(loss: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        as_loss(loss)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: CrossEntropy(label_smoothing=1.5), InvalidArgumentError, "from 0 to 1; got 1.5"),
        (lambda: CrossEntropy(label_smoothing="a"), InvalidArgumentError, "got 'a'"),
        (lambda: CrossEntropy(-W), InvalidArgumentError, "one weight ≥ 0 per class"),
        (lambda: CrossEntropy(W[None]), InvalidArgumentError, r"got shape \(1, 4\)"),
        (lambda: CrossEntropy([1.0, 2.0]), WrongTypeError, "real tensor; got list"),
        (lambda: CrossEntropy(W * 1j), WrongTypeError, "real tensor"),
        (lambda: SquaredError(factor=0), InvalidArgumentError, "above 0; got 0"),
        (lambda: SquaredError(average="batch"), UnknownNameError, "'samples', 'elements'"),
        (lambda: BinaryCrossEntropy(average="mean"), UnknownNameError, "'samples', 'elements'"),
        (lambda: BinaryCrossEntropy(2.0), WrongTypeError, "real tensor; got float"),
    ],
)
def test_settings_that_mean_nothing(
    make: Callable[[], Loss], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    ("loss", "z", "y", "error", "text"),
    [
        (CrossEntropy(), logits(6, 4), classes(6, 1), ShapeError, "cannot tell where the classes"),
        (CrossEntropy(), logits(6, 4), classes(5), ShapeError, r"target \(5,\)"),
        (CrossEntropy(), logits(6), classes(6), ShapeError, r"\(samples, classes, …\)"),
        (CrossEntropy(), logits(2, 4, 4), classes(2, 4), ShapeError, "Pass `class_dim=`"),
        (CrossEntropy(), logits(2, 3, 4), logits(2, 3, 4), ShapeError, "Pass `class_dim=`"),
        (CrossEntropy(class_dim=5), logits(6, 4), classes(6), ShapeError, "cannot tell"),
        (CrossEntropy(class_dim=1), logits(6, 4), classes(6, 1), ShapeError, "cannot tell"),
        (CrossEntropy(class_dim=1), logits(6, 4), logits(6, 3), ShapeError, "cannot tell"),
        (CrossEntropy(), logits(6, 3), classes(6), InvalidArgumentError, "from 0 to 2"),
        (CrossEntropy(), logits(6, 4), classes(6) - 1, InvalidArgumentError, "got -1 to"),
        (CrossEntropy(W[:3]), logits(6, 4), classes(6), ShapeError, "needs 4 weights"),
        (CrossEntropy(), logits(6, 4), None, WrongTypeError, "as target; got NoneType"),
        (CrossEntropy(), (logits(6, 4),), classes(6), WrongTypeError, "as output; got tuple"),
        (CrossEntropy(), logits(6, 4), classes(6) * 1j, WrongTypeError, "complex64"),
        (SquaredError(), logits(6, 1), logits(6), ShapeError, "Broadcasting them would change"),
        (SquaredError(), logits(1).squeeze(), logits(1).squeeze(), ShapeError, "samples"),
        (BinaryCrossEntropy(), logits(6, 3), logits(6, 2), ShapeError, "one shape"),
        (BinaryCrossEntropy(P[:2]), logits(6, 3), BITS, ShapeError, "must broadcast"),
        (CallableLoss(lambda z, y: 3.0), logits(6, 3), BITS, WrongTypeError, "got float"),
        (
            CallableLoss(lambda z, y: z.mean()[None]),
            logits(6, 3),
            BITS,
            ShapeError,
            "a mean or a single",
        ),
        (
            CallableLoss(lambda z, y: z[0]),
            (logits(1).squeeze(),),
            None,
            ShapeError,
            "samples to count",
        ),
    ],
)
def test_data_that_do_not_fit(
    loss: Loss, z: Any, y: Any, error: type[Exception], text: str
) -> None:
    assert issubclass(error, EigenscapeError)
    with pytest.raises(error, match=text):
        loss.total(z, y)


def test_a_function_has_no_likelihood() -> None:
    with pytest.raises(UnsupportedModelError, match="needs a loss with a likelihood"):
        CallableLoss(F.mse_loss).drawn_output_gradient(logits(2, 2), logits(2, 2), torch.rand)


def test_a_sum_of_pytorch_is_taken_where_the_risk_is_a_sum() -> None:
    loss = nn.MSELoss(reduction="sum")
    assert repr(as_loss(loss, "sum")) == repr(as_loss(nn.MSELoss()))
    with pytest.raises(InvalidArgumentError, match="reduction='sum'"):
        as_loss(loss)
