"""Steps in fixed buffers: nothing moves, all examples come once, and shapes repeat."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from eigenscape.bounds import _steps as module
from eigenscape.bounds import bound_recipe, make_posterior, optimise_posterior
from eigenscape.bounds._steps import Steps
from eigenscape.bounds._task import Task, working_risk
from eigenscape.bounds.optimise import _Session
from eigenscape.errors import InvalidArgumentError, SubstitutionWarning
from eigenscape.parallel import cuda_graphs
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from tests.bounds.conftest import Problem


def session(problem: Problem, **settings: object) -> _Session:
    recipe = bound_recipe("iter", **{"epochs": 4, "batch_size": 20, **settings})
    start = make_posterior(problem.risk, problem.prior, prior_variance=math.exp(-6.0))
    return _Session(working_risk(problem.risk), start, recipe, 0)


def buffers(steps: Steps) -> list[Tensor]:
    rotations = [R for layer in steps.basis.layers for R in layer.rotations]
    own = [steps.theta, steps.rho, *steps.lower, *steps.squares, steps.sums, *rotations]
    return [*own, steps._rate, steps._order, steps._noise, steps._origin, steps._most_rho]


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_buffers_stay_where_they_are(problem: Problem, covariance: str) -> None:
    every = 1 if covariance == "diagonal" else None
    run = session(problem, refresh_every=every, covariance=covariance)
    run._refresh()  # from the standard basis to one with rotations
    places = [tensor.data_ptr() for tensor in buffers(run._steps)]
    shapes = [tuple(index.shape) for index in run._steps.pieces()]
    old = run._steps.theta.clone()
    kept = [R.clone() for R in run._basis.layers[0].rotations]
    exact = run._basis
    for epoch in range(3):
        run._done = epoch
        if epoch and every:
            run._refresh()
        run._run_epoch(epoch, 0.01)
        assert [tensor.data_ptr() for tensor in buffers(run._steps)] == places
        assert [tuple(index.shape) for index in run._steps.pieces()] == shapes
    assert not torch.equal(run._steps.theta, old)
    # The session's own basis is another tensor, also in float64.
    assert all(torch.equal(R, S) for R, S in zip(exact.layers[0].rotations, kept, strict=True))
    if every:
        assert not torch.equal(run._steps.basis.layers[0].rotations[0], kept[0])


def test_every_example_is_used_once_in_an_epoch(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    real = Steps.run_steps

    def spy(self: Steps, index: Tensor) -> None:
        seen.extend(index.clone())
        real(self, index)

    monkeypatch.setattr(Steps, "run_steps", spy)
    recipe = bound_recipe("base", epochs=2, batch_size=40)
    optimise_posterior(problem.risk, problem.prior, recipe=recipe)
    assert [len(index) for index in seen] == [40, 40, 10] * 2
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(90))
    assert first.tolist() != second.tolist()


def test_pieces_have_few_shapes_and_no_step_sees_the_noise_of_another(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STEPS", 3)
    run = session(problem, batch_size=8, num_samples=2)
    steps, noises = run._steps, []
    assert [tuple(index.shape) for index in steps.pieces()] == [(3, 8)] * 3 + [(2, 8), (1, 2)]
    assert steps._noise.shape == (3, 2, 39)
    real = Steps._step

    def spy(self: Steps, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        noises.append(noise.clone())
        return real(self, x, y, noise)

    monkeypatch.setattr(Steps, "_step", spy)
    run._run_epoch(0, 0.1)
    rows = torch.stack(noises).flatten(0, 1)
    assert rows.shape == (24, 39)
    gram = rows @ rows.T / 39
    assert float((gram - torch.diag(gram.diagonal())).abs().max()) < 0.8
    assert float(gram.diagonal().min()) > 0.3


def test_networks_share_a_batch_out_and_all_examples_count_once(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session(problem, batch_size=40, num_samples=4, optimizer="sgd")
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    real = Steps._step

    def spy(self: Steps, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((x.clone(), y.clone(), noise.clone()))
        return real(self, x, y, noise)

    monkeypatch.setattr(Steps, "_step", spy)
    run._refresh()
    run._run_epoch(0, 1e-300)  # nothing moves
    # The last ten examples have the greatest number of networks that divides both 4 and 10.
    shapes = [(tuple(x.shape), tuple(y.shape), len(noise)) for x, y, noise in seen]
    assert shapes == [((4, 10, 5), (4, 10), 4)] * 2 + [((2, 5, 5), (2, 5), 2)]
    inputs = torch.cat([x.flatten(0, 1) for x, _, _ in seen])
    assert sorted(inputs.tolist()) == sorted(problem.data[0].tolist())
    wrong, loss, std = 0, 0.0, run._steps.log_std.exp()
    for xs, ys, noise in seen:
        for x, y, xi in zip(xs, ys, noise, strict=True):
            w = run._steps.w + run._basis.to_standard(std * xi)
            z = torch.func.functional_call(problem.model, problem.risk.space.unflatten(w), (x,))
            wrong += int((z.argmax(1) != y).sum())
            loss += float(nn.functional.cross_entropy(z, y, reduction="sum"))
    assert run._steps.sums.tolist() == pytest.approx([wrong, loss], rel=1e-12)


def test_slopes_of_many_networks_have_the_mean_of_one_and_less_noise(
    problem: Problem, slopes_seen: list[Tensor]
) -> None:
    slopes = []
    for count in (1, 3):
        slopes_seen.clear()
        run = session(problem, batch_size=15 * count, num_samples=count)
        run._refresh()
        run._steps.log_std.fill_(-1.5)
        for epoch in range(300):
            run._run_epoch(epoch, 0.1)
        slopes.append(torch.stack(slopes_seen))
    one, three = slopes
    assert (len(one), len(three)) == (1800, 600)
    variances = one.var(0), three.var(0)
    gap = (one.mean(0) - three.mean(0)) / (variances[0] / 1800 + variances[1] / 600).sqrt()
    assert float(gap.abs().max()) < 4.5  # standard errors, of 78 numbers
    assert float(gap.square().mean()) < 2.0
    # A third of the variance, for draws and examples are independent of the others'.
    assert float((variances[0] / variances[1]).log().mean().exp()) == pytest.approx(3.0, rel=0.1)


Work = Callable[[], None]


def test_recording_leaves_no_trace(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Work] = []

    def captured(work: Work, warm_up: Work, *_: object) -> Work:
        """Stand in for a CUDA graph: warm up, which changes everything, and replay by running."""
        warm_up()
        work()
        made.append(work)
        return work

    monkeypatch.setattr(cuda_graphs, "_captured", captured)
    runs = [session(problem, refresh_every=1) for _ in range(2)]
    runs[1]._steps._use_graphs = True
    for run in runs:
        run._refresh()
        for epoch in range(3):
            run._run_epoch(epoch, 0.01)
            run._note([])
            run._refresh()
    assert len(made) == 2  # four steps of 20 examples, one of 10; once for all epochs
    for one, two in zip(*(buffers(run._steps) for run in runs), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(runs[0]._history[:3], runs[1]._history[:3])


def test_what_cannot_be_recorded_runs_step_by_step(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(work: Work, warm_up: Work, *_: object) -> Work:
        warm_up()
        work()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graphs, "_captured", refused)
    runs = [session(problem) for _ in range(2)]
    runs[1]._steps._use_graphs = True
    runs[0]._run_epoch(0, 0.01)
    with pytest.warns(SubstitutionWarning, match=r"posterior could .*capturing\)\..*slower\.$"):
        runs[1]._run_epoch(0, 0.01)
    for one, two in zip(*(buffers(run._steps) for run in runs), strict=True):
        assert torch.equal(one, two)


def test_wide_layers_have_no_full_covariance() -> None:
    x, y = torch.randn(8, 40), torch.arange(8) % 2
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 2))
    risk = EmpiricalRisk(model, CrossEntropy(), (x, y))
    other = {name: t + 0.1 for name, t in model.state_dict().items()}
    start = make_posterior(risk, other, prior_source="other data")
    recipe = bound_recipe("appr", covariance="full")
    with pytest.raises(InvalidArgumentError, match="'0' has 1230"):
        Steps(risk, Task(risk), start, recipe)
    with pytest.raises(InvalidArgumentError, match="refresh_every=None"):
        bound_recipe("iter", covariance="full")
