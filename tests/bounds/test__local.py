"""Noise at layers' outputs: the law of outputs and of slopes is that of networks drawn whole."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.bounds import LayerBasis, bound_recipe, certify, make_posterior, optimise_posterior
from eigenscape.bounds._local import OutputNoise, _Noise
from eigenscape.bounds._task import working_risk
from eigenscape.bounds.optimise import _Session
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from tests.bounds.conftest import Problem, trained


def session(problem: Problem, method: str, **settings: object) -> _Session:
    recipe = bound_recipe(method, **{"epochs": 4, "batch_size": 30, **settings})
    start = make_posterior(problem.risk, problem.prior, prior_variance=math.exp(-6.0))
    run = _Session(working_risk(problem.risk), start, recipe, 0)
    run._refresh()
    # Unequal, so that a variance in the wrong place shows.
    run._steps.log_std.copy_(torch.linspace(-2.5, -0.5, len(run._steps.w)))
    return run


@pytest.mark.parametrize("method", ["base", "iter"])
def test_one_layer_has_the_covariance_of_networks_drawn_whole(method: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    run = session(trained(nn.Linear(3, 3), (x, y)), method)
    steps, risk = run._steps, run._risk
    Q = steps.basis.to_standard(torch.eye(12))
    covariance = Q @ torch.diag((2 * steps.log_std).exp()) @ Q.T
    # The output is linear in the parameters: J (3, 12) for one input.
    one = x[:1]
    J = torch.autograd.functional.jacobian(
        lambda w: risk.call({**risk.constants(), **risk.space.unflatten(w)}, (one,), {})[0],
        steps.w,
    )
    local = OutputNoise(risk, steps.basis)
    local.turn(steps.basis)
    assert local.width == 3
    with risk.evaluating():
        means, stds = risk.space.unflatten(steps.w), [steps.log_std]
        units = local.outputs(means, stds, steps.basis, one.expand(3, 3), torch.eye(3))
        mean = local.outputs(means, stds, steps.basis, one, torch.zeros(1, 3))
    factor = units - mean  # rows: what each of the three numbers of noise does
    torch.testing.assert_close(factor.T @ factor, J @ covariance @ J.T)


def plainly(
    output: Tensor, x: Tensor, log_std: Tensor, noise: Tensor, layer: LayerBasis, _: object
) -> Tensor:
    """Add the noise by the formula, for autograd to differentiate."""
    if layer.has_bias:
        x = torch.cat([x, torch.ones(len(x), 1)], 1)
    S = layer.matrix((2 * log_std).exp(), noise.shape[1])
    U, V = layer.rotations or (torch.eye(noise.shape[1]), torch.eye(x.shape[1]))
    return output + (noise * ((x @ V).square() @ S.T).sqrt()) @ U.T


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_derivatives_of_the_noise_are_those_of_autograd(turned: bool, has_bias: bool) -> None:
    torch.manual_seed(1)
    B, n, m = 5, 4, 3
    wide = n + has_bias
    turns = tuple(torch.linalg.qr(torch.randn(k, k))[0] for k in (m, wide)) if turned else ()
    layer = LayerBasis("", "", 0, m * wide, has_bias, turns, torch.zeros(m * wide))
    given = [torch.randn(B, m), torch.randn(B, n), 0.5 * torch.randn(m * wide)]
    given = [part.requires_grad_() for part in given]
    noise, slope = torch.randn(B, m), torch.randn(B, m)
    # V has columns of zeros more, none, one or three: 4 and 5 inputs.
    wider = F.pad(turns[1], (0, -wide % 4)) if turned else None
    found = []
    for add in (_Noise.apply, plainly):
        output = add(*given, noise, layer, wider)
        found.append([output, *torch.autograd.grad(output, given, slope)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    # Without a slope for the inputs, as in a first layer; and inputs of zeros have no noise.
    given[1] = torch.zeros(B, n)
    output = _Noise.apply(*given, noise, layer, wider)
    parts = torch.autograd.grad(output, [given[0], given[2]], slope)
    assert all(bool(part.isfinite().all()) for part in parts)
    assert has_bias or bool((output - given[0]).abs().max() < 1e-14)


@pytest.mark.parametrize("method", ["base", "iter"])
def test_slopes_have_the_mean_of_networks_drawn_whole_and_less_noise(
    problem: Problem, slopes_seen: list[Tensor], method: str
) -> None:
    slopes, sums = [], []
    for noise in ("weights", "outputs"):
        slopes_seen.clear()
        run = session(problem, method, noise=noise)
        epochs = []
        for epoch in range(300):
            run._run_epoch(epoch, 0.1)
            epochs.append(run._steps.sums / 90)
        slopes.append(torch.stack(slopes_seen))
        sums.append(torch.stack(epochs))
    whole, local = slopes
    gap = (whole.mean(0) - local.mean(0)) / ((whole.var(0) + local.var(0)) / len(whole)).sqrt()
    assert float(gap.abs().max()) < 4.5  # standard errors, of 78 numbers
    assert float(gap.square().mean()) < 2.0
    assert float((whole.var(0) / local.var(0)).log().mean().exp()) > 2.0
    # Errors and losses of an epoch have one mean, too.
    gap = (sums[0].mean(0) - sums[1].mean(0)) / ((sums[0].var(0) + sums[1].var(0)) / 300).sqrt()
    assert float(gap.abs().max()) < 4.5


def test_a_posterior_ends_with_a_bound_as_small_and_a_certificate(problem: Problem) -> None:
    settings = {"epochs": 60, "batch_size": 10, "learning_rate": 0.03, "drop_every": 45}
    bounds = {}
    for noise in ("weights", "outputs"):
        recipe = bound_recipe("iter", noise=noise, **settings)
        fit = optimise_posterior(problem.risk, problem.prior, recipe=recipe)
        bounds[noise] = certify(problem.risk, fit.posterior, num_samples=500).bound
    assert bounds["outputs"] == pytest.approx(bounds["weights"], rel=0.05)


def test_a_short_last_batch_and_a_run_again_are_the_same_bits(problem: Problem) -> None:
    recipe = bound_recipe("appr", noise="outputs", epochs=3, batch_size=40)
    one, two = (optimise_posterior(problem.risk, problem.prior, recipe=recipe) for _ in range(2))
    assert torch.equal(one.posterior.means, two.posterior.means)
    assert one.status.converged


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 1, 1), nn.Flatten()),
        nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)),
        nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 1), nn.Flatten()),
        Twice(),
        ByHand(),
    ],
    ids=["convolution", "norm", "positions", "used twice", "no F.linear"],
)
def test_other_networks_are_refused(model: nn.Module) -> None:
    x, y = torch.randn(12, 3), torch.arange(12) % 3
    prior = {name: tensor + 0.1 for name, tensor in model.state_dict().items()}
    risk = EmpiricalRisk(model, CrossEntropy(), (x, y))
    recipe = bound_recipe("base", noise="outputs", epochs=1, batch_size=4)
    with pytest.raises(UnsupportedModelError, match="noise='weights'"):
        optimise_posterior(risk, prior, recipe=recipe)
