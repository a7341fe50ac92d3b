"""Steps of a rule with one hidden layer in kernels of our own, by Triton; for a GPU.

Letters as in `update_rule.py`. One operation at a time, a step reads or writes hundreds of numbers
a weight, and that is what takes its time. Here features and hidden units are made anew where they
are needed and never written: a step moves 35 numbers a weight on the way forward, in three
launches, and 17 on the way back, in two; and it keeps w, g, m and v.

Weights are cut into spans that lie in one tensor each (`Layout`). A feature is divided by its root
mean square over a tensor, so there is one kernel before that is known, one that finds it from the
sums of spans, and one after. The way back has the same seam, at the mean product of w's feature
and its slope. Nothing is added up in an order that depends on the run.

Hidden units are tiles (C, L) of L weights and C units, filled up with zeros to a power of two; the
22 features of a weight are two tiles of 16 rows, so that what is multiplied are small matrices, for
which a GPU has units of their own. These read ten bits of a number; so numbers are split into two,
and three products of the parts added up, which leaves the rounding of float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from eigenscape_papers.stepsize._stepping import Layout
from eigenscape_papers.stepsize.update_rule import (
    DECAYS,
    NUM_FEATURES,
    UNDER_MEAN,
    UNDER_ROOT,
    UpdateRule,
)

if len(DECAYS) != 5 or NUM_FEATURES != 31:
    raise AssertionError("the kernels are written for 22 features of a weight and 9 of a step")

# Weights of a tile, and warps, of each kernel.
_SEE, _MOVE, _BACK, _THROUGH = (256, 8), (128, 4), (64, 2), (256, 8)
_PROGRAMS = 1024  # on the way back, at most; each leaves sums for the whole rule
_JOINED = 256  # rows of sums that are loaded at once
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
            UNDER_MEAN=UNDER_MEAN, C=C, J=_JOINED, num_warps=8,
        )  # fmt: skip
        seen = w, g, new_m, new_v, units, base, rows, spans
        L, warps = _MOVE
        _move[S, p](
            *(*seen, new_w, n, T, scale, exponent),
            UNDER_ROOT=UNDER_ROOT, C=C, L=L, num_warps=warps, num_stages=1,
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
        each = triton.cdiv(S, max(1, _PROGRAMS // p))  # spans of a program, all of one network
        parts = triton.cdiv(S, each)
        to_w, to_rows = torch.empty_like(w), torch.empty_like(rows)
        products, sums = w.new_empty(p, S), w.new_empty(p, parts, 27, C)
        L, warps = _BACK
        _back[parts, p](
            *(*seen, slope.contiguous(), to_w, products, sums, n, T, S, each, *ctx.numbers),
            UNDER_ROOT=UNDER_ROOT, C=C, L=L, num_warps=warps, num_stages=1,
        )  # fmt: skip
        R, warps = _THROUGH
        sides = C // _COLUMNS
        _through[36 * sides + S, p](
            *(w, units, spans, tensors, products, to_w, sums, clock, to_rows, n, T, S, parts),
            C=C, SIDES=sides, R=R, J=_JOINED, num_warps=warps,
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
def _features(w, g, m, v, units, own, place, inside, n, UNDER_ROOT: tl.constexpr):
    """Return what weights have in two tiles (16, L) in parts, each feature in its unit.

    The first has features 0 to 11 (w, g, m and v) and a row of ones, the second 12 to 21. Other
    rows are zero, and so are weights over the end. Places are `own` in w and g.
    """
    row, inside = tl.arange(0, 16)[:, None], inside[None, :]
    first = tl.load(w + own[None, :], mask=inside & (row == 0), other=0.0)
    first += tl.load(g + own[None, :], mask=inside & (row == 1), other=0.0)
    at = (row - 2) % 5 * n + place[None, :]  # of the same decay in m and in v
    first += tl.load(m + at, mask=inside & (row >= 2) & (row < 7), other=0.0)
    first += tl.load(v + at, mask=inside & (row >= 7) & (row < 12), other=0.0)
    first *= tl.load(units + row)
    first = tl.where(inside & (row == 12), 1.0, first)
    at = row % 5 * n + place[None, :]
    second = tl.rsqrt(tl.load(v + at, mask=inside & (row < 10), other=1.0) + UNDER_ROOT)
    second *= tl.load(m + at, mask=inside & (row < 5), other=1.0)
    second *= tl.load(units + tl.where(row < 10, 12 + row, 0))
    return _parted(first), _parted(tl.where(inside & (row < 10), second, 0.0))


@triton.jit
def _parted(x):
    """Return the ten leading bits of numbers, and what is left of them."""
    large = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return large, x - large


@triton.jit
def _with_product(total, x, y):
    """Add a product of two matrices that are given in parts; that of the small ones is rounding."""
    total = tl.dot(x[0], y[1], total, input_precision="tf32")
    total = tl.dot(x[1], y[0], total, input_precision="tf32")
    return tl.dot(x[0], y[0], total, input_precision="tf32")


@triton.jit
def _turned(x):
    """Return the transposes of both parts."""
    return tl.trans(x[0]), tl.trans(x[1])


@triton.jit
def _rows_of(rows, C: tl.constexpr):
    """Return what hidden units take of both tiles of features (C, 16), in parts."""
    row, unit = tl.arange(0, 16)[None, :], tl.arange(0, C)[:, None]
    first = tl.load(rows + row * C + unit, mask=row < 12, other=0.0)
    second = tl.load(rows + (12 + row) * C + unit, mask=row < 10, other=0.0)
    return _parted(first), _parted(second)


@triton.jit
def _outputs(base, rows, into, features, inside, C: tl.constexpr, L: tl.constexpr):
    """Return hidden units before their ReLU and after (C, L), and both outputs of weights (L,)."""
    unit = tl.arange(0, C)
    h = tl.zeros((C, L), dtype=tl.float32) + tl.load(base + unit)[:, None]
    h = _with_product(_with_product(h, into[0], features[0]), into[1], features[1])
    active = tl.where(h <= 0, 0.0, h)  # and what is not a number stays none
    along, grown = tl.load(rows + 32 * C + unit), tl.load(rows + 33 * C + unit)
    direction = tl.sum(along[:, None] * active, axis=0) + tl.load(rows + 34 * C)
    # What is over the end has any magnitude at all, perhaps one too large for `exp`.
    magnitude = tl.sum(grown[:, None] * active, axis=0) + tl.load(rows + 35 * C)
    return h, active, direction, tl.where(inside, magnitude, 0.0)


@triton.jit
def _move(
    w, g, m, v, units, base, rows, spans, new_w, n, num_tensors, size, exponent,
    UNDER_ROOT: tl.constexpr, C: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Move the weights of a span."""
    span, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start, stop = tl.load(spans + 3 * span), tl.load(spans + 3 * span + 1)
    units += (network * num_tensors + tl.load(spans + 3 * span + 2)) * 32
    base, rows = base + network * C, rows + network * (36 * C)
    into = _rows_of(rows, C)
    for begin in range(start, stop, L):
        column = begin + tl.arange(0, L)
        inside = column < stop
        own, place = network * n + column, network * (5 * n) + column
        features = _features(w, g, m, v, units, own, place, inside, n, UNDER_ROOT)
        _, _, direction, magnitude = _outputs(base, rows, into, features, inside, C, L)
        w_here = tl.load(w + own, mask=inside, other=0.0)
        update = size * direction * tl.exp(exponent * magnitude)
        tl.store(new_w + own, w_here - update, mask=inside)


