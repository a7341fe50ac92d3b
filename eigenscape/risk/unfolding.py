"""Layers that are one matrix applied to vectors: which vectors, and in which order the weight is.

A convolution multiplies every window of its input. A transposed one does the same with its kernel
reversed, on an input that is spread out by zeros. Letters: N samples, P positions, n numbers of an
input vector, m of an output vector.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def is_convolution(module: nn.Module) -> TypeGuard[_ConvNd]:
    """Tell whether a module is a convolution, plain or transposed."""
    return isinstance(module, _PLAIN + _TRANSPOSED)


def is_transposed_linear(module: nn.Module) -> bool:
    """Tell whether a module is the `Conv1D` of GPT-2: linear, with a weight (inputs, outputs)."""
    # Recognised by its attributes, so that its library need not be installed. Whatever
    # treats a layer as a matrix is compared with autograd first.
    weight, width = getattr(module, "weight", None), getattr(module, "nf", None)
    is_named = any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)
    return is_named and isinstance(weight, Tensor) and weight.shape[1:] == (width,)


def is_matrix(module: nn.Module) -> bool:
    """Tell whether a module applies one matrix, or one for each group, at every position."""
    return isinstance(module, nn.Linear) or is_convolution(module) or is_transposed_linear(module)


def has_inputs_first(module: nn.Module) -> bool:
    """Tell whether a weight's first dimension counts inputs, and its second outputs."""
    return isinstance(module, _TRANSPOSED) or is_transposed_linear(module)


def num_groups(module: nn.Module) -> int:
    """Return how many matrices a module has: more than one for convolutions with groups."""
    return module.groups if is_convolution(module) else 1


def windows(module: _ConvNd, x: Tensor, size: Sequence[int]) -> Tensor:
    """Return the windows of a convolution's input as rows (N, P, n), in the order of its weight.

    A view that is copied once: `F.unfold` starts a GPU kernel for every image (Wu App. A.4, (31)).

    Args:
        module: A convolution.
        x: Its input (N, channels, …).
        size: The size of its output (…), which transposed convolutions may be told.

    Returns:
        The windows, channels first, then the places in the kernel; of all groups together.
    """
    kernel, dilation = module.kernel_size, module.dilation
    steps: tuple[Any, ...] = tuple(slice(None, None, d) for d in dilation)
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if isinstance(module, _TRANSPOSED):
        x, stride = _spread(x, module.stride), (1,) * len(kernel)
        paddings: Any = module.padding
        before = [r - p for r, p in zip(reach, paddings, strict=True)]
        lengths = zip(size, reach, before, x.shape[2:], strict=True)
        after = [length + r - b - there for length, r, b, there in lengths]
        pairs = zip(reversed(before), reversed(after), strict=True)
        x = F.pad(x, [number for pair in pairs for number in pair])
    else:
        stride = module.stride
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    for axis, (r, s) in enumerate(zip(reach, stride, strict=True)):
        x = x.unfold(2 + axis, r + 1, s)
    x = x[(..., *steps)]
    rank = len(kernel)
    if isinstance(module, _TRANSPOSED):
        x = x.flip(*range(-rank, 0))
    x = x.permute(0, *range(2, 2 + rank), 1, *range(2 + rank, 2 + 2 * rank))
    return x.flatten(1 + rank).flatten(1, rank)


def _spread(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Put zeros between the entries of images, stride − 1 of them."""
    if set(stride) == {1}:
        return x
    lengths = [(there - 1) * s + 1 for there, s in zip(x.shape[2:], stride, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *lengths)
    steps: tuple[Any, ...] = tuple(slice(None, None, s) for s in stride)
    wide[(..., *steps)] = x
    return wide
