"""Posteriors on a GPU: the steps of the CPU, with graphs and without, killed and continued."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.bounds import (
    NetworkCertificate,
    PosteriorFit,
    bound_recipe,
    certify,
    layer_basis,
    make_posterior,
    optimise_posterior,
)
from eigenscape.bounds._steps import Steps, is_fused
from eigenscape.bounds._task import Task
from eigenscape.device import full_precision
from eigenscape.errors import SubstitutionWarning
from eigenscape.records import Progress, pack
from eigenscape.risk import CrossEntropy, EmpiricalRisk

pytestmark = pytest.mark.gpu
# 90 examples in batches of 20: four steps in one graph, and one of 10 in another.
SHORT = dict(epochs=6, batch_size=20, learning_rate=0.02, drop_every=4, refresh_every=2)


def problem(device: str) -> tuple[EmpiricalRisk, dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=draw, dtype=torch.float64)
    y = (x @ torch.randn(5, 3, generator=draw, dtype=torch.float64)).argmax(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    prior = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3).add_(0.05)
    model.to(device)
    return EmpiricalRisk(model, CrossEntropy(), (x.to(device), y.to(device))), prior


def fitted(device: str, **settings: object) -> PosteriorFit:
    risk, prior = problem(device)
    kept = {key: settings.pop(key) for key in ("checkpoint", "progress") if key in settings}
    recipe = bound_recipe("iter", **{**SHORT, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("error", SubstitutionWarning)  # graphs must be what runs
        return optimise_posterior(
            risk, prior, recipe=recipe, prior_source="other data", checkpoint_every=1, **kept
        )


def filled(noise: Tensor, own: Tensor) -> Tensor:
    return own.copy_(noise[: len(own)])


def same(one: PosteriorFit, two: PosteriorFit) -> None:
    for (name, a), (_, b) in zip(pack(one)[1].items(), pack(two)[1].items(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    "settings",
    [
        {"covariance": "diagonal"},
        {"covariance": "full"},
        {"covariance": "diagonal", "num_samples": 4},  # the short step has two of the four
        {"covariance": "full", "num_samples": 4},
        {"noise": "outputs"},
    ],
    ids=str,
)
def test_steps_with_the_same_noise_are_those_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    found = []
    for device in ("cpu", "cuda"):
        risk, prior = problem(device)
        recipe = bound_recipe("appr", **{**SHORT, "refresh_every": None, **settings})
        start = make_posterior(risk, prior, prior_source="other data")
        steps = Steps(risk, Task(risk), start, recipe)
        steps.log_std.fill_(-3.0)
        noise = torch.randn(steps._noise.shape, generator=torch.Generator().manual_seed(3)).double()
        # The generators of both devices differ: each piece gets this noise.
        fill = partial(filled, noise)
        monkeypatch.setattr(torch.Tensor, "normal_", lambda own, fill=fill, **_: fill(own))
        with risk.evaluating():
            for epoch in range(3):
                steps.run_epoch(torch.arange(90).roll(epoch), 0.01, epoch)
        monkeypatch.undo()
        assert len(steps._graphs) == (2 if device == "cuda" else 0)
        found.append([tensor.cpu() for tensor in (*steps.moving(), *steps.squares, steps.sums)])
    for host, device in zip(*found, strict=True):
        torch.testing.assert_close(device, host, rtol=1e-9, atol=1e-12)


def without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Steps.__init__

    def plain(self: Steps, *args: object) -> None:
        real(self, *args)
        self._use_graphs = False

    monkeypatch.setattr(Steps, "__init__", plain)


@pytest.mark.parametrize("basis", ["standard", "kronecker", "approximate"])
@pytest.mark.parametrize("drawn", [{"num_samples": 2}, {"noise": "outputs"}], ids=str)
def test_graphs_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, basis: str, drawn: dict[str, Any]
) -> None:
    recorded = fitted("cuda", basis=basis, **drawn)
    without_graphs(monkeypatch)
    same(fitted("cuda", basis=basis, **drawn), recorded)


def test_a_killed_optimisation_continues_with_the_same_bits(tmp_path: Path) -> None:
    whole = fitted("cuda")

    def stop(step: Progress) -> None:
        if step.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted("cuda", checkpoint=tmp_path / "c", progress=stop)
    same(fitted("cuda", checkpoint=tmp_path / "c"), whole)


def wide() -> tuple[EmpiricalRisk, dict[str, Tensor]]:
    """768 inputs and 640 hidden units in float32, which TF32 rounds; tests have float64 else."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 768, generator=draw, dtype=torch.float32)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(768, 640), nn.ReLU(), nn.Linear(640, 2)).float()
    prior = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3).add_(0.05)
    return EmpiricalRisk(model.cuda(), CrossEntropy(), (x.cuda(), y.cuda())), prior


