"""The training loop against SGD written by hand, step by step."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.parallel import epoch_order
from eigenscape.records import Progress, pack, unpack
from eigenscape.zoo import Digits, Training, build, train

COUNT = 23


def data(count: int = COUNT) -> Digits:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 1, 8, 8, generator=draw)
    return Digits(x, torch.arange(count) * 3 % 10, "train")


def net() -> nn.Module:
    return build("F-6", input_shape=(1, 8, 8), num_classes=10).double()


def by_hand(
    model: nn.Module, *, epochs: int, batch_size: int, rate: float, momentum: float, decay: float
) -> tuple[list[Tensor], list[float]]:
    """v ← μ v + (g + λ θ), θ ← θ − η v; and the mean loss of each epoch's batches."""
    samples = data()
    theta = [p.detach().clone().requires_grad_() for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]
    velocity = [torch.zeros_like(p) for p in theta]
    losses = []
    for epoch in range(epochs):
        total = 0.0
        for rows in epoch_order(5, epoch, COUNT).split(batch_size):
            params = dict(zip(names, theta, strict=True))
            z = torch.func.functional_call(model, params, (samples.inputs[rows],))
            loss = F.cross_entropy(z, samples.targets[rows])
            slopes = torch.autograd.grad(loss, theta)
            total += loss.item() * len(rows)
            velocity = [
                momentum * v + g + decay * p.detach()
                for v, g, p in zip(velocity, slopes, theta, strict=True)
            ]
            moved = [p - rate * v for p, v in zip(theta, velocity, strict=True)]
            theta = [p.detach().requires_grad_() for p in moved]
        losses.append(total / COUNT)
    return [p.detach() for p in theta], losses


def check(model: nn.Module, theta: list[Tensor]) -> None:
    for p, q in zip(model.parameters(), theta, strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.01)])
def test_training_is_sgd_with_momentum_and_decay(momentum: float, decay: float) -> None:
    model = net()
    theta, losses = by_hand(model, epochs=3, batch_size=7, rate=0.1, momentum=momentum, decay=decay)
    run = train(
        model, data(), epochs=3, batch_size=7, learning_rate=0.1, momentum=momentum,
        weight_decay=decay, seed=5,
    )  # fmt: skip
    check(model, theta)
    assert run.train_loss.tolist() == pytest.approx(losses, rel=1e-10)
    with pytest.raises(AssertionError):
        check(model, [1.001 * p for p in theta])


def test_the_seed_fixes_the_order() -> None:
    models = [net() for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        train(model, data(), epochs=1, batch_size=7, seed=seed)
    first, same, other = (list(model.parameters()) for model in models)
    assert all(torch.equal(p, q) for p, q in zip(first, same, strict=True))
    assert not torch.equal(first[0], other[0])


def test_a_network_learns_and_is_left_in_eval_mode() -> None:
    model = nn.Sequential(net(), nn.Dropout(0.1))
    run = train(model, data(), test=data(11), epochs=40, batch_size=7)
    assert not model.training
    assert run.train_loss[-1] < run.train_loss[0] / 4
    assert run.train_accuracy == 1.0
    with torch.no_grad():
        answers = model(data(11).inputs).argmax(1)
    assert run.test_accuracy == pytest.approx(float((answers == data(11).targets).double().mean()))
    assert run.status


def test_there_need_be_no_test_data() -> None:
    assert math.isnan(train(net(), data(), epochs=1).test_accuracy)


def test_progress_is_told_after_each_epoch() -> None:
    steps: list[Progress] = []
    train(net(), data(), epochs=3, progress=steps.append)
    assert [(p.done, p.total, p.task) for p in steps] == [
        (1, 3, "training"), (2, 3, "training"), (3, 3, "training"),
    ]  # fmt: skip


def test_the_record_is_drawn_and_kept() -> None:
    run = train(net(), data(), epochs=3, batch_size=9, seed=2)
    assert run.columns() == {"epoch": [1, 2, 3], "train loss": run.train_loss.tolist()}
    (picture,) = run.pictures()
    (line,) = picture.panels[0].marks
    assert list(line.y) == run.train_loss.tolist()
    again = unpack(*pack(run))
    assert type(again) is Training
    assert torch.equal(again.train_loss, run.train_loss)
    assert "batches of 9" in again.recipe
    assert again.seed == 2
