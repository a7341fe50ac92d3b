"""The abstract linear operator and its algebra. An operator multiplies; it does not know its trace.

Letters: A, B operators; X (n, k) columns to multiply; Y (m, k) products; V (n, r) an orthonormal
basis. Vectors are flat tensors (n,) or (n, k) in the operator's dtype on the operator's device.

To write an operator of your own, derive from `LinearOperator`, give `space`, `dtype`, `device`,
`is_symmetric` and `matmat`, and call `eigenscape.testing.check_operator` on it. An operator that is
not symmetric also gives `adjoint_matmat`, and `output_space` if it is not square.
"""

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias, overload

import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    NotSymmetricError,
    ShapeError,
    TooLargeError,
    WrongTypeError,
)
from eigenscape.records import SelfTest
from eigenscape.space import Block, ParamSpace

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator as ScipyOperator

# Columns of the identity that `to_dense` multiplies at a time: enough for any GEMM to be efficient,
# few enough that the identity itself never matters for memory.
_DENSE_COLUMNS = 256
_DENSE_LIMIT = 8 * 2**30

Selection: TypeAlias = Block | str | slice


# What an operator may give beside its five members. Nothing else is written anew in a subclass:
# `tests/test_architecture.py` reads this list.
OPTIONAL = ("output_space", "adjoint_matmat", "noise", "self_test", "stored_matrix", "block")


