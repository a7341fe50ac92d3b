"""Train networks of one architecture from many seeds at once."""

import dataclasses
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.device import full_precision
from eigenscape.errors import CheckpointError, InvalidArgumentError, WrongTypeError, require_count
from eigenscape.records import (
    Checkpoint,
    Key,
    Progress,
    ProgressCallback,
    Status,
    Ticker,
    crc,
    write_tensors,
)
from eigenscape_papers.ensemble._data import as_tensors
from eigenscape_papers.ensemble._objective import Objective, make_objective
from eigenscape_papers.ensemble._stacked import Stack, build_all
from eigenscape_papers.ensemble._update import make_update
from eigenscape_papers.ensemble.engine import Engine, Runner, choose_stacking
from eigenscape_papers.ensemble.recipe import Recipe
from eigenscape_papers.ensemble.training import Training

Data = tuple[Tensor, Tensor]
_HISTORY = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


def fit(
    build: Callable[[int], nn.Module],
    data: object,
    recipe: Recipe,
    *,
    seeds: Sequence[int] = (0,),
    test: object | None = None,
    evaluate_every: int = 1,
    keep_epochs: Sequence[int] = (),
    keep: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | float = 60.0,
    device: str | torch.device | None = None,
    engine: Engine | None = None,
    progress: ProgressCallback | None = None,
) -> Training:
    """Train a network from each seed, all seeds together.

    Each seed has its own initial weights and its own order of the data, fixed by the seed alone:
    a seed trained alone and among others ends with the same weights to rounding. (Dropout is the
    exception: its masks are fixed by the seeds together.) The last, shorter batch of an epoch is
    used, and counts for what it holds.

    Cost: per step, about what one network of S times the width would take; on a GPU far less than
    S trainings one after the other. All data are kept on the device.

    Args:
        build: Makes the network of a seed, in float32 or float64. PyTorch's random numbers are
            seeded with the seed before the call, and put back after it.
        data: Inputs and targets: an object with `.inputs` and `.targets`, a pair of tensors, or a
            `TensorDataset`.
        recipe: Epochs, batch size, optimiser, schedule, loss.
        seeds: The seeds, different ones, of 0 or more.
        test: Data to evaluate on, without training on them.
        evaluate_every: Epochs between evaluations; the last epoch is always evaluated.
        keep_epochs: After which epochs weights are kept as files; 0 is before the first. The last
            epoch is always kept.
        keep: Folder for them: `seed-3/epoch-0010.safetensors`, for `model.load_state_dict`.
        checkpoint: Folder in which to save the state; a run that was killed continues from there,
            called with the same arguments, and ends with the same bits on devices whose kernels
            are repeatable.
        checkpoint_every: Epochs between two savings if an integer, seconds if a float.
        device: Where to train; by default a CUDA device if there is one.
        engine: How the steps are carried out, for comparisons.
        progress: Called after every epoch.

    Returns:
        Losses, accuracies and weights. If a loss stops being finite, training stops, the status
        says where, and a `ConvergenceWarning` is issued.

    Raises:
        WrongTypeError: If an argument is of another kind.
        InvalidArgumentError: If a number is out of range or targets do not fit.
        ShapeError: If architectures, inputs and targets do not fit each other.
        CheckpointError: If the checkpoint is damaged or of another training.

    Examples:
        >>> from eigenscape_papers.ensemble import SGD
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> recipe = Recipe(epochs=50, batch_size=16, optimizer=SGD(0.2), loss="squared-error")
        >>> result = fit(lambda seed: nn.Linear(1, 1), (x, 3 * x + 1), recipe, seeds=(0, 1, 2))
        >>> [round(slope, 3) for slope in result.weights["weight"].flatten().tolist()]
        [3.0, 3.0, 3.0]
        >>> model = result.load_into(nn.Linear(1, 1), seed=2)
        >>> round(model.bias.item(), 3)
        1.0
    """
    engine = Engine() if engine is None else engine
    _require_kinds(build, recipe, engine)
    seeds = _require_seeds(seeds)
    require_count(evaluate_every, "fit(evaluate_every=...)")
    for epoch in keep_epochs:
        require_count(epoch, "fit(keep_epochs=...)", at_least=0, at_most=recipe.epochs)
    chosen_device = _device(device)
    session = _Session(recipe, seeds, evaluate_every, chosen_device)
    pair = as_tensors(data, "fit(data)")
    other = None if test is None else as_tensors(test, "fit(test=...)")
    with _own_random_numbers(chosen_device):
        models = build_all(build, seeds)
    with torch.no_grad(), full_precision(tf32=recipe.tf32), _own_random_numbers(chosen_device):
        session.prepare(models, pair, other, engine)
        session.keep_in(keep, keep_epochs)
        session.save_in(checkpoint, checkpoint_every)
        result = session.run(progress)
    result.status.warn()
    return result