@triton.jit
def _back(
    w, g, m, v, units, base, rows, spans, slopes, to_w, products, sums,
    n, num_tensors, num_spans, each, size, exponent,
    UNDER_ROOT: tl.constexpr, C: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write slopes by w as if units were given, and add up those by the rule, over some spans."""
    part, unit, row = tl.program_id(0), tl.arange(0, C), tl.arange(0, 16)[:, None]
    network = tl.program_id(1).to(tl.int64)
    base, rows = base + network * C, rows + network * (36 * C)
    into = _rows_of(rows, C)
    along, grown = tl.load(rows + 32 * C + unit)[:, None], tl.load(rows + 33 * C + unit)[:, None]
    of_w = tl.load(rows + unit)[:, None]
    first, second = tl.zeros((16, C), dtype=tl.float32), tl.zeros((16, C), dtype=tl.float32)
    last = tl.zeros((16, C), dtype=tl.float32)
    ends = tl.zeros((L,), dtype=tl.float32), tl.zeros((L,), dtype=tl.float32)
    for span in range(part * each, tl.minimum((part + 1) * each, num_spans)):
        start, stop = tl.load(spans + 3 * span), tl.load(spans + 3 * span + 1)
        own_units = units + (network * num_tensors + tl.load(spans + 3 * span + 2)) * 32
        product = tl.zeros((L,), dtype=tl.float32)
        for begin in range(start, stop, L):
            column = begin + tl.arange(0, L)
            inside = column < stop
            own, place = network * n + column, network * (5 * n) + column
            features = _features(w, g, m, v, own_units, own, place, inside, n, UNDER_ROOT)
            h, active, direction, magnitude = _outputs(base, rows, into, features, inside, C, L)
            slope = tl.load(slopes + own, mask=inside, other=0.0)
            d0 = -slope * size * tl.exp(exponent * magnitude)
            d1 = exponent * direction * d0
            dh = tl.where(h <= 0, 0.0, along * d0[None, :] + grown * d1[None, :])
            through = tl.sum(of_w * dh, axis=0) * tl.load(own_units)
            product += through * tl.load(w + own, mask=inside, other=0.0)
            tl.store(to_w + own, slope + through, mask=inside)
            slopes_h = _turned(_parted(dh))
            first = _with_product(first, features[0], slopes_h)
            second = _with_product(second, features[1], slopes_h)
            both = tl.where(row == 0, d0[None, :], tl.where(row == 1, d1[None, :], 0.0))
            last = _with_product(last, _parted(both), _turned(_parted(active)))
            ends = ends[0] + d0, ends[1] + d1
        tl.store(products + network * num_spans + span, tl.sum(product, axis=0))
    sums += (network * tl.num_programs(0) + part) * (27 * C) + unit[None, :]
    # Row 12 of the first tile is that of ones, for the biases.
    tl.store(sums + tl.where(row == 12, 22, row) * C, first, mask=row < 13)
    tl.store(sums + (12 + row) * C, second, mask=row < 10)
    tl.store(sums + (23 + row) * C, last, mask=row < 2)
    for j in tl.static_range(2):
        total = tl.where(unit == 0, tl.sum(ends[j], axis=0), 0.0)
        tl.store(sums + (25 + j) * C, total[None, :])


@triton.jit
def _through(
    w, units, spans, tensors, products, to_w, sums, clock, to_rows,
    n, num_tensors, num_spans, parts,
    C: tl.constexpr, SIDES: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
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
        products += network * num_spans
        total = tl.zeros((J,), dtype=tl.float32)
        for begin in range(first, last, J):
            at = begin + tl.arange(0, J)
            total += tl.load(products + at, mask=at < last, other=0.0)
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
