"""Thesis Figs 2.1 to 2.3: masking against the baseline in finding the atoms of a sparse model.

p true atoms, p' learned ones; n = 1000 samples, k atoms each. From *samples*: the first atoms are
held-out samples. From the *truth*: true atoms and held-out samples, to see what training spoils.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eigenscape.records import Axis, Band, Mark, Panel, Picture
from eigenscape_papers.representations import (
    initial_dictionary,
    learn_dictionary,
    random_dictionary,
    recovery_error,
    sparse_samples,
)
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    dotted,
    rounded,
    sheet,
)

STARTS, _METHODS = ("sample", "local"), ("start", "baseline", "masking")
# Cosine errors of an independent implementation, one seed: start, baseline, masking.
_REFERENCE = {
    ("sample", 200): (0.520, 0.492, 0.450),
    ("sample", 400): (0.445, 0.454, 0.398),
    ("sample", 1000): (0.379, 0.544, 0.400),
    ("local", 200): (0.0, 0.129, 0.153),
    ("local", 400): (0.0, 0.158, 0.147),
    ("local", 1000): (0.0, 0.324, 0.157),
}


def run_grid(
    points: Sequence[Mapping[str, Any]], options: Mapping[str, Any], start: str, workshop: Workshop
) -> Tensor:
    """Return the recovery errors at each point and seed (points, seeds, 3).

    Args:
        points: Settings that differ from those of `options`.
        options: d, p, k, p', noise, n, epochs, seeds.
        start: "sample" or "local".
        workshop: Says where it runs.

    Returns:
        Errors of the start, of the baseline and of masking.
    """
    errors = []
    for point in points:
        at = {**options, **point}
        errors.append([_run(at, start, seed, workshop.device) for seed in range(at["num_seeds"])])
    return torch.tensor(errors, dtype=torch.float64)


def _run(
    at: Mapping[str, Any], start: str, seed: int, device: torch.device
) -> tuple[float, float, float]:
    A = random_dictionary(at["num_atoms"], at["dimension"], seed=seed).to(device)
    n, p = at["num_samples"], at["num_learned"]
    samples, _ = sparse_samples(A, n + p, sparsity=at["sparsity"], noise=at["noise"], seed=seed)
    first = initial_dictionary(samples[n:], p, seed=seed)
    if start == "local":
        first = torch.cat([A, first[: p - len(A)]])
    errors = [recovery_error(A, first)]
    for masked in (False, True):
        learned = learn_dictionary(
            samples[:n].float(),
            first.float(),
            sparsity=at["sparsity"],
            masked=masked,
            epochs=at["epochs"],
            seed=seed,
        )
        errors.append(recovery_error(A, learned.dictionary))
    return errors[0], errors[1], errors[2]


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Train at every point of the three figures."""
    options = setting.options
    sizes = [{"num_learned": p} for p in options["learned"]]
    dimensions = [_scaled(d) for d in options["dimensions"]]
    most = max(options["learned"])
    noises = [{"noise": s, "num_learned": most} for s in options["noises"]]
    points = {"size": sizes, "dimension": dimensions, "noise": noises}
    places = {"size": "learned", "dimension": "dimensions", "noise": "noises"}
    grids = {
        (which, start): (run_grid(points[which], options, start, workshop), options[places[which]])
        for which in points
        for start in STARTS
    }
    measured = _measured({key: grid for key, (grid, _) in grids.items()}, options)
    size, local = (grids["size", start][0] for start in STARTS)
    if (difference := _difference(size, local, options["learned"])) is not None:
        measured["thesis.fig2.1.independent"] = Measured(difference)
    rows = [
        (
            f"{which}, {start}",
            at,
            *(float(v) for v in grid[i].mean(0)),
            float(grid[i, :, 1:].std(0).max()) if grid.shape[1] > 1 else None,
        )
        for (which, start), (grid, at_all) in grids.items()
        for i, at in enumerate(at_all)
    ]
    names = ("figure", "at", "start", "baseline", "masking", "standard deviation")
    table = sheet("errors", "Recovery errors (cosine), mean over seeds", names, rows)
    return Outcome(measured, (_picture(grids),), (table,))


def _measured(
    grids: Mapping[tuple[str, str], Tensor], options: Mapping[str, Any]
) -> dict[str, Measured]:
    """Return what the three figures claim."""
    local, scaled, noisy = (
        grids[key] for key in (("size", "local"), ("dimension", "sample"), ("noise", "sample"))
    )
    quiet = grids["noise", "local"]
    return _sample_numbers(grids["size", "sample"], options) | {
        "thesis.fig2.1.local.masking-flat": _number(
            local.mean(1)[:, 2].max() - local.mean(1)[:, 2].min()
        ),
        "thesis.fig2.1.local.baseline-grows": Measured.over(local[-1, :, 1] - local[0, :, 1]),
        "thesis.fig2.1.local.masking-wins": _number(_gap(local).min()),
        "thesis.fig2.2.masking-wins": _number(_gap(scaled).min()),
        "thesis.fig2.2.gap-widens": _number(_gap(scaled)[-1] - _gap(scaled)[0]),
        "thesis.fig2.2.both-degrade": _number((scaled[-1] - scaled[0]).mean(0)[1:].min()),
        "thesis.fig2.2.local.masking-wins": _number(_gap(grids["dimension", "local"]).min()),
        "thesis.fig2.3.quiet-equal": _number(_gap(noisy)[0]),
        "thesis.fig2.3.quiet-perfect": _number(noisy[0].mean(0)[1:].max()),
        "thesis.fig2.3.gap-opens": _number(_gap(noisy)[-1] - _gap(noisy)[0]),
        "thesis.fig2.3.local.quiet-equal": _number(_gap(quiet)[0]),
        "thesis.fig2.3.local.gap-opens": _number(_gap(quiet)[-1] - _gap(quiet)[0]),
    }


