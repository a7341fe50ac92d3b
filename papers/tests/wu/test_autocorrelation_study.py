from collections.abc import Callable

import numpy as np
import pytest

from eigenscape_papers.runner import Networks, Setting, StudyResult, Workshop
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu.autocorrelation_study import _measured, _Row
from papers.tests.conftest import TINY, TINY_BN, inputs_of, numbers_of

NAME = "wu-autocorrelation"


def spectrum(networks: Networks, seed: int, layer: str) -> tuple[float, float, float]:
    """Return alignment, λ₁/λ₂ and ‖E[x]E[x]ᵀ‖/‖Σ‖ with numpy."""
    x = inputs_of(networks, seed, layer).numpy()
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    mean = x.mean(0)
    aligned = (vectors[:, -1] @ mean) ** 2 / (mean @ mean)
    covariance = np.cov(x.T, bias=True)
    return aligned, values[-1] / values[-2], mean @ mean / np.linalg.norm(covariance, 2)


def test_ratio_behind_batchnorm(ran: Callable[[str], StudyResult], shop: Workshop) -> None:
    networks = shop.networks(TINY_BN)
    ratios = [spectrum(networks, seed, layer)[1] for seed in (0, 1) for layer in ("fc2", "fc3")]
    ours = numbers_of(ran(NAME))["wu.table8.batchnorm.ratio"]
    assert ours == pytest.approx(np.mean(ratios))


