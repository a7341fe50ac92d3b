import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eigenscape.records import Band, Line, Status
from eigenscape.report._matplotlib import make_figure
from eigenscape_papers.datasets import load
from eigenscape_papers.runner import Setting, StudyResult, Workshop
from eigenscape_papers.stepsize import (
    Course,
    ProblemKind,
    UpdateRule,
    draw_problems,
    learn_rules,
    train_networks,
)
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import stepsize_learned_study as stepsize_learned
from eigenscape_papers.thesis.stepsize_learned_study import (
    _NEW,
    _meta_picture,
    _middle,
    _numbers,
    _picture,
    _place,
    _words,
)
from papers.tests.conftest import SMALL, numbers_of

NAME = "thesis-stepsize-learned"


def course(train: float, test: float) -> Course:
    """Make the course of two networks that end with these accuracies on average."""
    both = [
        torch.tensor([[0.5, value - 0.01], [0.5, value + 0.01]]) for value in (1, train, 1, test)
    ]
    return Course(Status(True, ""), 0, 0, torch.tensor([1, 2]), *both)


def pair(
    tbt: tuple[float, float], tbv: tuple[float, float], sgd: tuple[float, float] = (0.8, 0.75)
) -> dict[str, list[Course]]:
    """Make courses of two rules of each kind; those of TbV are 0.1 apart."""
    (train, test), apart = tbv, 0.05
    spread = [course(train - apart, test - apart), course(train + apart, test + apart)]
    return {"TbT": [course(*tbt)] * 2, "TbV": spread, "SGD": [course(*sgd)]}


FOUND = {
    (10, 0.0): pair((1.0, 0.8), (1.0, 0.75)),
    (10, 0.2): pair((0.98, 0.5), (0.8, 0.7)),
    (50, 0.2): pair((0.9, 0.7), (0.8, 0.8)),
    (90, 0.0): pair((1.0, 0.9), (1.0, 0.91)),
    (90, 0.2): pair((0.85, 0.8), (0.8, 0.84)),
}


def test_every_claim_is_measured(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    assert all(math.isfinite(value) for value in ours.values())


def test_a_case_is_the_experiment_of_the_thesis(ran: Callable[[str], StudyResult]) -> None:
    options, ends = SMALL[NAME], {"training": [], "validation": []}
    parts = [
        load("digits", split=split, normalise="unit").flattened().to("cpu", torch.float32)
        for split in ("train", "test")
    ]
    data, test = ((part.inputs, part.targets) for part in parts)
    extra = options["learning"]
    for objective, seed in itertools.product(ends, range(3)):
        start, kind = UpdateRule.random((4,), seed=seed), ProblemKind(objective, 30, 0.2)
        (found,) = learn_rules(*data, [kind], hidden=(5,), start=start, seed=seed, **extra)
        # A rule that is learned is used on all samples.
        used = {"objective": "training", "num_samples": 30, "label_noise": 0.2}
        problems = draw_problems(*data, numbers=range(_NEW, _NEW + 2), **used)
        run = {"hidden": (5,), "num_steps": 6, "num_looks": 3}
        ends[objective].append(train_networks(found.rule, problems, test, **run))
    tests = {name: [c.test_accuracies[:, -1].mean() for c in of] for name, of in ends.items()}
    gaps = torch.stack(tests["validation"]) - torch.stack(tests["training"])
    wins = next(f for f in ran(NAME).findings if f.id.endswith("validation-wins"))
    assert wins.ours == pytest.approx(float(gaps.mean()), abs=1e-9)
    assert wins.spread == pytest.approx(float(gaps.std()), abs=1e-9)
    fits = torch.stack([c.train_accuracies[:, -1].mean() for c in ends["training"]])
    ours = numbers_of(ran(NAME))
    assert ours["thesis.figure5.5.train-fits-noise"] == pytest.approx(float(fits.mean()), abs=1e-9)


def test_parts_are_kept_and_a_case_that_lacks_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**STUDIES[NAME].settings["laptop"].options, **SMALL[NAME], "num_rules": 1}
    options["cases"] = ((30, 0.0), (30, 0.2))
    setting, workshop = Setting(options=options), Workshop(tmp_path, torch.device("cpu"))
    assert stepsize_learned.measure_finished(setting, workshop).measured == {}
    data, test = stepsize_learned.samples(options, workshop)
    wanted = stepsize_learned.parts(options, data)[:-1]  # SGD of the second case is missing
    for group in stepsize_learned.together(wanted, options):
        stepsize_learned.finish(group, options, data, test, workshop)
    assert not list(tmp_path.rglob("unfinished-*"))
    partly = stepsize_learned.measure_finished(setting, workshop)
    words = "Rules, and SGD of each case: {} on CPU."
    assert partly.notes == ("Not run: 30 samples, 20% noise.", words.format(3))
    assert partly.sheets[0].columns["optimiser"] == ("TbT", "TbV", "SGD")
    monkeypatch.setattr(stepsize_learned, "learn_rules", None)  # would fail if it were called
    assert stepsize_learned.measure(setting, workshop).notes == (words.format(6),)
    # Another setting has other parts.
    other = Setting(options={**options, "steps": 7})
    assert stepsize_learned.measure_finished(other, workshop).measured == {}


