"""A look at what a model returns, given labels and not, beside what losses of its logits are."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, WrongTypeError
from eigenscape.risk.batch import Batch, logits_of, split
from eigenscape.risk.evaluable import Evaluable
from eigenscape.risk.losses import CrossEntropy, Loss
from eigenscape.risk.model_loss import loss_in, makes_decoder_inputs

# Samples at a time, where cutting is left to us.
FEW_SAMPLES = 16
_MOST_NUMBERS = 2**24
# Models take logits to float32 for their loss, whatever they compute in.
EPS = torch.finfo(torch.float32).eps


@dataclass
class Compared:
    """What the model's own loss and ours are on some samples."""

    size: int
    model_loss: float | None
    ours: list[tuple[float, float] | None]  # value and rounding error

    def distance(self, which: int) -> float | None:
        """How far apart they are, in units of rounding; None where one is missing, or no number."""
        mean = self.ours[which]
        if self.model_loss is None or mean is None or not math.isfinite(self.model_loss):
            return None
        return abs(mean[0] - self.model_loss) / mean[1]

    def is_own(self, which: int) -> bool:
        """Whether ours is the model's own; the mean of no terms is NaN, or anything."""
        distance = self.distance(which)
        if distance is None:
            return (
                self.model_loss is not None
                and math.isnan(self.model_loss)
                and self.ours[which] is None
            )
        return distance <= 1


class Look:
    """A look at what the model returns for all data, beside what some losses of its logits are."""

    def __init__(self, risk: Evaluable, keyword: str | None, losses: Sequence[Loss]) -> None:
        self.risk, self.keyword, self._losses = risk, keyword, losses
        self.name = "the model" if risk.module is None else type(risk.module).__name__
        self.error: Exception | None = None
        limit = FEW_SAMPLES if risk.batches.may_resize else None
        self.samples = risk.batches.sample(FEW_SAMPLES)
        self.gives_labels = keyword is not None and makes_decoder_inputs(risk.module, self.samples)
        comparisons: list[Compared] = []
        with risk.ranks.together(), torch.no_grad(), risk.evaluating(), risk.on_first_look():
            self.output = None if self.gives_labels else self._try(self.samples)
            try:
                if keyword is not None or self.samples.target is None:
                    for batch in risk.batches:
                        chunks = split(batch, limit, must=False)
                        comparisons += [self._compared(chunk) for chunk in chunks]
            except Exception as error:  # a later probe raises it too, with a message
                self.error, comparisons = error, []
            # A loss of logits that are returned only where labels are given.
            late = (
                all(ours is None for ours in self._ours(self.output, self.samples.target))
                and bool(comparisons)
                and comparisons[0].ours[0] is not None
            )
            self.gives_labels |= any(risk.ranks.gather(late))
            if self.gives_labels:
                self.output = self._try(self.samples.labelled(keyword))
            elif comparisons and risk.mode == "eval":  # labels may change more than the loss
                comparisons[0].ours = self._ours(self.output, self.samples.target)
        # Whether outputs (N, T, V) meet one class for each position (N, T), T at least 2.
        self.has_positions = meets_positions(self.output, self.samples.target)
        gathered = risk.ranks.gather([astuple(pair) for pair in comparisons])
        self.compared = [Compared(*row) for rows in gathered for row in rows]

    def _try(self, samples: Batch) -> Any:
        try:
            return self.risk.returned(self.risk.parameters(), samples)
        except Exception as error:
            self.error = error
            return None

    def _compared(self, samples: Batch) -> Compared:
        labelled = samples.labelled(self.keyword)
        output = self.risk.returned(self.risk.parameters(), labelled)
        returned_loss = loss_in(output)
        return Compared(
            samples.size,
            None if returned_loss is None else float(returned_loss),
            self._ours(output, samples.target),
        )

    def _ours(self, output: Any, target: Any) -> list[tuple[float, float] | None]:
        return [mean_of(loss, output, target) for loss in self._losses]

    def agrees(self, which: int) -> bool | None:
        """Whether a loss is the model's own on all samples; None if there is nothing to compare."""
        far = [d for s in self.compared if (d := s.distance(which)) is not None]
        return all(d <= 1 for d in far) if far else None

    def beside(self, which: int) -> str:
        """Show a loss and the model's own where they differ most."""
        furthest = max(self.compared, key=lambda s: -1.0 if (d := s.distance(which)) is None else d)
        ours = furthest.ours[which]
        if ours is None:
            return ""
        samples = f"{furthest.size} sample{'s' * (furthest.size > 1)}"
        shown = f"{ours[0]:.7g} for its {furthest.model_loss:.7g} on {samples}"
        return shown + (f", furthest apart of {n} parts" if (n := len(self.compared)) > 1 else "")


def mean_of(loss: Loss, output: Any, target: Any) -> tuple[float, float] | None:
    """Return a loss's mean over some samples and its rounding error.

    Args:
        loss: The loss.
        output: What the model returned.
        target: What it is compared with.

    Returns:
        Both, or None where they do not fit, or there is no term.
    """
    logits = logits_of(output)
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or not logits.ndim:
        return None
    if isinstance(loss, CrossEntropy) and loss.next_token and not meets_positions(output, target):
        return None
    total = count = largest = 0.0
    chunks = [(logits.detach(), target)]
    if isinstance(target, Tensor) and target.ndim > 0 and len(target) == len(logits):
        rows = max(1, _MOST_NUMBERS * len(logits) // max(1, logits.numel()))
        chunks = list(zip(logits.detach().split(rows), target.split(rows), strict=True))
    try:
        for z, y in chunks:  # since in float64 all can fill the memory
            precise = z.double()
            chunk_total, chunk_count = loss.total(precise, y)
            finite = precise[precise.isfinite()]
            total, count = total + float(chunk_total), count + float(chunk_count)
            largest = max(largest, float(finite.abs().amax()) if finite.numel() else 0.0)
    except (InvalidArgumentError, WrongTypeError):
        return None
    if not count > 0:
        return None
    eps = max(EPS, torch.finfo(logits.dtype).eps)
    return total / count, 16 * eps * max(1.0, abs(total / count)) + 2 * eps * largest


def meets_positions(output: Any, target: Any) -> bool:
    """Tell whether outputs (N, T, V) meet one class for each position (N, T), T at least 2."""
    logits = logits_of(output)
    if not isinstance(logits, Tensor) or not isinstance(target, Tensor):
        return False
    fits = logits.ndim == 3 and logits.shape[:2] == target.shape and target.shape[1] > 1
    return fits and not target.is_floating_point()
