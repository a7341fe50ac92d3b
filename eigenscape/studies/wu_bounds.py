"""Wu Tables 1 and 9, Figs 7 and 30: PAC-Bayes bounds in the eigenbases of layers."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.bounds import (
    BoundRecipe,
    NetworkCertificate,
    bound_recipe,
    certify,
    optimise_posterior,
)
from eigenscape.data import DataSet, load
from eigenscape.files import read_tensors, write_bytes, write_tensors
from eigenscape.losses import CrossEntropy
from eigenscape.models import build
from eigenscape.report import Axis, Panel, Picture, Points
from eigenscape.risk import EmpiricalRisk
from eigenscape.studies._draw import SERIES, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop
from eigenscape.train import SGD, Recipe, fit

METHODS = ("base", "appr", "iter", "iter-d", "iter-m")
_TURNED = ("appr", "iter", "iter-m")
# Beyond the paper: ITER with variances left at their index when the basis changes, which is how
# the authors' code has it; all our others carry them over.
_INDEXED = "iter-index"
# Table 9: bounds of BASE, APPR, ITER, ITER(D), ITER.M; None where there is no row.
_TABLE_9: dict[str, tuple[float | None, ...]] = {
    "T-600": (0.154, 0.1432, 0.1198, 0.1199, 0.1255),
    "T-600^2": (0.1921, 0.1658, 0.1456, 0.1443, 0.1502),
    "T-1200": (0.1754, 0.1725, 0.1417, 0.1413, 0.1493),
    "T-300^2": (0.1686, 0.1434, 0.1249, 0.1244, 0.1308),
    "R-600": (0.6046, 0.5653, None, 0.5681, 0.5616),
    "T10-200^2": (0.4165, 0.2621, 0.2145, 0.2311, 0.2728),
    "T10-600": (0.2879, 0.2424, 0.2132, None, 0.2227),
    "T10-600^2": (0.3472, 0.2896, 0.2431, None, None),
}
# Points of a curve of variances; a layer has half a million.
_SHOWN = 300


def _claims() -> tuple[Claim, ...]:
    bounds = [
        Claim(
            f"wu.table9.{_plain(name)}.{method}",
            f"Wu Table 9, {name}",
            f"bound by {method.upper()}",
            f"{theirs:.4g}",
            high=theirs + 0.02,
            why="Another seed and two outputs in place of one; a smaller bound is no fault.",
            scales=("paper",),
        )
        for name, row in _TABLE_9.items()
        for method, theirs in zip(METHODS, row, strict=True)
        if theirs is not None
    ]
    everywhere = "Every network and seed has to agree."
    falls = "Spearman correlation over the first layer's directions with curvature, mean of all."
    return (
        *bounds,
        Claim(
            "wu.table1.appr-below-base",
            "Wu Table 1",
            "share of networks where the bound of APPR is below that of BASE",
            "all",
            low=1.0,
            why=everywhere,
        ),
        Claim(
            "wu.table1.iter-below-appr",
            "Wu Table 1",
            "share of networks where the bound of ITER is below that of APPR",
            "all but R-600",
            low=1.0,
            why=f"{everywhere} On digits the gap is hardly larger than the spread over seeds.",
        ),
        Claim(
            "wu.table1.iter-m-close-to-iter",
            "Wu Table 1",
            "how much larger the bound of ITER.M is than that of ITER, mean of the relative gaps",
            "0.03 to 0.27",
            high=0.1,
            why="Slightly worse, the text says; one of seven networks has 0.27.",
        ),
        *(
            Claim(
                f"wu.fig7.{method}-variance-falls",
                "Wu Figs 7, 30",
                f"variances by {method.upper()} fall as eigenvalues grow",
                "they do",
                high=-0.3,
                why=falls,
            )
            for method in _TURNED
        ),
    )


def _plain(name: str) -> str:
    return name.lower().replace("^", "x")


def _digest(options: Mapping[str, Any]) -> str:
    """Return what tells one setting's folders from another's."""
    kept = {key: options[key] for key in ("seeds", "training", "sgd", "optimisation", "draws")}
    text = json.dumps(kept, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclasses.dataclass(frozen=True, eq=False)
class _Net:
    """A trained network with its data, its first weights and a place for results."""

    name: str
    seed: int
    model: nn.Module
    before: dict[str, Tensor]
    data: DataSet
    test_error: float
    folder: Path


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Train, optimise by every method, certify."""
    options = setting.options
    rows: list[tuple[Any, ...]] = []
    bounds: dict[tuple[str, int], dict[str, float]] = {}
    falls: dict[str, list[float]] = {method: [] for method in _TURNED}
    picture: dict[str, Tensor] = {}
    for name in options["networks"]:
        for net in _train(name, options, workshop):
            for method in options["methods"]:
                row, variances, eigenvalues = _certified(net, method, options, workshop)
                rows.append((name, net.seed, method, *row, net.test_error))
                bounds.setdefault((name, net.seed), {})[method] = row[0]
                if method in falls:
                    falls[method].append(_fall(variances, eigenvalues))
                if method != _INDEXED and method not in picture:
                    picture[method] = variances[eigenvalues.argsort(descending=True)]
    names = ("network", "seed", "method", "bound", "KL", "error of draws", "λ", "test error")
    table = sheet("bounds", "Every network, seed and method", names, rows)
    return Outcome(_measured(bounds, falls), (_drawn(picture),), (table,), _notes(bounds))


