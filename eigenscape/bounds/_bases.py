"""Eigenvectors of the layers' Hessians, and what gradients look like in them.

Letters: x̃ (n) input of a layer with a 1 for its bias, M (m, m) the Hessian at its output, U and V
eigenvectors of E[M] and E[x̃x̃ᵀ], A the Hessian at the network's output, S the product of weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from eigenscape.curvature import KroneckerHessian, LayerHessian, OutputHessian, exact_roots
from eigenscape.device import eigh
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import (
    EmpiricalRisk,
    Layer,
    capture_tail,
    find_layer,
    input_vectors,
    matrix_obstacle,
    output_vectors,
)

# Rotations, eigenvalues in the order of the basis, and the kind that was made.
Found = tuple[tuple[Tensor, ...], Tensor, str]
Groups = Mapping[str, tuple[str, ...]]


def parameter_groups(risk: EmpiricalRisk) -> dict[str, tuple[str, ...]]:
    """Return the parameters by layer, in their order; those of no matrix layer one by one."""
    groups: dict[str, tuple[str, ...]] = {}
    for name in risk.space.names:
        if risk.module is None:
            groups[name] = (name,)
            continue
        layer = find_layer(risk, name.rpartition(".")[0])
        plain = matrix_obstacle(layer) is None
        # A model that is a layer itself has no name; its weight names it.
        key = (layer.name or layer.params[0]) if plain else name
        groups.setdefault(key, layer.params if plain else (name,))
    return groups


class InputAxes:
    """Eigenvectors of the layers' E[x̃x̃ᵀ], computed again only where that has changed.

    That of a first layer never changes: its inputs are the data.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[str, tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def find(self, name: str, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Return eigenvalues, falling, and eigenvectors of a layer's factor."""
        known = self._known.get(name)
        if known is None or not torch.equal(known[0], factor):
            known = self._known[name] = factor, _eigh(factor)
        return known[1]


def layer_rotations(
    risk: EmpiricalRisk, groups: Groups, kind: str, most_exact: int, axes: InputAxes
) -> dict[str, Found]:
    """Decompose the Hessians of all matrix layers.

    Args:
        risk: Model, loss and data.
        groups: Parameters by layer.
        kind: "kronecker", "approximate" or "exact".
        most_exact: Largest layer to decompose as a whole.
        axes: Eigenvectors of the inputs from earlier calls; those of this call are added.

    Returns:
        What was found for each layer that is a matrix, by its name.

    Raises:
        UnsupportedModelError: If the model is a function, or "approximate" meets no chain.
    """
    if risk.module is None:
        raise UnsupportedModelError(
            f"`layer_basis(risk, {kind!r})` needs an nn.Module with layers; the model is a pure "
            "function. Use kind='standard'."
        )
    layers = {name: _layer(risk, params) for name, params in groups.items()}
    matrices = {name: layer for name, layer in layers.items() if matrix_obstacle(layer) is None}
    outputs = _chain_outputs(risk, matrices) if kind == "approximate" else {}
    rotations: dict[str, Found] = {}
    for name, layer in matrices.items():
        # "fc1" for weight and bias, "fc1.weight" for the weight alone.
        label = layer.name if len(layer.params) > 1 else layer.params[0]
        if kind == "exact" and _size(risk, layer) <= most_exact:
            values, Q = _eigh(LayerHessian(risk, label).to_dense())
            rotations[name] = ((Q,), values, "exact")
            continue
        if kind == "approximate":
            factors, made = (outputs[name], _input_factor(risk, layer)), kind
        else:
            hessian = KroneckerHessian(risk, label)
            factors, made = (hessian.output_factor, hessian.input_factor), "kronecker"
        (left, U), (right, V) = _eigh(factors[0]), axes.find(name, factors[1])
        rotations[name] = ((U, V), torch.outer(left, right).flatten(), made)
    return rotations


def gradient_factors(risk: EmpiricalRisk, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield δ (N, P, m) and x̃ (N, P, n): squares of Σ_p δ_p x̃_pᵀ add up to Gauss-Newton.

    Args:
        risk: Model, loss and data.
        name: The layer's name among the `parameter_groups`; others than matrices give nothing.

    Yields:
        Both sides of single samples' gradients, one batch and one root of A after the other.
    """
    layer = _layer(risk, parameter_groups(risk)[name]) if risk.module is not None else None
    if layer is None or matrix_obstacle(layer) is not None:
        return
    for batch in risk.batches:
        with risk.evaluating(frozen=True):
            tail = capture_tail(risk, layer, batch)
            x = input_vectors(layer, tail)
            for root in exact_roots(risk, tail.prediction.detach(), batch):
                (slope,) = torch.autograd.grad(
                    tail.prediction, tail.output, root, retain_graph=True
                )
                yield output_vectors(layer, slope).double(), x.double()


def _layer(risk: EmpiricalRisk, params: Sequence[str]) -> Layer:
    # A single parameter by its own name: its layer may have others that stand alone.
    return find_layer(risk, params[0].rpartition(".")[0] if len(params) > 1 else params[0])


def _size(risk: EmpiricalRisk, layer: Layer) -> int:
    return sum(t.numel() for name, t in risk.parameters().items() if name in layer.params)


def _chain_outputs(risk: EmpiricalRisk, layers: Mapping[str, Layer]) -> dict[str, Tensor]:
    """Return M̃ of every layer by Wu (56), with E[A] from the data."""
    params = risk.parameters()
    weights = [params[layer.params[0]].double() for layer in layers.values()]
    chained = all(a.shape[:1] == b.shape[1:] for a, b in pairwise(weights))
    if not chained or not all(isinstance(layer.module, nn.Linear) for layer in layers.values()):
        raise UnsupportedModelError(
            "`layer_basis(risk, 'approximate')` is for chains of linear layers (Wu (56)); these "
            f"have weights {[tuple(W.shape) for W in weights]}. Use kind='kronecker', which is the "
            "basis of the method 'iter' (`--method iter`)."
        )
    last = list(layers.values())[-1]
    A = OutputHessian(risk, last.name or last.params[0]).matrix
    outputs: dict[str, Tensor] = {}
    S = torch.eye(len(A)).to(weights[-1])
    for name, W in zip(reversed([*layers]), reversed(weights), strict=True):
        outputs[name] = S.T @ A.to(S) @ S
        S = 0.5 * (S @ W)  # half of the units below are active
    return outputs


def _input_factor(risk: EmpiricalRisk, layer: Layer) -> Tensor:
    """Return E[x̃x̃ᵀ] over samples and positions, float64. Cost: a forward pass."""
    total, count = torch.zeros((), dtype=torch.float64, device=risk.device), 0
    for batch in risk.batches:
        x = input_vectors(layer, capture_tail(risk, layer, batch)).flatten(0, 1)
        total, count = total + (x.T @ x).double(), count + len(x)
    return total / count


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, falling, and eigenvectors as columns, float64.

    Where eigenvalues are 0 any vectors would do, and a solver's differ from call to call. Variances
    are carried from basis to basis, and would be mixed each time, so ours are near unit vectors:
    those of units and inputs that are always 0 are unit vectors. (ITER.M has many such: with 6000
    images of MNIST and 100 units its bound is 0.249, 0.260 with LAPACK's, 0.288 with random ones.)
    """
    full = matrix.double()
    values, vectors = (tensor.flip(-1) for tensor in eigh((full + full.T) / 2))
    size = values.abs()
    is_null = size <= len(size) * torch.finfo(size.dtype).eps * size.max()
    if bool(is_null.any()):
        vectors[:, is_null] = _complement(vectors[:, ~is_null])
    # Contiguous, as files give them back: products then end in the same bits.
    return values, vectors.contiguous()


def _complement(vectors: Tensor) -> Tensor:
    """Return an orthonormal basis (n, n − k) of what is orthogonal to orthonormal columns (n, k).

    Reflections that turn k unit vectors into the columns turn the others into the basis; the k are
    those that the columns have most of.
    """
    order = vectors.square().sum(1).argsort(descending=True, stable=True)
    Q, _ = torch.linalg.qr(vectors[order], mode="complete")
    complement = torch.empty_like(Q[:, vectors.shape[1] :])
    complement[order] = Q[:, vectors.shape[1] :]
    return complement
