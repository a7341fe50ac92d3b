"""The trace of the Gauss-Newton matrix, exactly, and layer by layer.

tr G = (1/D) Σ_n Σ_c ‖Jᵀr_nc‖², with the roots Σ_c r_nc r_ncᵀ = ∇²_z ℓ_n of the loss's curvature at
the output: one backward pass for each c, in which every layer gives the squared norm of each
sample's gradient, without forming it.

Letters: D the risk's divisor, N samples, C outputs per sample, z output, J = ∂z/∂θ.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from eigenscape.analyses.whole._pictures import exact_traces_picture
from eigenscape.analyses.whole._squared_gradients import (
    SquaredNorm,
    covered_layers,
    squared_gradients,
)
from eigenscape.curvature import (
    MOST_OUTPUTS,
    GaussNewton,
    curved_operation,
    exact_roots,
    have_exact_roots,
)
from eigenscape.device import full_precision
from eigenscape.errors import NonDeterministicRiskError, NonFiniteError, UnsupportedModelError
from eigenscape.records import Columns, Picture, Record, Status
from eigenscape.risk import (
    Batch,
    CallableLoss,
    EmpiricalRisk,
    Layer,
    SampleRows,
    Tail,
    derivatives_explained,
    leaf_copies,
    telling_batches,
)

_INSTEAD = "Use `trace(GaussNewton(risk), num_products=100)` for an estimate with an error."
# Samples that are looked at alone before all are summed.
_CHECKED = 3


@dataclass(frozen=True, eq=False)
class ExactTrace(Record):
    """The exact trace of the Gauss-Newton matrix.

    Attributes:
        trace: tr G.
        layers: Names of the layers.
        traces: The trace of each layer's diagonal block (L,), float64; they add up to `trace`.
        equals_hessian: Whether tr H = tr G, for every layer too: True where everything after the
            first layer is known to be piecewise linear. False means that it is not known.
        curved: The operation that is not known to be piecewise linear, or "".
        num_backward_passes: Backward passes over all data: C.
        seconds: Wall time it took.
    """

    trace: float
    layers: tuple[str, ...]
    traces: Tensor
    equals_hessian: bool
    curved: str
    num_backward_passes: int
    seconds: float

    def columns(self) -> Columns:
        """Return one row for each layer, with its share of the trace."""
        total = self.trace or 1.0
        return {
            "layer": self.layers,
            "trace": self.traces.tolist(),
            "share": (self.traces / total).tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (exact_traces_picture(self),)


@derivatives_explained("`exact_trace(risk)`")
@full_precision()
def exact_trace(risk: EmpiricalRisk) -> ExactTrace:
    """Compute the trace of the Gauss-Newton matrix and of its layers' blocks, without probes.

    Where all that follows each layer is piecewise linear (ReLU, pooling, affine layers, BatchNorm
    in eval mode) this is the trace of the Hessian as well: a layer's own block has no other term.

    Cost: one forward and C backward passes over the data, C outputs per sample, for all layers
    together; no weight gradient is formed. And the self-test of `GaussNewton(risk)`.

    Args:
        risk: Its model must be an `nn.Module` made of linear, convolution, embedding and
            normalisation layers, each called once in a forward pass; its output (samples, …),
            up to 256 numbers for each; its loss `CrossEntropy`, `SquaredError` or
            `BinaryCrossEntropy`.

    Returns:
        The trace, to rounding.

    Raises:
        WrongTypeError: If the model is a pure function.
        UnsupportedModelError: If a parameter, the output or the loss is of another kind.
        SelfTestError: If the matrix would not be that of the user's own function.
        NonDeterministicRiskError: If a loader gave another number of samples than before.
        NonFiniteError: If the trace is NaN or infinite.

    Examples:
        A linear model under ½·mean ‖z − y‖² has the block I ⊗ mean(a aᵀ), here of trace
        2·(25 + 1)/2.

        >>> from eigenscape.risk.losses import SquaredError
        >>> a = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False))
        >>> found = exact_trace(EmpiricalRisk(model, SquaredError(), (a, torch.zeros(2, 2))))
        >>> round(found.trace, 4), found.num_backward_passes, found.equals_hessian
        (26.0, 2, True)
    """
    started = time.monotonic()
    layers = _covered(risk)
    verdict = GaussNewton(risk).self_test
    with risk.ranks.together():
        _check(risk, layers)
        total, operation, passes = _summed(risk, layers)
    traces = (risk.ranks.sum(total) / risk.divisor).cpu()
    curved = next((name for name in risk.ranks.gather(operation) if name is not None), None)
    if not bool(torch.isfinite(traces).all()):
        raise NonFiniteError(
            "`exact_trace(risk)` is NaN or infinite. Check the loss (`risk.value()`), the data and "
            "the parameters for NaN, infinity or overflow."
        )
    text = f"Exact, from {passes} backward passes over {risk.num_samples} samples."
    if curved is not None:
        text += f" The trace of G, and not known to be that of H: the model has {curved}."
    return ExactTrace(
        status=Status(True, text),
        num_products=0,
        seed=0,
        trace=float(traces.sum()),
        layers=tuple(layer.name or "the model" for layer in layers),
        traces=traces,
        equals_hessian=curved is None,
        curved=curved or "",
        num_backward_passes=passes,
        seconds=time.monotonic() - started,
        self_test=verdict,
    )


def _summed(risk: EmpiricalRisk, layers: Sequence[Layer]) -> tuple[Tensor, str | None, int]:
    """Return each layer's sum over the data, an operation that is curved, and the passes."""
    places = {name: index for index, layer in enumerate(layers) for name in layer.params}
    total = torch.zeros(len(layers), dtype=torch.float64, device=risk.device)
    curved: str | None = None
    passes = samples = 0
    for batch in risk.batches:
        samples += batch.size
        with torch.enable_grad(), risk.evaluating():
            run = _Forward(risk, layers, batch)
            curved = curved or curved_operation(run.prediction, run.source)
            roots = exact_roots(risk, run.prediction.detach(), batch)
            for name, value in run.squares(roots).items():
                total[places[name]] += value
            passes = len(roots)
    if samples != risk.num_own_samples:
        raise NonDeterministicRiskError(
            f"This pass over the data gave {samples} samples; the risk was made for "
            f"{risk.num_own_samples}. Pass `list(loader)`, or make a new `EmpiricalRisk`."
        )
    return total, curved, passes


