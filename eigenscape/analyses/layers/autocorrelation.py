"""Is a layer's input, on average, one direction? E[xxᵀ], its mean part and its covariance.

Letters: x the vectors (n) that the layer's matrix multiplies; for a convolution the unfolded
patches X (n, P) at its P positions; λ_i and v_i eigenvalues and eigenvectors of E[xxᵀ].
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.analyses.layers._pictures import autocorrelation_picture, autocorrelations_picture
from eigenscape.analyses.layers.layer_curvature import layer_names
from eigenscape.device import eigh, full_precision
from eigenscape.errors import EmptySelectionError, UnsupportedModelError
from eigenscape.records import Columns, Picture, Record, Status
from eigenscape.risk import EmpiricalRisk, Layer, Tail, find_layer, input_vectors, matrix_obstacle


@dataclass(frozen=True, eq=False)
class Autocorrelation(Record):
    """What goes into a layer: E[xxᵀ] = E[x]E[x]ᵀ + Σ, and how much of it the mean is.

    Where the mean dominates, E[xxᵀ] is close to rank one, `alignment` to 1, and `ratio` and
    `dominance` are large (Wu §4.3, App. E.1). Wu Table 6 has, for the layers but the first of
    F-200² on MNIST, alignment 1.000 and λ₁/λ₂ from 9.65 to 16.16; Table 8, behind batch
    normalisation, 0.062 and 1.16.

    λ₁/λ₂ is at least ‖E[x]E[x]ᵀ‖/‖Σ‖ for every fully connected layer: λ₁ ≥ ‖E[x]E[x]ᵀ‖ since Σ has
    no negative eigenvalue, and λ₂ ≤ ‖Σ‖. That is one better than Wu (52).

    Attributes:
        layer: The layer's name as it was asked for.
        bias: Whether the last entry of x is the 1 that the bias multiplies.
        num_vectors: How many x the means are over: samples times positions.
        num_positions: P of a convolution. Linear layers have 1: what they multiply is alike
            wherever it stands.
        matrix: E[xxᵀ] (n, n), float64, over samples and positions.
        means: E[X] (n, P), float64, over samples.
        values: λ (n,), descending.
        vector: v₁ (n,).
        direction: Ê[x] (n,): E[x]/‖E[x]‖; for a convolution the first left singular vector of E[X]
            (Wu App. E.1). Zero if the mean is.
        alignment: (v₁ᵀ Ê[x])².
        ratio: λ₁/λ₂; infinite where λ₂ = 0.
        dominance: ‖E[x]E[x]ᵀ‖/‖Σ‖ in spectral norm, with E[X]E[X]ᵀ/P for a convolution; infinite
            where Σ = 0.
    """

    layer: str
    bias: bool
    num_vectors: int
    num_positions: int
    matrix: Tensor
    means: Tensor
    values: Tensor
    vector: Tensor
    direction: Tensor
    alignment: float
    ratio: float
    dominance: float

    @property
    def mean(self) -> Tensor:
        """E[x] (n,), over samples and positions."""
        return self.means.mean(1)

    @property
    def covariance(self) -> Tensor:
        """Σ (n, n), around the mean; for a convolution around each position's own."""
        return self.matrix - _mean_part(self.means)

    def columns(self) -> Columns:
        """Return one row."""
        return _columns((self,))

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (autocorrelation_picture(self),)


@dataclass(frozen=True, eq=False)
class Autocorrelations(Record):
    """What goes into each of several layers.

    Attributes:
        layers: One entry for each layer, in order.
    """

    layers: tuple[Autocorrelation, ...]

    def columns(self) -> Columns:
        """Return one row for each layer."""
        return _columns(self.layers)

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (autocorrelations_picture(self),)


def autocorrelation(risk: EmpiricalRisk, layer: str, *, bias: bool = False) -> Autocorrelation:
    """Look at what goes into one layer.

    Cost: one forward pass over the data, a product (n, N) (N, n) for the N vectors x, and two
    eigendecompositions (n, n).

    Args:
        risk: Its model must be an `nn.Module`.
        layer: The name of a linear layer or a convolution.
        bias: Append the 1 that the layer's bias multiplies, where it has one. Wu looks at weights
            alone and leaves it out, except for the full Hessian (App. B, (41)).

    Returns:
        Matrix, mean, spectrum, and how close to rank one it is.

    Raises:
        UnsupportedModelError: If the layer is not one matrix applied to vectors, or does not run.

    Examples:
        Inputs (1, 1) and (1, −1) have mean (1, 0) and covariance diag(0, 1).

        >>> from eigenscape.risk.losses import SquaredError
        >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3))
        >>> risk = EmpiricalRisk(model, SquaredError(), (x, torch.zeros(2, 3)))
        >>> found = autocorrelation(risk, "0")
        >>> found.matrix.tolist(), found.mean.tolist(), found.dominance
        ([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0], 1.0)

    References:
        Wu §4.3, App. E.1, Tables 6–8.
    """
    return autocorrelations(risk, [layer], bias=bias).layers[0]


