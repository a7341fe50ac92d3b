from collections.abc import Callable

import numpy as np
import pytest

from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Networks, Workshop
from eigenscape.studies.wu_autocorrelation import _TABLES, _measured, _Row
from tests.studies.conftest import TINY, TINY_BN, inputs_of, numbers_of

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
    summary, layers = ran(NAME).sheets
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
        assert [row[name] for name in names] == pytest.approx(found)
    later = [row["λ₁/λ₂"] for row in mine if not row["first layer"]]
    place = summary.columns["network"].index(TINY.model)
    for name, reduce in (("mean", np.mean), ("min", min), ("max", max)):
        assert summary.columns[f"λ₁/λ₂ {name}"][place] == pytest.approx(reduce(later))


def row(model: str, data: str, kind: str, **changes: float) -> _Row:
    numbers = {"alignment": 0.9, "ratio": 4.0, "dominance": 2.0} | changes
    return (model, data, kind, 0, "fc2", False, *numbers.values())


def test_every_line_of_the_tables_is_measured() -> None:
    found = _measured([row(*key) for key in _TABLES])
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