def _train(name: str, options: Any, workshop: Workshop) -> list[_Net]:
    """Train the networks of all seeds, or find them trained."""
    kind, _, shape = name.partition("-")
    data, test = (_data(kind, split, options, workshop) for split in ("train", "test"))
    folder = workshop.folder / "bounds" / f"{_plain(name)}-{options['data']}-{_digest(options)}"
    seeds, recipe = (
        tuple(options["seeds"]),
        Recipe(**options["training"], optimizer=SGD(**options["sgd"])),
    )

    def make(seed: int) -> nn.Module:
        sizes: dict[str, Any] = {"input_shape": data.input_shape, "num_classes": data.num_classes}
        return build(f"F-{shape}", **sizes, seed=seed, init="xavier")

    training = fit(
        make,
        data,
        recipe,
        seeds=seeds,
        test=test,
        evaluate_every=recipe.epochs,
        keep=folder / "weights",
        keep_epochs=(0,),
        checkpoint=folder / "training",
        device=workshop.device,
        progress=workshop.progress,
    )
    training.require_converged()
    accuracy = training.test_accuracy
    nets = []
    for place, seed in enumerate(seeds):
        error = float("nan") if accuracy is None else 1.0 - float(accuracy[-1, place])
        before = read_tensors(folder / "weights" / f"seed-{seed}" / "epoch-0000.safetensors")
        model = training.load_into(make(seed), seed).to(workshop.device)
        own = folder / f"seed-{seed}"
        nets.append(_Net(name, seed, model, before, data, error, own))
    return nets


def _data(kind: str, split: str, options: Any, workshop: Workshop) -> DataSet:
    data = load(options["data"], split=split, folder=workshop.data_dir, normalise="unit")
    if kind != "T10":
        data = data.two_classes()
    return data.random_labels() if kind == "R" else data


def _certified(
    net: _Net, method: str, options: Any, workshop: Workshop
) -> tuple[tuple[float, ...], Tensor, Tensor]:
    """Return bound, KL, error and λ, with variances and eigenvalues of the first layer."""
    place = net.folder / method
    done, arrays = place / "row.json", place / "variances.safetensors"
    if not done.is_file():
        risk = EmpiricalRisk(net.model, CrossEntropy(), net.data.to(workshop.device))
        fitted = optimise_posterior(
            risk,
            net.before,
            recipe=_recipe(method, options["optimisation"]),
            checkpoint=place / "state",
            seed=net.seed,
            progress=workshop.progress,
        )
        found = certify(
            risk,
            fitted.posterior,
            num_samples=options["draws"],
            networks_at_once=options["at_once"],
            checkpoint=place / "draws",
            seed=net.seed,
            progress=workshop.progress,
        )
        first = fitted.posterior.basis.layers[0]
        kept = {"variances": fitted.posterior.variances[: first.size]}
        write_tensors(arrays, {**kept, "eigenvalues": first.eigenvalues})
        # Last: a folder without it is that of an unfinished run.
        write_bytes(done, json.dumps(_row(found)).encode())
    tensors = read_tensors(arrays)
    return tuple(json.loads(done.read_text())), tensors["variances"], tensors["eigenvalues"]


def _recipe(method: str, settings: Mapping[str, Any]) -> BoundRecipe:
    if method == _INDEXED:
        return bound_recipe("iter", carry="index", **settings)
    return bound_recipe(method, **settings)


def _row(found: NetworkCertificate) -> tuple[float, ...]:
    c = found.certificate
    return c.bound, c.kl, c.error, c.prior_variance


def _measured(
    bounds: dict[tuple[str, int], dict[str, float]], falls: dict[str, list[float]]
) -> dict[str, Measured]:
    measured: dict[str, Measured] = {}
    for name in dict.fromkeys(name for name, _ in bounds):
        own = [row for (other, _), row in bounds.items() if other == name]
        for method, theirs in zip(METHODS, _TABLE_9.get(name, ()), strict=False):
            values = [row[method] for row in own if method in row]
            if theirs is not None and values:
                measured[f"wu.table9.{_plain(name)}.{method}"] = Measured.over(values)
    # On random labels APPR and ITER are not told apart, in the paper neither.
    rows = list(bounds.values())
    true = [row for (name, _), row in bounds.items() if not name.startswith("R")]
    pairs = {"appr-below-base": (rows, "appr", "base"), "iter-below-appr": (true, "iter", "appr")}
    for label, (chosen, less, more) in pairs.items():
        both = [row[less] < row[more] for row in chosen if {less, more} <= row.keys()]
        if both:
            measured[f"wu.table1.{label}"] = Measured(sum(both) / len(both))
    gaps = [row["iter-m"] / row["iter"] - 1.0 for row in rows if {"iter", "iter-m"} <= row.keys()]
    if gaps:
        measured["wu.table1.iter-m-close-to-iter"] = Measured(sum(gaps) / len(gaps))
    for method, every in falls.items():
        found = [value for value in every if math.isfinite(value)]
        if found:
            measured[f"wu.fig7.{method}-variance-falls"] = Measured(sum(found) / len(found))
    return measured


