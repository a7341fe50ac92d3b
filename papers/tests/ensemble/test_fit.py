"""Training many seeds equals plain loops; it survives kills, keeps weights, and refuses well."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from eigenscape.errors import (
    CheckpointError,
    ConvergenceWarning,
    EmptySelectionError,
    InvalidArgumentError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.parallel import epoch_order
from eigenscape.records import Progress, read_tensors
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from eigenscape_papers.ensemble import SGD, Adam, Engine, Recipe, Thirds, Training, fit

ROUNDING = 1e-12  # float64, some dozens of steps
VMAP = Engine(stacking="vmap")


def data(count: int = 22) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def net(seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def train(*, build: Any = net, pair: Any = None, recipe: Any = None, **options: Any) -> Training:
    recipe = recipe or Recipe(epochs=4, batch_size=8, optimizer=SGD(0.2, momentum=0.9))
    return fit(build, data() if pair is None else pair, recipe, device="cpu", **options)


def plain_loop(
    seed: int, recipe: Recipe, loss: Any = F.cross_entropy, build: Any = net, y: Any = None
) -> tuple[nn.Module, list[float]]:
    """Train as anyone would, with the order of the data that `fit` promises."""
    x, labels = data()
    y = labels if y is None else y
    torch.manual_seed(seed)
    model = build(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.optimizer.learning_rate, momentum=0.9)
    losses = []
    for epoch, rate in enumerate(recipe.learning_rates()):
        optimizer.param_groups[0]["lr"] = rate
        total = 0.0
        for index in epoch_order(seed, epoch, len(x)).split(recipe.batch_size):
            value = loss(model(x[index]), y[index])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.item() * len(index)
        losses.append(total / len(x))
    return model, losses


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=ROUNDING)


# --- what is trained ---------------------------------------------------------------------------


def test_it_equals_a_plain_loop_with_batch_norm_and_a_ragged_batch() -> None:
    recipe = Recipe(
        epochs=5, batch_size=8, optimizer=SGD(0.2, momentum=0.9), schedule=Thirds(factor=0.3)
    )
    result = train(recipe=recipe, seeds=(4, 0, 9), engine=VMAP)
    for column, seed in enumerate((4, 0, 9)):
        model, losses = plain_loop(seed, recipe)
        assert_same(result.state_dict(seed), model.state_dict())  # running statistics among them
        # The epoch's loss is a sum over samples: an average of batch averages would differ.
        expected = torch.tensor(losses)
        torch.testing.assert_close(result.train_loss[:, column], expected, rtol=0, atol=ROUNDING)
    assert int(result.weights["1.num_batches_tracked"][0]) == 5 * 3
    assert result.learning_rates.tolist() == list(recipe.learning_rates())
    assert result.status.converged
    assert result.epochs_done == 5


def test_a_seed_does_not_depend_on_its_company() -> None:
    among = train(seeds=(1, 3, 7), engine=VMAP)
    alone = train(seeds=(3,))
    mapped_alone = train(seeds=(3,), engine=VMAP)
    assert_same(alone.state_dict(3), among.state_dict(3))
    assert_same(mapped_alone.state_dict(3), among.state_dict(3))
    assert not torch.allclose(among.weights["0.weight"][0], among.weights["0.weight"][1])


def test_orders_are_permutations_of_their_own() -> None:
    orders = {(s, e): epoch_order(s, e, 50) for s in range(3) for e in range(3)}
    assert all(torch.equal(o.sort().values, torch.arange(50)) for o in orders.values())
    assert len({tuple(order.tolist()) for order in orders.values()}) == 9
    assert epoch_order(0, 0, 5).tolist() == epoch_order(0, 0, 5).tolist()


def test_order_is_fixed_for_all_time() -> None:
    # Another order would make a resumed training, or one on another machine, another training.
    assert epoch_order(3, 2, 8).tolist() == [5, 3, 1, 4, 0, 2, 6, 7]


WEIGHTS = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
LOSSES: dict[str, tuple[Loss | str, Any]] = {
    "weights, smoothing": (
        CrossEntropy(class_weights=WEIGHTS, label_smoothing=0.1),
        lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS, label_smoothing=0.1),
    ),
    "ignored": (
        CrossEntropy(ignore_index=2),
        lambda z, y: F.cross_entropy(z, y, ignore_index=2),
    ),
    "squared error": ("squared-error", lambda z, y: 0.5 * (z - one_hot(y)).square().sum(1).mean()),
    "elements": (
        SquaredError(factor=1.0, average="elements"),
        lambda z, y: F.mse_loss(z, one_hot(y)),
    ),
}


def one_hot(y: Tensor) -> Tensor:
    return F.one_hot(y, 3).double()


@pytest.mark.parametrize(("loss", "function"), LOSSES.values(), ids=LOSSES.keys())
def test_losses_on_class_indices(loss: Any, function: Any) -> None:
    recipe = Recipe(epochs=3, batch_size=8, optimizer=SGD(0.2, momentum=0.9), loss=loss)
    result = train(recipe=recipe, seeds=(0, 5), engine=VMAP)
    for seed in (0, 5):
        model, _ = plain_loop(seed, recipe, function)
        assert_same(result.state_dict(seed), model.state_dict())
    assert result.train_accuracy is not None


def test_a_last_batch_of_one_is_refused_before_the_training() -> None:
    def build(seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    x, y = torch.randn(9, 4), torch.arange(9) % 3
    with pytest.raises(InvalidArgumentError, match="leaves one of 9 samples for the last batch"):
        fit(build, (x, y), Recipe(epochs=1, batch_size=4), seeds=(0,))
    assert fit(build, (x, y), Recipe(epochs=1, batch_size=3), seeds=(0,)).epochs_done == 1


FLOATS: dict[str, tuple[Any, Any]] = {
    "probabilities": (CrossEntropy(), F.cross_entropy),
    "regression": (SquaredError(), lambda z, y: 0.5 * (z - y).square().sum(1).mean()),
    "binary": (BinaryCrossEntropy(), F.binary_cross_entropy_with_logits),
    "function": (lambda z, y: (z - y).abs().mean(), lambda z, y: (z - y).abs().mean()),
}


@pytest.mark.parametrize(("loss", "function"), FLOATS.values(), ids=FLOATS.keys())
def test_losses_on_floating_targets(loss: Any, function: Any) -> None:
    x, _ = data()
    y = torch.rand(len(x), 3).softmax(1)
    recipe = Recipe(epochs=3, batch_size=8, optimizer=SGD(0.2, momentum=0.9), loss=loss)
    result = train(pair=(x, y), recipe=recipe, seeds=(0, 5), test=(x, y), engine=VMAP)
    for column, seed in enumerate((0, 5)):
        model, losses = plain_loop(seed, recipe, function, y=y)
        assert_same(result.state_dict(seed), model.state_dict())
        expected = torch.tensor(losses)
        torch.testing.assert_close(result.train_loss[:, column], expected, rtol=0, atol=ROUNDING)
        value = function(model.eval()(x), y).item()
        assert result.test_loss is not None
        assert abs(result.test_loss[-1, column].item() - value) < ROUNDING


def test_evaluation_and_accuracy() -> None:
    x, y = data()
    test = (torch.randn(600, 4), torch.randint(0, 3, (600,)))  # more than one batch, the last short
    result = train(seeds=(2, 6), test=test, evaluate_every=3, engine=VMAP)
    assert result.test_loss is not None
    assert result.test_accuracy is not None
    assert result.train_accuracy is not None
    assert result.test_loss.isnan().any(1).tolist() == [True, True, False, False]
    for column, seed in enumerate((2, 6)):
        model = result.load_into(net(0), seed).eval()
        z = model(test[0])
        loss = F.cross_entropy(z, test[1]).item()
        assert abs(result.test_loss[-1, column].item() - loss) < ROUNDING
        hits = (z.argmax(1) == test[1]).double().mean().item()
        assert result.test_accuracy[-1, column].item() == pytest.approx(hits, abs=1e-15)
    full = Recipe(epochs=1, batch_size=len(x))  # one step: the accuracy is that of the start
    first = train(recipe=full, seeds=(2, 6), engine=VMAP)
    torch.manual_seed(6)
    hits = (net(6)(x).argmax(1) == y).double().mean().item()
    assert first.train_accuracy is not None
    assert first.train_accuracy[0, 1].item() == pytest.approx(hits, abs=1e-15)


def test_frozen_tied_and_unused_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.b.weight = self.a.weight  # tied
            self.a.bias.requires_grad_(False)
            self.idle = nn.Parameter(torch.ones(2))
            self.register_buffer("scale", torch.full((), 0.5), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.tanh(self.b(torch.tanh(self.a(x))) * self.scale))

    recipe = Recipe(epochs=2, batch_size=8, optimizer=SGD(0.2, momentum=0.9, weight_decay=0.1))
    for engine in (VMAP, Engine(stacking="loop")):
        result = train(build=lambda seed: Net(), recipe=recipe, seeds=(0, 1), engine=engine)
        torch.manual_seed(1)
        start = Net()
        state = result.state_dict(1)
        assert state.keys() == start.state_dict().keys()
        assert torch.equal(state["a.bias"], start.a.bias.detach())
        assert torch.equal(state["idle"], torch.ones(2))  # torch.optim leaves it alone too
        assert torch.equal(state["a.weight"], state["b.weight"])
        assert not torch.equal(state["a.weight"], start.a.weight.detach())
        result.load_into(Net(), 1)


def test_data_in_all_forms_and_dtypes() -> None:
    x, y = data()
    expected = train(seeds=(0, 1)).weights
    for pair in ([x, y], TensorDataset(x, y), SimpleNamespace(inputs=x, targets=y)):
        assert_same(train(pair=pair, seeds=(0, 1)).weights, expected)
    single = train(build=lambda seed: net(seed).float(), seeds=(0, 1))
    assert single.weights["0.weight"].dtype == torch.float32
    assert single.train_loss.dtype == torch.float64


def test_the_users_random_numbers_are_left_alone() -> None:
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(8)
    train(seeds=(0, 1))
    assert torch.equal(torch.rand(3), expected)


def test_progress_shows_the_loss() -> None:
    seen: list[Progress] = []
    result = train(seeds=(0, 1), progress=seen.append)
    assert [(step.done, step.total) for step in seen] == [(k, 4) for k in (1, 2, 3, 4)]
    assert seen[-1].task == f"training 2 networks, loss {result.train_loss[-1].mean():.4g}"


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path: Path) -> None:
    recipe = Recipe(epochs=9, batch_size=8, optimizer=SGD(0.1))
    bad = torch.tensor(float("nan"))

    def build(seed: int) -> nn.Module:
        model = nn.Linear(4, 3)
        if seed == 7:
            model.bias.data[0] = bad
        return model

    with pytest.warns(ConvergenceWarning, match="became nan in epoch 1 of 9 for seed 7, and"):
        result = train(build=build, recipe=recipe, seeds=(1, 7), keep=tmp_path, keep_epochs=(1,))
    assert not result.status
    assert "Lower the learning rate (it was 0.1)" in result.status.text
    assert result.epochs_done == len(result.train_loss) == 1
    assert not (tmp_path / "seed-1").exists()
    assert result.train_loss[0, 0].isfinite()


# --- what is kept ------------------------------------------------------------------------------


def test_kept_weights_load_into_the_model(tmp_path: Path) -> None:
    result = train(seeds=(3, 5), keep=tmp_path / "kept", keep_epochs=(0, 2))
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    epochs = ("0000", "0002", "0004")
    assert names == [f"kept/seed-{s}/epoch-{e}.safetensors" for s in (3, 5) for e in epochs]
    folder = tmp_path / "kept" / "seed-5"
    torch.manual_seed(5)
    assert_same(read_tensors(folder / "epoch-0000.safetensors"), net(5).state_dict())
    model = net(0)
    model.load_state_dict(read_tensors(folder / "epoch-0004.safetensors"))
    assert_same(dict(model.state_dict()), result.state_dict(5))
    half, _ = plain_loop(5, Recipe(epochs=2, batch_size=8, optimizer=SGD(0.2, momentum=0.9)))
    assert_same(read_tensors(folder / "epoch-0002.safetensors"), half.state_dict())


# --- interrupted and resumed -------------------------------------------------------------------

SCRIPT = """
import sys, time
import torch
from torch import nn
from eigenscape_papers.ensemble import Adam, Cosine, Engine, Recipe, fit

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
x = torch.randn(60, 4, generator=generator)
y = torch.randint(0, 3, (60,), generator=generator)

