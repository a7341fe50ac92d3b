"""Some samples in place of all: which they are, and that they are really those."""

import pytest
import torch
from torch import Tensor

import eigenscape as es
from eigenscape.analyses.whole._subsample import samples_within, subsample
from tests.small_net import LOADER, X, Y, net


@pytest.mark.parametrize("data", [(X, Y), LOADER], ids=["tensors", "loader"])
def test_the_numbers_name_the_samples(data: object) -> None:
    model = net()
    some, chosen = subsample(es.EmpiricalRisk(model, es.CrossEntropy(), data), 9, seed=1)
    assert (chosen.num_samples, chosen.num_all, some.num_samples) == (9, 70, 9)
    own = es.EmpiricalRisk(model, es.CrossEntropy(), (X[chosen.numbers], Y[chosen.numbers]))
    assert some.value() == pytest.approx(own.value(), rel=1e-12)
    torch.testing.assert_close(some.gradient(), own.gradient())
    assert str(chosen).startswith(f"9 of 70 samples, drawn with seed 1: {int(chosen.numbers[0])}, ")


def test_other_samples_are_none_of_the_first() -> None:
    risk = es.EmpiricalRisk(net(), es.CrossEntropy(), LOADER)
    (_, first), (_, other) = (subsample(risk, 30, seed=0, skip=skip) for skip in (0, 30))
    assert other.num_samples == 30
    assert not set(first.numbers.tolist()) & set(other.numbers.tolist())
    _, last = subsample(risk, 30, seed=0, skip=60)
    assert last.num_samples == 10


def test_a_seed_draws_the_same_samples_again() -> None:
    risk = es.EmpiricalRisk(net(), es.CrossEntropy(), (X, Y))
    one, again, other = (subsample(risk, 9, seed=seed)[1].numbers for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_inputs_by_name_keep_their_names() -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, features: Tensor) -> Tensor:
            return self.layer(features)

    data = [{"features": X[:40], "labels": Y[:40]}, {"features": X[40:], "labels": Y[40:]}]
    risk = es.EmpiricalRisk(Named(), es.CrossEntropy(), data)
    some, chosen = subsample(risk, 12, seed=0)
    whole = es.EmpiricalRisk(
        risk.module,
        es.CrossEntropy(),
        [{"features": X[chosen.numbers], "labels": Y[chosen.numbers]}],
    )
    assert some.value() == pytest.approx(whole.value(), rel=1e-12)


def test_unlabelled_samples_stay_without_labels() -> None:
    def loss(output: Tensor, target: None) -> Tensor:
        assert target is None
        return output.square().mean()

    risk = es.EmpiricalRisk(torch.nn.Linear(4, 3), loss, [(X,)])
    some, chosen = subsample(risk, 12, seed=0)
    own = risk.module(X[chosen.numbers]).square().mean()
    assert some.value() == pytest.approx(float(own.detach()), rel=1e-12)


def test_more_time_affords_more_samples_up_to_all() -> None:
    risk = es.EmpiricalRisk(net(), es.CrossEntropy(), (X, Y))
    assert samples_within(risk, 1e-12, 10) == 1
    counts = [samples_within(risk, seconds, 10) for seconds in (2e-7, 4e-7, 60.0)]
    assert 1 < counts[0] < counts[1] < counts[2] == 70
