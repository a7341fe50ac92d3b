"""Segments of a rule's run, and the way back through them.

Letters as in `update_rule.py`; t steps, b samples a batch. A segment is cut into pieces. On the way
forward w, m and v are kept where a piece begins; on the way back its steps are taken again, this
time with all that their derivatives need. The last piece is run once. On a CUDA device a piece is
one launch. As in the thesis's code, gradients of the networks count as given: derivatives pass
through the weights alone.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from eigenscape.stepsize import _stacked_mlp as mlp
from eigenscape.stepsize._recorded import Recorded
from eigenscape.stepsize._stepping import Layout, State, clocks, is_fused, joined, take_step
from eigenscape.stepsize.problems import Problems
from eigenscape.stepsize.update_rule import UpdateRule

MOST_STEPS = 128  # of a piece that a CUDA graph holds: a segment has 150 on average
# Numbers that back-propagation keeps of a weight and step, with kernels of our own (w, g, m and v
# are 12) and without (60 were counted for a rule of 32 units); and how many bytes it may keep.
_KEPT, _MOST_BYTES = {True: 16, False: 64}, {"cpu": 2**30, "cuda": 2**33}


class Segments:
    """What takes a rule's steps on stacked networks and propagates their mean loss back."""

    def __init__(self, rule: UpdateRule, sizes: Sequence[int], like: Tensor) -> None:
        self._rule, self._layout = rule, Layout.of(sizes, like)
        self._forth = Recorded(torch.no_grad()(self._steps), like.device)
        self._back = Recorded(self._steps_and_slopes, like.device)

    def run(
        self, problems: Problems, state: State, fitted: Tensor, judged: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor], State]:
        """Take steps on batches (t, p, b).

        Args:
            problems: Whose batches.
            state: Where the networks are; the way back ends here.
            fitted: Samples of each step.
            judged: Samples on which networks are judged before each step; all that there are to
                judge by, by default.

        Returns:
            The mean loss, its slopes with respect to the rule's parameters, and the end.
        """
        t, here, kept = len(fitted), state.tensors, []
        pieces = list(pairwise(accumulate(self._lengths(state, t), initial=0)))
        everything = problems.batches(problems.judged) if judged is None else ()

        def given(start: int, stop: int) -> tuple[Tensor, ...]:
            return (
                *batches(problems, fitted[start:stop]),
                clocks(state.step + start, stop - start, state.weights),
                *(batches(problems, judged[start:stop]) if judged is not None else everything),
            )

        total = state.weights.new_zeros(())
        for piece in pieces[:-1]:
            kept.append(here)
            w, m, v, part = self._forth(*here, *given(*piece))
            here, total = (w.clone(), m.clone(), v.clone()), total + part
        kept.append(here)
        later = torch.zeros_like(state.weights)
        slopes = [torch.zeros_like(part) for part in self._rule.parameters]
        for piece, begun in zip(reversed(pieces), reversed(kept), strict=True):
            w, m, v, part, later, *found = self._back(*begun, later, *given(*piece))
            if piece is pieces[-1]:
                end, total = State(w.clone(), m.clone(), v.clone(), state.step + t), total + part
            slopes = [one + more for one, more in zip(slopes, found, strict=True)]
        return total / t, [one / t for one in slopes], end

    def _steps(
        self,
        w: Tensor,
        m: Tensor,
        v: Tensor,
        inputs: Tensor,
        labels: Tensor,
        times: Tensor,
        others: Tensor,
        classes: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take steps on (k, p, b, d) and (k, p, b), judged before; add their losses up."""
        here, total, rows = (w, m, v), w.new_zeros(()), joined(self._rule, w)
        for k, clock in enumerate(times):
            # Samples to judge by are of each step, or the same (p, b, d) for all.
            seen = (others, classes) if others.ndim == 3 else (others[k], classes[k])
            total = total + mlp.losses(here[0], self._layout.sizes, *seen).mean()
            batch = inputs[k], labels[k]
            here = take_step(self._rule, here, self._layout, batch, clock, rows)
        return *here, total

    def _steps_and_slopes(
        self, w: Tensor, m: Tensor, v: Tensor, later: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        """Do as `_steps`, and append slopes by w and the rule; `later` are those by w after it."""
        with torch.enable_grad():
            begun = w.detach().requires_grad_()
            end, m, v, total = self._steps(begun, m, v, *given)
            slopes = torch.autograd.grad(
                (end, total), [begun, *self._rule.parameters], [later, torch.ones_like(total)]
            )
        return end.detach(), m, v, total.detach(), *slopes

    def _lengths(self, state: State, t: int) -> list[int]:
        weights = state.weights
        kept = _KEPT[is_fused(self._rule, weights)] * weights.nbytes
        fit = _MOST_BYTES[weights.device.type] // kept
        if weights.is_cuda:
            return cut(t, max(1, min(MOST_STEPS, fit)), weights.device)
        return [t] if t <= fit else cut(t, math.isqrt(t - 1) + 1, weights.device)


def cut(t: int, size: int, device: torch.device) -> list[int]:
    """Cut t steps into pieces of a size, and one of what is left over."""
    whole, rest = divmod(t, size)
    if device.type == "cuda":
        # Each length is recorded, so they are few: powers of two. The last piece is run only once,
        # so it is the longest.
        return [2**k for k in range(rest.bit_length()) if rest >> k & 1] + [size] * whole
    return [size] * whole + [rest] * (rest > 0)


def batches(problems: Problems, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return features (k, p, b, d) and classes (k, p, b) of the samples of k steps."""
    return problems.inputs[rows], problems.labels.expand(len(rows), -1, -1).gather(2, rows)
