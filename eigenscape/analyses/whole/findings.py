"""What an analysis found, in sentences."""

import math
from typing import TYPE_CHECKING

import torch

from eigenscape.analyses.layers.layer_curvature import LayerCurvature
from eigenscape.analyses.whole._subsample import OtherSamples, Subsample
from eigenscape.analyses.whole.gradient_overlap import GradientOverlap
from eigenscape.analyses.whole.matrix_spectrum import MatrixSpectrum
from eigenscape.analyses.whole.outliers import Outliers
from eigenscape.analyses.whole.point import Point
from eigenscape.linalg import BlockNorms

if TYPE_CHECKING:
    from eigenscape.analyses.whole.analyze import Analysis

# Values below this many rounding errors of the largest eigenvalue are not mentioned.
_ROUNDINGS = 100
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3) -> str:
    """Write a number as on paper.

    Args:
        value: The number.
        digits: Significant digits.

    Returns:
        The text, with a true minus sign and a power of ten where one is needed.

    Examples:
        >>> number(-0.0627), number(6.6e-7, 2), number(12.0)
        ('−0.0627', '6.6 × 10⁻⁷', '12')
    """
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    text = mantissa.replace("-", "−")
    return f"{text} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if exponent else text


def describe(analysis: "Analysis") -> tuple[str, ...]:
    """Return the sentences about all parts that are there."""
    here, hessian, residual = analysis.point, analysis.hessian, analysis.residual
    sentences = []
    if analysis.subsample is not None:
        sentences.append(describe_subsample(analysis.subsample, analysis.other_samples))
    if here is not None:
        sentences.append(describe_point(here))
    if hessian is not None:
        sentences.append(describe_ends(hessian))
    if analysis.outliers is not None:
        sentences.append(describe_outliers(analysis.outliers))
    if hessian is not None and residual is not None:
        sentences.append(describe_parts(hessian, residual))
    if analysis.gradient_overlap is not None:
        classes = None if here is None else here.num_classes
        sentences.append(describe_gradient(analysis.gradient_overlap, classes))
    if analysis.layers is not None and analysis.layers.layers:
        sentences.append(describe_layers(analysis.layers))
    if analysis.blocks is not None:
        sentences.append(describe_blocks(analysis.blocks))
    return tuple(sentences)


def describe_subsample(chosen: Subsample, other: OtherSamples | None) -> str:
    """Say which samples were looked at, and what others gave."""
    text = f"A first look at {chosen}. On all data the numbers differ"
    if other is None:
        return f"{text}; by how much is not known."
    return (
        f"{text}: {other.subsample.num_samples} other samples gave the loss {number(other.loss)}, "
        f"the largest eigenvalue {number(other.largest)} ± {number(other.residual, 1)} and the "
        f"trace {number(other.trace)} ± {number(other.trace_stderr, 1)}. The largest eigenvalue of "
        "few samples is on average no smaller than that of all."
    )


def describe_point(point: Point) -> str:
    """Say what the loss and the gradient are."""
    accuracy = "" if point.accuracy is None else f" (accuracy {100 * point.accuracy:.1f} %)"
    return (
        f"The loss is {number(point.loss, 4)}{accuracy}; the gradient has norm "
        f"{number(point.gradient_norm)} "
        f"in {point.num_parameters:,} parameters."
    )


def describe_ends(hessian: MatrixSpectrum) -> str:
    """Say how sharp the sharpest direction is, and whether the curvature is negative somewhere."""
    top, error = float(hessian.largest.values[0]), float(hessian.largest.residuals[0])
    if is_zero(hessian):
        return "All eigenvalues of the Hessian are zero."
    text = f"The largest eigenvalue of the Hessian is {number(top, 4)} ± {number(error, 1)}"
    if top - error > 0:
        steps = f"steps above {number(2 / top)} (2/λ₁)"
        text += f"; along its eigenvector, plain gradient descent overshoots with {steps}"
    if not len(hessian.smallest):
        return text + "."
    low, slack = float(hessian.smallest.values[-1]), float(hessian.smallest.residuals[-1])
    text += f". The smallest is {number(low)} ± {number(slack, 1)}"
    rounding = _ROUNDINGS * torch.finfo(hessian.largest.vectors.dtype).eps * max(abs(top), abs(low))
    if low + slack < -rounding and top - error > 0:
        text += f": a saddle, which curves downwards by up to {number(abs(low) / top, 2)} of λ₁"
    elif low + slack < -rounding:
        text += ": no direction curves upwards beyond the residual"
    elif not hessian.smallest.status or low - slack < -rounding:
        pass  # too uncertain to say which way
    elif low - slack > rounding:
        text += ": every direction curves upwards"
    else:
        text += ": no direction curves downwards beyond rounding"
    return text + "."


