"""What follows the slopes of a posterior's step in kernels of our own, by Triton; for a GPU.

Letters as in `_steps.py`. One operation at a time this is some 45 kernels, 30 of them over single
numbers, each of which waits for the one before. Here there are two. The first adds up blocks of θ;
in the second every program joins these sums, in the same order and so with the same bits, finds the
numbers that follow from them, and moves its own block. ϱ is read in the first, which leaves a copy:
in the second one program overwrites it while others may not have begun.

θ (2, P) is one row of 2P numbers, for then loads are aligned for any P; so are its slopes. As in
PyTorch's operations, numbers of one parameter are float32, sums and what follows from them float64.
Nothing is added up in an order that depends on the run.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# Numbers of θ in a tile, and warps, of each kernel.
_ADD, _MOVE = (4096, 8), (1024, 4)
# Sums that are joined, at most: a power of two, which the tiles of 1 million parameters stay below.
_PARTS = 512


class Update:
    """RMSprop for w, ς and ϱ with a diagonal covariance, in place and in buffers that stay.

    It holds the tensors given, and reads the learning rate on the device when it runs.
    """

    def __init__(
        self,
        theta: Tensor,
        rho: Tensor,
        squares: list[Tensor],
        origin: Tensor,
        rate: Tensor,
        *,
        budget_start: float,
        place_start: float,
        precision: float,
        num_examples: int,
        most_rho: float,
        decay: float,
        epsilon: float,
    ) -> None:
        """Lay out the buffers.

        Args:
            theta: w and ς (2, P), contiguous, float32.
            rho: ϱ, float64.
            squares: Mean squares of the slopes of both.
            origin: The prior's mean w₀ (P,), float32.
            rate: Learning rate, float64.
            budget_start: What the budget has besides P ϱ, the size over 2λ, Σς and 2 log j.
            place_start: j at ϱ = 0.
            precision: b of the recipe.
            num_examples: n.
            most_rho: Ceiling of ϱ.
            decay: What mean squares keep.
            epsilon: What is added to their roots.
        """
        self._theta, self._rho, self._squares = theta, rho, squares
        self._origin, self._rate = origin, rate
        self._decay, self._epsilon = decay, epsilon
        # A tensor: a number handed to a kernel is float32. `_found` and `_move` know the order.
        numbers = (
            *(budget_start, len(origin), place_start, -2.0 * precision),
            *(8.0 * (num_examples - 1), -4.0 * precision, decay, 1.0 - decay, epsilon, most_rho),
        )
        self._numbers = torch.tensor(numbers, dtype=torch.float64, device=rho.device)
        # Sizes and Σς of the blocks, and ϱ.
        self._sums = rho.new_zeros(2 * _PARTS + 1)

    def __call__(self, slopes: Tensor) -> None:
        """Move w, ς and ϱ, and their mean squares.

        Args:
            slopes: Those of the loss by w and ς (2, P), float32.
        """
        with torch.cuda.device_of(self._theta):  # kernels start on the current device
            self._run(slopes.contiguous())

    def _run(self, slopes: Tensor) -> None:
        P = len(self._origin)
        V = math.gcd(P, 4)  # a known divisor of P: so many numbers are loaded at once
        R, warps = _ADD
        tiles = triton.cdiv(2 * P, R)
        each = triton.cdiv(tiles, _PARTS)
        parts = triton.cdiv(tiles, each)
        _add_up[(parts,)](
            *(self._theta, self._origin, self._rho, self._sums, P // V, tiles, each),
            V=V, R=R, PARTS=_PARTS, num_warps=warps,
        )  # fmt: skip
        R, warps = _MOVE
        _move[(triton.cdiv(2 * P, R),)](
            *(self._theta, self._squares[0], slopes, self._origin),
            *(self._rho, self._squares[1], self._rate, self._sums, self._numbers, P // V, parts),
            DECAY=self._decay, EPSILON=self._epsilon, V=V, R=R, PARTS=_PARTS, num_warps=warps,
        )  # fmt: skip


@triton.jit
def _variances(log_std):
    """Return e^{2ς}; a GPU's own exponential has few digits away from 0, so 2^k is taken out."""
    k = tl.floor(log_std * 1.4426950408889634 + 0.5)
    # log 2 in two parts, the first with so few digits that its product with k is exact.
    left = (log_std - k * 0.693359375) + k * 2.12194440054690583e-4
    std = tl.exp2(k) * tl.exp(left)
    return std * std


