"""Steps of a rule with one hidden layer in kernels of our own, by Triton; for a GPU.

Letters as in `update_rule.py`, and h hidden units. One operation at a time, a step reads or writes
hundreds of numbers a weight, and that is what takes its time. Here features are made anew where
they are needed and never written: on the way forward a step moves 35 numbers a weight, on the way
back 92, and keeps w, g, m and v.

The perceptron has 32 inputs: the 22 features, the 9 numbers of the step, and 1 for the biases. They
are the 32 rows of a tile whose columns are weights of a network. A feature x is (x − μ) α, with its
mean μ and α = 1/√(variance + ε max|x|²), both over all weights of the network: so there is one
kernel before they are known and one after. The way back has the same seam, at the two means that a
standardised feature needs; both follow from the slopes of the first layer, network by network.
All sums have a fixed order, so that results are the same bits in each run.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from eigenscape.stepsize.update_rule import DECAYS, EPSILON, NUM_FEATURES, UpdateRule

_INPUTS = 32
if len(DECAYS) != 5 or NUM_FEATURES + 1 != _INPUTS:
    raise AssertionError("the kernels are written for 22 features of a weight and 9 of a step")

# Columns of a tile, and warps, of each kernel.
_SEE, _MOVE, _BACK, _THROUGH = (256, 4), (128, 4), (64, 2), (512, 4)
_EACH = 8  # tiles that one program of the first kernel sees
_PROGRAMS = 528  # on the way back, which each add up many tiles: four for each unit of a large GPU
# Products of matrix units: three in TF32 for one, which together have the precision of float32.
_PRECISION = "tf32x3"

Places = tuple[Tensor, Tensor, Tensor]


def moved(rule: UpdateRule, state: Places, g: Tensor, clock: Tensor, taken: Tensor) -> Places:
    """Take a step of a rule.

    Args:
        rule: With one hidden layer of at most 64, in float32.
        state: w (p, n), m and v (p, 5, n).
        g: Gradients (p, n).
        clock: Features of the step (9,); no slopes are found for them.
        taken: What moving averages take of a new value (5, 1); likewise.

    Returns:
        w, m and v after it. Slopes can be propagated through them once.
    """
    parts = (part.contiguous() for part in (*state, g, *rule.parameters, clock, taken))
    step: type[Function] = _Step  # PyTorch gives `apply` no types
    found: Places = step.apply(*parts, rule.scale, rule.exponent)
    return found


class _Step(Function):
    @staticmethod
    def forward(
        ctx: Any, w: Tensor, m: Tensor, v: Tensor, g: Tensor,
        first: Tensor, second: Tensor, bias: Tensor, out_bias: Tensor,
        clock: Tensor, taken: Tensor, scale: float, exponent: float,
    ) -> Places:  # fmt: skip
        p, n = w.shape
        R, warps = _SEE
        blocks = triton.cdiv(n, R * _EACH)
        new_w, new_m, new_v = torch.empty_like(w), torch.empty_like(m), torch.empty_like(v)
        sums = w.new_empty(p, 3, 22, blocks, dtype=torch.float64)
        units = w.new_empty(p, 2, _INPUTS)
        _see[blocks, 5, p](
            *(w, g, m, v, taken, new_m, new_v, sums, n, blocks, _EACH),
            EPSILON=EPSILON, R=R, num_warps=warps,
        )  # fmt: skip
        _find_units[_INPUTS, p](sums, units, n, blocks, EPSILON=EPSILON, S=64, num_warps=1)
        ctx.rule = float(scale), float(exponent), len(bias)
        seen = w, g, new_m, new_v, units, clock, first, bias, second, out_bias
        C, R, warps = _tile(len(bias), _MOVE)
        _move[triton.cdiv(n, R), p](
            *(*seen, new_w, n, *ctx.rule),
            EPSILON=EPSILON, PRECISION=_PRECISION, C=C, R=R, num_warps=warps, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(*seen, taken)
        return new_w, new_m, new_v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        *seen, taken = ctx.saved_tensors
        w, g, m, v, units, _, first, bias = seen[:8]
        dw, dm, dv = (slope.contiguous() for slope in slopes)
        (p, n), h = w.shape, len(bias)
        C, R, warps = _tile(h, _BACK)
        tiles = triton.cdiv(n, R)
        each = triton.cdiv(tiles, max(1, _PROGRAMS // p))
        parts = triton.cdiv(tiles, each)
        # Slopes of features; and sums: slopes of the layers (C, 32) and (2, C), of the last biases.
        dy, sums = w.new_empty(p, 22, n), w.new_empty(p, parts, C * (_INPUTS + 2) + 2)
        _back[parts, p](
            *(*seen, dw, dy, sums, n, tiles, each, *ctx.rule),
            EPSILON=EPSILON, PRECISION=_PRECISION, C=C, R=R, num_warps=warps, num_stages=1,
        )  # fmt: skip
        found = sums.sum(1)
        means = torch.empty_like(units)
        _find_means[(p,)](found, first, bias, means, n, h, C=C, num_warps=4)
        R, warps = _THROUGH
        changes = [torch.empty_like(part) for part in (w, m, v, g)]
        _through[triton.cdiv(n, R), p](
            *(w, g, m, v, units, means, taken, dy, dw, dm, dv, *changes, n),
            EPSILON=EPSILON, R=R, num_warps=warps,
        )  # fmt: skip
        inner, outer, last = found.sum(0).split([C * _INPUTS, 2 * C, 2])
        inner, outer = inner.view(C, _INPUTS)[:h], outer.view(2, C)[:, :h]
        return *changes, inner[:, :-1], outer, inner[:, -1], last, None, None, None, None


def _tile(hidden: int, kind: tuple[int, int]) -> tuple[int, int, int]:
    """Return rows of hidden units, columns and warps; twice the rows have half the columns."""
    C = max(16, triton.next_power_of_2(hidden))
    return C, kind[0] // (C // 32 or 1), kind[1]


@triton.jit
def _see(
    w, g, m, v, taken, new_m, new_v, sums, n, blocks, each,
    EPSILON: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Move the averages of one decay, and add up its features over some tiles.

    The first decay has g besides, the second w. Sums are in float64: squares of small gradients are
    below float32, and a variance is a difference.
    """
    block, k, network = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    w += network * n
    g += network * n
    place = network * (5 * n) + k * n
    share = tl.load(taken + k)
    row = tl.arange(0, 8)[:, None]
    sizes = tl.zeros((8, R), dtype=tl.float32)
    ones = tl.zeros((8, R), dtype=tl.float64)
    squares = tl.zeros((8, R), dtype=tl.float64)
    for tile in range(block * each, (block + 1) * each):
        column = tile * R + tl.arange(0, R)
        inside = column < n
        g_here = tl.load(g + column, mask=inside, other=0.0)
        w_here = tl.load(w + column, mask=column < tl.where(k == 1, n, 0), other=0.0)
        m_here = tl.load(m + place + column, mask=inside, other=0.0)
        v_here = tl.load(v + place + column, mask=inside, other=0.0)
        m_here += share * (g_here - m_here)
        v_here += share * (g_here * g_here - v_here)
        tl.store(new_m + place + column, m_here, mask=inside)
        tl.store(new_v + place + column, v_here, mask=inside)
        root = tl.where(inside, tl.rsqrt(v_here + EPSILON), 0.0)
        x = tl.where(row == 0, tl.where(k == 0, g_here, w_here)[None, :], 0.0)
        x = tl.where(row == 1, m_here[None, :], x)
        x = tl.where(row == 2, v_here[None, :], x)
        x = tl.where(row == 3, (g_here * root)[None, :], x)
        x = tl.where(row == 4, root[None, :], x)
        wide = x.to(tl.float64)
        sizes = tl.maximum(sizes, tl.abs(x))
        ones += wide
        squares += wide * wide
    r = tl.arange(0, 8)
    used = (r < 5) & (tl.where(r == 0, k, 0) < 2)
    sums += network * (66 * blocks) + tl.where(r == 0, k, 5 * r - 3 + k) * blocks + block
    tl.store(sums, tl.max(sizes, axis=1).to(tl.float64), mask=used)
    tl.store(sums + 22 * blocks, tl.sum(ones, axis=1), mask=used)
    tl.store(sums + 44 * blocks, tl.sum(squares, axis=1), mask=used)


