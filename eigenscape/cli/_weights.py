"""Weights from a file or a training run into a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eigenscape.errors import FileError, InvalidArgumentError, near_matches

if TYPE_CHECKING:
    from torch import Tensor, nn

_ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
# What DataParallel, torch.compile and Lightning put in front of every name.
_PREFIXES = ("module.", "_orig_mod.", "model.")
_SHOWN = 5


@dataclass(frozen=True)
class Weights:
    """Named tensors, and what was done to get at them.

    Attributes:
        tensors: By name.
        source: The file they came from.
        notes: What the user should know, in sentences.
    """

    tensors: dict[str, "Tensor"]
    source: Path
    notes: tuple[str, ...] = ()


def load_weights(model: "nn.Module", path: Path, *, seed: int | None = None) -> Weights:
    """Give a model the weights of a file or of a training run.

    Args:
        model: The model.
        path: A `.safetensors`, `.pt` or `.pth` file, or the folder of a training run.
        seed: Which seed of a training run; the first by default.

    Returns:
        What was loaded, with remarks.

    Raises:
        InvalidArgumentError: If names or shapes do not fit the model.
        FileError: If the file cannot be read, or would have to run code to be read.
    """
    if path.is_dir():
        path, notes = _of_training(path, seed)
    elif seed is not None:
        raise InvalidArgumentError(
            f"`--weights-seed {seed}` is for the folder of a training run; `--checkpoint` is the "
            f"file '{path}'. Leave it out."
        )
    else:
        notes = ()
    tensors, wrapped = _read(path)
    expected = model.state_dict()
    tensors, stripped = _stripped(tensors, expected)
    _require_fit(tensors, expected, path)
    model.load_state_dict(tensors)
    return Weights(tensors, path, (*notes, *wrapped, *stripped))


def numbered(folder: Path, kind: str) -> dict[int, Path]:
    """Return what a folder holds as "kind-7" or "kind-7.safetensors", by that number."""
    names = {path: path.stem.removeprefix(f"{kind}-") for path in folder.glob(f"{kind}-*")}
    return {int(name): path for path, name in names.items() if name.isdecimal()}


def _of_training(folder: Path, seed: int | None) -> tuple[Path, tuple[str, ...]]:
    seeds = numbered(folder / "weights", "seed")
    if not seeds:
        raise FileError(
            f"`--checkpoint {folder}` must be a file, or a training run with "
            "`weights/seed-0/epoch-….safetensors` in it; there are none. Train with "
            "`eigenscape train`, or name a file."
        )
    chosen = min(seeds) if seed is None else seed
    if chosen not in seeds:
        known = ", ".join(map(str, sorted(seeds)))
        raise InvalidArgumentError(
            f"`--weights-seed {chosen}` was not trained in '{folder}'; there are {known}."
        )
    files = numbered(seeds[chosen], "epoch")
    if not files:
        raise FileError(f"'{seeds[chosen]}' holds no weights. Train again with `eigenscape train`.")
    epoch = max(files)
    which = f"seed {chosen} of {len(seeds)}" if len(seeds) > 1 else f"seed {chosen}"
    return files[epoch], (f"Weights of {which} after epoch {epoch}.",)


def _read(path: Path) -> tuple[dict[str, "Tensor"], tuple[str, ...]]:
    """Return a file's tensors by name, and what to say of them."""
    from torch import Tensor

    from eigenscape.runs import WRAPPERS, read_weights, unwrapped

    if path.is_file() and path.suffix not in _ENDINGS:
        raise FileError(
            f"`--checkpoint {path}` must end in {', '.join(_ENDINGS)}; got '{path.suffix}'. Save "
            "the weights with `safetensors.torch.save_file(model.state_dict(), 'net.safetensors')`."
        )
    content, key = unwrapped(read_weights(path, f"`--checkpoint {path}`"))
    if not isinstance(content, Mapping) or not content:
        raise FileError(
            f"`--checkpoint {path}` must hold a state dict, names to tensors; got "
            f"{'an empty one' if isinstance(content, Mapping) else type(content).__name__}."
        )
    odd = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if odd:
        shown = ", ".join(f"'{name}'" for name in odd[:_SHOWN])
        raise FileError(
            f"`--checkpoint {path}` must hold a state dict, names to tensors, or have one under "
            f"one of {', '.join(map(repr, WRAPPERS))}; these are no tensors: {shown}."
        )
    tensors = {str(name): value.detach() for name, value in content.items()}
    return tensors, (f"Weights were under the key '{key}'.",) if key else ()


def _stripped(
    tensors: dict[str, "Tensor"], expected: Mapping[str, "Tensor"]
) -> tuple[dict[str, "Tensor"], tuple[str, ...]]:
    """Take off what wrappers put in front of all names, if the model does not have it."""
    gone = ""
    while not set(tensors) & set(expected):
        prefix = next((p for p in _PREFIXES if all(name.startswith(p) for name in tensors)), None)
        if prefix is None:
            break
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        gone += prefix
    return tensors, (f"The prefix '{gone}' was taken off all names.",) if gone else ()


def _require_fit(
    tensors: Mapping[str, "Tensor"], expected: Mapping[str, "Tensor"], path: Path
) -> None:
    missing = [name for name in expected if name not in tensors]
    surplus = [name for name in tensors if name not in expected]
    if missing or surplus:
        lines = []
        for names, others, what in (
            (missing, surplus, "the model has and the file lacks"),
            (surplus, missing, "the file has and the model lacks"),
        ):
            if names:
                lines.append(f"{len(names)} {what}: {_listed(names, others)}.")
        raise InvalidArgumentError(
            f"`--checkpoint {path}` does not fit the model. {' '.join(lines)} Build the model that "
            "the file was saved from, or rename its entries."
        )
    odd = [
        f"'{name}' is {tuple(tensors[name].shape)} in the file and {tuple(tensor.shape)} in the "
        "model"
        for name, tensor in expected.items()
        if tensors[name].shape != tensor.shape
    ]
    if odd:
        more = f", and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
        raise InvalidArgumentError(
            f"`--checkpoint {path}` does not fit the model: {', '.join(odd[:_SHOWN])}{more}. Build "
            "the model with the sizes that it had."
        )


def _listed(names: list[str], others: list[str]) -> str:
    first = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    more = ", …" if len(names) > _SHOWN else ""
    near = f" ({near_matches(names[0], others).rstrip('.')})" if others else ""
    return f"{first}{more}{near}"
