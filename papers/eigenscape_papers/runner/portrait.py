"""One layer of one network, measured once for all studies of Wu.

Letters: H the Hessian of the layer's weight (m·n, m·n), h_i its eigenvectors, M the Hessian at the
layer's output, x its input, P positions (1 for a fully connected layer).
"""

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eigenscape.analyses import Autocorrelation, autocorrelation, layer_names
from eigenscape.curvature import KroneckerHessian, LayerHessian
from eigenscape.device import eigh
from eigenscape.errors import UnsupportedModelError
from eigenscape.linalg import certify, eigsh
from eigenscape.records import EigenPairs, ProgressCallback
from eigenscape.risk import EmpiricalRisk, find_layer, matrix_obstacle

# Below this size a block is formed and diagonalised whole: cheaper than many pairs one by one.
# Below the second, one that is formed anyway is diagonalised too.
_DENSE, _FORMED = 1000, 4000
TOLERANCE = 1e-6
# More numbers than this, half a gigabyte, the eigenvectors of one layer shall not have.
_MOST_NUMBERS = 2**26
_FEW_SAMPLES = 8


@dataclass(frozen=True, eq=False)
class Portrait:
    """A layer's Hessian and its Kronecker factors.

    Attributes:
        layer: The layer's name.
        pairs: Top eigenpairs of H.
        kronecker: E[M] ⊗ E[xxᵀ].
        inputs: What E[xxᵀ] is like.
    """

    layer: str
    pairs: EigenPairs
    kronecker: KroneckerHessian
    inputs: Autocorrelation

    @property
    def values(self) -> Tensor:
        """The top eigenvalues of H."""
        return self.pairs.values

    @property
    def num_outputs(self) -> int:
        """Outputs of the layer, m."""
        return len(self.kronecker.output_factor)

    @property
    def num_inputs(self) -> int:
        """Inputs of the layer, n."""
        return len(self.kronecker.input_factor)

    @property
    def num_parameters(self) -> int:
        """Size of H."""
        return self.num_outputs * self.num_inputs

    def matrices(self) -> Tensor:
        """Return the eigenvectors as matrices (k, m, n)."""
        return self.kronecker.to_matrices(self.pairs.vectors)

    def kronecker_pairs(self, count: int) -> EigenPairs:
        """Return the top eigenpairs of E[M] ⊗ E[xxᵀ]."""
        return self.kronecker.top_pairs(min(count, self.num_parameters))


def take_portrait(
    risk: EmpiricalRisk, layer: str, num_pairs: int, progress: ProgressCallback | None = None
) -> Portrait:
    """Measure a layer: top pairs of its Hessian with certificates, E[M], E[xxᵀ] and E[x].

    Args:
        risk: The risk, in float64.
        layer: The layer's name; only its weight is looked at, as in Wu.
        num_pairs: Eigenpairs wanted.
        progress: Told how far the eigenpairs are.

    Returns:
        The portrait.
    """
    weight = f"{layer}.weight"
    q = risk.restricted([weight]).space.size
    count = min(num_pairs, q)
    H = LayerHessian(risk, weight, num_products=q if q <= _DENSE else 4 * count)
    if q <= _DENSE or (q <= _FORMED and H.representation == "dense"):
        vectors = eigh(H.to_dense().double())[1].flip(1)[:, :count]
        pairs = certify(H, vectors.to(H.dtype), tolerance=TOLERANCE)
    else:
        pairs = eigsh(H, num_pairs=count, tolerance=TOLERANCE, progress=progress)
    return Portrait(layer, pairs, KroneckerHessian(risk, weight), autocorrelation(risk, layer))


