"""What an analysis found, in sentences."""

from eigenscape.analyses.gradient_overlap import GradientOverlap
from eigenscape.analyses.layer_curvature import LayerCurvature
from eigenscape.analyses.matrix_spectrum import MatrixSpectrum
from eigenscape.analyses.outliers import Outliers
from eigenscape.analyses.point import Point
from eigenscape.linalg import BlockNorms

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


def describe_point(point: Point) -> str:
    """Say what the loss and the gradient are."""
    accuracy = "" if point.accuracy is None else f" (accuracy {100 * point.accuracy:.1f} %)"
    return (
        f"The loss is {number(point.loss, 4)}{accuracy}; the gradient has norm "
        f"{number(point.gradient_norm)} "
        f"in {point.num_parameters:,} parameters."
    )


def describe_ends(hessian: MatrixSpectrum) -> str:
    """Say how sharp the sharpest direction is, and whether some curve downwards."""
    top, error = float(hessian.largest.values[0]), float(hessian.largest.residuals[0])
    text = f"The largest eigenvalue of the Hessian is {number(top, 4)} ± {number(error, 1)}"
    if top > 0:
        text += (
            f", so plain gradient descent is locally stable up to a step size of {number(2 / top)}"
        )
    if len(hessian.smallest):
        low, slack = float(hessian.smallest.values[-1]), float(hessian.smallest.residuals[-1])
        text += f"; the smallest is {number(low)} ± {number(slack, 1)}"
        if low + slack < 0 < top:
            share = number(abs(low) / top, 2)
            text += f", so some directions curve downwards, {share} times as strongly"
        elif low - slack > 0:
            text += ", so every direction curves upwards"
    return text + "."


def describe_outliers(outliers: Outliers) -> str:
    """Say how many eigenvalues stand apart, and compare with the classes."""
    count, classes = outliers.num_outliers, outliers.num_classes
    shown = outliers.values.numel()
    if count == 0:
        text = f"No gap stands out among the {shown} largest eigenvalues"
        if classes is None:
            return f"{text}."
        after = float(outliers.gaps[classes - 2]) if 2 <= classes <= shown else float("nan")
        return f"{text}; after C − 1 = {classes - 1} of them the ratio is {after:.2f}."
    text = (
        f"{count} eigenvalue{'s' if count > 1 else ''} stand{'' if count > 1 else 's'} apart: the "
        f"next is {outliers.gap:.1f} times smaller"
    )
    if not outliers.is_certain:
        text += " (within the residuals, not certain)"
    if classes is None:
        return f"{text}."
    if count == classes - 1:
        return f"{text}. That is the number of classes less one."
    if count == classes:
        return f"{text}. That is the number of classes."
    return f"{text}. The data have {classes} classes."


def describe_parts(hessian: MatrixSpectrum, residual: MatrixSpectrum) -> str:
    """Say how much of H is Gauss-Newton."""
    share = residual.frobenius / hessian.frobenius if hessian.frobenius > 0 else 0.0
    return (
        f"The Gauss-Newton matrix makes up the Hessian but for {number(100 * share, 2)} % of its "
        "Frobenius norm."
    )


def describe_gradient(overlap: GradientOverlap, num_classes: int | None) -> str:
    """Say how much of the gradient lies in the top eigenspace."""
    shown = overlap.shares.numel()
    count = shown if num_classes is None else min(num_classes, shown)
    return (
        f"{100 * float(overlap.shares[count - 1]):.0f} % of the squared gradient lies in the span "
        f"of the {count} top eigenvectors, where a random direction has "
        f"{number(100 * float(overlap.chance[count - 1]), 2)} %."
    )


def describe_layers(layers: LayerCurvature) -> str:
    """Say which layer is sharpest, and how Kronecker-like the layers are."""
    sharpest = max(layers.layers, key=lambda layer: float(layer.values[0]))
    total = sum(layer.trace for layer in layers.layers)
    text = f"The sharpest layer is {sharpest.name}"
    if total > 0 and len(layers.layers) > 1:
        text += f", with {100 * sharpest.trace / total:.0f} % of the trace"
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


def describe_blocks(blocks: BlockNorms) -> str:
    """Say how block-diagonal the Hessian is."""
    squares = blocks.values.square()
    share = float(squares.diagonal().sum() / squares.sum()) if float(squares.sum()) > 0 else 1.0
    return (
        f"{100 * share:.0f} % of the Hessian's squared Frobenius norm lies in the diagonal blocks "
        f"of its {len(blocks.row_names)} layers."
    )
