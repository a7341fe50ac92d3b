"""Steps of a rule with one hidden layer in kernels of our own, by Triton; for a GPU.

Letters as in `update_rule.py`. One operation at a time, a step reads or writes hundreds of numbers
a weight, and that is what takes its time. Here features and hidden units are made anew where they
are needed and never written: a step moves 35 numbers a weight on the way forward, in three
launches, and 17 on the way back, in two; and it keeps w, g, m and v.

Weights are cut into spans that lie in one tensor each (`Layout`). A feature is divided by its root
mean square over a tensor, so there is one kernel before that is known, one that finds it from the
sums of spans, and one after. The way back has the same seam, at the mean product of w's feature
and its slope. Nothing is added up in an order that depends on the run.

Hidden units are tiles (B, C, L) of B·L weights and C units, filled up with zeros to a power of two.
Triton gives the last axis to neighbouring threads first and then the middle one, so B and L say
what a thread has. On the way forward L is all weights: a thread has one with all its units, and
needs no other thread. On the way back, where all is summed over weights, B is 8 and L is 4: most of
a sum is a thread's own. Products are in full precision, never in TF32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from eigenscape.stepsize._stepping import Layout
from eigenscape.stepsize.update_rule import (
    DECAYS,
    NUM_FEATURES,
    UNDER_MEAN,
    UNDER_ROOT,
    UpdateRule,
)

if len(DECAYS) != 5 or NUM_FEATURES != 31:
    raise AssertionError("the kernels are written for 22 features of a weight and 9 of a step")

# Weights of a tile, and warps, of each kernel. On the way back (B, L), and one warp: more of them
# would share the hidden units of a weight.
_SEE, _MOVE, _BACK, _THROUGH = (256, 8), (256, 8), (8, 4), (256, 8)
_PIECES = 4  # of a span on the way back, each of one program: its tiles are small
_PROGRAMS = 2048  # on the way back, at most; each leaves sums for the whole rule
_REGISTERS = 168  # of a thread there, so that enough programs fit; twice the units take all 255
_JOINED = (256, 1024)  # rows of sums loaded at once: of squares, and of slopes
_COLUMNS = 8  # of slopes that a program adds up

Places = tuple[Tensor, Tensor, Tensor]


def join(rule: UpdateRule, num_networks: int) -> Tensor:
    """Return the parameters of rules as the kernels read them.

    Args:
        rule: With one hidden layer; one for each network, or one for all.
        num_networks: p.

    Returns:
        Rows (p, 36, C): 31 for the inputs of hidden units, one for their biases, two for what both
        outputs take of them, and two for the biases of the outputs, each over and over. Slopes pass
        through it.
    """
    rules = rule if rule.biases[0].ndim == 2 else rule.repeated(num_networks)
    (first, second), (bias, last) = rules.weights, rules.biases
    h = bias.shape[1]
    rows = torch.cat([first.mT, bias[:, None], second, last[..., None].expand(-1, 2, h)], 1)
    C = max(16, triton.next_power_of_2(h))
    return rows if h == C else torch.nn.functional.pad(rows, (0, C - h))


def moved(
    rule: UpdateRule, rows: Tensor, state: Places, g: Tensor, layout: Layout, clock: Tensor
) -> Places:
    """Take a step, each network by its own rule.

    Args:
        rule: Whose scale and exponent are used, by all.
        rows: The parameters, as `join` returns them; float32.
        state: w (p, n), m and v (p, 5, n).
        g: Gradients (p, n).
        layout: Of the networks.
        clock: Features of the step (9,).

    Returns:
        w, m and v after it. Slopes pass once, from w to the w before and to the rows.
    """
    tensors = *state, g, rows, layout.spans, layout.tensors, clock, layout.taken
    step: type[Function] = _Step  # PyTorch gives `apply` no types
    with torch.cuda.device_of(g):  # kernels start on the current device
        found: Places = step.apply(
            *(part.contiguous() for part in tensors), float(rule.scale), float(rule.exponent)
        )
    return found


class _Step(Function):
    @staticmethod
    def forward(
        ctx: Any, w: Tensor, m: Tensor, v: Tensor, g: Tensor, rows: Tensor, spans: Tensor,
        tensors: Tensor, clock: Tensor, taken: Tensor, scale: float, exponent: float,
    ) -> Places:  # fmt: skip
        (p, n), C, S, T = w.shape, rows.shape[2], len(spans), len(tensors)
        new_w, new_m, new_v = torch.empty_like(w), torch.empty_like(m), torch.empty_like(v)
        squares, units, base = w.new_empty(p, S, 32), w.new_empty(p, T, 32), w.new_empty(p, C)
        R, warps = _SEE
        _see[S, p](
            *(w, g, m, v, taken, spans, new_m, new_v, squares, n),
            UNDER_ROOT=UNDER_ROOT, R=R, num_warps=warps,
        )  # fmt: skip
        _find_units[T, p](
            *(squares, tensors, rows, clock, units, base, S),
            UNDER_MEAN=UNDER_MEAN, C=C, J=_JOINED[0], num_warps=8,
        )  # fmt: skip
        seen = w, g, new_m, new_v, units, base, rows, spans
        L, warps = _MOVE
        _move[S, p](
            *(*seen, new_w, n, T, scale, exponent),
            UNDER_ROOT=UNDER_ROOT, C=C, B=1, L=L, num_warps=warps,
        )  # fmt: skip
        ctx.save_for_backward(*seen, tensors, clock)
        ctx.numbers = scale, exponent
        ctx.mark_non_differentiable(new_m, new_v)
        ctx.set_materialize_grads(False)  # or zeros would be written for m and v
        return new_w, new_m, new_v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if slope is None:
            return (None,) * 11
        *seen, tensors, clock = ctx.saved_tensors
        w, units, rows, spans = seen[0], seen[4], seen[6], seen[7]
        (p, n), C, S, T = w.shape, rows.shape[2], len(spans), len(tensors)
        items = S * _PIECES  # of each network, whose slopes are added up apart
        each = triton.cdiv(items, max(1, _PROGRAMS // p))
        parts = triton.cdiv(items, each)
        to_w, to_rows = torch.empty_like(w), torch.empty_like(rows)
        products, sums = w.new_empty(p, items), w.new_empty(p, parts, 27, C)
        B, L = _BACK
        _back[parts, p](
            *(*seen, slope.contiguous(), to_w, products, sums, n, T, items, each, *ctx.numbers),
            UNDER_ROOT=UNDER_ROOT, C=C, B=B, L=L, PIECES=_PIECES, num_warps=1,
            maxnreg=_REGISTERS if C <= 32 else 255,
        )  # fmt: skip
        R, warps = _THROUGH
        sides = C // _COLUMNS
        _through[36 * sides + S, p](
            *(w, units, spans, tensors, products, to_w, sums, clock, to_rows, n, T, S, parts),
            PIECES=_PIECES, C=C, SIDES=sides, R=R, J=_JOINED[1], num_warps=warps,
        )  # fmt: skip
        return to_w, None, None, None, to_rows, None, None, None, None, None, None


@triton.jit
def _see(
    w, g, m, v, taken, spans, new_m, new_v, squares, n,
    UNDER_ROOT: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Move the averages of a span, and add up the squares of its features."""
    span, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start, stop = tl.load(spans + 3 * span), tl.load(spans + 3 * span + 1)
    row = tl.arange(0, 32)[:, None]
    total = tl.zeros((32, R), dtype=tl.float32)
    for begin in range(start, stop, R):
        column = begin + tl.arange(0, R)
        inside = column < stop
        own, place = network * n + column, network * (5 * n) + column
        w_here = tl.load(w + own, mask=inside, other=0.0)
        g_here = tl.load(g + own, mask=inside, other=0.0)
        x = tl.where(row == 0, w_here[None, :], tl.where(row == 1, g_here[None, :], 0.0))
        for d in tl.static_range(5):
            share = tl.load(taken + d)
            m_here = tl.load(m + place + d * n, mask=inside, other=0.0)
            v_here = tl.load(v + place + d * n, mask=inside, other=0.0)
            m_here += share * (g_here - m_here)
            v_here += share * (g_here * g_here - v_here)
            tl.store(new_m + place + d * n, m_here, mask=inside)
            tl.store(new_v + place + d * n, v_here, mask=inside)
            root = tl.where(inside, tl.rsqrt(v_here + UNDER_ROOT), 0.0)
            x = tl.where(row == 2 + d, m_here[None, :], x)
            x = tl.where(row == 7 + d, v_here[None, :], x)
            x = tl.where(row == 12 + d, (m_here * root)[None, :], x)
            x = tl.where(row == 17 + d, root[None, :], x)
        total += x * x
    place = (network * tl.num_programs(0) + span) * 32 + tl.arange(0, 32)
    tl.store(squares + place, tl.sum(total, axis=1))


