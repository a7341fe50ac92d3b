"""Objectives against the losses they stand for, and what they may not do: wait for the device."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from eigenscape.risk import CrossEntropy
from eigenscape_papers.ensemble import Recipe, fit
from eigenscape_papers.ensemble._objective import Objective, make_objective
from eigenscape_papers.networks import GPT, LeNet5

CLASSES, IGNORED = 7, 3
WEIGHTS = torch.linspace(0.5, 2.0, CLASSES, dtype=torch.float64)
# Losses, and the shape of a sample's outputs; no two sizes are equal.
TEXT, IMAGE = (5, CLASSES), (CLASSES, 2, 3)
CASES: dict[str, tuple[CrossEntropy, tuple[int, ...]]] = {
    "one position": (CrossEntropy(), (CLASSES,)),
    "text": (CrossEntropy(), TEXT),
    "weights, smoothing": (CrossEntropy(class_weights=WEIGHTS, label_smoothing=0.1), TEXT),
    "ignored": (CrossEntropy(class_weights=WEIGHTS, ignore_index=IGNORED), TEXT),
    "next token": (CrossEntropy(next_token=True, ignore_index=IGNORED), TEXT),
    "image": (CrossEntropy(class_dim=1, label_smoothing=0.2, ignore_index=IGNORED), IMAGE),
}
STEPS, SEEDS, SAMPLES = 2, 3, 4


def drawn(loss: CrossEntropy, shape: tuple[int, ...]) -> tuple[Objective, Tensor, Tensor]:
    """Return the objective with outputs and targets of all steps and seeds."""
    torch.manual_seed(0)
    outputs = torch.randn(STEPS, SEEDS, SAMPLES, *shape, dtype=torch.float64)
    class_dim = shape.index(CLASSES) + 3
    positions = [n for d, n in enumerate(outputs.shape) if d != class_dim]
    targets = torch.randint(CLASSES, positions)
    return make_objective(loss, outputs[0, 0], targets[0, 0], "y"), outputs, targets


@pytest.mark.parametrize(("loss", "shape"), CASES.values(), ids=CASES.keys())
def test_slopes_and_sums(loss: CrossEntropy, shape: tuple[int, ...]) -> None:
    objective, outputs, targets = drawn(loss, shape)
    prepared = objective.prepare(targets)
    expected = torch.zeros(2, SEEDS, dtype=torch.float64)
    for step in range(STEPS):
        found = objective.slope(outputs[step], tuple(part[step] for part in prepared))
        for seed in range(SEEDS):
            leaf = outputs[step, seed].clone().requires_grad_()
            total, count = loss.total(leaf, targets[step, seed])
            (slope,) = torch.autograd.grad(total / count, leaf)
            torch.testing.assert_close(found[seed], slope, rtol=1e-12, atol=1e-14)
            expected[:, seed] += torch.stack((total.detach(), count.double()))
    sums = objective.sums(outputs, prepared)
    torch.testing.assert_close(sums[:2], expected, rtol=1e-12, atol=0)
    assert objective.has_accuracy == (len(shape) == 1)


@pytest.mark.parametrize("loss", [CASES["ignored"][0], CASES["next token"][0]])
def test_logits_where_nothing_is_compared_may_be_anything(loss: CrossEntropy) -> None:
    objective, outputs, targets = drawn(loss, TEXT)
    kept = objective.sums(outputs, objective.prepare(targets))
    if loss.next_token:
        outputs[..., -1, :] = torch.inf
    else:
        outputs[targets == IGNORED] = torch.nan
    prepared = objective.prepare(targets)
    slope = objective.slope(outputs[0], tuple(part[0] for part in prepared))
    assert slope.isfinite().all()
    assert torch.equal(objective.sums(outputs, prepared), kept)


class Waits(TorchDispatchMode):
    """Count what makes the host wait for a GPU: reading a number, and choosing by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = func is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if masks or func in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
        ):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("loss", "shape"), CASES.values(), ids=CASES.keys())
def test_steps_do_not_wait(loss: CrossEntropy, shape: tuple[int, ...]) -> None:
    objective, outputs, targets = drawn(loss, shape)
    with Waits() as waits:
        prepared = objective.prepare(targets)
        objective.slope(outputs[0], tuple(part[0] for part in prepared))
        objective.sums(outputs, prepared)
    assert not waits.found


def test_a_wait_is_seen() -> None:
    x = torch.arange(3.0)
    with Waits() as waits:
        x[x > 1].sum().item()
    assert len(waits.found) == 2


@pytest.mark.parametrize("kind", ["text", "images"])
def test_a_training_step_does_not_wait(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenscape_papers.ensemble import engine

    torch.manual_seed(0)
    if kind == "text":
        x, y = torch.randint(11, (12, 5)), torch.randint(11, (12, 5))
    else:
        x, y = torch.randn(12, 3, 32, 32), torch.randint(10, (12,))

    def build(seed: int) -> nn.Module:
        if kind == "images":
            return LeNet5((3, 32, 32), 10)
        return GPT(context=5, vocabulary=11, num_blocks=1, width=8, num_heads=2)

    steps, waits = engine.Runner._steps, Waits()

    def watched(self: Any, index: Tensor) -> None:
        with waits:
            steps(self, index)

    monkeypatch.setattr(engine.Runner, "_steps", watched)
    fit(build, (x, y), Recipe(epochs=1, batch_size=4), seeds=(0, 1))
    assert not waits.found
