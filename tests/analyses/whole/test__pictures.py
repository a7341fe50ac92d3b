"""Pictures of what stands out: the numbers of the records, and nothing else."""

import dataclasses
import math

import pytest
import torch

from eigenscape.analyses import Analysis, ExactTrace
from eigenscape.analyses.whole._pictures import (
    exact_traces_picture,
    overlap_picture,
    plan_picture,
    point_picture,
    positive_axis,
    scree,
)
from eigenscape.records import Line, Note, Points, Rule
from tests.report import samples
from tests.report.samples import marks, same


def test_a_scree_names_classes_and_the_gap(analysis: Analysis) -> None:
    outliers = analysis.outliers
    picture = scree(outliers)
    first, others = marks(picture, Points)
    same([*first.y, *others.y], outliers.values)
    same([*first.y_error, *others.y_error], outliers.residuals)
    assert (len(first.x), others.x[0]) == (9, 10.0)
    assert [(rule.at, rule.text) for rule in marks(picture, Rule)] == [
        (9.5, "C − 1 = 9"), (10.5, "C = 10"),
    ]  # fmt: skip
    (note,) = marks(picture, Note)
    assert note.text == "gap ×3.20"
    values = outliers.values.tolist()
    assert note.y == pytest.approx(math.sqrt(values[8] * values[9]))
    unsure = scree(dataclasses.replace(outliers, is_certain=False))
    assert marks(unsure, Note)[0].text == "gap ×3.20, not certain"


def test_a_logarithmic_axis_says_what_it_leaves_out() -> None:
    axis, notes = positive_axis([3.0, 0.0, -1.0], "λ")
    assert axis.log
    assert notes[0].startswith("2 of 3 eigenvalues are not positive")
    assert positive_axis([3.0, 1.0], "λ")[1] == ()
    axis, notes = positive_axis([-3.0, 0.0], "λ")
    assert not axis.log
    assert notes == ()


def test_the_share_of_the_gradient_stands_beside_chance(analysis: Analysis) -> None:
    overlap = analysis.gradient_overlap
    picture = overlap_picture(overlap)
    shares, chance = marks(picture, Line)
    same(shares.y, overlap.shares)
    same(chance.y, overlap.chance)
    assert (shares.dashed, chance.dashed) == (False, True)
    assert shares.x == [float(j) for j in range(1, len(overlap.shares) + 1)]


# --- single numbers ------------------------------------------------------------------------------


def test_a_point_shows_what_is_positive(analysis: Analysis) -> None:
    point = analysis.point
    (dots,) = marks(point_picture(point), Points)
    assert dots.x == [point.loss, point.gradient_norm, point.parameter_norm, point.accuracy]
    flat = point_picture(dataclasses.replace(point, loss=0.0, accuracy=None))
    (dots,) = marks(flat, Points)
    assert dots.x == [point.gradient_norm, point.parameter_norm]
    assert dots.y == [1.0, 2.0]
    assert flat.notes == ("1 values are not positive and not on the logarithmic axis.",)


def test_stages_have_predicted_and_measured_seconds(analysis: Analysis) -> None:
    measured = {"layers": 2.2, "not planned": 0.5}
    picture = plan_picture(analysis.plan, measured)
    predicted, taken = marks(picture, Points)
    assert (predicted.x, predicted.y) == ([1.1, 2.0, 0.3], [0.0, 1.0, 2.0])
    assert (taken.x, taken.y) == ([2.2, 0.5], [1.0, 3.0])
    assert picture.table["stage"][-1] == "not planned"
    assert picture.table["measured seconds"] == [None, 2.2, None, 0.5]
    assert len(marks(plan_picture(analysis.plan), Points)) == 1
    assert "measured seconds" not in plan_picture(analysis.plan).table


def test_exact_traces_are_dots_without_errors() -> None:
    traces = torch.tensor([0.5, 3.0])
    record = ExactTrace(samples.GOOD, 0, 0, 3.5, ("a", "b"), traces, True, "", 3, 0.1)
    (dots,) = marks(exact_traces_picture(record), Points)
    same(dots.x, traces)
    assert dots.x_error == [0.0, 0.0]
    assert exact_traces_picture(record).table["layer"] == ["a", "b"]