@triton.jit
def _find_units(
    squares, tensors, rows, clock, units, base, num_spans,
    UNDER_MEAN: tl.constexpr, C: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """Write what features of a tensor are multiplied by, and what hidden units begin with."""
    tensor, network = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(tensors + 3 * tensor), tl.load(tensors + 3 * tensor + 1)
    feature = tl.arange(0, 32)
    total = tl.zeros((J, 32), dtype=tl.float32)
    for begin in range(first, last, J):
        span = begin + tl.arange(0, J)
        place = (network * num_spans + span)[:, None] * 32 + feature[None, :]
        total += tl.load(squares + place, mask=(span < last)[:, None], other=0.0)
    mean = tl.sum(total, axis=0) / tl.load(tensors + 3 * tensor + 2)
    place = (network * tl.num_programs(0) + tensor) * 32 + feature
    tl.store(units + place, tl.rsqrt(UNDER_MEAN + mean))
    # By the program of a short tensor: the last is a bias.
    if tensor == tl.num_programs(0) - 1:
        unit = tl.arange(0, C)
        rows += network * (36 * C)
        begun = tl.load(rows + 31 * C + unit)
        for j in tl.static_range(9):
            begun += tl.load(rows + (22 + j) * C + unit) * tl.load(clock + j)
        tl.store(base + network * C + unit, begun)


@triton.jit
def _feature(
    k: tl.constexpr, w, g, m, v, units, own, place, inside, n, UNDER_ROOT: tl.constexpr
):  # fmt: skip
    """Return feature k of weights, in its unit; their places are `own` in w and g."""
    if k == 0:
        x = tl.load(w + own, mask=inside, other=0.0)
    elif k == 1:
        x = tl.load(g + own, mask=inside, other=0.0)
    else:
        place += (k - 2) % 5 * n
        if k < 7:
            x = tl.load(m + place, mask=inside, other=0.0)
        elif k < 12:
            x = tl.load(v + place, mask=inside, other=0.0)
        else:
            x = tl.rsqrt(tl.load(v + place, mask=inside, other=0.0) + UNDER_ROOT)
            if k < 17:
                x *= tl.load(m + place, mask=inside, other=0.0)
    return x * tl.load(units + k)


@triton.jit
def _hidden(
    w, g, m, v, units, base, rows, own, place, inside, n,
    UNDER_ROOT: tl.constexpr, C: tl.constexpr, B: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Return hidden units of weights before their ReLU (B, C, L)."""
    unit = tl.arange(0, C)
    h = tl.zeros((B, C, L), dtype=tl.float32) + tl.load(base + unit)[None, :, None]
    for k in tl.static_range(22):
        x = _feature(k, w, g, m, v, units, own, place, inside, n, UNDER_ROOT)
        h += tl.load(rows + k * C + unit)[None, :, None] * x[:, None, :]
    return h


@triton.jit
def _outputs(h, rows, inside, C: tl.constexpr):
    """Return direction and magnitude of weights (B, L), and what they are made of."""
    unit = tl.arange(0, C)
    along = tl.load(rows + 32 * C + unit)[None, :, None]
    grown = tl.load(rows + 33 * C + unit)[None, :, None]
    active = tl.where(h <= 0, 0.0, h)  # and what is not a number stays none
    direction = tl.sum(along * active, axis=1) + tl.load(rows + 34 * C)
    # What is over the end has any magnitude at all, perhaps one too large for `exp`.
    magnitude = tl.sum(grown * active, axis=1) + tl.load(rows + 35 * C)
    return along, grown, active, direction, tl.where(inside, magnitude, 0.0)


@triton.jit
def _move(
    w, g, m, v, units, base, rows, spans, new_w, n, num_tensors, size, exponent,
    UNDER_ROOT: tl.constexpr, C: tl.constexpr, B: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Move the weights of a span."""
    span, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start, stop = tl.load(spans + 3 * span), tl.load(spans + 3 * span + 1)
    units += (network * num_tensors + tl.load(spans + 3 * span + 2)) * 32
    base, rows = base + network * C, rows + network * (36 * C)
    for begin in range(start, stop, B * L):
        column = begin + tl.arange(0, B)[:, None] * L + tl.arange(0, L)[None, :]
        inside = column < stop
        own, place = network * n + column, network * (5 * n) + column
        h = _hidden(w, g, m, v, units, base, rows, own, place, inside, n, UNDER_ROOT, C, B, L)
        _, _, _, direction, magnitude = _outputs(h, rows, inside, C)
        w_here = tl.load(w + own, mask=inside, other=0.0)
        update = size * direction * tl.exp(exponent * magnitude)
        tl.store(new_w + own, w_here - update, mask=inside)


@triton.jit
def _with(total, k: tl.constexpr, x):
    """Add the sums of x (B, C, L) over weights to row k."""
    found = tl.sum(tl.sum(x, axis=0), axis=1)
    return total + tl.where(tl.arange(0, 32)[:, None] == k, found[None, :], 0.0)


@triton.jit
def _back(
    w, g, m, v, units, base, rows, spans, slopes, to_w, products, sums,
    n, num_tensors, items, each, size, exponent,
    UNDER_ROOT: tl.constexpr, C: tl.constexpr, B: tl.constexpr, L: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    """Write slopes by w as if units were given, and add up those by the rule, over some pieces."""
    part, unit, row = tl.program_id(0), tl.arange(0, C), tl.arange(0, 32)[:, None]
    network = tl.program_id(1).to(tl.int64)
    base, rows = base + network * C, rows + network * (36 * C)
    total = tl.zeros((32, C), dtype=tl.float32)
    ends = tl.zeros((B, L), dtype=tl.float32), tl.zeros((B, L), dtype=tl.float32)
    for item in range(part * each, tl.minimum((part + 1) * each, items)):
        span = item // PIECES
        start, stop = tl.load(spans + 3 * span), tl.load(spans + 3 * span + 1)
        own_units = units + (network * num_tensors + tl.load(spans + 3 * span + 2)) * 32
        length = tl.cdiv(stop - start, PIECES * B * L) * (B * L)
        start += item % PIECES * length
        product = tl.zeros((B, L), dtype=tl.float32)
        for begin in range(start, tl.minimum(start + length, stop), B * L):
            column = begin + tl.arange(0, B)[:, None] * L + tl.arange(0, L)[None, :]
            inside = column < stop
            own, place = network * n + column, network * (5 * n) + column
            h = _hidden(
                w, g, m, v, own_units, base, rows, own, place, inside, n, UNDER_ROOT, C, B, L
            )
            along, grown, active, direction, magnitude = _outputs(h, rows, inside, C)
            slope = tl.load(slopes + own, mask=inside, other=0.0)
            d0 = -slope * size * tl.exp(exponent * magnitude)
            d1 = exponent * direction * d0
            dh = tl.where(h <= 0, 0.0, along * d0[:, None, :] + grown * d1[:, None, :])
            through = tl.sum(tl.load(rows + unit)[None, :, None] * dh, axis=1)
            through *= tl.load(own_units)
            product += through * tl.load(w + own, mask=inside, other=0.0)
            tl.store(to_w + own, slope + through, mask=inside)
            for k in tl.static_range(22):
                # Made once more: to hold them takes more registers than there are.
                x = _feature(k, w, g, m, v, own_units, own, place, inside, n, UNDER_ROOT)
                total = _with(total, k, dh * x[:, None, :])
            total = _with(total, 22, dh)
            total = _with(total, 23, active * d0[:, None, :])
            total = _with(total, 24, active * d1[:, None, :])
            ends = ends[0] + d0, ends[1] + d1
        tl.store(products + network * items + item, tl.sum(tl.sum(product, axis=0), axis=0))
    sums += (network * tl.num_programs(0) + part) * (27 * C)
    tl.store(sums + row * C + unit[None, :], total, mask=row < 25)
    for j in tl.static_range(2):
        last = tl.sum(tl.sum(ends[j], axis=0), axis=0)
        tl.store(sums + (25 + j) * C + unit, tl.where(unit == 0, last, 0.0))


@triton.jit
def _through(
    w, units, spans, tensors, products, to_w, sums, clock, to_rows,
    n, num_tensors, num_spans, parts,
    PIECES: tl.constexpr, C: tl.constexpr, SIDES: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """Add up slopes by the rule; or finish those by the weights of a span."""
    program, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if program < 36 * SIDES:  # first, as it takes longer
        sums, to_rows = sums + network * parts * (27 * C), to_rows + network * (36 * C)
        _add_up(sums, clock, to_rows, parts, program // SIDES, program % SIDES, C, C // SIDES, J)
    else:
        span = program - 36 * SIDES
        tensor = tl.load(spans + 3 * span + 2)
        unit = tl.load(units + (network * num_tensors + tensor) * 32)
        first, last = tl.load(tensors + 3 * tensor), tl.load(tensors + 3 * tensor + 1)
        products += network * (num_spans * PIECES)
        total = tl.zeros((J,), dtype=tl.float32)
        for begin in range(first * PIECES, last * PIECES, J):
            at = begin + tl.arange(0, J)
            total += tl.load(products + at, mask=at < last * PIECES, other=0.0)
        mean = tl.sum(total, axis=0) / tl.load(tensors + 3 * tensor + 2)
        start, stop = tl.load(spans + 3 * span), tl.load(spans + 3 * span + 1)
        for begin in range(start, stop, R):
            column = begin + tl.arange(0, R)
            own, inside = network * n + column, column < stop
            # A unit is (ε + mean w²)^-½, and its slope by w is −unit³ w over their number.
            taken = mean * unit * unit * tl.load(w + own, mask=inside, other=0.0)
            tl.store(to_w + own, tl.load(to_w + own, mask=inside, other=0.0) - taken, mask=inside)


@triton.jit
def _add_up(
    sums, clock, to_rows, parts, row, side, C: tl.constexpr, COLUMNS: tl.constexpr, J: tl.constexpr
):  # fmt: skip
    """Add up the slopes by some columns of one of the 36 rows."""
    # Slopes by inputs that all weights share are those of the biases, times the input.
    timed = (row >= 22) & (row < 31)
    factor = tl.where(timed, tl.load(clock + tl.where(timed, row - 22, 0)), 1.0)
    source = tl.where(row < 22, row, tl.where(row < 32, 22, row - 9))
    unit = side * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((J, COLUMNS), dtype=tl.float32)
    for begin in range(0, parts, J):
        part = begin + tl.arange(0, J)
        place = (part * 27 + source)[:, None] * C + unit[None, :]
        total += tl.load(sums + place, mask=(part < parts)[:, None], other=0.0)
    tl.store(to_rows + row * C + unit, tl.sum(total, axis=0) * factor)
