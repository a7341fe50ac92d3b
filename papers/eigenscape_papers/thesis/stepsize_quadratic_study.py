"""Thesis §5.3, Fig. 5.1, Tables D.1, D.2: learning the step size of one quadratic.

Letters as in `eigenscape_papers.stepsize`: f(w) = ½ wᵀHw, η the step size, t steps, η* the best.
"""

import math
from typing import Any

import torch

from eigenscape.operator import Dense
from eigenscape.records import Axis, Line, Mark, Panel, Picture, Rule
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    rounded,
    sheet,
)
from eigenscape_papers.stepsize import (
    Quadratic,
    backpropagated_descent,
    best_step_size,
    log_slope_bounds,
    meta_descent,
    meta_gradient,
    meta_objective,
    optimal_step_size,
    plain_slope_bounds,
    random_quadratic,
)

# Tables D.1 and D.2: t, η₀, and whether back-propagation with RMSprop converges in the thesis.
CELLS = (
    ("D.1", 10, 0.1, True),
    ("D.1", 20, 0.1, True),
    ("D.1", 40, 0.1, False),
    ("D.1", 80, 0.1, False),
    ("D.2", 40, 0.001, True),
    ("D.2", 40, 0.01, True),
    ("D.2", 40, 0.1, False),
    ("D.2", 40, 1.0, False),
)
_NEAR = 0.25  # a method has converged when its mean over the last steps is so near η*
_LAST = 100


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Draw quadratics, check the bounds on each, and train their step size in all ways."""
    seeds, steps = range(setting.options["num_seeds"]), setting.options["num_meta_steps"]
    draws = [random_quadratic(seed=seed) for seed in seeds]
    quadratics = [Quadratic.of(H, w) for H, w in draws]
    rows = [
        row
        for seed, (H, w) in enumerate(draws)
        for row in _trained(seed, H, w, quadratics[seed], steps)
    ]
    right = [(row[6] == row[5]) for row in rows]
    best = torch.tensor([optimal_step_size(q, num_steps=40) for q in quadratics])
    large = torch.stack([meta_objective(q, 0.1, num_steps=80) for q in quadratics])[:, 0]
    numbers = {
        "thesis.corollary5.3.3.range": Measured(float(large.median()) * 80 / math.log(10)),
        "thesis.figure5.1.best": Measured(float(best.median()), float(best.max() - best.min()) / 2),
        "thesis.figure5.1.converges": _figure(quadratics[0]),
        "thesis.tabled.ours": Measured(sum(row[4] for row in rows) / len(rows)),
        "thesis.tabled.rmsprop": Measured(sum(right) / len(rows)),
        "thesis.tabled.descent": Measured(sum(not row[7] for row in rows) / len(rows)),
        "thesis.theorem5.3.2.quadrature": _quadrature(draws, quadratics),
    }
    names = ("draw", "table", "t", "η₀", "closed form", "thesis: RMSprop", "RMSprop", "descent")
    tables = (sheet("tables", "Who converges (Tables D.1, D.2)", names, rows),)
    return Outcome(numbers | _bounds(quadratics), (_picture(*draws[0], quadratics[0]),), tables)


def _converged(path: torch.Tensor, best: float) -> bool:
    return bool(abs(float(path[-_LAST:].mean()) / best - 1) < _NEAR)


def _trained(
    seed: int, H: torch.Tensor, w: torch.Tensor, q: Quadratic, steps: int
) -> list[tuple[Any, ...]]:
    """Run every method in every setting of the tables."""
    rows: list[tuple[Any, ...]] = []
    for table, t, start, theirs in CELLS:
        best = optimal_step_size(q, num_steps=t)
        path = meta_descent(q, num_steps=t, start=start, num_meta_steps=steps)
        ours = _converged(path, best)
        rivals = [
            _converged(
                backpropagated_descent(
                    H.float(),
                    w.float(),
                    num_steps=t,
                    step_size=start,
                    method=method,
                    num_meta_steps=steps,
                ),
                best,
            )
            for method in ("rmsprop", "descent")
        ]
        rows.append((seed, table, t, start, ours, theirs, *rivals))
    return rows


def _figure(q: Quadratic) -> Measured:
    best = optimal_step_size(q, num_steps=80)
    path = meta_descent(q, num_steps=80, start=0.1, num_meta_steps=300)
    return Measured(abs(float(path[-1]) / best - 1))


def _quadrature(
    draws: list[tuple[torch.Tensor, torch.Tensor]], quadratics: list[Quadratic]
) -> Measured:
    off = [
        abs(
            best_step_size(Dense(H), H @ w, num_steps=10, num_products=10).step_size
            / optimal_step_size(q, num_steps=10)
            - 1
        )
        for (H, w), q in zip(draws, quadratics, strict=True)
    ]
    return Measured(max(off))


def _bounds(quadratics: list[Quadratic]) -> dict[str, Measured]:
    """Compare slopes with the theorems' bounds on a fine grid of step sizes."""
    above, below, largest, least, wrong = [0.0], [math.inf], [0.0], [math.inf], 0
    rises = [math.inf]
    for q in quadratics:
        L, alpha = q.smoothness, q.convexity
        unit = Quadratic(q.eigenvalues, q.coefficients / q.coefficients.norm())
        eta = torch.linspace(0.05, 6.0, 400, dtype=torch.float64) / L
        wide = torch.cat([eta, torch.logspace(-4, 0, 400, dtype=torch.float64) * 3 / alpha])
        low, high = log_slope_bounds(q, distance=0.1 / L, largest=3 / alpha)
        for t in (1, 10, 40):
            slopes = meta_gradient(unit, eta, num_steps=t, log=False)
            rises.append(least_rise(slopes))
            slopes = slopes.abs()
            lows, highs = plain_slope_bounds(unit, eta, num_steps=t)
            above.append(float((slopes / highs).max()))
            below += (slopes / lows)[lows > 0].tolist()
            best = optimal_step_size(q, num_steps=t)
            logs = meta_gradient(q, wide, num_steps=t)
            wrong += int(((logs > 0) != (wide > best)).sum())
            wrong += not 1 / L <= best <= 1 / alpha
            largest.append(float(logs.abs().max()) / high)
            far = (wide - best).abs() >= 0.1 / L
            least.append(float(logs[far].abs().min()) / low)
    return {
        "thesis.theorem5.3.1.vanishes": Measured(max(above)),
        "thesis.theorem5.3.1.explodes": Measured(min(below)),
        "thesis.theorem5.3.1.convex": Measured(min(rises)),
        "thesis.claimd.1.1.signs": Measured(float(wrong)),
        "thesis.claimd.1.2.bounded": Measured(max(largest)),
        "thesis.claimd.1.3.not-flat": Measured(min(least)),
    }


