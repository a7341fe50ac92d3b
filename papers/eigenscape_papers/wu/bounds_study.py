"""Wu Tables 1 and 9, Figs 7 and 30: PAC-Bayes bounds in the eigenbases of layers."""

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.bounds import (
    BoundRecipe,
    NetworkCertificate,
    PosteriorFit,
    bound_recipe,
    certify,
    optimise_posterior,
)
from eigenscape.errors import EigenscapeError
from eigenscape.records import digest, read_tensors, write_bytes
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.datasets import DataSet, load
from eigenscape_papers.ensemble import SGD, Recipe, fit
from eigenscape_papers.networks import build
from eigenscape_papers.runner import Outcome, Setting, Study, Workshop, device_name
from eigenscape_papers.wu._bounds_rows import (
    Row,
    both_ways,
    bounds_of,
    devices,
    measured,
    missing,
    pictures,
    refuted,
    sheets,
)
from eigenscape_papers.wu._table_9 import INDEXED, plain

_TEST = "test-error.json"
# Points of a curve of variances; a layer has half a million.
_POINTS = 300
# Networks drawn to confirm a certificate, at most.
_FRESH = 2000
# Eigenvalues below this part of the largest are rounding.
_ROUNDING = 1e-8
# What decides over a row, besides its network, seed and method.
_DECIDING = (
    "seeds",
    "training",
    "sgd",
    "init",
    "normalise",
    "one_output",
    "optimisation",
    "draws",
    "examples_per_draw",
)


def _digest(options: Mapping[str, Any]) -> str:
    """Return what tells one setting's folders from another's, and from an older layout's."""
    kept = {"layout": 4, **{key: options[key] for key in _DECIDING if key in options}}
    return digest(kept)


@dataclasses.dataclass(frozen=True, eq=False)
class _Net:
    """A trained network with its data, its first weights and a place for results."""

    seed: int
    model: nn.Module
    before: dict[str, Tensor]
    data: DataSet
    folder: Path


