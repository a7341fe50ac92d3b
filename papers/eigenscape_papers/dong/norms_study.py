"""Dong Figs 8 and 9: the size of Hessian blocks of random networks, as classes are added.

Letters: N Gaussian samples x of d entries, C classes, m hidden units; p probabilities; w the weight
of x xᵀ in a block. A block's squared norm is Σ w_n w_n' (x_nᵀx_n')²/N², which needs neither the
block nor the Hessian: one Gram matrix serves all blocks and all C. The first C classes of one
draw are a draw with C classes, so that one product gives the logits for every C too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.records import Axis, Line, Panel, Picture, Points
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    rounded,
    sheet,
)
from eigenscape_papers.theory import (
    BlockLimits,
    hidden_block_limits,
    hidden_class_limits,
    linear_block_limits,
    linear_class_limits,
    output_block_limits,
    output_class_limits,
)

# Blocks of classes are exchangeable: this many pairs of them are averaged.
_PAIRS = 5
_GROUPS = 20  # of repetitions, for the jackknife
_NOTES = (
    "Theory for finite C is a mean over draws of V for networks with a hidden layer; its error is "
    "part of the spreads.",
    "Squared norms of output blocks are without the terms n = n' of the double sum over samples, "
    "which vanish as 1/N: the limits are for fixed m and N → ∞.",
)
_TITLES = {
    "linear": "Linear model, Fig. 8",
    "hidden": "Hidden layer, Fig. 9",
    "output": "Output layer",
}
_LIMIT = {
    ("linear", "diagonal"): "C²‖H_11‖²/d → γe + 1",
    ("linear", "off-diagonal"): "C⁴‖H_12‖²/d → γe² + 1",
    ("hidden", "diagonal"): "‖H̃_11‖²/d → (1 + 2γ)/4m²",
    ("hidden", "off-diagonal"): "C‖H̃_12‖²/d → γA + B (30, corrected)",
    ("output", "diagonal"): "C²‖H_11‖² → the limit (32)",
    ("output", "off-diagonal"): "C⁴‖H_12‖² → the limit (33), corrected",
}


@dataclass(frozen=True, eq=False)
class Norms:
    """Squared norms of blocks, times their powers of C.

    Attributes:
        classes: The values of C.
        squares: Repetitions × class numbers × 2 (diagonal, off-diagonal), float64.
        theory: For every class number.
        limits: As C → ∞.
    """

    classes: tuple[int, ...]
    squares: Tensor
    theory: tuple[BlockLimits, ...]
    limits: BlockLimits


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Draw networks, and compare their blocks with theory for every C and with the limits."""
    options = setting.options
    classes, m = tuple(options["linear_classes"]), options["num_units"]
    by_case: dict[str, Norms] = {}
    n, d, repetitions = options["linear"]
    by_case["linear"] = Norms(
        classes,
        linear_squares(n, d, classes, repetitions, device=workshop.device),
        tuple(linear_block_limits(d / n, C) for C in classes),
        linear_class_limits(d / n),
    )
    n, d, repetitions = options["hidden"]
    classes = tuple(options["hidden_classes"])
    hidden, output = hidden_squares(n, d, m, classes, repetitions, device=workshop.device)
    draws = {"num_draws": options["num_draws"]}
    by_case["hidden"] = Norms(
        classes,
        hidden,
        tuple(hidden_block_limits(d / n, C, m, **draws) for C in classes),
        hidden_class_limits(d / n, m),
    )
    by_case["output"] = Norms(
        classes,
        output,
        tuple(output_block_limits(C, m, **draws) for C in classes),
        output_class_limits(m),
    )
    measured: dict[str, Measured] = {}
    rows: list[tuple[object, ...]] = []
    for case, norms in by_case.items():
        measured |= _numbers(case, norms)
        rows += _rows(case, norms)
    names = ("blocks", "C", "diagonal", "error", "theory", "off-diagonal", "error ", "theory ", "r")
    table = sheet("norms", "Squared norms times their powers of C", names, rows)
    pictures = tuple(_picture(case, norms) for case, norms in by_case.items())
    return Outcome(measured, pictures, (table,), _NOTES)