@triton.jit
def _find_units(sums, units, n, blocks, EPSILON: tl.constexpr, S: tl.constexpr):
    """Write μ and α of a row; both are 0 for the rows that are no features."""
    row, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    sums += network * (66 * blocks) + row * blocks
    sizes = tl.zeros((S,), dtype=tl.float64)
    ones = tl.zeros((S,), dtype=tl.float64)
    squares = tl.zeros((S,), dtype=tl.float64)
    for start in range(0, blocks, S):
        at = start + tl.arange(0, S)
        used = at < tl.where(row < 22, blocks, 0)
        sizes = tl.maximum(sizes, tl.load(sums + at, mask=used, other=0.0))
        ones += tl.load(sums + 22 * blocks + at, mask=used, other=0.0)
        squares += tl.load(sums + 44 * blocks + at, mask=used, other=0.0)
    size = tl.max(sizes, axis=0)
    mean = tl.sum(ones, axis=0) / n
    variance = tl.maximum(tl.sum(squares, axis=0) / n - mean * mean, 0.0)
    # A feature that is 0 for all weights stays 0, and takes no slope: it has no unit.
    spread = tl.sqrt(tl.where(size > 0, variance + EPSILON * (size * size), 1.0))
    scale = tl.where(size > 0, tl.minimum(1.0 / spread, 3.0e38), 0.0)
    tl.store(units + network * 64 + row, mean.to(tl.float32))
    tl.store(units + network * 64 + 32 + row, scale.to(tl.float32))


