"""Wu Theorem 4.1 (H.1) and Thesis Theorems 4.4.1, 4.4.2: the output Hessian of a random network.

Two layers, random weights, random inputs; n hidden units, c classes. As n grows E[M] should get
rank c − 1, and its top eigenspace that of the second layer's weights. M* is E[M] with units that
fire independently of the logits, H the Hessian of the first layer's weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eigenscape.analyses import eigenspace_overlap
from eigenscape.records import Axis, Line, Panel, Picture, Points, Rule
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    picture,
    rounded,
    table,
)
from eigenscape_papers.theory import (
    FiniteWidthCurve,
    decoupling,
    estimate_output_hessian,
    finite_width_curve,
    hidden_law,
    limit_output_hessian,
)

_QUARTER = 4  # the width of the smaller network that the gap of H is compared with


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Follow both curves over the width, and look at H and M* of one network."""
    options = setting.options
    curves = {
        inputs: finite_width_curve(
            options["widths"],
            num_classes=options["num_classes"],
            num_samples=options["num_samples"],
            seeds=range(options["num_seeds"]),
            inputs=inputs,
            device=workshop.device,
        )
        for inputs in ("gaussian", "rectified")
    }
    gaussian, rectified = curves["gaussian"], curves["rectified"]
    rows = [
        (inputs, width, *(float(values[i].mean()) for values in _parts(c)))
        for inputs, c in curves.items()
        for i, width in enumerate(c.widths)
    ]
    numbers, products = first_layer(options, workshop.device)
    measured = numbers | {
        "wu.theorem4.1.gap": Measured.over(gaussian.ratios[-1] / gaussian.ratios[0]),
        "wu.theorem4.1.space": Measured.over(gaussian.row_overlaps[-1]),
        "thesis.theorem4.4.2.gap": rectified_gap(rows),
        "thesis.theorem4.4.2.rows": Measured.over(rectified.row_overlaps[-1]),
        "thesis.theorem4.4.2.corrected": Measured.over(rectified.firing_overlaps[-1]),
        "thesis.theorem4.4.2.plateau": Measured.over(
            rectified.row_overlaps[-1] - rectified.row_limit
        ),
    }
    widths = table("wu-two-layer.widths", rows)
    products += gaussian.num_products + rectified.num_products
    return Outcome(measured, (_picture(curves),), (widths,), (), products)


def rectified_gap(rows: Sequence[tuple[Any, ...]]) -> Measured:
    """Return how much λ_c/λ_{c−1} falls from the smallest width to the largest.

    Args:
        rows: The table of widths.

    Returns:
        The last of the mean ratios with rectified inputs over the first.
    """
    ratios = [row[2] for row in rows if row[0] == "rectified"]
    return Measured(ratios[-1] / ratios[0])


def first_layer(
    options: Mapping[str, Any], device: torch.device
) -> tuple[dict[str, Measured], int]:
    """Compare H with its Kronecker form and with a smaller network's, and E[M] with M*.

    Args:
        options: Of the scale.
        device: Where to compute.

    Returns:
        Numbers for three claims of the Thesis, and products spent.
    """
    n, d = options["decoupling"]
    c, count = options["num_classes"], options["num_samples"] // 4
    W1, W2 = _network(n, d, c, device)
    large = decoupling(W1, W2, num_samples=count)
    small = decoupling(*_network(n // _QUARTER, d // _QUARTER, c, device), num_samples=count)
    M = estimate_output_hessian(W1, W2, inputs="rectified", num_samples=count)
    law = hidden_law(W1, inputs="rectified")
    limit = limit_output_hessian(W2, softmax_hessian=M.softmax_hessian, law=law)
    overlaps = eigenspace_overlap(M.pairs, limit.pairs).overlaps
    numbers = {
        "thesis.theorem4.4.1.decoupling": Measured(large.overlap),
        "thesis.theorem4.4.1.gap": Measured(large.ratio / small.ratio),
        "thesis.theorem4.4.2.space": Measured(float(overlaps[c - 2])),
    }
    return numbers, sum(each.num_products for each in (large, small, M, limit))


def _network(n: int, d: int, c: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return random weights of both layers, the same on every device."""
    draw = torch.Generator().manual_seed(0)
    W1 = torch.randn(n, d, generator=draw, dtype=torch.float64) / d**0.5
    W2 = torch.randn(c, n, generator=draw, dtype=torch.float64) / n**0.5
    return W1.to(device), W2.to(device)


def _parts(curve: FiniteWidthCurve) -> tuple[Tensor, ...]:
    return curve.ratios, curve.predicted_ratios, curve.row_overlaps, curve.firing_overlaps


def _picture(curves: dict[str, FiniteWidthCurve]) -> Picture:
    gap: list[Line | Points] = []
    space: list[Line | Points | Rule] = []
    for (inputs, curve), tint in zip(curves.items(), ("hessian", "gauss_newton"), strict=True):
        x = tuple(float(n) for n in curve.widths)
        gap.append(Points(x, rounded(curve.ratios.mean(1)), tint, inputs))
        gap.append(Line(x, rounded(curve.predicted_ratios.mean(1)), tint, dashed=True))
        space.append(Points(x, rounded(curve.row_overlaps.mean(1)), tint, f"{inputs}: rows"))
        if inputs == "rectified":
            corrected = rounded(curve.firing_overlaps.mean(1))
            space.append(Points(x, corrected, "residual", "rectified: rows × π"))
            space.append(Rule(curve.row_limit, "0.829", upright=False))
    return picture(
        "wu-two-layer.two-layer",
        (
            Panel(gap, Axis("hidden units n", log=True), Axis("λ_c/λ_{c−1}", log=True)),
            Panel(space, Axis("hidden units n", log=True), Axis("overlap")),
        ),
    )


STUDY = Study.of("wu-two-layer", measure)