@triton.jit
def _add_up(
    theta, origin, rho, sums, groups, tiles, each,
    V: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Add up (w − w₀)² and e^{2ς} to a size, and ς, over some tiles; and copy ϱ."""
    block = tl.program_id(0)
    size = tl.zeros((1,), dtype=tl.float64)
    logs = tl.zeros((1,), dtype=tl.float64)
    for tile in range(block * each, tl.minimum((block + 1) * each, tiles)):
        column = tile * R + tl.arange(0, R)
        inside, is_mean = column < groups * (2 * V), column < groups * V
        value = tl.load(theta + column, mask=inside, other=0.0)
        away = value - tl.load(origin + column, mask=is_mean, other=0.0)
        one = tl.where(is_mean, away * away, _variances(value))
        size += tl.sum(tl.where(inside, one, 0.0).to(tl.float64), axis=0)
        logs += tl.sum(tl.where(is_mean, 0.0, value).to(tl.float64), axis=0)
    at = block + tl.arange(0, 1)
    tl.store(sums + at, size)
    tl.store(sums + PARTS + at, logs)
    if block == 0:
        tl.store(sums + 2 * PARTS, tl.load(rho))


@triton.jit
def _found(sums, numbers, parts, PARTS: tl.constexpr):
    """Return ϱ, its slope, the weight of the divergence and that over λ, as `Steps.slopes`."""
    at = tl.arange(0, PARTS)
    sizes = tl.load(sums + at, mask=at < parts, other=0.0)
    logs = tl.load(sums + PARTS + at, mask=at < parts, other=0.0)
    rho, P = tl.load(sums + 2 * PARTS), tl.load(numbers + 1)
    # Before the sums, which wait for what is loaded; these do not.
    scale = tl.exp(-2.0 * rho)
    j = tl.load(numbers + 2) + tl.load(numbers + 3) * rho
    place = 2.0 * tl.log(j)
    scaled = tl.sum(sizes, axis=0) * scale
    budget = tl.load(numbers) + P * rho + 0.5 * scaled - tl.sum(logs, axis=0) + place
    weight = 1.0 / tl.sqrt(tl.load(numbers + 4) * budget)
    slope = (P - scaled + tl.load(numbers + 5) / j) * weight
    return rho, slope, weight, weight * scale


@triton.jit
def _move(
    theta, squares, slopes, origin, rho, rho_square, rate, sums, numbers, groups, parts,
    DECAY: tl.constexpr, EPSILON: tl.constexpr,
    V: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Move R numbers of θ; the first program moves ϱ besides."""
    column = tl.program_id(0) * R + tl.arange(0, R)
    inside, is_mean = column < groups * (2 * V), column < groups * V
    # Loaded first: they are on their way while the sums are joined.
    value = tl.load(theta + column, mask=inside, other=0.0)
    square = tl.load(squares + column, mask=inside, other=0.0)
    slope = tl.load(slopes + column, mask=inside, other=0.0)
    away = value - tl.load(origin + column, mask=is_mean, other=0.0)
    tau = tl.load(rate)
    rho_here, rho_slope, weight, near = _found(sums, numbers, parts, PARTS)
    slope += near.to(tl.float32) * tl.where(is_mean, away, _variances(value))
    slope -= tl.where(is_mean, 0.0, weight.to(tl.float32))
    square = DECAY * square + (1.0 - DECAY) * (slope * slope)
    value -= tau.to(tl.float32) * slope / (tl.sqrt(square) + EPSILON)
    tl.store(squares + column, square, mask=inside)
    tl.store(theta + column, value, mask=inside)
    if tl.program_id(0) == 0:
        new = tl.load(numbers + 6) * tl.load(rho_square)
        new += tl.load(numbers + 7) * (rho_slope * rho_slope)
        rho_here -= tau * rho_slope / (tl.sqrt(new) + tl.load(numbers + 8))
        most = tl.load(numbers + 9)
        tl.store(rho_square, new)
        # What is not a number stays none: no comparison with it holds.
        tl.store(rho, tl.where(rho_here > most, most, rho_here))
