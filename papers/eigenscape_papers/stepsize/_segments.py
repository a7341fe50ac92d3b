"""Segments of rules' runs, and the way back through them.

Letters as in `update_rule.py`; t steps, b samples a batch, m samples to judge by. Each of p
networks has a rule of its own; they have nothing in common but their steps. A segment is cut into
pieces. On the way forward w, m and v are kept where a piece begins; on the way back its steps are
taken again, this time with all that their derivatives need. The last piece is run once. On a CUDA
device a piece is one launch. As in the thesis's code, gradients of the networks count as given:
derivatives pass through the weights alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from eigenscape_papers.stepsize import _stacked_mlp as mlp
from eigenscape_papers.stepsize._recorded import Recorded
from eigenscape_papers.stepsize._stepping import Layout, State, clocks, is_fused, joined, take_step
from eigenscape_papers.stepsize.problems import Problems, batches_of
from eigenscape_papers.stepsize.update_rule import UpdateRule

MOST_STEPS = 128  # of a piece that a CUDA graph holds: a segment has 150 on average
# Numbers that back-propagation keeps of a weight and step, with kernels of our own (w, g, m and v
# are 12) and without (60 were counted for a rule of 32 units); and how many bytes it may keep.
_KEPT, _MOST_BYTES = {True: 16, False: 64}, {"cpu": 2**30, "cuda": 2**33}


@dataclass(frozen=True, eq=False)
class Seen:
    """What p networks see in a segment.

    Attributes:
        inputs: Features of all samples (N, d).
        labels: Each network's classes of them (p, N).
        fitted: Samples of each step (t, p, b).
        judged: Samples on which networks are judged before each step (t, p, m); or (p, m), before
            all of them.
        shares: What each of these counts in the mean (p, m).
    """

    inputs: Tensor
    labels: Tensor
    fitted: Tensor
    judged: Tensor
    shares: Tensor

    @classmethod
    def of(
        cls,
        problems: Sequence[Problems],
        draws: Sequence[torch.Generator],
        num_steps: int,
        batch_size: int,
        judge_size: int | None,
    ) -> "Seen":
        """Draw what networks see, one for each problem.

        Args:
            problems: Of one network each, on the same samples; they may be of different kinds.
            draws: The random numbers of each.
            num_steps: t.
            batch_size: b.
            judge_size: m; None for all samples that there are to judge by, which is not the same
                number for all: those that fill a row up count 0.

        Returns:
            All of it.
        """
        pairs = list(zip(problems, draws, strict=True))
        fitted = [each.draw("fitted", num_steps, batch_size, draw) for each, draw in pairs]
        if judge_size is None:
            pools = [each.judged for each in problems]
            m = max(pool.shape[1] for pool in pools)
            judged = torch.cat([pad(pool, (0, m - pool.shape[1])) for pool in pools])
            counts = torch.tensor([pool.shape[1] for pool in pools])[:, None]
            shares = (torch.arange(m) < counts) / counts
        else:
            drawn = [each.draw("judged", num_steps, judge_size, draw) for each, draw in pairs]
            judged = torch.cat(drawn, 1)
            shares = torch.full(judged.shape[1:], 1 / judge_size)
        first, labels = problems[0].inputs, torch.cat([each.labels for each in problems])
        return cls(first, labels, torch.cat(fitted, 1), judged, shares.to(first))

    def steps(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Return batches of some steps, features and classes, those to judge by, and shares."""
        judged = self.judged if self.judged.ndim == 2 else self.judged[start:stop]
        rows = self.fitted[start:stop]
        both = [batches_of(self.inputs, self.labels, each) for each in (rows, judged)]
        return *both[0], *both[1], self.shares


