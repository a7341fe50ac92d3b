"""From what stands on the command line to a model, data and a loss."""

import inspect
import math
import random
import re
from collections.abc import Mapping, Sized
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigenscape.cli._user_code import call, is_reference, users_own
from eigenscape.errors import (
    InvalidArgumentError,
    UnknownNameError,
    WrongTypeError,
    near_matches,
    require_choice,
    require_count,
)
from eigenscape.plugins import catalogues

if TYPE_CHECKING:
    import torch
    from torch import nn

    from eigenscape.risk import Batch, EmpiricalRisk, Loss

LOSSES = (
    "cross-entropy",
    "next-token",
    "same-token",
    "squared-error",
    "binary-cross-entropy",
    "model",
)


def seed_everything(seed: int) -> None:
    """Fix the random numbers that the user's functions may draw, so that a run can be repeated."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def load_data(
    reference: str,
    *,
    split: str = "train",
    folder: str | Path | None = None,
    samples: int | None = None,
    seed: int = 0,
    role: str = "--data",
) -> Any:
    """Return the data that an argument names.

    Args:
        reference: A built-in name, `file.py:function` or `package.module:function`.
        split: Which part of a built-in set.
        folder: Where the files of built-in sets are.
        samples: Take so many at random.
        seed: Fixes the choice.
        role: The argument, for messages.

    Returns:
        A `DataSet`, or whatever the user's function returned.

    Raises:
        UnknownNameError: If there is no such set.
    """
    if is_reference(reference):
        loaded = call(reference, role, ready=lambda value: not callable(value))
        return loaded if samples is None else _some(loaded, samples, seed, role)
    known = ["digits"]
    data: Any = None
    for catalogue in catalogues("data"):
        known += catalogue.names()
        if reference in catalogue.names():
            data = catalogue.load(reference, split=split, folder=folder)
    if reference == "digits" and data is None:
        from eigenscape.zoo import load_digits

        data = load_digits(split)
    if data is None:
        raise UnknownNameError(
            f"{role} '{reference}' is neither a built-in data set nor `file.py:function`. "
            f"{near_matches(reference, known)} Built in here: {', '.join(dict.fromkeys(known))}; "
            "more come with `pip install eigenscape-papers`."
        )
    return data if samples is None else data.take(samples, seed)


def load_model(reference: str, data: object, *, seed: int = 0, init: str = "pytorch") -> Any:
    """Return the model that an argument names.

    Args:
        reference: A built-in name, `file.py:function` or `package.module:function`.
        data: What a built-in network takes its input shape and number of classes from.
        seed: Fixes initial weights.
        init: Rule for the initial weights of a built-in network.

    Returns:
        An `nn.Module`.

    Raises:
        WrongTypeError: If the function returns something else.
        UnknownNameError: If there is no such network.
    """
    from torch import nn

    from eigenscape import zoo

    if is_reference(reference):
        seed_everything(seed)
        model = call(reference, "MODEL", ready=lambda value: isinstance(value, nn.Module))
        if not isinstance(model, nn.Module):
            raise WrongTypeError(
                f"MODEL `{reference}` must return an nn.Module; got {type(model).__name__}."
                + (" Did it forget to `return`?" if model is None else "")
            )
        return model
    shape, num_classes = _sizes(data)
    examples = list(zoo.EXAMPLES)
    for catalogue in catalogues("models"):
        examples += [example for info in catalogue.describe() for example in info.examples]
        with suppress(UnknownNameError):
            model = catalogue.build(
                reference, input_shape=shape, num_classes=num_classes, seed=seed, init=init
            )
            return model
    try:
        return zoo.build(reference, input_shape=shape, num_classes=num_classes, seed=seed)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"MODEL '{reference}' is neither a built-in network nor `file.py:function`. "
            f"{near_matches(reference, examples)} Built in here: {', '.join(zoo.EXAMPLES)}; more "
            "come with `pip install eigenscape-papers`."
        ) from error


def choose_device(name: str) -> "torch.device":
    """Return the device of that name; "auto" is a GPU where there is one.

    Args:
        name: "auto", "cpu", "cuda" or "cuda:1".

    Returns:
        The device.

    Raises:
        InvalidArgumentError: If it is another name, or there is no such device.
    """
    import torch

    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise InvalidArgumentError(
            f"`--device` must be auto, cpu, cuda, or cuda:1 and so on; got '{name}'."
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    wanted = int(name.partition(":")[2] or 0) + 1 if name != "cpu" else 0
    if wanted > count:
        raise InvalidArgumentError(
            f"`--device {name}`: PyTorch sees {count} CUDA device{'' if count == 1 else 's'} here. "
            "Use `--device cpu`, or see `eigenscape env`."
        )
    return torch.device(name)


def place_model(model: "nn.Module", device: "torch.device", dtype: str | None) -> "nn.Module":
    """Move a model to the device and dtype; by default half precision becomes float32."""
    import torch

    if dtype is None:
        kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
        dtype = "float64" if kinds == {torch.float64} else "float32"
    return model.to(device, getattr(torch, dtype))


def choose_loss(
    name: str | None, model: "nn.Module", data: object, device: "torch.device"
) -> tuple["Loss", str]:
    """Return the loss of that name, or the one that the targets suggest.

    Args:
        name: One of `LOSSES`, `file.py:function`, or None to guess.
        model: In its place.
        data: What it is evaluated on.
        device: Where the model is.

    Returns:
        The loss, and what to say of it.

    Raises:
        InvalidArgumentError: If it cannot be guessed.
    """
    if name is not None and is_reference(name):
        return _users_loss(name), name
    if name is not None:
        return _make_loss(require_choice(name, LOSSES, "--loss")), name
    guess, why = _guess(model, first_batch(data, device, _dtype(model)))
    return _make_loss(guess), f"{guess} (guessed: {why}; `--loss` says otherwise)"


def describe_loss(said: str, risk: "EmpiricalRisk", *, guessed: bool) -> str:
    """Say which loss is used, and how it compares to the model's own.

    Args:
        said: What `choose_loss` said of it.
        risk: It has settled what the loss leaves open.
        guessed: Whether it was guessed.

    Returns:
        The text.

    Raises:
        InvalidArgumentError: If a guess disagrees with the model's own loss.
    """
    choice = risk.loss_choice
    if choice is None:
        return said
    if guessed and choice.difference:
        raise InvalidArgumentError(f"The loss was guessed, {said}. {choice.difference}")
    return "; ".join(filter(None, (said, choice.note, choice.difference)))


def _make_loss(name: str) -> "Loss":
    from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, ModelLoss, SquaredError

    losses = (
        CrossEntropy(),
        CrossEntropy(next_token=True),
        CrossEntropy(next_token=False),
        SquaredError(),
        BinaryCrossEntropy(),
        ModelLoss(),
    )
    return dict(zip(LOSSES, losses, strict=True))[name]


def _users_loss(reference: str) -> "Loss":
    """Return a loss of the user's own: a function of (output, target), or a function that makes it.

    A class is called without arguments, too.
    """
    from eigenscape.risk import as_loss

    return as_loss(call(reference, "--loss", ready=_takes_output_and_target))


def _takes_output_and_target(value: Any) -> bool:
    if isinstance(value, type) or not callable(value):
        return not callable(value)
    try:
        inspect.signature(value).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # one that Python cannot look into
        pass
    return True


def first_batch(data: object, device: "torch.device", dtype: "torch.dtype") -> "Batch":
    """Return the first batch of any data, with inputs and target told apart.

    Args:
        data: What the user gave.
        device: Where it goes.
        dtype: What floating-point tensors become.

    Returns:
        The batch.

    Raises:
        InvalidArgumentError: If there is none.
    """
    from eigenscape.risk import BatchSource

    source = BatchSource(data, batch_size=None, device=device, dtype=dtype, keep_bytes=0)
    with users_own("The data could not be read"):
        batch = next(source.fresh(), None)
    if batch is None:
        raise InvalidArgumentError(
            "The data gave no batch. Expected at least one; check the loader's data set, its "
            "sampler and `drop_last`."
        )
    return batch


def describe_data(data: object, reference: str, num_samples: int | None = None) -> str:
    """Say in a line what the data are; how many samples, where that had to be counted."""
    from torch import Tensor

    if hasattr(data, "num_samples") and hasattr(data, "input_shape"):
        classes = getattr(data, "num_classes", None)
        split = getattr(data, "split", "")
        return (
            f"{reference} ({split}): {data.num_samples:,} samples of shape {data.input_shape}"
            + (f", {classes} classes" if classes else "")
        )
    if isinstance(data, tuple | list) and data and all(isinstance(t, Tensor) for t in data):
        shapes = ", ".join(str(tuple(t.shape)) for t in data)
        return f"{reference}: tensors of shapes {shapes}"
    count = "" if num_samples is None else f" of {num_samples:,} samples"
    return f"{reference}: {type(data).__name__}{count}"


def _dtype(model: "nn.Module") -> "torch.dtype":
    import torch

    kinds = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(kinds, torch.get_default_dtype())


def _guess(model: "nn.Module", batch: "Batch") -> tuple[str, str]:
    import torch
    from torch import Tensor

    from eigenscape.risk import eval_mode, label_keyword, logits_of, makes_decoder_inputs

    target = batch.target
    choose = f"Choose one with `--loss`: {', '.join(LOSSES)}, or file.py:function."
    if not isinstance(target, Tensor):
        what = "have no targets" if target is None else f"have {type(target).__name__} targets"
        raise InvalidArgumentError(f"The loss cannot be guessed: the data {what}. {choose}")
    if not target.is_floating_point() and target.dtype != torch.bool:
        return "cross-entropy", "the targets are whole numbers"
    keyword = label_keyword(model, batch)
    if makes_decoder_inputs(model, batch):
        batch = batch.labelled(keyword)
    with (
        torch.no_grad(),
        eval_mode(model),
        users_own("The model could not be evaluated on the first batch"),
    ):
        output = logits_of(model(*batch.args, **batch.kwargs))
    shape = tuple(output.shape) if isinstance(output, Tensor) else None
    if target.is_floating_point() and shape == tuple(target.shape):
        return "squared-error", "the targets are real numbers, shaped like the output"
    if keyword is not None:
        return "model", "the model takes labels"
    got = shape or f"a {type(output).__name__}"
    raise InvalidArgumentError(
        f"The loss cannot be guessed: targets are {target.dtype} of shape {tuple(target.shape)}, "
        f"the output is {got}. {choose}"
    )


def _sizes(data: object) -> tuple[tuple[int, ...], int]:
    """Return the shape of one input and the number of outputs that the data ask for."""
    import torch
    from torch import Tensor

    classes, shape = getattr(data, "num_classes", None), getattr(data, "input_shape", None)
    if classes is not None and shape is not None:
        return tuple(shape), int(classes)
    from eigenscape.risk import BatchSource

    source = BatchSource(
        data, batch_size=None, device=torch.device("cpu"), dtype=torch.float32, keep_bytes=0
    )
    shape, outputs = None, 0
    with users_own("The data could not be read"):
        for batch in source.fresh():
            if len(batch.args) != 1 or not isinstance(batch.target, Tensor):
                break
            shape = tuple(batch.args[0].shape[1:])
            target_shape = batch.target.shape[1:]
            real = batch.target.is_floating_point()
            outputs = max(outputs, math.prod(target_shape) if real else int(batch.target.max()) + 1)
    if shape is None or outputs < 1:
        raise InvalidArgumentError(
            "A built-in network takes its sizes from data of pairs (inputs, target); these have "
            "another form. Name a function of your own as MODEL."
        )
    return shape, outputs


def _length(data: Any) -> int:
    if not isinstance(data, Sized):
        raise InvalidArgumentError(
            f"`--samples` needs data of known length; {type(data).__name__} has no `__len__`."
        )
    return len(data)


def _some(data: Any, samples: int, seed: int, role: str) -> Any:
    """Take samples at random from data that were not made here."""
    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset, Subset

    require_count(samples, "--samples")
    is_tensors = (
        isinstance(data, tuple | list) and data and all(isinstance(t, Tensor) for t in data)
    )
    source = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(data, Mapping) or not (is_tensors or isinstance(source, Dataset)):
        raise InvalidArgumentError(
            f"`--samples {samples}` needs tensors, a Dataset or a DataLoader from {role}; got "
            f"{type(data).__name__}. Take fewer samples in your own function."
        )
    count = len(data[0]) if is_tensors else _length(source)
    if samples > count:
        raise InvalidArgumentError(f"`--samples {samples}`: {role} has {count}. Ask for fewer.")
    draw = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    chosen = draw[:samples].sort().values
    if is_tensors:
        return tuple(t[chosen] for t in data)
    subset = Subset(source, chosen.tolist())
    if not isinstance(data, DataLoader):
        return subset
    return DataLoader(subset, batch_size=data.batch_size, collate_fn=data.collate_fn)
