"""Algorithm 1: its derivatives against autograd, its steps by hand, and what it makes smaller."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

from eigenscape.bounds import (
    BoundRecipe,
    PosteriorFit,
    bound_recipe,
    certify,
    gaussian_kl,
    layer_basis,
    make_posterior,
    optimise_posterior,
)
from eigenscape.bounds._task import Task, working_risk
from eigenscape.bounds.optimise import _Session
from eigenscape.errors import (
    CheckpointError,
    ConvergenceWarning,
    InvalidArgumentError,
    UnsupportedModelError,
)
from eigenscape.parallel import epoch_order
from eigenscape.records import Progress, pack, unpack
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk, SquaredError
from tests.bounds.conftest import Problem, trained

SHORT = dict(epochs=6, batch_size=40, learning_rate=0.02, drop_every=4, refresh_every=2)


def session(problem: Problem, **settings: object) -> _Session:
    recipe = bound_recipe("iter", **{**SHORT, **settings})
    start = make_posterior(problem.risk, problem.prior, prior_variance=math.exp(-6.0))
    found = _Session(working_risk(problem.risk), start, recipe, 0)
    found._refresh()
    return found


def same(one: PosteriorFit, two: PosteriorFit) -> None:
    for a, b in zip(pack(one)[1].items(), pack(two)[1].items(), strict=True):
        assert a[0] == b[0]
        assert torch.equal(a[1], b[1]), a[0]


def test_derivatives_of_the_bound_are_those_of_autograd(problem: Problem) -> None:
    steps = session(problem)._steps
    theta, rho = (t.clone().requires_grad_() for t in steps.moving())
    origin = problem.risk.space.flatten(problem.prior)
    kl = gaussian_kl(theta[0], (2 * theta[1]).exp(), origin, (2 * rho).exp())
    torch.testing.assert_close(steps.kl(), kl.detach())
    j = 100.0 * (math.log(0.1) - 2 * rho)
    B = (kl + 2 * j.log() + math.log(math.pi**2 * 90 / (6 * 0.025))) / 89
    wanted = torch.autograd.grad((B / 2).sqrt(), (theta, rho))
    zero, variances = torch.zeros_like(steps.w), (2 * steps.log_std).exp()
    for ours, theirs in zip(steps.slopes(zero, zero, variances, []), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_step_of_sgd_is_line_12_to_14_of_the_algorithm(
    problem: Problem, num_samples: int, covariance: str
) -> None:
    once = {"refresh_every": None, "covariance": covariance}
    run = session(problem, optimizer="sgd", num_samples=num_samples, batch_size=90, **once)
    steps = run._steps
    for N in steps.lower:
        N.copy_(torch.tril(torch.linspace(-0.1, 0.2, N.numel()).double().view_as(N), -1))
    before = [t.clone() for t in steps.moving()]
    leaves = [t.clone().requires_grad_() for t in before]
    with run._risk.evaluating():
        steps.run_epoch(torch.arange(90), 0.1, 4)
    draw = torch.Generator().manual_seed(4)
    noise = torch.empty(num_samples, 39, dtype=torch.float64).normal_(generator=draw)
    Q = run._basis.to_standard(torch.eye(39, dtype=torch.float64))
    (w, log_std), rho, *lower = leaves
    L = torch.diag(log_std.exp())
    if lower:
        L = L + torch.block_diag(*(N.tril(-1) for N in lower))
    losses, shares = [], (t.chunk(num_samples) for t in problem.data)
    for xi, x, y in zip(noise, *shares, strict=True):
        named = run._risk.space.unflatten(w + Q @ L @ xi)
        z = torch.func.functional_call(problem.model, named, (x,))
        losses.append(nn.functional.cross_entropy(z, y))
    origin = problem.risk.space.flatten(problem.prior)
    prior = MultivariateNormal(origin, scale_tril=rho.exp() * torch.eye(39).double())
    kl = kl_divergence(MultivariateNormal(w, scale_tril=L), prior)
    j = 100.0 * (math.log(0.1) - 2 * rho)
    B = (kl + 2 * j.log() + math.log(math.pi**2 * 90 / (6 * 0.025))) / 89
    slopes = torch.autograd.grad(torch.stack(losses).mean() + (B / 2).sqrt(), leaves)
    for now, old, slope in zip(steps.moving(), before, slopes, strict=True):
        torch.testing.assert_close(now, old - 0.1 * slope)
    if covariance == "full":
        basis, variances = steps.diagonal(run._basis)
        Q2, L2 = basis.to_standard(torch.eye(39).double()), torch.diag(steps.log_std.exp())
        L2 = Q @ (L2 + torch.block_diag(*steps.lower))
        torch.testing.assert_close(Q2 @ torch.diag(variances) @ Q2.T, L2 @ L2.T)
        assert basis.orthonormality() < 1e-12


def test_rmsprop_is_that_of_pytorch(problem: Problem) -> None:
    steps = session(problem)._steps
    steps._rate.fill_(0.03)
    value = torch.linspace(-1, 1, 5, dtype=torch.float64)
    theirs, square = nn.Parameter(value.clone()), torch.zeros_like(value)
    optimizer = torch.optim.RMSprop([theirs], lr=0.03, alpha=0.9, eps=1e-8)
    for step in range(4):
        slope = torch.sin(value + step)
        theirs.grad = slope.clone()
        optimizer.step()
        steps.update(value, slope, square)
    torch.testing.assert_close(value, theirs.detach())


def test_the_prior_variance_stays_on_the_grid(problem: Problem) -> None:
    recipe = bound_recipe("base", **SHORT, prior_log_std=5.0)
    fit = optimise_posterior(problem.risk, problem.prior, recipe=recipe)
    assert fit.posterior.prior_variance <= 0.1 * math.exp(-1 / 100) * (1 + 1e-12)
    certify(problem.risk, fit.posterior, num_samples=3)


def test_a_changed_basis_takes_variances_and_optimiser_along(problem: Problem) -> None:
    run, other = session(problem), session(problem, carry="index")
    for one in (run, other):
        one._done = 2
        one._steps.squares[0][1].copy_(torch.arange(1.0, 40.0))
        one._steps.w.mul_(1.5).add_(0.1)
    ours, theirs = run._steps, other._steps
    old, s, squares = run._basis, (2 * ours.log_std).exp(), ours.squares[0][1].clone()
    kept = theirs.log_std.clone()
    run._refresh()
    other._refresh()
    new = run._basis
    assert float((new.layers[0].rotations[0] - old.layers[0].rotations[0]).abs().max()) > 1e-3
    # By dense matrices: Σ, and the second moment of slopes along directions, both diagonal in the
    # old basis, have these diagonals in the new one. A slope along ς has noise of variance s.
    turn = new.to_basis(old.to_standard(torch.eye(39, dtype=torch.float64)))
    dense = {name: turn @ a.diag() @ turn.T for name, a in (("s", s), ("g²", squares / s))}
    variances, moments = dense["s"].diagonal(), dense["g²"].diagonal()
    torch.testing.assert_close((2 * ours.log_std).exp(), variances)
    torch.testing.assert_close(ours.squares[0][1], moments * variances)
    assert torch.equal(theirs.log_std, kept)
    assert torch.equal(theirs.squares[0][1], torch.arange(1.0, 40.0).double())
    # The basis is that of the mean, not of the weights that training found.
    fresh = run._risk.space.flatten(run._risk.parameters())
    torch.testing.assert_close(fresh, ours.w)


@pytest.mark.parametrize("kind", ["kronecker", "approximate"])
def test_axes_of_inputs_that_stay_are_not_computed_again(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = session(problem, basis=kind)
    run._done = 2
    run._steps.w.mul_(1.5).add_(0.1)
    sizes: list[int] = []
    real = torch.linalg.eigh

    def spy(matrix: Tensor) -> Any:
        sizes.append(len(matrix))
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", spy)
    run._refresh()
    assert sizes == [4, 3, 5]  # the 5 inputs and the bias of the first layer are 6
    fresh = layer_basis(run._risk, kind)
    assert sizes == [4, 3, 5, 4, 6, 3, 5]
    for ours, theirs in zip(run._basis.layers, fresh.layers, strict=True):
        assert torch.equal(ours.eigenvalues, theirs.eigenvalues)
        assert all(map(torch.equal, ours.rotations, theirs.rotations))


def test_orders_drawn_ahead_are_those_of_their_epochs(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = session(problem), []
    monkeypatch.setattr(run._steps, "run_epoch", lambda order, *_: seen.append(order.clone()))
    for epoch in (0, 1, 5):
        run._run_epoch(epoch, 0.1)
        assert torch.equal(seen[-1], epoch_order(0, epoch, 90))
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("method", ["base", "appr", "iter", "iter-d", "iter-m", "full"])
def test_every_method_makes_the_bound_smaller(problem: Problem, method: str) -> None:
    settings = dict(epochs=40, batch_size=30, learning_rate=0.03, drop_every=30)
    if method == "full":
        method, settings = "appr", {**settings, "covariance": "full"}
    recipe = bound_recipe(method, **settings)
    before = {name: t.clone() for name, t in problem.model.state_dict().items()}
    fit = optimise_posterior(problem.risk, problem.prior, recipe=recipe)
    assert float(fit.bound[-1]) < float(fit.bound[0]) - 0.1
    assert float(fit.kl[-1]) == pytest.approx(float(fit.posterior.kl()), rel=1e-9)
    assert fit.posterior.basis.orthonormality() < 1e-12
    assert fit.status
    assert len(list(fit.columns()["epoch"])) == 40
    for name, tensor in problem.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_curvature_gives_the_first_variances(problem: Problem) -> None:
    run = session(problem, initial="curvature")
    log_std, eigenvalues = run._steps.log_std, run._basis.layers[0].eigenvalues
    assert bool(((2 * log_std).exp() <= math.exp(-6.0) * (1 + 1e-12)).all())
    assert float(log_std[eigenvalues.argmax()]) < float(log_std[eigenvalues.argmin()])


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_killed_optimisation_continues_with_the_same_bits(
    problem: Problem, tmp_path: Path, covariance: str
) -> None:
    every = {"refresh_every": 2 if covariance == "diagonal" else None}
    recipe = bound_recipe("iter", **{**SHORT, **every}, covariance=covariance)
    whole = optimise_posterior(problem.risk, problem.prior, recipe=recipe, seed=3)

    def stop(step: Progress) -> None:
        if step.done == 3:
            raise KeyboardInterrupt

    settings = dict(recipe=recipe, seed=3, checkpoint=tmp_path / "c", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        optimise_posterior(problem.risk, problem.prior, progress=stop, **settings)
    seen: list[Progress] = []
    resumed = optimise_posterior(problem.risk, problem.prior, progress=seen.append, **settings)
    assert [step.done for step in seen] == [4, 5, 6]
    assert f"bound about {float(resumed.bound[-1]):.4f}" in seen[-1].task
    same(resumed, whole)
    same(optimise_posterior(problem.risk, problem.prior, **settings), whole)
    with pytest.raises(CheckpointError, match="seed: 3, now 4"):
        optimise_posterior(problem.risk, problem.prior, **{**settings, "seed": 4})
    plain, tensors = pack(whole)
    same(unpack(plain, tensors), whole)


def test_numbers_that_are_not_finite_stop_it_at_the_last_good_epoch(problem: Problem) -> None:
    recipe = BoundRecipe(epochs=3, optimizer="sgd", learning_rate=1e200, batch_size=90)
    with pytest.warns(ConvergenceWarning, match="in epoch 1 of 3"):
        fit = optimise_posterior(problem.risk, problem.prior, recipe=recipe)
    assert not fit.status
    torch.testing.assert_close(
        fit.posterior.means, problem.risk.space.flatten(problem.risk.parameters())
    )


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_for_the_steps_alone(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, tf32: bool
) -> None:
    seen: dict[str, set[str]] = {"steps": set(), "bases": set()}

    def spied(owner: Any, name: str, where: str) -> None:
        real = getattr(owner, name)

        def spy(*args: Any, **settings: Any) -> Any:
            seen[where].add(torch.get_float32_matmul_precision())
            return real(*args, **settings)

        monkeypatch.setattr(owner, name, spy)

    spied(Task, "loss", "steps")
    spied(torch.linalg, "eigh", "bases")
    recipe = bound_recipe("iter", **SHORT, tf32=tf32)
    fit = optimise_posterior(problem.risk, problem.prior, recipe=recipe)
    assert seen == {"steps": {"high" if tf32 else "highest"}, "bases": {"highest"}}
    assert torch.get_float32_matmul_precision() == "highest"
    assert fit.recipe.tf32 is tf32


class _Reads(TorchDispatchMode):
    """Notices what would make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("num_samples", [1, 2])
