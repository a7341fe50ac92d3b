"""Pictures of networks of finite width beside their limits."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenscape.records import (
    Axis,
    Bars,
    EigenPairs,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Rule,
    indices,
    numbers,
    share_axis,
    short,
    table_of,
    value_axis,
)

if TYPE_CHECKING:
    from eigenscape_papers.theory.two_layer import Decoupling, FiniteWidthCurve, TwoLayerHessian


Ticks = Sequence[tuple[float, str]]
_BINS = 31  # odd, so that ½ is inside one
_SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def width_picture(curve: "FiniteWidthCurve") -> Picture:
    """Draw the eigenvalue gap and the overlaps against the width, with their spread over seeds."""
    x = [math.log2(n) for n in curve.widths]  # widths are named, and mostly double
    names = [(position, str(n)) for position, n in zip(x, curve.widths, strict=True)]
    wide = Axis("width n", ticks=names, limits=(min(x) - 0.3, max(x) + 0.3))
    c = curve.num_classes
    gap = f"λ_{c}/λ_{c - 1}".translate(_SUBSCRIPT).replace("_", "")
    gaps = _over_seeds(names, curve.predicted_ratios, "second", "M* (no sampling)", hollow=True)
    gaps += _over_seeds(names, curve.ratios, "first", "estimated M")
    spaces = _over_seeds(names, curve.firing_overlaps, "third", "scaled by π", hollow=True)
    spaces += _over_seeds(names, curve.row_overlaps, "first", "row space of W2")
    spaces.append(Rule(curve.row_limit, f"limit {curve.row_limit:.3f}", upright=False))
    panels = [
        Panel(
            gaps,
            wide,
            share_axis("ratio", curve.ratios, curve.predicted_ratios),
            gap,
        ),
        Panel(spaces, wide, Axis("overlap", limits=(0.0, 1.08)), f"top {c - 1} eigenspace of M"),
    ]
    bars = f"Bars are standard deviations over {curve.ratios.shape[1]} networks."
    return Picture(
        "finite-width",
        f"Random two-layer networks, {curve.inputs} inputs",
        panels,
        table_of(curve),
        shows=bars,
    )


def _over_seeds(
    names: Ticks, values: Tensor, tint: str, label: str, *, hollow: bool = False
) -> list[Mark]:
    """Return means (w,) of values (w, s) with their standard deviations as bars."""
    x, means = [position for position, _ in names], numbers(values.mean(1))
    spread = numbers(values.std(1)) if values.shape[1] > 1 else None
    hover = [f"{label}\nn = {name}\n{short(y)}" for (_, name), y in zip(names, means, strict=True)]
    return [
        Line(x, means, tint, dashed=hollow, hover=hover),
        Points(x, means, tint, label, y_error=spread, hollow=hollow, hover=hover),
    ]


def two_layer_picture(hessian: "TwoLayerHessian") -> Picture:
    """Draw the c largest eigenvalues, the gap after c − 1, and how often units are active."""
    edges = torch.linspace(0.0, 1.0, _BINS + 1, dtype=torch.float64)
    counts, _ = torch.histogram(hessian.firing.detach().cpu().double(), edges)
    top = Axis("units", limits=(0.0, 1.15 * max(1.0, float(counts.max()))))
    text = (
        f"overlap {hessian.row_overlap:.3f} with R(W2), {hessian.firing_overlap:.3f} with R(W2 Π)"
    )
    panels = [
        _gap_panel(hessian.pairs, text),
        Panel(
            [Bars(numbers(edges), numbers(counts), "hessian"), Rule(0.5)],
            Axis("π: how often a unit is active", limits=(0.0, 1.0)),
            top,
            f"{len(hessian.firing)} hidden units",
        ),
    ]
    word = "estimated" if hessian.num_samples else "predicted"
    return Picture(
        "two-layer", f"Output Hessian of a two-layer network, {word}", panels, table_of(hessian)
    )


def decoupling_picture(decoupling: "Decoupling") -> Picture:
    """Draw the c largest eigenvalues of H and the gap after c − 1."""
    text = (
        f"overlap of the top {len(decoupling.pairs) - 1} with M ⊗ E[xxᵀ]: {decoupling.overlap:.3f}"
    )
    table = {name: list(column) for name, column in decoupling.pairs.columns().items()}
    return Picture(
        "decoupling", "First layer's Hessian", [_gap_panel(decoupling.pairs, text)], table
    )


def _gap_panel(pairs: EigenPairs, title: str) -> Panel:
    values, residuals = numbers(pairs.values), numbers(pairs.residuals)
    x, d = indices(len(values)), len(values) - 1
    marks: list[Mark] = [
        Points(x[:d], values[:d], "hessian", y_error=residuals[:d]),
        Points(x[d:], values[d:], "muted", y_error=residuals[d:], hollow=True),
        Rule(
            d + 0.5, f"ratio {short(values[d] / values[d - 1], 2)}" if d and values[d - 1] else ""
        ),
    ]
    return Panel(marks, Axis("rank", whole=True), value_axis("eigenvalue", pairs.values), title)
