"""Three ways to a trace: exact where they must be, unbiased elsewhere, no product uncounted."""

from dataclasses import replace

import pytest
import torch

from eigenscape.errors import InvalidArgumentError, UnknownNameError
from eigenscape.linalg._few_samples import Goal
from eigenscape.linalg._trace_methods import (
    Estimate,
    Hutchinson,
    HutchPlusPlus,
    TraceMethod,
    XTrace,
)
from eigenscape.operator import Dense
from eigenscape.records import Ticker
from tests.linalg.matrices import Counting, with_spectrum

RUNS: dict[str, TraceMethod] = {
    "hutchinson": Hutchinson(batch=4),
    "gaussian": Hutchinson("gaussian", batch=4),
    "hutch++": HutchPlusPlus(batch=4),
    "xtrace": XTrace(batch=4),
}
NEVER = Goal(None)
N = 23


def estimate(
    name: str, A: Dense | Counting, budget: int, *, seed: int = 0, goal: Goal = NEVER
) -> Estimate:
    return RUNS[name].run(A, budget, seed, goal, Ticker(None, "test", budget))


def check(answers: list[Estimate], trace: float) -> None:
    """Demand no bias beyond four of its standard deviations, and errors that tell the spread."""
    values = torch.tensor([answer.value for answer in answers])
    errors = torch.tensor([answer.stderr for answer in answers])
    assert abs(values.mean() - trace) <= 4 * values.std() / len(answers) ** 0.5
    # Those of few probes are wide on purpose: they are uncertain themselves.
    assert 0.7 <= float(errors.square().mean() / values.var()) <= 3


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", RUNS)
def test_estimates_are_unbiased_and_their_errors_honest(name: str, symmetric: bool) -> None:
    matrix = with_spectrum(1.0 / torch.arange(1.0, N + 1))
    if not symmetric:
        matrix = matrix + torch.randn(N, N).tril(-1) / 20
    A, trace = Dense(matrix), float(matrix.trace())
    answers = [estimate(name, A, 18, seed=seed) for seed in range(200)]
    check(answers, trace)
    with pytest.raises(AssertionError):
        check(answers, trace * 1.1)
    with pytest.raises(AssertionError):
        check([replace(answer, stderr=answer.stderr / 2) for answer in answers], trace)


def test_rademacher_probes_see_a_diagonal_exactly() -> None:
    values = torch.linspace(-1.0, 4.0, N)
    answer = estimate("hutchinson", Dense(torch.diag(values)), 5)
    assert answer.value == pytest.approx(float(values.sum()), rel=1e-13)
    assert answer.stderr == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", ["hutch++", "xtrace"])
def test_a_matrix_of_low_rank_is_seen_exactly(name: str) -> None:
    matrix = with_spectrum([5.0, -3.0, 2.0, *[0.0] * (N - 3)])
    A = Counting(matrix)
    answer = estimate(name, A, 18)
    assert answer.value == pytest.approx(4.0, rel=1e-11)
    assert answer.stderr <= 1e-10
    assert A.count == answer.num_products
    assert estimate("hutchinson", A, 18).stderr > 0.1


@pytest.mark.parametrize("budget", [6, 11, 18])
@pytest.mark.parametrize("name", RUNS)
def test_products_are_counted_and_the_budget_kept(name: str, budget: int) -> None:
    A = Counting(with_spectrum(torch.linspace(-1.0, 2.0, N)))
    answer = estimate(name, A, budget)
    assert A.count == answer.num_products <= budget
    assert answer.num_products >= budget - 1
    assert A.widest <= 4


def test_a_sketch_of_low_rank_leaves_products_to_the_probes() -> None:
    A = Counting(with_spectrum([5.0, *[0.0] * (N - 1)]))
    answer = estimate("hutch++", A, 18)
    # 6 for the sketch, 1 for its only direction.
    assert answer.num_probes == 18 - 6 - 1


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_when_its_error_is_small_enough(name: str) -> None:
    A = Counting(with_spectrum(torch.linspace(1.0, 1.1, N)))
    answer = estimate(name, A, 60, goal=Goal(0.05))
    assert answer.num_probes >= 10
    assert answer.num_products == A.count < 60
    assert answer.stderr <= 0.05 * answer.value


def test_a_goal_asks_for_probes_too() -> None:
    assert Goal(0.1).reached(-2.0, 0.2, 10)
    assert not Goal(0.1).reached(-2.0, 0.21, 10)
    assert not Goal(0.1).reached(-2.0, 0.0, 9)
    assert not Goal(None).reached(1.0, 0.0, 1000)


def test_seeds_fix_the_answer() -> None:
    A = Dense(with_spectrum(torch.linspace(-1.0, 2.0, N)))
    for name in RUNS:
        one, same, other = (estimate(name, A, 12, seed=s) for s in (1, 1, 2))
        assert one == same
        assert one.value != other.value


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="'rademacher', 'gaussian', 'sphere'"):
        Hutchinson("uniform")
    for kind in (Hutchinson, HutchPlusPlus, XTrace):
        with pytest.raises(InvalidArgumentError, match="batch"):
            kind(batch=0)
