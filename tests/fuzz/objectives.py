"""Losses as a user gives them, and the same anew: a function of all outputs, by definition.

`terms` returns the sum of a call's loss terms and their number. It shares no line with the library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from tests.fuzz.draws import Draw

Terms = Callable[[Any, Any], tuple[Tensor, float]]
OfSample = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Objective:
    """A loss and its targets.

    Attributes:
        loss: What the user passes.
        terms: The sum of the terms of (output, target), and their number.
        target: The targets of all samples, or None.
        name: What it is.
        has_likelihood: Whether `Fisher` is defined.
        is_of_output: Whether it depends on the parameters through a single output tensor alone.
        defect: Why a refusal is right, or empty.
        output: What the network must return: "tensor", "logits", "object", "dict" or "tuple".
    """

    loss: Any
    terms: Terms
    target: Tensor | None
    name: str
    has_likelihood: bool = False
    is_of_output: bool = True
    defect: str = ""
    output: str = "tensor"


# --- with targets that are classes ---


def _ignored(d: Draw, target: Tensor) -> Tensor:
    """Leave targets out: some, those of the first samples, or those of whole samples."""
    how = d.pick(("some", "first", "samples"))
    mask = d.integers(0, 3, *target.shape) == 0
    if how == "first":
        mask = torch.zeros_like(mask)
        mask[: max(1, len(target) // 2)] = True
    elif how == "samples":
        mask = mask.reshape(len(mask), -1)[:, 0].reshape(-1, *[1] * (mask.ndim - 1)).expand_as(mask)
    mask = mask.clone()
    mask[-1] = False
    return target.masked_fill(mask, -100)


def _cross_entropy_terms(
    z: Tensor, y: Tensor, dim: int, weights: Tensor | None, smoothing: float, ignore: int
) -> tuple[Tensor, float]:
    logp = z.movedim(dim, -1).log_softmax(-1)
    c = logp.shape[-1]
    w = torch.ones(c, dtype=z.dtype) if weights is None else weights.to(z.dtype)
    kept = y != ignore
    q = F.one_hot(y.where(kept, torch.zeros_like(y)), c).to(z.dtype)
    each = -((1 - smoothing) * q + smoothing / c) * w * logp
    count = (q @ w)[kept].sum()
    return (each.sum(-1) * kept).sum(), float(count)


def classes(d: Draw, z: Tensor, layout: str, is_ragged: bool) -> Objective:
    """Cross-entropy with class indices."""
    dim = 1 if layout in ("flat", "pixels") else z.ndim - 1
    c = z.shape[dim]
    y = d.integers(0, c, *z.select(dim, 0).shape)
    weights = d.positive(c) if d.chance(0.25) else None
    smoothing = d.pick((0.0, 0.0, 0.125))
    ignore = -100
    y = _ignored(d, y) if d.chance(0.35) else y
    if d.chance(0.15):
        ignore, y = 1, y.abs() % c
        y.view(-1)[-1] = 0
    settings: dict[str, Any] = {"ignore_index": ignore, "label_smoothing": smoothing}
    shift = layout == "seq" and d.chance(0.4)
    if dim == 1 and d.chance(0.4) and not shift:
        loss: Any = nn.CrossEntropyLoss(weights, **settings)
    else:
        ambiguous = is_ragged or (z.ndim > 2 and len(set(z.shape[1:])) < z.ndim - 1)
        given = d.pick((dim, dim - z.ndim)) if ambiguous or d.chance(0.3) else None
        loss = es.CrossEntropy(weights, class_dim=given, next_token=shift, **settings)
    if shift:
        y[-1] = d.integers(0, c, *y[-1].shape) if ignore == -100 else 0

    def terms(z: Tensor, y: Tensor) -> tuple[Tensor, float]:
        if shift:
            z, y = z[:, :-1], y[:, 1:]
        return _cross_entropy_terms(z, y, dim, weights, smoothing, ignore)

    name = f"{type(loss).__name__}{' next token' if shift else ''}"
    return Objective(loss, terms, y, name, has_likelihood=True)


def probabilities(d: Draw, z: Tensor, layout: str, is_ragged: bool) -> Objective:
    """Cross-entropy with soft targets."""
    dim = 1 if layout in ("flat", "pixels") else z.ndim - 1
    y = d.normal(*z.shape).softmax(dim).float().to(d.dtype)
    weights = d.positive(z.shape[dim]) if d.chance(0.3) else None
    smoothing = d.pick((0.0, 0.125))
    if dim == 1 and d.chance(0.4):
        loss: Any = nn.CrossEntropyLoss(weights, label_smoothing=smoothing)
    else:
        given = dim if z.ndim > 2 or d.chance(0.5) else None
        loss = es.CrossEntropy(weights, label_smoothing=smoothing, class_dim=given)

    def terms(z: Tensor, y: Tensor) -> tuple[Tensor, float]:
        c = z.shape[dim]
        w = torch.ones(c, dtype=z.dtype) if weights is None else weights.to(z.dtype)
        q = (1 - smoothing) * y.movedim(dim, -1) + smoothing / c
        return -(q * w * z.movedim(dim, -1).log_softmax(-1)).sum(), z.numel() / c

    return Objective(loss, terms, y, "soft cross-entropy", has_likelihood=True)


# --- with targets that are numbers ---


def squares(d: Draw, z: Tensor, layout: str, is_ragged: bool) -> Objective:
    y = d.normal(*z.shape)
    kind = d.pick(("default", "elements", "torch"))
    factor = 0.5 if kind == "default" else d.pick((0.75, 1.0)) if kind == "elements" else 1.0
    loss: Any = {
        "default": es.SquaredError(),
        "elements": es.SquaredError(factor=factor, average="elements"),
        "torch": nn.MSELoss(),
    }[kind]

    def terms(z: Tensor, y: Tensor) -> tuple[Tensor, float]:
        return factor * ((z - y) ** 2).sum(), len(z) if kind == "default" else z.numel()

    return Objective(loss, terms, y, f"squares {kind}", has_likelihood=True)


def binary(d: Draw, z: Tensor, layout: str, is_ragged: bool) -> Objective:
    y = (d.normal(*z.shape) > 0).to(d.pick((d.dtype, torch.long)))
    weight = d.positive(z.shape[-1]) if d.chance(0.3) and not is_ragged else None
    kind = d.pick(("elements", "samples", "torch"))
    if kind == "torch":
        y = y.to(d.dtype)
        loss: Any = nn.BCEWithLogitsLoss(pos_weight=weight)
    else:
        loss = es.BinaryCrossEntropy(weight, average=kind)

    def terms(z: Tensor, y: Tensor) -> tuple[Tensor, float]:
        w = 1.0 if weight is None else weight.to(z.dtype)
        y = y.to(z.dtype)
        # `softplus` would be linear beyond 20, and off by 2e-9 there.
        each = -w * y * F.logsigmoid(z) - (1 - y) * F.logsigmoid(-z)
        return each.sum(), len(z) if kind == "samples" else z.numel()

    return Objective(loss, terms, y, f"binary {kind}", has_likelihood=True)


# --- the user's own ---

OF_SAMPLE: dict[str, OfSample] = {
    "log-cosh": lambda z, y: torch.log(torch.cosh(z - y)).flatten(1).sum(1),
    "cubes": lambda z, y: (z - y).abs().pow(3).flatten(1).mean(1),
    "coupled": lambda z, y: torch.sin((z * y).flatten(1).sum(1)) + z.flatten(1).logsumexp(1),
    "focal": lambda z, y: (
        ((1 - torch.sigmoid(z * y.sign())) ** 2 * F.softplus(-z * y.sign())).flatten(1).sum(1)
    ),
    "cosine": lambda z, y: 1 - F.cosine_similarity(z.flatten(1), y.flatten(1), dim=1),
    "linear": lambda z, y: (z * y).flatten(1).sum(1),
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "smooth l1": nn.SmoothL1Loss,
    "huber": lambda: nn.HuberLoss(delta=0.7),
    "poisson": nn.PoissonNLLLoss,
    "soft margin": nn.SoftMarginLoss,
}


def of_module(d: Draw, z: Tensor, layout: str, is_ragged: bool) -> Objective:
    """A loss module of PyTorch that averages over elements."""
    name = d.pick(sorted(MODULES))
    y = d.positive(*z.shape)

    def terms(z: Tensor, y: Tensor) -> tuple[Tensor, float]:
        e = (z - y).abs()
        each = {
            "smooth l1": torch.where(e < 1, 0.5 * e * e, e - 0.5),
            "huber": torch.where(e < 0.7, 0.5 * e * e, 0.7 * (e - 0.35)),
            "poisson": z.exp() - y * z,
            # By `log1p(exp(a))` the second derivative would be 1, not 0, from a = 355 on, as the
            # square of an exponential overflows.
            "soft margin": -F.logsigmoid(y * z),
        }[name]
        return each.flatten(1).mean(1).sum(), len(z)

    return Objective(MODULES[name](), terms, y, name)


def _squared_parameters(model: Any) -> Tensor:
    return 0.05 * sum((p * p).sum() for p in model.parameters())


def own(d: Draw, z: Tensor, layout: str, is_ragged: bool, model: Any = None) -> Objective:
    """A function of the user's own: one loss a sample, a pair, or a mean; maybe with more terms."""
    name, form = d.pick(sorted(OF_SAMPLE)), d.pick(("samples", "pair", "mean"))
    base = OF_SAMPLE[name]
    may_own = isinstance(model, nn.Module)
    extra = d.pick(("", "", "", "decay", "penalty", "dict", "tuple") if may_own else ("",))
    has_target = not (extra or d.chance(0.8))
    y = d.normal(*z.shape) if not has_target else None
    if extra == "penalty":
        model.keeps = True

    def each(out: Any, y: Tensor | None) -> Tensor:
        z, h = out, None
        if extra == "dict":
            z, h = out["prediction"], out["hidden"]
        elif extra == "tuple":
            z, h = out
        losses = base(z, torch.full_like(z, 0.5) if y is None else y)
        if h is not None:
            losses = losses + 0.1 * h.square().flatten(1).mean(1)
        if extra == "decay":
            losses = losses + _squared_parameters(model)
        elif extra == "penalty":
            losses = losses + 0.1 * model.kept.square().flatten(1).mean(1)
        return losses

    def loss(out: Any, y: Tensor | None) -> Any:
        losses = each(out, y)
        if form == "pair":
            return losses.sum(), len(losses)
        return losses.mean() if form == "mean" else losses

    def terms(out: Any, y: Tensor | None) -> tuple[Tensor, float]:
        losses = each(out, y)
        return losses.sum(), len(losses)

    label = f"own {name} {form}{' + ' + extra if extra else ''}{'' if y is not None else ' alone'}"
    return Objective(
        loss, terms, y, label, is_of_output=not extra, output=extra if h_out(extra) else "tensor"
    )