def _notes(bounds: dict[tuple[str, int], dict[str, float]]) -> tuple[str, ...]:
    """Say what carrying variances over is worth, where both ways were run."""
    pairs = [(row["iter"], row[_INDEXED]) for row in bounds.values() if _INDEXED in row]
    if not pairs:
        return ()
    worse = sum(indexed > carried for carried, indexed in pairs)
    gain = sum(indexed - carried for carried, indexed in pairs) / len(pairs)
    return (
        "ITER-INDEX is ITER with variances left at their index whenever the basis changes. Its "
        f"bound is above that of ITER, which carries them over, in {worse} of {len(pairs)} cases; "
        f"the mean difference is {gain:+.3f}.",
    )


def _fall(variances: Tensor, eigenvalues: Tensor) -> float:
    """Correlate where there is an eigenvalue: M̃ has fewer of them than outputs; NaN for none."""
    kept = eigenvalues > 1e-8 * eigenvalues.max()
    if int(kept.sum()) < 3:  # all units of the layer may be dead
        return math.nan
    return _spearman(variances[kept], eigenvalues[kept])


def _spearman(one: Tensor, other: Tensor) -> float:
    ranks = torch.stack([values.argsort().argsort().double() for values in (one, other)])
    return float(torch.corrcoef(ranks)[0, 1])


def _drawn(variances: dict[str, Tensor]) -> Picture:
    panels = []
    for number, (method, values) in enumerate(variances.items()):
        places = torch.linspace(0, len(values) - 1, min(_SHOWN, len(values))).long()
        panels.append(
            Panel(
                [Points((places + 1).tolist(), rounded(values.cpu()[places]), SERIES[number])],
                Axis("direction, eigenvalues falling"),
                Axis("posterior variance", log=True),
                method.upper(),
            )
        )
    return Picture(
        "variances",
        "Posterior variance along the directions of the first layer",
        tuple(panels),
        shows="Of the first network and seed. Where the curvature is large the posterior has to be "
        "narrow. BASE has no eigenvalues: its directions are the parameters in their order. ITER-M "
        "has a matrix of fewer ranks than classes, so most of its directions have no eigenvalue "
        "either, and come last in no order.",
    )


STUDY = Study(
    name="wu-bounds",
    paper="Wu",
    where="Wu Tables 1 and 9, Figs 7 and 30",
    title="How much smaller does a PAC-Bayes bound become in the eigenbases of the layers?",
    settings={
        "laptop": Setting(
            options={
                "networks": ("T-20", "T-16^2"),
                "data": "digits",
                "methods": ("base", "appr", "iter", "iter-m", _INDEXED),
                "seeds": (0, 1, 2),
                "training": {"epochs": 100, "batch_size": 64},
                "sgd": {"learning_rate": 0.05, "momentum": 0.9},
                "optimisation": {
                    "epochs": 120,
                    "drop_every": 80,
                    "batch_size": 100,
                    "learning_rate": 0.01,
                },
                "draws": 1500,
                "at_once": 20,
            },
            note="1437 digits of 8 × 8 pixels in place of MNIST, narrow networks, 120 epochs of "
            "optimisation in place of 2000 with ten times the learning rate, and 1500 draws in "
            "place of 50 000: bounds are large, and only their order can be compared. All prior "
            "variances end at the largest that the grid has. How far the optimisation gets decides "
            "over some answers: with a learning rate of 0.003, dropped after 60 epochs, bounds are "
            "0.43 to 0.74, ITER is below APPR in 6 of 6 cases and ITER-INDEX above ITER in 6 of 6 "
            "(by 0.109 on average), but variances hardly fall along the eigenvalues (-0.14, -0.15 "
            "and -0.25 for APPR, ITER and ITER.M, where -0.3 is claimed).",
        ),
        "paper": Setting(
            options={
                "networks": tuple(_TABLE_9),
                "data": "mnist",
                "methods": METHODS,
                "seeds": (0,),
                "training": {"epochs": 1000, "batch_size": 128},
                "sgd": {"learning_rate": 0.01},
                "optimisation": {},
                "draws": 50_000,
                "at_once": 64,
            },
            note="Two outputs and cross-entropy in place of one output and the logistic loss.",
        ),
    },
    measure=measure,
    claims=_claims(),
    own=False,
)
