import math
from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.representations import (
    masked_losses,
    masked_oracle_loss,
    net_dictionary,
    random_dictionary,
    recovery_error,
    sparse_samples,
)
from eigenscape_papers.runner import StudyResult
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import numbers_of

NAME = "thesis-coding-theory"


def test_overfitting(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    A, sigma = random_dictionary(5, 7), 0.1
    Y, _ = sparse_samples(A, 300, sparsity=1, noise=sigma)
    net = net_dictionary(A, num_directions=32, clearance=0.05)
    whole = Y.square().sum(1)
    one = (whole - (Y @ A.T).square().amax(1)).mean()
    best = (whole - (Y @ net.T).square().amax(1)).mean()
    wins = float(one - best) / sigma**2
    assert ours["thesis.theorem2.3.2.net-wins"] == pytest.approx(wins)
    assert 0 < wins < ours["thesis.theorem2.3.2.two-more"]
    far = recovery_error(A, net, metric="squared") / sigma**2
    assert ours["thesis.theorem2.3.2.net-is-far"] == pytest.approx(far)


def test_masking(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    A, seen = random_dictionary(90, 60), torch.arange(50)
    oracle = masked_oracle_loss(A, seen, sparsity=2, noise=0.5)
    losses = {}
    for scale in (1.0, 10.0, 100.0, 1000.0):
        Y, _ = sparse_samples(A, 2000, sparsity=2, noise=0.5, scale=scale, seed=1)
        losses[scale] = masked_losses(Y, A, seen, sparsity=2)
    last, first = (float(losses[scale].mean()) - oracle for scale in (1000.0, 1.0))
    assert ours["thesis.theorem2.3.6.gap"] == pytest.approx(last / oracle)
    assert ours["thesis.theorem2.3.6.falls"] == pytest.approx(last / first)
    slack = min(
        (float(loss.mean()) - masked_oracle_loss(A, seen, sparsity=2, noise=0.5, scale=scale))
        / (float(loss.std()) / math.sqrt(2000))
        for scale, loss in losses.items()
    )
    assert ours["thesis.theorem2.3.6.bayes"] == pytest.approx(slack)
    away = max(
        abs(float(loss.mean()) / theirs - 1)
        for loss, theirs in zip(losses.values(), (3.25, 2.77, 2.63, 2.62), strict=True)
    )
    assert ours["thesis.theorem2.3.6.independent"] == pytest.approx(away)
    assert ours["thesis.theorem2.3.6.support"] > 0.98


def test_every_claim_is_measured(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    assert 0 < ours["thesis.lemmaa.1.2.largest"] < 1
    assert 0 <= ours["thesis.theorema.1.1.chosen"] < 1


def test_the_picture_names_what_it_draws(ran: Callable[[str], StudyResult]) -> None:
    (picture,) = ran(NAME).pictures()
    marks = picture.panels[0].marks
    assert [mark.label for mark in marks] == ["the truth", "oracle", "Bayes bound"]
    _, oracle, bayes = (torch.tensor(mark.y) for mark in marks)
    assert oracle.unique().numel() == 1
    assert (bayes <= oracle).all()
