"""Is the top eigenspace of a layer's output Hessian the row space of the weights above it?

Letters: E[M] (m × m) the output Hessian of layer p, c logits, S = W^(L) ⋯ W^(p+1) (c × m) the
product of the weights above (Wu §4.4), s = Sᵀ1, π^(l) the mean slope of the activations behind
layer l: of a ReLU, how often each unit fires.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn

from eigenscape.analyses import eigenspace_overlap
from eigenscape.curvature import MOST_OUTPUTS, exact_roots, have_exact_roots, matrix_layers
from eigenscape.device import eigh, full_precision
from eigenscape.errors import EmptySelectionError, UnsupportedModelError, require_choice
from eigenscape.records import Picture, Record, Status
from eigenscape.risk import (
    Batch,
    CrossEntropy,
    EmpiricalRisk,
    Layer,
    output_vectors,
    refuse_recomputed,
)
from eigenscape_papers.wu._pictures import output_space_picture
from eigenscape_papers.wu.weights_above import unit_vectors, weights_above

SPACES = ("weights", "firing", "gradients")

_Names: TypeAlias = list[str] | tuple[str, ...]


@dataclass(frozen=True, eq=False)
class OutputSpaceOverlap(Record):
    """How much of the top eigenspace of E[M] lies in the row space of S.

    Attributes:
        layer: The layer's name.
        space: What S is: "weights", "firing" or "gradients".
        dimension: Of both spaces: c − 1 under cross-entropy, less where the layer is narrower.
        overlap: Overlap (Wu Def. 4.1) of the top eigenspace of E[M] and of {Sᵀa : a ⊥ 1}, the range
            of SᵀAS for every A with null space 1; from 0 to 1.
        overlap_removed: The same with R(S) less the direction of s in place of that. The two agree
            where the rows of S are orthogonal and of one length, as in Wu Thm. H.1.
        chance: Overlap of random spaces, dimension/m.
        trace_share: Share of tr E[M] inside {Sᵀa : a ⊥ 1}.
        values: All eigenvalues of E[M] (m,), descending, float64.
    """

    layer: str
    space: str
    dimension: int
    overlap: float
    overlap_removed: float
    chance: float
    trace_share: float
    values: Tensor

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (output_space_picture(self),)


@overload
def output_space_overlap(
    risk: EmpiricalRisk, layer: str, *, space: str = "weights"
) -> OutputSpaceOverlap: ...
@overload
def output_space_overlap(
    risk: EmpiricalRisk, layer: _Names, *, space: _Names
) -> dict[tuple[str, str], OutputSpaceOverlap]: ...
@full_precision()
def output_space_overlap(
    risk: EmpiricalRisk, layer: str | _Names, *, space: str | _Names = "weights"
) -> OutputSpaceOverlap | dict[tuple[str, str], OutputSpaceOverlap]:
    """Compare the top eigenspace of E[M] with the row space of the weights above the layer.

    Wu §4.4 and Thm. H.1 say that at initialisation the top c − 1 eigenspace of E[M^(p)] is the row
    space R(S^(p)) less S^(p)·1. Table 10 finds it at minima: 0.602, 0.967, 0.982 for fc1, fc2, fc3
    of F-1500³ on MNIST, 0.890, 0.931, 0.999 for LeNet5; with random labels 0.235, 0.801, 0.998 and
    0.518, 0.912, 0.999. "S·1" must be Sᵀ1, a vector of the layer's output. Losses other than
    cross-entropy have no null space 1; there all of R(S) is compared.

    Cost: one forward pass over the data and C backward passes of the tail, for all layers and
    spaces together; C more for "gradients", one for each layer above for "firing".

    Args:
        risk: Its model must be an `nn.Module` with an output (samples, classes).
        layer: As for `OutputHessian`; or a list of layers.
        space: "weights" for S as above, which needs a chain of linear layers after this one;
            "firing" for W^(L) Π^(L−1) W^(L−1) ⋯ W^(p+1) Π^(p) with Π = diag π, the same with units
            that are not active half of the time, for a chain with activations unit by unit;
            "gradients" for S = E[∂z/∂(layer's output)], its mean over samples and positions, which
            any layer has. Or a list of these, with a list of layers.

    Returns:
        The overlap; of lists, one for each layer and space, by (layer, space).

    Raises:
        UnsupportedModelError: If the layer is no matrix, or no chain of linear layers follows.
        EmptySelectionError: If the space is empty: S is zero, or there is one class.

    Examples:
        Above the last layer there is nothing: S = I, and E[M] has the null space 1 itself.

        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3)).double()
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
        >>> risk = EmpiricalRisk(model, CrossEntropy(), (x, torch.tensor([0, 2])))
        >>> found = output_space_overlap(risk, "0")
        >>> found.dimension, round(found.overlap, 6)
        (2, 1.0)
    """
    spaces = [space] if isinstance(space, str) else list(space)
    for each in spaces:
        require_choice(each, SPACES, "output_space_overlap(space=...)")
    names = [layer] if isinstance(layer, str) else list(layer)
    matrices = matrix_layers(risk, names, "output_space_overlap(risk, layer)")
    layers = dict(zip(names, matrices, strict=True))
    chained = [each for each in spaces if each != "gradients"]
    above = {
        name: weights_above(risk, above_layer) for name, above_layer in layers.items() if chained
    }
    sums = _Sums(layers, spaces)
    with risk.ranks.together():
        for batch in risk.batches:
            sums.add(risk, batch)
    results = {}
    for name in layers:
        values, vectors = eigh(sums.output_hessian(risk, name))
        for each in spaces:
            S = above[name] if each == "weights" else sums.space(risk, name, each)
            results[name, each] = _compared(risk, name, each, S, values, vectors)
    return results[layer, spaces[0]] if isinstance(layer, str) else results


class _Sums:
    """What one pass over the data adds up, for all layers at once.

    Behind every linear layer, mean slopes of activations are added up too if "firing" is asked for:
    with a chain of linear layers above, those that run later are the chain.
    """

    def __init__(self, layers: dict[str, Layer], spaces: Sequence[str]) -> None:
        self.layers, self.spaces = layers, spaces
        self.hessians: dict[str, Tensor] = {}
        self.slopes: dict[tuple[str, int], Tensor] = {}
        self.rates: dict[nn.Module, Tensor] = {}
        self.order: list[nn.Module] = []

    def add(self, risk: EmpiricalRisk, batch: Batch) -> None:
        """Add a batch."""
        with torch.enable_grad(), risk.evaluating(frozen=True):
            prediction, activity = _shifted(risk, self._modules(risk), batch)
            for name, layer in self.layers.items():
                if len(activity.get(layer.module, ())) != 1:
                    raise UnsupportedModelError(
                        f"`output_space_overlap`: layer '{name}' does not run once in a forward "
                        "pass; it has not one output. Name another layer."
                    )
            if not have_exact_roots(prediction) or prediction.ndim != 2:
                raise UnsupportedModelError(
                    "`output_space_overlap` needs a model whose output is (samples, up to "
                    f"{MOST_OUTPUTS} logits)."
                )
            z = prediction.detach()
            shifts = [activity[layer.module][0][1] for layer in self.layers.values()]
            for root in exact_roots(risk, z, batch):
                for name, rows in self._rows(prediction, shifts, root):
                    flat = rows.flatten(0, 1) / rows.shape[1] ** 0.5
                    _put(self.hessians, name, (flat.T @ flat).double())
            if "gradients" in self.spaces:
                for output, unit in enumerate(unit_vectors(z, batch)):
                    for name, rows in self._rows(prediction, shifts, unit):
                        _put(self.slopes, (name, output), _total(rows.flatten(0, 1)))
            if "firing" in self.spaces:
                self._add_rates(activity)

    def _modules(self, risk: EmpiricalRisk) -> list[nn.Module]:
        chosen = [layer.module for layer in self.layers.values()]
        if "firing" not in self.spaces or risk.module is None:
            return chosen
        return list(dict.fromkeys([*chosen, *_linear(risk.module)]))

    def _rows(
        self, head: Tensor, shifts: Sequence[Tensor], cotangent: Tensor
    ) -> list[tuple[str, Tensor]]:
        """Return the slopes (N, P, m) at each layer's output."""
        slopes = torch.autograd.grad(
            head, shifts, cotangent, retain_graph=True, materialize_grads=True
        )
        return [
            (name, output_vectors(layer, slope))
            for (name, layer), slope in zip(self.layers.items(), slopes, strict=True)
        ]

    def _add_rates(self, activity: "_Seen") -> None:
        """Add the slopes of what lies between modules that run one after the other."""
        self.order = list(activity)
        for below, above in pairwise(self.order):
            (entering, _), (_, shift) = activity[above][0], activity[below][0]
            if not entering.requires_grad:
                continue
            (slope,) = torch.autograd.grad(
                entering.sum(), shift, retain_graph=True, materialize_grads=True
            )
            unit = slope if isinstance(below, nn.Linear) else slope.movedim(1, -1)
            _put(self.rates, below, _total(unit.flatten(0, -2)))

    def output_hessian(self, risk: EmpiricalRisk, name: str) -> Tensor:
        """Return E[M] (m, m)."""
        M = risk.ranks.sum(self.hessians[name]) / risk.divisor
        return (M + M.T) / 2

    def space(self, risk: EmpiricalRisk, name: str, kind: str) -> Tensor:
        """Return S (C, m) of the kinds that need data."""
        if kind == "gradients":
            totals = [total for (layer, _), total in self.slopes.items() if layer == name]
            return torch.stack([_mean(risk, total) for total in totals])
        start = self.order.index(self.layers[name].module)
        S = torch.eye(len(self.hessians[name]), dtype=torch.float64, device=risk.device)
        for below, above in pairwise(self.order[start:]):
            rate = _mean(risk, self.rates[below])
            weight: Any = above.weight
            S = weight.detach().double() @ (rate[:, None] * S)
        return S


