"""Bounds of small networks: what a row says, what is kept, and how claims are measured."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from eigenscape.bounds import BoundRecipe, layer_basis
from eigenscape.errors import EigenscapeError
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk
from eigenscape_papers.datasets import load
from eigenscape_papers.runner import Setting, StudyResult, Workshop, run_study
from eigenscape_papers.wu import _bounds_rows as made
from eigenscape_papers.wu import _table_9 as printed
from eigenscape_papers.wu import bounds_study as wu_bounds
from eigenscape_papers.wu._bounds_rows import Row
from papers.tests.conftest import numbers_of

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
    panels = result.pictures()[0].panels
    assert [panel.title for panel in panels] == [m.upper() for m in methods]
    assert panels[0].x.label == "parameter"
    assert all(panel.x.label == "direction, eigenvalues falling" for panel in panels[1:])
    assert len({panel.y.limits for panel in panels}) == 1
    assert all(panel.x.log for panel in panels)
    assert set(columns["confirmed"]) == {"yes"}
    assert set(columns["n"]) == {1437}
    assert set(columns["draws"]) == {60}
    assert set(columns["δ"]) == {0.025}
    assert set(columns["δ'"]) == {0.01}
    assert all(place >= 1 for place in columns["j"])
    # Table 9 has none of these networks.
    assert [sheet.name for sheet in result.sheets] == ["bounds", "differences"]


def test_claims_are_measured_from_the_rows(result: StudyResult) -> None:
    columns, numbers = result.sheets[0].columns, numbers_of(result)
    found: dict[tuple[str, int], dict[str, float]] = {}
    for name, seed, method, bound in zip(
        *(columns[key] for key in ("network", "seed", "method", "bound")), strict=True
    ):
        found.setdefault((name, seed), {})[method] = bound
    ends = []
    for name in ("T-3", "R-3"):
        one, two = (row["appr"] - row["base"] for (net, _), row in found.items() if net == name)
        ends.append((one + two) / 2 + 2 * abs(one - two) / 2)  # the standard error of two numbers
    assert numbers["wu.table1.appr-below-base"] == pytest.approx(max(ends), abs=1e-4)
    gaps = [row["iter-m"] / row["iter"] - 1 for row in found.values()]
    assert numbers["wu.table1.iter-m-close-to-iter"] == pytest.approx(sum(gaps) / 4, abs=1e-4)
    assert -1.0 <= numbers["wu.fig7.iter-variance-falls"] <= 1.0
    falls = [numbers[f"wu.fig7.{method}-variance-falls"] for method in ("iter", "appr")]
    assert numbers["wu.fig30.iter-falls-more"] == pytest.approx(falls[0] - falls[1])
    assert numbers["wu.table9.certificates-hold"] == 1.0
    assert 5e-6 < numbers["wu.table9.arithmetic"] < 1e-4


def test_a_note_compares_both_ways_to_change_the_basis(result: StudyResult) -> None:
    bounds = {("T-3", seed): {"iter": 0.3, "iter-index": 0.28 + 0.1 * seed} for seed in (0, 1)}
    (note,) = made.both_ways(bounds)
    assert "in 1 of 2 cases; the mean difference is +0.030" in note
    assert made.both_ways({("T-3", 0): {"iter": 0.3}}) == ()
    assert any("ITER-INDEX" in text for text in result.notes)


def test_what_was_computed_is_not_computed_again(
    result: StudyResult, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wu_bounds, "optimise_posterior", None)
    again = run_study(STUDY, shop)
    assert again.sheets[0].columns == result.sheets[0].columns
    assert again.pictures()[0].panels == result.pictures()[0].panels
    # Of a row that is finished nothing stays but the row.
    assert list(shop.folder.glob("bounds/*/seed-0/iter.json")) != []
    assert list(shop.folder.glob("bounds/*/seed-0/iter/*")) == []


def test_finished_rows_make_a_record_that_says_what_is_missing(
    result: StudyResult, shop: Workshop
) -> None:
    more = Setting(options={**SMALL.options, "networks": ("T-3", "T-4")})
    found = wu_bounds.measure_finished(more, shop)
    assert found.sheets[0].columns["network"] == ("T-3",) * 10
    assert found.sheets[0].columns["bound"] == result.sheets[0].columns["bound"][:10]
    assert found.notes[-1].startswith("Not run: T-4 seed 0 (BASE, APPR, ITER, ITER-M,")
    assert "; T-4 seed 1 (BASE, " in found.notes[-1]
    assert not any("Not run" in note for note in result.notes)
    # Other draws are other rows.
    fewer = Setting(options={**SMALL.options, "examples_per_draw": 10})
    assert wu_bounds.measure_finished(fewer, shop).sheets[0].columns["bound"] == ()


def test_the_setting_of_the_paper_says_how_draws_are_judged(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, int, str, int | None]] = []
    real, optimise = wu_bounds.certify, wu_bounds.optimise_posterior

    def spy(*args: Any, **settings: Any) -> Any:
        found = real(*args, **settings)
        recipe = recipes[-1]
        steps = recipe.tf32, recipe.batch_size, recipe.noise
        seen.append((*steps, found.examples_per_draw))
        return found

    recipes: list[BoundRecipe] = []

    def spy_too(*args: Any, **settings: Any) -> Any:
        recipes.append(settings["recipe"])
        return optimise(*args, **settings)

    monkeypatch.setattr(wu_bounds, "certify", spy)
    monkeypatch.setattr(wu_bounds, "optimise_posterior", spy_too)
    paper = wu_bounds.STUDY.settings["paper"].options
    options = {
        **SMALL.options,
        **{key: paper[key] for key in ("optimisation", "examples_per_draw")},
        "networks": ("T-3",),
        "methods": ("base",),
        "seeds": (0,),
    }
    options["optimisation"] = {**options["optimisation"], "epochs": 2}
    outcome = wu_bounds.measure(Setting(options=options), shop)
    assert seen == [(True, 2048, "outputs", 1024)]
    assert len(outcome.sheets[0].columns["bound"]) == 1


def row(network: str, seed: int, method: str, bound: float, **others: Any) -> Row:
    certificate = {"bound": bound, "kl": 4000.0, "error_bound": 0.03, "prior_variance": 0.04}
    numbers = {name: 1.0 for name in ("error", "num_examples", "num_samples", "index")}
    certificate |= {**numbers, "delta": 0.025, "delta_samples": 0.01}
    fields = {"refuted": "", "test_error": 0.015, "fall": -0.5, "curve": ([1, 2], [0.1, 0.2])}
    fields["device"] = "CPU"
    return Row(network, seed, method, certificate, **{**fields, **others})


def test_numbers_of_the_paper_are_compared_by_network_and_method() -> None:
    rows = [
        row("T-600", seed, method, bound, test_error=0.014 + 0.002 * seed, fall=fall)
        for seed in (0, 1)
        for method, bound, fall in (
            ("base", 0.15 + 0.01 * seed, math.nan),
            ("iter", 0.12, -0.5 - 0.2 * seed),
            ("iter-d", 0.126 - 0.018 * seed, -0.1),
        )
    ]
    rows.append(row("T-600", 0, "iter-m", 0.13, refuted="It does not hold.", test_error=0.014))
    measured = made.measured(rows)
    assert measured["wu.table9.t-600.base"].ours == pytest.approx(0.155)
    assert measured["wu.table9.t-600.base"].spread == pytest.approx(0.01 / 2**0.5)
    assert measured["wu.table1.t-600.test-error"].ours == pytest.approx(0.015)
    assert measured["wu.table1.t-600.test-error"].spread == pytest.approx(0.002 / 2**0.5)
    assert measured["wu.fig7.iter-variance-falls"].ours == pytest.approx(-0.6)
    # 0.126 and 0.108 lie 5 % above and 10 % below 0.12: distances do not cancel.
    assert measured["wu.table9.iter-d-close-to-iter"].ours == pytest.approx(0.075)
    assert measured["wu.table9.certificates-hold"].ours == pytest.approx(6 / 7)
    assert made.refuted(rows) == ("Not confirmed: T-600 seed 0 by ITER-M. It does not hold.",)
    assert "wu.table1.appr-below-base" not in measured
    assert "wu.fig30.iter-falls-more" not in measured
    assert measured.keys() <= {claim.id for claim in wu_bounds.STUDY.claims}


def test_methods_are_compared_network_by_network_and_paired_by_seed() -> None:
    falls = {"T-600": (0.01, 0.02, 0.06), "T-1200": (0.02, -0.01, 0.02), "R-600": (-0.3, -0.3, 0.0)}
    rows = [
        row(name, seed, method, 0.2 + 0.1 * seed - (fall if method == "iter" else 0.0))
        for name, own in falls.items()
        for seed, fall in enumerate(own)
        for method in ("appr", "iter")
    ]
    (_, found, _) = made.sheets(rows)
    columns = found.columns
    assert columns["network"] == ("T-600", "T-1200", "R-600")
    assert columns["methods"] == ("ITER - APPR",) * 3
    assert columns["mean"] == pytest.approx((-0.03, -0.01, 0.2))
    errors = (0.0007 / 3) ** 0.5, (0.0003 / 3) ** 0.5, (0.03 / 3) ** 0.5
    assert columns["standard error"] == pytest.approx(errors, rel=1e-5)
    assert columns["share below 0"] == pytest.approx((1.0, 2 / 3, 0.0), rel=1e-5)
    measured = made.measured(rows)
    # Random labels do not count here; and -0.01 is within two of 0.01.
    assert measured["wu.table1.iter-below-appr"].ours == pytest.approx(-0.01 + 2 * errors[1])
    assert "wu.table1.appr-below-base" not in measured
    # One seed has no spread, and decides nothing.
    assert "wu.table1.iter-below-appr" not in made.measured(rows[:2])


def test_table_9_stands_beside_ours() -> None:
    rows = [row("T-600", seed, "iter", 0.11 + 0.02 * seed) for seed in (0, 1)]
    _, beside = made.sheets([*rows, row("T-5", 0, "iter", 0.5)])
    assert beside.name == "table-9"
    found = {name: column for name, (column,) in beside.columns.items()}
    assert (found["network"], found["method"], found["seeds"]) == ("T-600", "iter", 2)
    assert (found["bound"], found["bound, theirs"]) == (pytest.approx(0.12), 0.1198)
    assert (found["KL"], found["KL, theirs"]) == (4000.0, 3766.1)
    assert (found["error of draws"], found["error of draws, theirs"]) == (0.03, 0.02347)
    assert found["½ log λ"] == pytest.approx(0.5 * math.log(0.04), rel=1e-5)
    assert found["½ log λ, theirs"] == -1.2913


def test_every_row_of_table_9_has_a_claim_and_every_network_a_test_error() -> None:
    claims = {claim.id: claim for claim in wu_bounds.STUDY.claims}
    assert len(claims) == len(wu_bounds.STUDY.claims)
    assert len(printed.TABLE_9) == 36
    for (name, method), (bound, *_) in printed.TABLE_9.items():
        assert claims[f"wu.table9.{printed.plain(name)}.{method}"].theirs == f"{bound:.4g}"
    assert printed.TEST_ERRORS.keys() == set(printed.NETWORKS)
    # "Wu" stands before the place wherever one is told.
    assert not any("Wu" in claim.where for claim in claims.values())
    # Ranges that are told of the paper are those of its table.
    pairs = {
        method: [
            printed.TABLE_9[name, method][0] / printed.TABLE_9[name, "iter"][0] - 1
            for name in printed.NETWORKS
            if {(name, method), (name, "iter")} <= printed.TABLE_9.keys()
        ]
        for method in ("iter-m", "iter-d")
    }
    assert len(pairs["iter-m"]) == 6
    assert (min(pairs["iter-m"]), max(pairs["iter-m"])) == pytest.approx((0.03, 0.27), abs=0.005)
    far = [abs(gap) for gap in pairs["iter-d"]]
    assert (min(far), max(far)) == pytest.approx((0.001, 0.08), abs=0.005)
    assert sum(far) / 5 == pytest.approx(0.02, abs=0.005)


def test_the_arithmetic_is_compared_with_every_row_on_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = [printed.place_on_grid(values[3]) for values in printed.TABLE_9.values()]
    assert sum(place > 0.5 for place in places) == 29
    assert printed.arithmetic_gap() < 1e-4
    wrong = {**printed.TABLE_9, ("R-600", "appr"): (0.5663, 390.25, 0.5066, -2.4713)}
    monkeypatch.setattr(printed, "TABLE_9", wrong)
    assert printed.arithmetic_gap() == pytest.approx(1e-3, abs=1e-4)


def test_the_picture_is_of_the_papers_network_where_it_is_there() -> None:
    rows = [row("T-600", 0, "base", 0.2), row("T10-200^2", 1, "base", 0.3)]
    rows += [row("T10-200^2", 1, "iter", 0.3, curve=([1, 3], [0.05, 0.4]))]
    (picture,) = made.pictures(rows)
    assert [panel.title for panel in picture.panels] == ["BASE", "ITER"]
    assert picture.shows.startswith("Of T10-200^2, seed 1.")
    assert picture.panels[0].y.limits == pytest.approx((0.05 / 1.5, 0.6))
    assert made.pictures(rows[:1])[0].shows.startswith("Of T-600, seed 0.")
    assert made.pictures([]) == ()


def test_seed_0_runs_first_and_variances_by_index_are_beside_it() -> None:
    paper = wu_bounds.STUDY.settings["paper"].options
    methods = ("base", "appr", "iter", "iter-d", "iter-m")
    others = [(seed, method) for seed in (1, 2) for method in methods]
    first = [(0, method) for method in methods]
    assert wu_bounds.plan("T-600", paper) == [*first, (0, "iter-index"), *others]
    assert wu_bounds.plan("T10-200^2", paper) == wu_bounds.plan("T-600", paper)
    assert wu_bounds.plan("T-1200", paper) == [*first, *others]


def test_one_network_of_the_paper_has_pixels_from_minus_one() -> None:
    shop = Workshop.__new__(Workshop)
    object.__setattr__(shop, "data_dir", None)
    paper = {**wu_bounds.STUDY.settings["paper"].options, "data": "digits"}
    least = {
        name: float(wu_bounds._data(name, "train", paper, shop).inputs.min())
        for name in printed.NETWORKS
    }
    assert least == {name: -1.0 if name == "T10-200^2" else 0.0 for name in printed.NETWORKS}
    for key in ("normalise", "init", "one_output"):
        assert wu_bounds._digest({**paper, key: "other"}) != wu_bounds._digest(paper)


def test_one_output_and_a_zero_are_the_logistic_loss() -> None:
    data = load("digits", normalise="unit").two_classes()
    options = {**SMALL.options, "one_output": True}
    net = wu_bounds._network("T-4^2", data, options, 0)
    assert isinstance(net, nn.Sequential)
    labels = data.targets.unsqueeze(1)
    ours = EmpiricalRisk(net.double(), CrossEntropy(), (data.inputs.double(), data.targets))
    logistic = EmpiricalRisk(net[0], BinaryCrossEntropy(), (data.inputs.double(), labels.double()))
    assert ours.space.size == 64 * 4 + 4 + 4 * 4 + 4 + 4 + 1
    torch.testing.assert_close(ours.value(), logistic.value())
    for kind in ("kronecker", "approximate"):
        pairs = zip(layer_basis(ours, kind).layers, layer_basis(logistic, kind).layers, strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one.eigenvalues, other.eigenvalues)
    ten = load("digits", normalise="unit")
    assert wu_bounds._network("T10-4", ten, options, 0)(ten.inputs[:3]).shape == (3, 10)
    two = wu_bounds._network("T-4", data, SMALL.options, 0)
    assert not isinstance(two, nn.Sequential)


def test_what_fresh_draws_have_against_a_certificate_is_kept(shop: Workshop) -> None:
    class Refuted:
        def verify(self, _risk: Any, **settings: Any) -> None:
            assert settings["num_samples"] == 60
            raise EigenscapeError("It does not hold.")

    found: Any = Refuted()
    assert wu_bounds._objection(found, found, SMALL.options, shop) == "It does not hold."


def test_curves_have_places_a_factor_apart_and_keep_the_order_of_rounding() -> None:
    count = 100_000
    eigenvalues = torch.zeros(count, dtype=torch.float64)
    eigenvalues[-3:] = torch.tensor([1.0, 3.0, 2.0])
    eigenvalues[:-3] = 1e-12 * torch.rand(count - 3, dtype=torch.float64)  # rounding
    variances = torch.arange(count, dtype=torch.float64)
    places, values = wu_bounds._curve(variances, eigenvalues)
    assert places[:5] == [1, 2, 3, 4, 5]
    assert places[-1] == count
    assert values[:3] == [count - 2, count - 1, count - 3]
    assert values[3:] == [place - 4 for place in places[3:]]
    # Without eigenvalues all are in their order.
    places, values = wu_bounds._curve(variances, torch.zeros(count))
    assert values == [place - 1 for place in places]
    assert sum(place <= 1000 for place in places) > len(places) / 3


def test_rank_correlation_knows_order_alone() -> None:
    x = torch.tensor([0.1, 5.0, 2.0, 9.0])
    assert wu_bounds._spearman(x, x.exp()) == pytest.approx(1.0)
    assert wu_bounds._spearman(x, -x) == pytest.approx(-1.0)
    # Directions without curvature are left out: their order is rounding.
    values = torch.tensor([3.0, 2.0, 1.0, 1e-17])
    assert wu_bounds._fall(torch.tensor([1.0, 2.0, 3.0, 0.0]), values) == pytest.approx(-1.0)
