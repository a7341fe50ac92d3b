import dataclasses
from collections.abc import Callable

import pytest
import torch

from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Setting, Study, Workshop, run_study
from eigenscape.studies.papyan_layers import _worst
from tests.studies.conftest import TINY, TINY_BN, inputs_of, numbers_of

NAME = "papyan-layers"


def test_features(ran: Callable[[str], StudyResult], shop: Workshop) -> None:
    ours, networks = numbers_of(ran(NAME)), shop.networks(TINY_BN)
    y = networks.data.targets
    ratios: dict[str, list[float]] = {"fc2": [], "fc3": []}
    whiskers = []
    for seed in TINY_BN.seeds:
        for layer, found in ratios.items():
            h = inputs_of(networks, seed, layer)
            means = torch.stack([h[y == c].mean(0) for c in range(10)])
            M = sum((y == c).double().mean() * torch.outer(means[c], means[c]) for c in range(10))
            values = torch.linalg.eigvalsh(M).flip(0)
            away = h - means[y]
            found.append(float(values[9] / torch.linalg.eigvalsh(away.T @ away / len(h))[-1]))
            if layer == "fc3":
                whiskers.append(float(values[1] / values[9]))
    assert ours["papyan.fig8.features.first"] == pytest.approx(sum(ratios["fc2"]) / 2)
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
    accuracy = ran(NAME).sheets[1].columns
    assert accuracy["l"] == (0, 1, 2, 0, 1, 2)
    assert all(0.1 < share <= 1.0 for share in accuracy["nearest class mean"])


def test_shares_are_those_of_the_picture(ran: Callable[[str], StudyResult]) -> None:
    result = ran(NAME)
    picture = next(p for p in result.pictures if p.name.startswith("depth"))
    points = next(m for m in picture.panels[0].marks if getattr(m, "label", None) == "errors")
    table = result.sheets[0].columns
    rows = [i for i, m in enumerate(table["matrix"]) if m == "Δ" and table["l"][i] == 2]
    mean = sum(table["taken by knockout"][i] for i in rows) / 2
    assert points.y[-1] == pytest.approx(mean, rel=1e-4)


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