def net(seed):
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))

def tell(step):
    print(step.done, flush=True)
    time.sleep(float(sys.argv[3]))

recipe = Recipe(epochs=30, batch_size=16, optimizer=Adam(0.01), schedule=Cosine())
result = fit(
    net, (x, y), recipe, seeds=(0, 3), test=(x, y), checkpoint=sys.argv[1], checkpoint_every=1,
    keep=sys.argv[2], keep_epochs=(0, 10), progress=tell, device="cpu",
    engine=Engine(stacking="vmap"),
)
found = {**result.weights, "train": result.train_loss, "test": result.test_loss}
torch.save(found, sys.argv[2] + ".pt")
"""


def start(folder: Path, pause: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, str(folder / "state"), str(folder / "out"), str(pause)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    reference = start(whole, 0.0)
    process = start(broken, 0.02)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 12:
        pass
    time.sleep(0.011)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
    again = start(broken, 0.0)
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 0
    first = int(output.split()[0])
    assert 12 <= first <= 30  # it did not begin again
    reference.communicate(timeout=60)
    expected, found = (torch.load(folder / "out.pt") for folder in (whole, broken))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    for file in sorted((whole / "out").rglob("*.safetensors")):
        assert (broken / "out" / file.relative_to(whole / "out")).read_bytes() == file.read_bytes()


def stop_at(epoch: int) -> Any:
    def stop(step: Progress) -> None:
        if step.done == epoch:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("every", [1, 2, 0.0])
def test_an_interrupted_training_continues(tmp_path: Path, every: float) -> None:
    options: dict[str, Any] = {"seeds": (0, 1), "test": data(), "engine": VMAP}
    whole = train(**options)
    options |= {"checkpoint": tmp_path, "checkpoint_every": every}
    with pytest.raises(KeyboardInterrupt):
        train(**options, progress=stop_at(3))
    seen: list[Progress] = []
    found = train(**options, progress=seen.append)
    assert [step.done for step in seen] == ([3, 4] if every == 2 else [4])
    assert all(torch.equal(found.weights[name], value) for name, value in whole.weights.items())
    assert torch.equal(found.train_loss, whole.train_loss)
    again = train(**options, progress=stop_at(4))  # finished: nothing is left to run
    assert torch.equal(again.train_loss, whole.train_loss)
    assert again.seconds == found.seconds


def test_other_trainings_and_damage_are_refused(tmp_path: Path) -> None:
    x, y = data()
    options: dict[str, Any] = {"seeds": (0, 1), "checkpoint": tmp_path}
    train(**options)
    other = Recipe(epochs=4, batch_size=8, optimizer=SGD(0.3, momentum=0.9))
    for change, words in (
        ({"seeds": (0, 2)}, "seeds"),
        ({"recipe": other}, "recipe"),
        ({"pair": (x + 1, y)}, "data"),
        ({"test": (x, y)}, "test"),
        ({"build": lambda seed: net(seed).requires_grad_().double().apply(_shift)}, "initial"),
    ):
        with pytest.raises(CheckpointError, match=f"another computation \\(.*{words}"):
            train(**{**options, **change})
    with pytest.raises(CheckpointError, match=r"'.*seed-0.*' of an earlier epoch is missing"):
        train(**options, keep=tmp_path / "kept")
    (file,) = tmp_path.glob("piece-*")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="damaged"):
        train(**options)


def _shift(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.data += 0.1


# --- refusals ----------------------------------------------------------------------------------

X, Y = torch.zeros(4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
SAME = nn.Linear(4, 3)
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a model": ({"build": nn.Linear(4, 3)}, WrongTypeError, "function that makes the network"),
    "no model": ({"build": lambda seed: 3}, WrongTypeError, "it returned int"),
    "same model": ({"build": lambda seed: SAME}, InvalidArgumentError, "a new model in every call"),
    "shapes": (
        {"build": lambda seed: nn.Linear(4, 3 + seed)},
        ShapeError,
        r"is \(\(.*\) for seed 0 and .* for seed 1",
    ),
    "modules": (
        {"build": lambda seed: nn.Sequential(nn.Linear(4, 3), [nn.ReLU(), nn.Tanh()][seed])},
        InvalidArgumentError,
        "the modules of seeds 0 and 1 differ",
    ),
    "half": ({"build": lambda seed: nn.Linear(4, 3).half()}, InvalidArgumentError, "torch.float16"),
    "nothing": ({"build": lambda seed: nn.ReLU()}, InvalidArgumentError, "no parameter"),
    "outputs": ({"build": lambda seed: Pair()}, WrongTypeError, "one tensor; got tuple"),
    "recipe": ({"recipe": "fast"}, WrongTypeError, "must be a Recipe; got str"),
    "engine": ({"engine": "fast"}, WrongTypeError, "must be an Engine; got str"),
    "data": ({"pair": X}, WrongTypeError, "got Tensor"),
    "three": ({"pair": (X, Y, Y)}, WrongTypeError, r"tuple of 3 \(Tensor, Tensor, Tensor\)"),
    "lengths": ({"pair": (X, Y[:3])}, ShapeError, r"shapes \(4, 4\) and \(3,\)"),
    "empty": ({"pair": (X[:0], Y[:0])}, EmptySelectionError, "at least one sample"),
    "classes": ({"pair": (X, Y + 1)}, InvalidArgumentError, "from 0 to 2"),
    "late classes": (
        {"pair": (X.repeat(9, 1), torch.cat([Y.repeat(8), Y + 7]))},
        InvalidArgumentError,
        r"fit\(data\)` must hold class indices from 0 to 2.*got 0 to 9",
    ),
    "test": ({"test": (X, Y + 1)}, InvalidArgumentError, "from 0 to 2"),
    "seed": ({"seeds": (-1,)}, InvalidArgumentError, "at least 0; got -1"),
    "no seeds": ({"seeds": ()}, WrongTypeError, "tuple of integers"),
    "one seed": ({"seeds": 3}, WrongTypeError, "tuple of integers; got 3"),
    "equal seeds": ({"seeds": (1, 1)}, InvalidArgumentError, r"all differ; got \(1, 1\)"),
    "keep": ({"keep_epochs": (5,)}, InvalidArgumentError, "from 0 to 4; got 5"),
    "evaluate": ({"evaluate_every": 0}, InvalidArgumentError, "evaluate_every"),
    "every": ({"checkpoint_every": "often"}, InvalidArgumentError, "epochs .* or of seconds"),
    "every 0": ({"checkpoint_every": 0}, InvalidArgumentError, "at least 1; got 0"),
}


class Pair(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


@pytest.mark.parametrize(("change", "error", "words"), BAD.values(), ids=BAD.keys())
def test_refusals(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        train(**{"seeds": (0, 1), "pair": (X, Y), **change})


def test_no_such_device() -> None:
    with pytest.raises(InvalidArgumentError, match=r"device=...\)` is no device"):
        fit(net, data(), Recipe(epochs=1), device="abacus")


def test_adam_continues_where_it_stopped(tmp_path: Path) -> None:
    recipe = Recipe(epochs=4, batch_size=8, optimizer=Adam(0.05))
    whole = train(recipe=recipe)
    with pytest.raises(KeyboardInterrupt):
        train(recipe=recipe, checkpoint=tmp_path, checkpoint_every=1, progress=stop_at(2))
    found = train(recipe=recipe, checkpoint=tmp_path, checkpoint_every=1)
    assert torch.equal(found.weights["0.weight"], whole.weights["0.weight"])