def least_rise(slopes: torch.Tensor) -> float:
    """Return the least rise between neighbours, over the sizes of both; below 0 if one falls.

    Args:
        slopes: Of a function, at rising places (k,).

    Returns:
        A number from −1 to 1, above 0 if the function is strictly convex.

    Examples:
        >>> x = torch.tensor([1.0, 3.0])
        >>> least_rise(x), least_rise(-x)
        (0.5, -0.5)
    """
    return float((slopes.diff() / (slopes[1:].abs() + slopes[:-1].abs())).min())


def _picture(H: torch.Tensor, w: torch.Tensor, q: Quadratic) -> Picture:
    best = optimal_step_size(q, num_steps=80)
    ours = meta_descent(q, num_steps=80, start=0.1, num_meta_steps=300)
    theirs = backpropagated_descent(
        H.float(), w.float(), num_steps=80, step_size=0.1, num_meta_steps=300
    )
    steps = tuple(float(k) for k in range(301))
    paths: list[Mark] = [
        Line(steps, rounded(ours), "hessian", "closed form"),
        Line(steps, rounded(theirs), "gauss_newton", "float32 back-propagation", dashed=True),
        Rule(best, "η*", upright=False),
    ]
    eta = torch.linspace(0.2, 5.0, 200, dtype=torch.float64) / q.smoothness
    slopes: list[Mark] = [
        Line(
            rounded(eta),
            rounded(meta_gradient(q, eta, num_steps=t, log=log).abs().log10()),
            "hessian" if log else "gauss_newton",
            f"{'log f' if log else 'f'}, t = {t}",
            t == 80,
        )
        for log in (True, False)
        for t in (20, 80)
    ]
    slopes.append(Rule(2 / q.smoothness, "2/L"))
    return Picture(
        "figure5-1",
        "Learning a step size",
        (
            Panel(paths, Axis("meta-steps"), Axis("step size η"), "t = 80, η₀ = 0.1"),
            Panel(slopes, Axis("step size η"), Axis("log₁₀ |slope|"), "slope of meta-objectives"),
        ),
        shows="Left: in closed form η comes to η* within 300 steps; it jumps to and fro over η* on "
        "its way, where the slope is steep and the steps 1/(100 √k) are still long. "
        "Back-propagation in float32 never moves. Right: above 2/L the slope of f explodes with t, "
        "and that of its logarithm does not.",
    )


STUDY = Study.of("thesis-stepsize-quadratic", measure)