def distance(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("drawn", [{"num_samples": 2}, {"noise": "outputs"}], ids=str)
def test_fused_updates_are_the_others(
    monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Any]
) -> None:
    """In float32: three epochs of four steps in graphs, in our kernels and without."""
    pytest.importorskip("triton")
    risk, prior = wide()
    start = risk.space.flatten(risk.parameters()).double()
    recipe = bound_recipe("appr", epochs=3, batch_size=256, learning_rate=0.005, **drawn)
    assert is_fused(recipe, start.float())

    def run() -> PosteriorFit:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SubstitutionWarning)
            return optimise_posterior(risk, prior, recipe=recipe, prior_source="other data")

    fused = run()
    same(run(), fused)  # sums have a fixed order
    monkeypatch.setattr("eigenscape.bounds._steps.is_fused", lambda *_: False)
    plain = run()
    ours, theirs = (
        {
            "means": fit.posterior.means - start,
            "variances": fit.posterior.variances.log(),
            "prior variance": fit.prior_variance,
            "divergence": fit.kl,
        }
        for fit in (fused, plain)
    )
    gaps = {name: distance(ours[name], theirs[name]) for name in ours}
    print(f"{drawn}: {gaps}")
    # Rounding of float32, which twelve steps of a ReLU network amplify: to 2e-5 in the means on a
    # CPU. ϱ feels it through sums alone.
    assert float(theirs["means"].abs().mean()) > 1e-3
    assert max(gaps["means"], gaps["variances"]) < 1e-3, gaps
    assert max(gaps["prior variance"], gaps["divergence"]) < 1e-5, gaps


@pytest.mark.parametrize("graphs", [True, False])
def test_tf32_rounds_the_steps(monkeypatch: pytest.MonkeyPatch, graphs: bool) -> None:
    risk, prior = wide()
    if not graphs:
        without_graphs(monkeypatch)
    (batch,) = risk.batches
    x, weight = batch.args[0], risk.parameters()["0.weight"]
    seen: dict[str, list[Tensor]] = {}
    for tf32 in (False, True):
        # Forward and backward alone, as a step has them; the backward runs in another thread.
        with full_precision(tf32=tf32):
            leaf = weight.detach().clone().requires_grad_()
            product = x[:512] @ leaf.T
            (slope,) = torch.autograd.grad(product.square().sum(), leaf)
        # One epoch of two steps by SGD: means move by slopes, and nothing divides them.
        settings = dict(epochs=1, batch_size=512, optimizer="sgd", learning_rate=0.01)
        recipe = bound_recipe("appr", **settings, tf32=tf32)
        found = optimise_posterior(risk, prior, recipe=recipe, prior_source="other data").posterior
        start = risk.space.flatten(risk.parameters()).double()
        moved = {"means": found.means - start, "variances": found.variances.log()}
        for name, value in {"product": product, "slope": slope, **moved}.items():
            seen.setdefault(name, []).append(value.detach().double())
        assert found.basis.orthonormality() < 1e-12
    gaps = {name: distance(rounded, plain) for name, (plain, rounded) in seen.items()}
    print(f"graphs {graphs}: {gaps}")
    # TF32 has a unit roundoff of 5e-4; without it products of one input differ by no bit.
    assert all(1e-5 < gaps[name] < 1e-2 for name in ("product", "slope")), gaps
    assert 1e-5 < gaps["means"] < 0.1, gaps  # draws go through a ReLU and two rotations
    assert 0.0 < gaps["variances"] < 1e-2, gaps


def test_certificates_do_not_know_tf32() -> None:
    risk, prior = wide()
    posterior = make_posterior(risk, prior, prior_source="other data", basis=layer_basis(risk))
    found = []
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        try:
            found.append(certify(risk, posterior, num_samples=64, examples_per_draw=100))
        finally:
            torch.set_float32_matmul_precision("highest")
    assert found[0].certificate.to_dict() == found[1].certificate.to_dict()


@pytest.mark.parametrize("per_draw", [None, 7])
def test_killed_draws_continue_with_the_same_bits(tmp_path: Path, per_draw: int | None) -> None:
    risk, _ = problem("cuda")
    posterior = fitted("cuda").posterior

    def stop(step: Progress) -> None:
        if step.done == 12:
            raise KeyboardInterrupt

    def drawn(**settings: object) -> NetworkCertificate:
        settings = {**settings, "networks_at_once": 4, "examples_per_draw": per_draw}
        return certify(risk, posterior, num_samples=23, seed=6, **settings)

    whole, kept = drawn(), dict(checkpoint=tmp_path / "c", checkpoint_every=8)
    with pytest.raises(KeyboardInterrupt):
        drawn(**kept, progress=stop)
    assert drawn(**kept).certificate.to_dict() == whole.certificate.to_dict()
    assert whole.verify(risk).num_samples == 23
