"""Gaussian posteriors whose covariance is diagonal in a basis of each layer (Wu §6, App. G).

Letters: w (P) posterior mean, w₀ prior mean, s (P) variances along the basis vectors, λ prior
variance; Q the orthogonal matrix with the basis vectors as columns, so that Σ = Q diag(s) Qᵀ. For a
layer with the matrix W̃ (m, n), bias last, a Kronecker basis is Q = U ⊗ V: coordinates are
Uᵀ Mat(w) V, Wu (64). The prior N(w₀, λI) looks alike in every basis, so KL needs s and w − w₀ only.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenscape.bounds._bases import InputAxes, gradient_factors, layer_rotations, parameter_groups
from eigenscape.bounds._prior import Prior, prior_sha256, prior_vector, require_unseen
from eigenscape.bounds._task import Task
from eigenscape.bounds.kl import gaussian_kl
from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    require_choice,
    require_positive,
)
from eigenscape.records import storable
from eigenscape.risk import EmpiricalRisk

KINDS = ("standard", "kronecker", "approximate", "exact")
SOURCES = ("initialisation", "other data")

# Numbers of single samples' gradients held at a time.
_MOST_NUMBERS = 2**23


@storable
@dataclass(frozen=True, eq=False)
class LayerBasis:
    """An orthonormal basis of one layer's parameters.

    Attributes:
        name: The layer, or the parameter where it stands alone.
        kind: "standard", "kronecker", "approximate" or "exact"; "full" for the eigenvectors of an
            optimised covariance.
        start: Where its parameters begin in the flat vector; they are contiguous.
        size: How many there are.
        has_bias: Whether a bias follows the weight, and is the last column of W̃.
        rotations: Nothing, U (m, m) and V (n, n), or Q (size, size); vectors are columns.
        eigenvalues: Curvature along the basis vectors (size,) as the factors have it, float64;
            zero where it is not known.
    """

    name: str
    kind: str
    start: int
    size: int
    has_bias: bool
    rotations: tuple[Tensor, ...]
    eigenvalues: Tensor

    def rotate(self, rows: Tensor, *, back: bool = False) -> Tensor:
        """Return rows (k, size) in coordinates of the basis; `back` undoes that."""
        if not self.rotations:
            return rows
        if len(self.rotations) == 1:
            return rows @ (self.rotations[0].T if back else self.rotations[0])
        U, V = self.rotations
        if back:
            return self._flat(U @ rows.view(len(rows), len(U), len(V)) @ V.T)
        return (U.T @ self._matrices(rows, len(U)) @ V).flatten(1)

    def matrix(self, values: Tensor, m: int) -> Tensor:
        """Return numbers along the basis vectors (size,) as a matrix of m rows, like UᵀW̃V."""
        return values.view(m, -1) if self.rotations else self._matrices(values[None], m)[0]

    def carry(self, values: Tensor, new: "LayerBasis") -> Tensor:
        """Return the diagonal of Q diag(values) Qᵀ in another basis of the same layer, (size,)."""
        ours, theirs = self.rotations, new.rotations
        if not ours and not theirs:
            return values
        if 1 in (len(ours), len(theirs)):
            eye = torch.eye(self.size, dtype=values.dtype, device=values.device)
            return values @ new.rotate(self.rotate(eye, back=True)).square()
        m = len((ours or theirs)[0])
        M = self.matrix(values, m)
        # Squared entries of Q'ᵀQ, one factor at a time.
        pairs = [
            (b.T @ a if ours and theirs else a if ours else b.T).square()
            for a, b in zip(ours or theirs, theirs or ours, strict=True)
        ]
        M = pairs[0] @ M @ pairs[1].T
        return M.flatten() if theirs else self._flat(M.unsqueeze(0))[0]

    def squares(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """Return Σ of squared coordinates of Σ_p δ_p x̃_pᵀ over samples, (size,).

        Args:
            deltas: δ (N, P, m).
            inputs: x̃ (N, P, n).

        Returns:
            One sum for each basis vector.
        """
        if len(self.rotations) == 2:
            deltas, inputs = deltas @ self.rotations[0], inputs @ self.rotations[1]
        if deltas.shape[1] == 1 and len(self.rotations) != 1:
            total = deltas[:, 0].square().T @ inputs[:, 0].square()
        else:
            step = max(1, _MOST_NUMBERS // (deltas.shape[2] * inputs.shape[2]))
            pairs = zip(deltas.split(step), inputs.split(step), strict=True)
            matrices = (d.mT @ x for d, x in pairs)
            if len(self.rotations) == 1:
                rows = (self._flat(G) @ self.rotations[0] for G in matrices)
                return torch.stack([row.square().sum(0) for row in rows]).sum(0)
            total = torch.stack([G.square().sum(0) for G in matrices]).sum(0)
        return total.flatten() if self.rotations else self._flat(total.unsqueeze(0))[0]

    def _matrices(self, rows: Tensor, m: int) -> Tensor:
        if not self.has_bias:
            return rows.view(len(rows), m, -1)
        weight = rows[:, :-m].reshape(len(rows), m, -1)
        return torch.cat([weight, rows[:, -m:, None]], dim=2)

    def _flat(self, matrices: Tensor) -> Tensor:
        if not self.has_bias:
            return matrices.flatten(1)
        return torch.cat([matrices[:, :, :-1].flatten(1), matrices[:, :, -1]], dim=1)


@storable
@dataclass(frozen=True, eq=False)
class Basis:
    """An orthonormal basis of all parameters, layer by layer.

    Attributes:
        layers: The layers' bases, one after the other.
    """

    layers: tuple[LayerBasis, ...]

    @property
    def size(self) -> int:
        """Number of parameters, P."""
        return sum(layer.size for layer in self.layers)

    @property
    def eigenvalues(self) -> Tensor:
        """Curvature along the basis vectors, (P,) float64; zero where it is not known."""
        return torch.cat([layer.eigenvalues for layer in self.layers])

    def to_basis(self, X: Tensor) -> Tensor:
        """Return columns (P,) or (P, k) in coordinates of the basis: Qᵀ X, Wu (64)."""
        return self._mapped(X, back=False)

    def to_standard(self, X: Tensor) -> Tensor:
        """Undo `to_basis`: Q X, Wu (65)."""
        return self._mapped(X, back=True)

    def carry(self, variances: Tensor, new: "Basis") -> Tensor:
        """Return the diagonal that the covariance Q diag(variances) Qᵀ has in another basis.

        The trace stays, and log det does not fall (Hadamard): what is lost are the covariances
        between the new basis vectors.

        Args:
            variances: (P,), along the vectors of this basis.
            new: A basis of the same layers.

        Returns:
            Variances along the vectors of the new basis, (P,).
        """
        self._require_size(variances, "Basis.carry(variances)")
        pairs = zip(self.layers, new.layers, strict=True)
        return torch.cat([old.carry(_part(variances, old), other) for old, other in pairs])

    def orthonormality(self) -> float:
        """Return the largest entry of |QᵀQ − I| over all rotations, computed in float64."""
        gaps = [
            (R.double().T @ R.double() - torch.eye(len(R), dtype=torch.float64, device=R.device))
            .abs()
            .max()
            for layer in self.layers
            for R in layer.rotations
        ]
        return float(torch.stack(gaps).max()) if gaps else 0.0

    def to(self, tensor: Tensor) -> "Basis":
        """Return the rotations in the dtype and on the device of a tensor."""
        return Basis(
            tuple(
                replace(
                    layer,
                    rotations=tuple(R.to(tensor) for R in layer.rotations),
                    eigenvalues=layer.eigenvalues.to(tensor.device),
                )
                for layer in self.layers
            )
        )

    def _mapped(self, X: Tensor, *, back: bool) -> Tensor:
        self._require_size(X, "Basis.to_standard(X)" if back else "Basis.to_basis(X)")
        if not any(layer.rotations for layer in self.layers):
            return X
        rows = X.unsqueeze(0) if X.ndim == 1 else X.T
        rotated = [
            layer.rotate(rows[:, layer.start : layer.start + layer.size], back=back)
            for layer in self.layers
        ]
        turned = torch.cat(rotated, dim=1)
        return turned[0] if X.ndim == 1 else turned.T

    def _require_size(self, X: Tensor, call: str) -> None:
        if X.ndim not in (1, 2) or len(X) != self.size:
            raise ShapeError(
                f"`{call}` needs ({self.size},) or ({self.size}, k); got {tuple(X.shape)}."
            )


def layer_basis(risk: EmpiricalRisk, kind: str = "kronecker", *, most_exact: int = 1024) -> Basis:
    """Return a basis of the parameters, from the layers' Hessians at the model's weights.

    Parameters of other layers than linear ones and convolutions stay in the standard basis.
    Weight and bias of a layer are turned together, with a 1 joined to its input.

    Args:
        risk: Model, loss and data.
        kind: "standard" (BASE); "kronecker", eigenvectors of E[M] and E[x̃x̃ᵀ] (APPR, ITER);
            "approximate", with E[M] from the weights above by Wu (56) (ITER.M), for chains of
            linear layers; "exact", eigenvectors of the layer's Hessian itself where the layer has
            at most `most_exact` parameters, else "kronecker".
        most_exact: Largest layer that is decomposed as a whole.

    Returns:
        The basis, vectors by falling eigenvalue within each factor; rotations are float64.

    Raises:
        UnsupportedModelError: If "approximate" is asked of a network that is no chain.

    Examples:
        Inputs along one direction turn it into a basis vector, with all the curvature.

        >>> from eigenscape.risk.losses import SquaredError
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
        >>> basis = layer_basis(EmpiricalRisk(model, SquaredError(), (x, torch.zeros(2, 1))))
        >>> [round(v, 4) for v in basis.to_basis(torch.tensor([0.6, 0.8]).double()).abs().tolist()]
        [1.0, 0.0]
        >>> [round(v, 4) for v in basis.eigenvalues.tolist()]
        [62.5, 0.0]
    """
    require_choice(kind, KINDS, "layer_basis(kind)")
    return basis_again(risk, kind, InputAxes(), most_exact)


@full_precision()
def basis_again(risk: EmpiricalRisk, kind: str, axes: InputAxes, most_exact: int = 1024) -> Basis:
    """Return `layer_basis(risk, kind)`, with what `axes` knows from earlier calls."""
    groups = parameter_groups(risk)
    rotations_by_layer = (
        {} if kind == "standard" else layer_rotations(risk, groups, kind, most_exact, axes)
    )
    layers, start = [], 0
    for name, params in groups.items():
        size = sum(math.prod(risk.space.shapes[p]) for p in params)
        nothing = torch.zeros(size, dtype=torch.float64, device=risk.device)
        rotations, values, layer_kind = rotations_by_layer.get(name, ((), nothing, "standard"))
        has_bias = len(params) == 2 and params[1].rpartition(".")[2] == "bias"
        layers.append(LayerBasis(name, layer_kind, start, size, has_bias, rotations, values))
        start += size
    return Basis(tuple(layers))


@full_precision()
def basis_curvature(risk: EmpiricalRisk, basis: Basis) -> Tensor:
    """Return the diagonal of the Gauss-Newton matrix in a basis, (P,) float64: EKFAC's scaling.

    Where `basis.eigenvalues` are products of the factors' eigenvalues, these are the curvatures
    that basis vectors really have. Cost: as `KroneckerHessian` for every layer.

    Args:
        risk: Model, loss and data.
        basis: A basis of its parameters.

    Returns:
        The diagonal; zero for parameters outside linear layers and convolutions.

    References:
        George et al., "Fast approximate natural gradient descent in a Kronecker-factored
        eigenbasis", 2018.

    Examples:
        >>> from eigenscape.risk.losses import SquaredError
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> risk = EmpiricalRisk(model, SquaredError(), (x, torch.zeros(2, 1)))
        >>> basis_curvature(risk, layer_basis(risk, "standard")).tolist()  # diagonal of E[xxᵀ]
        [1.0, 2.0]
    """
    diagonals = [
        torch.zeros(layer.size, dtype=torch.float64, device=risk.device) for layer in basis.layers
    ]
    for number, layer in enumerate(basis.layers):
        for deltas, inputs in gradient_factors(risk, layer.name):
            diagonals[number] += layer.squares(deltas, inputs)
    return torch.cat(diagonals) / risk.divisor


@storable
@dataclass(frozen=True, eq=False)
class Posterior:
    """N(w, Σ) over a network's parameters, with the prior N(w₀, λI) that it is compared to.

    Attributes:
        means: w (P,) float64.
        variances: s (P,) float64, along the vectors of the basis.
        basis: The basis.
        prior_means: w₀ (P,) float64.
        prior_variance: λ.
        prior_source: "initialisation" or "other data": what w₀ was made from, as you said.
        prior_sha256: SHA-256 of the weights from before training, as they were given: `certify`
            refuses a w₀ that is another.
        names: Names of the parameters, in their order.
    """

    means: Tensor
    variances: Tensor
    basis: Basis
    prior_means: Tensor
    prior_variance: float
    prior_source: str
    prior_sha256: str
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what is no Gaussian."""
        for name in ("means", "variances", "prior_means"):
            values = getattr(self, name)
            if values.shape != (self.basis.size,):
                raise ShapeError(
                    f"`Posterior({name}=...)` needs ({self.basis.size},), one number for each "
                    f"parameter; got {tuple(values.shape)}."
                )
            if not bool(values.isfinite().all()):
                raise NonFiniteError(
                    f"`Posterior({name}=...)` has NaN or infinite entries. Check the weights."
                )
        if not bool((self.variances > 0.0).all()):
            raise InvalidArgumentError("`Posterior(variances=...)` must all be above 0.")
        require_positive(self.prior_variance, "Posterior(prior_variance=...)")
        require_choice(self.prior_source, SOURCES, "Posterior(prior_source=...)")

    def require_blind_prior(self, task: Task) -> None:
        """Refuse a prior that visibly depends on the data. Cost: one pass over the data.

        Args:
            task: The examples of the bound.

        Raises:
            InvalidArgumentError: If w₀ is not the initial point that `prior_sha256` names, equals
                w, or classifies the data well although it is from before training.
        """
        actual = prior_sha256(self.names, self.prior_means)
        if self.prior_sha256 != actual:
            raise InvalidArgumentError(
                "The posterior's prior mean must be the initial point that it names, with SHA-256 "
                f"{self.prior_sha256[:12]}…; it has {actual[:12]}…. It was moved after the initial "
                "weights were named, which voids the certificate. Make the posterior again with "
                "`make_posterior` or `optimise_posterior`, from the weights before training."
            )
        independent = self.prior_source == "other data"
        require_unseen(task, self.prior_means, self.means, independent=independent)

    def draw(self, noise: Tensor) -> Tensor:
        """Return w + Q(√s ∘ ξ) for standard normal ξ (P,) or (P, k), in float64."""
        spread = self.variances.sqrt()
        if noise.ndim == 1:
            return self.means + self.basis.to_standard(spread * noise.double())
        turned = self.basis.to_standard(spread[:, None] * noise.double())
        return self.means[:, None] + turned

    def kl(self, prior_variance: float | None = None) -> Tensor:
        """Return KL(Q‖P) in nats, for λ or another prior variance; a float64 scalar."""
        variance = self.prior_variance if prior_variance is None else prior_variance
        return gaussian_kl(self.means, self.variances, self.prior_means, variance)