@full_precision()
def linear_squares(
    num_samples: int,
    dimension: int,
    classes: Sequence[int],
    repetitions: int,
    *,
    seed: int = 0,
    device: torch.device | None = None,
) -> Tensor:
    """Return C²‖H_11‖²/d and C⁴‖H_12‖²/d of linear models with cross-entropy, for every C.

    Means over ten diagonal and five off-diagonal blocks, which have the same law. Products are
    float32: six digits, for numbers that vary by a tenth.

    Args:
        num_samples: N.
        dimension: d.
        classes: The values of C, ascending, the first at least 10.
        repetitions: Draws of data and weights.
        seed: Fixes them.
        device: Where it runs.

    Returns:
        Numbers (repetitions, classes, 2), float64.
    """
    N, d = num_samples, dimension
    generator = torch.Generator().manual_seed(seed)
    squares = torch.empty(repetitions, len(classes), 2, dtype=torch.float64)
    for one in squares:
        x = torch.randn(N, d, generator=generator, dtype=torch.float32).to(device)
        V = torch.randn(classes[-1], d, generator=generator, dtype=torch.float32).to(device)
        e = (x @ V.T / math.sqrt(d)).exp_()
        diagonal, other = _class_weights(e, classes)
        one[:, 0], one[:, 1] = _squares((x @ x.T).square_(), (diagonal, other))
    return _scaled(squares, classes, (2, 4)) / (N**2 * d)


