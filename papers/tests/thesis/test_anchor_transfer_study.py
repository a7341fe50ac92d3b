import dataclasses
from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.representations import Transfer, transfer
from eigenscape_papers.runner import Study, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import (
    make_cautious_teacher,
    make_rarely_wrong,
    make_student,
    make_teacher,
)
from papers.tests.conftest import numbers_of

NAME = "thesis-anchor-transfer"
FEW = (1, 2, 3, 4)


def swept() -> list[Transfer]:
    """The students that are disturbed everywhere."""
    teacher = make_teacher(num_contexts=800, num_words=60, num_interesting=2, seed=0)
    a, b = torch.tensor([1.0, -0.7]), torch.tensor([-2.0, -2.0])
    return [
        transfer(teacher, make_student(teacher, size, seed), a=a, b=b, margin=0.5)
        for size in (0.2, 0.4)
        for seed in (1, 2)
    ]


def rarely_wrong(num_contexts: int = 5000) -> list[Transfer]:
    """The students that err in a few contexts."""
    teacher = make_cautious_teacher(
        num_contexts=num_contexts, num_words=60, margin=2.0, threshold=-2.0, seed=0
    )
    a, b = torch.tensor([1.0, -1.0]), torch.tensor([-2.0, -2.0])
    return [
        transfer(teacher, make_rarely_wrong(teacher, count), a=a, b=b, margin=2.0) for count in FEW
    ]


def test_the_claims(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    few = rarely_wrong(800)
    found = [*swept(), *few]
    assert min(one.num_wrong for one in found) > 0  # some contexts are misclassified
    assert ours["thesis.theorem3.5.7.vacuous"] == pytest.approx(min(one.bound for one in found))
    assert ours["thesis.theorem3.5.7.applies"] == 1.0
    assert ours["thesis.lemma3.5.9.gap"] == pytest.approx(min(one.lemma_slack for one in found))
    assert ours["thesis.lemma3.5.10.words"] == 0
    least = min(one.obstacle_slack for one in found)
    assert ours["thesis.lemma3.5.11.obstacles"] == pytest.approx(least)
    assert ours["thesis.lemma3.5.13.words"] == pytest.approx(min(one.word_slack for one in found))


def test_where_every_bound_is_vacuous_the_theorem_counts_as_not_measured(
    ran: Callable[[str], StudyResult],
) -> None:
    result = ran(NAME)  # 800 contexts: one error is too much
    status = {finding.id.rpartition(".")[2]: finding.status for finding in result.findings}
    assert (status["bound"], status["printed"], status["vacuous"]) == ("not run", "not run", "fail")
    assert set(result.sheets[0].columns["says"]) == {"nothing: vacuous"}


def test_where_bounds_say_something_the_theorem_is_held_against_them(
    small_study: Callable[[str], Study], empty_shop: Workshop
) -> None:
    study = small_study(NAME)
    setting = study.settings["laptop"]
    options = {**setting.options, "num_contexts": 5000, "disturbances": (0.2,), "num_seeds": 1}
    setting = dataclasses.replace(setting, options=options)
    result = run_study(dataclasses.replace(study, settings={"laptop": setting}), empty_shop)
    ours, few = numbers_of(result), rarely_wrong()
    telling = [one for one in few if one.bound < 1]
    assert 0 < len(telling) < len(few)  # the last is left out
    assert [one.num_wrong for one in few] == list(FEW)
    tight = max(one.tightness for one in telling)
    assert ours["thesis.theorem3.5.7.bound"] == pytest.approx(tight)
    assert ours["thesis.theorem3.5.7.printed"] == pytest.approx(4 * tight)
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    says = result.sheets[0].columns["says"]
    assert says == ("nothing: vacuous", *["something"] * len(telling), "nothing: vacuous")


def test_counter_examples(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    teacher = make_teacher(num_contexts=800, num_words=60, num_interesting=2, seed=0)
    p = teacher.log_probabilities()[:, 0].exp()
    lowered = teacher.logits()
    lowered[:, 0] -= 5.0
    log_p, log_q = teacher.logits().log_softmax(1), lowered.log_softmax(1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(1)
    assert ours["thesis.theorem3.3.1.divergence"] == pytest.approx(
        float((divergence / (10 * p)).max())
    )
    assert ours["thesis.theorem3.3.1.score"] < 1e-12
    assert ours["thesis.theorem3.3.2.blind"] == 0.0


def test_the_teacher_has_an_anchor_and_students_keep_the_constant() -> None:
    teacher = make_teacher(num_contexts=50, num_words=30, num_interesting=3, seed=0)
    assert teacher.states.shape == (50, 5)
    student = make_student(teacher, 0.3, 1)
    assert (student.states[:, -1] == 1).all()
    assert (student.states - teacher.states)[:, :-1].std().item() == pytest.approx(0.3, rel=0.15)
    assert torch.equal(student.embedding, teacher.embedding)


def test_rare_errors_are_as_cheap_as_they_can_be() -> None:
    teacher = make_cautious_teacher(
        num_contexts=40, num_words=30, margin=2.0, threshold=-2.0, seed=0
    )
    student = make_rarely_wrong(teacher, 3)
    assert torch.equal(student.states[3:], teacher.states[3:])
    p, q = (model.log_probabilities().exp()[:3] for model in (teacher, student))
    assert ((p[:, 0] - p[:, 1]) * (q[:, 0] - q[:, 1]) < 0).all()
    # The bulk is as it was, but for its spread around the anchor.
    torch.testing.assert_close(q[:, 2:].sum(1), p[:, 2:].sum(1), rtol=0.01, atol=0)
    # Two words that must not differ cost least at their mean: any other share costs more.
    loss = (p * (p / q).log()).sum(1)
    for shift in (-0.1, 0.1):
        states = student.states.clone()
        states[:3, :2] += shift
        r = dataclasses.replace(student, states=states).log_probabilities().exp()[:3]
        assert ((p * (p / r).log()).sum(1) > loss).all()
