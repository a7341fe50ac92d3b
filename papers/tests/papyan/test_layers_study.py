import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.paper_scale import Run, measure_next, record
from eigenscape.records import Band, Progress, Status
from eigenscape.structure import class_structure
from eigenscape_papers.ensemble import SGD
from eigenscape_papers.papyan import BackpropagatedErrors, backpropagated_errors, error_part
from eigenscape_papers.papyan import layers_study as papyan_layers
from eigenscape_papers.papyan.layers_study import _cross, _cross_picture, _look, _worst
from eigenscape_papers.runner import Setting, Study, StudyResult, Workshop, read_result, run_study
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import TINY, TINY_BN, inputs_of, numbers_of

NAME = "papyan-layers"
ALL = Setting(options={"samples": None})


def test_features(ran: Callable[[str], StudyResult], shop: Workshop) -> None:
    ours, networks = numbers_of(ran(NAME)), shop.networks(TINY_BN)
    y = networks.data.targets
    ratios: dict[str, list[float]] = {"fc2": [], "fc3": []}
    whiskers, seconds = [], []
    for seed in TINY_BN.seeds:
        for layer, found in ratios.items():
            h = inputs_of(networks, seed, layer)
            means = torch.stack([h[y == c].mean(0) for c in range(10)])
            M = sum((y == c).double().mean() * torch.outer(means[c], means[c]) for c in range(10))
            values = torch.linalg.eigvalsh(M).flip(0)
            away = h - means[y]
            bulk = torch.linalg.eigvalsh(away.T @ away / len(h))[-1]
            found.append(float(values[9] / bulk))
            if layer == "fc2":
                seconds.append(float(values[1] / bulk))
            else:
                whiskers.append(float(values[1] / values[9]))
    assert ours["papyan.fig8.features.first"] == pytest.approx(sum(seconds) / 2)
    assert ours["papyan.fig8.features.last"] == pytest.approx(sum(ratios["fc3"]) / 2)
    assert ours["papyan.fig8.features.whiskers-last"] == pytest.approx(sum(whiskers) / 2)
    # Of two layers the rank correlation is a sign.
    signs = [1.0 if b > a else -1.0 for a, b in zip(*ratios.values(), strict=True)]
    assert ours["papyan.fig8.features.separation"] == pytest.approx(sum(signs) / 2)


def test_table(ran: Callable[[str], StudyResult]) -> None:
    table = ran(NAME).sheets[0].columns
    layers = list(zip(table["seed"], table["matrix"], table["l"], strict=True))
    one = [("H", 0), ("H", 1), ("H", 2), ("Δ", 1), ("Δ", 2), ("W", 1), ("W", 2)]
    assert layers == [(seed, *row) for seed in (0, 1) for row in one]
    first = [i for i, layer in enumerate(layers) if layer[1:] == ("Δ", 1)]
    seconds = [table["λ_C/bulk"][i] * table["λ₂/λ_C"][i] for i in first]
    assert [table["λ₂/bulk"][i] for i in first] == pytest.approx(seconds, rel=1e-4)
    ours = numbers_of(ran(NAME))["papyan.fig10.errors.first"]
    assert ours == pytest.approx(sum(seconds) / 2, rel=1e-4)
    accuracy = ran(NAME).sheets[1].columns
    assert accuracy["l"] == (0, 1, 2, 0, 1, 2)
    assert all(0.1 < share <= 1.0 for share in accuracy["nearest class mean"])


def test_shares_are_those_of_the_picture(ran: Callable[[str], StudyResult]) -> None:
    result = ran(NAME)
    picture = next(p for p in result.pictures() if p.name.startswith("depth"))
    points = next(m for m in picture.panels[0].marks if getattr(m, "label", None) == "errors")
    table = result.sheets[0].columns
    rows = [i for i, m in enumerate(table["matrix"]) if m == "Δ" and table["l"][i] == 2]
    mean = sum(table["taken by knockout"][i] for i in rows) / 2
    assert points.y[-1] == pytest.approx(mean, rel=1e-4)