def test_nothing_is_read_back_within_an_epoch(problem: Problem, num_samples: int) -> None:
    run = session(problem, num_samples=num_samples)
    with _Reads() as reads:
        run._run_epoch(0, 0.1)
        assert reads.found == []
        run._note([])
        assert reads.found != []  # so much for the spy: here everything is read


def test_one_output_and_two_are_the_same_problem() -> None:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(30, 3, generator=draw, dtype=torch.float64)
    y = (x[:, 0] > 0.3).long()
    z = torch.randn(2, 30, generator=draw, dtype=torch.float64)
    one = Task(
        EmpiricalRisk(nn.Linear(3, 1).double(), BinaryCrossEntropy(), (x, y[:, None].double()))
    )
    two = Task(EmpiricalRisk(nn.Linear(3, 2).double(), CrossEntropy(), (x, y)))
    pair = torch.stack([torch.zeros_like(z), z], dim=2)
    torch.testing.assert_close(one.loss(z[:, :, None], y), two.loss(pair, y))
    assert torch.equal(one.wrong(z[:, :, None], y), two.wrong(pair, y))
    # In bits, so that it is at least the error.
    assert bool((one.loss(z[:, :, None], y) >= one.wrong(z[:, :, None], y).double().mean(1)).all())


def test_a_two_class_network_with_one_output_can_be_optimised() -> None:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(60, 3, generator=draw)
    y = (x[:, 0] > 0).float()[:, None]
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    prior = {name: t.clone() for name, t in model.state_dict().items()}
    with torch.no_grad():
        model[0].weight.add_(0.3)
    risk = EmpiricalRisk(model, BinaryCrossEntropy(), (x, y))
    fit = optimise_posterior(risk, prior, recipe=bound_recipe("iter-m", **SHORT))
    assert fit.posterior.means.dtype == torch.float64
    certify(risk, fit.posterior, num_samples=2).verify(risk)


