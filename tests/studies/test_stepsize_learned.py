import math
from collections.abc import Callable

import pytest
import torch

from eigenscape.data import load
from eigenscape.records import Status
from eigenscape.report import StudyResult
from eigenscape.stepsize import Course, UpdateRule, draw_problems, learn_rule, train_networks
from eigenscape.studies import STUDIES
from eigenscape.studies.stepsize_learned import _NEW, _numbers
from tests.studies.conftest import SMALL, numbers_of

NAME = "thesis-stepsize-learned"


def course(train: float, test: float) -> Course:
    """Make the course of two networks that end with these accuracies."""
    both = [torch.tensor([[0.0, value], [0.0, value]]) for value in (1.0, train, 1.0, test)]
    return Course(Status(True, ""), 0, 0, torch.tensor([1, 2]), *both)


def test_every_claim_is_measured(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    assert all(math.isfinite(value) for value in ours.values())


def test_a_case_is_the_experiment_of_the_thesis(ran: Callable[[str], StudyResult]) -> None:
    options, ends = SMALL[NAME], {}
    parts = [
        load("digits", split=split, normalise="unit").flattened().to("cpu", torch.float32)
        for split in ("train", "test")
    ]
    data, test = ((part.inputs, part.targets) for part in parts)
    extra = options["learning"]
    for objective in ("training", "validation"):
        kind = {"objective": objective, "num_samples": 30, "label_noise": 0.2}
        found = learn_rule(*data, hidden=(5,), start=UpdateRule.random((4,)), **kind, **extra)
        problems = draw_problems(*data, numbers=range(_NEW, _NEW + 2), **kind)
        run = {"hidden": (5,), "num_steps": 6, "num_looks": 3}
        ends[objective] = train_networks(found.rule, problems, test, **run)
    gap = ends["validation"].test_accuracies[:, -1] - ends["training"].test_accuracies[:, -1]
    ours = numbers_of(ran(NAME))
    assert ours["thesis.figure5.4b.validation-wins"] == pytest.approx(float(gap.mean()), abs=1e-9)
    fits = float(ends["training"].train_accuracies[:, -1].mean())
    assert ours["thesis.figure5.5.train-fits-noise"] == pytest.approx(fits, abs=1e-9)


def test_numbers_from_known_courses() -> None:
    def pair(tbt: tuple[float, float], tbv: tuple[float, float]) -> dict[str, Course]:
        return {"TbT": course(*tbt), "TbV": course(*tbv)}

    found = {
        (10, 0.0): pair((1.0, 0.8), (1.0, 0.75)),
        (10, 0.2): pair((0.98, 0.5), (0.8, 0.7)),
        (50, 0.2): pair((0.9, 0.7), (0.8, 0.8)),
        (90, 0.0): pair((1.0, 0.9), (1.0, 0.91)),
        (90, 0.2): pair((0.85, 0.8), (0.8, 0.84)),
    }
    ours = {name.removeprefix("thesis."): m.ours for name, m in _numbers(found).items()}
    assert ours == pytest.approx(
        {
            "figure5.4b.validation-wins": 0.2,
            "figure5.5.train-fits-noise": 0.98,
            "figure5.5.validation-does-not": 0.18,
            "figure5.4.noise-decides": 0.25,
            "figure5.4c.all-clean-equal": 0.01,
            "figured.1.all-noisy": 0.04,
            "figured.3.gap-shrinks": -0.06,
        }
    )
    few = {case: courses for case, courses in found.items() if case == (10, 0.0)}
    assert set(_numbers(few)) == {"thesis.figure5.4c.all-clean-equal"}


def test_pictures_have_a_panel_for_each_case(ran: Callable[[str], StudyResult]) -> None:
    result = ran(NAME)
    for picture in result.pictures:
        assert len(picture.panels) == 4
    labels = [mark.label for mark in result.pictures[0].panels[0].marks]
    assert labels == ["TbT", "TbV", "SGD"]
    assert len(result.sheets[0].columns["optimiser"]) == 12