def test_bands_hold_all_seeds(ran: Callable[[str], StudyResult]) -> None:
    result = ran(NAME)
    picture = next(p for p in result.pictures() if p.name.startswith("depth"))
    table = result.sheets[0].columns
    rows = [i for i, m in enumerate(table["matrix"]) if m == "H" and table["l"][i] == 1]
    values = [table["λ₂/λ_C"][i] for i in rows]
    band = next(m for m in picture.panels[2].marks if isinstance(m, Band))
    points = next(m for m in picture.panels[2].marks if getattr(m, "label", None) == "features")
    assert (band.low[1], band.high[1]) == pytest.approx((min(values), max(values)), rel=1e-4)
    assert points.y[1] == pytest.approx((values[0] * values[1]) ** 0.5, rel=1e-4)


def errors_of_pairs() -> BackpropagatedErrors:
    """Four classes with errors whose cross-class means are as long as what is within."""
    draw = torch.Generator().manual_seed(0)
    N, C, d = 60, 4, 17
    y = torch.arange(N) % C
    means = torch.randn(C, C, d, generator=draw)
    errors = means[y] + torch.randn(N, C, d, generator=draw)
    p = torch.rand(N, C, generator=draw)
    p = p / p.sum(1, keepdim=True)
    return BackpropagatedErrors(
        Status(True, ""), 0, 0, layer="x", classes=y, features=errors[:, 0], errors=errors,
        probabilities=p,
    )  # fmt: skip


def test_classes_then_pairs_are_knocked_out() -> None:
    """Fig. 9b and the grey of Fig. 10, with dense matrices."""
    seen = errors_of_pairs()
    part = error_part(seen, 1, torch.device("cpu"))
    assert part is not None
    k = part.num_cross
    assert 0 < k < 8
    found = _cross(seen, k, torch.device("cpu"))
    structure = class_structure(seen.errors, classes=seen.classes, weights=seen.weights)
    between, pairs = (structure.factor(name) for name in ("class", "cross"))
    A = torch.einsum("ik,ika,ikb->ab", seen.weights, seen.errors, seen.errors)
    P = torch.eye(17) - between @ torch.linalg.pinv(between)
    U = torch.linalg.eigh(P @ pairs @ pairs.T @ P).eigenvectors[:, -k:]
    P = P - U @ U.T
    left = torch.linalg.eigvalsh(P @ A @ P).flip(0)
    torch.testing.assert_close(found.left, left.clamp_min(0), rtol=1e-9, atol=1e-12)
    both = torch.linalg.eigvalsh(between @ between.T + pairs @ pairs.T).flip(0)
    together = torch.nn.functional.pad(found.together, (0, 17))[:17]
    torch.testing.assert_close(together, both.clamp_min(0), rtol=1e-9, atol=1e-12)
    # Without pairs the classes alone are out.
    nothing = _cross(seen, 0, torch.device("cpu")).left
    torch.testing.assert_close(nothing, part.after, rtol=1e-9, atol=1e-12)


def test_figure_9b_has_the_layers_with_pairs_above_the_bulk(shop: Workshop) -> None:
    network = _look(shop.networks(TINY_BN), 0, ALL, shop)
    seen = errors_of_pairs()
    part = error_part(seen, 1, torch.device("cpu"))
    assert part is not None
    cross = {"1": _cross(seen, part.num_cross, torch.device("cpu"))}
    by_kind = {**network.by_kind, "errors": [part, dataclasses.replace(part, bulk=1e9, depth=2)]}
    (picture,) = _cross_picture(dataclasses.replace(network, by_kind=by_kind, cross=cross), 300)
    assert [panel.title for panel in picture.panels] == ["l = 1"]
    discs = picture.panels[0].marks[2]
    assert len(discs.y) == part.num_cross
    assert discs.x == pytest.approx(part.after[: part.num_cross].tolist(), rel=1e-3)
    assert discs.y == pytest.approx(cross["1"].left[: part.num_cross].tolist(), rel=1e-3)
    assert _cross_picture(dataclasses.replace(network, by_kind={"errors": []}), 300) == []


