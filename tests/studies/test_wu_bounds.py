"""Bounds of small networks: what a row says, what is kept, and how claims are measured."""

import dataclasses

import pytest
import torch

from eigenscape.report import StudyResult
from eigenscape.studies import Setting, Workshop, run_study, wu_bounds
from tests.studies.conftest import numbers_of

SMALL = Setting(
    options={
        **wu_bounds.STUDY.settings["laptop"].options,
        "networks": ("T-3", "R-3"),
        "seeds": (0, 1),
        "training": {"epochs": 5, "batch_size": 100},
        "optimisation": {"epochs": 12, "batch_size": 300, "learning_rate": 0.05},
        "draws": 60,
    }
)
STUDY = dataclasses.replace(wu_bounds.STUDY, settings={"laptop": SMALL})


@pytest.fixture(scope="module")
def result(shop: Workshop) -> StudyResult:
    return run_study(STUDY, shop)


def test_every_network_has_a_row_for_every_method(result: StudyResult) -> None:
    columns = result.sheets[0].columns
    rows = list(zip(columns["network"], columns["seed"], columns["method"], strict=True))
    methods = ("base", "appr", "iter", "iter-m")
    every = (*methods, "iter-index")
    assert rows == [(n, s, m) for n in ("T-3", "R-3") for s in (0, 1) for m in every]
    assert all(0.0 < bound <= 1.0 for bound in columns["bound"])
    assert len(set(columns["KL"])) == len(rows)
    assert [panel.title for panel in result.pictures[0].panels] == [m.upper() for m in methods]


def test_claims_are_measured_from_the_rows(result: StudyResult) -> None:
    columns, numbers = result.sheets[0].columns, numbers_of(result)
    found: dict[tuple[str, int], dict[str, float]] = {}
    for name, seed, method, bound in zip(
        *(columns[key] for key in ("network", "seed", "method", "bound")), strict=True
    ):
        found.setdefault((name, seed), {})[method] = bound
    share = sum(row["appr"] < row["base"] for row in found.values()) / 4
    assert numbers["wu.table1.appr-below-base"] == share
    gaps = [row["iter-m"] / row["iter"] - 1 for row in found.values()]
    assert numbers["wu.table1.iter-m-close-to-iter"] == pytest.approx(sum(gaps) / 4, abs=1e-4)
    assert -1.0 <= numbers["wu.fig7.iter-variance-falls"] <= 1.0


def test_a_note_compares_both_ways_to_change_the_basis(result: StudyResult) -> None:
    bounds = {("T-3", seed): {"iter": 0.3, "iter-index": 0.28 + 0.1 * seed} for seed in (0, 1)}
    (note,) = wu_bounds._notes(bounds)
    assert "in 1 of 2 cases; the mean difference is +0.030" in note
    assert wu_bounds._notes({("T-3", 0): {"iter": 0.3}}) == ()
    assert any("ITER-INDEX" in text for text in result.notes)


def test_what_was_computed_is_not_computed_again(
    result: StudyResult, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wu_bounds, "optimise_posterior", None)
    again = run_study(STUDY, shop)
    assert again.sheets[0].columns == result.sheets[0].columns


def test_numbers_of_the_paper_are_compared_by_network_and_method() -> None:
    bounds = {("T-600", seed): {"base": 0.15 + 0.01 * seed, "iter": 0.12} for seed in (0, 1)}
    measured = wu_bounds._measured(bounds, {"iter": [-0.5, -0.7]})
    assert measured["wu.table9.t-600.base"].ours == pytest.approx(0.155)
    assert measured["wu.table9.t-600.base"].spread == pytest.approx(0.01 / 2**0.5)
    assert measured["wu.fig7.iter-variance-falls"].ours == pytest.approx(-0.6)
    assert "wu.table1.appr-below-base" not in measured
    assert measured.keys() <= {claim.id for claim in wu_bounds.STUDY.claims}


def test_rank_correlation_knows_order_alone() -> None:
    x = torch.tensor([0.1, 5.0, 2.0, 9.0])
    assert wu_bounds._spearman(x, x.exp()) == pytest.approx(1.0)
    assert wu_bounds._spearman(x, -x) == pytest.approx(-1.0)
    # Directions without curvature are left out: their order is rounding.
    values = torch.tensor([3.0, 2.0, 1.0, 1e-17])
    assert wu_bounds._fall(torch.tensor([1.0, 2.0, 3.0, 0.0]), values) == pytest.approx(-1.0)
