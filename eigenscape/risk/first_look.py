"""What is looked at once, when a risk is made: is it a function of the parameters, and a sum?

Is it the same at a second evaluation and a second pass, does it change with the batches, what does
the model write to, how precise is it, how many terms are there.
"""

import inspect
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from eigenscape.errors import (
    EmptySelectionError,
    GroupingWarning,
    InvalidArgumentError,
    NonDeterministicRiskError,
    SubstitutionWarning,
    UnsupportedModelError,
)
from eigenscape.records import crc
from eigenscape.risk.batch import Batch, tensors_in
from eigenscape.risk.evaluable import Evaluable
from eigenscape.risk.parameters import Spy, Widened

_NEEDS_GRAD = "does not require grad"
# How many of the user's own batches are looked at in parts.
_FEW_BATCHES = 16
# How many groups of a float32 model are compared in float64, too; parts of it may stay in float32.
_FEW_IN_FLOAT64, _SLACK_IN_FLOAT64 = 4, 1e-6


def find_calling(risk: Evaluable) -> None:
    """Learn how the model wants to be called.

    A mapping in a batch holds the model's keyword arguments, unless the model takes it whole. And
    a model that differentiates within itself cannot do so without grad mode.
    """
    batch = next(iter(risk.batches), None)
    if batch is None:
        return
    if risk.module is not None and batch.kwargs and not batch.args:
        risk.takes_mapping = _takes_whole(risk.module.forward, batch.kwargs)
    with torch.no_grad(), risk.evaluating(), risk.on_first_look():
        try:
            risk.output(risk.parameters(), batch.head(1))
        except RuntimeError as error:
            risk.needs_grad_mode = _NEEDS_GRAD in str(error)
        except Exception:  # the probe that follows meets it too, and says it
            pass
    if batch.dim and isinstance(batch.target, Tensor) and batch.target.ndim > batch.dim:
        _find_dim_of_outputs(risk)


def _find_dim_of_outputs(risk: Evaluable) -> None:
    """Learn which dimension of the outputs counts samples, where another than the first may."""
    try:
        with torch.no_grad(), risk.evaluating(), risk.on_first_look():
            heads = [risk.batches.head(count) for count in (1, 2)]
            one, two = (tensors_in(risk.output(risk.parameters(), head)) for head in heads)
            shapes = [zip(a.shape, b.shape, strict=True) for a, b in zip(one, two, strict=True)]
            grown = {dim for pairs in shapes for dim, (a, b) in enumerate(pairs) if a != b}
    except Exception:  # the probe that follows meets it too, and says it
        return
    if len(grown) == 1:
        risk.batches.count_targets_along(grown.pop())


def _takes_whole(forward: Callable[..., object], mapping: dict[str, object]) -> bool:
    """Tell whether a mapping fits as one argument, and its entries do not as several."""
    try:
        signature = inspect.signature(forward)
        signature.bind(mapping)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(**mapping)
    except TypeError:
        return True
    return False


def probe(risk: Evaluable, check: bool) -> tuple[float, int]:
    """Evaluate once to learn the counts, and again to see that nothing is random.

    Args:
        risk: A risk whose batches are known.
        check: Whether to evaluate again.

    Returns:
        The number of terms over all ranks, and of samples on this one.

    Raises:
        EmptySelectionError: If there is no term.
    """
    spy = Spy(risk.autocast or risk.dtype)
    with torch.no_grad(), risk.evaluating():
        with spy, risk.on_first_look():
            total, count = risk.sums(risk.batches)
        risk.precision = spy.lowest
        samples = sum(batch.size for batch in risk.batches)
        if not count > 0:
            raise EmptySelectionError(
                f"The data hold {samples} samples but no loss term (count {count:g}): every "
                "target is ignored or has weight zero."
            )
        _require_same_everywhere(risk)
        if check:
            with risk.ranks.together():
                _require_same_output(risk)
            if not risk.batches.is_whole:
                _require_same_pass(risk, total, count)
        if not risk.batches.may_resize:
            _require_batch_free(risk)
        with risk.ranks.together():
            cut = _cut_problem(risk)
    _require_batch_free(risk)
    if any(problem is not None for problem in risk.ranks.gather(cut)):
        return _uncut(risk, check, str(cut))
    if spy.saw_attention:
        warnings.warn(
            "The model uses fused attention, which has no second derivative; its math kernel "
            "is used inside products instead (exact, more memory).",
            SubstitutionWarning,
            stacklevel=4,
        )
    return count, samples