def test_the_global_mean_of_errors_is_minus_that_of_true_labels(shop: Workshop) -> None:
    """Each sample's errors, by its probabilities, add up to zero over labels."""
    seen = backpropagated_errors(shop.networks(TINY_BN).risk(0), "fc2")
    found = class_structure(seen.errors, classes=seen.classes, weights=seen.weights)
    weight = found.weights.sum() - found.weights.diagonal().sum()
    samples = torch.arange(len(seen.classes))
    p, true = (t[samples, seen.classes] for t in (seen.probabilities, seen.errors))
    torch.testing.assert_close(weight * found.global_mean, -(p[:, None] * true).mean(0))


def test_weights_are_judged_with_weight_decay_alone(
    ran: Callable[[str], StudyResult], small_study: Callable[[str], Study], shop: Workshop
) -> None:
    assert not [name for name in numbers_of(ran(NAME)) if ".weights." in name]
    assert "--weight-decay" in ran(NAME).notes[-1]
    recipe = dataclasses.replace(TINY_BN.recipe, optimizer=SGD(0.1, weight_decay=1e-3))
    casts = (dataclasses.replace(TINY_BN, recipe=recipe, seeds=(0,)),)
    setting = dataclasses.replace(small_study(NAME).settings["laptop"], casts=casts)
    study = dataclasses.replace(small_study(NAME), settings={"laptop": setting})
    result = run_study(study, shop)
    assert [name for name in numbers_of(result) if ".weights." in name]
    assert not any("--weight-decay" in note for note in result.notes)


def test_mean_gradients_beside_products_of_means(
    ran: Callable[[str], StudyResult], shop: Workshop
) -> None:
    """Table 1, from gradients of every sample with every label."""
    networks, cosine = shop.networks(TINY_BN), torch.nn.functional.cosine_similarity
    found: dict[str, list[float]] = {"classes": [], "pairs": [], "others": []}
    for seed in TINY_BN.seeds:
        model, data = networks.model(seed), networks.data
        for layer in ("fc1", "fc2"):
            h = inputs_of(networks, seed, layer)
            bias, weight = (model.get_parameter(f"{layer}.{name}") for name in ("bias", "weight"))
            logs = model(data.inputs).log_softmax(1)
            p = logs.detach().exp()
            cosines = {name: [] for name in found}
            centres = torch.stack([h[data.targets == c].mean(0) for c in range(10)])
            for c in range(10):
                parts = []
                own = (data.targets == c).nonzero()[:, 0]
                for label in set(range(10)) - {c}:
                    loss = -(p[own, label] * logs[own, label]).sum()  # p is a constant
                    g, delta = torch.autograd.grad(loss, (weight, bias), retain_graph=True)
                    product = torch.outer(delta, centres[c])
                    cosines["pairs"].append(cosine(g.flatten(), product.flatten(), dim=0))
                    parts.append((g, delta))
                g, delta = (sum(part) for part in zip(*parts, strict=True))
                for name, centre in (("classes", c), ("others", (c + 1) % 10)):
                    product = torch.outer(delta, centres[centre])
                    cosines[name].append(cosine(g.flatten(), product.flatten(), dim=0))
            for name, values in cosines.items():
                found[name].append(float(torch.stack(values).mean()))
    ours, table = numbers_of(ran(NAME)), ran(NAME).sheets[2].columns
    for claim, name in (("class", "classes"), ("cross", "pairs")):
        number = ours[f"papyan.table1.layers.{claim}-products"]
        assert number == pytest.approx(sum(found[name]) / 4)
    assert table["h of another class"] == pytest.approx(found["others"], rel=1e-4)
    assert min(a - b for a, b in zip(found["classes"], found["others"], strict=True)) > 0.05


def test_layers_are_reported_one_by_one(shop: Workshop) -> None:
    steps: list[Progress] = []
    _look(shop.networks(TINY_BN), 0, ALL, dataclasses.replace(shop, progress=steps.append))
    assert [(step.done, step.total) for step in steps] == [(1, 3), (2, 3)]
    assert {step.task for step in steps} == {"layers of F-12^2-BN (digits)"}