class Segments:
    """What takes steps of rules on networks, one each, and propagates their mean losses back."""

    def __init__(self, rules: UpdateRule, sizes: Sequence[int], like: Tensor) -> None:
        self._rules, self._layout = rules, Layout.of(sizes, like)
        self._forth = Recorded(torch.no_grad()(self._steps), like.device)
        self._back = Recorded(self._steps_and_slopes, like.device)

    def run(self, state: State, batches: Seen) -> tuple[Tensor, list[Tensor], State]:
        """Take the steps of a segment.

        Args:
            state: Where the networks are; the way back ends here.
            batches: Their batches.

        Returns:
            The mean loss of each network (p,), its slopes with respect to the parameters of its
            rule, and the end.
        """
        t, here, kept = len(batches.fitted), state.tensors, []
        pieces = list(pairwise(accumulate(self._lengths(state, t), initial=0)))

        def inputs_of(start: int, stop: int) -> tuple[Tensor, ...]:
            times = clocks(state.step + start, stop - start, state.weights)
            return times, *batches.steps(start, stop)

        total = state.weights.new_zeros(len(state.weights))
        for piece in pieces[:-1]:
            kept.append(here)
            w, m, v, losses = self._forth(*here, *inputs_of(*piece))
            here, total = (w.clone(), m.clone(), v.clone()), total + losses
        kept.append(here)
        later = torch.zeros_like(state.weights)
        slopes = [torch.zeros_like(parameter) for parameter in self._rules.parameters]
        for piece, begun in zip(reversed(pieces), reversed(kept), strict=True):
            w, m, v, losses, later, *gradients = self._back(*begun, later, *inputs_of(*piece))
            if piece is pieces[-1]:
                end, total = State(w.clone(), m.clone(), v.clone(), state.step + t), total + losses
            slopes = [one + more for one, more in zip(slopes, gradients, strict=True)]
        return total / t, [one / t for one in slopes], end

    def _steps(
        self,
        w: Tensor,
        m: Tensor,
        v: Tensor,
        times: Tensor,
        inputs: Tensor,
        labels: Tensor,
        others: Tensor,
        classes: Tensor,
        shares: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take steps on (k, p, b, d) and (k, p, b), judged before; add their losses up (p,)."""
        here, total, rows = (w, m, v), w.new_zeros(len(w)), joined(self._rules, w)
        for k, clock in enumerate(times):
            # Samples to judge by are of each step, or the same (p, m, d) for all.
            judged = (others, classes) if others.ndim == 3 else (others[k], classes[k])
            total = total + mlp.losses(here[0], self._layout.sizes, *judged, shares)
            batch = inputs[k], labels[k]
            here = take_step(self._rules, here, self._layout, batch, clock, rows)
        return *here, total

    def _steps_and_slopes(
        self, w: Tensor, m: Tensor, v: Tensor, later: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Do as `_steps`, and append slopes by w and the rules; `later` are those by w after it."""
        with torch.enable_grad():
            begun = w.detach().requires_grad_()
            end, m, v, total = self._steps(begun, m, v, *inputs)
            slopes = torch.autograd.grad(
                (end, total), [begun, *self._rules.parameters], [later, torch.ones_like(total)]
            )
        return end.detach(), m, v, total.detach(), *slopes

    def _lengths(self, state: State, t: int) -> list[int]:
        weights = state.weights
        kept = _KEPT[is_fused(self._rules, weights)] * weights.nbytes
        fit = _MOST_BYTES[weights.device.type] // kept
        if weights.is_cuda:
            return cut(t, max(1, min(MOST_STEPS, fit)), weights.device)
        return [t] if t <= fit else cut(t, math.isqrt(t - 1) + 1, weights.device)


def cut(t: int, size: int, device: torch.device) -> list[int]:
    """Cut t steps into pieces of a size, and one of what is left over."""
    count, remainder = divmod(t, size)
    if device.type == "cuda":
        # Each length is recorded, so they are few: powers of two. The last piece is run only once,
        # so it is the longest.
        return [2**k for k in range(remainder.bit_length()) if remainder >> k & 1] + [size] * count
    return [size] * count + [remainder] * (remainder > 0)