@full_precision()
def hidden_squares(
    num_samples: int,
    dimension: int,
    num_units: int,
    classes: Sequence[int],
    repetitions: int,
    *,
    seed: int = 0,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the squared norms of hidden and output blocks of networks with one hidden layer.

    Hidden: ‖H̃_ii‖²/d and C‖H̃_ij‖²/d. Output: C²‖H_ii‖² and C⁴‖H_ij‖², without the terms n = n',
    whose share is 1/N. All are means over all units or classes, and their pairs.

    Args:
        num_samples: N.
        dimension: d.
        num_units: m.
        classes: The values of C, ascending.
        repetitions: Draws of data and weights.
        seed: Fixes them.
        device: Where it runs.

    Returns:
        Two tensors (repetitions, classes, 2), float64.
    """
    N, d, m = num_samples, dimension, num_units
    generator = torch.Generator().manual_seed(seed)
    i, j = torch.triu_indices(m, m, 1)
    inner, outer = (torch.empty(repetitions, len(classes), 2).double() for _ in range(2))
    for hidden, output in zip(inner, outer, strict=True):
        draws = [(N, d), (m, d), (classes[-1], m)]
        x, W, V = (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
            for shape in draws
        )
        V = V / math.sqrt(m)
        u = x @ W.T / math.sqrt(d)
        h, active = u.relu(), (u > 0.0).to(u)
        e = (h @ V.T).exp_()
        output[:] = _output_squares((h @ h.T).square_(), e, classes)
        eta = _covariances(e, V, classes) * active[:, None, :, None] * active[:, None, None, :]
        diagonal, other = eta.diagonal(dim1=2, dim2=3), eta[:, :, i, j]
        hidden[:, 0], hidden[:, 1] = _squares((x @ x.T).square_(), (diagonal, other))
    return (
        _scaled(inner, classes, (0, 1)) / (N**2 * d),
        _scaled(outer, classes, (2, 4)) / (N * (N - 1)),
    )


def _class_weights(e: Tensor, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return p_i(1 − p_i) of ten classes and p_i p_j of five pairs (N, classes, ·), float64."""
    sums = torch.stack([group.double().sum(1) for group in _parts(e, classes)], 1).cumsum(1)
    p = e[:, None, : 2 * _PAIRS].double() / sums[:, :, None]
    return p * (1.0 - p), p[:, :, ::2] * p[:, :, 1::2]


def _output_squares(kernel: Tensor, e: Tensor, classes: Sequence[int]) -> Tensor:
    """Return the mean squares of all p_i(1 − p_i) and all p_i p_j blocks (classes, 2).

    With P = pᵀp' over classes, Σ_ij p_i p_j p'_i p'_j is P², so that no pair is looked at.
    """
    kernel = kernel.fill_diagonal_(0.0)
    means = []
    for C in classes:
        p = e[:, :C] / e[:, :C].sum(1, keepdim=True)
        q = p.square()
        mixed, same = p @ p.T, q @ q.T
        diagonal = (kernel * (mixed + same)).sum() - 2.0 * (kernel * (p @ q.T)).sum()
        other = (kernel * (mixed.square() - same)).sum()
        means.append(torch.stack([diagonal / C, other / (C * (C - 1))]))
    return torch.stack(means).cpu()


def _covariances(e: Tensor, V: Tensor, classes: Sequence[int]) -> Tensor:
    """Return the covariances of V's columns under p (N, classes, m, m)."""
    m = V.shape[1]
    features = torch.cat([V.new_ones(len(V), 1), V, (V[:, :, None] * V[:, None]).flatten(1)], 1)
    pairs = zip(_parts(e, classes), _parts(features.T, classes), strict=True)
    sums = torch.stack([a @ b.T for a, b in pairs], 1).cumsum(1)
    moments = sums[:, :, 1:] / sums[:, :, :1]
    mean = moments[:, :, :m]
    squares: Tensor = moments[:, :, m:].unflatten(2, (m, m))
    return squares - mean[..., None] * mean[:, :, None]


def _parts(columns: Tensor, classes: Sequence[int]) -> list[Tensor]:
    """Split columns into those of the first C classes, those that the next C adds, and so on."""
    ends = [0, *classes]
    return [columns[:, a:b] for a, b in pairwise(ends)]


def _squares(kernel: Tensor, weights: tuple[Tensor, ...]) -> list[Tensor]:
    """Return Σ w_n w_n' k_nn' for weights (N, classes, blocks), averaged over the blocks."""
    means = []
    for w in weights:
        flat = w.flatten(1)
        product = kernel @ flat.to(kernel)
        squares = (flat * product).sum(0, dtype=torch.float64)
        means.append(squares.view(w.shape[1:]).mean(1).cpu())
    return means


def _scaled(squares: Tensor, classes: Sequence[int], powers: tuple[int, int]) -> Tensor:
    C = torch.tensor(classes, dtype=torch.float64)
    return squares * torch.stack([C**power for power in powers], 1)


def jackknife(
    values: Tensor, statistic: Callable[[Tensor], float], num_groups: int = _GROUPS
) -> tuple[float, float]:
    """Return a statistic of means over repetitions, and its standard error.

    Args:
        values: Repetitions first.
        statistic: A smooth function of the means.
        num_groups: Groups of repetitions, of which one is left out at a time.

    Returns:
        The statistic and its jackknife error.

    Examples:
        Of a mean it is the usual error: here √(½/2).

        >>> jackknife(torch.tensor([1.0, 2.0]), float, num_groups=2)
        (1.5, 0.5)
    """
    groups = torch.stack([chunk.mean(0) for chunk in values.tensor_split(num_groups)])
    count = torch.tensor([len(chunk) for chunk in values.tensor_split(num_groups)]).to(groups)
    total = torch.tensordot(count, groups, 1)
    left = [
        statistic((total - n * group) / (count.sum() - n))
        for n, group in zip(count, groups, strict=True)
    ]
    spread = torch.tensor(left, dtype=torch.float64)
    error = ((num_groups - 1) * (spread - spread.mean()).square().mean()).sqrt()
    return statistic(total / count.sum()), float(error)


def _numbers(case: str, norms: Norms) -> dict[str, Measured]:
    """Return the five numbers of one kind of blocks."""
    numbers: dict[str, Measured] = {}
    theory = _theory(norms)
    ends = torch.tensor([norms.limits.diagonal, norms.limits.off_diagonal], dtype=torch.float64)
    groups = min(_GROUPS, len(norms.squares))
    for k, blocks in enumerate(("diagonal", "off-diagonal")):
        ours = norms.squares[:, :, k]
        worst = int((ours.mean(0) / theory[:, k] - 1.0).abs().argmax())
        share, error = jackknife(ours[:, worst] / theory[worst, k], float, groups)
        known = norms.theory[worst]
        doubt = (known.diagonal_stderr, known.off_diagonal_stderr)[k]
        doubt /= (known.diagonal, known.off_diagonal)[k]
        spread = math.hypot(error, doubt)
        numbers[f"dong.norms.{case}.{blocks}.theory"] = Measured(abs(share - 1.0), spread)
        share, error = jackknife(ours[:, -1] / ends[k], float, groups)
        numbers[f"dong.norms.{case}.{blocks}.limit"] = Measured(share, error)
    C = torch.tensor(norms.classes, dtype=torch.float64)
    start = min(int((C[-1] / 10 > C).sum()), len(C) - 2)
    C = C[start:]
    power = norms.limits.off_diagonal_power - norms.limits.diagonal_power

    def slope(mean: Tensor) -> float:
        r = mean[start:, 1] / mean[start:, 0] / C**power
        centred = C.log() - C.log().mean()
        return float((centred * r.log()).sum() / centred.square().sum())

    numbers[f"dong.norms.{case}.rate"] = Measured(*jackknife(norms.squares, slope, groups))
    return numbers


def _theory(norms: Norms) -> Tensor:
    """Return theory for finite C, times the powers of C (classes, 2)."""
    curves = torch.tensor([(one.diagonal, one.off_diagonal) for one in norms.theory]).double()
    powers = (norms.limits.diagonal_power, norms.limits.off_diagonal_power)
    return _scaled(curves, norms.classes, powers)


def _rows(case: str, norms: Norms) -> list[tuple[object, ...]]:
    theory, mean = _theory(norms), norms.squares.mean(0)
    error = norms.squares.std(0) / math.sqrt(len(norms.squares))
    power = norms.limits.off_diagonal_power - norms.limits.diagonal_power
    return [
        (
            case,
            C,
            *(float(column[i, k]) for k in range(2) for column in (mean, error, theory)),
            float(mean[i, 1] / mean[i, 0]) * C**-power,
        )
        for i, C in enumerate(norms.classes)
    ]


def _picture(case: str, norms: Norms) -> Picture:
    x = tuple(float(C) for C in norms.classes)
    theory, mean, spread = _theory(norms), norms.squares.mean(0), norms.squares.std(0)
    ends = (norms.limits.diagonal, norms.limits.off_diagonal)
    axis = Axis("classes C", log=True)
    panels = []
    for k, blocks in enumerate(("diagonal", "off-diagonal")):
        bars = rounded(spread[:, k])
        panels.append(
            Panel(
                [
                    Line(x, rounded(theory[:, k]), "second", "theory"),
                    Points(x, rounded(mean[:, k]), "first", "simulated", y_error=bars),
                    Line(
                        (x[0], x[-1]),
                        (ends[k], ends[k]),
                        "third",
                        f"limit {ends[k]:.3g}",
                        dashed=True,
                    ),
                ],
                axis,
                Axis(_LIMIT[case, blocks].partition(" →")[0]),
                blocks,
            )
        )
    power = norms.limits.off_diagonal_power - norms.limits.diagonal_power
    scale = torch.tensor(norms.classes, dtype=torch.float64) ** -power
    limit = ends[1] / ends[0] * scale
    ratio: list[Line | Points] = [
        Line(x, rounded(theory[:, 1] / theory[:, 0] * scale), "second", "theory"),
        Line(x, rounded(limit), "third", f"limit, ∝ 1/C{'²' if power == 2 else ''}", dashed=True),
        Points(x, rounded(mean[:, 1] / mean[:, 0] * scale), "first", "simulated"),
    ]
    panels.append(Panel(ratio, axis, Axis("off-diagonal / diagonal", log=True), "ratio r"))
    return Picture(
        case,
        f"{_TITLES[case]}: squared norms of blocks against the number of classes",
        tuple(panels),
        shows=f"Bars are standard deviations over {len(norms.squares)} repetitions. Both norms "
        "reach their limits, and the ratio falls at the rate of theory.",
    )


STUDY = Study.of("dong-norms", measure)