@full_precision()
def autocorrelations(
    risk: EmpiricalRisk, layers: Sequence[str] | None = None, *, bias: bool = False
) -> Autocorrelations:
    """Look at what goes into several layers, in one pass over the data.

    Args:
        risk: Its model must be an `nn.Module`.
        layers: Names of linear layers and convolutions; all of them by default.
        bias: As for `autocorrelation`.

    Returns:
        One entry for each layer. All E[xxᵀ] are in memory at once.

    Raises:
        EmptySelectionError: If there is no such layer.
        UnsupportedModelError: As for `autocorrelation`.
    """
    names = _matrix_layers(risk) if layers is None else layers
    by_name = {name: find_layer(risk, name, f"autocorrelation(risk, {name!r})") for name in names}
    if not by_name:
        raise EmptySelectionError(
            "`autocorrelations(risk)` found no linear layer or convolution. Name layers of these "
            "kinds, or use a model that has some."
        )
    for name, layer in by_name.items():
        if (obstacle := matrix_obstacle(layer)) is not None:
            raise UnsupportedModelError(
                f"`autocorrelation(risk, {name!r})` needs a linear layer or a convolution: "
                f"{obstacle}. Name another layer."
            )
    inputs = {name: _Inputs(layer, bias) for name, layer in by_name.items()}
    with risk.ranks.together():
        _collect(risk, inputs)
    entries = tuple(_entry(risk, name, layer_inputs) for name, layer_inputs in inputs.items())
    return Autocorrelations(
        status=Status(True, f"{len(entries)} layers, {risk.num_samples} samples."),
        num_products=0,
        seed=0,
        layers=entries,
    )


class _Inputs:
    """Sums over the inputs of one layer: a hook that sees each call."""

    def __init__(self, layer: Layer, bias: bool) -> None:
        self.layer = layer
        self.has_one = bias and "bias" in layer.fields
        self.num_samples = 0
        self.sums = self.squares = torch.zeros((), dtype=torch.float64)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        x = input_vectors(self.layer, Tail(args, kwargs, output, output, output))
        if "bias" in self.layer.fields and not self.has_one:
            x = x[..., :-1]
        if isinstance(module, nn.Linear):
            x = x.flatten(0, 1)[:, None]
        flat = x.flatten(0, 1)
        sums = x.double().sum(0).T
        if self.num_samples and sums.shape != self.sums.shape:
            raise UnsupportedModelError(
                f"`autocorrelation(risk, {self.layer.name!r})` needs images of one size; got "
                f"{self.sums.shape[1]} and {sums.shape[1]} positions. Sort the data by size."
            )
        self.sums = self.sums.to(sums) + sums
        self.squares = self.squares.to(sums) + (flat.T @ flat).double()
        self.num_samples += len(x)


def _collect(risk: EmpiricalRisk, inputs: dict[str, _Inputs]) -> None:
    """Pass over this rank's data once with all hooks in place."""
    with ExitStack() as stack, torch.no_grad(), risk.evaluating():
        for layer_inputs in inputs.values():
            handle = layer_inputs.layer.module.register_forward_hook(layer_inputs, with_kwargs=True)
            stack.callback(handle.remove)
        for batch in risk.batches:
            risk.output(risk.parameters(), batch)
    for name, layer_inputs in inputs.items():
        if layer_inputs.num_samples == 0:
            raise UnsupportedModelError(
                f"`autocorrelation(risk, {name!r})`: the layer did not run in a forward pass. Name "
                "another layer."
            )


def _entry(risk: EmpiricalRisk, name: str, inputs: _Inputs) -> Autocorrelation:
    count = int(risk.ranks.sum(torch.tensor(inputs.num_samples)))
    means = risk.ranks.sum(inputs.sums) / count
    n, P = means.shape
    matrix = risk.ranks.sum(inputs.squares) / (count * P)
    matrix = (matrix + matrix.T) / 2
    values, vectors = (ascending.flip(-1) for ascending in eigh(matrix))
    mean_part = _mean_part(means)
    spread = _norm(matrix - mean_part)
    direction = _direction(means)
    alignment = float((vectors[:, 0] @ direction).square())
    return Autocorrelation(
        status=Status(True, f"{count} samples, {P} positions."),
        num_products=0,
        seed=0,
        layer=name,
        bias=inputs.has_one,
        num_vectors=count * P,
        num_positions=P,
        matrix=matrix.cpu(),
        means=means.cpu(),
        values=values.cpu(),
        vector=(vectors[:, 0] * _sign(vectors[:, 0] @ direction)).cpu(),
        direction=direction.cpu(),
        alignment=alignment,
        ratio=_quotient(float(values[0]), float(values[1]) if n > 1 else 0.0),
        dominance=_quotient(_norm(mean_part), spread),
    )


def _direction(means: Tensor) -> Tensor:
    """Return the first left singular vector of E[X] on the side of the mean; zero if E[X] is."""
    if not bool(means.any()):
        return torch.zeros_like(means[:, 0])
    if means.shape[1] == 1:
        return torch.nn.functional.normalize(means[:, 0], dim=0)
    first: Tensor = eigh(_mean_part(means))[1][:, -1]
    return first * _sign(first @ means.mean(1))


def _mean_part(means: Tensor) -> Tensor:
    return means @ means.T / means.shape[1]


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix).abs().max())


def _sign(product: Tensor) -> float:
    return -1.0 if product < 0 else 1.0


def _quotient(large: float, small: float) -> float:
    return large / small if small > 0 else math.inf


def _matrix_layers(risk: EmpiricalRisk) -> list[str]:
    names = layer_names(risk)
    return [name for name in names if matrix_obstacle(find_layer(risk, name)) is None]


def _columns(rows: Sequence[Autocorrelation]) -> Columns:
    return {
        "layer": [row.layer for row in rows],
        "inputs": [len(row.values) for row in rows],
        "positions": [row.num_positions for row in rows],
        "alignment": [row.alignment for row in rows],
        "ratio": [row.ratio for row in rows],
        "dominance": [row.dominance for row in rows],
    }
