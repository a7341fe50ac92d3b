"""Certificates of networks: coverage where the true error is known, checks, and misuse."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

from eigenscape.bounds import (
    Certificate,
    NetworkCertificate,
    Posterior,
    _task,
    certify,
    grid_variance,
    kl_inverse,
    layer_basis,
    make_posterior,
    pac_bayes_certificate,
)
from eigenscape.errors import (
    CheckpointError,
    EigenscapeError,
    EigenscapeWarning,
    InvalidArgumentError,
    ShapeError,
)
from eigenscape.parallel import mixed_seed
from eigenscape.records import Progress, Status
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk
from eigenscape.runs import read_run
from tests.bounds.conftest import Problem

DELTA = 0.05


def posterior_of(problem: Problem, spread: float = 0.01, **settings: object) -> Posterior:
    basis = layer_basis(problem.risk)
    s = torch.full((basis.size,), spread, dtype=torch.float64)
    settings = {"prior_variance": 0.08, **settings}
    return make_posterior(problem.risk, problem.prior, basis=basis, variances=s, **settings)


@dataclasses.dataclass
class Repetitions:
    """Linear classifiers of two Gaussian clouds at ±μ, one for each of 500 draws of the data."""

    x: Tensor
    y: Tensor
    w: Tensor
    errors: Tensor
    single: Tensor
    kl: Tensor
    true: Tensor


INDEX, VARIANCE, N, M = 70, 0.03, 60, 80
MU = torch.tensor([0.8, -0.3], dtype=torch.float64)


@pytest.fixture(scope="module")
def repetitions() -> Repetitions:
    draw = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    y = (torch.rand(500, N, generator=draw) < 0.5).double() * 2 - 1
    x = y[:, :, None] * MU + normal(500, N, 2)
    w = 0.4 * (y[:, :, None] * x).mean(1)  # fitted to the data
    W = w[:, None] + VARIANCE**0.5 * normal(500, M, 2)
    wrong = (torch.einsum("rmd,rnd->rmn", W, x * y[:, :, None]) <= 0).double()
    # Of each network the answer on one example only, drawn for it alone.
    single = wrong.gather(2, torch.randint(N, (500, M, 1), generator=draw)).squeeze(2)
    prior = grid_variance(INDEX)
    each = VARIANCE / prior - 1 - math.log(VARIANCE / prior)
    kl = 0.5 * (2 * each + w.square().sum(1) / prior)
    return Repetitions(x, y, w, wrong.mean(2), single, kl, gibbs_error(w))


def gibbs_error(w: Tensor) -> Tensor:
    """E Φ(−w'·μ/‖w'‖) over w' ~ N(w, VARIANCE I), by Gauss–Hermite quadrature."""
    nodes, weights = (torch.from_numpy(part) for part in hermegauss(80))
    grid = torch.cartesian_prod(nodes, nodes)
    chance = torch.outer(weights, weights).flatten() / weights.sum() ** 2
    drawn = w[:, None] + VARIANCE**0.5 * grid
    margin = (drawn @ MU) / drawn.norm(dim=2)
    return torch.special.ndtr(-margin) @ chance


def bounds(errors: Tensor, kl: Tensor, *, n: int = N, index: int = INDEX) -> Tensor:
    """The certificate's formula for all repetitions at once."""
    estimate = kl_inverse(errors.mean(1), math.log(2 / DELTA) / errors.shape[1])
    budget = kl + 2 * math.log(index) + math.log(math.pi**2 * n / (6 * DELTA))
    return kl_inverse(estimate, budget / (n - 1))


def test_certificates_hold_as_often_as_they_say(repetitions: Repetitions) -> None:
    r = repetitions
    bound = bounds(r.errors, r.kl)
    missed = int((r.true > bound).sum())
    assert missed <= 2 * DELTA * 500
    assert float(bound.median()) < 0.8  # not vacuous either
    # With n of a larger data set and without the step for the draws, it is no bound at all.
    wrong = kl_inverse(r.errors.mean(1), r.kl / 10_000)
    assert int((r.true > wrong).sum()) > 4 * DELTA * 500