@pytest.mark.parametrize("what", ["regression", "weights", "ignored", "soft"])
def test_other_problems_are_refused(what: str) -> None:
    x = torch.randn(8, 2, dtype=torch.float64)
    loss, y = CrossEntropy(), torch.arange(8) % 2
    if what == "regression":
        loss, y = SquaredError(), torch.zeros(8, 2, dtype=torch.float64)
    elif what == "weights":
        loss = CrossEntropy(class_weights=torch.tensor([1.0, 2.0]).double())
    elif what == "ignored":
        y = torch.where(y == 1, -100, 0)
    else:
        y = torch.full((8, 2), 0.5, dtype=torch.float64)
    model = nn.Linear(2, 2).double()
    risk = EmpiricalRisk(model, loss, (x, y))
    other = {name: t + 1 for name, t in model.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match="A certificate"):
        optimise_posterior(risk, other)


def test_a_fitted_prior_is_refused_before_anything_runs(problem: Problem) -> None:
    with pytest.raises(InvalidArgumentError, match="equals"):
        optimise_posterior(problem.risk, problem.model.state_dict())


def test_convolutions_are_turned_too() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, 5, 5, generator=draw)
    y = (x[:, 0, :2].mean((1, 2)) > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    case = trained(model, (x, y), steps=20)
    recipe = bound_recipe("iter", **SHORT, num_samples=2)
    fit = optimise_posterior(case.risk, case.prior, recipe=recipe)
    assert [layer.kind for layer in fit.posterior.basis.layers] == ["kronecker"] * 2
    assert math.isfinite(float(fit.bound[-1]))
