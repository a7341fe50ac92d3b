from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch

from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape_papers.representations import (
    LogLinear,
    anchored_scores,
    log_bulk_partitions,
    lowered_word_divergence,
    word_divergences,
)


@pytest.fixture
def model() -> LogLinear:
    return LogLinear(torch.randn(7, 3), torch.randn(11, 3))


def test_probabilities_are_those_of_the_definition(model: LogLinear) -> None:
    weights = torch.exp(model.states @ model.embedding.T)
    torch.testing.assert_close(
        model.log_probabilities().exp(), weights / weights.sum(1, keepdim=True)
    )


def test_lowering_one_word_costs_little(model: LogLinear) -> None:
    """Theorem 3.3.1, exactly."""
    s, word, c = 4.0, 5, torch.randn(11)
    student = model.with_word_lowered(word, s)
    torch.testing.assert_close(student.logits() @ c, model.logits() @ c - s * c[word])
    p = model.log_probabilities()[:, word].exp()
    found = word_divergences(model, student)
    torch.testing.assert_close(found, lowered_word_divergence(p, s), atol=1e-14, rtol=1e-12)
    assert (found < s * p).all()
    assert (found > 0).all()


def test_lowering_a_word_that_is_nearly_certain() -> None:
    """Against arithmetic of 400 digits: e^−800 begins at the 348th."""
    with localcontext() as context:
        context.prec = 400
        for s in (0.0, 1e-6, 0.5, 1.0, 37.0, 80.0, 800.0):
            p = torch.tensor([0.0, 1e-20, 0.3, 0.6, 1 - 1e-3, 1 - 1e-9, 1 - 2**-53, 1.0])
            found = lowered_word_divergence(p, s)
            for value, q in zip(found.tolist(), map(Decimal, p.tolist()), strict=True):
                t = Decimal(s)
                exact = float(t * q + (1 - q + q * (-t).exp()).ln())
                # What is left of s·min(p, q) is s²p(1 − p)/2.
                assert value == pytest.approx(exact, rel=1e-12 + 2e-15 / max(s, 1e-9), abs=0)
    ends = lowered_word_divergence(torch.tensor([[0.0, 1.0]]).float(), 37.0)
    assert ends.tolist() == [[0.0, 0.0]]
    assert ends.dtype == torch.float32


def test_shifting_all_logits_costs_nothing_and_blinds_the_task(model: LogLinear) -> None:
    """Theorem 3.3.2, exactly."""
    a, b = torch.randn(4), torch.randn(4)
    drop = float(b.min() - model.logits().max()) - 0.1
    student = model.with_logits_shifted(drop)
    torch.testing.assert_close(word_divergences(model, student), torch.zeros(7))
    assert (anchored_scores(student, torch.zeros(4), a, b) == 0).all()
    assert anchored_scores(model, torch.zeros(3), a, b).abs().max() > 0.1


def test_bulk_leaves_the_most_probable_out(
    model: LogLinear, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = log_bulk_partitions(model.states, model.embedding, (0, 3, 10))
    for row, z in zip(found, model.logits(), strict=True):
        for value, size in zip(row, (0, 3, 10), strict=True):
            kept = sorted(z.tolist(), reverse=True)[size:]
            torch.testing.assert_close(value, torch.tensor(kept).logsumexp(0))
    monkeypatch.setattr("eigenscape_papers.representations.log_linear._LOGITS", 22)  # two at a time
    torch.testing.assert_close(
        log_bulk_partitions(model.states, model.embedding, (0, 3, 10)), found
    )


def test_large_logits_do_not_overflow() -> None:
    found = log_bulk_partitions(torch.tensor([[1000.0]]).float(), torch.ones(4, 1).float(), (0,))
    torch.testing.assert_close(found, torch.tensor([[1000.0]]) + torch.log(torch.tensor(4.0)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_multiplied_in_float32(dtype: torch.dtype) -> None:
    v, words = torch.randn(40, 64).to(dtype), torch.randn(30, 64).to(dtype)
    z = v.double() @ words.double().T  # of numbers up to 30 or so
    found = log_bulk_partitions(v, words, (0, 4))
    kept = z.sort(dim=1, descending=True).values[:, 4:]
    expected = torch.stack([z.logsumexp(1), kept.logsumexp(1)], dim=1)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    model = LogLinear(v, words)
    assert model.log_probabilities().dtype == torch.float32
    exact = {"atol": 2e-5, "rtol": 1e-5}
    torch.testing.assert_close(model.log_probabilities().double(), z.log_softmax(1), **exact)
    other = LogLinear(v, -words)
    log_p, log_q = z.log_softmax(1), (-z).log_softmax(1)
    divergences = (log_p.exp() * (log_p - log_q)).sum(1)
    torch.testing.assert_close(word_divergences(model, other).double(), divergences, **exact)
    anchor, a, b = torch.randn(64), torch.randn(3), torch.randn(3)
    scores = (v.double() @ (words[:3].double() - anchor).T - b).relu() @ a
    torch.testing.assert_close(anchored_scores(model, anchor, a, b).double(), scores, **exact)


def test_refusals(model: LogLinear) -> None:
    other = LogLinear(model.states, model.embedding[:10])
    with pytest.raises(ShapeError, match="one vocabulary; got 11 and 10 words"):
        word_divergences(model, other)
    with pytest.raises(ShapeError, match="same contexts; got 7 and 6"):
        word_divergences(model, LogLinear(model.states[:6], model.embedding))
    with pytest.raises(ShapeError, match="3 columns"):
        LogLinear(model.states[:, :2], model.embedding)
    with pytest.raises(ShapeError, match="dtype"):
        LogLinear(model.states.float(), model.embedding)
    with pytest.raises(NonFiniteError, match="states"):
        LogLinear(model.states / 0.0, model.embedding)
    with pytest.raises(InvalidArgumentError, match="from 0 to 10; got 11"):
        log_bulk_partitions(model.states, model.embedding, (11,))
    with pytest.raises(InvalidArgumentError, match="one size or more"):
        log_bulk_partitions(model.states, model.embedding, ())
    for size in (0, 5, np.int64(5)):
        with pytest.raises(WrongTypeError, match=rf"the integer {size}. Pass `\({size},\)`"):
            log_bulk_partitions(model.states, model.embedding, size)
    with pytest.raises(ShapeError, match=r"got \(1, 7, 3\).*`.flatten\(0, 1\)`"):
        log_bulk_partitions(model.states[None], model.embedding, (0,))
    with pytest.raises(InvalidArgumentError, match="from 0 to 10"):
        model.with_word_lowered(11, 1.0)
    with pytest.raises(InvalidArgumentError, match="0 or more"):
        lowered_word_divergence(torch.tensor(0.1), -1.0)
    for wrong in (1.5, -0.5, torch.nan):
        with pytest.raises(InvalidArgumentError, match="from 0 to 1"):
            lowered_word_divergence(torch.tensor([0.5, wrong]), 1.0)
    with pytest.raises(WrongTypeError, match="floating-point tensor; got list"):
        lowered_word_divergence([0.5], 1.0)
    ends = lowered_word_divergence(torch.tensor([0.0, 1.0]), 3.0)  # never said, always said
    torch.testing.assert_close(ends, torch.zeros(2), atol=1e-15, rtol=0)
