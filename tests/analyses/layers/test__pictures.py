"""Pictures of layers beside Kronecker products: the numbers of the records, and nothing else."""

import dataclasses
import json
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure

from eigenscape.analyses import (
    autocorrelation,
    autocorrelations,
    eigenspace_overlap,
    eigenvector_rank,
    kronecker_fit,
)
from eigenscape.curvature import KroneckerHessian, LayerHessian
from eigenscape.linalg import eigsh
from eigenscape.records import SERIES
from eigenscape.records.pictures import Line, Picture, Points, Rule
from eigenscape.report import draw
from eigenscape.report._plotly import plots
from eigenscape.risk import CrossEntropy, EmpiricalRisk

LAYER = "2.weight"  # 5 outputs, 6 inputs


def small_risk(seed: int) -> EmpiricalRisk:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 5), torch.nn.ReLU()
    ).append(torch.nn.Linear(5, 3))
    draws = torch.Generator().manual_seed(1)
    data = (torch.randn(40, 4, generator=draws), torch.arange(40) % 3)
    return EmpiricalRisk(model, CrossEntropy(), data)


def records() -> dict[str, Any]:
    one, two = small_risk(0), small_risk(1)
    pairs = [eigsh(LayerHessian(risk, LAYER), num_pairs=8) for risk in (one, two)]
    factors = [KroneckerHessian(risk, LAYER) for risk in (one, two)]
    return {
        "Autocorrelation": autocorrelation(one, "2"),
        "Autocorrelations": autocorrelations(one),
        "EigenspaceOverlap": eigenspace_overlap(*pairs),
        "EigenvectorRank": eigenvector_rank(pairs[0], factors[0]),
        "KroneckerFit": kronecker_fit(one, LAYER, num_pairs=4),
    }


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    found = records()
    torch.set_default_dtype(before)
    return found


def picture(record: Any) -> Picture:
    (only,) = record.pictures()
    return only


def marks(record: Any, panel: int, kind: type) -> list[Any]:
    return [mark for mark in picture(record).panels[panel].marks if isinstance(mark, kind)]


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


def test_overlaps_and_chance(made: dict[str, Any]) -> None:
    record = made["EigenspaceOverlap"]
    overlap, chance = marks(record, 0, Line)
    assert overlap.y == record.overlaps.tolist()
    assert chance.y == record.chance.tolist()
    assert overlap.x == [float(k) for k in range(1, 9)]
    low = dataclasses.replace(record, overlaps=record.overlaps / 1e3, chance=record.chance / 1e3)
    for found in (record, low):
        bottom, top = picture(found).panels[0].y.limits or (1.0, 0.0)
        assert bottom == 0.0
        assert max(found.overlaps) <= top <= max(1.05, 1.5 * float(max(found.overlaps)))


def test_ranks_stand_beside_those_of_random_vectors(made: dict[str, Any]) -> None:
    record = made["EigenvectorRank"]
    (shares,) = marks(record, 0, Points)
    assert shares.y == record.shares.tolist()
    (null,) = marks(record, 0, Rule)
    assert null.at == record.null
    assert not null.upright
    assert [line.y for line in marks(record, 1, Line)] == record.singular[:4].tolist()


def test_the_rules_bound_the_first_two_eigenvalues(made: dict[str, Any]) -> None:
    record = made["Autocorrelation"]
    mean, spread = (rule.at for rule in marks(record, 0, Rule))
    assert mean == pytest.approx(float(record.mean.square().sum()))
    assert spread == pytest.approx(float(torch.linalg.eigvalsh(record.covariance)[-1]))
    (points,) = marks(record, 0, Points)
    assert points.y == record.values.tolist()
    assert points.y[0] >= mean
    assert points.y[1] <= spread
    (against,) = marks(record, 1, Points)
    assert (against.x, against.y) == (record.direction.tolist(), record.vector.tolist())


def test_inputs_without_a_mean_or_without_spread_are_drawn() -> None:
    for inputs in (torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), torch.tensor([[1.0, 2.0]] * 2)):
        model = torch.nn.Sequential(torch.nn.Linear(2, 3))
        risk = EmpiricalRisk(model, CrossEntropy(), (inputs, torch.tensor([0, 1])))
        for record in (autocorrelation(risk, "0"), autocorrelations(risk)):
            figure = Figure()
            draw(record, figure.subplots())
            figure.canvas.draw()
            json.dumps(plots(picture(record)), allow_nan=False)
    assert any("infinite in 0" in note for note in picture(autocorrelations(risk)).notes)


def test_fits_have_residuals_and_errors(made: dict[str, Any]) -> None:
    record = made["KroneckerFit"]
    (hessian,) = marks(record, 0, Points)
    assert (hessian.y, hessian.y_error) == (record.values.tolist(), record.residuals.tolist())
    drawn = {mark.colour: mark.y for mark in marks(record, 1, Line)}
    for row, tint in zip(record.approximations, SERIES[1:], strict=False):
        assert drawn[tint] == row.overlaps.tolist()
    frobenius, spectral = marks(record, 2, Points)
    assert frobenius.x == [row.frobenius_error for row in record.approximations]
    assert spectral.x == [row.spectral_error for row in record.approximations]
