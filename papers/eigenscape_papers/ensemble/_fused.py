"""Convolutions of many narrow networks at once in kernels of our own, by Triton.

Libraries have no good kernel where each of S networks has a handful of channels: the tiles of
matrix units are wider than that, and to unfold the windows first moves k₁·k₂ times the bytes. Here
a thread keeps a few positions with all their channels in registers, reads the entries of its
windows straight from the images, and multiplies in full precision, never in TF32.

Shapes: S networks, B samples, I and O channels, kernels (k₁, k₂), P output positions, M = B·P.
A convolution is Y (O, M) = W (O, K) X (K, M) with K = I·k₁·k₂ and the windows X never written.
All sums have a fixed order, so that results are the same bits in each run.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# The fastest of those tried on an H200 with six LeNet5 and batches of 128.
_WARPS = 2
_CHANNELS = 16  # of one block, at most
_SUMS = 64  # that a thread keeps in registers; with many masks beside them, half of that
_BLOCKS = 1056  # of a weight gradient, whose positions are cut into parts that fill a large GPU


def convolution(
    x: Tensor, w: Tensor, b: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Convolve the images of each network with its kernels.

    Args:
        x: Images (S, B, I, H, W).
        w: Kernels (S, O, I, k₁, k₂).
        b: Biases (S, O), or None.
        stride: Rows and columns from window to window.
        padding: Rows and columns of zeros around an image.

    Returns:
        Outputs (S, B, O, rows, columns).
    """
    x, w = x.contiguous(), w.contiguous()
    S, B, _, H, W = x.shape
    OUT, k1, k2 = w.shape[1], *w.shape[3:]
    rows = (H + 2 * padding[0] - k1) // stride[0] + 1
    columns = (W + 2 * padding[1] - k2) // stride[1] + 1
    y = x.new_empty(S, B, OUT, rows, columns)
    C, R = _tile(OUT)
    M = B * rows * columns
    _forward[triton.cdiv(M, R), S, triton.cdiv(OUT, C)](
        *(x, w, w if b is None else b.contiguous(), y, M),
        **_sizes(x.shape, y.shape, w.shape, stride, padding),
        HAS_BIAS=b is not None,
        C=C,
        R=R,
        num_warps=_WARPS,
    )
    return y


