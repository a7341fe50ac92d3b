"""The function whose curvature is studied: a model, a loss, parameters and data.

This is the only place where a user's world meets ours. It evaluates the model as a pure function of
its parameters, in a fixed mode, without touching `.grad`, the train/eval flags it finds, or the
buffers; it sums loss terms over batches in float64 and divides once by their number.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from eigenscape.batches import Batch, BatchSource, explained, logits_of
from eigenscape.distributed import Ranks
from eigenscape.errors import (
    EmptySelectionError,
    NonDeterministicRiskError,
    NonFiniteError,
    ShapeError,
    SubstitutionWarning,
    UnsupportedModelError,
    require_choice,
)
from eigenscape.files import crc
from eigenscape.losses import Loss, as_loss
from eigenscape.parameters import (
    AttentionSpy,
    bit_sums,
    checked_autocast,
    common_kind,
    eval_mode,
    is_compiled,
    select_parameters,
    uncompiled,
)
from eigenscape.precision import full_precision
from eigenscape.space import ParamSpace

Params: TypeAlias = dict[str, Tensor]
_KEEP_DATA_BYTES = 2 * 2**30


class EmpiricalRisk:
    """Mean (or sum) of a loss over data, as a function of a model's parameters.

    The parameters are read live: after a training step the same risk describes the new point.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False).double()
        >>> with torch.no_grad(): _ = model.weight.fill_(2.0)
        >>> x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
        >>> from eigenscape.losses import SquaredError
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
        mode: str = "eval",
        reduction: str = "mean",
        check_deterministic: bool = True,
        autocast: torch.dtype | None = None,
        keep_data_bytes: int = _KEEP_DATA_BYTES,
        ranks: Ranks | None = None,
    ) -> None:
        """Look at model, loss and data, and probe that the loss is a function of the parameters.

        Args:
            model: An `nn.Module`, or a pure function `f(params, *inputs)` of a dict of tensors.
            loss: `CrossEntropy()`, `SquaredError()`, `BinaryCrossEntropy()`, their PyTorch
                counterparts, or any function of (output, target); see `losses`.
            data: Tensors (inputs, target), a Dataset, a DataLoader or a list of batches; see
                `batches`. Loaders are read once and kept where they fit `keep_data_bytes`.
            params: For a module, names or patterns of the parameters to differentiate (all with
                `requires_grad` by default; the rest are constants). For a function, its parameters.
            batch_size: Most samples to process at a time. It changes memory and speed, no answer.
                By default the activations of a batch stay within a processor's cache, or within a
                gigabyte on a GPU; batches of a loader are taken as they come.
            mode: "eval" evaluates with dropout off and BatchNorm frozen, whatever the model's flags
                are now; "keep" leaves every module in the mode it is in.
            reduction: "mean" divides by the number of loss terms, "sum" does not divide.
            check_deterministic: Evaluate twice and refuse if the two disagree.
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
        self._module = model if isinstance(model, nn.Module) else None
        self._model = model
        self.loss = as_loss(loss)
        self._mode = require_choice(mode, ("eval", "keep"), "EmpiricalRisk(mode=...)")
        self.reduction = require_choice(reduction, ("mean", "sum"), "EmpiricalRisk(reduction=...)")
        self._all = self._selected = select_parameters(model, params)
        self.dtype, self.device = common_kind(self._selected)
        self.autocast = checked_autocast(autocast, self.dtype)
        self.space = ParamSpace.of(self._selected)
        self.ranks = ranks or Ranks()
        self._cutting = batch_size, keep_data_bytes
        self._take(data, check_deterministic)

    def _take(self, data: object, check_deterministic: bool) -> None:
        """Look at the data, cut them into batches, and probe the loss on them."""
        batch_size, keep_bytes = self._cutting
        with self.ranks.together():
            self.batches = BatchSource(
                data,
                batch_size=batch_size,
                device=self.device,
                dtype=self.dtype,
                keep_bytes=keep_bytes,
                ranks=self.ranks,
            )
        self.batches.keep()
        if self.batches.may_resize:
            leaves = leaf_copies(self.parameters())
            constants = [*leaves.values(), *self.constants().values()]
            with torch.enable_grad(), self.evaluating():
                limit = self.batches.samples_at_once(lambda b: self.total(leaves, b), constants)
            self.batches.resize(limit)
        # Its own samples are those of this process: all, unless ranks share them.
        self._num_terms, self.num_own_samples = self._probe(check_deterministic)
        self._num_samples = int(self.ranks.sum(torch.tensor([self.num_own_samples])))

    @property
    def num_terms(self) -> float:
        """Number of loss terms over all data (total weight, where terms are weighted)."""
        return self._num_terms

    @property
    def num_samples(self) -> int:
        """Number of samples over all data."""
        return self._num_samples

    @property
    def divisor(self) -> float:
        """What sums over all data are divided by: the number of terms, or 1."""
        return self._num_terms if self.reduction == "mean" else 1.0

    @property
    def module(self) -> nn.Module | None:
        """The model if it is an `nn.Module`, else None."""
        return self._module

    def parameters(self) -> Params:
        """Return the selected parameters as they are now, detached, in the order of the space.

        Returns:
            Tensors that share memory with the model's.

        Raises:
            ShapeError: If the model was converted, moved or rebuilt since the risk was made.
        """
        live: Params = dict(self._all)
        if self._module is not None:
            live = dict(self._module.named_parameters())
        chosen = {name: live.get(name, self._all[name]).detach() for name in self._selected}
        for name, tensor in chosen.items():
            shape = self.space.shapes[name]
            if (tensor.dtype, tensor.device, tensor.shape) != (self.dtype, self.device, shape):
                raise ShapeError(
                    f"'{name}' is now {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; the "
                    f"risk was made for {self.dtype} {shape} on {self.device}. Make a new "
                    "`EmpiricalRisk` after converting or moving the model."
                )
        return chosen

    def marks(self) -> tuple[object, ...]:
        """Return what the host knows of model and data: places, counted writes and modes."""
        module = self._module
        modules = module.modules() if module is not None and self._mode == "keep" else ()
        counted = ((t.data_ptr(), t._version) for t in self._state())
        return (*counted, *self.batches.versions, *(part.training for part in modules))

    def bits(self) -> Tensor:
        """Return sums of the bits of the model's state on the device, without waiting for it.

        PyTorch counts writes to a tensor, but not those through `.data`. With `marks` it changes
        whenever the model does, but for luck, to know when kept work is stale.
        """
        return bit_sums(self._state(), self.device)

    def _state(self) -> list[Tensor]:
        if self._module is None:
            return list(self._all.values())
        return [*self._module.parameters(), *self._module.buffers()]

    def places(self) -> tuple[int, ...]:
        """Return where the tensors of the model are, to know when one took another's place."""
        return tuple(t.data_ptr() for t in self._state())

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
        other._take(data, check_deterministic=False)
        return other

    def output(self, params: Params, batch: Batch) -> Any:
        """Evaluate the model; call it inside `evaluating()`.

        Args:
            params: Values for the selected parameters.
            batch: The inputs.

        Returns:
            The model's output; the logits where it returns an object or a dict that has them.
        """
        return self.call({**self.constants(), **params}, batch.args, batch.kwargs)

    def call(self, state: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Evaluate the model with all of its tensors given; call it inside `evaluating()`.

        Args:
            state: The selected parameters and the `constants`.
            args: Positional inputs of the model.
            kwargs: Keyword inputs of the model.

        Returns:
            As `output`.
        """
        with self.casting():
            if self._module is None:
                found = self._model(state, *args, **kwargs)
            else:
                found = torch.func.functional_call(self._module, state, args, kwargs, strict=False)
        logits = logits_of(found)
        if self.autocast is not None and isinstance(logits, Tensor) and logits.is_floating_point():
            return logits.to(self.dtype)
        return logits

    def casting(self) -> AbstractContextManager[object]:
        """Return the context in which the model, or a part of it, is evaluated."""
        if self.autocast is None:
            return nullcontext()
        # Cast copies that are shared between calls would tie their graphs together.
        return torch.autocast(self.device.type, self.autocast, cache_enabled=False)

    @property
    def slack(self) -> float:
        """How far two exact ways to compute one thing may be apart, relative to its size.

        Rounding stays far below √eps of the dtype in which the model is evaluated; randomness, or
        a term that is missing, does not.
        """
        return float(torch.finfo(self.autocast or self.dtype).eps ** 0.5)

    def total(self, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of a batch's loss terms and their number; inside `evaluating()`."""
        return self.loss.total(self.output(params, batch), batch.target)

    def value(self) -> float:
        """Return the loss over all data. Cost: one forward pass.

        Raises:
            NonFiniteError: If it is NaN or infinite.
        """
        with torch.no_grad(), self.evaluating():
            total, count = self._sums(self.batches)
        return total / (count if self.reduction == "mean" else 1.0)

    @full_precision()
    def gradient(self) -> Tensor:
        """Return the flat gradient (n,). Cost: one forward and one backward pass.

        Raises:
            NonFiniteError: If it has NaN or infinite entries.
        """
        with self.ranks.together(), torch.enable_grad(), self.evaluating():
            total = torch.zeros(self.space.size, dtype=torch.float64, device=self.device)
            for batch in self.batches:
                leaves = leaf_copies(self.parameters())
                loss, _ = self.total(leaves, batch)
                total += flat_gradient(loss, leaves)
        gradient = (self.ranks.sum(total) / self.divisor).to(self.dtype)
        if not bool(torch.isfinite(gradient).all()):
            raise NonFiniteError(
                "The gradient has NaN or infinite entries. Check the loss (`risk.value()`), the "
                "data and the parameters for NaN, infinity or overflow."
            )
        return gradient

    @contextmanager
    def evaluating(self, *, frozen: bool = False) -> Iterator[None]:
        """Put the model in its mode and route around kernels without a second derivative.

        Fused attention has no double backward, so the math kernel is used; cuDNN's recurrent
        kernels have none either. Only the selected parameters require gradients meanwhile, or none
        if `frozen`, to differentiate by what layers give: activation checkpointing runs the module
        again in a backward pass, and must save what was saved at first. All is restored at last.
        """
        module = self._module
        modules = list(module.modules()) if module is not None else []
        named = list(module.named_parameters()) if module is not None else []
        live = () if frozen else self._selected
        flipped = [p for name, p in named if p.requires_grad != (name in live)]
        fastpath = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
            if module is not None and self._mode == "eval":
                stack.enter_context(eval_mode(module))
            stack.enter_context(full_precision())
            stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
            if any(is_compiled(part) for part in modules):
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            if any(isinstance(part, nn.RNNBase) for part in modules):
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            try:
                torch.backends.mha.set_fastpath_enabled(False)
                for parameter in flipped:
                    parameter.requires_grad = not parameter.requires_grad
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fastpath)
                for parameter in flipped:
                    parameter.requires_grad = not parameter.requires_grad

    def constants(self) -> Params:
        """Return everything the model needs beside the selected parameters, as constants."""
        if self._module is None:
            return {n: p.detach() for n, p in self._all.items() if n not in self._selected}
        constants = {
            name: parameter.detach()
            for name, parameter in self._module.named_parameters()
            if name not in self._selected
        }
        # A module in train mode writes into its buffers; it gets copies to write into.
        writes = self._mode == "keep"
        for name, buffer in self._module.named_buffers():
            constants[name] = buffer.detach().clone() if writes else buffer.detach()
        return constants

    def _sums(self, batches: Any) -> tuple[float, float]:
        """Add up the loss terms and their number, over all data."""
        with self.ranks.together():
            own = torch.tensor(self._own_sums(batches), dtype=torch.float64)
        total, count = self.ranks.sum(own).tolist()
        if not (math.isfinite(total) and math.isfinite(count)):
            raise NonFiniteError(
                f"The loss is {total} ({count:g} terms). Check the data and the parameters for NaN "
                "or infinity, e.g. `all(p.isfinite().all() for p in model.parameters())`."
            )
        return total, count

    def _own_sums(self, batches: Any) -> tuple[float, float]:
        total = count = 0.0
        params = self.parameters()
        for batch in batches:
            with explained(batch):
                output = self.output(params, batch)
            batch_total, batch_count = self.loss.total(output, batch.target)
            if batch_total.ndim != 0 or not batch_total.is_floating_point():
                raise ShapeError(
                    "The loss of a batch must be one real number; got shape "
                    f"{tuple(batch_total.shape)}, {batch_total.dtype}."
                )
            total += batch_total.double().item()
            count += batch_count.double().item()
        return total, count

    def _probe(self, check: bool) -> tuple[float, int]:
        """Evaluate once to learn the counts, and again to see that nothing is random."""
        spy = AttentionSpy()
        with torch.no_grad(), self.evaluating():
            with spy:
                total, count = self._sums(self.batches)
            samples = sum(batch.size for batch in self.batches)
            if not count > 0:
                raise EmptySelectionError(
                    f"The data hold {samples} samples but no loss term (count {count:g}): every "
                    "target is ignored or has weight zero."
                )
            self._require_same_everywhere()
            if check:
                with self.ranks.together():
                    self._require_same_output()
                if not self.batches.is_whole:
                    self._require_same_pass(total, count)
        if spy.found:
            warnings.warn(
                "The model uses fused attention, which has no second derivative; its math kernel "
                "is used inside products instead (exact, more memory).",
                SubstitutionWarning,
                stacklevel=4,
            )
        self._require_batch_free()
        return count, samples

    def _require_same_output(self) -> None:
        """Evaluate one batch twice; dropout and the like show up here."""
        batch, params = next(iter(self.batches)), self.parameters()
        outputs = [self.output(params, batch) for _ in range(2)]
        losses = [self.loss.total(z, batch.target)[0] for z in outputs]
        for what, (first, second) in {"model": outputs, "loss": losses}.items():
            if not isinstance(first, Tensor):
                continue
            # Logits of −∞ mark classes that cannot occur: equal, but their difference is NaN.
            same = (first == second) | (first.isnan() & second.isnan())
            difference = (first - second).abs()[~same].sum().item()
            if not difference <= self.slack * first.abs().nan_to_num(posinf=0.0).sum().item():
                raise NonDeterministicRiskError(
                    f"The {what} gave two results for one batch, {difference:.2g} apart. Use "
                    "`mode='eval'` or take the randomness out; pass `check_deterministic=False` "
                    "only if you mean it."
                )

    def _require_same_pass(self, total: float, count: float) -> None:
        """Walk the loader anew; random augmentation and dropped batches show up here."""
        seen = self.batches.seen
        again, count_again = self._sums(self.batches.fresh())
        slack = self.slack * max(abs(again), abs(total))
        if count != count_again or not abs(again - total) <= slack:
            raise NonDeterministicRiskError(
                f"Two passes over the data gave losses {total / count:.6g} ({count:g} terms) and "
                f"{again / max(count_again, 1e-300):.6g} ({count_again:g} terms). Turn off random "
                "augmentation and `drop_last` with shuffling, or pass `list(loader)` for one draw."
            )
        if self.batches.seen != seen and not self.batches.is_fixed:
            raise NonDeterministicRiskError(
                "Processes cannot share a loader that gives its batches in another order at every "
                "pass. Turn off shuffling, or raise `EmpiricalRisk(keep_data_bytes=...)`."
            )

    def _require_same_everywhere(self) -> None:
        """Refuse ranks that differ in what they are to share: their sums would mean nothing."""
        if self.ranks.size > 1:
            model = [crc(tensor) for tensor in self._state()]
            self.ranks.require_same({"model": model, "data": self.batches.seen})

    def _require_batch_free(self) -> None:
        """Refuse batch statistics over several batches: batches would change the answer."""
        modules = [] if self._module is None else self._module.named_modules()
        coupled = [
            name
            for name, part in modules
            if isinstance(part, nn.modules.batchnorm._BatchNorm)
            and (part.running_mean is None or (part.training and self._mode == "keep"))
        ]
        # Several ranks have several batches.
        if coupled and (self.ranks.size > 1 or sum(1 for _ in self.batches) > 1):
            raise UnsupportedModelError(
                f"`{coupled[0]}` normalises by the statistics of its batch, so the loss depends on "
                "how the data are batched. Use `mode='eval'` with running statistics, or give all "
                "data as one batch (`batch_size=` at least the number of samples)."
            )


def leaf_copies(params: Params) -> Params:
    """Return new leaves that share the parameters' memory, so that `.grad` is never touched."""
    return {name: tensor.detach().requires_grad_() for name, tensor in params.items()}


def flat_gradient(loss: Tensor, leaves: Params) -> Tensor:
    """Return the flat float64 gradient of a scalar; leaves that it does not use give zeros."""
    if not loss.requires_grad:
        return torch.cat([torch.zeros_like(leaf).flatten() for leaf in leaves.values()]).double()
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return torch.cat([part.flatten() for part in found]).double()
