"""Is the model's output a piecewise linear function of a layer's output?

If it is, second derivatives of the tail vanish wherever they exist, and the layer's Hessian is its
Gauss-Newton matrix exactly. The answer is read off the autograd graph between the two, in which
nothing but the layer's output is differentiated: whatever is not known to be linear, or linear on
pieces, counts as curved.
"""

import re
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Linear in all their differentiated inputs together.
_LINEAR = _names("""
    Add Sub Neg Cat Stack Clone Alias Copy ToCopy View UnsafeView ReshapeAlias Permute Transpose T
    Expand Repeat Squeeze Unsqueeze Select Slice Narrow Split SplitWithSizes Unbind Index
    IndexSelect Gather Flip Roll AsStrided Unfold Im2Col Mean Sum MaskedFill ConstantPadNd
    ReflectionPad1D ReflectionPad2D ReflectionPad3D ReplicationPad1D ReplicationPad2D
    ReplicationPad3D AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D
    MkldnnAdaptiveAvgPool2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleLinear1D
    UpsampleBilinear2D UpsampleTrilinear3D UpsampleBicubic2D PixelShuffle PixelUnshuffle Cumsum
    Tril Triu Diagonal Where
""")
# Linear if one input alone is differentiated.
_LINEAR_IN_ONE = _names("""
    Mul Mm Addmm Mv Addmv Bmm Baddbmm Convolution MkldnnConvolution CudnnConvolution ThnnConv2D
""")
# Linear in the first input, the others held fixed.
_LINEAR_IN_FIRST = _names("Div PreluKernel")
# Batch normalisation, linear while it uses stored statistics.
_NORMS = _names("NativeBatchNorm CudnnBatchNorm MiopenBatchNorm")
# Linear on pieces.
_PIECEWISE = _names("""
    Relu LeakyRelu Threshold Hardtanh Hardshrink Softshrink RreluWithNoise Clamp ClampMin ClampMax
    Abs Max Min Amax Amin Maximum Minimum Sort Topk Kthvalue Median MaxPool2DWithIndices
    MaxPool3DWithIndices AdaptiveMaxPool2D AdaptiveMaxPool3D
""")


def curved_operation(output: Tensor, source: Tensor) -> str | None:
    """Return the name of an operation between a tensor and its source that is not piecewise linear.

    Args:
        output: The model's output.
        source: The layer's output, a leaf.

    Returns:
        The operation's name as autograd calls it, or None if there is none.
    """
    visited: set[Any] = set()
    waiting: list[Any] = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited or getattr(node, "variable", None) is source:
            continue
        visited.add(node)
        if (name := _curved(node)) is not None:
            return name
        waiting += [following for following, _ in node.next_functions]
    return None


def _curved(node: Any) -> str | None:
    name = re.sub(r"^.*::|Backwards?\d*$", "", str(node.name()))
    if isinstance(node, BackwardCFunction):  # a user's own function may have any name
        return name
    live = [number for number, (following, _) in enumerate(node.next_functions) if following]
    if name in _LINEAR or name in _PIECEWISE:
        return None
    if name in _LINEAR_IN_ONE and len(live) == 1:
        return None
    if name in _LINEAR_IN_FIRST and live == [0]:
        return None
    if name in _NORMS and live == [0] and not getattr(node, "_saved_training", True):
        return None
    return name