def count_again(risk: Evaluable) -> None:
    """Read data that changed, and count their terms: targets may be ignored that were not."""
    risk.batches.keep()
    with torch.no_grad(), risk.evaluating(), risk.on_first_look():
        _, risk.num_terms = risk.sums(risk.batches)
    risk.num_own_samples = sum(batch.size for batch in risk.batches)


def _require_same_output(risk: Evaluable) -> None:
    """Evaluate one batch twice; dropout and the like show up here."""
    batch, params = next(iter(risk.batches)), risk.parameters()
    outputs = [risk.output(params, batch) for _ in range(2)]
    losses = [risk.total(params, batch)[0] for _ in range(2)]
    for what, (first, second) in {"model": outputs, "loss": losses}.items():
        if not isinstance(first, Tensor):
            continue
        # Logits of −∞ mark classes that cannot occur: equal, but their difference is NaN.
        same = (first == second) | (first.isnan() & second.isnan())
        difference = (first - second).abs()[~same].sum().item()
        if not difference <= risk.slack * first.abs().nan_to_num(posinf=0.0).sum().item():
            raise NonDeterministicRiskError(
                f"The {what} gave two results for one batch, {difference:.2g} apart. Use "
                "`mode='eval'` or take the randomness out; pass `check_deterministic=False` "
                "only if you mean it."
            )


def _require_same_pass(risk: Evaluable, total: float, count: float) -> None:
    """Walk the loader anew; random augmentation and dropped batches show up here."""
    fingerprint = risk.batches.seen
    again, count_again = risk.sums(risk.batches.fresh())
    slack = risk.slack * max(abs(again), abs(total))
    if count != count_again or not abs(again - total) <= slack:
        raise NonDeterministicRiskError(
            f"Two passes over the data gave losses {total / count:.6g} ({count:g} terms) and "
            f"{again / max(count_again, 1e-300):.6g} ({count_again:g} terms). Turn off random "
            "augmentation and `drop_last` with shuffling, or pass `list(loader)` for one draw."
        )
    if risk.batches.seen != fingerprint and not risk.batches.is_fixed:
        raise NonDeterministicRiskError(
            "Processes cannot share a loader that gives its batches in another order at every "
            "pass. Turn off shuffling, or raise `EmpiricalRisk(keep_data_bytes=...)`."
        )


def _require_same_everywhere(risk: Evaluable) -> None:
    """Refuse ranks that differ in what they are to share: their sums would mean nothing."""
    if risk.ranks.size > 1:
        model = [crc(tensor) for tensor in risk.state()]
        risk.ranks.require_same({"model": model, "data": risk.batches.seen})


def _require_batch_free(risk: Evaluable) -> None:
    """Refuse batch statistics over several batches: batches would change the answer."""
    modules = [] if risk.module is None else risk.module.named_modules()
    coupled = [
        name
        for name, module in modules
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and (module.running_mean is None or (module.training and risk.mode == "keep"))
    ]
    # Several ranks have several batches.
    if coupled and (risk.ranks.size > 1 or sum(1 for _ in risk.batches) > 1):
        raise UnsupportedModelError(
            f"`{coupled[0]}` normalises by the statistics of its batch, so the loss depends on "
            "how the data are batched. Use `mode='eval'` with running statistics, or give all "
            "data as one batch (`batch_size=` at least the number of samples)."
        )


