"""Thesis §5.4, Figs 5.2, 5.3, App. D.2–D.4: a step size learned on training or validation loss.

Letters as in `eigenscape_papers.stepsize`: d dimensions, n samples, noise σ, t steps; TbT and
TbV, by training loss and by validation loss.
"""

import itertools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from eigenscape.errors import ConvergenceWarning
from eigenscape.records import Axis, Line, Mark, Panel, Picture, Points
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
    LearnedStepSize,
    descend,
    draw_samples,
    draw_tasks,
    expected_distance,
    learn_step_size,
    limit_distance,
    squared_distances,
    task_losses,
)

# An independent computation with 30 tasks: (σ, n), test error of TbT and of TbV.
REFERENCE = {
    (0.5, 500): (0.997, 1.031),
    (1.0, 500): (1.577, 1.375),
    (2.0, 500): (2.910, 2.227),
    (1.0, 2000): (1.395, 1.271),
    (1.0, 4000): (1.152, 1.197),
}


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Learn the step size over grids of σ, n and t, and compare with the theorems."""
    o, device = setting.options, workshop.device
    d = o["dimension"]
    kind: dict[str, Any] = {"dimension": d, "num_steps": 40, "num_tasks": o["num_tasks"]}
    kind |= {"device": device, "num_test_tasks": 10}
    points = [(sigma, d // 2) for sigma in o["noises"]]
    points += [(1.0, round(share * d)) for share in o["shares"] if share != 0.5]
    learned = {(sigma, n): _both(num_samples=n, noise=sigma, **kind) for sigma, n in points}
    rows = [
        (sigma, n, *(number for one in pair for number in _row(one)))
        for (sigma, n), pair in learned.items()
    ]
    names = ("σ", "n", "TbT η*", "TbT train", "TbT test", "TbV η*", "TbV train", "TbV test")
    steps, curves = _over_steps(o)
    measured = _figures(learned, d) | steps | _lemmas(o) | _stochastic(o)
    return Outcome(
        measured,
        (_picture(learned, d), _step_picture(curves)),
        (sheet("errors", "Root mean squared errors on new tasks", names, rows),),
    )


def _both(**kind: Any) -> tuple[LearnedStepSize, LearnedStepSize]:
    with warnings.catch_warnings():
        # An end of the grid is an answer here: it is the thesis's grid.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return learn_step_size("training", **kind), learn_step_size("validation", **kind)


def _row(one: LearnedStepSize) -> tuple[float, float, float]:
    return one.step_size, float(one.train_rmse.mean()), float(one.test_rmse.mean())


def _gap(pair: tuple[LearnedStepSize, LearnedStepSize]) -> float:
    return float(pair[0].test_rmse.mean() - pair[1].test_rmse.mean())


def _figures(
    learned: Mapping[tuple[float, int], tuple[LearnedStepSize, LearnedStepSize]], d: int
) -> dict[str, Measured]:
    loud = sorted(sigma for sigma, n in learned if sigma >= 1 and n == d // 2)
    gaps = [_gap(learned[sigma, d // 2]) for sigma in loud]
    first, last = _gap(learned[1.0, d // 2]), _gap(learned[1.0, 4 * d])
    along = [_gap(learned[key]) for key in sorted(key for key in learned if key[0] == 1.0)]
    fitted = [float(learned[s, d // 2][0].train_rmse.mean()) / s for s in loud]
    rises, more = (
        [after - before for before, after in itertools.pairwise(row)] for row in (gaps, along)
    )
    measured = {
        "thesis.figure5.2.validation-wins": Measured(
            min(gap / s for gap, s in zip(gaps, loud, strict=True))
        ),
        "thesis.figure5.2.gap-grows": Measured(min(rises) / first),
        "thesis.figure5.2.overfits": Measured(max(fitted)),
        "thesis.figure5.2.flips": Measured(_gap(learned[0.5, d // 2])),
        "thesis.figure5.3.gap-shrinks": Measured(max(more)),
        "thesis.figure5.3.flips": Measured(last),
    }
    if d == 1000:
        off = [
            abs(float(one.test_rmse.mean()) / theirs - 1)
            for point, pair in REFERENCE.items()
            if point in learned
            for one, theirs in zip(learned[point], pair, strict=True)
        ]
        measured["thesis.figure5.2.independent"] = Measured(max(off))
    return measured


def _over_steps(o: Mapping[str, Any]) -> tuple[dict[str, Measured], list[tuple[float, ...]]]:
    """Follow both step sizes as t grows, on a fine grid (Theorem 5.4.1)."""
    d = o["small"]
    curves: list[tuple[float, ...]] = []
    kind: dict[str, Any] = {"dimension": d, "noise": 2.0, "num_tasks": o["num_small"]}
    kind |= {"num_test_tasks": o["num_small"], "step_sizes": _grid(-5, 0, 84)}
    for t in (20, 40, 80, 160):
        train, valid = _both(num_samples=d // 2, num_steps=t, **kind)
        # As many training samples as the theorem allows for TbV: n₁ = n₂ = d/2.
        valid = _both(num_samples=d, num_steps=t, **kind)[1]
        curves.append((float(t), train.step_size, valid.step_size))
    limit = limit_distance(d // 2, d, noise=2.0)
    many = _both(num_samples=16 * d, num_steps=40, **kind | {"num_tasks": 10})[0]
    return {
        "thesis.theorem5.4.1.train-step": Measured(_slope(curves, 1)),
        "thesis.theorem5.4.1.valid-step": Measured(_slope(curves, 2)),
        "thesis.theorem5.4.1.train-error": Measured(float(train.test_distances.mean()) / limit),
        "thesis.theorem5.4.1.valid-error": Measured(1 - float(valid.test_distances.mean())),
        "thesis.theorem5.4.2.many-samples": Measured(float(many.test_distances.mean()) * 16 / 4),
    }, curves


def _grid(first: float, last: float, count: int) -> torch.Tensor:
    return torch.logspace(first, last, count, dtype=torch.float64)


def _slope(curves: list[tuple[float, ...]], column: int) -> float:
    """Return the least-squares slope of a column over the first, both logarithmic."""
    logs = torch.tensor(curves, dtype=torch.float64).log()
    x, y = logs[:, 0] - logs[:, 0].mean(), logs[:, column] - logs[:, column].mean()
    return float(x @ y / (x @ x))


def _lemmas(o: Mapping[str, Any]) -> dict[str, Measured]:
    """Check Lemmas 5.4.3 and D.3.1, the moments of Lemma D.2.22, and the distance's closed form."""
    d, count = o["small"], o["num_small"]
    grid = torch.linspace(1e-4, 0.01, 60, dtype=torch.float64)
    kind: dict[str, Any] = {"dimension": d, "noise": 2.0, "num_tasks": count, "num_steps": 40}
    falling = _both(num_samples=d // 2, step_sizes=grid, **kind)[0].meta_losses
    bound = 2 * 100**2 * 4 * (1 - 1 / 100**2) ** 40
    far, moments = [], []
    for n in (d // 4, d // 2):
        tasks = draw_tasks(count, n, d, noise=2.0, seed=1)
        lam = torch.linalg.eigvalsh(tasks.inputs @ tasks.inputs.mT / n)
        means = lam.mean(1).square(), lam.square().mean(1)
        exact = d**2 / n**2 + 2 * d / n**3, d**2 / n**2 + d / n + d / n**2
        moments += [abs(float(m.mean()) / e - 1) for m, e in zip(means, exact, strict=True)]
        for eta in (0.003, 0.03):
            for t in (10, 40):
                ours = squared_distances(tasks, descend(tasks, eta, num_steps=t, limit=1e9))[:, 0]
                theirs = expected_distance(lam, dimension=d, noise=2.0, step_size=eta, num_steps=t)
                error = float(ours.std()) / math.sqrt(count)
                far.append(abs(float(ours.mean()) - theirs) / error)
    return {
        "thesis.theorem5.4.2.two-thirds": _two_thirds(d // 10, 72 * count),
        "thesis.lemma5.4.3.monotone": Measured(float((falling.diff() > 0).sum())),
        "thesis.lemma5.4.3.bound": Measured(float(falling[-1]) / bound),
        "thesis.lemmad.2.22.moments": Measured(max(moments)),
        "thesis.section5.4.closed-form": Measured(max(far)),
    }


def _two_thirds(d: int, count: int) -> Measured:
    """Hold the TbT objective at η = 2/3, less what noise leaves of it, against Lemma D.3.1."""
    n, steps, losses = 40 * d, (5, 40), []
    for first in range(0, count, 100):
        tasks = draw_tasks(100, n, d, noise=1.0, first=first)
        fits = [descend(tasks, 2 / 3, num_steps=t) for t in steps]
        losses.append(task_losses(tasks, torch.cat(fits, 2)))
    excess = torch.cat(losses) - (n - d) / (2 * n)
    allowed = torch.tensor([20 * (2 / 3) ** (2 * t) + d / (20 * n) for t in steps]).double()
    shares, errors = excess.mean(0) / allowed, excess.std(0) / allowed / math.sqrt(len(excess))
    return Measured(float(shares.max()), float(errors[shares.argmax()]))


def _stochastic(o: Mapping[str, Any]) -> dict[str, Measured]:
    """Run one sample a step: Theorems D.4.1 and D.4.2, and the contraction between."""
    d, t, count = o["stochastic"], o["passes"], o["num_small"]
    kind: dict[str, Any] = {"dimension": d, "noise": 2.0, "num_tasks": count, "stochastic": True}
    kind |= {"num_test_tasks": count}
    allowed = _grid(-4, math.log10(1 / (2 * d)), 25)
    train = _both(num_samples=d // 2, num_steps=t, step_sizes=allowed, **kind)[0]
    curves: list[tuple[float, ...]] = []
    for steps in (t // 4, t // 2, t):
        grid = _grid(math.log10(0.02 / steps), math.log10(5 / steps), 22)
        valid = _both(num_samples=d, num_steps=steps, step_sizes=grid, **kind)[1]
        curves.append((float(steps), valid.step_size))
    return {
        "thesis.theoremd.4.1.train-step": Measured(d * train.step_size),
        "thesis.theoremd.4.1.train-error": Measured(float(train.test_distances.mean()) / 4),
        "thesis.theoremd.4.2.valid-step": Measured(_slope(curves, 1)),
        "thesis.theoremd.4.2.valid-error": Measured(1 - float(valid.test_distances.mean())),
        "thesis.sectiond.4.contraction": _contraction(d, t, count),
    }


def _contraction(d: int, t: int, count: int) -> Measured:
    """Run one task many times, and place the mean squared distance between its two bounds."""
    task = draw_tasks(1, d // 4, d, noise=2.0)
    X, y = task.inputs[0], task.targets[0]
    lam = torch.linalg.eigvalsh(X @ X.T / len(X))
    L = max(float(lam[-1]), 1 / float(lam[0]))
    eta, fit = 1 / (2 * L**3 * d), torch.linalg.pinv(X) @ y
    copies = type(task)(
        X.expand(count, -1, -1), y.expand(count, -1), task.truths.expand(count, -1), 2.0
    )
    w = descend(copies, eta, num_steps=t, samples=draw_samples(count, len(X), t))[..., 0]
    ours = math.log(float((w - fit).square().sum(1).mean() / fit.square().sum()))
    low, high = t * math.log1p(-2 * eta * L), t * math.log1p(-eta / (2 * L))
    return Measured((ours - low) / (high - low))


def _picture(
    learned: Mapping[tuple[float, int], tuple[LearnedStepSize, LearnedStepSize]], d: int
) -> Picture:
    def panel(over: str, keys: list[tuple[float, int]]) -> Panel:
        marks: list[Mark] = []
        for which, (name, colour) in enumerate((("TbT", "gauss_newton"), ("TbV", "hessian"))):
            x = tuple(key[0] if over == "σ" else float(key[1]) for key in keys)
            for split, dashed in (("test", False), ("train", True)):
                errors = [getattr(learned[key][which], f"{split}_rmse") for key in keys]
                means = rounded([float(e.mean()) for e in errors])
                half = rounded([float(e.max() - e.min()) / 2 for e in errors])
                marks.append(Line(x, means, colour, f"{name}, {split}", dashed))
                marks.append(Points(x, means, colour, y_error=half))
        label = "noise σ" if over == "σ" else "samples n"
        return Panel(marks, Axis(label, log=over == "n"), Axis("root mean squared error"))

    by_noise = sorted(key for key in learned if key[1] == d // 2)
    by_samples = sorted((key for key in learned if key[0] == 1.0), key=lambda key: key[1])
    return Picture(
        "figures5-2-and-5-3",
        "Step sizes learned by training loss (TbT) and by validation loss (TbV), on new tasks",
        (panel("σ", by_noise), panel("n", by_samples)),
        shows="With half as many samples as dimensions, TbT fits the noise and TbV does not; below "
        "σ ≈ 0.6 the order flips. The gap is widest at n = d; with more samples it closes and "
        "turns. Bars: the range.",
    )


def _step_picture(curves: list[tuple[float, ...]]) -> Picture:
    x, train, valid = (rounded(column) for column in zip(*curves, strict=True))
    marks: list[Mark] = [
        Points(x, train, "gauss_newton", "TbT"),
        Points(x, valid, "hessian", "TbV"),
        Line(x, rounded([valid[0] * x[0] / t for t in x]), "muted", "1/t", dashed=True),
        Line(x, (train[0],) * len(x), "muted", "constant"),
    ]
    return Picture(
        "theorem5-4-1",
        "The learned step size as the number of steps grows",
        (Panel(marks, Axis("steps t", log=True), Axis("step size η*", log=True)),),
        shows="TbT keeps the same step size, TbV takes less the longer it runs.",
    )


STUDY = Study.of("thesis-stepsize-tasks", measure)