def _scaled(d: int) -> dict[str, float]:
    sizes = {"dimension": d, "num_atoms": 2 * d, "num_learned": 4 * d}
    return {**sizes, "sparsity": max(1, d // 20), "noise": d**-0.5}


def _sample_numbers(size: Tensor, options: Mapping[str, Any]) -> dict[str, Measured]:
    """Return what Fig. 2.1a claims."""
    means = size.mean(1)
    worse, better = means[:, 1] - means[:, 0], means[:, 2] - means[:, 0]
    learned = torch.tensor(options["learned"])
    over, below = learned > options["num_atoms"], learned < options["num_samples"]
    numbers = {
        "thesis.fig2.1.sample.masking-wins": _number(_gap(size).min()),
        "thesis.fig2.1.sample.gap-grows": _number(_gap(size)[-1] - _gap(size)[0]),
        "thesis.fig2.1.sample.baseline-worsens": _number(worse[over].min()),
        "thesis.fig2.1.sample.masking-improves": _number(better[below].max()),
        "thesis.fig2.1.sample.first-step": _number((means[1] - means[0])[1:].max()),
    }
    if not bool(below[-1]):
        numbers["thesis.fig2.1.sample.baseline-worsens-at-n"] = _number(worse[-1])
        numbers["thesis.fig2.1.sample.masking-at-n"] = _number(better[-1])
    return numbers


def _difference(size: Tensor, local: Tensor, learned: Sequence[int]) -> float | None:
    """Return the largest difference from the reference, where this is its setting."""
    if not {p for _, p in _REFERENCE} <= set(learned):
        return None
    return max(
        float((grid[learned.index(p)].mean(0) - torch.tensor(values)).abs().max())
        for start, grid in zip(STARTS, (size, local), strict=True)
        for (which, p), values in _REFERENCE.items()
        if which == start
    )


def _gap(grid: Tensor) -> Tensor:
    return (grid[..., 1] - grid[..., 2]).mean(1)


def _number(value: Tensor) -> Measured:
    return Measured(float(value))


def _picture(grids: Mapping[tuple[str, str], tuple[Tensor, Sequence[float]]]) -> Picture:
    axes = {
        "size": ("p'", "learned atoms p'"),
        "dimension": ("d", "dimension d (p = 2d, p' = 4d)"),
        "noise": ("σ", "noise σ (p' = n)"),
    }
    starts = {"sample": "from samples", "local": "from the truth"}
    panels: list[Panel] = []
    for start, words in starts.items():
        for which, (letter, label) in axes.items():
            grid, places = grids[which, start]
            marks: list[Mark] = []
            x = tuple(float(at) for at in places)
            for i, tint in enumerate(("muted", "gauss_newton", "hessian")):
                mean = grid[:, :, i].mean(1)
                if grid.shape[1] > 1:
                    sd = grid[:, :, i].std(1)
                    marks.append(Band(x, rounded(mean - sd), rounded(mean + sd), tint))
                name = _METHODS[i] if not panels else None
                marks += dotted(x, mean, tint, name, dashed=i == 0)
            title = f"{words}, {letter} varies"
            panels.append(Panel(marks, Axis(label), Axis("recovery error"), title))
    return Picture(
        "recovery",
        "How far learned atoms are from the true ones",
        tuple(panels),
        shows=_words({key: grid for key, (grid, _) in grids.items()}),
        across=3,
    )


def _words(grids: Mapping[tuple[str, str], Tensor]) -> str:
    """Say where each method ends, and nothing that another run could belie."""
    means = {
        start: torch.cat([grid.mean(1) for (_, begun), grid in grids.items() if begun == start])
        for start in STARTS
    }
    begun, base, mask = means["sample"].T
    count = len(begun)
    wins = [int((mean_errors[:, 2] < mean_errors[:, 1]).sum()) for mean_errors in means.values()]
    return (
        f"From samples the baseline ends farther from the truth than it started at "
        f"{int((base > begun).sum())} of {count} points, masking at {int((mask > begun).sum())}. "
        f"Masking ends nearer to the truth than the baseline at {wins[0]} of {count} points from "
        f"samples and at {wins[1]} from the truth."
    )


STUDY = Study.of("thesis-coding-recovery", measure)
