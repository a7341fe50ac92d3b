"""A matrix that is already there."""

import torch
from torch import Tensor

from eigenscape.errors import NonFiniteError, ShapeError, WrongTypeError
from eigenscape.operator.linear_operator import LinearOperator
from eigenscape.space import ParamSpace


class Dense(LinearOperator):
    """A dense matrix as an operator.

    Examples:
        >>> Dense(torch.tensor([[2.0, 1.0], [1.0, 3.0]])) @ torch.tensor([1.0, 0.0])
        tensor([2., 1.])
    """

    def __init__(
        self,
        matrix: Tensor,
        *,
        space: ParamSpace | None = None,
        output_space: ParamSpace | None = None,
    ) -> None:
        """Wrap a matrix.

        Args:
            matrix: Real floating-point matrix (m, n). It is symmetric if it equals its transpose
                bit for bit.
            space: Names for its columns; one flat tensor "x" by default.
            output_space: Names for its rows; `space` where that fits.

        Raises:
            WrongTypeError: If it is not a real floating-point tensor.
            ShapeError: If it is not a matrix, is empty, or does not fit its spaces.
            NonFiniteError: If it holds NaN or infinity.
        """
        if not isinstance(matrix, Tensor) or not matrix.dtype.is_floating_point:
            kind = matrix.dtype if isinstance(matrix, Tensor) else type(matrix).__name__
            raise WrongTypeError(
                f"`Dense(matrix)` needs a real floating-point tensor; got {kind}. "
                "Convert it, e.g. `torch.as_tensor(matrix, dtype=torch.float64)`."
            )
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ShapeError(
                f"`Dense(matrix)` needs a non-empty matrix (m, n); got {tuple(matrix.shape)}."
            )
        if not bool(torch.isfinite(matrix).all()):
            raise NonFiniteError("`Dense(matrix)` needs finite entries; got NaN or infinity.")
        m, n = matrix.shape
        self._matrix = matrix.detach()
        self._space = space or ParamSpace.flat(n)
        self._output_space = output_space or (self._space if m == n else ParamSpace.flat(m))
        if (self._output_space.size, self._space.size) != (m, n):
            raise ShapeError(
                f"`Dense(matrix)` of shape ({m}, {n}) needs spaces of those sizes; got "
                f"{self._output_space.size} and {self._space.size}."
            )
        self._is_symmetric = m == n and bool(torch.equal(self._matrix, self._matrix.T))

    @property
    def space(self) -> ParamSpace:
        """The space of its columns."""
        return self._space

    @property
    def output_space(self) -> ParamSpace:
        """The space of its rows."""
        return self._output_space

    @property
    def dtype(self) -> torch.dtype:
        """The matrix's dtype."""
        return self._matrix.dtype

    @property
    def device(self) -> torch.device:
        """The matrix's device."""
        return self._matrix.device

    @property
    def is_symmetric(self) -> bool:
        """Whether the matrix equals its transpose exactly."""
        return self._is_symmetric

    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns (n, k)."""
        return self._matrix @ X

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        """Multiply columns (m, k) by the transpose."""
        return self._matrix.T @ Y

    def stored_matrix(self) -> Tensor:
        """Return the matrix."""
        return self._matrix