def test_with_fewest_samples_rules_may_be_learned_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**STUDIES[NAME].settings["laptop"].options, **SMALL[NAME], "num_rules": 1}
    longer = {**options, "few": {"num_trajectories": 3}}
    workshop, learned = Workshop(tmp_path, torch.device("cpu")), []

    def learn(*given: object, num_trajectories: int, **__: object) -> None:
        learned.append(([vars(kind) for kind in given[2]], num_trajectories))
        raise KeyboardInterrupt

    monkeypatch.setattr(stepsize_learned, "learn_rules", learn)
    data, test = stepsize_learned.samples(options, workshop)
    wanted = stepsize_learned.parts(longer, data)
    groups = stepsize_learned.together(wanted, longer)
    assert [len(group) for group in groups] == [4, 1, 1, 4, 1, 1]
    assert sorted(str(part) for group in groups for part in group) == sorted(map(str, wanted))
    for group in (group for group in groups if len(group) > 1):
        with pytest.raises(KeyboardInterrupt):
            stepsize_learned.finish(group, longer, data, test, workshop)
        for part in group:
            same = _place(part, options, workshop) == _place(part, longer, workshop)
            assert same == (part.case[0] == 60)  # elsewhere nothing has changed
    kinds = [(noise, name) for noise in (0.0, 0.2) for name in ("training", "validation")]
    assert learned == [
        ([{"objective": o, "num_samples": n, "label_noise": noise} for noise, o in kinds], count)
        for n, count in ((30, 3), (60, 1))
    ]
    # All are learned side by side where nothing tells them apart.
    assert [len(g) for g in stepsize_learned.together(wanted, options)] == [8, 1, 1, 1, 1]


def test_numbers_from_known_courses() -> None:
    found = _numbers(FOUND, FOUND)
    ours = {name.removeprefix("thesis."): m.ours for name, m in found.items()}
    assert ours == pytest.approx(
        {
            "figure5.4b.validation-wins": 0.2,
            "figure5.5.train-fits-noise": 0.98,
            "figure5.5.validation-does-not": 0.18,
            "figure5.5.validation-learns": -0.05,
            "figure5.4.noise-decides": 0.25,
            "figure5.4c.all-clean-equal": 0.01,
            "figured.1.all-noisy": 0.04,
            "figured.3.gap-shrinks": -0.06,
        }
    )
    over_rules = 0.1 / math.sqrt(2)  # of two that are 0.1 apart
    assert found["thesis.figure5.4b.validation-wins"].spread == pytest.approx(over_rules)
    few = {case: courses for case, courses in FOUND.items() if case == (10, 0.0)}
    assert _numbers(few, few) == {}  # of one size, which is not all there is