# What each module was given and the zero added to its output, call by call, in the order they ran.
_Seen: TypeAlias = dict[nn.Module, list[tuple[Tensor, Tensor]]]


def _shifted(
    risk: EmpiricalRisk, modules: Sequence[nn.Module], batch: Batch
) -> tuple[Tensor, _Seen]:
    """Run a batch with a zero added to each module's output, to differentiate by."""
    activity: _Seen = {}

    def shift(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        refuse_recomputed(type(module).__name__)
        zero = torch.zeros_like(output, requires_grad=True)
        entering = args[0] if args else kwargs["input"]
        activity.setdefault(module, []).append((entering, zero))
        return output + zero

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(shift, with_kwargs=True).remove)
        # Without a graph below the first of the modules, which nobody differentiates.
        fixed = {name: value.detach() for name, value in risk.parameters().items()}
        return risk.output(fixed, batch), activity


def _linear(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def _total(rows: Tensor) -> Tensor:
    """Return the sum of rows (k, m), and their number last."""
    count = torch.full((1,), float(len(rows)), dtype=torch.float64, device=rows.device)
    return torch.cat([rows.double().sum(0), count])


def _mean(risk: EmpiricalRisk, total: Tensor) -> Tensor:
    """Return the mean that belongs to `_total`, over all ranks."""
    summed = risk.ranks.sum(total)
    return summed[:-1] / summed[-1]


def _put(sums: dict[Any, Tensor], key: Any, summand: Tensor) -> None:
    sums[key] = sums[key] + summand if key in sums else summand


def _compared(
    risk: EmpiricalRisk, layer: str, space: str, S: Tensor, values: Tensor, vectors: Tensor
) -> OutputSpaceOverlap:
    """Compare R(S) with the eigenvectors, whose values ascend."""
    spread, without_mean = S, S
    if isinstance(risk.loss, CrossEntropy):
        s = S.sum(0)
        spread = S - S.mean(0)
        without_mean = S - torch.outer(S @ s, s) / s.square().sum().clamp_min(
            torch.finfo(s.dtype).tiny
        )
    basis = _row_space(spread)
    d, m = basis.shape[1], len(values)
    if d == 0:
        raise EmptySelectionError(
            f"`output_space_overlap(risk, {layer!r})`: the row space of S is empty, since S is "
            "zero or there is one class. Look at the weights that follow the layer."
        )
    top = vectors[:, -d:].flip(1)
    trace = float(values.sum())
    held = float(((vectors.T @ basis).square().sum(1) * values).sum())
    removed = _row_space(without_mean)[:, :d]
    return OutputSpaceOverlap(
        status=Status(True, f"Spaces of dimension {d} of {m}."),
        num_products=0,
        seed=0,
        layer=layer,
        space=space,
        dimension=d,
        overlap=float(eigenspace_overlap(top, basis).overlaps[-1]),
        overlap_removed=float((top.T @ removed).square().sum()) / d,
        chance=d / m,
        trace_share=held / trace if trace > 0 else 0.0,
        values=values.flip(0).cpu(),
    )


def _row_space(S: Tensor) -> Tensor:
    """Return an orthonormal basis (m, rank) of the rows, largest first."""
    _, sizes, Vh = torch.linalg.svd(S, full_matrices=False)
    kept = sizes > max(S.shape) * torch.finfo(S.dtype).eps * sizes[0]
    basis: Tensor = Vh[: int(kept.sum())].T
    return basis
