"""What a risk's loss leaves open, decided once; and a comparison with the model's own loss.

The loss that a model returns may be the mean of cross-entropies, with labels shifted by one or not,
and it may hold more: a router's term, smoothed labels, an average of another kind. A loss that is
chosen from outside is compared with it, batch by batch.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eigenscape.errors import (
    EigenscapeWarning,
    GroupingWarning,
    InvalidArgumentError,
    SubstitutionWarning,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk.batch import Batch, logits_of
from eigenscape.risk.evaluable import Evaluable
from eigenscape.risk.leaves import flat_gradient
from eigenscape.risk.losses import CallableLoss, CrossEntropy, Loss
from eigenscape.risk.model_look import EPS, FEW_SAMPLES, Look
from eigenscape.risk.model_loss import (
    COUNTS,
    IGNORED,
    ModelLoss,
    is_causal,
    label_keyword,
    makes_decoder_inputs,
    number_of,
    read,
)

# Number of batches whose loss is compared with that of their halves.
_FEW_BATCHES = 16
_ADVICE = (
    "The model's own loss may hold another term (a router's or an auxiliary loss), smoothed or "
    "weighted labels, an average of another kind (of ragged batches), or labels that are shifted, "
    "or not. Choose: `ModelLoss()` (`--loss model`) takes it as it is; "
    "`CrossEntropy(next_token=True)` or `False` (`--loss next-token` or `same-token`) takes the "
    "mean of these terms alone."
)


@dataclass(frozen=True)
class LossChoice:
    """The loss that a risk uses, and what is to be said of it.

    Attributes:
        loss: The loss.
        note: What was found out about it, for the run's facts; "" if there is nothing.
        difference: How it differs from the loss that the model returns itself; "" if it does not,
            or the model returns none.
        keyword: By which the model is given the labels, or None.
    """

    loss: Loss
    note: str = ""
    difference: str = ""
    keyword: str | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What is to be said of the loss in a report."""
        text = "; ".join(filter(None, (self.note, self.difference)))
        return {"loss": text} if text else {}


def choose(risk: Evaluable, asked: Loss) -> LossChoice:
    """Decide what the loss leaves open, and compare it with the model's own.

    Cost: nothing, unless the model takes labels, is known to be causal, or the loss is a function
    of the user's own; else a forward pass, and for `ModelLoss` two gradients of a few samples.

    Args:
        risk: A risk whose batches are known.
        asked: The loss as the user gave it.

    Returns:
        What was chosen.

    Raises:
        InvalidArgumentError: If a guess disagrees with the loss that the model returns itself.
        UnsupportedModelError: If the model's own loss is wanted, and there is none.
    """
    first = next(iter(risk.batches), None)
    if first is None:
        return LossChoice(asked)
    keyword = first.label if risk.takes_mapping else label_keyword(risk.module, first)
    is_open = isinstance(asked, CrossEntropy) and is_causal(risk.module)
    if isinstance(asked, CallableLoss):
        return _fitted(risk, asked, first, keyword)
    if keyword is None and not is_open and not isinstance(asked, ModelLoss):
        return LossChoice(asked)
    # Weights and smoothing are the user's choice; only the shift of the labels is compared.
    class_dim = asked.class_dim if isinstance(asked, CrossEntropy) else None
    shifts = [CrossEntropy(next_token=shift, class_dim=class_dim) for shift in (False, True)]
    is_shift = isinstance(asked, CrossEntropy | ModelLoss)
    look = Look(risk, keyword, shifts if is_shift else [asked])
    if isinstance(asked, ModelLoss):
        return _own_loss(look, asked)
    return _cross_entropy(look, asked) if isinstance(asked, CrossEntropy) else _other(look, asked)


def _chosen(look: Look, loss: Loss, note: str = "", difference: str = "") -> LossChoice:
    return LossChoice(loss, note, difference, look.keyword if look.gives_labels else None)


# --- cross-entropy --------------------------------------------------------------------------------


