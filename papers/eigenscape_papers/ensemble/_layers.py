"""Linear and convolution layers of many networks at once, as batched matrix products.

Left to itself, `vmap` adds kernels around each product and hands weight gradients back transposed;
and it turns convolutions into grouped ones, for which GPUs have no good kernel. While the mode
below is active, both layers of whatever model runs under `vmap` go through the functions here.

Shapes: S networks, B samples, I and O inputs and outputs (channels), k kernel positions,
M = B·(output positions). Windows are laid out (S, M, I·k), so outputs leave channels-last.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

# A weight gradient sums over all M rows. One block of a GPU per network would do it alone, so the
# rows are cut into up to this many parts that are summed afterwards.
_MOST_PARTS = 32


class StackedLayers(TorchFunctionMode):
    """Sends `F.linear`, and `F.conv2d` if asked, through the functions of this file."""

    def __init__(self, *, convolution: str) -> None:
        """Say how convolutions are done: "fused", "unfold", or "grouped", PyTorch's own way."""
        super().__init__()
        self._convolution = convolution

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace the two calls, and leave all others (but for a layout)."""
        kwargs = kwargs or {}
        if func is F.linear:
            return _linear(*args, **kwargs)
        if func is F.conv2d and self._convolution != "grouped":
            return _conv2d(self._convolution, *args, **kwargs)
        if func is F.batch_norm:
            # Unfolded convolutions leave channels last, which CUDA's kernel asks about in a way
            # that vmap does not answer (PyTorch 2.11).
            args = (args[0].contiguous(), *args[1:])
        return func(*args, **kwargs)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return _apply(_Linear, input, weight, bias)


def _conv2d(
    how: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Any:
    if groups != 1 or isinstance(padding, str) or _pair(dilation) != (1, 1) or input.ndim != 4:
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    pairs = (_pair(stride), _pair(padding))
    return _apply(_Convolution, how, input, weight, bias, *pairs)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _apply(function: Any, *arguments: Any) -> Any:
    """Call an autograd function; PyTorch gives `apply` no types."""
    return function.apply(*arguments)


def _stack(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Bring the networks' dimension to the front; what all networks share is not copied."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


# The two classes below exist for their `vmap` rule. Outside of it both arguments are constants of
# the model, so that a derivative is never asked for.


class _Linear(Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.linear(x, w, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, b: Tensor | None
    ) -> tuple[Any, int]:
        size = info.batch_size
        x, w = _stack(x, in_dims[0], size), _stack(w, in_dims[1], size)
        b = None if b is None else _stack(b, in_dims[2], size)
        rows = x.reshape(size, -1, x.shape[-1])
        output = _apply(_StackedLinear, rows, w, b)
        return output.view(*x.shape[:-1], w.shape[1]), 0


class _Convolution(Function):
    @staticmethod
    def forward(
        how: str,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        return F.conv2d(x, w, b, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        how: str,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> tuple[Any, int]:
        size = info.batch_size
        x, w = _stack(x, in_dims[1], size), _stack(w, in_dims[2], size)
        b = None if b is None else _stack(b, in_dims[3], size)
        kind = _FusedConvolution if how == "fused" else _StackedConvolution
        return _apply(kind, x, w, b, stride, padding), 0


class _StackedLinear(Function):
    """Z = X Wᵀ + 1bᵀ for rows X (S, B, I), weights W (S, O, I), biases b (S, O)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.has_bias = b is not None
        return _affine(x, w, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        (r,) = grads
        needs = ctx.needs_input_grad
        return (
            torch.bmm(r, w) if needs[0] else None,
            torch.bmm(r.transpose(1, 2), x) if needs[1] else None,
            r.sum(1) if ctx.has_bias and needs[2] else None,
        )


class _StackedConvolution(Function):
    """The same with windows for rows: x (S, B, I, H, W), weights (S, O, I, k₁, k₂)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        windows = _windows(_padded(x, padding), w.shape[-2:], stride)
        S, B, _, rows, columns = windows.shape[:5]
        # (S, B, rows, columns, I, k₁, k₂): the order in which weights are stored.
        matrix = windows.permute(0, 1, 3, 4, 2, 5, 6).reshape(S, B * rows * columns, -1)
        ctx.save_for_backward(matrix, w)
        ctx.has_bias, ctx.stride, ctx.padding = b is not None, stride, padding
        ctx.shape = x.shape
        output = _affine(matrix, w.reshape(S, w.shape[1], -1), b)
        return output.view(S, B, rows, columns, -1).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        matrix, w = ctx.saved_tensors
        S, B, channels, rows, columns = grads[0].shape
        r = grads[0].permute(0, 1, 3, 4, 2).reshape(S, -1, channels)
        needs = ctx.needs_input_grad
        dx = dw = db = None
        if needs[0]:
            slopes = torch.bmm(r, w.reshape(S, channels, -1))
            slopes = slopes.view(S, B, rows, columns, *w.shape[2:]).permute(0, 1, 4, 2, 3, 5, 6)
            dx = _unpadded_sum(slopes, ctx.shape, w.shape[-2:], ctx.stride, ctx.padding)
        if needs[1]:
            num_chunks = _num_parts(B) if r.is_cuda else 1
            left = r.reshape(S * num_chunks, -1, channels).transpose(1, 2)
            product = torch.bmm(left, matrix.view(S * num_chunks, -1, matrix.shape[-1]))
            dw = product.view(S, num_chunks, *w.shape[1:]).sum(1)
        if ctx.has_bias and needs[2]:
            db = r.sum(1)
        return dx, dw, db, None, None


class _FusedConvolution(Function):
    """The same in kernels of our own, for a GPU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        from eigenscape_papers.ensemble import _fused

        ctx.save_for_backward(x, w)
        ctx.has_bias, ctx.stride, ctx.padding = b is not None, stride, padding
        return _fused.convolution(x, w, b, stride, padding)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        from eigenscape_papers.ensemble import _fused

        x, w = ctx.saved_tensors
        (r,) = grads
        needs = ctx.needs_input_grad
        dx = dw = db = None
        if needs[0]:
            dx = _fused.gradient_of_images(w, r, x.shape, ctx.stride, ctx.padding)
        if needs[1] or (ctx.has_bias and needs[2]):
            dw, db = _fused.gradient_of_weights(x, r, w.shape, ctx.stride, ctx.padding)
        return dx, dw, db if ctx.has_bias else None, None, None


def _affine(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    if b is None:
        return torch.bmm(x, w.transpose(1, 2))
    return torch.baddbmm(b.unsqueeze(1), x, w.transpose(1, 2))


def _padded(x: Tensor, padding: tuple[int, int]) -> Tensor:
    if padding == (0, 0):
        return x
    return F.pad(x, (padding[1], padding[1], padding[0], padding[0]))


def _windows(x: Tensor, kernel: torch.Size, stride: tuple[int, int]) -> Tensor:
    """Return the view (S, B, I, rows, columns, k₁, k₂) of all windows."""
    return x.unfold(3, kernel[0], stride[0]).unfold(4, kernel[1], stride[1])


def _unpadded_sum(
    slopes: Tensor,
    shape: torch.Size,
    kernel: torch.Size,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """Undo `_windows` and `_padded`: sum what windows share, and cut the border off."""
    *lead, height, width = shape
    rows = slopes.shape[3]
    high, wide = height + 2 * padding[0], width + 2 * padding[1]
    back = torch.ops.aten.unfold_backward
    partly = back(slopes, [*lead, rows, wide, kernel[0]], 4, kernel[1], stride[1])
    padded: Tensor = back(partly, [*lead, high, wide], 3, kernel[0], stride[0])
    return padded[..., padding[0] : padding[0] + height, padding[1] : padding[1] + width]


def _num_parts(count: int) -> int:
    """Return the largest divisor of `count` that is at most `_MOST_PARTS`."""
    return next(divisor for divisor in range(_MOST_PARTS, 0, -1) if count % divisor == 0)