def pairs_around_outputs(risk: EmpiricalRisk, layer: str, num_pairs: int) -> int:
    """Return how many eigenpairs show what becomes of a layer at m outputs and beyond.

    Args:
        risk: The risk.
        layer: The layer's name.
        num_pairs: The least.

    Returns:
        A fifth more than m, or all where there are fewer; the least where the eigenvectors would
        take too much memory.
    """
    shape = risk.space.shapes[f"{layer}.weight"]
    q = math.prod(shape)
    wanted = max(num_pairs, min(-(-6 * shape[0] // 5), q))
    return wanted if wanted * q <= _MOST_NUMBERS else num_pairs


def matrix_layers(risk: EmpiricalRisk) -> tuple[str, ...]:
    """Return the layers that are one weight matrix applied to vectors, and run once.

    Cost: one forward pass of a few samples.

    Args:
        risk: The risk.

    Returns:
        Their names, in the model's order.

    Raises:
        UnsupportedModelError: If there is none.
    """
    obstacles = layer_obstacles(risk)
    layers = tuple(name for name, obstacle in obstacles.items() if obstacle is None)
    if layers:
        return layers
    root, look = risk.module, "Look at it with `eigenscape analyze`."
    why = f"this network has none. {look}"
    if obstacles:
        why = f"of this network none will do: {_listed(obstacles)}. {look}"
    elif isinstance(root, nn.Linear | nn.modules.conv._ConvNd):
        kind = type(root).__name__
        why = f"this network is a {kind} and no more, which has no name. Wrap it into a Sequential."
    raise UnsupportedModelError(
        f"A study of layers needs linear layers or convolutions that run once each; {why}"
    )


def layer_obstacles(risk: EmpiricalRisk) -> dict[str, str | None]:
    """Say of each linear layer and convolution why it cannot be looked at by itself.

    Cost: one forward pass of a few samples.

    Args:
        risk: The risk.

    Returns:
        The reason, or None where it can be, by the layer's name in the model's order.
    """
    modules = _linear_modules(risk)
    counts = Counter(_calls(risk, modules))
    by_layer: dict[str, str | None] = {}
    for name in modules:
        weight, count = f"{name}.weight", counts[name]
        if weight not in risk.space:
            by_layer[name] = "its weight is held fixed"
        elif (obstacle := matrix_obstacle(find_layer(risk, weight))) is not None:
            by_layer[name] = obstacle
        elif count != 1:
            times = f"runs {count} times in a forward pass" if count else "does not run by itself"
            by_layer[name] = f"it {times}"
        else:
            by_layer[name] = None
    return by_layer


def last_layer(risk: EmpiricalRisk) -> str:
    """Return the linear layer or convolution that runs last, also one that is left out.

    Cost: one forward pass of a few samples.

    Args:
        risk: Its model must have one that runs.

    Returns:
        Its name.
    """
    return _calls(risk, _linear_modules(risk))[-1]


def left_out(risk: EmpiricalRisk) -> str:
    """Return a sentence on the layers that `matrix_layers` leaves out and a user may miss."""
    obstacles = _listed(layer_obstacles(risk))
    return f"Left out where layers are looked at one by one: {obstacles}." if obstacles else ""


def _listed(obstacles: dict[str, str | None]) -> str:
    return "; ".join(f"{name} ({why})" for name, why in obstacles.items() if why is not None)


def _linear_modules(risk: EmpiricalRisk) -> dict[str, nn.Module]:
    """Return linear layers and convolutions that are part of the model, by name."""
    modules = {
        name: find_layer(risk, name).module
        for name in layer_names(risk)
        if name not in risk.space  # a parameter of the model itself
    }
    kinds = nn.Linear | nn.modules.conv._ConvNd
    return {name: module for name, module in modules.items() if isinstance(module, kinds)}


def _calls(risk: EmpiricalRisk, modules: dict[str, nn.Module]) -> list[str]:
    """Return which modules one forward pass calls, in this order."""
    called: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, module in modules.items()
    ]
    try:
        with torch.no_grad(), risk.evaluating():
            risk.output(risk.parameters(), risk.batches.sample(_FEW_SAMPLES))
    finally:
        for hook in hooks:
            hook.remove()
    return called
