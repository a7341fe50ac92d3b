"""Classification of a risk's examples by many networks at once.

Letters: K networks, B examples, C outputs; rows (K, P) are the networks' parameters.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from eigenscape.errors import EigenscapeWarning, UnsupportedModelError, require_count
from eigenscape.records import crc
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk

_EXAMPLES_AT_ONCE = 1024
# Below this share of distinct examples somebody is likely to have repeated them.
_FEWEST_DISTINCT = 0.9


class Task:
    """All examples of a risk on its device, with the error and the loss of networks on them.

    Attributes:
        inputs: (n, …).
        targets: Class numbers (n,), or 0 and 1 for a network with one output.
        num_examples: n, counted from what the data gave.
        is_binary: Whether the network has one output, whose sign decides.
    """

    def __init__(self, risk: EmpiricalRisk) -> None:
        """Collect the examples; refuse what is no classification of single examples.

        Args:
            risk: Model, loss and data.

        Raises:
            UnsupportedModelError: If the risk is another kind of problem.
        """
        self._risk = risk
        self.is_binary = isinstance(risk.loss, BinaryCrossEntropy)
        _require_plain(risk)
        batches = list(risk.batches)
        if any(len(b.args) != 1 or b.kwargs or not isinstance(b.target, Tensor) for b in batches):
            raise UnsupportedModelError(
                "A certificate needs examples of one input tensor and one target; these have "
                "others. Wrap the model so that it takes one tensor."
            )
        self.inputs = torch.cat([batch.args[0] for batch in batches])
        targets = torch.cat([batch.target for batch in batches])
        count = len(targets)
        if targets.numel() != count or (not self.is_binary and targets.is_floating_point()):
            raise UnsupportedModelError(
                "A certificate needs one class for each example; got targets "
                f"{tuple(targets.shape)} of {targets.dtype}."
            )
        self.targets = targets.reshape(count).long()
        if bool((self.targets < 0).any()) or not torch.equal(
            self.targets.to(targets), targets.reshape(count)
        ):
            raise UnsupportedModelError(
                "A certificate needs targets that are class numbers from 0 on; examples that are "
                "ignored, or labels between 0 and 1, have no error. Leave them out."
            )
        self.num_examples = require_count(count, "certify(risk)'s number of examples", at_least=2)
        self._warn_of_copies()

    def _warn_of_copies(self) -> None:
        # Equal examples have equal projections; that others do has probability 0.
        flat = self.inputs.reshape(self.num_examples, -1).double()
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(flat.shape[1] + 1, generator=generator, dtype=torch.float64)
        direction = direction.to(flat.device)
        distinct = len((flat @ direction[1:] + self.targets * direction[0]).unique())
        if distinct < _FEWEST_DISTINCT * self.num_examples:
            warnings.warn(
                f"Only {distinct:,} of {self.num_examples:,} examples are distinct. A certificate "
                "counts each as drawn independently: if data were repeated, for balance or by "
                "augmentation, it does not hold, and copies must be left out.",
                EigenscapeWarning,
                stacklevel=2,
            )

    def outputs(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return the outputs (K, B, C) of networks (K, P); inside `risk.evaluating()`.

        Args:
            rows: The networks.
            x: Inputs (B, …) of them all, or (K, B, …) where each has inputs of its own.

        Returns:
            The outputs.
        """
        space, constants = self._risk.space, self._risk.constants()
        per_network = x.ndim > self.inputs.ndim

        def one(params: dict[str, Tensor], x: Tensor) -> Any:
            return self._risk.call({**constants, **params}, (x,), {})

        if len(rows) == 1:
            # Squeezed, not indexed: the derivative of an index fills a tensor with zeros.
            single: Tensor = one(space.unflatten(rows.squeeze(0)), x[0] if per_network else x)
            return single.flatten(1).unsqueeze(0)
        sizes = [math.prod(space.shapes[name]) for name in space.names]
        chunks = dict(zip(space.names, rows.split(sizes, dim=1), strict=True))
        named = {name: chunk.view(-1, *space.shapes[name]) for name, chunk in chunks.items()}
        mapped: Callable[[dict[str, Tensor], Tensor], Tensor] = vmap(
            one, in_dims=(0, 0 if per_network else None), randomness="error"
        )
        return mapped(named, x).flatten(2)

    def wrong(self, z: Tensor, y: Tensor) -> Tensor:
        """Return which outputs (K, B, C) name another class than y: Wu (59), corrected."""
        answers = (z[..., 0] > 0.0).long() if self.is_binary else z.argmax(-1)
        return answers != y

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the mean surrogate loss of each network (K,).

        In bits where there are two classes, so that it bounds the error, and in nats otherwise, as
        in the authors' code.
        """
        if self.is_binary:
            each = F.softplus(z[..., 0] * (1.0 - 2.0 * y))
        else:
            labels = y.expand(z.shape[:2]).reshape(-1)
            each = F.cross_entropy(z.flatten(0, 1), labels, reduction="none").view(z.shape[:2])
        return each.mean(1) / (math.log(2.0) if z.shape[-1] <= 2 else 1.0)

    @torch.no_grad()
    def errors(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the error of networks (K, P), (K,) float64 on the device.

        Args:
            rows: The networks; rounded to the model's dtype.
            index: Numbers (K, B) of the examples that each is judged on; by default all are.

        Returns:
            The share of these examples that are put into a wrong class.
        """
        rows = rows.to(self._risk.device, self._risk.dtype)
        count = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        with self._risk.evaluating():
            for x, y in self._pieces(index):
                count += self.wrong(self.outputs(rows, x), y).sum(1)
        return count.double() / (self.num_examples if index is None else index.shape[1])

    def _pieces(self, index: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets, some at a time: (B, …) of all, or (K, B, …) by `index`."""
        if index is None:
            chunks = (t.split(_EXAMPLES_AT_ONCE) for t in (self.inputs, self.targets))
            yield from zip(*chunks, strict=True)
            return
        for chunk in index.split(_EXAMPLES_AT_ONCE, dim=1):
            yield self.inputs[chunk], self.targets[chunk]

    def constant_error(self) -> float:
        """Return the error of always naming the largest class."""
        return 1.0 - float(self.targets.bincount().max()) / self.num_examples

    def checksum(self) -> int:
        """Return a checksum of the examples."""
        return (crc(self.inputs) << 32) ^ crc(self.targets)

    def constants_checksum(self) -> int:
        """Return a checksum of everything in the model that is not drawn."""
        total = 0
        for _, tensor in sorted(self._risk.constants().items()):
            if tensor.is_floating_point():
                total = (total * 31 + crc(tensor)) % 2**61
        return total


def working_risk(risk: EmpiricalRisk) -> EmpiricalRisk:
    """Return the same risk with parameters of its own, which may be changed.

    Args:
        risk: A risk that passes as a `Task`.

    Returns:
        The copy.
    """
    task = Task(risk)
    data = (task.inputs, torch.cat([batch.target for batch in risk.batches]))
    if risk.module is not None:
        model = copy.deepcopy(risk.module)
        return EmpiricalRisk(model, risk.loss, data, params=list(risk.space.names))

    def model_of(params: dict[str, Tensor], x: Tensor) -> Any:
        return risk.call({**risk.constants(), **params}, (x,), {})

    params = {name: tensor.clone() for name, tensor in risk.parameters().items()}
    return EmpiricalRisk(model_of, risk.loss, data, params=params)


def _require_plain(risk: EmpiricalRisk) -> None:
    loss = risk.loss
    plain = isinstance(loss, BinaryCrossEntropy) and loss.positive_weight is None
    if isinstance(loss, CrossEntropy):
        plain = loss.class_weights is None and not loss.label_smoothing and not loss.next_token
    if not plain:
        raise UnsupportedModelError(
            "A certificate is about classification: the loss must be CrossEntropy() or "
            f"BinaryCrossEntropy() without weights or smoothing; got {type(loss).__name__}."
        )
    if risk.ranks.size > 1:
        raise UnsupportedModelError("A certificate is computed in one process; ranks share a risk.")