def test_the_data_set_that_agrees_least_counts() -> None:
    class Net:
        def __init__(self, label: str, value: float) -> None:
            self.label, self.value = label, value

    nets = [Net("a", 0.9), Net("a", 0.7), Net("b", 0.5), Net("b", 0.6)]
    more = _worst("papyan.fig7.features.outliers", nets, lambda net: net.value)
    less = _worst("papyan.fig7.features.bulk", nets, lambda net: net.value)
    assert (more.ours, less.ours) == pytest.approx((0.55, 0.8))
    assert more.spread == pytest.approx(0.1 / 2**0.5)
    assert _worst("papyan.fig7.features.bulk", nets[:1], lambda net: net.value).spread is None


def test_paper_scale_chooses_a_rate_and_some_samples(
    small_study: Callable[[str], Study], shop: Workshop
) -> None:
    """What the paper's scale does, with small networks: a grid, two kinds, some of the samples."""
    slow = dataclasses.replace(TINY.recipe, epochs=1)
    grid = tuple(
        dataclasses.replace(TINY, model=model, recipe=recipe, keep_epochs=(), seeds=(0,))
        for model in ("MLP-2x12-BN", "MLP-3x11-BN")
        for recipe in (TINY.recipe, slow)
    )
    options = STUDIES[NAME].settings["paper"].options | {"samples": 80}
    study = dataclasses.replace(
        small_study(NAME), settings={"laptop": Setting(), "paper": Setting(grid, options)}
    )
    result = run_study(study, shop, scale="paper")
    table = result.sheets[0].columns
    assert len(set(table["network"])) == 2
    best = max(grid[:2], key=lambda cast: shop.networks(cast).test_accuracy)
    risk_data = shop.networks(best).data.take(80, seed=0)
    h = risk_data.inputs.flatten(1)
    y = risk_data.targets
    M = sum(
        (y == c).double().mean() * torch.outer(h[y == c].mean(0), h[y == c].mean(0))
        for c in range(10)
        if bool((y == c).any())
    )
    values = torch.linalg.eigvalsh(M).flip(0)
    assert table["λ₂/λ_C"][0] == pytest.approx(float(values[1] / values[9]), rel=1e-4)


# --- a session on a GPU that is lent for a while -------------------------------------------------

FEWER = dataclasses.replace(TINY_BN, samples=60, seeds=(0,))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with the networks of two casts, of which the first is measured."""
    (tmp_path / "claims").mkdir()
    places = tmp_path / "shop", tmp_path / "claims", tmp_path / "parts"
    made = Run([NAME], "laptop", 600.0, time.time(), *places, "cpu", None)
    made.workshop().networks(FEWER)
    return made


@pytest.fixture
def pair(small_study: Callable[[str], Study]) -> Study:
    study = small_study(NAME)
    setting = dataclasses.replace(study.settings["laptop"], casts=(FEWER, TINY_BN))
    return dataclasses.replace(study, settings={"laptop": setting})


def test_networks_are_measured_as_soon_as_they_are_trained(run: Run, pair: Study) -> None:
    tried: set[str] = set()
    assert measure_next(run, pair, run.workshop(), tried)  # the other is not there
    (kept,) = (run.parts / "measured" / "layers").iterdir()
    assert kept.name.startswith(FEWER.key)
    assert not measure_next(run, pair, run.workshop(), tried)
    assert not measure_next(run, pair, run.workshop(), set())
    run.workshop().networks(TINY_BN)
    assert measure_next(run, pair, run.workshop(), tried)
    other = dataclasses.replace(pair, name="wu-spectra")  # which keeps nothing
    assert not measure_next(run, other, run.workshop(), set())


@pytest.mark.parametrize("is_over", [True, False])
def test_what_is_measured_is_recorded_where_the_rest_is_not(
    is_over: bool, run: Run, pair: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure_next(run, pair, run.workshop(), set())
    run.workshop().networks(TINY_BN)

    def look(*others: Any) -> None:
        raise RuntimeError("the moon is full")

    if is_over:
        run = dataclasses.replace(run, seconds=-1.0)
    else:
        monkeypatch.setattr(papyan_layers, "_look", look)
    assert record(run, pair, tmp_path / "results", run.workshop()) is is_over
    result = read_result(tmp_path / "results" / f"{NAME}-laptop.json")
    assert "Not run: F-12^2-BN (digits, samples 100)." in result.notes[0]
    assert set(result.sheets[0].columns["seed"]) == {0}
    assert numbers_of(result)