def _cross_entropy(look: Look, asked: CrossEntropy) -> LossChoice:
    """Decide whether labels are shifted: as the model's own loss does, else by its name."""
    if look.output is None and look.compared:  # it runs with labels
        raise UnsupportedModelError(
            f"{look.name} fails unless it is given labels ({type(look.error).__name__}: "
            f"{look.error}), and with them it returns no logits that `CrossEntropy` could compare "
            "with the targets. Take the loss that it returns: `ModelLoss()` (`--loss model`)."
        )
    agrees = [look.agrees(0), look.agrees(1)]
    is_known = is_causal(look.risk.module)
    is_shifted = look.has_positions and _is_shifted_already(look.samples)
    is_like = look.has_positions and _is_like_tokens(look.samples)
    shifted, like = zip(*look.risk.ranks.gather([is_shifted, is_like]), strict=True)
    if asked.next_token is not None:
        shift = asked.next_token
    elif any(agrees):
        shift = is_known if agrees[is_known] else bool(agrees[True])
    else:
        shift = is_known and all(like)
    if shift and any(shifted) and asked.next_token is None:
        return _shifted_already(look, asked)
    chosen = asked if shift == asked.next_token else replace(asked, next_token=shift)
    what = "cross-entropy of the next token" if shift else "cross-entropy"
    if agrees[shift]:
        return _chosen(look, chosen, f"{what}, as {look.name}'s own loss ({look.beside(shift)})")
    if agrees[shift] is None:  # the model returns no loss, or it cannot be compared
        if not shift or asked.next_token is not None:
            return _chosen(look, chosen)
        warnings.warn(
            f"`CrossEntropy()` compares each position of {look.name} with the label of the next "
            "one, as causal language models do. Pass `next_token=True` or `False`.",
            SubstitutionWarning,
            stacklevel=5,
        )
        return _chosen(look, chosen, f"{what}, as {look.name} is a causal language model")
    call = f"CrossEntropy(next_token={shift})" if look.has_positions else "CrossEntropy()"
    problem = f"`{call}` is not the loss that {look.name} returns itself: {look.beside(shift)}. "
    problem += f"With next_token={not shift} they agree. " if agrees[not shift] else ""
    problem += _ADVICE
    if asked.next_token is None and look.has_positions:
        raise InvalidArgumentError(problem)
    if asked.next_token is None:
        warnings.warn(problem, EigenscapeWarning, stacklevel=5)
    return _chosen(look, chosen, what, problem)


def _tokens_of(samples: Batch) -> Any:
    """Return the tokens among the inputs, if they have the targets' shape."""
    named = samples.kwargs.get("input_ids")
    for value in (named, *samples.args, *samples.kwargs.values()):
        is_like = isinstance(value, Tensor) and value.shape == samples.target.shape
        if is_like and not value.is_floating_point() and value.dtype != torch.bool:
            return value
    return None


def _is_like_tokens(samples: Batch) -> bool:
    named = [samples.kwargs.get("inputs_embeds"), *samples.args]
    embedded = any(
        isinstance(x, Tensor) and x.ndim == 3 and x.shape[:2] == samples.target.shape for x in named
    )
    return embedded or _tokens_of(samples) is not None


def _is_shifted_already(samples: Batch) -> bool:
    """Tell whether each target is the token after its position, and not the one at it."""
    tokens, target = _tokens_of(samples), samples.target
    if tokens is None:
        return False
    kept = target != IGNORED
    at_it = bool((tokens == target)[kept].all())
    after_it = bool((tokens[:, 1:] == target[:, :-1])[kept[:, :-1]].all())
    return after_it and not at_it and bool(kept[:, :-1].any())


def _shifted_already(look: Look, asked: CrossEntropy) -> LossChoice:
    if look.samples.label is not None and look.agrees(True):
        raise InvalidArgumentError(
            f"The '{look.samples.label}' of the data are the tokens moved by one already, and "
            f"{look.name} would move them once more for its own loss. Give labels as they stand in "
            "the text (a copy of the tokens), or say `CrossEntropy(next_token=False)` "
            "(`--loss same-token`) to compare them as they are."
        )
    note = "cross-entropy, unshifted: the targets are the tokens moved by one already"
    return _chosen(look, replace(asked, next_token=False), note)


