"""One layer of one network, measured once for all studies of Wu.

Letters: H the Hessian of the layer's weight (m·n, m·n), h_i its eigenvectors, M the Hessian at the
layer's output, x its input, P positions (1 for a fully connected layer).
"""

from dataclasses import dataclass

from torch import Tensor

from eigenscape.analyses import Autocorrelation, autocorrelation, layer_names
from eigenscape.dense import eigh
from eigenscape.errors import UnsupportedModelError
from eigenscape.layers import find_layer, matrix_obstacle
from eigenscape.linalg import certify, eigsh
from eigenscape.operators import KroneckerHessian, LayerHessian
from eigenscape.pairs import EigenPairs
from eigenscape.progress import ProgressCallback
from eigenscape.risk import EmpiricalRisk

# Below this size a block is formed and diagonalised whole: cheaper than many pairs one by one.
# Below the second, one that is formed anyway is diagonalised too.
_DENSE, _FORMED = 1000, 4000
TOLERANCE = 1e-6


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


def matrix_layers(risk: EmpiricalRisk) -> tuple[str, ...]:
    """Return the layers that are one weight matrix applied to vectors.

    Args:
        risk: The risk.

    Returns:
        Their names, in the model's order.

    Raises:
        UnsupportedModelError: If there is none.
    """
    found = tuple(
        name
        for name in layer_names(risk)
        if f"{name}.weight" in risk.space
        and matrix_obstacle(find_layer(risk, f"{name}.weight")) is None
    )
    if not found:
        raise UnsupportedModelError(
            "A study of Wu needs linear layers or convolutions that run once each; this network "
            "has none. Look at it with `eigenscape analyze`."
        )
    return found
