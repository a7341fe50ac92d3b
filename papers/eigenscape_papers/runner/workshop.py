"""Where studies work: networks are trained once, and layers measured once.

Networks lie in `networks/<cast>/seed-0/epoch-0010.safetensors`. Studies that ask for the same cast
share them, and a training that was killed continues. What was measured of a cast may be kept too,
so that a study can be put together from several runs, whose networks are long gone.
"""

import dataclasses
import json
import math
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from eigenscape.errors import ConvergenceWarning, FileError, RunError
from eigenscape.records import (
    ProgressCallback,
    digest,
    pack,
    read_tensors,
    tensor_text,
    text_tensor,
    unpack,
    write_bytes,
    write_tensors,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.ensemble import Engine, fit
from eigenscape_papers.runner.cast import Cast
from eigenscape_papers.runner.portrait import (
    Portrait,
    matrix_layers,
    pairs_around_outputs,
    take_portrait,
)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Trained:
    """How far the training of a cast came; of networks that are elsewhere, all that is known.

    Attributes:
        cast: Which.
        train_loss: Of each seed at the end.
        train_accuracy: Likewise; None where the cast has no classes.
        device: Where they were measured.
    """

    cast: Cast
    train_loss: tuple[float, ...]
    train_accuracy: tuple[float, ...] | None
    device: str


@dataclass(frozen=True, eq=False)
class Networks:
    """A cast, trained.

    Attributes:
        cast: Which.
        folder: Where the weights are.
        data: The training data, in the dtype on the device.
        device: The device.
        dtype: What curvature is computed in.
        train_loss: Of each seed at the end.
        train_accuracy: Likewise; None where the cast has no classes.
        test_accuracy: Likewise; None without test data.
        learning_rate: The one that was chosen; None where the recipe has it.
    """

    cast: Cast
    folder: Path
    data: DataSet
    device: torch.device
    dtype: torch.dtype
    train_loss: tuple[float, ...]
    train_accuracy: tuple[float, ...] | None
    test_accuracy: tuple[float, ...] | None
    learning_rate: float | None = None

    @property
    def last(self) -> int:
        """The last epoch."""
        return self.cast.recipe.epochs

    def model(self, seed: int, epoch: int | None = None) -> nn.Module:
        """Return the network of a seed after an epoch, in the dtype and eval mode.

        Args:
            seed: One of the cast's.
            epoch: 0 for the initial weights, or one that was kept; the last by default.

        Returns:
            The network.

        Raises:
            RunError: If weights of that seed or epoch were not kept, or are gone or damaged.
        """
        epoch = self.last if epoch is None else epoch
        what = f"Weights of {self.cast.label}, seed {seed}, epoch {epoch}"
        kept = (0, *self.cast.keep_epochs, self.last)
        if seed not in self.cast.seeds or epoch not in kept:
            raise RunError(
                f"{what} were not kept; there are seeds {list(self.cast.seeds)} and epochs "
                f"{sorted(set(kept))}. Add to `Cast(seeds=..., keep_epochs=...)`."
            )
        network = self.cast.build(seed, self.data)
        if epoch > 0:
            path = self.folder / f"seed-{seed}" / f"epoch-{epoch:04d}.safetensors"
            try:
                network.load_state_dict(read_tensors(path))
            except (FileError, RuntimeError) as error:  # torch's own, for shapes that do not fit
                raise RunError(
                    f"{what} cannot be read: {error} Take the folder '{self.folder}' away, and "
                    "the networks are trained again."
                ) from error
        return network.to(self.device, self.dtype).eval()

    def risk(self, seed: int, epoch: int | None = None) -> EmpiricalRisk:
        """Return the cross-entropy of a network on the training data.

        Args:
            seed: As for `model`.
            epoch: As for `model`.

        Returns:
            The risk.
        """
        return EmpiricalRisk(self.model(seed, epoch), CrossEntropy(), self.data)


@dataclass(eq=False)
class Workshop:
    """What studies share.

    Attributes:
        folder: Where networks are kept.
        device: Where everything runs.
        data_dir: Where files of data sets are; None for the usual places.
        progress: Told how far a training is, or the eigenpairs of a layer.
        dtype: What curvature is computed in; trainings are in float32.
        asked: The networks that were asked for, by the key of their cast.
        parts: Where to keep what is measured of casts, and to find it; None for nowhere. What is
            found there is not measured again, also where the code has changed since.
    """

    folder: Path
    device: torch.device
    data_dir: str | None = None
    progress: ProgressCallback | None = None
    dtype: torch.dtype = torch.float64
    asked: dict[str, Networks | Trained] = field(default_factory=dict)
    parts: Path | None = None
    # Shared by workshops of another dtype, whose networks are others.
    _networks: dict[tuple[str, torch.dtype], Networks] = field(default_factory=dict)
    _portraits: dict[tuple[str, torch.dtype, int, int, str], Portrait] = field(default_factory=dict)

    def networks(self, cast: Cast) -> Networks:
        """Train a cast, or find it trained.

        Args:
            cast: Which networks.

        Returns:
            They and their data.
        """
        known = cast.key, self.dtype
        if known not in self._networks:
            self._networks[known] = self._made(cast)
        self.asked[cast.key] = networks = self._networks[known]
        return networks

    def part(
        self,
        study: str,
        casts: Sequence[Cast],
        options: Mapping[str, Any],
        measure: Callable[[], T],
    ) -> T:
        """Measure something of some casts, or find it where parts are kept.

        Args:
            study: Name of what is measured.
            casts: Of which networks.
            options: What else decides over it.
            measure: Does it. Returns records, storable classes, numbers, and tuples of such.

        Returns:
            What it returned, now or then; what did not converge is told again.
        """
        path = self.part_file(study, casts, options)
        if path is None:
            return measure()
        if path.is_file():
            tensors = read_tensors(path)
            kept = unpack(json.loads(tensor_text(tensors.pop("plain"))), tensors)
            for cast, (loss, accuracy) in zip(casts, kept["endings"], strict=True):
                # Those that something is measured of now stay what they are.
                self.asked.setdefault(cast.key, Trained(cast, loss, accuracy, kept["device"]))
            for doubt in kept["doubts"]:
                warnings.warn(doubt, ConvergenceWarning, stacklevel=2)
            again: T = kept["found"]
            return again
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            result = measure()
        doubts = told_again(caught)
        asked = [self.asked[cast.key] for cast in casts]
        endings = [(each.train_loss, each.train_accuracy) for each in asked]
        plain, tensors = pack(
            {
                "found": result,
                "endings": endings,
                "doubts": doubts,
                "device": device_name(self.device),
            }
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {**tensors, "plain": text_tensor(json.dumps(plain))})
        return result

    def part_file(
        self, study: str, casts: Sequence[Cast], options: Mapping[str, Any]
    ) -> Path | None:
        """Return where `part` keeps something; None where nothing is kept."""
        if self.parts is None:
            return None
        deciding = [[cast.key for cast in casts], dict(options), str(self.dtype)]
        return self.parts / study / f"{casts[0].key}-{digest(deciding)}.safetensors"

    def portrait(
        self,
        networks: Networks,
        seed: int,
        layer: str,
        *,
        num_pairs: int,
        epoch: int | None = None,
    ) -> Portrait:
        """Measure one layer of one network, or remember it.

        Args:
            networks: Whose.
            seed: Which of them.
            layer: The layer's name.
            num_pairs: Eigenpairs that are wanted; all where the layer has fewer.
            epoch: As for `Networks.model`.

        Returns:
            The portrait.
        """
        at = networks.last if epoch is None else epoch
        key = (networks.cast.key, networks.dtype, seed, at, layer)
        known = self._portraits.get(key)
        if known is None or len(known.values) < min(num_pairs, known.num_parameters):
            task = f"{layer} of {networks.cast.label}, seed {seed}"
            risk = networks.risk(seed, at)
            known = take_portrait(risk, layer, num_pairs, self._telling(task))
            self._portraits[key] = known
        else:
            known.pairs.status.warn()  # to those who come later too
        # No more than asked for, so that a result does not depend on who asked before.
        return dataclasses.replace(known, pairs=known.pairs[:num_pairs])

    def portraits(
        self, casts: Sequence[Cast], num_pairs: int
    ) -> Iterator[tuple[str, list[Portrait]]]:
        """Measure every layer of all networks of some casts of one architecture.

        Args:
            casts: Which networks.
            num_pairs: Eigenpairs of each layer; of a user's own network as many more as it takes
                to see beyond the number of outputs.

        Yields:
            The layer's name, and its portraits.
        """
        risk = self.networks(casts[0]).risk(casts[0].seeds[0])
        for layer in matrix_layers(risk):
            count = num_pairs
            if casts[0].own is not None:  # of the paper's networks it is known to be enough
                count = pairs_around_outputs(risk, layer, count)
            yield (
                layer,
                [
                    self.portrait(self.networks(cast), seed, layer, num_pairs=count)
                    for cast in casts
                    for seed in cast.seeds
                ],
            )

    def _telling(self, task: str) -> ProgressCallback | None:
        """Return a callback that says what is measured instead of by which function."""
        if self.progress is None:
            return None
        tell = self.progress
        return lambda step: tell(dataclasses.replace(step, task=task))

    def forget(self) -> None:
        """Drop the portraits, which hold eigenvectors."""
        self._portraits.clear()

    def _made(self, cast: Cast) -> Networks:
        folder = self.folder / "networks" / cast.key
        data = cast.load(folder=self.data_dir)
        done = folder / "cast.json"
        if not done.is_file():
            self._train(cast, data, folder)
        facts = json.loads(done.read_text(encoding="utf-8"))
        return Networks(
            cast=cast,
            folder=folder,
            data=data.to(self.device, self.dtype),
            device=self.device,
            dtype=self.dtype,
            train_loss=tuple(facts["train_loss"]),
            train_accuracy=facts["train_accuracy"] and tuple(facts["train_accuracy"]),
            test_accuracy=facts["test_accuracy"] and tuple(facts["test_accuracy"]),
            learning_rate=facts.get("learning_rate"),
        )

    def _train(self, cast: Cast, data: DataSet, folder: Path) -> None:
        has_test = cast.own is None or cast.own.test is not None
        test = cast.load(split="test", folder=self.data_dir) if has_test else None
        rate = self._best_rate(cast, data, test, folder) if cast.rates else None
        training = fit(
            lambda seed: cast.build(seed, data),
            data,
            cast.recipe if rate is None else cast.with_rate(rate),
            seeds=cast.seeds,
            test=test,
            evaluate_every=max(1, cast.recipe.epochs // 20),
            keep_epochs=cast.keep_epochs,
            keep=folder,
            checkpoint=folder / "checkpoint",
            engine=self._engine(cast),
            device=self.device,
            progress=self.progress,
        )
        training.require_converged()
        facts = {
            "settings": cast.settings(),
            "device": training.device,
            "seconds": training.seconds,
            "train_loss": training.train_loss[-1].tolist(),
            "train_accuracy": _last(training.train_accuracy),
            "test_accuracy": _last(training.test_accuracy),
            "learning_rate": rate,
        }
        # Last, so that weights without it are those of an unfinished training.
        write_bytes(folder / "cast.json", (json.dumps(facts, indent=1) + "\n").encode())
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)

    def _engine(self, cast: Cast) -> Engine:
        # Our own models call no `view` that would stumble over it.
        return Engine(channels_last=cast.own is None and self.device.type == "cuda")

    def _best_rate(self, cast: Cast, data: DataSet, test: DataSet | None, folder: Path) -> float:
        """Try the rates for a tenth of the epochs, and keep which was best."""
        chosen = folder / "rate.json"
        if not chosen.is_file():
            epochs = max(1, cast.recipe.epochs // 10)
            merits: dict[float, float] = {}
            for rate in cast.rates:
                tried = fit(
                    lambda seed: cast.build(seed, data),
                    data,
                    dataclasses.replace(cast.with_rate(rate), epochs=epochs),
                    seeds=cast.seeds[:1],
                    test=test,
                    evaluate_every=epochs,
                    engine=self._engine(cast),
                    device=self.device,
                    progress=self.progress,
                )
                accuracy = _last(tried.test_accuracy)
                merit = accuracy[0] if accuracy else -float(tried.train_loss[-1, 0])
                merits[rate] = merit if math.isfinite(merit) else -math.inf
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(chosen, json.dumps(max(merits, key=lambda rate: merits[rate])).encode())
        return float(json.loads(chosen.read_text()))


def told_again(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """Issue again, once each, what was held back; return what did not converge."""
    by_text = {str(one.message): one for one in caught}
    for one in by_text.values():
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return [text for text, one in by_text.items() if issubclass(one.category, ConvergenceWarning)]


def counted(devices: Iterable[str]) -> str:
    """Say how many were made on which device."""
    return ", ".join(f"{count} on {name}" for name, count in sorted(Counter(devices).items()))


def device_name(device: torch.device) -> str:
    """Return what a record says of where it was made."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _last(history: torch.Tensor | None) -> list[float] | None:
    return None if history is None else [float(value) for value in history[-1]]