# --- other losses ---------------------------------------------------------------------------------


def _other(look: Look, asked: Loss) -> LossChoice:
    """Say how a loss differs from the model's own."""
    agrees = look.agrees(0)
    if agrees is None:
        return _chosen(look, asked)
    if agrees:
        return _chosen(look, asked, f"as {look.name}'s own loss ({look.beside(0)})")
    name = f"`{type(asked).__name__}`"
    problem = f"{name} is not the loss that {look.name} returns itself: {look.beside(0)}. {_ADVICE}"
    return _chosen(look, asked, "", problem)


def _fitted(risk: Evaluable, asked: CallableLoss, first: Batch, keyword: str | None) -> LossChoice:
    """Give a function all that the model returned, or the logits where it can take only these."""
    gives = keyword is not None and makes_decoder_inputs(risk.module, first)
    open_choice = LossChoice(asked, keyword=keyword if gives else None)
    if asked.takes_whole is not None:
        return open_choice
    samples = first.head(FEW_SAMPLES).labelled(open_choice.keyword)
    errors: list[Exception] = []
    with torch.no_grad(), risk.evaluating(), risk.on_first_look():
        try:
            output = risk.returned(risk.parameters(), samples)
        except Exception:  # the probe that follows raises it too, with a message
            return open_choice
        if logits_of(output) is output:
            return open_choice
        for takes_whole in (True, False):
            risk.loss = replace(asked, takes_whole=takes_whole)
            try:
                risk.total(risk.parameters(), samples)
            except Exception as error:
                errors.append(error)
            else:
                return replace(open_choice, loss=risk.loss)
    said = [f"{type(error).__name__}: {error}" for error in errors]
    raise WrongTypeError(
        "The loss function is called with (output, target). It takes neither what the model "
        f"returned, a {type(output).__name__} ({said[0]}), nor its logits ({said[1]})."
    ) from errors[0]


# --- the model's own ------------------------------------------------------------------------------


def _own_loss(look: Look, asked: ModelLoss) -> LossChoice:
    """Find out what the model's own loss is a mean of; cross-entropy is taken for what it is."""
    if not look.compared and look.error is not None:
        raise UnsupportedModelError(
            f"{look.name} cannot return its own loss. Given labels as '{look.keyword}', it said: "
            f"{type(look.error).__name__}: {look.error}"
        ) from look.error
    look.gives_labels = look.keyword is not None
    samples = look.samples.labelled(look.keyword)
    with torch.no_grad(), look.risk.evaluating():
        output = look.risk.returned(look.risk.parameters(), samples)
    read(asked, output)  # refuses where there is no loss
    shift = None if asked.count is not None else _as_cross_entropy(look, samples, output)
    if shift is not None:
        what = "cross-entropy of the next token" if shift else "cross-entropy"
        note = f"{look.name}'s own, which is {what} on all data ({look.beside(shift)})"
        return _chosen(look, CrossEntropy(next_token=shift), note)
    count = _count_of(look, asked)
    note = f"{look.name}'s own, a mean over {count}"
    return _chosen(look, ModelLoss(count), f"{note} ({float(read(asked, output)):.7g} at first)")


def _as_cross_entropy(look: Look, samples: Batch, output: Any) -> bool | None:
    """Say of which cross-entropy the model's own loss is the mean, on all data; None if of none."""
    shifts = [s for s in (False, True) if look.compared and all(c.is_own(s) for c in look.compared)]
    if not shifts or look.agrees(shifts[-1]) is None:
        return None
    shift = is_causal(look.risk.module) if len(shifts) > 1 else shifts[0]
    loss = CrossEntropy(next_token=shift)

    def ours(output: Any) -> Tensor:
        total, count = loss.total(logits_of(output), samples.target)
        return total / count.to(total.dtype)

    alike = _is_alike(
        look.risk, *(_gradient(look.risk, samples, pick) for pick in (own_loss, ours))
    )
    return shift if all(look.risk.ranks.gather(alike)) else None