def test_every_layer_has_its_row(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    summary, layers, _ = ran(NAME).sheets
    rows = [
        dict(zip(layers.columns, row, strict=True))
        for row in zip(*layers.columns.values(), strict=True)
    ]
    mine = [row for row in rows if row["network"] == TINY.model]
    assert [(row["seed"], row["layer"]) for row in mine] == [
        (seed, layer) for seed in (0, 1) for layer in ("fc1", "fc2", "fc3")
    ]
    assert [row["first layer"] for row in mine] == [True, False, False] * 2
    for row in mine:
        found = spectrum(tiny, row["seed"], row["layer"])
        names = ("(v₁ᵀÊ[x])²", "λ₁/λ₂", "‖E[x]E[x]ᵀ‖/‖Σ‖")
        assert [row[name] for name in names] == pytest.approx(found, rel=1e-5)
    later = [row["λ₁/λ₂"] for row in mine if not row["first layer"]]
    place = summary.columns["network"].index(TINY.model)
    for name, reduce in (("mean", np.mean), ("min", min), ("max", max)):
        ours = summary.columns[f"λ₁/λ₂ {name}"][place]
        assert ours == pytest.approx(reduce(later), rel=1e-5)


def test_ratios_along_training(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    columns = ran(NAME).sheets[2].columns
    assert set(columns["network"]) == {TINY.label}  # the others kept no epochs
    assert list(zip(columns["epoch"], columns["layer"], strict=True)) == [
        (epoch, layer) for epoch in (0, 1, 2) for layer in ("fc2", "fc3")
    ]
    for place, (epoch, layer) in enumerate(zip(columns["epoch"], columns["layer"], strict=True)):
        runs = []
        for seed in tiny.cast.seeds:
            x = inputs_of(tiny, seed, layer, epoch).numpy()
            values = np.linalg.eigvalsh(x.T @ x)
            runs.append(values[-1] / values[-2])
        assert columns["λ₁/λ₂"][place] == pytest.approx(np.mean(runs), rel=1e-5)
        assert columns["sd over seeds"][place] == pytest.approx(np.std(runs, ddof=1), rel=1e-4)
    (panel,) = ran(NAME).pictures()[-1].panels
    assert [label for _, label in panel.x.ticks] == ["0", "1", "2"]
    assert panel.marks[1].label == "fc3"
    assert panel.marks[1].y == pytest.approx(columns["λ₁/λ₂"][1::2], rel=1e-5)
    assert not any("at hand" in note for note in ran(NAME).notes)


def test_epochs_whose_weights_are_gone_are_left_out(empty_shop: Workshop) -> None:
    networks = empty_shop.networks(TINY)
    (networks.folder / "seed-1" / "epoch-0001.safetensors").unlink()
    outcome = STUDIES[NAME].measure(Setting((TINY,)), empty_shop)
    assert set(outcome.sheets[2].columns["epoch"]) == {0, 2}
    assert outcome.notes == (f"Weights of {TINY.label} at epoch 1 are not at hand.",)


def test_the_spread_is_a_standard_deviation() -> None:
    rows = [row("LeNet5", "cifar10", "conv", ratio=ratio) for ratio in (3.0, 4.0, 8.0)]
    found = _measured(rows)["wu.table7.lenet5-cifar10-conv.spectral-ratio"]
    assert (found.ours, found.spread) == pytest.approx((5.0, np.std([3, 4, 8], ddof=1)))


def row(model: str, data: str, kind: str, **changes: float) -> _Row:
    numbers = {"alignment": 0.9, "ratio": 4.0, "dominance": 2.0} | changes
    return (model, data, kind, 0, "fc2", False, *numbers.values())


def test_every_line_of_the_tables_is_measured() -> None:
    casts = STUDIES[NAME].settings["paper"].casts
    keys = [
        (cast.model, cast.data, kind)
        for cast in casts
        for kind in ("fc", *(("conv",) if cast.model.startswith(("LeNet", "VGG")) else ()))
        if (cast.model, kind) != ("LeNet5-BN", "conv")
    ]
    found = _measured([row(*key) for key in keys])
    assert found.keys() == {claim.id for claim in STUDIES[NAME].claims}
    assert found["wu.eq52.lower-bound"].ours == 2.0


def test_inputs_without_mean_or_spread_bound_nothing() -> None:
    rows = [row("net", "toy", "fc", dominance=0.0), row("net", "toy", "fc", ratio=float("inf"))]
    assert "wu.eq52.lower-bound" not in _measured(rows)
    assert _measured([*rows, row("net", "toy", "fc")])["wu.eq52.lower-bound"].ours == 2.0
    assert "wu.eq52.lower-bound" not in _measured([row("net", "toy", "conv")])


def test_the_first_layer_is_left_out() -> None:
    first = (*row("net", "toy", "fc", alignment=0.1)[:5], True, 0.1, 4.0, 2.0)
    ours = _measured([first, row("net", "toy", "fc")])["wu.sec4.3.mean-direction.least"].ours
    assert ours == 0.9


def test_convolutions_are_left_out_of_what_is_said_of_all_networks() -> None:
    rows = [row("net", "toy", "conv", alignment=0.1, ratio=1.0), row("net", "toy", "fc")]
    found = _measured(rows)
    assert found["wu.sec4.3.mean-direction.least"].ours == 0.9
    assert found["wu.sec4.3.mean-direction.mean"].ours == 0.9
    assert found["wu.sec4.3.spectral-ratio.mean"].ours == 4.0
    assert not any(".sec4.3." in name for name in _measured(rows[:1]))


def test_a_layer_of_many_seeds_counts_once() -> None:
    rows = [row("one", "toy", "fc", ratio=3.0)] * 5 + [row("two", "toy", "fc", ratio=9.0)]
    assert _measured(rows)["wu.sec4.3.spectral-ratio.mean"].ours == pytest.approx(6.0)


def test_behind_batchnorm_the_mean_direction_is_a_mean() -> None:
    rows = [row("LeNet5-BN", "cifar10", "fc", alignment=value) for value in (0.0, 0.1, 0.5)]
    found = _measured(rows)
    ours = found["wu.table8.lenet5bn-cifar10-fc.mean-direction.mean"]
    assert (ours.ours, ours.spread) == pytest.approx((0.2, np.std([0, 0.1, 0.5], ddof=1)))
    assert not any(".sec4.3." in name for name in found)