def is_zero(spectrum: MatrixSpectrum) -> bool:
    """Say whether no eigenvalue was seen that is not zero."""
    eigenvalues = (spectrum.largest.values, spectrum.smallest.values, spectrum.density.nodes)
    return not any(bool(values.any()) for values in eigenvalues)


def describe_outliers(outliers: Outliers) -> str:
    """Say how many eigenvalues stand apart, and compare with the classes."""
    count, classes = outliers.num_outliers, outliers.num_classes
    shown = outliers.values.numel()
    if count == 0:
        text = f"No gap stands out among the {shown} largest eigenvalues"
        if classes is None:
            return f"{text}."
        if classes > shown:
            return f"{text}, fewer than the {classes} classes."
        after = float(outliers.gaps[classes - 2]) if classes >= 2 else math.nan
        if not math.isfinite(after):
            return f"{text}."
        return f"{text}; after C − 1 = {classes - 1} of them the ratio is {after:.2f}."
    text = (
        f"{count} eigenvalue{'s' if count > 1 else ''} stand{'' if count > 1 else 's'} apart: the "
        f"next is {outliers.gap:.1f} times smaller"
    )
    if classes is None:
        return f"{text}."
    if count == classes - 1:
        return f"{text}. This is the number of classes minus one."
    if count == classes:
        return f"{text}. This is the number of classes."
    return f"{text}. The data have {classes} classes."


def describe_parts(hessian: MatrixSpectrum, residual: MatrixSpectrum) -> str:
    """Say how far the Gauss-Newton matrix G is from H."""
    if not hessian.frobenius > 0:
        return (
            "The Hessian is zero, and so is H − G."
            if not residual.frobenius > 0
            else ("The Hessian is zero, and the Gauss-Newton matrix is not.")
        )
    ratio = residual.frobenius / hessian.frobenius
    eps = float(torch.finfo(hessian.largest.vectors.dtype).eps)
    if ratio <= _ROUNDINGS * eps:
        return (
            "The Hessian is the Gauss-Newton matrix, up to rounding: the loss bends, and the "
            "network's outputs do not."
        )
    share = f"‖H − G‖ is {number(ratio, 2)} of ‖H‖ (Frobenius norms)"
    if ratio >= 1:
        return f"{share}: the Gauss-Newton matrix G is no approximation of the Hessian here."
    return f"{share}, with the Gauss-Newton matrix G."


def describe_gradient(overlap: GradientOverlap, num_classes: int | None) -> str:
    """Say how much of the gradient lies in the top eigenspace."""
    shown = overlap.shares.numel()
    count = shown if num_classes is None else min(num_classes, shown)
    if not overlap.gradient_norm > 0:
        return "The gradient is zero."
    many = f"{count} top eigenvectors" if count > 1 else "top eigenvector"
    return (
        f"{100 * float(overlap.shares[count - 1]):.0f} % of the squared gradient lies in the span "
        f"of the {many}, where a random direction has "
        f"{number(100 * float(overlap.chance[count - 1]))} %."
    )


def describe_layers(layers: LayerCurvature) -> str:
    """Say which layer is sharpest, and how Kronecker-like the layers are."""
    sharpest = max(layers.layers, key=lambda layer: float(layer.values[0]))
    text = f"The sharpest layer is {sharpest.name}"
    if _have_shares(layers) and len(layers.layers) > 1:
        total = sum(layer.trace for layer in layers.layers)
        text += f", with {100 * sharpest.trace / total:.0f} % of the trace"
    elif len(layers.layers) > 1:
        trace, error = number(sharpest.trace), number(sharpest.trace_stderr, 1)
        text += f" (trace {trace} ± {error})"
    fits = [
        (float(layer.kronecker_overlap[-1]), layer.name)
        for layer in layers.layers
        if layer.kronecker_overlap is not None
    ]
    if fits:
        low, high = min(fits), max(fits)
        text += (
            ". The Kronecker product E[M] ⊗ E[xxᵀ] shares "
            f"{100 * low[0]:.0f} % ({low[1]})"
            + (f" to {100 * high[0]:.0f} % ({high[1]})" if len(fits) > 1 else "")
            + " of the layers' top eigenspaces"
        )
    return text + "."


def _have_shares(layers: LayerCurvature) -> bool:
    """Say whether traces are parts of a whole: none is negative, beyond its error."""
    return all(layer.trace > 2 * layer.trace_stderr for layer in layers.layers)


def describe_blocks(blocks: BlockNorms) -> str:
    """Say how block-diagonal the Hessian is."""
    if len(blocks.row_names) == 1:
        return "There is one layer, so there are no blocks between layers."
    squares = blocks.values.square()
    if not float(squares.sum()) > 0:
        return "All blocks of the Hessian are zero."
    share = float(squares.diagonal().sum() / squares.sum())
    return (
        f"{100 * share:.0f} % of the Hessian's squared Frobenius norm lies in the diagonal blocks "
        f"of its {len(blocks.row_names)} layers."
    )