class _Session:
    """One training from start to end."""

    def __init__(
        self, recipe: Recipe, seeds: tuple[int, ...], evaluate_every: int, device: torch.device
    ) -> None:
        self._recipe, self._seeds, self._device = recipe, seeds, device
        self._rates, self._evaluate_every = recipe.learning_rates(), evaluate_every
        self._done, self._seconds = 0, 0.0
        shape = (recipe.epochs, len(seeds))
        nothing = torch.full(shape, math.nan, dtype=torch.float64)
        self._history = {name: nothing.clone() for name in _HISTORY}
        self._checkpoint: Checkpoint | None = None
        self._every: int | float = math.inf
        self._keep: Path | None = None
        self._keep_epochs: frozenset[int] = frozenset()

    def prepare(
        self, models: Sequence[nn.Module], data: Data, test: Data | None, engine: Engine
    ) -> None:
        """Bring networks and data to the device, and try a step."""
        if self._device.type == "cuda":
            # The first kernel in autograd's own thread makes its context; cuBLAS would warn.
            with torch.enable_grad():
                torch.zeros(1, device=self._device, requires_grad=True).exp().backward()
        dtype = next(p.dtype for p in models[0].parameters() if p.requires_grad)
        self._has_test = test is not None
        self._key = self._make_key(models, data, test)
        pairs = [_moved(pair, self._device, dtype) for pair in (data, test) if pair is not None]
        stack = Stack(models, self._device)
        engine.set_up(stack, tf32=self._recipe.tf32)
        output, unused = _trial(stack, pairs[0][0][: self._recipe.batch_size])
        _require_last_batch(stack, pairs[0][0], self._recipe.batch_size)
        self._stack = stack = stack.without(unused) if unused else stack
        loss = self._recipe.loss_object()
        objectives = [
            make_objective(loss, output[: len(pair[1])], pair[1], call)
            for pair, call in zip(pairs, ("fit(data)", "fit(test=...)"), strict=False)
        ]
        self._objective: Objective = objectives[0]
        update = make_update(self._recipe.optimizer, stack.theta, stack.split, fused=engine.fused)
        self._runner = Runner(
            stack,
            update,
            objectives[0],
            pairs[0],
            seeds=self._seeds,
            batch_size=self._recipe.batch_size,
            engine=engine,
        )
        if test is not None:
            self._runner.evaluate_on(pairs[1], objectives[1])

    def keep_in(self, folder: str | os.PathLike[str] | None, epochs: Sequence[int]) -> None:
        """Say where weights are kept, and after which epochs."""
        if folder is not None:
            self._keep = Path(folder)
            self._keep_epochs = frozenset((*epochs, self._recipe.epochs))

    def save_in(self, folder: str | os.PathLike[str] | None, every: int | float) -> None:
        """Say where the state is saved, and continue from what is there."""
        _require_every(every)
        if folder is None:
            return
        self._every, self._checkpoint = every, Checkpoint(folder, self._key)
        pieces = self._checkpoint.load()
        if not pieces:
            return
        saved = pieces[-1]
        self._require_kept(int(saved["done"]))
        for name, tensor in self._changing().items():
            tensor.copy_(saved[name])
        self._done, self._seconds = int(saved["done"]), float(saved["seconds"])

    def run(self, progress: ProgressCallback | None) -> Training:
        """Run the epochs that are left."""
        epochs = self._recipe.epochs
        ticker = Ticker(self._announced(progress), "", epochs, first=self._done)
        clock = saved = time.monotonic()
        if self._done == 0:
            self._keep_weights()
        while self._done < epochs and self._trouble() is None:
            self._run_epoch()
            now = time.monotonic()
            self._seconds, clock = self._seconds + now - clock, now
            if self._trouble() is None:
                self._keep_weights()
                if self._checkpoint is not None and self._is_due(now - saved):
                    self._save(self._checkpoint)
                    saved = time.monotonic()
            ticker.tick(self._done)
        return self._result()

    def _run_epoch(self) -> None:
        epoch = self._done
        self._runner.run_epoch(epoch, self._rates[epoch])
        last = epoch + 1 == self._recipe.epochs
        evaluated = self._has_test and (last or (epoch + 1) % self._evaluate_every == 0)
        if evaluated:
            self._runner.evaluate()
        # The one place where the host waits for the device.
        loss, terms, correct, samples = self._runner.sums.cpu()
        self._history["train_loss"][epoch] = loss / terms
        self._history["train_accuracy"][epoch] = correct / samples
        if evaluated:
            loss, terms, correct, samples = self._runner.test_sums.cpu()
            self._history["test_loss"][epoch] = loss / terms
            self._history["test_accuracy"][epoch] = correct / samples
        self._done += 1

    def _trouble(self) -> Status | None:
        """Return what is to be said if the last loss of some seed is not finite."""
        if self._done == 0:
            return None
        losses = self._history["train_loss"][self._done - 1].tolist()
        bad = [(s, v) for s, v in zip(self._seeds, losses, strict=True) if not math.isfinite(v)]
        if not bad:
            return None
        names = ", ".join(str(seed) for seed, _ in bad)
        rate = self._rates[self._done - 1]
        return Status(
            False,
            f"The training loss became {bad[0][1]} in epoch {self._done} of {self._recipe.epochs} "
            f"for seed{'s' if len(bad) > 1 else ''} {names}, and training stopped. Lower the "
            f"learning rate (it was {rate:g}), or check the data for values that are not finite.",
        )

    def _keep_weights(self) -> None:
        if self._keep is None or self._done not in self._keep_epochs:
            return
        weights = self._stack.state_dicts()
        for index, file in enumerate(self._files(self._done)):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, {name: stacked[index] for name, stacked in weights.items()})

    def _files(self, epoch: int) -> list[Path]:
        folder = self._keep or Path()
        return [folder / f"seed-{seed}" / f"epoch-{epoch:04d}.safetensors" for seed in self._seeds]

    def _require_kept(self, done: int) -> None:
        """Refuse to continue where weights of epochs gone by were not kept."""
        if self._keep is None:
            return
        gone = [e for e in sorted(self._keep_epochs) if e <= done]
        missing = [file for epoch in gone for file in self._files(epoch) if not file.exists()]
        if missing:
            raise CheckpointError(
                f"`fit(checkpoint=...)` is at epoch {done}, but '{missing[0]}' of an earlier epoch "
                "is missing and cannot be made any more. Call `fit` with the same `keep=` and "
                "`keep_epochs=` as before, or delete the checkpoint to train again."
            )

    def _is_due(self, seconds: float) -> bool:
        if self._done == self._recipe.epochs:
            return True
        return (
            self._done % self._every == 0
            if isinstance(self._every, int)
            else seconds >= self._every
        )

    def _save(self, checkpoint: Checkpoint) -> None:
        done = torch.tensor(self._done)
        seconds = torch.tensor(self._seconds, dtype=torch.float64)
        checkpoint.replace({**self._changing(), "done": done, "seconds": seconds})

    def _changing(self) -> dict[str, Tensor]:
        history = {f"history.{name}": values for name, values in self._history.items()}
        return {**self._runner.state(), **history}

    def _announced(self, progress: ProgressCallback | None) -> ProgressCallback | None:
        """Put the loss into the progress text."""
        if progress is None:
            return None

        def announce(step: Progress) -> None:
            losses = self._history["train_loss"][self._done - 1]
            text = f"training {len(self._seeds)} network{'s' if len(self._seeds) > 1 else ''}"
            progress(dataclasses.replace(step, task=f"{text}, loss {losses.mean():.4g}"))

        return announce

    def _result(self) -> Training:
        history = {name: values[: self._done].clone() for name, values in self._history.items()}
        losses = history["train_loss"][-1]
        text = (
            f"{self._done} epochs; loss {losses.min():.4g} to {losses.max():.4g} in the last one."
        )
        trouble = self._trouble()
        accuracy = self._objective.has_accuracy
        return Training(
            status=Status(True, text) if trouble is None else trouble,
            num_products=0,
            seed=self._seeds[0],
            seeds=self._seeds,
            epochs_done=self._done,
            train_loss=history["train_loss"],
            train_accuracy=history["train_accuracy"] if accuracy else None,
            test_loss=history["test_loss"] if self._has_test else None,
            test_accuracy=history["test_accuracy"] if self._has_test and accuracy else None,
            learning_rates=torch.tensor(self._rates[: self._done], dtype=torch.float64),
            weights=self._stack.state_dicts(),
            seconds=self._seconds,
            device=_device_name(self._device),
            recipe=str(self._recipe),
        )

    def _make_key(self, models: Sequence[nn.Module], data: Data, test: Data | None) -> Key:
        """Describe the training by all that decides its result."""
        weights = [crc(t) for model in models for t in (*model.parameters(), *model.buffers())]
        fields = {f.name: getattr(self._recipe, f.name) for f in dataclasses.fields(Recipe)}
        loss = self._recipe.loss_object()
        return {
            "kind": "training",
            "recipe": {name: repr(value) for name, value in fields.items() if name != "loss"},
            "loss": [type(loss).__name__, *map(_plain, vars(loss).values())],
            "seeds": list(self._seeds),
            "data": [_summary(tensor) for tensor in data],
            "test": None if test is None else [_summary(tensor) for tensor in test],
            "evaluate_every": self._evaluate_every,
            "initial weights": weights,
        }


