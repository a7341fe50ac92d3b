"""The page of an analysis: key numbers, the words around its figures, and its doubts."""

import dataclasses
import math
from typing import Any

import pandas
import pytest
import torch

from eigenscape.analyses import Analysis
from eigenscape.records import Picture, SelfTest
from eigenscape.report import page_of
from eigenscape.report._analysis_page import cards_of, facts_of, failures_of, verdicts_of
from tests.report import samples


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    record = samples.analysis(n=40)
    torch.set_default_dtype(before)
    return record


def pictures(record: Analysis) -> dict[str, Picture]:
    return {p.name: p for section in page_of(record).sections for p in section.pictures}


def change(record: Any, **fields: Any) -> Any:
    return dataclasses.replace(record, **fields)


def test_cards_tell_the_key_numbers_with_their_errors(analysis: Analysis) -> None:
    cards = {card.name: card for card in cards_of(analysis)}
    assert list(cards) == [
        "loss", "accuracy", "‖gradient‖", "λ₁", "λ min", "trace", "‖H‖ Frobenius", "outliers",
    ]  # fmt: skip
    assert (cards["loss"].value, cards["accuracy"].value) == ("0.0123", "98.70%")
    assert float(cards["λ₁"].value) == pytest.approx(11.0)
    assert cards["λ₁"].note.startswith("± ")
    assert cards["outliers"].note == "gap ×3.20, 10 classes"


@pytest.mark.parametrize(
    ("stderr", "note"),
    [(0.0, "exact"), (math.nan, "one probe, no error"), (0.0123, "± 0.012 s.e.")],
)
def test_an_error_is_told_as_it_is_known(analysis: Analysis, stderr: float, note: str) -> None:
    record = change(analysis, hessian=change(analysis.hessian, trace_stderr=stderr))
    (card,) = (card for card in cards_of(record) if card.name == "trace")
    assert card.note == note


def test_what_is_not_there_has_no_card() -> None:
    record = change(samples.tiny(), hessian=None, point=None)
    (card,) = cards_of(record)
    assert (card.name, card.value, card.note) == ("outliers", "0", "no classes")


def test_every_figure_stands_once_and_in_order(analysis: Analysis) -> None:
    sections = page_of(analysis).sections
    keys = ["the-whole-matrix", "layer-by-layer", "what-it-cost"]
    assert [section.key for section in sections] == keys
    names = [picture.name for section in sections for picture in section.pictures]
    assert sorted(names) == sorted(picture.name for picture in analysis.pictures())
    assert names[-1] == "cost"
    assert names.index("hessian-spectrum") < names.index("layers")


def test_sections_without_figures_are_left_out() -> None:
    record = change(samples.tiny(), blocks=None)
    titles = [section.title for section in page_of(record).sections]
    assert titles == ["The whole matrix", "What it cost"]


def test_words_tell_products_and_sizes(analysis: Analysis) -> None:
    words = pictures(analysis)["hessian-spectrum"]
    assert "the 40 eigenvalues of H" in words.shows
    assert words.cost.startswith(f"{analysis.hessian.num_products} products, 1.2")
    assert "Largest residual of the eigenpairs: H " in words.sure
    assert words.converged
    assert pictures(analysis)["top-eigenvalues"].cost == "no further product"
    assert pictures(analysis)["layers"].cost.startswith("320 products")


def test_what_did_not_converge_is_said(analysis: Analysis) -> None:
    H = change(analysis.hessian, status=samples.POOR)
    words = pictures(change(analysis, hessian=H))["hessian-spectrum"]
    assert not words.converged
    assert words.sure.startswith(f"H: {samples.POOR.text}")
    both = pictures(change(analysis, hessian=H))["three-matrices"]
    assert not both.converged
    assert both.sure.count(samples.POOR.text) == 1


def test_layers_that_did_not_converge_are_named(analysis: Analysis) -> None:
    rows = tuple(samples.layer(f"fc{i}", i, converged=i in (0, 4)) for i in range(9))
    layers = change(analysis.layers, layers=rows)
    words = pictures(change(analysis, layers=layers))["layers"]
    assert words.sure == "7 of 9 layers did not converge: fc1, fc2, fc3, fc5, fc6, …."
    assert not words.converged


@pytest.mark.parametrize("certain", [True, False])
def test_a_gap_is_as_certain_as_its_intervals(analysis: Analysis, certain: bool) -> None:
    outliers = change(analysis.outliers, is_certain=certain)
    words = pictures(change(analysis, outliers=outliers))["top-eigenvalues"]
    assert "a factor 3.20, comes after 9" in words.shows
    assert words.converged is certain
    assert ("is not certain" in words.sure) is not certain


def test_no_outlier_is_called_one(analysis: Analysis) -> None:
    outliers = change(analysis.outliers, num_outliers=0)
    words = pictures(change(analysis, outliers=outliers))["top-eigenvalues"]
    assert "nothing is called an outlier" in words.shows
    assert "gap is" not in words.sure


def test_the_largest_error_of_norms_is_told(analysis: Analysis) -> None:
    assert "The largest standard error is 2% of its norm." in pictures(analysis)["block-norms"].sure
    empty = change(analysis.blocks, values=torch.zeros_like(analysis.blocks.values))
    sure = pictures(change(analysis, blocks=empty))["block-norms"].sure
    assert sure == analysis.blocks.status.text


def test_the_cost_is_what_was_planned_and_what_it_took(analysis: Analysis) -> None:
    words = pictures(analysis)["cost"]
    assert "3.4 s planned, 3.8 s measured, on cpu" in words.shows
    assert words.cost.startswith("4 321 products")


def test_facts_keep_what_the_user_said(analysis: Analysis) -> None:
    facts = facts_of(analysis)
    assert facts["model"] == "fc 64–32–10, tanh"
    assert facts["samples"] == "1 797"
    assert facts["parameters"] == "200"
    mine = change(analysis, description={"samples": "many"})
    assert facts_of(mine)["samples"] == "many"
    assert analysis.description.keys() == {"model", "loss", "data"}  # not written to


def test_failures_and_verdicts_are_tables(analysis: Analysis) -> None:
    assert failures_of(change(analysis, failures={"layers": "It broke."})) == {
        "part": ["layers"],
        "reason": ["It broke."],
    }
    assert failures_of(analysis) == {"part": [], "reason": []}
    verdict = SelfTest("unresolved", "It jumps.")
    record = change(analysis, residual=change(analysis.residual, self_test=verdict))
    table = verdicts_of(record)
    assert table == {"matrix": ["H − G"], "verdict": ["unresolved"], "reason": ["It jumps."]}


def test_layers_have_a_table_of_all_rows_below_their_figures(analysis: Analysis) -> None:
    """Page and data frame are made from the same columns."""
    layers = samples.layer_curvature([f"layer{i}" for i in range(30)])
    record = change(analysis, layers=layers)
    _, by_layer, cost = page_of(record).sections
    assert cost.sheet is None
    assert by_layer.sheet is not None
    frame = layers.to_frame().to_dict("list")
    assert list(by_layer.sheet.table) == list(frame)
    assert by_layer.sheet.table["layer"] == frame["layer"] == [f"layer{i}" for i in range(30)]
    assert pictures(record)["layers"].table == by_layer.sheet.table
    pandas.testing.assert_frame_equal(pandas.DataFrame(by_layer.sheet.table), layers.to_frame())
