import dataclasses
import math

import pytest
import torch

from eigenscape.errors import InvalidArgumentError, ShapeError, WrongTypeError
from eigenscape_papers.representations import (
    RIGOROUS_CONSTANT,
    LogLinear,
    anchored_scores,
    fit_anchors,
    misclassified_gap,
    transfer,
)
from eigenscape_papers.representations.transfer import _bulk_slack, _obstacles, _side, _word_slack

A = torch.tensor([1.0, -0.7], dtype=torch.float64)
B = torch.tensor([-1.5, -1.2], dtype=torch.float64)


def planted(seed: int = 0) -> LogLinear:
    """Words of the bulk near one vector, so that there is an anchor."""
    draw = torch.Generator().manual_seed(seed)
    states = torch.cat(
        [torch.rand(400, 3, generator=draw, dtype=torch.float64) * 2 - 1, torch.ones(400, 1)], 1
    )
    words = 0.05 * torch.randn(25, 4, generator=draw, dtype=torch.float64)
    words[0, 0] = words[1, 1] = 3.0
    return LogLinear(states, words)


def disturbed(model: LogLinear, size: float) -> LogLinear:
    draw = torch.Generator().manual_seed(7)
    noise = torch.randn(model.states.shape, generator=draw, dtype=torch.float64)
    noise[:, -1] = 0.0
    return LogLinear(model.states + size * noise, model.embedding)


def test_scores_are_sums_over_the_words_of_interest() -> None:
    model, anchor = planted(), torch.randn(4)
    offsets = model.logits()[:, :2] - (model.states @ anchor).unsqueeze(1)
    expected = sum(A[j] * (offsets[:, j] - B[j]).clamp_min(0) for j in range(2))
    torch.testing.assert_close(anchored_scores(model, anchor, A, B), expected)


@pytest.mark.parametrize("margin", [0.3, 2.0, 5.0])
@pytest.mark.parametrize("threshold", [-3.0, 0.0, 1.0])
def test_gap_is_the_minimum_over_a_grid(margin: float, threshold: float) -> None:
    found = misclassified_gap(
        normalised_margin=margin, anchor_error=0.01, least_threshold=threshold, num_words=3
    )
    e = torch.linspace(0, 4, 400_001)
    room, c = margin / 2 - 0.02, 3 * math.exp(threshold - 0.01)
    values = 1 - torch.exp(-e) + c * torch.exp(-e) * ((room - e).relu().exp() - 1)
    assert found == pytest.approx(values.min().item(), abs=1e-7)
    split = min(1 - math.exp(-room / 3), 2 * c * math.sinh(room / 3))
    assert found >= split  # what the thesis takes in its place


def test_gap_of_anchors_too_poor_for_the_margin() -> None:
    gap = misclassified_gap(
        normalised_margin=1.0, anchor_error=0.3, least_threshold=0.0, num_words=2
    )
    assert gap == 0.0


def test_every_number_from_the_definitions() -> None:
    teacher = planted()
    student = disturbed(teacher, 0.3)
    found = transfer(teacher, student, a=A, b=B, margin=0.5)
    anchors, errors = [], []
    for model in (teacher, student):
        fit = fit_anchors(model.states, model.logits()[:, 2:].logsumexp(1))
        anchors.append(fit.anchors[0])
        errors.append(fit.max_error)
    f_star = anchored_scores(teacher, anchors[0], A, B)
    f = anchored_scores(student, anchors[1], A, B)
    task = f_star.abs() >= 0.5
    wrong = task & (f * f_star < 0)
    p, q = (m.log_probabilities().exp() for m in (teacher, student))
    assert found.num_wrong == int(wrong.sum()) > 0
    assert found.error_rate == pytest.approx(int(wrong.sum()) / int(task.sum()))
    assert found.share == pytest.approx(task.double().mean().item())
    assert found.anchor_error == max(errors)
    assert found.bulk_probability == pytest.approx(p[:, 2:].sum(1).min().item())
    assert found.divergence == pytest.approx((p * (p / q).log()).sum(1).mean().item())
    assert found.normalised_margin == pytest.approx(0.25)
    gap = misclassified_gap(
        normalised_margin=0.25, anchor_error=max(errors), least_threshold=-1.5, num_words=2
    )
    slack = (p - q).abs().sum(1)[wrong].min().item() - found.bulk_probability * gap
    assert found.lemma_slack == pytest.approx(slack)
    assert found.applies
    assert found.num_empty == 0
    obstacles = []
    for x in wrong.nonzero().flatten().tolist():
        z, w = (
            (model.states[x] @ (model.embedding[:2] - anchor).T - B).tolist()
            for model, anchor in zip((teacher, student), anchors, strict=True)
        )
        signs = [float(f_star[x].sign()) * float(each) for each in A]
        halves = []
        for high, low, way in ((z, w, 1.0), (w, z, -1.0)):
            words = [j for j in range(2) if way * signs[j] > 0]
            moved = sum(abs(signs[j]) * (max(high[j], 0) - max(low[j], 0)) for j in words)
            S = [j for j in words if high[j] - max(low[j], 0) > 0]
            total = sum(high[j] - max(low[j], 0) for j in S)
            halves.append((moved, total, max((abs(signs[j]) for j in S), default=0.0)))
        moved, total, most = max(halves)
        assert moved >= 0.25  # half of the margin
        obstacles.append(total - 0.5 / (2 * most))
    assert found.obstacle_slack == pytest.approx(min(obstacles))
    assert found.obstacle_slack > 0


