"""The networks of a study: which architecture, on what data, trained how, from which seeds."""

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, require_choice
from eigenscape.records import crc, digest
from eigenscape.risk import Batch, explained
from eigenscape_papers import datasets as data_room
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.ensemble import Recipe
from eigenscape_papers.networks import build

LABELS = ("true", "random")
# Of these many samples the outputs tell networks apart, to this share of the largest.
_FEW, _STEP = 8, 1e-6


@dataclass(frozen=True)
class Own:
    """A user's own network and data.

    Attributes:
        build: Makes the network of a seed. PyTorch's random numbers are seeded with it before.
        data: Inputs and targets, for training.
        test: Others, to evaluate on; None for none.
    """

    build: Callable[[int], nn.Module]
    data: DataSet
    test: DataSet | None = None

    def network(self, seed: int) -> nn.Module:
        """Return the untrained network of a seed, the same at every call and nobody else's."""
        # As `fit` does it, so that the weights at epoch 0 are those that it started from.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return copy.deepcopy(self.build(seed))  # a file may hold one network ready made

    def fingerprint(self) -> str:
        """Return what tells it from another of the same name.

        Its data; its first weights with their names and shapes; its modules and the code of their
        classes; and what it makes of a few samples. Weights alone would not tell two networks of
        the same shapes apart whose activations differ.

        Cost: two forward passes of a few samples, in float64 on the CPU.

        Raises:
            UnsupportedModelError: If the network cannot run them.
        """
        sets = [self.data] if self.test is None else [self.data, self.test]
        pairs = [tensor for data_set in sets for tensor in (data_set.inputs, data_set.targets)]
        network = self.network(0)
        weights = network.state_dict()
        fixed = [name for name, weight in network.named_parameters() if not weight.requires_grad]
        return "-".join(
            [
                *(f"{crc(tensor):08x}" for tensor in (*pairs, *weights.values())),
                *(f"{name} {tuple(tensor.shape)}" for name, tensor in weights.items()),
                *fixed,
                # Where an object lies in memory says nothing of it, and differs every time.
                re.sub(r" at 0x[0-9a-fA-F]+", "", repr(network)),
                *_code(network),
                *_outputs(network, self.data.inputs[:_FEW]),
            ]
        )


def _code(network: nn.Module) -> list[str]:
    """Return the source of the classes of its modules, as far as they are a user's own."""
    sources = []
    for kind in dict.fromkeys(type(module) for module in network.modules()):
        if kind.__module__.partition(".")[0] not in ("torch", "eigenscape"):
            try:
                sources.append(inspect.getsource(kind))
            except (OSError, TypeError):  # typed in, not written in a file
                sources.append(kind.__qualname__)
    return sources


def _outputs(network: nn.Module, inputs: Tensor) -> list[str]:
    """Return checksums of what a network makes of inputs, in eval mode and in train mode.

    In float64 and rounded, so that they do not depend on the number of threads or the processor.
    """
    network, inputs = network.to("cpu", torch.float64), inputs.cpu()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    batch = Batch((inputs,), {}, None, len(inputs))
    outputs = []
    for is_training in (False, True):
        network.train(is_training)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), explained(batch):
            torch.manual_seed(0)
            output = network(inputs)
        if not isinstance(output, Tensor):
            outputs.append(type(output).__name__)  # training says what is wrong with it
            continue
        values = output.double().nan_to_num()
        size = float(values.abs().max()) if values.numel() else 0.0
        steps = (values / (_STEP * (size or 1.0))).round().long()
        outputs.append(f"{tuple(values.shape)} {size:.5g} {crc(steps):08x}")
    return outputs


