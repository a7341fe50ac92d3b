"""What follows the slopes of a step, in our kernels, against PyTorch's operations in float64.

Without a GPU Triton interprets them; parameters fill several tiles, and not the last one.
"""

import math

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from eigenscape.bounds import BoundRecipe, _fused, bound_recipe, make_posterior
from eigenscape.bounds import _steps as module
from eigenscape.bounds._steps import Steps, is_fused
from eigenscape.bounds._task import Task
from eigenscape.risk import CrossEntropy, EmpiricalRisk

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("θ", "ϱ", "mean squares of θ", "mean square of ϱ", "sums")
# 7 inputs, so many hidden units, 3 classes: of 201, 212 and 234 parameters the common divisors with
# 4, which the kernels use, are 1, 4 and 2. Twice as many are 7 or 8 tiles of 64.
HIDDEN = (18, 19, 21)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first kernel has programs of two tiles, and a last one of fewer or of a part of one.
    monkeypatch.setattr(_fused, "_ADD", (64, 4))
    monkeypatch.setattr(_fused, "_MOVE", (64, 4))
    monkeypatch.setattr(_fused, "_PARTS", 4)


def make_steps(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    *,
    fused: bool,
    hidden: int = 18,
    **settings: object,
) -> Steps:
    """Make steps whose numbers are those of float32, whatever their dtype."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(50, 7, generator=draw, dtype=torch.float32)
    y = (x @ torch.randn(7, 3, generator=draw, dtype=torch.float32)).argmax(1)
    model = nn.Sequential(nn.Linear(7, hidden), nn.Tanh(), nn.Linear(hidden, 3)).float()
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(0.5 * torch.randn(weights.shape, generator=draw, dtype=torch.float32))
    prior = {
        name: weights + 0.1 * torch.randn(weights.shape, generator=draw, dtype=torch.float32)
        for name, weights in model.state_dict().items()
    }
    risk = EmpiricalRisk(
        model.to(DEVICE, dtype), CrossEntropy(), (x.to(DEVICE, dtype), y.to(DEVICE))
    )
    start = make_posterior(risk, prior, prior_source="other data")
    recipe = bound_recipe("appr", **{"batch_size": 20, **settings})
    with monkeypatch.context() as patch:
        patch.setattr(module, "is_fused", lambda *_: fused)
        steps = Steps(risk, Task(risk), start, recipe)
    P = len(steps.w)
    assert (steps._fused is not None) == fused
    steps.log_std.copy_(-2.0 + 0.7 * torch.randn(P, generator=draw, dtype=torch.float32))
    # Mean squares as of slopes seen before: a first step has the size of no slope but its sign.
    steps.squares[0].copy_(0.1 + torch.rand(2, P, generator=draw, dtype=torch.float32)).square_()
    steps.squares[1].fill_(0.5)
    steps._rate.fill_(0.01)
    return steps


def move(steps: Steps, slopes: Tensor) -> None:
    """Move along the loss's slopes (2, P), in the way that these steps have."""
    slopes = slopes.to(steps.theta)
    if steps._fused:
        steps._fused(slopes)
    else:
        steps._move(steps.slopes(*slopes, steps.log_std.exp().square(), []))


def state(steps: Steps) -> list[Tensor]:
    tensors = (*steps.moving(), *steps.squares, steps.sums)
    return [tensor.detach().double().clone() for tensor in tensors]


def compare(
    ours: list[Tensor], theirs: list[Tensor], rtol: float, names: tuple[str, ...] = NAMES
) -> None:
    # Relative to the largest of w or ς, for slopes are sums that may cancel.
    for name, one, other in zip(names, ours, theirs, strict=True):
        size = other.abs().amax(-1, keepdim=True) if other.ndim else other.abs()
        off = float(((one - other).abs() / size.clamp(min=1e-30)).max())
        assert off < rtol, f"{name}: {off}"


# Float32 has 6e-8, and a step rounds a number some ten times; ϱ feels it through sums alone.
@pytest.mark.parametrize("hidden", HIDDEN)
def test_steps_are_those_of_float64(monkeypatch: pytest.MonkeyPatch, hidden: int) -> None:
    runs = [
        make_steps(monkeypatch, torch.float32, fused=True, hidden=hidden),
        make_steps(monkeypatch, torch.float64, fused=False, hidden=hidden),
    ]
    start = state(runs[1])
    for step in range(5):
        slopes = (0.3 + step) * torch.randn(runs[0].theta.shape).float()
        for steps in runs:
            steps._rate.fill_(0.02 / (1 + step))  # read when a step is taken
            move(steps, slopes)
        ours, theirs = (state(steps) for steps in runs)
        compare(ours, theirs, 1e-6)
        assert abs(float(ours[1] - theirs[1])) < 1e-8  # ϱ is float64, and moved by 0.1
    moved = [float((one - other).abs().max()) for one, other in zip(theirs, start, strict=True)]
    assert min(moved[:4]) > 0.02


