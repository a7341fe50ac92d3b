"""Training on a GPU: the results of the CPU, with graphs and without, killed and continued."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import SubstitutionWarning
from eigenscape.records import Progress
from eigenscape_papers.ensemble import SGD, Adam, Engine, Recipe, RMSprop, Thirds, Training, fit
from eigenscape_papers.networks import GPT

pytestmark = pytest.mark.gpu
ENGINES = {
    "graphs": Engine(stacking="vmap"),
    "short graphs": Engine(stacking="vmap", steps_per_graph=2),
    "grouped": Engine(stacking="vmap", convolution="grouped"),
    "fused": Engine(stacking="vmap", convolution="fused"),
    "eager": Engine(stacking="vmap", graphs=False),
    "loop": Engine(stacking="loop"),
    "loop, eager": Engine(stacking="loop", graphs=False, num_streams=3),
}


class Net(nn.Module):
    """Convolutions, norms and linear layers; average pooling, whose backward is deterministic."""

    def __init__(self) -> None:
        super().__init__()
        # No bias before a norm: its slope is rounding alone, which RMSprop would blow up.
        self.conv1 = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 5, 3)
        self.fc1 = nn.Linear(45, 6)
        self.fc2 = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.avg_pool2d(F.relu(self.norm(self.conv1(x))), (1, 2))
        return self.fc2(torch.tanh(self.fc1(torch.tanh(self.conv2(h)).flatten(1))))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(126, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.dropout(torch.tanh(self.fc1(x.flatten(1))), 0.4, self.training))


def data(count: int = 45) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, 2, 9, 7, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def train(device: str, build: Any = Net, rule: Any = None, **options: Any) -> Training:
    rule = rule or SGD(0.1, momentum=0.9, weight_decay=0.01)
    recipe = Recipe(epochs=3, batch_size=8, optimizer=rule, schedule=Thirds(factor=0.5))
    options = {"seeds": (1, 3, 7), "test": data(30), **options}
    return fit(lambda seed: build(), data(), recipe, device=device, **options)


def difference(a: Training, b: Training) -> float:
    parts = [(a.weights[n].double() - w.double()).abs().max() for n, w in b.weights.items()]
    parts.append((a.train_loss - b.train_loss).abs().max())
    assert a.test_loss is not None
    assert b.test_loss is not None
    parts.append((a.test_loss - b.test_loss).abs().max())
    return float(torch.stack(parts).max())


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_a_gpu_trains_as_a_cpu(engine: Engine) -> None:
    host = train("cpu")
    found = train("cuda", engine=engine)
    assert difference(found, host) < 1e-11  # float64, 18 steps
    assert found.test_accuracy is not None
    assert torch.equal(found.test_accuracy, host.test_accuracy)
    assert found.weights["norm.num_batches_tracked"].tolist() == [18, 18, 18]
    assert found.device == torch.cuda.get_device_name()


def test_channels_last_change_nothing() -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 32, 3), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64 * 6, 3),
        )  # fmt: skip

    found = [train("cuda", build, engine=Engine(channels_last=last)) for last in (False, True)]
    assert difference(*found) < 1e-11  # float64, 18 steps


RULES = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": SGD(0.05, momentum=0.9, nesterov=True),
    "adam": Adam(0.003, weight_decay=0.01),
    "rmsprop": RMSprop(0.001, momentum=0.5),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_update_rules(rule: Any, dtype: torch.dtype) -> None:
    def build() -> nn.Module:
        return Net().to(dtype)

    host = train("cpu", build, rule)
    found = train("cuda", build, rule)
    plain = train("cuda", build, rule, engine=Engine(fused=False))
    limit = 1e-11 if dtype == torch.float64 else 2e-4  # 18 steps of seven digits
    assert difference(found, host) < limit
    assert difference(found, plain) < limit


def test_steps_are_recorded_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train("cuda", engine=Engine(stacking="vmap"))
        train("cuda", engine=Engine(stacking="loop"))


def test_texts_are_recorded_too_and_train_as_on_a_cpu() -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return GPT(context=5, vocabulary=11, num_blocks=1, width=8, num_heads=2, tied=True)

    generator = torch.Generator().manual_seed(2)
    pair = tuple(torch.randint(0, 11, (45, 5), generator=generator) for _ in range(2))
    recipe = Recipe(epochs=3, batch_size=8, optimizer=SGD(0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit(build, pair, recipe, device="cuda", seeds=(1, 3), test=pair)
    host = fit(build, pair, recipe, device="cpu", seeds=(1, 3), test=pair)
    assert difference(found, host) < 1e-11


@pytest.mark.parametrize("engine", [ENGINES["graphs"], ENGINES["loop"]], ids=["graphs", "loop"])
@pytest.mark.parametrize("build", [Net, Dropped])
def test_an_interrupted_training_ends_with_the_same_bits(
    tmp_path: Path, engine: Engine, build: Any
) -> None:
    def stop(step: Progress) -> None:
        if step.done == 2:
            raise KeyboardInterrupt

    whole = train("cuda", build, engine=engine)
    options: dict[str, Any] = {"engine": engine, "checkpoint": tmp_path, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        train("cuda", build, **options, progress=stop)
    found = train("cuda", build, **options)
    assert difference(found, whole) == 0.0


def test_dropout_draws_anew_in_every_replay() -> None:
    # Equal samples and a rate next to 0: losses of epochs differ by their masks alone.
    x, y = torch.ones(8, 2, 9, 7), torch.zeros(8, dtype=torch.int64)
    recipe = Recipe(epochs=4, batch_size=8, optimizer=SGD(1e-300))
    result = fit(lambda seed: Dropped(), (x, y), recipe, seeds=(0, 1), device="cuda")
    assert all(len(set(column.tolist())) == 4 for column in result.train_loss.T)
    eager, recorded = (
        train("cuda", Dropped, engine=Engine(graphs=graphs, steps_per_graph=2))
        for graphs in (False, True)
    )
    assert difference(recorded, eager) < 1e-11  # the masks of many replays are those of no graph


def test_what_cannot_be_recorded_runs_step_by_step() -> None:
    class Waiting(Net):
        def forward(self, x: Tensor) -> Tensor:
            assert x.abs().max().item() > 0  # waits for the device, which no graph can do
            return super().forward(x)

    with pytest.warns(SubstitutionWarning, match="could not be recorded in a CUDA graph"):
        found = train("cuda", Waiting, engine=Engine(stacking="loop"))
    assert difference(found, train("cpu")) < 1e-11


def test_float32_is_full_unless_tf32_is_allowed() -> None:
    # Large enough that a product is worth a tensor core.
    def build() -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(126, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(512, 3)).float()

    def run(device: str, *, tf32: bool) -> Training:
        recipe = Recipe(epochs=1, batch_size=256, optimizer=SGD(0.1), tf32=tf32)
        many = data(512)
        return fit(lambda seed: build(), many, recipe, seeds=(0, 1), test=many, device=device)

    host = run("cpu", tf32=False)
    assert difference(run("cuda", tf32=False), host) < 2e-6
    assert difference(run("cuda", tf32=True), host) > 2e-6  # TF32 keeps ten bits
    assert torch.get_float32_matmul_precision() == "highest"
