"""Posteriors on a GPU: the steps of the CPU, with graphs and without, killed and continued."""

import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eigenscape.bounds import (
    NetworkCertificate,
    PosteriorFit,
    bound_recipe,
    certify,
    make_posterior,
    optimise_posterior,
)
from eigenscape.bounds._steps import Steps
from eigenscape.bounds._task import Task
from eigenscape.errors import SubstitutionWarning
from eigenscape.losses import CrossEntropy
from eigenscape.progress import Progress
from eigenscape.records import pack
from eigenscape.risk import EmpiricalRisk

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


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("num_samples", [1, 2])
def test_steps_with_the_same_noise_are_those_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, covariance: str, num_samples: int
) -> None:
    found = []
    for device in ("cpu", "cuda"):
        risk, prior = problem(device)
        once = {**SHORT, "refresh_every": None, "num_samples": num_samples}
        recipe = bound_recipe("appr", **once, covariance=covariance)
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


@pytest.mark.parametrize("basis", ["standard", "kronecker", "approximate"])
def test_graphs_change_no_bit(monkeypatch: pytest.MonkeyPatch, basis: str) -> None:
    recorded = fitted("cuda", basis=basis)
    real = Steps.__init__

    def plain(self: Steps, *args: object) -> None:
        real(self, *args)
        self._use_graphs = False

    monkeypatch.setattr(Steps, "__init__", plain)
    same(fitted("cuda", basis=basis), recorded)


def test_a_killed_optimisation_continues_with_the_same_bits(tmp_path: Path) -> None:
    whole = fitted("cuda")

    def stop(step: Progress) -> None:
        if step.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted("cuda", checkpoint=tmp_path / "c", progress=stop)
    same(fitted("cuda", checkpoint=tmp_path / "c"), whole)


def test_tf32_rounds_the_steps_and_no_basis() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 128, generator=draw)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))
    prior = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3).add_(0.05)
    risk = EmpiricalRisk(model.cuda(), CrossEntropy(), (x.cuda(), y.cuda()))
    short = dict(epochs=3, batch_size=256, refresh_every=2)
    one, two = (
        optimise_posterior(
            risk,
            prior,
            recipe=bound_recipe("iter", **short, tf32=tf32),
            prior_source="other data",
        )
        for tf32 in (False, True)
    )
    assert not torch.equal(one.posterior.means, two.posterior.means)
    torch.testing.assert_close(one.bound, two.bound, rtol=0.0, atol=0.05)
    assert two.posterior.basis.orthonormality() < 1e-12
    # The certificate does not know how its posterior was found, nor what the process allows.
    torch.set_float32_matmul_precision("high")
    try:
        found = certify(risk, two.posterior, num_samples=64, examples_per_draw=100)
    finally:
        torch.set_float32_matmul_precision("highest")
    again = certify(risk, two.posterior, num_samples=64, examples_per_draw=100)
    assert found.certificate.to_dict() == again.certificate.to_dict()


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