def _cut_problem(risk: Evaluable) -> str | None:
    """Evaluate every batch that was cut here in two parts: its loss must be the parts' sum.

    Cost: a forward pass. It finds a first dimension that does not count samples, samples that see
    each other, and averages of averages. Batches that the user made are the user's own choice:
    a few are looked at, and what was found is said.

    Returns:
        What differs, or None.
    """
    if not risk.batches.is_cut and (risk.ranks.size == 1 or not risk.batches.is_whole):
        risk.samples_interact = _depends_on_grouping(risk)
        return None
    for number, (batch, chunks) in enumerate(risk.batches.regrouped()):
        if (difference := _difference_of_parts(risk, batch, chunks)) is not None:
            return difference
        if risk.precision == torch.float32 and number < _FEW_IN_FLOAT64:
            # A loss that hardly depends on the samples hides in float32 what they do to each other.
            try:
                with risk.in_float64(), Widened():
                    difference = _difference_of_parts(risk, batch, chunks, torch.float64)
            except Exception:  # whatever a model says of tensors in another dtype than its own
                continue
            if difference is not None:
                return difference
    return None


def _difference_of_parts(
    risk: Evaluable, batch: Batch, chunks: list[Batch], dtype: torch.dtype | None = None
) -> str | None:
    """Say how the loss of some samples differs from the sum of the losses of parts.

    Args:
        risk: The risk.
        batch: The samples.
        chunks: The same in parts.
        dtype: float64 to evaluate a float32 model in it, inside `in_float64()`.

    Returns:
        What differs, or None.
    """
    if len(chunks) < 2:
        return None
    ((together, count),) = risk.totals([batch], dtype)
    sums, counts = zip(*risk.totals(chunks, dtype), strict=True)
    scale = max(abs(together), *map(abs, sums))
    eps = torch.finfo(dtype or risk.precision).eps
    slack = risk.slack if dtype is None else _SLACK_IN_FLOAT64
    differ = not abs(together - sum(sums)) <= slack * scale + 64 * eps * max(count, 1.0)
    if not differ and abs(count - sum(counts)) <= risk.slack * count:
        return None
    sizes = " and ".join(str(chunk.size) for chunk in chunks)
    return (
        f"{batch.size} samples together have the loss {together:.6g} ({count:g} terms), in parts "
        f"of {sizes} {sum(sums):.6g} ({sum(counts):g} terms)"
    )


def _depends_on_grouping(risk: Evaluable) -> bool:
    """Tell whether the loss depends on how samples are grouped; say so if there are several groups.

    Returns:
        Also true where the model needs batches as they come.
    """
    some = list(risk.batches.some(_FEW_BATCHES))
    try:
        differences = [_difference_of_parts(risk, batch, list(batch.halves())) for batch in some]
    except Exception:  # a model may need batches as they come
        return True
    difference = next((text for text in differences if text is not None), None)
    if difference and len(some) > 1:
        warnings.warn(
            f"The loss depends on how samples are grouped: {difference}. Your batches count as "
            "they are, each weighted by its number of terms, and other batches would give another "
            "Hessian. If the loss is an average over other terms than samples, such as targets "
            "that are not ignored, return the pair (sum of terms, number of terms); if another "
            "dimension counts samples, pass `sample_dim=`; `sample_dim=None` says that batches "
            "are meant as they are.",
            GroupingWarning,
            stacklevel=6,
        )
    return difference is not None


def _uncut(risk: Evaluable, check: bool, problem: str) -> tuple[float, int]:
    """Take data that came at once as one batch; refuse where the user asked for batches."""
    if not risk.batches.may_resize or risk.ranks.size > 1:
        raise InvalidArgumentError(
            f"The data cannot be cut into batches: {problem}. Either the first dimension does not "
            "count samples (say which one does: `EmpiricalRisk(sample_dim=1)`), or samples see "
            "each other in the model or the loss (leave `batch_size` out and pass "
            "`sample_dim=None`, for one batch), or the loss is an average over other terms than "
            "samples (return the pair: sum of terms, number of terms)."
        )
    warnings.warn(
        f"All data are evaluated as one batch, since cutting them changes the loss: {problem}. "
        "If another dimension counts samples, pass `sample_dim=`; if the loss is an average over "
        "other terms than samples, return the pair (sum of terms, number of terms).",
        SubstitutionWarning,
        stacklevel=5,
    )
    risk.batches.uncut()
    risk.samples_interact = True
    return probe(risk, check)