def test_a_case_that_was_not_run_has_no_substitute() -> None:
    more = {case: courses for case, courses in FOUND.items() if case[0] > 10}
    ends = {"thesis.figure5.4c.all-clean-equal", "thesis.figured.1.all-noisy"}
    assert set(_numbers(more, FOUND)) == ends
    less = {case: courses for case, courses in FOUND.items() if case[0] < 90}
    assert set(_numbers(FOUND, FOUND)) - set(_numbers(less, FOUND)) == {
        *ends,
        "thesis.figured.3.gap-shrinks",
    }


def test_one_rule_has_the_spread_of_its_networks() -> None:
    one = {case: {name: of[:1] for name, of in courses.items()} for case, courses in FOUND.items()}
    fits = _numbers(one, one)["thesis.figure5.5.train-fits-noise"]
    assert fits.spread == pytest.approx(0.02 / math.sqrt(2))
    assert not any(isinstance(mark, Band) for mark in _picture(one, "test").panels[0].marks)


def test_words_are_those_of_the_numbers() -> None:
    words = _words(FOUND, "test")
    assert "+0.200 ± 0.071 (10 samples, 20% noise)" in words
    assert "-0.050 ± 0.071 (10 samples, no noise)" in words
    assert "TbT 0.98, TbV 0.80, SGD 0.80 (10 samples, 20% noise)" in _words(FOUND, "train")


def test_pictures_have_a_panel_for_each_case(ran: Callable[[str], StudyResult]) -> None:
    result = ran(NAME)
    for picture in result.pictures():
        assert len(picture.panels) == 4
    lines = [mark for mark in result.pictures()[0].panels[0].marks if isinstance(mark, Line)]
    assert [line.label for line in lines] == ["TbT", "TbV", "SGD"]
    for picture in result.pictures()[:2]:
        (limits,) = {panel.y.limits for panel in picture.panels}
        drawn = [y for p in picture.panels for m in p.marks if isinstance(m, Line) for y in m.y]
        assert limits[0] < min(drawn) <= max(drawn) < limits[1]
    columns = result.sheets[0].columns
    assert columns["optimiser"] == (*["TbT"] * 3, *["TbV"] * 3, "SGD") * 4
    assert columns["rule"] == (0, 1, 2, 0, 1, 2, 0) * 4
    wins = numbers_of(result)["thesis.figure5.4b.validation-wins"]
    noisy = columns["test accuracy"][7:13]
    assert wins == pytest.approx((sum(noisy[3:]) - sum(noisy[:3])) / 3, abs=1e-5)


def test_meta_objectives_are_drawn_by_medians_of_finite_segments() -> None:
    eleven = torch.tensor([*range(1, 11), 1e7])  # a mean would be drawn near a million
    lost = torch.tensor([torch.nan, torch.inf])
    band, line = _middle(torch.cat([lost, eleven.repeat(100)]), "hessian", "TbV")
    assert isinstance(band, Band)
    assert isinstance(line, Line)
    assert (*line.x,) == (*band.x,) == (*(2.0 + 6.0 + 11.0 * i for i in range(100)),)
    assert {*line.y} == {6.0}
    assert ({*band.low}, {*band.high}) == ({2.0}, {10.0})  # without the first and the last tenth


def test_few_segments_are_drawn_one_by_one() -> None:
    _, line = _middle(torch.tensor([3.0, 1.0, 2.0]), "hessian", None)
    assert isinstance(line, Line)
    assert (*line.x,) == (1.0, 2.0, 3.0)
    assert (*line.y,) == (3.0, 1.0, 2.0)


def test_meta_objectives_that_are_zero_or_never_finite_can_be_drawn() -> None:
    lost, zero = torch.full((9,), torch.nan), torch.tensor([0.0, 0.0, 0.5])
    picture = _meta_picture({(200, 0.0): {"TbT": lost, "TbV": zero}, (200, 0.2): {"TbT": lost}})
    assert [panel.y.limits for panel in picture.panels] == [(0.25, 2.0), None]
    make_figure(picture).draw_without_rendering()
