"""Optimisers step as torch.optim does; schedules have closed forms; refusals are exact."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, UnknownNameError, WrongTypeError
from eigenscape.parallel import epoch_order
from eigenscape.risk import CallableLoss, SquaredError
from eigenscape_papers.ensemble import (
    SGD,
    Adam,
    Constant,
    Cosine,
    Recipe,
    RMSprop,
    Step,
    Thirds,
    fit,
)


def data(count: int = 23) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 4, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def net(seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


RULES: dict[str, tuple[Any, Any]] = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "decay": (SGD(0.1, weight_decay=0.03), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.03)),
    "momentum": (
        SGD(0.05, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        SGD(0.05, momentum=0.8, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.8, nesterov=True),
    ),
    "adam": (Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam, all settings": (
        Adam(0.02, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    "rmsprop": (RMSprop(0.003), lambda p: torch.optim.RMSprop(p, 0.003)),
    "rmsprop, all settings": (
        RMSprop(0.002, alpha=0.9, epsilon=1e-3, momentum=0.7, weight_decay=0.05),
        lambda p: torch.optim.RMSprop(
            p, 0.002, alpha=0.9, eps=1e-3, momentum=0.7, weight_decay=0.05
        ),
    ),
}


@pytest.mark.parametrize(("rule", "make"), RULES.values(), ids=RULES.keys())
def test_updates_are_those_of_torch(rule: Any, make: Any) -> None:
    x, y = data()
    recipe = Recipe(epochs=12, batch_size=5, optimizer=rule, schedule=Step(every=4, factor=0.5))
    result = fit(net, (x, y), recipe, seeds=(3, 4), device="cpu")
    for seed in (3, 4):
        torch.manual_seed(seed)
        model = net(seed)
        optimizer = make(model.parameters())
        for epoch in range(12):
            optimizer.param_groups[0]["lr"] = rule.learning_rate * 0.5 ** (epoch // 4)
            for index in epoch_order(seed, epoch, len(x)).split(5):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[index]), y[index]).backward()
                optimizer.step()
        for name, value in result.state_dict(seed).items():
            # 60 steps, each rounded a little differently
            torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=1e-12)


def scales(schedule: Any, epochs: int) -> list[float]:
    return [schedule.scale(epoch, epochs) for epoch in range(epochs)]


def test_schedules() -> None:
    assert scales(Constant(), 3) == [1, 1, 1]
    assert scales(Step(every=2, factor=0.5), 5) == [1, 1, 0.5, 0.5, 0.25]
    assert scales(Thirds(factor=0.5), 7) == [1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    assert scales(Thirds(factor=0.5), 1) == [1]
    cosine = [(1 + math.cos(math.pi * k / 5)) / 2 for k in range(5)]
    assert scales(Cosine(), 5) == pytest.approx(cosine, rel=1e-15)


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Cosine(), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=9)),
        (Step(every=4), lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=4)),
        (Thirds(), lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6])),
    ],
)
def test_schedules_are_those_of_torch(schedule: Any, make: Any) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.3)
    scheduler, rates = make(optimizer), []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    recipe = Recipe(epochs=9, optimizer=SGD(0.3), schedule=schedule)
    assert recipe.learning_rates() == pytest.approx(rates, rel=1e-13)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "rate": (lambda: SGD(0.0), InvalidArgumentError, r"learning_rate=...\)` must be finite"),
    "momentum": (lambda: SGD(momentum=1.0), InvalidArgumentError, "from 0 to below 1; got 1"),
    "decay": (lambda: SGD(weight_decay=-1), InvalidArgumentError, "0 or more; got -1"),
    "decay, kind": (lambda: SGD(weight_decay="x"), WrongTypeError, "number; got str"),
    "nesterov": (lambda: SGD(nesterov=True), InvalidArgumentError, "needs `momentum=`"),
    "beta1": (lambda: Adam(beta1=1.5), InvalidArgumentError, "beta1"),
    "beta2": (lambda: Adam(beta2=-0.1), InvalidArgumentError, "beta2"),
    "epsilon": (lambda: Adam(epsilon=0), InvalidArgumentError, "epsilon"),
    "alpha": (lambda: RMSprop(alpha=1), InvalidArgumentError, "alpha"),
    "every": (lambda: Step(every=0), InvalidArgumentError, "at least 1; got 0"),
    "factor": (lambda: Thirds(factor=math.inf), InvalidArgumentError, "factor"),
    "epochs": (lambda: Recipe(epochs=0), InvalidArgumentError, "epochs"),
    "batch": (lambda: Recipe(batch_size=1.5), WrongTypeError, "integer; got float"),
    "loss": (lambda: Recipe(loss="hinge"), UnknownNameError, "'cross-entropy', 'squared-error'"),
    "optimizer": (lambda: Recipe(optimizer=SGD), WrongTypeError, r"class SGD. Write `SGD\(...\)`"),
    "schedule": (lambda: Recipe(schedule="cosine"), WrongTypeError, "Constant, Step, Cosine"),
}


@pytest.mark.parametrize(("make", "error", "words"), BAD.values(), ids=BAD.keys())
def test_refusals(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_losses_become_ours() -> None:
    assert isinstance(Recipe(loss=nn.MSELoss()).loss_object(), SquaredError)
    assert isinstance(Recipe(loss=lambda z, y: z.sum()).loss_object(), CallableLoss)
    assert Recipe(loss="squared-error").loss_object().factor == 0.5