def own_loss(output: Any) -> Tensor:
    """Return the loss that the model returned."""
    loss: Tensor = read(ModelLoss(), output)
    return loss


def _gradient(risk: Evaluable, samples: Batch, pick: Callable[[Any], Tensor]) -> Tensor:
    """Differentiate a number that is read of what the model returns."""
    with torch.enable_grad(), risk.evaluating():
        leaves = risk.leaves()
        return flat_gradient(pick(risk.returned(leaves, samples)), leaves)


def _is_alike(risk: Evaluable, first: Tensor, second: Tensor) -> bool:
    """Compare gradients, tensor by tensor: a value tells little of a small or detached term."""
    # Rounding stays far below the root of its unit, where a tensor's gradient is not all rounding.
    eps = max(EPS, torch.finfo(risk.precision).eps)
    floor = 16 * eps * float(second.norm())
    sizes = [p.numel() for p in risk.parameters().values()]
    pairs = zip(first.split(sizes), second.split(sizes), strict=True)
    return all(float((a - b).norm()) <= eps**0.5 * float(b.norm()) + floor for a, b in pairs)


def _count_of(look: Look, asked: ModelLoss) -> str:
    """Choose the number that makes batches the sum of their parts."""
    risk = look.risk
    counts = ("next labels", "labels", "samples") if is_causal(risk.module) else COUNTS
    wanted = counts if asked.count is None else (asked.count,)
    problems = {count: "" for count in wanted}
    cuts = risk.batches.may_resize
    with risk.ranks.together(), torch.no_grad(), risk.evaluating(), risk.on_first_look():
        for batch in risk.batches.some(_FEW_BATCHES):
            _compare_parts(look, batch.head(FEW_SAMPLES) if cuts else batch, problems)
    additive = [c for c in wanted if not any(risk.ranks.gather(problems[c]))]
    if additive:
        return additive[0]
    problem = (
        f"The loss that {look.name} returns itself is no mean over {' or '.join(wanted)}: "
        f"{problems[wanted[0]]}. It may hold a term of a whole batch (a router's or another "
        "auxiliary loss, a contrast between samples), or several averages."
    )
    if cuts and risk.ranks.size == 1:
        warnings.warn(
            f"{problem} So all data are evaluated as one batch.", SubstitutionWarning, stacklevel=6
        )
        risk.batches.uncut()
    elif risk.ranks.size > 1 or sum(1 for _ in risk.batches) > 1:
        warnings.warn(
            f"{problem} Your batches count as they are, each weighted by its {wanted[0]}, and "
            "other batches would give another Hessian. Give all data as one batch, or take "
            "`CrossEntropy(next_token=...)` (`--loss next-token` or `same-token`), which leaves "
            "out what the model adds.",
            GroupingWarning,
            stacklevel=6,
        )
    return wanted[0]


def _compare_parts(look: Look, samples: Batch, problems: dict[str, str]) -> None:
    """Note the counts by which the loss of some samples is not that of two parts together."""
    halves = list(samples.halves())
    if len(halves) < 2:
        return
    params, together = look.risk.parameters(), [samples, *halves]
    outputs = [look.risk.returned(params, batch.labelled(look.keyword)) for batch in together]
    values = [float(own_loss(output)) for output in outputs]
    eps = max(EPS, torch.finfo(look.risk.precision).eps)
    for count in [c for c, problem in problems.items() if not problem]:
        numbers = [number_of(batch.target, count) for batch in together]
        sums = [v * n if n else 0.0 for v, n in zip(values, numbers, strict=True)]
        if not abs(sums[0] - sums[1] - sums[2]) <= 64 * eps * max(numbers[0], *map(abs, sums)):
            shown = " and ".join(f"{value:.7g}" for value in values[1:])
            sizes = " and ".join(str(half.size) for half in halves)
            problems[count] = (
                f"{samples.size} samples have the loss {values[0]:.7g}, parts of {sizes} {shown}"
            )