def test_certificates_hold_with_one_example_per_draw(repetitions: Repetitions) -> None:
    r = repetitions
    bound = bounds(r.single, r.kl)
    assert int((r.true > bound).sum()) <= 2 * DELTA * 500
    assert float(bound.median()) < 0.85
    # The step for the draws alone: w' · yx is normal, so the posterior's error is in closed form.
    margin = (r.x * r.y[:, :, None] * r.w[:, None]).sum(2) / r.x.norm(dim=2)
    posterior_error = torch.special.ndtr(-margin / VARIANCE**0.5).mean(1)
    room = math.log(2 / DELTA) / M
    estimate = kl_inverse(r.single.mean(1), room)
    assert int((posterior_error > estimate).sum()) <= DELTA * 500
    spread = float(r.single.var(1).mean() / (500 * M)) ** 0.5
    assert abs(float((r.single.mean(1) - posterior_error).mean())) < 5 * spread
    # One example for all networks of a repetition: draws are not independent, and it fails.
    W = r.w[:, None] + VARIANCE**0.5 * torch.randn(
        500, M, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    shared = ((W * (r.x * r.y[:, :, None])[:, :1]).sum(2) <= 0).double()
    assert int((posterior_error > kl_inverse(shared.mean(1), room)).sum()) > 4 * DELTA * 500


def test_the_true_error_is_that_of_a_simulation(repetitions: Repetitions) -> None:
    draw = torch.Generator().manual_seed(6)
    w = repetitions.w[0]
    W = w + VARIANCE**0.5 * torch.randn(400_000, 2, generator=draw, dtype=torch.float64)
    x = MU + torch.randn(400_000, 2, generator=draw, dtype=torch.float64)
    rate = float(((W * x).sum(1) <= 0).double().mean())
    assert abs(rate - float(repetitions.true[0])) < 5 * 0.5 / math.sqrt(400_000)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_certify_has_the_numbers_of_the_repetitions(repetitions: Repetitions, number: int) -> None:
    r = repetitions
    model = nn.Linear(2, 1, bias=False).double()
    prior = {"weight": torch.zeros(1, 2, dtype=torch.float64)}
    with torch.no_grad():
        model.weight.copy_(r.w[number])
    targets = (r.y[number, :, None] + 1) / 2
    risk = EmpiricalRisk(model, BinaryCrossEntropy(), (r.x[number], targets))
    posterior = make_posterior(
        risk,
        prior,
        variances=torch.full((2,), VARIANCE, dtype=torch.float64),
        prior_variance=grid_variance(INDEX),
        prior_source="other data",
    )
    settings = dict(delta=DELTA, delta_samples=DELTA)
    found = certify(risk, posterior, num_samples=M, seed=number, **settings).certificate
    assert found.num_examples == N
    same_grid = certify(risk, posterior, num_samples=M, seed=number, **settings).certificate
    assert found.to_dict() == same_grid.to_dict()
    arithmetic = pac_bayes_certificate(
        r.errors[number],
        posterior.kl,
        prior_variance=grid_variance(INDEX) * (1 + 1e-13),
        num_examples=N,
        seed=0,
        **settings,
    )
    assert arithmetic.index in (INDEX - 1, INDEX)
    assert float(posterior.kl()) == pytest.approx(float(r.kl[number]))
    assert arithmetic.bound <= float(bounds(r.errors, r.kl)[number]) + 1e-9
    assert found.bound >= float(r.true[number])
    # Draws of the pipeline and of the simulation are of one distribution.
    spread = math.sqrt(2 * float(r.errors[number].var()) / M)
    assert abs(found.error - arithmetic.error) < 5 * spread


def test_the_errors_are_those_of_networks_drawn_one_by_one(problem: Problem) -> None:
    posterior = posterior_of(problem)
    found = certify(problem.risk, posterior, num_samples=5, seed=2)
    draw = torch.Generator().manual_seed(mixed_seed("draws", 2))
    x, y = problem.data
    errors = []
    for _ in range(5):
        row = posterior.draw(torch.randn(39, generator=draw, dtype=torch.float64))
        named = problem.risk.space.unflatten(row)
        z = torch.func.functional_call(problem.model, named, (x,))
        errors.append(float((z.argmax(1) != y).double().mean()))
    assert found.certificate.error == pytest.approx(sum(errors) / 5, abs=1e-15)
    assert len(set(errors)) > 1
    again = certify(problem.risk, posterior, num_samples=5, seed=2, networks_at_once=2)
    assert again.certificate.to_dict() == found.certificate.to_dict()


def test_draws_do_not_follow_weights_that_began_from_the_same_seed(problem: Problem) -> None:
    posterior = posterior_of(problem)
    found = certify(problem.risk, posterior, num_samples=1, seed=2)
    seeds = (2, mixed_seed("draws", 2))
    draws = [torch.Generator().manual_seed(seed) for seed in seeds]
    rows = [posterior.draw(torch.randn(39, generator=d, dtype=torch.float64)) for d in draws]
    errors = [_task.Task(problem.risk).errors(row.unsqueeze(0)).item() for row in rows]
    assert errors[0] != errors[1]
    assert found.certificate.error == errors[1]


def test_repeated_examples_are_noticed(problem: Problem) -> None:
    x, y = problem.data
    repeated = EmpiricalRisk(problem.model, CrossEntropy(), (x.repeat(4, 1), y.repeat(4)))
    with pytest.warns(EigenscapeWarning, match="Only 90 of 360 examples are distinct"):
        certify(repeated, posterior_of(problem), num_samples=2)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_each_network_is_judged_on_examples_of_its_own(problem: Problem, at_once: int) -> None:
    posterior = posterior_of(problem, 0.1)
    settings = dict(num_samples=5, examples_per_draw=11, seed=2)
    found = certify(problem.risk, posterior, networks_at_once=at_once, **settings)
    draw = torch.Generator().manual_seed(mixed_seed("draws", 2))
    x, y = problem.data
    errors, chosen = [], []
    for _ in range(5):
        row = posterior.draw(torch.randn(39, generator=draw, dtype=torch.float64))
        index = torch.randint(90, (11,), generator=draw)
        named = problem.risk.space.unflatten(row)
        z = torch.func.functional_call(problem.model, named, (x[index],))
        errors.append(float((z.argmax(1) != y[index]).double().mean()))
        chosen.append(tuple(index.tolist()))
    assert found.certificate.error == pytest.approx(sum(errors) / 5, abs=1e-15)
    assert len(set(chosen)) == 5
    assert found.examples_per_draw == 11
    # The same promise with the same numbers of draws and examples.
    whole = certify(problem.risk, posterior, num_samples=5, seed=2)
    assert whole.examples_per_draw is None
    assert whole.certificate.error != found.certificate.error
    same = ("num_samples", "num_examples", "delta", "delta_samples", "kl", "index")
    for name in same:
        assert getattr(found.certificate, name) == getattr(whole.certificate, name), name
    found.certificate.verify_arithmetic()


def test_some_examples_have_the_error_of_all_on_average(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_task, "_EXAMPLES_AT_ONCE", 2)  # several pieces
    task, posterior = _task.Task(problem.risk), posterior_of(problem, 0.3)
    draw = torch.Generator().manual_seed(4)
    rows = posterior.draw(torch.randn(39, 3000, generator=draw, dtype=torch.float64)).T
    index = torch.randint(90, (3000, 5), generator=draw)
    gap = task.errors(rows, index) - task.errors(rows)
    spread = float(gap.std()) / math.sqrt(3000)
    assert 0.0 < spread < 0.01
    assert abs(float(gap.mean())) < 4 * spread
    # All examples by their numbers are all examples.
    every = torch.arange(90).flip(0).expand(20, 90)
    assert torch.equal(task.errors(rows[:20], every), task.errors(rows[:20]))
    assert torch.equal(task.errors(rows[:1], every[:1]), task.errors(rows[:1]))


def test_some_examples_are_verified_with_as_many(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = certify(problem.risk, posterior_of(problem), num_samples=40, examples_per_draw=6)
    found.save(tmp_path / "run")
    read = read_run(tmp_path / "run").record
    assert read.examples_per_draw == 6
    seen: list[tuple[int, ...]] = []
    real = _task.Task.errors

    def spy(self: _task.Task, rows: Tensor, index: Tensor | None = None) -> Tensor:
        seen.append((0,) if index is None else tuple(index.shape))
        return real(self, rows, index)

    monkeypatch.setattr(_task.Task, "errors", spy)
    assert read.verify(problem.risk).seed == 1
    assert seen == [(0,), *[(8, 6)] * 5]  # a look at the prior on all examples, then the draws
    low = changed(certify(problem.risk, posterior_of(problem, 0.4), num_samples=300), error=0.0)
    low = dataclasses.replace(low, examples_per_draw=6)
    with pytest.raises(EigenscapeError, match="It does not hold"):
        low.verify(problem.risk)


@pytest.mark.parametrize("count", [0, -3, 91, 1.5])
def test_counts_of_examples_that_mean_nothing_are_refused(problem: Problem, count: Any) -> None:
    with pytest.raises(EigenscapeError, match=r"certify\(examples_per_draw=...\)"):
        certify(problem.risk, posterior_of(problem), num_samples=2, examples_per_draw=count)
    x, y = problem.data
    nothing = EmpiricalRisk(problem.model, CrossEntropy(), (x[:1], y[:1]))
    with pytest.raises(InvalidArgumentError, match="number of examples"):
        certify(nothing, posterior_of(problem), num_samples=2, examples_per_draw=1)


def test_networks_are_drawn_and_judged_without_tf32(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = _task.Task.outputs

    def spy(self: _task.Task, *args: Any, **settings: Any) -> Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return real(self, *args, **settings)

    monkeypatch.setattr(_task.Task, "outputs", spy)
    torch.set_float32_matmul_precision("high")
    try:
        certify(problem.risk, posterior_of(problem), num_samples=2)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"highest"}


def test_a_saved_certificate_can_be_verified(problem: Problem, tmp_path: Path) -> None:
    found = certify(problem.risk, posterior_of(problem), num_samples=40, seed=7)
    found.save(tmp_path / "run")
    read = read_run(tmp_path / "run").record
    assert isinstance(read, NetworkCertificate)
    with torch.no_grad():  # the model's own weights play no part
        for parameter in problem.model.parameters():
            parameter.mul_(0.5)
    fresh = read.verify(problem.risk)
    assert fresh.seed == 8
    assert fresh.num_samples == 40
    assert fresh.error != found.certificate.error
    assert fresh.kl == found.certificate.kl
    with pytest.raises(InvalidArgumentError, match="own networks"):
        read.verify(problem.risk, seed=7)
    assert "bound" in str(read)


def changed(found: NetworkCertificate, **fields: object) -> NetworkCertificate:
    """Return a certificate that was tampered with, consistently in its own arithmetic."""
    old = found.certificate
    given = {**{name: getattr(old, name) for name in ("error", "num_examples", "kl")}, **fields}
    new = pac_bayes_certificate(
        torch.full((old.num_samples,), float(given["error"])),
        lambda _: given["kl"],
        prior_variance=old.prior_variance,
        num_examples=int(given["num_examples"]),
        seed=old.seed,
    )
    return dataclasses.replace(found, certificate=new)


def test_verify_refuses_what_was_changed(problem: Problem) -> None:
    found = certify(problem.risk, posterior_of(problem, 0.2), num_samples=300)
    certificate = found.certificate
    assert certificate.error > 0.1
    low = dataclasses.replace(found, certificate=dataclasses.replace(certificate, bound=0.1))
    cases = {
        "bound is 0.1": low,
        "KL is": changed(found, kl=certificate.kl / 2),
        "number of examples is 180": changed(found, num_examples=180),
        "It does not hold": changed(found, error=0.0),
        "dtype is torch.float32": dataclasses.replace(found, dtype="torch.float32"),
        "examples' checksum": dataclasses.replace(found, data_checksum=1),
        "constants' checksum": dataclasses.replace(found, constants_checksum=1),
    }
    for text, record in cases.items():
        with pytest.raises(EigenscapeError, match=text):
            record.verify(problem.risk)
    found.verify(problem.risk)


def test_other_data_do_not_verify(problem: Problem) -> None:
    found = certify(problem.risk, posterior_of(problem), num_samples=3)
    x, y = problem.data
    other = EmpiricalRisk(problem.model, CrossEntropy(), (x, y.roll(1)))
    with pytest.raises(EigenscapeError, match="examples' checksum"):
        found.verify(other)


def test_n_is_what_the_loader_gave(problem: Problem) -> None:
    data = TensorDataset(*problem.data)
    loaders = {
        90: DataLoader(data, batch_size=40),
        80: DataLoader(data, batch_size=40, drop_last=True),
        31: DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(31))),
        17: DataLoader(Subset(data, range(17)), batch_size=4),
    }
    for n, loader in loaders.items():
        risk = EmpiricalRisk(problem.model, CrossEntropy(), list(loader))
        found = certify(risk, posterior_of(problem), num_samples=2)
        assert found.certificate.num_examples == n
    one = EmpiricalRisk(problem.model, CrossEntropy(), (problem.data[0][:1], problem.data[1][:1]))
    with pytest.raises(InvalidArgumentError, match="number of examples"):
        certify(one, posterior_of(problem), num_samples=2)