def _covered(risk: EmpiricalRisk) -> list[Layer]:
    """Return the layers that own the risk's parameters; refuse those without a known gradient."""
    if isinstance(risk.loss, CallableLoss):
        raise UnsupportedModelError(
            "`exact_trace(risk)` needs CrossEntropy, SquaredError or BinaryCrossEntropy; a loss "
            f"of your own may not be convex in the model's output. {_INSTEAD}"
        )
    return covered_layers(risk, "exact_trace(risk)", _INSTEAD)


class _Forward:
    """One batch's forward pass, with the inputs and outputs of every layer.

    What the layers give begins at one leaf, `source`, so that the graph from there to the output is
    all that follows any of them.
    """

    def __init__(self, risk: EmpiricalRisk, layers: Sequence[Layer], batch: Batch) -> None:
        self._layers, self._rows = layers, SampleRows("exact_trace(risk)", _INSTEAD)
        self.source = torch.zeros((), dtype=risk.dtype, device=risk.device, requires_grad=True)
        self._calls: dict[str, list[_Call]] = {layer.name: [] for layer in layers}
        handles = [
            layer.module.register_forward_hook(self._recorder(layer, batch.size), with_kwargs=True)
            for layer in layers
        ]
        try:
            self.prediction, total, _ = risk.output_and_total(risk.parameters(), batch)
        finally:
            for handle in handles:
                handle.remove()
        self._require_output(batch.size)
        self._prepared: list[tuple[str, Tensor, SquaredNorm]] = []
        for layer in layers:
            for call in self._require_few(layer):
                tail = Tail(call.args, call.kwargs, call.output, self.prediction, total)
                norms = squared_gradients(layer, tail, self.prediction.shape[1:].numel())
                names = dict(zip(layer.fields, layer.params, strict=True))
                self._prepared += [(names[f], call.output, norm) for f, norm in norms.items()]

    def squares(self, seeds: Iterable[Tensor]) -> dict[str, Tensor]:
        """Go back from the output with each seed, and add the samples' squared gradients.

        Args:
            seeds: Tensors in the shape of the output.

        Returns:
            The sums by parameter, float64; parameters that nothing depends on are left out.

        Raises:
            UnsupportedModelError: If layers are evaluated again in the backward pass.
        """
        sums: dict[str, Tensor] = {}
        live = [entry for entry in self._prepared if entry[1].requires_grad]
        if not live or not self.prediction.requires_grad:
            return sums
        outputs = list({id(output): output for _, output, _ in live}.values())
        for seed in seeds:
            try:
                gradients = torch.autograd.grad(
                    self.prediction, outputs, seed, retain_graph=True, allow_unused=True
                )
            except CheckpointError as error:
                raise UnsupportedModelError(
                    "`exact_trace(risk)` met activation checkpointing, which evaluates layers "
                    f"again. Switch it off. {_INSTEAD}"
                ) from error
            slopes = dict(zip(map(id, outputs), gradients, strict=True))
            for name, output, norm in live:
                slope = slopes[id(output)]
                if slope is not None:
                    sums[name] = sums.get(name, 0.0) + norm(slope)
        return sums

    def require_sample_rows(self) -> None:
        """Refuse layers that have something else than samples in their rows.

        Raises:
            UnsupportedModelError: If there is one.
        """
        ran = [layer for layer in self._layers if self._calls[layer.name]]
        outputs = [self._calls[layer.name][0].output for layer in ran]
        self._rows.require(ran, self.prediction, outputs)

    def _recorder(self, layer: Layer, num_samples: int) -> Callable[..., Tensor]:
        def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor:
            x = args[0] if args else next(iter(kwargs.values()))
            for tensor in (x, output):
                self._rows.require_shape(layer, tensor, num_samples)
            live: Tensor = output if output.requires_grad else output.detach() + self.source
            self._calls[layer.name].append(_Call(args, kwargs, live, x, x._version))
            return live.clone()  # what follows may write into it, as `nn.ReLU(inplace=True)` does

        return record

    def _require_output(self, num_samples: int) -> None:
        z = self.prediction
        if not have_exact_roots(z) or z.shape[0] != num_samples:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise UnsupportedModelError(
                f"`exact_trace(risk)` needs an output (samples, up to {MOST_OUTPUTS} numbers), for "
                f"each of which it goes back once; got {got}. {_INSTEAD}"
            )

    def _require_few(self, layer: Layer) -> list["_Call"]:
        """Return the layer's call, if there is one; refuse more, or one whose input was changed."""
        calls = self._calls[layer.name]
        if len(calls) > 1:
            raise UnsupportedModelError(
                f"`exact_trace(risk)` needs layers that are called once; '{layer.name}' "
                f"({', '.join(layer.params)}) ran {len(calls)} times. {_INSTEAD}"
            )
        if any(call.x._version != call.version for call in calls):
            raise UnsupportedModelError(
                f"`exact_trace(risk)`: the input of '{layer.name}' is changed in place after the "
                f"layer has used it. Change a copy. {_INSTEAD}"
            )
        return calls