def gradient_of_weights(
    x: Tensor, r: Tensor, shape: torch.Size, stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of kernels and biases.

    Args:
        x: Images (S, B, I, H, W).
        r: Gradient of the outputs (S, B, O, rows, columns).
        shape: Shape of the kernels.
        stride: As before.
        padding: As before.

    Returns:
        Gradients (S, O, I, k₁, k₂) and (S, O).
    """
    x, r = x.contiguous(), r.contiguous()
    S, B, OUT, rows, columns = r.shape
    K, M = shape[2] * shape[3] * shape[4], B * rows * columns
    # The warps of a block have the same 32 positions and other entries, so that slopes come from
    # memory once for all of them.
    C, R = _tile(OUT)[0], 32
    D = _WARPS * _SUMS // C
    blocks, tiles = triton.cdiv(K, D) * triton.cdiv(OUT, C) * S, triton.cdiv(M, R)
    parts = max(1, min(tiles, _BLOCKS // blocks))
    dw, db = x.new_empty(parts, *shape), x.new_empty(parts, S, OUT)
    _weights[triton.cdiv(K, D), parts, S * triton.cdiv(OUT, C)](
        *(x, r, dw, db, M, triton.cdiv(tiles, parts), S),
        **_sizes(x.shape, r.shape, shape, stride, padding),
        C=C,
        D=D,
        R=R,
        num_warps=_WARPS,
    )
    return dw.sum(0), db.sum(0)


def gradient_of_images(
    w: Tensor, r: Tensor, shape: torch.Size, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Return the gradient of the images.

    Args:
        w: Kernels (S, O, I, k₁, k₂).
        r: Gradient of the outputs (S, B, O, rows, columns).
        shape: Shape of the images.
        stride: As before.
        padding: As before.

    Returns:
        Gradient (S, B, I, H, W).
    """
    w, r = w.contiguous(), r.contiguous()
    S, B, IN, H, W = shape
    dx = r.new_empty(shape)
    C, R = _tile(IN, _SUMS // 2)
    M = B * H * W
    _images[triton.cdiv(M, R), S, triton.cdiv(IN, C)](
        *(w, r, dx, M),
        **_sizes(shape, r.shape, w.shape, stride, padding),
        C=C,
        R=R,
        num_warps=_WARPS,
    )
    return dx


def _tile(channels: int, sums: int = _SUMS) -> tuple[int, int]:
    """Return the channels and the positions of a block in which each thread has so many sums."""
    C = min(_CHANNELS, triton.next_power_of_2(channels))
    return C, 32 * _WARPS * (sums // C)


def _sizes(
    x: torch.Size, y: torch.Size, w: torch.Size, stride: tuple[int, int], padding: tuple[int, int]
) -> dict[str, Any]:
    """Return the sizes that are constants of a kernel."""
    return {
        **dict(zip(("IN", "H", "W"), x[2:], strict=True)),
        **dict(zip(("OUT", "ROWS", "COLUMNS"), y[2:], strict=True)),
        **dict(zip(("K1", "K2"), w[3:], strict=True)),
        **dict(zip(("S1", "S2"), stride, strict=True)),
        **dict(zip(("P1", "P2"), padding, strict=True)),
    }


@triton.jit
def _forward(
    x, w, b, y, M,
    IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    K1: tl.constexpr, K2: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr,
    P1: tl.constexpr, P2: tl.constexpr,
    HAS_BIAS: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    P: tl.constexpr = ROWS * COLUMNS
    K: tl.constexpr = IN * K1 * K2
    network = tl.program_id(1)
    # What is over the end computes the last position and channel once more: masks cost more.
    m = tl.minimum(tl.program_id(0) * R + tl.arange(0, R), M - 1)
    c = tl.minimum(tl.program_id(2) * C + tl.arange(0, C), OUT - 1)
    sample, position = m // P, m % P
    top, left = position // COLUMNS * S1 - P1, position % COLUMNS * S2 - P2
    x += network.to(tl.int64) * (M // P * (IN * H * W))
    y += network.to(tl.int64) * (M * OUT)
    start = sample * (IN * H * W) + top * W + left
    kernel = w + network * (OUT * K) + c * K
    sums = tl.zeros((C, R), dtype=y.dtype.element_ty)
    for _ in range(IN):
        for u in tl.static_range(K1):
            for v in tl.static_range(K2):
                if P1 > 0 or P2 > 0:
                    inside = (top + u >= 0) & (top + u < H) & (left + v >= 0) & (left + v < W)
                    entry = tl.load(x + start + (u * W + v), mask=inside, other=0.0)
                else:
                    entry = tl.load(x + start + (u * W + v))
                weight = tl.load(kernel + (u * K2 + v))
                sums += weight[:, None] * entry[None, :]
        start += H * W
        kernel += K1 * K2
    if HAS_BIAS:
        sums += tl.load(b + network * OUT + c)[:, None]
    tl.store(y + (sample * (OUT * P) + position)[None, :] + c[:, None] * P, sums)


@triton.jit
def _weights(
    x, r, dw, db, M, tiles, S,
    IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    K1: tl.constexpr, K2: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr,
    P1: tl.constexpr, P2: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    P: tl.constexpr = ROWS * COLUMNS
    K: tl.constexpr = IN * K1 * K2
    part, network = tl.program_id(1), tl.program_id(2) % S
    k = tl.minimum(tl.program_id(0) * D + tl.arange(0, D), K - 1)
    c = tl.minimum(tl.program_id(2) // S * C + tl.arange(0, C), OUT - 1)
    channel, down, right = k // (K1 * K2), k // K2 % K1, k % K2
    x += network.to(tl.int64) * (M // P * (IN * H * W))
    r += network.to(tl.int64) * (M * OUT)
    offset = channel * (H * W) + down * W + right
    sums = tl.zeros((C, D, R), dtype=dw.dtype.element_ty)
    slopes = tl.zeros((C, R), dtype=dw.dtype.element_ty)
    for tile in range(part * tiles, (part + 1) * tiles):
        here = tile * R + tl.arange(0, R)
        m = tl.minimum(here, M - 1)
        sample, position = m // P, m % P
        top, left = position // COLUMNS * S1 - P1, position % COLUMNS * S2 - P2
        start = sample * (IN * H * W) + top * W + left
        if P1 > 0 or P2 > 0:
            row, column = top[None, :] + down[:, None], left[None, :] + right[:, None]
            inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
            entry = tl.load(x + start[None, :] + offset[:, None], mask=inside, other=0.0)
        else:
            entry = tl.load(x + start[None, :] + offset[:, None])
        place = (sample * (OUT * P) + position)[None, :] + c[:, None] * P
        slope = tl.load(r + place, mask=(here < M)[None, :], other=0.0)
        sums += slope[:, None, :] * entry[None, :, :]
        slopes += slope
    row = (part * S + network) * OUT + c
    tl.store(dw + row[:, None] * K + k[None, :], tl.sum(sums, axis=2))
    if tl.program_id(0) == 0:
        tl.store(db + row, tl.sum(slopes, axis=1))


@triton.jit
def _images(
    w, r, dx, M,
    IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    K1: tl.constexpr, K2: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr,
    P1: tl.constexpr, P2: tl.constexpr,
    C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    P: tl.constexpr = ROWS * COLUMNS
    network = tl.program_id(1)
    m = tl.minimum(tl.program_id(0) * R + tl.arange(0, R), M - 1)
    c = tl.minimum(tl.program_id(2) * C + tl.arange(0, C), IN - 1)
    sample, pixel = m // (H * W), m % (H * W)
    y, z = pixel // W + P1, pixel % W + P2
    r += network.to(tl.int64) * (M // (H * W) * (OUT * P))
    dx += network.to(tl.int64) * (M * IN)
    start = sample * (OUT * P)
    kernel = w + network * (OUT * IN * K1 * K2) + c * (K1 * K2)
    sums = tl.zeros((C, R), dtype=dx.dtype.element_ty)
    for _ in range(OUT):
        for u in tl.static_range(K1):
            for v in tl.static_range(K2):
                # The pixel is entry (u, v) of the window at (row, column), if there is such.
                row, column = (y - u) // S1, (z - v) // S2
                inside = (y >= u) & (z >= v) & (row < ROWS) & (column < COLUMNS)
                if S1 > 1:
                    inside = inside & ((y - u) % S1 == 0)
                if S2 > 1:
                    inside = inside & ((z - v) % S2 == 0)
                slope = tl.load(r + start + row * COLUMNS + column, mask=inside, other=0.0)
                weight = tl.load(kernel + (u * K2 + v))
                sums += weight[:, None] * slope[None, :]
        start += P
        kernel += IN * K1 * K2
    tl.store(dx + (sample * (IN * H * W) + pixel)[None, :] + c[:, None] * (H * W), sums)