def make_posterior(
    risk: EmpiricalRisk,
    prior: Prior,
    *,
    basis: Basis | None = None,
    variances: Tensor | None = None,
    prior_variance: float = math.exp(-6.0),
    prior_source: str = "initialisation",
) -> Posterior:
    """Return a posterior around the model's present weights, after a look at the prior.

    The certificate holds only if the prior was fixed without the data. What can be seen is
    refused: weights equal to the trained ones, a recorded epoch above 0, buffers or frozen
    parameters that training changed, and a prior whose mean already classifies the data well.

    Args:
        risk: Model with trained weights, a classification loss, and the data of the bound.
        prior: The model's `state_dict` from before training, or the file that holds it.
        basis: The basis of Σ; the standard one by default.
        variances: s (P,) in that basis; by default the squares of w's own coordinates, Wu
            Algorithm 1, line 2, none below 10⁻⁶ of their mean.
        prior_variance: λ.
        prior_source: "initialisation", or "other data" if w₀ was fitted to data that are
            independent of the risk's; this is your word, and the certificate repeats it.

    Returns:
        The posterior.

    Raises:
        InvalidArgumentError: If the prior does not fit the model or depends on the data.
        NonFiniteError: If weights are NaN or infinite.
    """
    require_choice(prior_source, SOURCES, "make_posterior(prior_source=...)")
    origin = prior_vector(risk, prior, independent=prior_source == "other data")
    means = risk.space.flatten(risk.parameters()).double()
    if not bool(means.isfinite().all()):
        raise NonFiniteError("The model has NaN or infinite weights. Train it again.")
    names = tuple(risk.space.names)
    chosen = layer_basis(risk, "standard") if basis is None else basis
    exact = chosen.to(means)
    if variances is None:
        variances = weight_variances(exact.to_basis(means))
    posterior = Posterior(
        means=means,
        variances=variances.double(),
        basis=exact,
        prior_means=origin,
        prior_variance=prior_variance,
        prior_source=prior_source,
        prior_sha256=prior_sha256(names, origin),
        names=names,
    )
    posterior.require_blind_prior(Task(risk))
    return posterior


def weight_variances(coordinates: Tensor) -> Tensor:
    """Return squares of coordinates, none below 10⁻⁶ of their mean: log 0 is no start."""
    squares = coordinates.double().square()
    return squares.clamp_min(max(1e-6 * float(squares.mean()), 1e-12))


def _part(values: Tensor, layer: LayerBasis) -> Tensor:
    return values[layer.start : layer.start + layer.size]