class LinearOperator(ABC):
    """A real matrix known through its products.

    Products are written `A @ x`; sums, differences, scalar multiples, products of operators,
    transposes and restrictions `A[rows, columns]` are operators again and multiply nothing until
    they are used.
    """

    @property
    @abstractmethod
    def space(self) -> ParamSpace:
        """The space of the vectors that the operator takes."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the vectors it takes and gives."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where those vectors live."""

    @property
    @abstractmethod
    def is_symmetric(self) -> bool:
        """Whether A = Aᵀ holds by construction."""

    @abstractmethod
    def matmat(self, X: Tensor) -> Tensor:
        """Multiply (n, k) columns that were already checked; use `A @ X` from outside."""

    @property
    def output_space(self) -> ParamSpace:
        """The space of the products; the same as `space` unless the operator is rectangular."""
        return self.space

    @property
    def noise(self) -> float:
        """Error of products relative to ‖A‖, where it is far above rounding in `dtype`; else 0."""
        return 0.0

    @property
    def self_test(self) -> SelfTest | None:
        """Whether this is the matrix of the user's own function; None where there is none."""
        return None

    def stored_matrix(self) -> Tensor | None:
        """Return the matrix where the operator holds it; it is copied before anyone sees it."""
        return None

    def block(self, names: tuple[str, ...]) -> "LinearOperator | None":
        """Return the diagonal block of some tensors, if it can be had for less than a product."""
        return None

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        """Multiply (m, k) columns by Aᵀ; use `A.T @ Y` from outside."""
        if self.is_symmetric:
            return self.matmat(Y)
        raise NotSymmetricError(
            f"`{type(self).__name__}.T` needs products with the transpose, which this operator "
            "does not give. Define `adjoint_matmat` in its class."
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns (m, n)."""
        return self.output_space.size, self.space.size

    @property
    def T(self) -> "LinearOperator":
        """The transpose; a symmetric operator is its own."""
        if self.is_symmetric:
            return self
        return self._inner if isinstance(self, _Transposed) else _Transposed(self)

    @overload
    def __matmul__(self, other: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, other: "LinearOperator") -> "LinearOperator": ...
    def __matmul__(self, other: "Tensor | LinearOperator") -> "Tensor | LinearOperator":
        """Multiply a vector (n,), columns (n, k), or another operator."""
        if isinstance(other, LinearOperator):
            return _Product(self, other)
        _require_columns(other, self, f"{type(self).__name__} @ X")
        if other.ndim == 1:
            return self.matmat(other[:, None])[:, 0]
        if other.shape[1] == 0:
            return other.new_zeros(self.shape[0], 0)
        return self.matmat(other)

    def __add__(self, other: "LinearOperator") -> "LinearOperator":
        """Return A + B."""
        return _Sum(self, other, 1.0)

    def __sub__(self, other: "LinearOperator") -> "LinearOperator":
        """Return A − B."""
        return _Sum(self, other, -1.0)

    def __mul__(self, factor: float) -> "LinearOperator":
        """Return cA."""
        return _Affine(self, _require_real(factor, "factor * A"), 0.0)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> "LinearOperator":
        """Return A / c."""
        if divisor == 0:
            raise InvalidArgumentError("`A / c` needs c other than 0; got 0.")
        return self * (1.0 / _require_real(divisor, "A / c"))

    def __neg__(self) -> "LinearOperator":
        """Return −A."""
        return self * -1.0

    def shift(self, amount: float) -> "LinearOperator":
        """Return A + c·I (for example c = damping).

        Args:
            amount: The number c.

        Returns:
            The shifted operator.
        """
        require_square(self, "A.shift(...)")
        return _Affine(self, 1.0, _require_real(amount, "A.shift(amount=...)"))

    def gram(self) -> "LinearOperator":
        """Return AᵀA, symmetric whatever A is."""
        return _Gram(self)

    def deflate(self, values: Tensor, vectors: Tensor) -> "LinearOperator":
        """Return A − V diag(λ) Vᵀ: the same operator with these eigenpairs moved to zero.

        Args:
            values: Eigenvalues λ (r,).
            vectors: Orthonormal eigenvectors V (n, r).

        Returns:
            The deflated operator, symmetric if A is.

        Raises:
            ShapeError: If values and vectors do not fit.
        """
        require_square(self, "A.deflate(...)")
        _require_columns(vectors, self, "A.deflate(vectors=...)")
        if vectors.ndim != 2 or values.shape != vectors.shape[1:]:
            raise ShapeError(
                "`A.deflate(values, vectors)` needs values (r,) and vectors (n, r); got "
                f"{tuple(values.shape)} and {tuple(vectors.shape)}."
            )
        return _Deflated(self, values.to(vectors), vectors)

    def __getitem__(self, key: Selection | tuple[Selection, Selection]) -> "LinearOperator":
        """Restrict to blocks: `A[rows, columns]`, or `A[block]` for a diagonal block.

        Args:
            key: Each part is a `Block` of the operator's space, or a name or glob pattern that
                `ParamSpace.block` understands; `:` keeps everything.

        Returns:
            The restricted operator, symmetric if A is and both blocks are the same.
        """
        rows, columns = key if isinstance(key, tuple) and len(key) == 2 else (key, key)
        chosen = _as_block(rows, self.output_space), _as_block(columns, self.space)
        return self._own_block(*chosen) or Restricted(self, *chosen)

    def _own_block(self, rows: Block, columns: Block) -> "LinearOperator | None":
        """Ask for the diagonal block of whole tensors, but not all; None for anything else."""
        names = self.space.restrict(columns).names
        if rows.spans != columns.spans or not set(names) < set(self.space.names):
            return None
        # Other entries may go by a tensor's name.
        return self.block(names) if columns.spans == self.space.block(*names).spans else None

    def to_dense(self, *, max_bytes: int = _DENSE_LIMIT) -> Tensor:
        """Multiply the identity. Cost: n products, and n·m numbers of memory.

        Args:
            max_bytes: Refuse a matrix larger than this.

        Returns:
            The matrix (m, n).

        Raises:
            TooLargeError: If it would not fit.
        """
        m, n = self.shape
        needed = m * n * self.dtype.itemsize
        if needed > max_bytes:
            raise TooLargeError(
                f"`to_dense()` of a {m} × {n} operator needs {needed:.1e} bytes, over the limit "
                f"{max_bytes:.1e}. Restrict it to a block first, e.g. `A['{self.space.names[0]}']`,"
                " or pass `max_bytes=` if you mean it."
            )
        if (stored := self.stored_matrix()) is not None:
            return stored.clone()
        dense = torch.empty(m, n, dtype=self.dtype, device=self.device)
        for start in range(0, n, _DENSE_COLUMNS):
            stop = min(start + _DENSE_COLUMNS, n)
            columns = torch.zeros(n, stop - start, dtype=self.dtype, device=self.device)
            columns[start:stop].fill_diagonal_(1.0)
            dense[:, start:stop] = self.matmat(columns)
        return dense

    def to_scipy(self) -> "ScipyOperator":
        """Return a `scipy.sparse.linalg.LinearOperator` (each product crosses to the host)."""
        import numpy as np
        from scipy.sparse.linalg import LinearOperator as ScipyOperator

        def product(x: "np.ndarray", operator: LinearOperator = self) -> "np.ndarray":
            columns = torch.from_numpy(np.array(x)).to(self.device, self.dtype)
            return np.asarray((operator @ columns).detach().cpu().to(host_dtype).numpy())

        def adjoint(y: "np.ndarray") -> "np.ndarray":
            return product(y, self.T)

        # numpy has no bfloat16, and ARPACK works in float32 or float64.
        host_dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        return ScipyOperator(
            shape=self.shape,
            matvec=product,
            matmat=product,
            rmatvec=adjoint,
            rmatmat=adjoint,
            dtype=np.float64 if host_dtype == torch.float64 else np.float32,
        )

    def __repr__(self) -> str:
        """Say what it is and how large."""
        m, n = self.shape
        return f"{type(self).__name__.lstrip('_')}({m} × {n}, {self.dtype}, {self.device})"


class WrappedOperator(LinearOperator):
    """What all operators made from others share; each says how it multiplies."""

    def __init__(
        self,
        inner: LinearOperator,
        *others: LinearOperator,
        space: ParamSpace | None = None,
        output_space: ParamSpace | None = None,
        is_symmetric: bool | None = None,
    ) -> None:
        """Take what is not said from the first operator.

        Args:
            inner: The operator whose dtype and device these are.
            *others: More operators that products are made of.
            space: The space of the vectors.
            output_space: The space of the products.
            is_symmetric: Whether A = Aᵀ.
        """
        self._inner, self._others = inner, others
        self._space = space or inner.space
        self._output_space = output_space or inner.output_space
        self._is_symmetric = inner.is_symmetric if is_symmetric is None else is_symmetric

    @property
    def space(self) -> ParamSpace:
        """The space of the vectors."""
        return self._space

    @property
    def output_space(self) -> ParamSpace:
        """The space of the products."""
        return self._output_space

    @property
    def dtype(self) -> torch.dtype:
        """The first operator's."""
        return self._inner.dtype

    @property
    def device(self) -> torch.device:
        """The first operator's."""
        return self._inner.device

    @property
    def is_symmetric(self) -> bool:
        """Whether A = Aᵀ holds by construction."""
        return self._is_symmetric

    @property
    def noise(self) -> float:
        """The largest of all operators."""
        return max(operator.noise for operator in (self._inner, *self._others))

    @property
    def self_test(self) -> SelfTest | None:
        """What is known of all operators."""
        tests = (operator.self_test for operator in (self._inner, *self._others))
        return functools.reduce(SelfTest.weaker, tests)


class _Transposed(WrappedOperator):
    def __init__(self, inner: LinearOperator) -> None:
        super().__init__(inner, space=inner.output_space, output_space=inner.space)

    def matmat(self, X: Tensor) -> Tensor:
        return self._inner.adjoint_matmat(X)

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return self._inner.matmat(Y)


class _Affine(WrappedOperator):
    """cA + sI."""

    def __init__(self, inner: LinearOperator, scale: float, shift: float) -> None:
        super().__init__(inner)
        self._scale, self._shift = scale, shift

    def _apply(self, product: Tensor, X: Tensor) -> Tensor:
        scaled = product * self._scale
        return scaled if self._shift == 0.0 else scaled.add_(X, alpha=self._shift)

    def matmat(self, X: Tensor) -> Tensor:
        return self._apply(self._inner.matmat(X), X)

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return self._apply(self._inner.adjoint_matmat(Y), Y)


class _Gram(WrappedOperator):
    def __init__(self, inner: LinearOperator) -> None:
        super().__init__(inner, output_space=inner.space, is_symmetric=True)

    def matmat(self, X: Tensor) -> Tensor:
        return self._inner.adjoint_matmat(self._inner.matmat(X))


class _Deflated(WrappedOperator):
    def __init__(self, inner: LinearOperator, values: Tensor, vectors: Tensor) -> None:
        super().__init__(inner)
        self._values, self._vectors = values, vectors

    def _deflate(self, product: Tensor, X: Tensor) -> Tensor:
        return product - self._vectors @ (self._values[:, None] * (self._vectors.T @ X))

    def matmat(self, X: Tensor) -> Tensor:
        return self._deflate(self._inner.matmat(X), X)

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return self._deflate(self._inner.adjoint_matmat(Y), Y)


class _Sum(WrappedOperator):
    """A + sB, with s = ±1."""

    def __init__(self, inner: LinearOperator, other: LinearOperator, sign: float) -> None:
        require_operator(other, "A ± B")
        _require_compatible(inner, other, inner.shape == other.shape, "A ± B")
        twins = sign > 0 and (other.T is inner or inner.T is other)  # A + Aᵀ is symmetric
        both = inner.is_symmetric and other.is_symmetric
        super().__init__(inner, other, is_symmetric=twins or both)
        self._other, self._sign = other, sign

    def matmat(self, X: Tensor) -> Tensor:
        return self._inner.matmat(X).add(self._other.matmat(X), alpha=self._sign)

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return self._inner.adjoint_matmat(Y).add(self._other.adjoint_matmat(Y), alpha=self._sign)


class _Product(WrappedOperator):
    """AB, not symmetric in general even where both factors are."""

    def __init__(self, inner: LinearOperator, other: LinearOperator) -> None:
        _require_compatible(inner, other, inner.shape[1] == other.shape[0], "A @ B")
        super().__init__(inner, other, space=other.space, is_symmetric=False)
        self._other = other

    def matmat(self, X: Tensor) -> Tensor:
        return self._inner.matmat(self._other.matmat(X))

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return self._other.adjoint_matmat(self._inner.adjoint_matmat(Y))


class Restricted(WrappedOperator):
    """The rows of one block and the columns of another."""

    def __init__(self, inner: LinearOperator, rows: Block, columns: Block) -> None:
        super().__init__(
            inner,
            space=inner.space.restrict(columns),
            output_space=inner.output_space.restrict(rows),
            is_symmetric=inner.is_symmetric and rows.spans == columns.spans,
        )
        self.rows, self.columns = rows, columns

    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns."""
        full = self.columns.put(X, self._inner.space.size)
        return self.rows.take(self._inner.matmat(full))

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        """Multiply columns with the transpose."""
        full = self.rows.put(Y, self._inner.output_space.size)
        return self.columns.take(self._inner.adjoint_matmat(full))


def _as_block(selection: Selection, space: ParamSpace) -> Block:
    if isinstance(selection, Block):
        return selection
    if isinstance(selection, str):
        return space.block(selection)
    if selection == slice(None):
        return space.block(*space.names)
    raise WrongTypeError(
        f"`A[rows, columns]` takes blocks, names, patterns or `:`; got {selection!r}. "
        "Make a block with `space.block(...)` or a `Partition`."
    )


def _require_real(value: object, call: str) -> float:
    if isinstance(value, Tensor) and value.numel() == 1 and value.dtype.is_floating_point:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"`{call}` needs a real number; got {type(value).__name__}.")
    if not abs(value) < float("inf"):
        raise InvalidArgumentError(f"`{call}` needs a finite number; got {value}.")
    return float(value)


def require_operator(value: object, call: str) -> None:
    """Refuse anything that is not a `LinearOperator`."""
    if not isinstance(value, LinearOperator):
        raise WrongTypeError(
            f"`{call}` needs a LinearOperator; got {type(value).__name__}. "
            "Wrap a matrix in `Dense(matrix)`."
        )


def require_square(operator: LinearOperator, call: str) -> int:
    """Return n of an n × n operator, else refuse."""
    require_operator(operator, call)
    m, n = operator.shape
    if m != n:
        raise ShapeError(
            f"`{call}` needs a square operator; got shape ({m}, {n}). Take `A.gram()`, or restrict "
            "it to a diagonal block."
        )
    return n


def _require_compatible(A: LinearOperator, B: LinearOperator, fits: bool, call: str) -> None:
    if not fits or A.dtype != B.dtype or A.device != B.device:
        raise ShapeError(
            f"`{call}` needs operators that fit: got {A.shape} {A.dtype} on {A.device} and "
            f"{B.shape} {B.dtype} on {B.device}."
        )


def _require_columns(X: object, operator: LinearOperator, call: str) -> None:
    n = operator.space.size
    if not isinstance(X, Tensor):
        raise WrongTypeError(f"`{call}` needs a torch.Tensor; got {type(X).__name__}.")
    if X.ndim not in (1, 2) or X.shape[0] != n:
        hint = " Did you mean `X.T`?" if X.ndim == 2 and X.shape[1] == n else ""
        raise ShapeError(
            f"`{call}` needs X of shape ({n},) or ({n}, k); got {tuple(X.shape)}.{hint}"
        )
    if X.dtype != operator.dtype:
        raise ShapeError(
            f"`{call}` needs X of dtype {operator.dtype}; got {X.dtype}. "
            f"Pass `X.to({operator.dtype})`."
        )
    if X.device != operator.device:
        raise ShapeError(
            f"`{call}` needs X on {operator.device}; got {X.device}. "
            f"Pass `X.to('{operator.device}')`."
        )