def plan(name: str, options: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the seeds and methods of a network, in the order in which they run."""
    seeds, methods = options["seeds"], options["methods"]
    pairs = [(seed, method) for seed in seeds for method in methods]
    if name in options.get("indexed", ()):
        pairs.insert(len(methods), (seeds[0], INDEXED))
    return pairs


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Train, optimise by every method, certify."""
    for name in setting.options["networks"]:
        nets = {net.seed: net for net in train(name, setting.options, workshop)}
        for seed, method in plan(name, setting.options):
            certified(nets[seed], method, setting.options, workshop)
    return dataclasses.replace(measure_finished(setting, workshop), earlier=frozenset())


def measure_finished(setting: Setting, workshop: Workshop) -> Outcome:
    """Make the study of those rows that are there, and say which are not."""
    options = setting.options
    wanted = [
        (name, seed, method) for name in options["networks"] for seed, method in plan(name, options)
    ]
    rows = [row for key in wanted if (row := read_row(*key, options, workshop)) is not None]
    there = {(row.network, row.seed, row.method) for row in rows}
    notes = (
        *both_ways(bounds_of(rows)),
        *refuted(rows),
        *devices(rows),
        *missing([key for key in wanted if key not in there]),
    )
    earlier = frozenset(row.device for row in rows)
    return Outcome(measured(rows), pictures(rows), sheets(rows), notes, earlier=earlier)


def train(name: str, options: Mapping[str, Any], workshop: Workshop) -> list[_Net]:
    """Train the networks of all seeds side by side, or find them trained."""
    folder, seeds = _folder(name, options, workshop), tuple(options["seeds"])
    data = _data(name, "train", options, workshop)

    def weights(seed: int, epoch: int) -> Path:
        return folder / "weights" / f"seed-{seed}" / f"epoch-{epoch:04d}.safetensors"

    last = options["training"]["epochs"]
    if not all(
        path.is_file()
        for seed in seeds
        for path in (folder / f"seed-{seed}" / _TEST, weights(seed, 0), weights(seed, last))
    ):
        _fit(name, options, workshop, data, folder)
    nets = []
    for seed in seeds:
        model = _network(name, data, options, seed)
        model.load_state_dict(read_tensors(weights(seed, last)))
        before = read_tensors(weights(seed, 0))
        results = folder / f"seed-{seed}"
        nets.append(_Net(seed, model.to(workshop.device), before, data, results))
    return nets


def _fit(
    name: str, options: Mapping[str, Any], workshop: Workshop, data: DataSet, folder: Path
) -> None:
    """Train, and write the weights from before and after, and errors on the test set."""
    seeds = tuple(options["seeds"])
    recipe = Recipe(**options["training"], optimizer=SGD(**options["sgd"]))
    training = fit(
        lambda seed: _network(name, data, options, seed),
        data,
        recipe,
        seeds=seeds,
        test=_data(name, "test", options, workshop),
        evaluate_every=recipe.epochs,
        keep=folder / "weights",
        keep_epochs=(0,),
        checkpoint=folder / "training",
        device=workshop.device,
        progress=workshop.progress,
    )
    training.require_converged()
    accuracy = training.test_accuracy
    for index, seed in enumerate(seeds):
        error = float("nan") if accuracy is None else 1.0 - float(accuracy[-1, index])
        results = folder / f"seed-{seed}"
        results.mkdir(parents=True, exist_ok=True)
        write_bytes(results / _TEST, json.dumps(error).encode())


def _network(name: str, data: DataSet, options: Mapping[str, Any], seed: int) -> nn.Module:
    """Return the network before training; for two classes it may have one output."""
    single = bool(options.get("one_output")) and data.num_classes == 2
    classes = 1 if single else data.num_classes
    sizes: dict[str, Any] = {"input_shape": data.input_shape, "num_classes": classes}
    net = build(f"F-{name.partition('-')[2]}", **sizes, seed=seed, init=options["init"])
    # Cross-entropy of the outputs (0, z) is the logistic loss of z, and the sign of z decides.
    return nn.Sequential(net, nn.ConstantPad1d((1, 0), 0.0)) if single else net


def _folder(name: str, options: Mapping[str, Any], workshop: Workshop) -> Path:
    return workshop.folder / "bounds" / f"{plain(name)}-{options['data']}-{_digest(options)}"


def _data(name: str, split: str, options: Mapping[str, Any], workshop: Workshop) -> DataSet:
    kind, normalise = name.partition("-")[0], options["normalise"].get(name, "unit")
    data = load(options["data"], split=split, folder=workshop.data_dir, normalise=normalise)
    if kind != "T10":
        data = data.two_classes()
    return data.random_labels() if kind == "R" else data


def certified(net: _Net, method: str, options: Mapping[str, Any], workshop: Workshop) -> None:
    """Optimise, certify and confirm by a method, and keep the row; if it is there, do nothing."""
    work, done = net.folder / method, net.folder / f"{method}.json"
    if done.is_file():
        return
    risk = EmpiricalRisk(net.model, CrossEntropy(), net.data.to(workshop.device))
    fitted = optimise_posterior(
        risk,
        net.before,
        recipe=_recipe(method, options["optimisation"]),
        checkpoint=work / "state",
        checkpoint_every=200,  # on a GPU an epoch takes less time than a saving
        seed=net.seed,
        progress=workshop.progress,
    )
    certificate = certify(
        risk,
        fitted.posterior,
        num_samples=options["draws"],
        examples_per_draw=options.get("examples_per_draw"),
        networks_at_once=options["at_once"],
        checkpoint=work / "draws",
        seed=net.seed,
        progress=workshop.progress,
    )
    row = {
        **_kept(fitted, certificate),
        "refuted": _objection(certificate, risk, options, workshop),
        "device": device_name(workshop.device),
    }
    write_bytes(done, json.dumps(row).encode())
    # What a killed run would continue from, and many times the size of the row.
    shutil.rmtree(work)


def _kept(fitted: PosteriorFit, certified_network: NetworkCertificate) -> dict[str, Any]:
    """Return what is kept of a certificate: its arithmetic, and the first layer's variances."""
    names = (
        *("bound", "kl", "error", "error_bound", "prior_variance", "index", "precision"),
        *("ceiling", "num_examples", "num_samples", "delta", "delta_samples", "seed"),
    )
    first = fitted.posterior.basis.layers[0]
    variances, eigenvalues = fitted.posterior.variances[: first.size].cpu(), first.eigenvalues.cpu()
    return {
        "certificate": {
            **{name: getattr(certified_network.certificate, name) for name in names},
            "examples_per_draw": certified_network.examples_per_draw
            or certified_network.certificate.num_examples,
        },
        "fall": _fall(variances, eigenvalues),
        "curve": _curve(variances, eigenvalues),
    }


def _objection(
    certificate: NetworkCertificate,
    risk: EmpiricalRisk,
    options: Mapping[str, Any],
    workshop: Workshop,
) -> str:
    """Return what fresh draws have against a certificate; nothing where they confirm it."""
    try:
        certificate.verify(
            risk,
            num_samples=min(_FRESH, options["draws"]),
            networks_at_once=options["at_once"],
            progress=workshop.progress,
        )
    except EigenscapeError as error:
        return str(error)
    return ""


def read_row(
    name: str, seed: int, method: str, options: Mapping[str, Any], workshop: Workshop
) -> Row | None:
    """Return what `certified` kept, or None where it has not come to its end."""
    results = _folder(name, options, workshop) / f"seed-{seed}"
    if not (results / f"{method}.json").is_file():
        return None
    row = json.loads((results / f"{method}.json").read_text())
    return Row(name, seed, method, test_error=json.loads((results / _TEST).read_text()), **row)


def _recipe(method: str, settings: Mapping[str, Any]) -> BoundRecipe:
    if method == INDEXED:
        return bound_recipe("iter", carry="index", **settings)
    return bound_recipe(method, **settings)


def _fall(variances: Tensor, eigenvalues: Tensor) -> float:
    """Correlate where there is an eigenvalue: M̃ has fewer of them than outputs; NaN for none."""
    kept = eigenvalues > _ROUNDING * eigenvalues.max()
    if int(kept.sum()) < 3:  # all units of the layer may be dead
        return math.nan
    return _spearman(variances[kept], eigenvalues[kept])


def _spearman(one: Tensor, other: Tensor) -> float:
    ranks = torch.stack([values.argsort().argsort().double() for values in (one, other)])
    return float(torch.corrcoef(ranks)[0, 1])


def _curve(variances: Tensor, eigenvalues: Tensor) -> tuple[list[int], list[float]]:
    """Return some places, counted from 1 by falling eigenvalue, and the variances there.

    Places are a constant factor apart. Directions without an eigenvalue keep their order.
    """
    count = len(variances)
    known = eigenvalues.where(eigenvalues > _ROUNDING * eigenvalues.max(), 0.0)
    values = variances[known.argsort(descending=True, stable=True)]
    exponents = torch.linspace(0.0, math.log(count), _POINTS, dtype=torch.float64)
    places = exponents.exp().round().long().clamp(1, count).unique()
    return places.tolist(), values[places - 1].tolist()


STUDY = Study.of("wu-bounds", measure)