def _require_kinds(build: object, recipe: object, engine: object) -> None:
    if not callable(build) or isinstance(build, nn.Module):
        raise WrongTypeError(
            "`fit(build)` must be a function that makes the network of a seed; got "
            f"{type(build).__name__}. Write e.g. `lambda seed: nn.Linear(2, 1)`."
        )
    for value, kind, call in ((recipe, Recipe, "recipe"), (engine, Engine, "engine=...")):
        if not isinstance(value, kind):
            raise WrongTypeError(
                f"`fit({call})` must be {'an' if kind is Engine else 'a'} {kind.__name__}; got "
                f"{type(value).__name__}."
            )


def _require_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, int) or not seeds:
        raise WrongTypeError(f"`fit(seeds=...)` must be a tuple of integers; got {seeds!r}.")
    for seed in seeds:
        require_count(seed, "fit(seeds=...)", at_least=0)
    if len(set(seeds)) < len(seeds):
        raise InvalidArgumentError(f"`fit(seeds=...)` must all differ; got {tuple(seeds)}.")
    return tuple(seeds)


def _require_every(every: object) -> None:
    call = "fit(checkpoint_every=...)"
    if isinstance(every, int):
        require_count(every, call)
    elif isinstance(every, float) and every >= 0:
        return
    else:
        raise InvalidArgumentError(
            f"`{call}` must be a number of epochs (an integer) or of seconds (a float); got "
            f"{every!r}."
        )