def test_low_thresholds_are_beyond_the_theorem() -> None:
    teacher = planted()
    found = transfer(teacher, disturbed(teacher, 0.3), a=A, b=B - 2.0, margin=0.5)
    assert not found.applies
    assert found.bound == math.inf
    assert found.tightness == 0.0
    assert "does not apply" in found.status.text


def test_the_theorem_holds_where_it_applies() -> None:
    teacher = planted()
    flat = torch.zeros_like(teacher.embedding)
    flat[:2] = teacher.embedding[:2]  # all words of the bulk alike: the anchor is exact
    teacher = dataclasses.replace(teacher, embedding=flat)
    found = transfer(teacher, disturbed(teacher, 0.3), a=A, b=B, margin=0.5)
    assert found.applies
    assert found.anchor_error < 1e-9
    assert found.num_wrong > 0
    scale = found.share * (found.bulk_probability * found.normalised_margin) ** 2
    assert found.bound == pytest.approx(found.divergence * RIGOROUS_CONSTANT / scale)
    assert 0 < found.tightness <= 1
    assert found.lemma_slack > 0
    assert found.bulk_slack > -1e-12
    assert found.word_slack > -1e-12


def test_slacks_can_be_negative() -> None:
    """A bulk or a margin that is claimed to be larger than it is makes the lemmas fail."""
    teacher = planted()
    student = disturbed(teacher, 0.3)
    sides = [_side(model, A, B) for model in (teacher, student)]
    gaps = (teacher.log_probabilities().exp() - student.log_probabilities().exp()).abs()
    honest = transfer(teacher, student, a=A, b=B, margin=0.5)
    p_b, error = honest.bulk_probability, honest.anchor_error
    assert _word_slack(sides, gaps, A, B, p_b, error) == pytest.approx(honest.word_slack)
    wrong = sides[0].scores * sides[1].scores < 0
    wrong &= sides[0].scores.abs() >= 0.5
    assert _obstacles(sides, A, 0.5, wrong) == (0, pytest.approx(honest.obstacle_slack))
    assert _obstacles(sides, A, 2.0, wrong)[1] < -0.1  # a margin that there is not
    assert _obstacles(sides, A, 0.5, ~wrong)[0] > 0  # contexts that are right need no word
    assert _bulk_slack(sides, 5 * p_b) < -1e-3
    assert _word_slack(sides, gaps, A, B, 5 * p_b, error) < -1e-3


def test_half_precision_is_that_of_the_same_numbers_in_float32() -> None:
    teacher = planted()
    half = [
        LogLinear(model.states.bfloat16(), model.embedding.bfloat16())
        for model in (teacher, disturbed(teacher, 0.3))
    ]
    wide = [LogLinear(model.states.float(), model.embedding.float()) for model in half]
    found, expected = (transfer(*pair, a=A, b=B, margin=0.5) for pair in (half, wide))
    for field in dataclasses.fields(found):
        assert getattr(found, field.name) == getattr(expected, field.name)


def test_refusals() -> None:
    teacher = planted()
    with pytest.raises(ShapeError, match="one vocabulary"):
        transfer(teacher, LogLinear(teacher.states, teacher.embedding[:9]), a=A, b=B, margin=0.5)
    with pytest.raises(InvalidArgumentError, match="leaves no context"):
        transfer(teacher, teacher, a=A, b=B, margin=1e3)
    with pytest.raises(InvalidArgumentError, match="bulk needs some"):
        transfer(teacher, teacher, a=torch.ones(25), b=torch.ones(25), margin=1.0)
    with pytest.raises(ShapeError, match=r"`anchored_scores\(a, b\)`.*one length"):
        anchored_scores(teacher, torch.zeros(4), A, B[:1])
    for wrong in (B[:1], torch.tensor(1.0)):
        with pytest.raises(ShapeError, match=r"`transfer\(a, b\)`.*one length"):
            transfer(teacher, teacher, a=A, b=wrong, margin=0.5)
    with pytest.raises(WrongTypeError, match=r"`transfer\(a\)` must be a tensor; got list"):
        transfer(teacher, teacher, a=[1.0, -0.7], b=B, margin=0.5)
    with pytest.raises(WrongTypeError, match=r"`transfer\(b\)` must be a tensor; got tuple"):
        transfer(teacher, teacher, a=A, b=(-1.5, -1.2), margin=0.5)
    with pytest.raises(WrongTypeError, match=r"`anchored_scores\(anchor\)` .*; got list"):
        anchored_scores(teacher, [0.0] * 4, A, B)
    with pytest.raises(ShapeError, match=r"must be \(4,\)"):
        anchored_scores(teacher, torch.zeros(3), A, B)
