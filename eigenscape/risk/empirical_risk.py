"""The function whose curvature is studied: a model, a loss, parameters and data.

This is the only module that touches the user's objects. It evaluates the user's own model, with its
own parameter objects, in a fixed mode; it gives the model back as it came, `.grad`, flags, buffers
and attributes too; it sums loss terms over batches in float64 and divides once by their number.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.device import full_precision
from eigenscape.errors import NonFiniteError, ShapeError, require_choice
from eigenscape.parallel import Ranks
from eigenscape.risk import first_look
from eigenscape.risk.as_loss import as_loss
from eigenscape.risk.batch import Batch, explained, inputs_kept
from eigenscape.risk.batches import BatchSource
from eigenscape.risk.borrowed import state_of
from eigenscape.risk.changes import Snapshot
from eigenscape.risk.evaluation import derivatives_explained, evaluation
from eigenscape.risk.guard import Guard
from eigenscape.risk.leaves import Params, flat_gradient, is_leaf, leaf_copies
from eigenscape.risk.loss_choice import LossChoice, choose
from eigenscape.risk.losses import Loss
from eigenscape.risk.model_loss import read
from eigenscape.risk.parameters import (
    checked_autocast,
    common_kind,
    select_parameters,
    uncompiled,
    without_padding,
)
from eigenscape.space import ParamSpace

_KEEP_DATA_BYTES = 2 * 2**30


class EmpiricalRisk:
    """Mean (or sum) of a loss over data, as a function of a model's parameters.

    The parameters are read live: after a training step the same risk describes the new point.

    Attributes:
        module: The model if it is an `nn.Module`, else None.
        num_terms: Number of loss terms over all data (total weight, where terms are weighted).
        num_samples: Number of samples over all data; `num_own_samples` are those of this process.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False).double()
        >>> with torch.no_grad(): _ = model.weight.fill_(2.0)
        >>> x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
        >>> from eigenscape.risk.losses import SquaredError
        >>> risk = EmpiricalRisk(model, SquaredError(), (x, torch.zeros_like(x)))
        >>> risk.value(), risk.gradient().tolist()          # ½·mean (2x)², its derivative mean 2x²
        (10.0, [10.0])
    """

    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        loss: Loss | nn.Module | Callable[..., Any],
        data: object,
        *,
        params: str | Sequence[str] | Mapping[str, Tensor] | None = None,
        batch_size: int | None = None,
        sample_dim: int | None = 0,
        mode: str = "eval",
        reduction: str = "mean",
        check_deterministic: bool = True,
        self_test: bool = True,
        detached: str = "refuse",
        autocast: torch.dtype | None = None,
        keep_data_bytes: int = _KEEP_DATA_BYTES,
        ranks: Ranks | None = None,
    ) -> None:
        """Look at model, loss and data, and probe that the loss is a function of the parameters.

        Args:
            model: An `nn.Module`, or a pure function `f(params, *inputs)` of a dict of tensors.
            loss: `CrossEntropy()`, `SquaredError()`, `BinaryCrossEntropy()`, their PyTorch
                counterparts, any function of (output, target), or `ModelLoss()`, the loss that the
                model returns; see `losses`, and `loss_choice` for what they leave open.
            data: Tensors (inputs, target), a Dataset, a DataLoader or a list of batches; see
                `batches`. Loaders are read once and kept where they fit `keep_data_bytes`.
            params: For a module, names or patterns of the parameters to differentiate (all with
                `requires_grad` by default; the rest are constants). For a function, its parameters.
            batch_size: Most samples to process at a time. It changes memory and speed, no answer:
                where the loss depends on how samples are grouped, it is refused. By default the
                activations of a batch stay within a processor's cache, or within a gigabyte on a
                GPU; batches of a loader are taken as they come.
            sample_dim: The dimension of the inputs that counts samples: 1 for recurrent layers
                without `batch_first`, None where samples see each other, so that data that came at
                once stay one batch.
            mode: "eval" evaluates with dropout off and BatchNorm frozen, whatever the model's flags
                are now; "keep" leaves every module in the mode it is in.
            reduction: "mean" divides by the number of loss terms, "sum" does not divide.
            check_deterministic: Evaluate twice and refuse if the two disagree.
            self_test: Before the first product of each matrix, compare derivatives with differences
                of the function itself, on a few samples; see `selftest`.
            detached: "refuse" a function in which autograd does not see all that depends on the
                parameters (`detach()`, `no_grad`); "constant" takes such values for constants on
                purpose, as stop-gradients are meant.
            autocast: `torch.bfloat16` evaluates a float32 model, and with it all its derivatives,
                under `torch.autocast`. Logits are brought back to float32; loss and sums stay as
                they are. Products are then noisy; see `noise_floor`.
            keep_data_bytes: Most device memory for batches read from a loader.
            ranks: Processes to share the work with, from `distributed.join`. Each is given the same
                model and the same data, takes its share of them, and gets the answers for all.

        Raises:
            EigenscapeError: One of its kinds, if model, loss, data or parameters cannot be used.
        """
        model = uncompiled(model)
        self.module = model if isinstance(model, nn.Module) else None
        self._model = model
        self.loss = as_loss(loss, reduction)
        self.mode = require_choice(mode, ("eval", "keep"), "EmpiricalRisk(mode=...)")
        self.reduction = require_choice(reduction, ("mean", "sum"), "EmpiricalRisk(reduction=...)")
        self.detached = require_choice(
            detached, ("refuse", "constant"), "EmpiricalRisk(detached=...)"
        )
        self.wants_self_test = bool(self_test)
        self._all = self._selected = select_parameters(model, params)
        self.dtype, self.device = common_kind(self._selected)
        self.autocast = checked_autocast(autocast, self.dtype)
        self.space = ParamSpace.of(self._selected)
        self.ranks = ranks or Ranks()
        self._cutting = batch_size, sample_dim, keep_data_bytes
        self._guard = Guard((self._model, self.loss))
        self.precision = self.autocast or self.dtype
        self.needs_grad_mode = self.takes_mapping = self.samples_interact = False
        self._snapshots: list[Snapshot] = []  # at most one: a list is shared by restricted risks
        self.verdicts: dict[object, Any] = {}
        self.whole = self
        self.loss_choice: LossChoice | None = None
        self._take(data, check_deterministic)

    def _take(self, data: object, check_deterministic: bool) -> None:
        """Look at the data, cut them into batches, and probe the loss on them."""
        batch_size, sample_dim, keep_bytes = self._cutting
        with self.ranks.together():
            self.batches = BatchSource(
                data,
                batch_size=batch_size,
                sample_dim=sample_dim,
                device=self.device,
                dtype=self.dtype,
                keep_bytes=keep_bytes,
                ranks=self.ranks,
            )
        self.batches.keep()
        first_look.find_calling(self)
        self.loss_choice = self.loss_choice or choose(self, self.loss)
        self.loss = self.loss_choice.loss
        if self.loss_choice.keyword is not None:
            self.batches.give_labels(self.loss_choice.keyword)
        if self.batches.may_resize:
            leaves = leaf_copies(self.parameters())
            constants = [*leaves.values(), *self.constants().values()]
            with torch.enable_grad(), self.evaluating():
                limit = self.batches.samples_at_once(lambda b: self.total(leaves, b), constants)
            self.batches.resize(limit)
        # Its own samples are those of this process: all, unless ranks share them.
        self.num_terms, self.num_own_samples = first_look.probe(self, check_deterministic)
        self.num_samples = int(self.ranks.sum(torch.tensor([self.num_own_samples])))

    @property
    def divisor(self) -> float:
        """What sums over all data are divided by: the number of terms, or 1."""
        return self.num_terms if self.reduction == "mean" else 1.0

    def parameters(self) -> Params:
        """Return the selected parameters as they are now, detached, in the order of the space.

        Returns:
            Tensors that share memory with the model's.

        Raises:
            ShapeError: If the model was converted, moved or rebuilt since the risk was made.
        """
        live = self.own_parameters()
        chosen = {name: live[name].detach() for name in self._selected}
        for name, tensor in chosen.items():
            shape = self.space.shapes[name]
            if (tensor.dtype, tensor.device, tensor.shape) != (self.dtype, self.device, shape):
                raise ShapeError(
                    f"'{name}' is now {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; the "
                    f"risk was made for {self.dtype} {shape} on {self.device}. Make a new "
                    "`EmpiricalRisk` after converting or moving the model."
                )
        return chosen

    def leaves(self) -> Params:
        """Return what to differentiate by: the user's own parameters; call it in `evaluating()`.

        So whatever reaches them is differentiated, also a loss that captured them. Copies that
        share their memory stand in for parameters that have gradient hooks, or cannot be leaves.
        """
        detached, live = self.parameters(), self.own_parameters()
        return {
            name: live[name] if is_leaf(live[name]) else leaf
            for name, leaf in leaf_copies(detached).items()
        }

    def own_parameters(self) -> Params:
        """Return the model's parameter objects as they are now, all of them."""
        return self._all | dict(() if self.module is None else self.module.named_parameters())

    def without_padding(self, rows: Tensor) -> Tensor:
        """Set to zero in rows (k, n) what belongs to padding, which PyTorch gives no gradient."""
        if self.module is None:
            return rows
        return without_padding(rows, self.module, self.space, self.own_parameters())

    def snapshot(self) -> Snapshot:
        """Remember model, loss and data as they are now; what is kept holds until they change.

        Where something beside the weights changed, the terms are counted anew.

        Returns:
            The last snapshot if nothing changed since, else a new one.
        """
        last = self._snapshots[-1] if self._snapshots else None
        if last is not None:
            if last.is_another_function():
                self._guard.find_modules()
                first_look.count_again(self)
                self.verdicts.clear()
            elif not last.is_counted_as_changed() and not bool(last.differs(self.device)):
                return last
        # Modes that are set here do not matter.
        ignored = ("training",) if self.mode == "eval" else ()
        data = self.batches.tensors_of_others
        self._snapshots[:] = [self._guard.snapshot(self.state(), data, ignored)]
        return self._snapshots[-1]

    def state(self) -> list[Tensor]:
        """Return the tensors of the model: parameters, buffers, and those kept as attributes."""
        return list(self._all.values()) if self.module is None else state_of([self.module])

    def places(self) -> tuple[int, ...]:
        """Return where the model's tensors are, to know when one takes another's place."""
        return tuple(t.data_ptr() for t in self.state() if t.layout is torch.strided)

    def restricted(self, names: Sequence[str]) -> "EmpiricalRisk":
        """Return the same risk as a function of some of its parameters, the rest held fixed.

        Args:
            names: Tensor names, layer names or patterns; see `ParamSpace.block`.

        Returns:
            A risk that shares model, loss and data with this one.
        """
        space = self.space.restrict(self.space.block(*names))
        other = copy.copy(self)
        other._selected = {name: self._selected[name] for name in space.names}
        other.space = space
        return other

    def on(self, data: object) -> "EmpiricalRisk":
        """Return the same risk of other data, as a function of the same parameters."""
        other = copy.copy(self)
        other.whole, other._snapshots, other.verdicts = other, [], {}
        other._guard = copy.copy(self._guard)
        other._take(data, check_deterministic=False)
        return other

    def output(self, params: Params, batch: Batch) -> Any:
        """Return what the loss takes of what the model returns: all, logits, or its own loss.

        Call it inside `evaluating()`, with values for the selected parameters.
        """
        return self.call(params, batch.args, batch.kwargs)

    def returned(self, params: Params, batch: Batch) -> Any:
        """Return what the model returns, whatever the loss takes of it; inside `evaluating()`."""
        with self.inside(params):
            return self._evaluate(params, batch.args, batch.kwargs)

    def call(self, state: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the same, with some of the model's tensors given by name, and its inputs."""
        with self.inside(state):
            return self._run(state, args, kwargs)

    def total(self, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of a batch's loss terms and their number; inside `evaluating()`."""
        return self.output_and_total(params, batch)[1:]

    def output_and_total(
        self, params: Params, batch: Batch, *, detached: bool = False
    ) -> tuple[Any, Tensor, Tensor]:
        """Return what the loss is taken of, the sum of its terms, and their number.

        The loss is evaluated where the model is, which may keep for it what it computed.

        Args:
            params: Values for the selected parameters.
            batch: Inputs and target.
            detached: Whether the loss is that of a detached output.

        Returns:
            All three.
        """
        with self.inside(params):
            output = self._run(params, batch.args, batch.kwargs)
            taken = output.detach() if detached and isinstance(output, Tensor) else output
            return output, *self.loss.total(taken, batch.target)

    def inside(self, state: Params) -> AbstractContextManager[None]:
        """Let tensors stand in for the model's own; undo whatever the model does to itself."""
        names: Params = {}
        if self.module is not None:
            names.update(self.module.named_parameters(remove_duplicate=False))
            names.update(self.module.named_buffers(remove_duplicate=False))
        return self._guard.inside(
            {
                id(parameter): tensor
                for name, tensor in state.items()
                if (parameter := names.get(name)) is not None and parameter is not tensor
            }
        )

    def in_float64(self) -> AbstractContextManager[None]:
        """Let float64 copies stand in for all floating-point tensors of the user's modules."""
        return self._guard.in_float64()

    def on_first_look(self) -> AbstractContextManager[None]:
        """Learn in forward passes what the model writes to; nothing is differentiated meanwhile."""
        module = self.module if self.mode == "keep" else None
        return self._guard.learning(lambda: [] if module is None else list(module.buffers()))

    def _run(self, state: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        taken = read(self.loss, self._evaluate(state, args, kwargs))
        if self.autocast is None or self._guard.stand_ins or not isinstance(taken, Tensor):
            return taken
        return taken.to(self.dtype) if taken.is_floating_point() else taken

    def _evaluate(self, state: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state_argument = () if self.module is not None else ({**self.constants(), **state},)
        grad_mode = torch.enable_grad() if self.needs_grad_mode else nullcontext()
        with grad_mode, self.casting(), inputs_kept((args, kwargs)):
            if self.takes_mapping:
                args, kwargs = (*args, kwargs), {}
            return self._model(*state_argument, *args, **kwargs)

    def casting(self) -> AbstractContextManager[object]:
        """Return the context in which the model, or a part of it, is evaluated."""
        if self.autocast is None or self._guard.stand_ins:
            return nullcontext()
        # Cast copies that are shared between calls would tie their graphs together.
        return torch.autocast(self.device.type, self.autocast, cache_enabled=False)

    @property
    def slack(self) -> float:
        """How far two exact ways to compute one thing may be apart, relative to its size.

        Rounding stays far below √eps of the least precise dtype in the model; randomness, or
        a term that is missing, does not.
        """
        return float(torch.finfo(self.precision).eps ** 0.5)

    def value(self) -> float:
        """Return the loss over all data. Cost: one forward pass.

        Raises:
            NonFiniteError: If it is NaN or infinite.
        """
        with torch.no_grad(), self.evaluating():
            total, count = self.sums(self.batches)
        return total / (count if self.reduction == "mean" else 1.0)

    @derivatives_explained("The gradient")
    @full_precision()
    def gradient(self) -> Tensor:
        """Return the flat gradient (n,). Cost: one forward and one backward pass.

        It is what autograd gives, detached values or not: only matrices have a self-test.

        Raises:
            NonFiniteError: If it has NaN or infinite entries.
        """
        with self.ranks.together(), torch.enable_grad(), self.evaluating():
            # The last entry counts the terms: targets may have changed since the first look.
            total = torch.zeros(self.space.size + 1, dtype=torch.float64, device=self.device)
            for batch in self.batches:
                leaves = self.leaves()
                loss, count = self.total(leaves, batch)
                total[:-1] += flat_gradient(loss, leaves)
                total[-1] += count
        total = self.ranks.sum(total)
        divisor = total[-1] if self.reduction == "mean" else 1.0
        gradient = (total[:-1] / divisor).to(self.dtype)
        if not bool(torch.isfinite(gradient).all()):
            raise NonFiniteError(
                "The gradient has NaN or infinite entries. Check the loss (`risk.value()`), the "
                "data and the parameters for NaN, infinity or overflow."
            )
        return gradient

    @contextmanager
    def evaluating(self, *, frozen: bool = False) -> Iterator[None]:
        """Evaluate under the risk's own settings, whatever is set outside; see `evaluation`.

        Only the selected parameters require gradients meanwhile, or none if `frozen`, to
        differentiate by what layers give.
        """
        live = self.own_parameters()
        chosen = () if frozen else {id(live[name]) for name in self._selected}
        parameters = list(live.values())
        with evaluation(self.module, parameters, chosen, mode=self.mode, device=self.device):
            yield

    def constants(self) -> Params:
        """Return everything the model needs beside the selected parameters, as constants."""
        module = self.module
        named = self._all.items() if module is None else module.named_parameters()
        constants = {name: p.detach() for name, p in named if name not in self._selected}
        # What the model writes to is copied, for it to write into.
        written = {id(tensor) for tensor in self._guard.written}
        for name, buffer in () if module is None else module.named_buffers():
            plain = buffer.detach()
            constants[name] = plain.clone() if id(buffer) in written else plain
        return constants

    def sums(self, batches: Iterable[Batch]) -> tuple[float, float]:
        """Add up the loss terms and their number, over all ranks; inside `evaluating()`.

        Args:
            batches: What to evaluate of this rank's data.

        Returns:
            Both sums.

        Raises:
            NonFiniteError: If one is NaN or infinite.
        """
        with self.ranks.together():
            pairs = self.totals(batches)
            local = [sum(pair[k] for pair in pairs) for k in (0, 1)]
            local_sums = torch.tensor(local, dtype=torch.float64)
        total, count = self.ranks.sum(local_sums).tolist()
        if not (math.isfinite(total) and math.isfinite(count)):
            raise NonFiniteError(
                f"The loss is {total} ({count:g} terms). Check data and parameters for NaN and "
                "infinity. A mean over no targets is NaN too: return (sum of terms, their number)."
            )
        return total, count

    def totals(
        self, batches: Iterable[Batch], dtype: torch.dtype | None = None
    ) -> list[tuple[float, float]]:
        """Return the sum of loss terms and their number for each of some batches of this rank."""
        batch_sums = []
        params = {name: p.to(dtype or p.dtype) for name, p in self.parameters().items()}
        for batch in batches:
            asked = batch if dtype is None else batch.to(dtype)
            with self.inside(params):  # errors say what model and loss were given
                with explained(asked):
                    output = self._run(params, asked.args, asked.kwargs)
                with explained(asked, output):
                    batch_total, batch_count = self.loss.total(output, asked.target)
            if batch_total.ndim != 0 or not batch_total.is_floating_point():
                raise ShapeError(
                    "The loss of a batch must be one real number; got shape "
                    f"{tuple(batch_total.shape)}, {batch_total.dtype}."
                )
            batch_sums.append((batch_total.double().item(), batch_count.double().item()))
        return batch_sums