def _require_last_batch(stack: Stack, inputs: Tensor, batch_size: int) -> None:
    """Refuse now what would fail at the end of the first epoch: BatchNorm on a single sample."""
    if len(inputs) % batch_size != 1:
        return
    try:
        _trial(stack, inputs[:1])
    except ValueError as error:
        raise InvalidArgumentError(
            f"`Recipe(batch_size={batch_size})` leaves one of {len(inputs)} samples for the last "
            f"batch, and the model cannot be trained on one ({error}). Take another batch size."
        ) from error


def _trial(stack: Stack, x: Tensor) -> tuple[Tensor, frozenset[str]]:
    """Make a step that leaves no trace: its outputs for one seed, and the unused parameters."""
    before = {name: tensor.clone() for name, tensor in stack.fixed.items()}
    results: list[tuple[Tensor, list[Tensor | None]]] = []

    def trial() -> None:
        inputs = x.expand(stack.size, *x.shape).contiguous()
        results.append(stack.gradients(inputs, lambda z, _: torch.ones_like(z)))

    try:
        choose_stacking(stack, trial)
    finally:
        for name, value in before.items():
            stack.fixed[name].copy_(value)
    outputs, grads = results[-1]
    every = 1 if stack.use_vmap else stack.size
    unused = [n for n, grad in zip(stack.names, grads[::every], strict=True) if grad is None]
    return outputs[0], frozenset(unused)


def _moved(pair: Data, device: torch.device, dtype: torch.dtype) -> Data:
    """Bring data to the device once, floating-point inputs in the dtype of the network."""
    inputs, targets = pair
    inputs = inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)
    targets = targets.to(device, dtype) if targets.is_floating_point() else targets.to(device)
    return inputs.contiguous(), targets.contiguous()


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise InvalidArgumentError(f"`fit(device=...)` is no device ({error}).") from error


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()})"


@contextmanager
def _own_random_numbers(device: torch.device) -> Iterator[None]:
    """Put PyTorch's random numbers back to where the user had them."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def _summary(tensor: Tensor) -> list[Any]:
    return [list(tensor.shape), str(tensor.dtype), crc(tensor)]


def _plain(value: object) -> Any:
    """Turn a field of a loss into something that JSON holds and that tells it from others."""
    if isinstance(value, Tensor):
        return _summary(value)
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return value