@dataclass(frozen=True)
class _Call:
    """What went into a layer, what came out, and how often its input had been written to."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    x: Tensor
    version: int


def _check(risk: EmpiricalRisk, layers: Sequence[Layer]) -> None:
    """Compare single samples with plain gradients, and with the same samples among others.

    It finds weights that the model uses elsewhere too, modules in name only, and samples that
    change each other's outputs. The seeds at the output are random and always the same.

    Args:
        risk: The risk.
        layers: Its layers.

    Raises:
        UnsupportedModelError: If they disagree.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad(), risk.evaluating():
        for batch in telling_batches(risk.batches):
            if not _agrees(risk, layers, batch, generator):
                return


def _agrees(
    risk: EmpiricalRisk, layers: Sequence[Layer], batch: Batch, generator: torch.Generator
) -> bool:
    """Compare some samples of a batch; False where it does not say how to cut it."""
    # Rounding stays far below √eps, a missing term does not.
    slack = risk.slack
    run = _Forward(risk, layers, batch)
    together = run.prediction
    for number in range(min(_CHECKED, batch.size)):
        alone = _single(batch, number)
        if alone is None:
            run.require_sample_rows()
            return False
        run = _Forward(risk, layers, alone)
        gap = (run.prediction[0] - together[number]).norm()
        if gap > slack * together[number].norm():
            raise UnsupportedModelError(
                "`exact_trace(risk)` needs samples that do not change each other's outputs; here a "
                f"sample alone gives another output than among others. {_INSTEAD}"
            )
        seed = torch.randn(run.prediction.shape, generator=generator, dtype=torch.float64)
        seed = seed.to(run.prediction)
        squares = run.squares([seed])
        plain = _plain_squares(risk, alone, seed)
        noise = slack**2 * float(sum(plain.values()))
        for name, value in plain.items():
            gap = (value - squares.get(name, torch.zeros_like(value))).abs()
            if gap > slack * value + noise:
                raise UnsupportedModelError(
                    f"`exact_trace(risk)` finds another gradient of '{name}' than autograd: the "
                    "model uses it elsewhere than in its own layer, or evaluates the layer again "
                    f"(activation checkpointing). {_INSTEAD}"
                )
    return True


def _plain_squares(risk: EmpiricalRisk, batch: Batch, seed: Tensor) -> dict[str, Tensor]:
    """Return the squared norm of every parameter's gradient, by autograd alone."""
    leaves = leaf_copies(risk.parameters())
    output = risk.output(leaves, batch)
    gradients = torch.autograd.grad(output, list(leaves.values()), seed, allow_unused=True)
    return {
        name: (torch.zeros_like(leaf) if slope is None else slope).double().square().sum()
        for (name, leaf), slope in zip(leaves.items(), gradients, strict=True)
    }


def _single(batch: Batch, number: int) -> Batch | None:
    """Return one sample of a batch, or None where it does not say how to cut it."""
    tensors = (*batch.args, *batch.kwargs.values(), batch.target)
    if any(not isinstance(p, Tensor) or p.shape[:1] != (batch.size,) for p in tensors):
        return None
    picked = slice(number, number + 1)
    kwargs = {name: value[picked] for name, value in batch.kwargs.items()}
    return Batch(tuple(a[picked] for a in batch.args), kwargs, batch.target[picked], 1)
