"""Segments of a rule's run, and the way back through them.

Letters as in `update_rule.py`; t steps, b samples a batch. A segment is cut into pieces. On the way
forward w, m and v are kept where a piece begins; on the way back its steps are taken again, this
time with all that their derivatives need. The last piece is run once. On a CUDA device a piece is
one launch.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from eigenscape.stepsize import _stacked_mlp as mlp
from eigenscape.stepsize._recorded import Recorded
from eigenscape.stepsize._stepping import State, clocks, decays, is_fused, take_step
from eigenscape.stepsize.problems import Problems
from eigenscape.stepsize.update_rule import UpdateRule

MOST_STEPS = 128  # of a piece that a CUDA graph holds: a segment has 150 on average
# Numbers that back-propagation keeps of a weight and step, with kernels of our own (w, g, m, v, and
# something for the networks) and without; and how many bytes it may keep in all.
_KEPT, _MOST_BYTES = {True: 16, False: 400}, {"cpu": 2**30, "cuda": 2**33}


class Segments:
    """What takes a rule's steps on stacked networks and propagates their mean loss back."""

    def __init__(self, rule: UpdateRule, sizes: Sequence[int], like: Tensor) -> None:
        self._rule, self._sizes, self._taken = rule, sizes, decays(like)
        self._forth = Recorded(torch.no_grad()(self._steps), like.device)
        self._back = Recorded(self._steps_and_slopes, like.device)

    def run(
        self, problems: Problems, state: State, fitted: Tensor, judged: Tensor
    ) -> tuple[Tensor, list[Tensor], State]:
        """Take steps on batches (t, p, b).

        Args:
            problems: Whose batches.
            state: Where the networks are; the way back ends here.
            fitted: Samples of each step.
            judged: Samples on which it is judged after each step.

        Returns:
            The mean loss, its slopes with respect to the rule's parameters, and the end.
        """
        t, here, kept = len(fitted), state.tensors, []
        pieces = list(pairwise(accumulate(self._lengths(state, t), initial=0)))

        def given(start: int, stop: int) -> tuple[Tensor, ...]:
            return (
                *batches(problems, fitted[start:stop]),
                *batches(problems, judged[start:stop]),
                clocks(state.step + start, stop - start, state.weights),
            )

        total = state.weights.new_zeros(())
        for piece in pieces[:-1]:
            kept.append(here)
            w, m, v, part = self._forth(*here, *given(*piece))
            here, total = (w.clone(), m.clone(), v.clone()), total + part
        kept.append(here)
        later = tuple(torch.zeros_like(part) for part in here)
        slopes = [torch.zeros_like(part) for part in self._rule.parameters]
        for piece, begun in zip(reversed(pieces), reversed(kept), strict=True):
            w, m, v, part, *found = self._back(*begun, *later, *given(*piece))
            if piece is pieces[-1]:
                end, total = State(w.clone(), m.clone(), v.clone(), state.step + t), total + part
            later = (found[0], found[1], found[2])
            slopes = [one + more for one, more in zip(slopes, found[3:], strict=True)]
        return total / t, [one / t for one in slopes], end

    def _steps(
        self, w: Tensor, m: Tensor, v: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take steps on (k, p, b, d) and (k, p, b), judged on others; add their losses up."""
        here, total = (w, m, v), w.new_zeros(())
        for x, y, others, classes, clock in zip(*given, strict=True):
            here = take_step(self._rule, here, self._sizes, (x, y), clock, self._taken)
            total = total + mlp.losses(here[0], self._sizes, others, classes).mean()
        return *here, total

    def _steps_and_slopes(
        self, w: Tensor, m: Tensor, v: Tensor, a: Tensor, b: Tensor, c: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        """Do as `_steps`, and append slopes by w, m, v and rule; a, b, c are those at the end."""
        with torch.enable_grad():
            begun = [part.detach().requires_grad_() for part in (w, m, v)]
            found = self._steps(*begun, *given)
            slopes = torch.autograd.grad(
                found, [*begun, *self._rule.parameters], [a, b, c, torch.ones_like(found[3])]
            )
        return (*(part.detach() for part in found), *slopes)

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
