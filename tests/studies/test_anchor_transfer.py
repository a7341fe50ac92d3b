from collections.abc import Callable

import pytest
import torch

from eigenscape.report import StudyResult
from eigenscape.representations import transfer
from eigenscape.studies import STUDIES
from eigenscape.studies.anchor_transfer import make_student, make_teacher
from tests.studies.conftest import numbers_of

NAME = "thesis-anchor-transfer"


def test_the_claims(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    teacher = make_teacher(num_contexts=800, num_words=60, num_interesting=2, seed=0)
    a, b = torch.tensor([1.0, -0.7]), torch.tensor([-2.0, -2.0])
    found = [
        transfer(teacher, make_student(teacher, size, seed), a=a, b=b, margin=0.5)
        for size in (0.2, 0.4)
        for seed in (1, 2)
    ]
    tight = max(one.tightness for one in found)
    assert tight > 0  # some contexts are misclassified
    assert ours["thesis.theorem3.5.7.bound"] == pytest.approx(tight)
    assert ours["thesis.theorem3.5.7.printed"] == pytest.approx(4 * tight)
    assert ours["thesis.theorem3.5.7.applies"] == 1.0
    assert ours["thesis.lemma3.5.9.gap"] == pytest.approx(min(one.lemma_slack for one in found))
    assert ours["thesis.lemma3.5.13.words"] == pytest.approx(min(one.word_slack for one in found))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}


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
