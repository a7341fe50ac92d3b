"""All engines give one result; graphs are tested where there is a GPU."""

from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, SubstitutionWarning, UnknownNameError
from eigenscape_papers.ensemble import SGD, Engine, Recipe, Training, fit

EIGHT_STEPS = 1e-12  # float64, a few dozen steps whose sums are taken in another order


class Net(nn.Module):
    """Convolutions with stride, padding, no bias, dilation and groups; norms; both poolings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2))
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding="same", bias=False)
        self.conv3 = nn.Conv2d(4, 4, 2, dilation=2, groups=2)
        self.conv4 = nn.Conv2d(4, 5, 1)
        self.mix = nn.Linear(5, 6, bias=False)  # on (positions, channels)
        self.norm2 = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2, stride=1)
        h = self.conv4(torch.tanh(self.conv3(self.conv2(h))))
        h = self.mix(h.flatten(2).transpose(1, 2)).mean(1)
        return self.out(torch.tanh(self.norm2(h)))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(21, 2, 9, 7, generator=generator)
    return x, torch.randint(0, 3, (21,), generator=generator)


def train(engine: Engine, build: Any = lambda seed: Net(), **options: Any) -> Training:
    recipe = Recipe(epochs=3, batch_size=8, optimizer=SGD(0.1, momentum=0.9))
    return fit(build, data(), recipe, test=data(), engine=engine, device="cpu", **options)


@pytest.mark.parametrize("convolution", ["unfold", "grouped"])
@pytest.mark.parametrize("steps", [1, 32])
def test_engines_agree(convolution: str, steps: int) -> None:
    seeds = (1, 3, 7)
    loop = train(Engine(stacking="loop"), seeds=seeds)
    vmap = train(
        Engine(stacking="vmap", convolution=convolution, steps_per_graph=steps), seeds=seeds
    )
    for name, value in loop.weights.items():
        torch.testing.assert_close(vmap.weights[name], value, rtol=0, atol=EIGHT_STEPS)
    torch.testing.assert_close(vmap.train_loss, loop.train_loss, rtol=0, atol=EIGHT_STEPS)
    torch.testing.assert_close(vmap.test_loss, loop.test_loss, rtol=0, atol=EIGHT_STEPS)
    assert vmap.test_accuracy is not None
    assert torch.equal(vmap.test_accuracy, loop.test_accuracy)


class Wide(nn.Module):
    """Convolutions of 2048 pairs of channels, which run in a loop."""

    seen: ClassVar[list[bool]] = []  # whether channels came last

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(2, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.out = nn.Conv2d(32, 64, 2), nn.Linear(64 * 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv2(F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2))
        self.seen.append(h.is_contiguous(memory_format=torch.channels_last))
        return self.out(h.flatten(1))


def test_channels_may_come_last() -> None:
    found, seen = [], []
    for last in (False, True):
        Wide.seen.clear()
        found.append(train(Engine(channels_last=last), lambda seed: Wide(), seeds=(2,)))
        seen.append(set(Wide.seen))
    for name, value in found[0].weights.items():
        torch.testing.assert_close(found[1].weights[name], value, rtol=0, atol=EIGHT_STEPS)
    assert seen == [{False}, {True}]
    narrow = [train(Engine(channels_last=last), seeds=(2,)) for last in (False, True)]
    assert all(torch.equal(narrow[0].weights[n], w) for n, w in narrow[1].weights.items())


def test_fused_convolutions_agree() -> None:
    pytest.importorskip("triton")
    x, y = data()
    recipe = Recipe(epochs=1, batch_size=4, optimizer=SGD(0.1))
    pair = x[:7], y[:7]  # two steps, the last one shorter: an interpreter takes its time
    fused, loop = (
        fit(lambda seed: Net(), pair, recipe, seeds=(1, 3), engine=engine, device="cpu")
        for engine in (Engine(stacking="vmap", convolution="fused"), Engine(stacking="loop"))
    )
    for name, value in loop.weights.items():
        torch.testing.assert_close(fused.weights[name], value, rtol=0, atol=EIGHT_STEPS)


def test_a_model_that_cannot_be_mapped_runs_in_a_loop() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(126, 3)

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.out(x.flatten(1))
            return z if z.sum().item() > 0 else 2 * z

    with pytest.warns(SubstitutionWarning, match="cannot run under vmap"):
        found = train(Engine(stacking="vmap"), lambda seed: Branching(), seeds=(0, 1))
    loop = train(Engine(stacking="loop"), lambda seed: Branching(), seeds=(0, 1))
    assert torch.equal(found.weights["out.weight"], loop.weights["out.weight"])


def test_an_error_of_the_model_is_shown() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train(
            Engine(stacking="vmap"),
            lambda seed: nn.Sequential(nn.Flatten(), nn.Linear(5, 3)),
            seeds=(0, 1),
        )


@pytest.mark.parametrize("stacking", ["vmap", "loop"])
def test_dropout_differs_between_seeds_and_steps_and_repeats(stacking: str) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(30, 3)
            nn.init.ones_(self.out.weight)
            nn.init.zeros_(self.out.bias)
            self.out.weight.data[0] = 2

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.dropout(x, 0.5, self.training))

    # Equal starts, equal samples, a rate next to 0: losses differ by their masks alone.
    pair = torch.ones(6, 30), torch.ones(6, dtype=torch.int64)
    recipe = Recipe(epochs=3, batch_size=6, optimizer=SGD(1e-300))
    engine = Engine(stacking=stacking)
    one, two = (
        fit(lambda seed: Dropped(), pair, recipe, seeds=(0, 1), engine=engine, device="cpu")
        for _ in range(2)
    )
    assert len(set(one.train_loss.flatten().tolist())) == 6
    assert torch.equal(one.train_loss, two.train_loss)


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="'auto', 'vmap', 'loop'; got 'map'"):
        Engine(stacking="map")
    with pytest.raises(UnknownNameError, match="'fused', 'unfold', 'grouped'"):
        Engine(convolution="fft")
    with pytest.raises(InvalidArgumentError, match="steps_per_graph"):
        Engine(steps_per_graph=0)
    with pytest.raises(InvalidArgumentError, match="num_streams"):
        Engine(num_streams=0)
