"""Pictures of Wu's records and of the theory beside them: the numbers, and nothing else."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure

from eigenscape.curvature import KroneckerHessian, LayerHessian
from eigenscape.linalg import eigsh
from eigenscape.records import Line, Note, Points, Raster, Rule
from eigenscape.report import draw, write_figures
from eigenscape.report._plotly import plots
from eigenscape_papers.theory import (
    decoupling,
    estimate_output_hessian,
    finite_width_curve,
    limit_output_hessian,
)
from eigenscape_papers.wu import (
    eigenvector_correspondence,
    full_approximation,
    logit_gradients,
    output_space_overlap,
    overlap_prediction,
)
from tests.analyses.layers.test__pictures import LAYER, marks, picture, small_risk


def records() -> dict[str, Any]:
    one, two = small_risk(0), small_risk(1)
    factors = [KroneckerHessian(risk, LAYER) for risk in (one, two)]
    pairs = eigsh(LayerHessian(one, LAYER), num_pairs=8)
    draws = torch.Generator().manual_seed(2)
    W1, W2 = torch.randn(12, 40, generator=draws), torch.randn(3, 12, generator=draws)
    return {
        "EigenvectorCorrespondence": eigenvector_correspondence(pairs, factors[0]),
        "OverlapPrediction": overlap_prediction(*factors, num_vectors=12, num_inputs=3),
        "FullApproximation": full_approximation(one, num_pairs=4),
        "FullApproximation of G": full_approximation(one, num_pairs=4, matrix="gauss_newton"),
        "LogitGradients": logit_gradients(one, LAYER),
        "LogitGradients without points": logit_gradients(one, LAYER, tsne=False),
        "OutputSpaceOverlap": output_space_overlap(one, "2"),
        "FiniteWidthCurve": finite_width_curve(
            (8, 16), num_classes=3, num_samples=64, seeds=(0, 1)
        ),
        "TwoLayerHessian": estimate_output_hessian(W1, W2, num_samples=64),
        "TwoLayerHessian predicted": limit_output_hessian(W2),
        "Decoupling": decoupling(W1 / math.sqrt(40), W2 / math.sqrt(12), num_samples=64),
    }


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    found = records()
    torch.set_default_dtype(before)
    return found


def test_every_record_is_drawn_in_all_ways(made: dict[str, Any]) -> None:
    for name, record in made.items():
        axes = draw(record, Figure().subplots())
        assert axes.has_data(), name
        shown = picture(record)
        axes = record.plot()
        # A raster brings a colour bar, on axes of its own.
        assert len(axes.figure.axes) >= len(shown.panels), name
        axes.figure.canvas.draw()
        plt.close(axes.figure)
        assert shown.table, name
        json.dumps(plots(shown), allow_nan=False)


def test_a_picture_is_written_as_files(made: dict[str, Any], tmp_path: Path) -> None:
    paths = write_figures(made["OutputSpaceOverlap"], tmp_path)
    assert [path.name for path in paths] == ["output-space.png", "output-space.pdf"]


def test_the_peak_and_the_rank_of_a_prediction(made: dict[str, Any]) -> None:
    record = dataclasses.replace(made["OverlapPrediction"], peak=3, rank=5)
    (peak,) = marks(record, 0, Points)
    assert (peak.x, peak.y) == ([3.0], [float(record.overlaps[2])])
    assert [rule.at for rule in marks(record, 0, Rule)] == [5]
    shares = marks(record, 1, Line)
    assert [line.y for line in shares] == record.shares.tolist()
    beyond = dataclasses.replace(record, peak=30, rank=40)
    assert not marks(beyond, 0, Points)
    assert not marks(beyond, 0, Rule)


def test_whole_matrices_are_called_by_their_names(made: dict[str, Any]) -> None:
    record = made["FullApproximation of G"]
    assert picture(record).title.startswith("The whole Gauss-Newton matrix")
    rescaled, printed = (mark.y for mark in marks(record, 0, Line))
    assert rescaled == record.rescaled.tolist()
    assert printed == record.approximated.tolist()


def test_points_are_drawn_twice_and_numbered_at_their_centres(made: dict[str, Any]) -> None:
    record = made["LogitGradients"]
    k, c = len(record.classes), 3
    for panel, kind in enumerate((c, k)):
        shown = marks(record, panel, Points)
        assert sum(len(points.x) for points in shown) == k * c + kind
        assert sum(points.hollow for points in shown) == kind
        assert [note.text for note in marks(record, panel, Note)] == [str(i) for i in range(kind)]
        first = next(points for points in shown if not points.hollow)
        which = (record.point_logits, record.point_classes)[panel] == 0
        other = (record.point_classes, record.point_logits)[panel] >= 0
        assert first.x == record.coordinates[which & other][:, 0].tolist()
    (shares,) = marks(made["LogitGradients without points"], 0, Points)
    assert shares.x[:2] == [record.logit_share, record.class_share]


def test_more_kinds_than_colours_have_a_colour_each(made: dict[str, Any]) -> None:
    record = made["LogitGradients"]
    count = 11
    which = torch.arange(count)
    many = dataclasses.replace(
        record,
        point_logits=which,
        point_classes=torch.zeros(count, dtype=torch.long),
        coordinates=torch.rand(count, 2),
    )
    assert len({points.colour for points in marks(many, 0, Points)}) == count


def test_the_dimension_splits_the_eigenvalues(made: dict[str, Any]) -> None:
    record = made["OutputSpaceOverlap"]
    first, rest = marks(record, 0, Points)
    assert (len(first.x), len(rest.x)) == (record.dimension, 5 - record.dimension)
    assert first.y + rest.y == record.values.tolist()
    assert [rule.at for rule in marks(record, 0, Rule)] == [record.dimension + 0.5]


def test_widths_have_spreads_and_a_limit(made: dict[str, Any]) -> None:
    record = made["FiniteWidthCurve"]
    estimated = marks(record, 0, Points)[1]
    assert estimated.y == pytest.approx(record.ratios.mean(1).tolist())
    assert estimated.y_error == pytest.approx(record.ratios.std(1).tolist())
    assert [rule.at for rule in marks(record, 1, Rule)] == [record.row_limit]
    assert (picture(record).panels[0].x.ticks or []) == [(3.0, "8"), (4.0, "16")]
    single = finite_width_curve((8,), num_classes=3, num_samples=16, seeds=(0,))
    assert all(points.y_error is None for points in marks(single, 0, Points))


def test_gaps_of_random_networks(made: dict[str, Any]) -> None:
    for name in ("TwoLayerHessian", "Decoupling"):
        record = made[name]
        top, last = marks(record, 0, Points)
        assert top.y + last.y == record.pairs.values.tolist()
        assert len(last.y) == 1
        assert marks(record, 0, Rule)[0].at == 2.5
    bars = picture(made["TwoLayerHessian"]).panels[1].marks[0]
    assert sum(bars.heights) == 12


def test_correspondences_are_rasters_counted_from_one(made: dict[str, Any]) -> None:
    record = made["EigenvectorCorrespondence"]
    for panel, matrix in enumerate((record.output, record.input)):
        (raster,) = marks(record, panel, Raster)
        assert raster.values == matrix.tolist()
        assert raster.limits == (0.0, 1.0)
        assert (picture(record).panels[panel].y.ticks or [])[0] == (0.0, "1")
    assert picture(record).notes == ()


def test_rows_that_are_left_out_are_counted(made: dict[str, Any]) -> None:
    found = made["EigenvectorCorrespondence"]
    tall = torch.zeros(300, 8)
    tall[0], tall[299] = 0.75, 0.25
    note = picture(dataclasses.replace(found, input=tall)).notes
    assert note == (
        "Only the first 10 of 300 v: the others have 0.25 of an eigenvector on average.",
    )
    wide = dataclasses.replace(found, output=torch.rand(4, 250), input=torch.rand(3, 250))
    (raster,) = marks(wide, 0, Raster)
    assert len(raster.values[0]) == 200
    assert picture(wide).notes == ("Only the first 200 of 250 eigenvectors of the layer.",)
