"""Which eigenvectors of E[M] and of E[xxᵀ] is each eigenvector of a layer made of (Wu Def. 4.3)?

Letters: h_i (m·n) eigenvectors of the layer, Mat(h) the same as an m × n matrix, u_j (m) those of
the output Hessian E[M], v_j (n) those of the input autocorrelation E[xxᵀ].
"""

from dataclasses import dataclass

from torch import Tensor

from eigenscape.analyses import require_orthonormal
from eigenscape.curvature import KroneckerHessian
from eigenscape.device import eigh, full_precision
from eigenscape.errors import ShapeError
from eigenscape.records import Columns, EigenPairs, Picture, Record, Status
from eigenscape_papers.wu._pictures import correspondence_picture


@dataclass(frozen=True, eq=False)
class EigenvectorCorrespondence(Record):
    """How much of each h_i lies in u_j ⊗ (anything), and how much in (anything) ⊗ v_j.

    Each column of either matrix adds up to 1 where the basis is complete. If h_i = u_j ⊗ v_l, its
    columns hold a single 1, in rows j and l. Rows of equal eigenvalues of E[M] or E[xxᵀ] are
    defined only together, as their sum.

    Attributes:
        output: Corr(u_j, h_i) = ‖Mat(h_i)ᵀ u_j‖² (m, k), Wu (10).
        input: Corr(v_j, h_i) = ‖Mat(h_i) v_j‖² (n, k), Wu (9).
    """

    output: Tensor
    input: Tensor

    def columns(self) -> Columns:
        """Return one row for each h_i: its best u_j and v_j, counted from 1, and what v_1 has."""
        (u_share, u), (v_share, v) = self.output.max(0), self.input.max(0)
        return {
            "eigenvector": range(1, self.output.shape[1] + 1),
            "output": (u + 1).tolist(),
            "output share": u_share.tolist(),
            "input": (v + 1).tolist(),
            "input share": v_share.tolist(),
            "first input share": self.input[0].tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (correspondence_picture(self),)


@full_precision()
def eigenvector_correspondence(
    pairs: EigenPairs | Tensor, bases: KroneckerHessian | tuple[Tensor, Tensor]
) -> EigenvectorCorrespondence:
    """Take the eigenvectors of a layer apart along those of E[M] and of E[xxᵀ].

    Wu Fig. 3 (fc1 of LeNet5) has the first 120 = m eigenvectors on v_1, and on u_i along the
    diagonal. For what the Kronecker approximation itself has, pass `kron.top_pairs(k)`.
    Cost: k products (m, m) (m, n) and (m, n) (n, n), all at once.

    Args:
        pairs: Eigenpairs of the layer, or its orthonormal eigenvectors (m·n, k).
        bases: The layer's `KroneckerHessian`, whose factors are diagonalised. Or U (m, a) and
            V (n, b) with orthonormal columns; then a vector is W row by row, without a bias.

    Returns:
        Both matrices, rows by descending eigenvalue of E[M] and E[xxᵀ].

    Raises:
        ShapeError: If vectors and bases do not fit.
        InvalidArgumentError: If a basis is not orthonormal.

    Examples:
        >>> import torch
        >>> h = torch.tensor([[0.0, 0.6, 0.0, 0.0, 0.0, 0.8]]).T  # [[0, 0.6, 0], [0, 0, 0.8]]
        >>> found = eigenvector_correspondence(h, (torch.eye(2), torch.eye(3)))
        >>> found.output.T.round(decimals=2).tolist(), found.input.T.round(decimals=2).tolist()
        ([[0.36, 0.64]], [[0.0, 0.36, 0.64]])
    """
    h = pairs.vectors if isinstance(pairs, EigenPairs) else pairs
    if h.ndim != 2 or 0 in h.shape:
        raise ShapeError(
            "`eigenvector_correspondence(pairs, bases)` needs vectors (m·n, k); got "
            f"{tuple(h.shape)}."
        )
    if isinstance(bases, KroneckerHessian):
        U, V = (_basis(factor) for factor in (bases.output_factor, bases.input_factor))
        matrices = bases.to_matrices(h.double().to(U.device))
    else:
        U, V = (_orthonormal(basis, name) for basis, name in zip(bases, "UV", strict=True))
        if len(U) * len(V) != len(h):
            raise ShapeError(
                f"`eigenvector_correspondence(pairs, (U, V))` needs vectors of length {len(U)} × "
                f"{len(V)} = {len(U) * len(V)}; got {len(h)}. For a layer with a bias, pass its "
                "`KroneckerHessian`."
            )
        matrices = h.double().to(U.device).T.reshape(-1, len(U), len(V))
    return EigenvectorCorrespondence(
        status=Status(True, f"{h.shape[1]} eigenvectors of {len(U)}×{len(V)}."),
        num_products=0,
        seed=0,
        output=(U.T @ matrices).square().sum(2).T.cpu(),
        input=(matrices @ V).square().sum(1).T.cpu(),
    )


def _basis(factor: Tensor) -> Tensor:
    vectors: Tensor = eigh(factor)[1]
    return vectors.flip(1)


def _orthonormal(basis: Tensor, name: str) -> Tensor:
    if basis.ndim != 2:
        raise ShapeError(
            f"`eigenvector_correspondence(pairs, (U, V))` needs {name} with columns; got shape "
            f"{tuple(basis.shape)}."
        )
    return require_orthonormal(basis, f"eigenvector_correspondence(pairs, (U, V)): {name}")