def test_rotations_that_are_none_are_refused(problem: Problem) -> None:
    posterior = posterior_of(problem)
    short, long = (torch.zeros(1, dtype=dtype) for dtype in (torch.float32, torch.float64))
    rounded = posterior.basis.to(short).to(long)
    assert 1e-9 < rounded.orthonormality() < 1e-5
    with pytest.raises(EigenscapeError, match="away from orthonormal"):
        certify(problem.risk, dataclasses.replace(posterior, basis=rounded), num_samples=2)


def test_a_prior_variance_above_the_ceiling_is_refused(problem: Problem) -> None:
    for variance in (0.1, 0.2):
        with pytest.raises(InvalidArgumentError, match="below the ceiling"):
            certify(problem.risk, posterior_of(problem, prior_variance=variance), num_samples=2)
    # Right below it the grid begins with j = 1; there is no j = 0.
    near = certify(problem.risk, posterior_of(problem, prior_variance=0.0999), num_samples=2)
    assert near.certificate.index == 1
    with pytest.raises(InvalidArgumentError, match="index"):
        dataclasses.replace(near.certificate, index=0).verify_arithmetic()


def test_no_empirical_error_is_still_no_promise_of_none() -> None:
    x = torch.linspace(8.0, 9.0, 200, dtype=torch.float64).unsqueeze(1)
    x = torch.cat([-x, x])
    y = (x > 0).double()
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
    risk = EmpiricalRisk(model, BinaryCrossEntropy(), (x, y))
    posterior = make_posterior(
        risk,
        {"weight": torch.zeros(1, 1).double()},
        variances=torch.tensor([1e-4]).double(),
        prior_variance=0.05,
    )
    found = certify(risk, posterior, num_samples=50)
    assert found.certificate.error == 0.0
    assert 0.0 < found.certificate.error_bound < found.bound < 1.0
    found.verify(risk)


