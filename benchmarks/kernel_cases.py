"""The jobs of `kernels.py`: what the kernels do, and the PyTorch operations they replace.

S networks, B samples a batch; a way is a function of a compiler, which may be none.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
import training
from torch import Tensor, nn
from torch.autograd import Function

from eigenscape.bounds import _steps, bound_recipe, make_posterior
from eigenscape.bounds._task import Task
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.ensemble import _layers
from eigenscape_papers.stepsize import UpdateRule, _stepping
from eigenscape_papers.stepsize import _stacked_mlp as mlp

Way = Callable[[Any], Callable[[], Any]]


@dataclass
class Case:
    """A job and its ways.

    `sums` are plain ones for a compiler only; `beside` compile what stands around the kernels.

    A call does `steps` of what is asked, and a graph holds so many `calls`.
    """

    job: str
    plain: dict[str, Way]
    triton: dict[str, Way]
    sums: dict[str, Way] = field(default_factory=dict)
    beside: dict[str, Way] = field(default_factory=dict)
    reset: Callable[[], None] = lambda: None
    calls: int = 10
    steps: int = 1
    only_default: bool = False


class Summed(Function):
    """Convolutions as sums of products with views, which a compiler may fuse into one kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """Return the outputs."""
        ctx.save_for_backward(x, w)
        return _summed(x, w) + b[:, None, :, None, None]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of images, kernels and biases."""
        (x, w), (r,) = ctx.saved_tensors, grads
        windows = _layers._windows(x, w.shape[3:], (1, 1))[:, :, None]
        dw = (windows * r[:, :, :, None, :, :, None, None]).sum((1, 4, 5))
        rows, columns = w.shape[3] - 1, w.shape[4] - 1
        padded = F.pad(r, (columns, columns, rows, rows))
        return _summed(padded, w.flip((3, 4)).transpose(1, 2)), dw, r.sum((1, 3, 4))


def _summed(x: Tensor, w: Tensor) -> Tensor:
    windows = _layers._windows(x, w.shape[3:], (1, 1))[:, :, None]
    return (windows * w[:, None, :, :, None, None]).sum((3, 6, 7))


def grouped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    rows = x.transpose(0, 1).flatten(1, 2)
    y = F.conv2d(rows, w.flatten(0, 1), b.flatten(), groups=len(w))
    return y.unflatten(1, (len(w), -1)).transpose(0, 1)


def unfolded(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return _layers._apply(_layers._StackedConvolution, x, w, b, (1, 1), (0, 0))


def fused(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return _layers._apply(_layers._FusedConvolution, x, w, b, (1, 1), (0, 0))


def summed(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return _layers._apply(Summed, x, w, b)


PLAIN = {"unfold": unfolded, "grouped": grouped}


def convolution(sizes: tuple[int, int, int], device: str, dry: bool) -> Case:
    (S, B), (channels, side, outputs) = ((2, 4) if dry else (16, 128)), sizes
    x = torch.randn(S, B, channels, side, side, device=device, requires_grad=True)
    w = torch.randn(S, outputs, channels, 5, 5, device=device, requires_grad=True)
    b = torch.randn(S, outputs, device=device, requires_grad=True)
    r = torch.randn(S, B, outputs, side - 4, side - 4, device=device)

    def way(layer: Any, compiler: Any) -> Callable[[], Any]:
        layer = compiler(layer)

        def work() -> list[Tensor]:
            y = layer(x, w, b)
            return [y, *torch.autograd.grad(y, (x, w, b), r)]

        return work

    plain = {name: partial(way, layer) for name, layer in PLAIN.items()}
    return Case(
        f"{channels} to {outputs} channels, {side}²",
        plain,
        {"kernels": partial(way, fused)},
        {"sums": partial(way, summed)},
    )


def lenet(device: str, dry: bool) -> Case:
    """A training step of S LeNet5 of `training.py`, in which only convolutions differ."""
    S, B = (2, 4) if dry else (16, 128)
    models = [training.lenet(seed) for seed in range(S)]
    stacked = zip(*(model.parameters() for model in models), strict=True)
    params = [torch.stack(same).detach().to(device).requires_grad_() for same in stacked]
    x = torch.randn(S, B, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (S * B,), device=device)

    def pooled(y: Tensor) -> Tensor:
        return F.max_pool2d(y.relu().flatten(0, 1), 2).unflatten(0, (S, B))

    def loss(layer: Any, *tensors: Tensor) -> Tensor:
        # Without a loop: where the compiler has to leave a layer out, it would leave all out.
        h = pooled(layer(x, *tensors[:2]))
        h = pooled(layer(h, *tensors[2:4])).flatten(2)
        for w, b in zip(tensors[4::2], tensors[5::2], strict=True):
            h = torch.baddbmm(b[:, None], h if w is tensors[4] else h.relu(), w.mT)
        return F.cross_entropy(h.flatten(0, 1), labels, reduction="sum") / B

    def way(layer: Any, compiler: Any) -> Callable[[], Any]:
        function = compiler(partial(loss, layer))

        def work() -> list[Tensor]:
            value = function(*params)
            slopes = torch.autograd.grad(value, params)
            with torch.no_grad():
                return [value, *slopes, *torch._foreach_add(params, slopes, alpha=-0.01)]

        return work

    return Case(
        "training step of LeNet5",
        {name: partial(way, layer) for name, layer in PLAIN.items()},
        {"kernels": partial(way, fused)},
        {"sums": partial(way, summed)},
        {"kernels, others compiled": partial(way, torch.compiler.disable(fused))},
        only_default=True,
    )


def rule(p: int, slopes: bool, gradients: bool, device: str, dry: bool) -> Case:
    """Steps of p networks, each by a rule of its own, with or without the way back."""
    sizes, steps = ((12, 5, 3), 2) if dry else ((784, 100, 20, 10), 16)
    draw = torch.Generator().manual_seed(0)
    w = mlp.initial_weights(p, sizes, draw).to(device).requires_grad_(slopes)
    m = 0.1 * torch.randn(p, 5, w.shape[1], generator=draw).to(device)
    v, weights = m.square() + 0.01, torch.randn(w.shape, generator=draw).to(device)
    x = torch.randn(p, 32, sizes[0], generator=draw).to(device)
    batch = x, torch.randint(sizes[-1], (p, 32), generator=draw).to(device)
    rules = UpdateRule.random(seed=1).to(m).repeated(p).to_learn()
    layout, clock = _stepping.Layout.of(sizes, m), _stepping.clocks(20, 1, m)[0]
    g = mlp.gradients(w.detach(), sizes, *batch)
    answer = mlp.gradients if gradients else lambda *_: g

    def plain_step(rows: Any, w: Tensor, m: Tensor, v: Tensor, *params: Tensor) -> Any:
        one = rules.with_parameters(params)
        return _stepping.take_step(one, (w, m, v), layout, batch, clock, rows)

    def way(use_kernels: bool, compiler: Any) -> Callable[[], Any]:
        step = compiler(plain_step)

        def work() -> list[Tensor]:
            with torch.set_grad_enabled(slopes), patch.object(mlp, "gradients", answer):
                rows, state = None, (w, m, v)
                if use_kernels:
                    from eigenscape_papers.stepsize import _fused

                    rows = _fused.join(rules, p)
                for _ in range(steps):
                    state = step(rows, *state, *rules.parameters)
                if not slopes:
                    return list(state)
                return [state[0], *torch.autograd.grad(state[0], [w, *rules.parameters], weights)]

        return work

    job = f"{p} networks, {'forth and back' if slopes else 'forth'}"
    return Case(
        job + (", with their gradients" if gradients else ""),
        {"operations": partial(way, False)},
        {"kernels": partial(way, True)},
        calls=1,
        steps=steps,
        only_default=p < 8 or gradients,
    )


def update(hidden: int, device: str, dry: bool) -> Case:
    """What follows the slopes of a posterior's step, for 11 parameters a hidden unit and 3."""
    hidden = min(hidden, 19) if dry else hidden
    x, y = torch.randn(50, 7, device=device), torch.arange(50, device=device) % 3
    model = nn.Sequential(nn.Linear(7, hidden), nn.Tanh(), nn.Linear(hidden, 3)).to(device)
    risk = EmpiricalRisk(model, CrossEntropy(), (x, y))
    prior = {key: value + 0.1 for key, value in model.state_dict().items()}
    start = make_posterior(risk, prior, prior_source="other data")
    recipe = bound_recipe("appr", batch_size=20)
    both = []
    for use_kernels in (False, True):
        with patch.object(_steps, "is_fused", lambda *_, answer=use_kernels: answer):
            both.append(_steps.Steps(risk, Task(risk), start, recipe))
    # Compiled, `addcmul_` and `addcdiv_` leave a number of no dimension as it is (PyTorch 2.13).
    both[0].rho, both[0].squares[1] = both[0].rho.view(1), both[0].squares[1].view(1)
    draws = torch.randn(2, *both[0].theta.shape, device=device)

    def reset() -> None:
        for steps in both:
            steps.theta.copy_(torch.stack((start.means.to(draws), -2.0 + 0.7 * draws[0, 1])))
            steps.rho.fill_(recipe.prior_log_std).clamp_(max=steps._most_rho)
            steps.squares[0].copy_(draws[0].square() + 0.1)
            steps.squares[1].fill_(0.5)
            steps._rate.fill_(1e-4)

    def plain() -> None:
        steps, slopes = both[0], draws[1]
        steps._move(steps.slopes(slopes[0], slopes[1], steps.log_std.exp().square(), []))

    def way(steps: Any, move: Callable[[], None], compiler: Any) -> Callable[[], Any]:
        move = compiler(move)

        def work() -> list[Tensor]:
            move()
            return [*steps.moving(), *steps.squares]

        return work

    return Case(
        f"{draws.shape[2]} parameters",
        {"operations": partial(way, both[0], plain)},
        {"kernels": partial(way, both[1], lambda: both[1]._fused(draws[1]))},
        reset=reset,
    )


# By topic, what builds its jobs, the most telling first.
TOPICS: dict[str, dict[str, Callable[..., Any]]] = {
    "bounds": {str(h): partial(update, h) for h in (911, 9091, 90907)},
    "ensemble": {
        "conv2": partial(convolution, (6, 14, 16)),
        "step": lenet,
        "conv1": partial(convolution, (3, 32, 6)),
    },
    "stepsize": {
        f"{p} {slopes} {gradients}": partial(rule, p, slopes, gradients)
        for p, gradients in ((8, False), (4, False), (8, True), (1, False))
        for slopes in (True, False)
    },
}