@triton.jit
def _constants(units, clock, network):
    """Return μ and α of the 32 rows, and what a row is whose α is 0."""
    row = tl.arange(0, 32)
    mean = tl.load(units + network * 64 + row)
    scale = tl.load(units + network * 64 + 32 + row)
    timed = tl.load(clock + (row - 22), mask=(row >= 22) & (row < 31), other=0.0)
    return mean[:, None], scale[:, None], tl.where(row == 31, 1.0, timed)[:, None]


@triton.jit
def _layer(first, bias, h, C: tl.constexpr):
    """Return the first layer (C, 32) with its biases last; rows that it does not have are 0."""
    unit, column = tl.arange(0, C)[:, None], tl.arange(0, 32)[None, :]
    matrix = tl.load(first + unit * 31 + column, mask=(unit < h) & (column < 31), other=0.0)
    return matrix + tl.load(bias + unit + column * 0, mask=(unit < h) & (column == 31), other=0.0)


@triton.jit
def _last(second, out_bias, h, C: tl.constexpr):
    """Return the rows of the last layer (C, 1) and its biases."""
    unit = tl.arange(0, C)
    along = tl.load(second + unit, mask=unit < h, other=0.0)[:, None]
    grown = tl.load(second + h + unit, mask=unit < h, other=0.0)[:, None]
    return along, grown, tl.load(out_bias), tl.load(out_bias + 1)


@triton.jit
def _inputs(w_here, g, m, v, units, clock, network, column, inside, n, EPSILON: tl.constexpr):
    """Return what the perceptron sees of weights (32, R)."""
    # Loaded for each tile anew: to hold them takes registers, which are scarce on the way back.
    mean, scale, rest = _constants(units, clock, network)
    row = tl.arange(0, 32)[:, None]
    g_here = tl.load(g + network * n + column, mask=inside, other=0.0)[None, :]
    place = network * (5 * n) + (row + 3) % 5 * n + column[None, :]
    of_m = (row >= 2) & (row < 7) & inside[None, :]
    of_v = (row >= 7) & (row < 22) & inside[None, :]
    m_here = tl.load(m + place, mask=of_m, other=0.0)
    v_here = tl.load(v + place, mask=of_v, other=0.0)
    root = tl.rsqrt(v_here + EPSILON)
    x = tl.where(row < 17, g_here * root, root)
    x = tl.where(row < 12, m_here + v_here, x)
    x = tl.where(row < 2, tl.where(row == 0, g_here, w_here[None, :]), x)
    return (x - mean) * scale + rest