def test_posteriors_of_other_models_are_refused(problem: Problem) -> None:
    other = EmpiricalRisk(nn.Linear(5, 3).double(), CrossEntropy(), problem.data)
    with pytest.raises(ShapeError, match="39 parameters"):
        certify(other, posterior_of(problem), num_samples=2)


def test_progress_counts_networks(problem: Problem) -> None:
    seen: list[int] = []
    certify(
        problem.risk,
        posterior_of(problem),
        num_samples=5,
        networks_at_once=2,
        progress=lambda step: seen.append(step.done),
    )
    assert seen == [2, 4, 5]


@pytest.mark.parametrize(("again", "per_draw"), [(4, None), (3, None), (3, 5)])
def test_killed_draws_continue_with_the_same_bits(
    problem: Problem, tmp_path: Path, again: int, per_draw: int | None
) -> None:
    posterior = posterior_of(problem, 0.1)
    settings = dict(num_samples=23, examples_per_draw=per_draw, seed=6)
    whole = certify(problem.risk, posterior, **settings)
    kept = dict(checkpoint=tmp_path / "c", checkpoint_every=8, **settings)

    def stop(step: Progress) -> None:
        if step.done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certify(problem.risk, posterior, networks_at_once=4, progress=stop, **kept)
    seen: list[int] = []
    found = certify(
        problem.risk,
        posterior,
        networks_at_once=again,
        progress=lambda step: seen.append(step.done),
        **kept,
    )
    assert seen[0] == 16 + again  # 20 were drawn, 16 of them saved
    assert found.certificate.to_dict() == whole.certificate.to_dict()
    done = certify(problem.risk, posterior, progress=stop, **kept)
    assert done.certificate.to_dict() == whole.certificate.to_dict()
    with pytest.raises(CheckpointError, match="posterior"):
        certify(problem.risk, posterior_of(problem, 0.2), **kept)
    with pytest.raises(CheckpointError, match="draws: 23, now 24"):
        certify(problem.risk, posterior, **{**kept, "num_samples": 24})
    with pytest.raises(CheckpointError, match=f"examples per draw: .?{per_draw or 'all'}.?, now 9"):
        certify(problem.risk, posterior, **{**kept, "examples_per_draw": 9})


def test_the_record_reads_as_its_certificate(problem: Problem) -> None:
    found = certify(problem.risk, posterior_of(problem), num_samples=2)
    assert isinstance(found.certificate, Certificate)
    assert found.bound == found.certificate.bound
    assert isinstance(found.status, Status)
    assert found.columns() == {**found.certificate.columns(), "examples_per_draw": [90]}
    some = certify(problem.risk, posterior_of(problem), num_samples=2, examples_per_draw=7)
    assert some.columns()["examples_per_draw"] == [7]