@dataclass(frozen=True)
class Cast:
    """Networks of one architecture, one for each seed.

    Attributes:
        model: Name for `models.build`, or what the user calls their own.
        data: Name for `data.load`.
        recipe: How they are trained.
        seeds: One network each.
        samples: Take so many samples; all by default.
        labels: "true", or "random" for labels drawn anew.
        init: Rule for the initial weights.
        normalise: Of the pixels.
        keep_epochs: Epochs after which weights are kept beside the last.
        rates: Learning rates to choose from, in place of the recipe's. Each is tried with the first
            seed for a tenth of the epochs, and the one that then has the best test accuracy is
            used; by training loss where there are no test data or no classes.
        own: A user's own network in place of a built-in one.
    """

    model: str
    data: str
    recipe: Recipe = field(default_factory=Recipe)
    seeds: tuple[int, ...] = (0,)
    samples: int | None = None
    labels: str = "true"
    init: str = "xavier"
    normalise: str = "standard"
    keep_epochs: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    own: Own | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse labels of another kind, which would otherwise count as true ones."""
        require_choice(self.labels, LABELS, "Cast(labels=...)")

    @property
    def label(self) -> str:
        """What figures call it."""
        labels = ", random labels" if self.labels == "random" else ""
        pixels = f", {self.normalise}" if self.normalise != "standard" else ""
        return f"{self.model} ({self.data}{pixels}{labels})"

    def label_among(self, others: Iterable["Cast"]) -> str:
        """Return the label, with those settings in which other casts of the same label differ.

        Args:
            others: The casts of a study; itself may be one of them.

        Returns:
            A label that none of them shares, unless they differ in seeds alone.

        Examples:
            >>> from eigenscape_papers.ensemble import SGD, Recipe
            >>> slow = Cast("F-8", "digits", Recipe(optimizer=SGD(0.001)))
            >>> fast = Cast("F-8", "digits", Recipe(optimizer=SGD(0.1, momentum=0.9)))
            >>> slow.label_among([slow, fast]), fast.label_among([slow, fast])
            ('F-8 (digits, learning rate 0.001)', 'F-8 (digits, learning rate 0.1, momentum 0.9)')
            >>> slow.label_among([slow])
            'F-8 (digits)'
        """
        mine = self._details()
        theirs = [other._details() for other in others if other.label == self.label]
        words = [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in mine.items()
            if value and any(other.get(name) != value for other in theirs)
        ]
        return f"{self.label[:-1]}{''.join(f', {word}' for word in words)})"

    def _details(self) -> dict[str, Any]:
        """Return the settings that the label leaves out, by the words for them."""
        recipe = self.recipe
        details = {"samples": self.samples, "init": self.init, "epochs": recipe.epochs}
        details |= {"batch size": recipe.batch_size, "by": type(recipe.optimizer).__name__}
        settings = vars(recipe.optimizer).items()
        return details | {name.replace("_", " "): value for name, value in settings}

    @cached_property  # of one's own network it takes a look at all data
    def key(self) -> str:
        """A folder's name that no other cast has."""
        plain = re.sub(r"[^a-z0-9]+", "-", f"{self.model}-{self.data}".lower()).strip("-")
        what = self.settings() | {"own": self.own and self.own.fingerprint()}
        return f"{plain}-{digest(what)}"

    def settings(self) -> dict[str, Any]:
        """Return what was trained, in plain values."""
        settings: dict[str, Any] = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("recipe", "own", "rates")
        }
        if self.rates:
            settings["rates"] = list(self.rates)
        return settings | {
            "seeds": list(self.seeds),
            "keep_epochs": list(self.keep_epochs),
            "recipe": str(self.recipe),
        }

    def with_rate(self, rate: float) -> Recipe:
        """Return the recipe with one of the rates.

        Args:
            rate: Which.

        Returns:
            The recipe.
        """
        optimizer = dataclasses.replace(self.recipe.optimizer, learning_rate=rate)
        return dataclasses.replace(self.recipe, optimizer=optimizer)

    def load(self, *, split: str = "train", folder: str | None = None) -> DataSet:
        """Load the data.

        Args:
            split: "train" or "test".
            folder: Where files of data sets are.

        Returns:
            The data set, with random labels if so asked.

        Raises:
            InvalidArgumentError: If test data of a user's own are asked for; there are none.
        """
        if self.own is not None:
            given_data = self.own.data if split == "train" else self.own.test
            if given_data is None:
                raise InvalidArgumentError(
                    f"`Cast.load(split={split!r})`: own data are training data; there are no "
                    "other. Give `Own(test=...)`, or `--test-data` on the command line."
                )
            data = given_data
        else:
            images = data_room.describe(self.data).input_shape
            options = {"normalise": self.normalise} if len(images) == 3 else {}
            data = data_room.load(self.data, split=split, folder=folder, **options)
        if self.samples is not None and split == "train":
            data = data.take(min(self.samples, data.num_samples))
        return data.random_labels() if self.labels == "random" else data

    def build(self, seed: int, data: DataSet) -> nn.Module:
        """Build the untrained network of a seed.

        Args:
            seed: The seed.
            data: Gives the shape of inputs and the number of classes.

        Returns:
            The network.
        """
        if self.own is not None:
            return self.own.network(seed)
        return build(
            self.model,
            input_shape=data.input_shape,
            num_classes=data.num_classes or 0,
            seed=seed,
            init=self.init,
        )