@triton.jit
def _move(
    w, g, m, v, units, clock, first, bias, second, out_bias, new_w, n, size, exponent, h,
    EPSILON: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Move R weights of a network."""
    network = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * R + tl.arange(0, R)
    inside = column < n
    along, grown, b0, b1 = _last(second, out_bias, h, C)
    w_here = tl.load(w + network * n + column, mask=inside, other=0.0)
    y = _inputs(w_here, g, m, v, units, clock, network, column, inside, n, EPSILON)
    a = tl.dot(_layer(first, bias, h, C), y, input_precision=PRECISION)
    a = tl.where(a <= 0, 0.0, a)  # and what is not a number stays none
    direction = tl.sum(along * a, axis=0) + b0
    magnitude = tl.where(inside, tl.sum(grown * a, axis=0) + b1, 0.0)
    update = size * direction * tl.exp(exponent * magnitude)
    tl.store(new_w + network * n + column, w_here - update, mask=inside)


@triton.jit
def _back(
    w, g, m, v, units, clock, first, bias, second, out_bias, dw, dy, sums, n, tiles, each,
    size, exponent, h,
    EPSILON: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Write slopes of the features, and those of the rule added up over some tiles."""
    part, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    along, grown, b0, b1 = _last(second, out_bias, h, C)
    layer = _layer(first, bias, h, C)
    unit, row = tl.arange(0, C), tl.arange(0, 32)
    of_layer = tl.zeros((C, 32), dtype=tl.float32)
    of_along, of_grown = tl.zeros((C,), dtype=tl.float32), tl.zeros((C,), dtype=tl.float32)
    of_b0, of_b1 = tl.zeros((R,), dtype=tl.float32), tl.zeros((R,), dtype=tl.float32)
    for tile in range(part * each, tl.minimum((part + 1) * each, tiles)):
        column = tile * R + tl.arange(0, R)
        inside = column < n
        w_here = tl.load(w + network * n + column, mask=inside, other=0.0)
        y = _inputs(w_here, g, m, v, units, clock, network, column, inside, n, EPSILON)
        a = tl.dot(layer, y, input_precision=PRECISION)
        active = tl.where(a <= 0, 0.0, a)
        direction = tl.sum(along * active, axis=0) + b0
        # Columns over the end have any inputs at all; their slopes are 0.
        magnitude = tl.where(inside, tl.sum(grown * active, axis=0) + b1, 0.0)
        slope = tl.load(dw + network * n + column, mask=inside, other=0.0)
        d0 = -slope * size * tl.exp(exponent * magnitude)
        d1 = exponent * direction * d0
        da = tl.where(a <= 0, 0.0, along * d0[None, :] + grown * d1[None, :])
        of_layer += tl.dot(da, tl.trans(y), input_precision=PRECISION)
        of_along += tl.sum(active * d0[None, :], axis=1)
        of_grown += tl.sum(active * d1[None, :], axis=1)
        of_b0 += d0
        of_b1 += d1
        found = tl.dot(tl.trans(layer), da, input_precision=PRECISION)
        place = network * (22 * n) + row[:, None] * n + column[None, :]
        tl.store(dy + place, found, mask=(row < 22)[:, None] & inside[None, :])
    sums += (network * tl.num_programs(0) + part) * (C * 34 + 2)
    tl.store(sums + unit[:, None] * 32 + row[None, :], of_layer)
    tl.store(sums + C * 32 + unit, of_along)
    tl.store(sums + C * 33 + unit, of_grown)
    tl.store(sums + C * 34, tl.sum(of_b0, axis=0))
    tl.store(sums + C * 34 + 1, tl.sum(of_b1, axis=0))


@triton.jit
def _find_means(found, first, bias, means, n, h, C: tl.constexpr):
    """Write the means over weights of a feature's slope, and of the slope times the feature.

    A slope is Wᵀ times those of the hidden units; their sums, and those of their products with
    features, are the slopes of biases and of W.
    """
    network = tl.program_id(0)
    found += network * (C * 34 + 2)
    unit, row = tl.arange(0, C), tl.arange(0, 32)
    layer = _layer(first, bias, h, C)
    of_bias = tl.load(found + unit * 32 + 31)[:, None]
    of_layer = tl.load(found + unit[:, None] * 32 + row[None, :])
    tl.store(means + network * 64 + row, tl.sum(layer * of_bias, axis=0) / n)
    tl.store(means + network * 64 + 32 + row, tl.sum(layer * of_layer, axis=0) / n)


@triton.jit
def _slope(x, row, units, means, dy, column, inside, n):
    """Return the slope of the feature that x is before it is standardised."""
    scale = tl.load(units + 32 + row)
    y = (x - tl.load(units + row)) * scale
    slope = tl.load(dy + row * n + column, mask=inside, other=0.0)
    return scale * (slope - tl.load(means + row) - y * tl.load(means + 32 + row))


@triton.jit
def _through(
    w, g, m, v, units, means, taken, dy, dw, dm, dv, to_w, to_m, to_v, to_g, n,
    EPSILON: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Write slopes by w, m, v and g before the step, of R weights of a network."""
    network = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * R + tl.arange(0, R)
    inside = column < n
    units += network * 64
    means += network * 64
    dy += network * (22 * n)
    own, place = network * n + column, network * (5 * n) + column
    w_here = tl.load(w + own, mask=inside, other=0.0)
    g_here = tl.load(g + own, mask=inside, other=0.0)
    slope = tl.load(dw + own, mask=inside, other=0.0)
    slope += _slope(w_here, 1, units, means, dy, column, inside, n)
    tl.store(to_w + own, slope, mask=inside)
    of_g = _slope(g_here, 0, units, means, dy, column, inside, n)
    for k in tl.static_range(5):
        share = tl.load(taken + k)
        m_here = tl.load(m + place, mask=inside, other=0.0)
        v_here = tl.load(v + place, mask=inside, other=0.0)
        root = tl.rsqrt(v_here + EPSILON)
        of_m = tl.load(dm + place, mask=inside, other=0.0)
        of_m += _slope(m_here, 2 + k, units, means, dy, column, inside, n)
        of_v = tl.load(dv + place, mask=inside, other=0.0)
        of_v += _slope(v_here, 7 + k, units, means, dy, column, inside, n)
        of_ratio = _slope(g_here * root, 12 + k, units, means, dy, column, inside, n)
        of_root = _slope(root, 17 + k, units, means, dy, column, inside, n)
        of_v -= 0.5 * root * root * root * (of_ratio * g_here + of_root)
        of_g += of_ratio * root + share * (of_m + 2 * g_here * of_v)
        tl.store(to_m + place, of_m - share * of_m, mask=inside)
        tl.store(to_v + place, of_v - share * of_v, mask=inside)
        place += n
    tl.store(to_g + own, of_g, mask=inside)
