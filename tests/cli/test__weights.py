"""Weights into a model: names and shapes that fit, wrappers taken off, and nothing ever run."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from eigenscape.cli._weights import load_weights
from eigenscape.errors import FileError, InvalidArgumentError


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.fixture
def state() -> dict[str, Tensor]:
    return {name: torch.randn(tensor.shape) for name, tensor in model().state_dict().items()}


def save(content: Any, path: Path) -> Path:
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


def check(net: nn.Module, state: dict[str, Tensor]) -> None:
    assert net.state_dict().keys() == state.keys()
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, state[name])


@pytest.mark.parametrize("ending", ["safetensors", "pt", "pth", "bin", "ckpt"])
def test_a_file_of_any_kind_is_taken_in(
    state: dict[str, Tensor], tmp_path: Path, ending: str
) -> None:
    net, path = model(), save(state, tmp_path / f"net.{ending}")
    with pytest.raises(AssertionError):
        check(net, state)
    weights = load_weights(net, path)
    check(net, state)
    assert (weights.source, weights.notes) == (path, ())


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_weights_are_found_under_their_key(
    state: dict[str, Tensor], tmp_path: Path, key: str
) -> None:
    net = model()
    weights = load_weights(net, save({key: state, "epoch": 3}, tmp_path / "net.pt"))
    check(net, state)
    assert weights.notes == (f"Weights were under the key '{key}'.",)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod."])
def test_what_wrappers_put_in_front_is_taken_off(
    state: dict[str, Tensor], tmp_path: Path, prefix: str
) -> None:
    wrapped = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    net = model()
    weights = load_weights(net, save(wrapped, tmp_path / "net.safetensors"))
    check(net, state)
    assert weights.notes == (f"The prefix '{prefix}' was taken off all names.",)


def test_a_prefix_that_the_model_has_stays(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

    state = {name: torch.randn(t.shape) for name, t in Wrapped().state_dict().items()}
    net = Wrapped()
    assert load_weights(net, save(state, tmp_path / "net.pt")).notes == ()
    check(net, state)


def test_names_that_do_not_fit_are_listed_from_both_sides(
    state: dict[str, Tensor], tmp_path: Path
) -> None:
    state["3.weight"] = state.pop("2.weight")
    net = model()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(InvalidArgumentError) as caught:
        load_weights(net, save(state, tmp_path / "net.pt"))
    assert "1 the model has and the file lacks: '2.weight' (" in str(caught.value)
    assert "1 the file has and the model lacks: '3.weight' (" in str(caught.value)
    check(net, before)


def test_shapes_that_do_not_fit_are_told(state: dict[str, Tensor], tmp_path: Path) -> None:
    state["0.bias"] = torch.zeros(5)
    words = r"'0\.bias' is \(5,\) in the file and \(4,\) in the model"
    with pytest.raises(InvalidArgumentError, match=words):
        load_weights(model(), save(state, tmp_path / "net.pt"))


class Trap:
    """Runs code when it is read by a careless reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_no_code_is_run(state: dict[str, Tensor], tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    path = save({**state, "trap": Trap(mark)}, tmp_path / "net.pt")
    with pytest.raises(FileError, match="could run any code, so it was not read"):
        load_weights(model(), path)
    assert not mark.exists()
    with path.open("rb") as file:  # the trap is one
        torch.load(file, weights_only=False)
    assert mark.exists()


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_file_that_breaks_off_is_refused(
    state: dict[str, Tensor], tmp_path: Path, ending: str
) -> None:
    path = save(state, tmp_path / f"net.{ending}")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FileError, match=r"no complete safetensors file|cannot be read as weights"):
        load_weights(model(), path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "got an empty one"),
        ([1, 2], "got list"),
        ({"0.weight": torch.ones(4, 3), "epoch": 3, "name": "x"}, "no tensors: 'epoch', 'name'"),
    ],
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(FileError, match=words):
        load_weights(model(), save(content, tmp_path / "net.pt"))


def test_files_that_are_not_there_are_named_with_what_is(
    state: dict[str, Tensor], tmp_path: Path
) -> None:
    save(state, tmp_path / "network.pt")
    with pytest.raises(FileError, match=r"no such file.*'network\.pt'"):
        load_weights(model(), tmp_path / "netwrok.pt")
    (tmp_path / "net.pkl").write_bytes(pickle.dumps(1))
    with pytest.raises(FileError, match=r"must end in \.safetensors.*got '\.pkl'"):
        load_weights(model(), tmp_path / "net.pkl")


# --- the folder of a training run ----------------------------------------------------------------


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Weights of two seeds, whose entries say seed and epoch."""
    for seed in (1, 4):
        epochs = tmp_path / "weights" / f"seed-{seed}"
        epochs.mkdir(parents=True)
        for epoch in (9999, 10_000):  # as text, the last is before the first
            state = {
                name: torch.full(tensor.shape, float(100 * seed + epoch))
                for name, tensor in model().state_dict().items()
            }
            save(state, epochs / f"epoch-{epoch:04d}.safetensors")
    (tmp_path / "weights" / "seed-notes").mkdir()
    return tmp_path


@pytest.mark.parametrize(("seed", "value"), [(None, 10_100.0), (4, 10_400.0)])
def test_the_last_epoch_of_a_seed_is_taken(training: Path, seed: int | None, value: float) -> None:
    net = model()
    weights = load_weights(net, training, seed=seed)
    assert all(bool((tensor == value).all()) for tensor in net.state_dict().values())
    assert weights.notes == (f"Weights of seed {seed or 1} of 2 after epoch 10000.",)


def test_seeds_that_cannot_be_had_are_refused(training: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="there are 1, 4"):
        load_weights(model(), training, seed=2)
    with pytest.raises(InvalidArgumentError, match="is for the folder of a training run"):
        load_weights(model(), training / "weights" / "seed-1" / "epoch-9999.safetensors", seed=1)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileError, match="there are none"):
        load_weights(model(), empty)
    (empty / "weights" / "seed-0").mkdir(parents=True)
    with pytest.raises(FileError, match="holds no weights"):
        load_weights(model(), empty)