def h_out(extra: str) -> bool:
    """Tell whether a loss takes more than one tensor."""
    return extra in ("dict", "tuple")


class OwningLoss(nn.Module):
    """A loss module with the model in it: it penalises the model's parameters, or its output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return (z - y).square().flatten(1).sum(1) + _squared_parameters(self.model)


def owning(d: Draw, z: Tensor, layout: str, is_ragged: bool, model: Any = None) -> Objective:
    loss = OwningLoss(model)

    def terms(z: Tensor, y: Tensor) -> tuple[Tensor, float]:
        return ((z - y) ** 2).sum() + len(z) * _squared_parameters(model), len(z)

    y = d.normal(*z.shape)
    return Objective(loss, terms, y, "module that owns the model", is_of_output=False)


def masked_pairs(d: Draw, z: Tensor, layout: str, is_ragged: bool) -> Objective:
    """The sum over valid targets and their number; whole batches may have none."""
    y = _ignored(d, d.integers(1, 5, *z.shape))

    def terms(z: Tensor, y: Tensor) -> tuple[Tensor, float]:
        valid = y != -100
        return ((z - y).square() * valid).sum(), float(valid.sum())

    return Objective(terms, terms, y, "masked pair")


# --- losses in which samples see each other, or that average over something else ---


def mixing(d: Draw, z: Tensor, layout: str, is_ragged: bool) -> Objective:
    kind = d.pick(("contrastive", "centred", "dice", "mean over valid"))
    y = d.normal(*z.shape)
    if kind == "mean over valid":
        y = y.clone()
        y[d.integers(0, 2, *z.shape) == 0] = 9.0
        y[0], y[-1] = 9.0, 0.5  # all of the first sample are left out, none of the last

    def mean(z: Tensor, y: Tensor) -> Tensor:
        a, b = z.flatten(1), y.flatten(1)
        if kind == "contrastive":
            similar = a @ b.T
            return (similar.logsumexp(1) - similar.diagonal()).mean()
        if kind == "centred":
            return (a - a.mean(0) - b).square().sum(1).mean()
        if kind == "dice":
            p = torch.sigmoid(a)
            return 1 - 2 * (p * b.abs()).sum() / (p.sum() + b.abs().sum())
        valid = b != 9.0
        return ((a - b).square() * valid).sum() / valid.sum().clamp(min=1)

    def terms(z: Tensor, y: Tensor) -> tuple[Tensor, float]:
        return mean(z, y) * len(z), len(z)

    return Objective(mean, terms, y, kind, defect="mixes")


OF_OUTPUT = (
    classes, classes, classes, classes, probabilities, squares, squares, binary, of_module,
    masked_pairs,
)  # fmt: skip
OF_MODEL = (own, own, own, owning)