def test_the_divergence_weighs_as_much_as_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a loss its slopes alone are seen, in the mean squares to their size.
    runs = [
        make_steps(monkeypatch, torch.float32, fused=True),
        make_steps(monkeypatch, torch.float64, fused=False),
    ]
    for steps in runs:
        for square in steps.squares:
            square.zero_()
        move(steps, torch.zeros_like(steps.theta))
    ours, theirs = (state(steps) for steps in runs)
    compare(ours[2:], theirs[2:], 1e-6, NAMES[2:])
    assert min(float(square.max()) for square in theirs[2]) > 1e-4


def test_all_sizes_of_tiles_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for R, parts in ((64, 4), (32, 16), (256, 2), (512, 1)):
        monkeypatch.setattr(_fused, "_ADD", (R, 4))
        monkeypatch.setattr(_fused, "_MOVE", (R // 2, 4))
        monkeypatch.setattr(_fused, "_PARTS", parts)
        steps = make_steps(monkeypatch, torch.float32, fused=True)
        draw = torch.Generator().manual_seed(5)
        for _ in range(3):
            move(steps, torch.randn(steps.theta.shape, generator=draw).float())
        found.append(state(steps))
    for other in found[1:]:
        # Sums in float64 have another order; a GPU may round others of the products.
        compare(found[0], other, 3e-7)


def test_the_prior_variance_stops_at_its_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        make_steps(monkeypatch, dtype, fused=fused, prior_log_std=-3.0, ceiling=0.003)
        for dtype, fused in ((torch.float32, True), (torch.float64, False))
    ]
    most = (math.log(0.003) - 0.01) / 2.0
    for steps in runs:
        # So far away that λ grows.
        steps.w.add_(3.0)
    seen = []
    for _ in range(4):
        for steps in runs:
            steps._rate.fill_(0.02)
            move(steps, torch.zeros_like(steps.theta))
        seen.append(float(runs[0].rho))
        compare(*(state(steps) for steps in runs), rtol=1e-6)
    assert -3.0 < seen[0] < most
    assert seen[-2:] == [most] * 2


@pytest.mark.parametrize("row", [0, 1])
def test_what_is_not_a_number_stays_none(monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    steps = make_steps(monkeypatch, torch.float32, fused=True)
    slopes = torch.randn(steps.theta.shape).float()
    slopes[row, 100] = math.nan
    move(steps, slopes)
    for tensor in (steps.theta, steps.squares[0]):
        assert torch.nonzero(tensor.isnan()).tolist() == [[row, 100]]
    assert bool(steps.rho.isfinite())
    # From there it spreads, as it does one operation at a time: the ceiling does not hide it.
    move(steps, slopes)
    assert all(bool(tensor.isnan().all()) for tensor in (*steps.moving(), *steps.squares))


@pytest.mark.parametrize(
    "settings", [{"num_samples": 1}, {"num_samples": 2}, {"noise": "outputs"}], ids=str
)
def test_an_epoch_takes_such_steps(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    found = []
    for fused in (True, False):
        steps = make_steps(monkeypatch, torch.float32, fused=fused, **settings)
        with monkeypatch.context() as patch, steps._task._risk.evaluating():
            for name in ("slopes", "_move", "update") if fused else ():
                patch.delattr(Steps, name)
            steps.run_epoch(torch.arange(50), 0.01, 4)
        found.append(state(steps))
    # Three steps in float32 both times, whose slopes the network rounds.
    compare(*found, rtol=1e-5)
    assert float(found[0][4].min()) > 0


def test_which_steps_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = BoundRecipe()
    on_gpu = type("OnGpu", (), {"is_cuda": True, "dtype": torch.float32})()
    assert is_fused(plain, on_gpu)
    assert is_fused(bound_recipe("base", noise="outputs"), on_gpu)
    assert not is_fused(BoundRecipe(optimizer="sgd"), on_gpu)
    assert not is_fused(BoundRecipe(covariance="full", refresh_every=None), on_gpu)
    assert not is_fused(plain, torch.zeros((), dtype=torch.float32))  # not on a CPU
    with monkeypatch.context() as patch:
        patch.setattr("eigenscape.parallel.cuda_graphs.find_spec", lambda _: None)  # no Triton
        assert not is_fused(plain, on_gpu)
    on_gpu.dtype = torch.float64
    assert not is_fused(plain, on_gpu)
