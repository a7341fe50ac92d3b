"""Contracts of operators, of representations of a matrix and of estimators, also of your own.

Each check raises `ContractError`; no test framework is needed.
"""

import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenscape.errors import EigenscapeError
from eigenscape.operator import LinearOperator
from eigenscape.space import Block, ParamSpace

_SIGMAS = 4.0  # a correct normal estimate is further off once in 16000 trials


class ContractError(AssertionError):
    """A contract is broken; the message says what was expected and what came."""


def dense_hessian(
    function: Callable[[dict[str, Tensor]], Tensor], params: dict[str, Tensor]
) -> Tensor:
    """Compute a Hessian row by row with double backward: slow, simple, independent of the rest.

    `torch.func.hessian`, for one, is silently wrong for some layers. Cost: n + 1 backward passes.

    Args:
        function: A scalar function of named tensors.
        params: Where to differentiate, in float64. Their order is the order of the rows.

    Returns:
        The matrix (n, n) in float64; zero where the function does not depend on an entry.

    Raises:
        ContractError: If a parameter is not float64 or the function is not scalar.

    Examples:
        >>> dense_hessian(lambda p: p["x"].prod(), {"x": torch.tensor([2.0, 3.0]).double()})
        tensor([[0., 1.],
                [1., 0.]], dtype=torch.float64)
    """
    if wrong := [f"{n} in {p.dtype}" for n, p in params.items() if p.dtype != torch.float64]:
        raise ContractError(f"expected float64; got {wrong[0]}")
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in params.items()}
    with torch.enable_grad():
        value = function(leaves)
        if value.shape != ():
            raise ContractError(f"expected a scalar function; got shape {tuple(value.shape)}")
        flat = _derivative(value, leaves, create_graph=True)
        return torch.stack([_derivative(entry, leaves) for entry in flat])


def _derivative(value: Tensor, leaves: dict[str, Tensor], *, create_graph: bool = False) -> Tensor:
    gradients = [torch.zeros_like(leaf) for leaf in leaves.values()]
    if value.requires_grad:
        settings: Any = dict(create_graph=create_graph, retain_graph=True, materialize_grads=True)
        gradients = list(torch.autograd.grad(value, list(leaves.values()), **settings))
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def matrix_with_spectrum(values: Iterable[float] | Tensor, *, seed: int) -> Tensor:
    """Make a symmetric matrix with chosen eigenvalues and random eigenvectors.

    Args:
        values: The n eigenvalues, in any order.
        seed: Fixes the eigenvectors.

    Returns:
        The matrix (n, n), float64, equal to its transpose bit for bit.

    Examples:
        >>> torch.linalg.eigvalsh(matrix_with_spectrum([3.0, -1.0], seed=0)).round(decimals=6)
        tensor([-1.,  3.], dtype=torch.float64)
    """
    spectrum = torch.tensor([float(value) for value in values], dtype=torch.float64)
    n, generator = len(spectrum), torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    A: Tensor = (Q * spectrum) @ Q.T
    return (A + A.T) / 2


def check_operator(
    operator: LinearOperator, dense: Tensor, *, rtol: float = 1e-10, atol: float = 0.0
) -> None:
    """Compare an operator with a matrix in everything that algorithms rely on.

    Checked are products with one and many columns in any memory layout, repeatability bit for bit,
    linearity, transpose, claimed symmetry, the algebra, restriction to blocks, the dense and scipy
    forms, and the refusal of vectors that do not fit. For k standard normal columns X the product
    must satisfy ‖Y − AX‖ ≤ (rtol·‖A‖ + atol)·√k in Frobenius norm. Cost: about 60 + n products.

    Args:
        operator: What to check.
        dense: The true matrix (m, n), from an independent source.
        rtol: Allowed error relative to the Frobenius norm of the matrix.
        atol: Allowed error beside it, for matrices that are zero.

    Raises:
        ContractError: At the first thing that is wrong.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
        >>> check_operator(Dense(A), A)
    """
    true = dense.detach().to("cpu", torch.float64)
    if operator.shape != tuple(true.shape):
        raise ContractError(f"expected shape {tuple(true.shape)}; got {operator.shape}")
    close = _Comparison(operator.dtype, operator.device, rtol * float(true.norm()) + atol)
    _check_products(operator, true, close)
    _check_transpose(operator, true, close)
    _check_algebra(operator, true, close)
    _check_blocks(operator, true, close)
    close.results("to_dense()", operator.to_dense(), true)
    host, (m, n) = operator.to_scipy(), true.shape
    x, Y = close.columns(n).cpu().double(), close.columns(m, 2).cpu().double()
    close.results("to_scipy() @ x", torch.as_tensor(host @ x.numpy()), true @ x)
    close.results("to_scipy().rmatmat(Y)", torch.as_tensor(host.rmatmat(Y.numpy())), true.T @ Y)
    _check_refusals(operator)


class _Comparison:
    """Random columns of one kind; products compared within one tolerance."""

    def __init__(self, dtype: torch.dtype, device: torch.device, tolerance: float) -> None:
        self._dtype, self._device, self._tolerance = dtype, device, tolerance
        self._generator = torch.Generator().manual_seed(0)

    def columns(self, n: int, *k: int) -> Tensor:
        drawn = torch.randn(n, *k, generator=self._generator, dtype=torch.float64)
        return drawn.to(self._device, self._dtype)

    def product(
        self, what: str, A: LinearOperator, true: Tensor, X: Tensor, *, scale: float = 1.0
    ) -> Tensor:
        before = X.clone()
        Y = A @ X
        if not torch.equal(before, X):
            raise ContractError(f"{what}: expected the input unchanged; got it overwritten")
        expected = ((true.shape[0], *X.shape[1:]), self._dtype, self._device, False)
        if (got := (tuple(Y.shape), Y.dtype, Y.device, Y.requires_grad)) != expected:
            raise ContractError(f"{what}: expected {expected}; got {got}")
        self.results(what, Y, true @ X.cpu().double(), scale=scale)
        return Y

    def results(self, what: str, got: Tensor, expected: Tensor, *, scale: float = 1.0) -> None:
        """Compare two results; `scale` is how much larger than A their matrix is."""
        columns = max(1, expected.shape[1]) if expected.ndim == 2 else 1
        error = float((got.detach().cpu().double() - expected.cpu().double()).norm())
        allowed = self._tolerance * scale * math.sqrt(columns)
        if not error <= allowed:
            raise ContractError(
                f"{what}: expected an error of at most {allowed:.2g}; got {error:.2g} "
                f"(norm of the expected result: {float(expected.norm()):.2g})"
            )


def _check_products(A: LinearOperator, true: Tensor, close: _Comparison) -> None:
    n = true.shape[1]
    close.product("A @ x", A, true, close.columns(n))
    close.product("A @ X with no columns", A, true, close.columns(n, 0))
    X = close.columns(n, 5)
    Y = close.product("A @ X", A, true, X)
    if not torch.equal(Y, A @ X):
        raise ContractError("A @ X twice: expected the same bits; got another result")
    for j in range(X.shape[1]):
        close.results(f"column {j} of A @ X against A @ x", A @ X[:, j], Y[:, j])
    close.product("A @ X with its rows in memory order", A, true, close.columns(3, n).T)
    close.product("A @ X with every other column", A, true, close.columns(n, 6)[:, ::2])
    close.product("A @ X with a repeated column", A, true, close.columns(n, 1).expand(n, 2))
    U, V = close.columns(n, 2), close.columns(n, 2)
    close.results("linearity", A @ (3 * U - V / 2), 3 * (A @ U) - (A @ V) / 2, scale=8.0)


def _check_transpose(A: LinearOperator, true: Tensor, close: _Comparison) -> None:
    m, n = true.shape
    if A.is_symmetric and m == n:
        U, V = close.columns(n, 3), close.columns(n, 3)
        left, right = U.T.double() @ (A @ V).double(), (A @ U).T.double() @ V.double()
        close.results("claimed symmetry, UᵀAV against (AU)ᵀV", left, right, scale=4.0)
    close.product("A.T @ Y", A.T, true.T, close.columns(m, 3))
    close.product("A.T.T @ x", A.T.T, true, close.columns(n))


def _check_algebra(A: LinearOperator, true: Tensor, close: _Comparison) -> None:
    m, n = true.shape
    X, norm = close.columns(n, 2), float(true.norm()) + 1.0
    close.product("A + A", A + A, 2 * true, X, scale=2.0)
    close.product("A − 3A", A - 3 * A, -2 * true, X, scale=4.0)
    close.product("A / 4", A / 4, true / 4, X)
    close.product("−A", -A, -true, X)
    close.product("(2A).T", (2 * A).T, 2 * true.T, close.columns(m, 2), scale=2.0)
    close.product("A.T @ A", A.T @ A, true.T @ true, X, scale=norm)
    close.product("A.gram()", A.gram(), true.T @ true, X, scale=norm)
    if m == n:
        shift = float(true.norm()) / math.sqrt(n)  # as large as A, so that neither hides the other
        shifted = true + shift * torch.eye(n, dtype=torch.float64)
        close.product("A.shift(c)", A.shift(shift), shifted, X, scale=2.0)


def _check_blocks(A: LinearOperator, true: Tensor, close: _Comparison) -> None:
    for rows, columns in product(_some_blocks(A.output_space), _some_blocks(A.space)):
        expected = true[rows.index()][:, columns.index()]
        what, block = f"A[{rows.name!r}, {columns.name!r}]", A[rows, columns]
        close.product(what, block, expected, close.columns(columns.size, 2))
        close.product(f"{what}.T", block.T, expected.T, close.columns(rows.size, 2))
    if A.space == A.output_space:
        last = _some_blocks(A.space)[0]
        expected = true[last.index()][:, last.index()]
        close.product(f"A[{last.name!r}]", A[last.name], expected, close.columns(last.size))


def _some_blocks(space: ParamSpace) -> list[Block]:
    """The last tensor, and every third entry from the second on, which crosses all tensors."""
    filled = [name for name in space.names if 0 not in space.shapes[name]]
    strided = Block("every third", (range(1, space.size, 3),))
    return [space.block(filled[-1]), strided][: 1 + (space.size > 1)]


def _check_refusals(A: LinearOperator) -> None:
    n = A.shape[1]
    fits = torch.zeros(n, 2, dtype=A.dtype, device=A.device)
    wrong: dict[str, Any] = {
        "one entry too many": torch.zeros(n + 1, dtype=A.dtype, device=A.device),
        "one row too few": fits[1:],
        "three dimensions": fits[:, :, None],
        "another dtype": fits.to(torch.float32 if A.dtype == torch.float64 else torch.float64),
        "complex numbers": fits.to(torch.complex128),
        "a list": [0.0] * n,
    }
    for what, vector in wrong.items():
        try:
            A @ vector
        except EigenscapeError:
            continue
        raise ContractError(f"A @ X with {what}: expected an EigenscapeError; got a result")


def check_representation(
    representation: Any,
    matrix: Tensor,
    *,
    moved: Callable[[], Tensor] | None = None,
    rtol: float = 1e-10,
    atol: float = 0.0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> None:
    """Compare an object that multiplies rows for a whole matrix with that matrix.

    Such an object has three methods, those of `eigenscape.curvature.Representation`:
    `multiply(rows)` takes rows (k, n) and returns their products (k, n); `memory(num_columns)` says
    in whole bytes what is `kept` between products and what is `working` during one of so many;
    `forget()` drops all that belongs to the parameters as they were.

    Checked are one row and several, different numbers of rows after each other, rows of unequal
    length, linearity, that rows are left as they are and results of before, too, the memory, and
    that the object multiplies after `forget()`. The tolerance is that of `check_operator`.

    Args:
        representation: What to check.
        matrix: The true matrix (n, n), from an independent source.
        moved: Moves the parameters and returns the matrix there. Then `forget()` is called, and the
            products must be those of the new matrix. The parameters stay where they are then.
        rtol: Allowed error relative to the Frobenius norm of the matrix.
        atol: Allowed error beside it, for matrices that are zero.
        dtype: Of the rows.
        device: Where they live.

    Raises:
        ContractError: At the first thing that is wrong.
    """

    def compare(matrix: Tensor, call: str) -> None:
        true = matrix.detach().to("cpu", torch.float64)
        if true.ndim != 2 or true.shape[0] != true.shape[1]:
            raise ContractError(f"matrix: expected shape (n, n); got {tuple(true.shape)}")
        close = _Comparison(dtype, torch.device(device), rtol * float(true.norm()) + atol)
        _check_rows(representation, true, close, call)

    compare(matrix, "multiply")
    _check_memory(representation)
    representation.forget()
    compare(matrix, "multiply after forget()")
    if moved is not None:
        new = moved()
        if float((new - matrix).norm()) <= 10 * (rtol * float(matrix.norm()) + atol):
            raise ContractError("moved(): expected another matrix than before; got the same")
        representation.forget()
        compare(new, "multiply after moved() and forget()")


def _check_rows(representation: Any, true: Tensor, close: _Comparison, call: str) -> None:
    n = len(true)

    def multiplied(what: str, rows: Tensor) -> Tensor:
        before = rows.clone()
        products = representation.multiply(rows)
        if not torch.equal(before, rows):
            raise ContractError(
                f"{call}, {what}: expected the rows unchanged; got them overwritten"
            )
        if not isinstance(products, Tensor):
            name = type(products).__name__
            raise ContractError(
                f"{call}, {what}: expected a tensor {tuple(rows.shape)}; got {name}"
            )
        expected = (tuple(rows.shape), rows.device, False)
        if (got := (tuple(products.shape), products.device, products.requires_grad)) != expected:
            raise ContractError(f"{call}, {what}: expected {expected}; got {got}")
        return products

    first = close.columns(1, n)
    products = multiplied("one row", first)
    kept = products.clone()
    close.results(f"{call}, one row", products.T, true @ first.T.cpu().double())
    for count in (5, 2, 7):
        rows, what = close.columns(count, n), f"{count} rows"
        close.results(f"{call}, {what}", multiplied(what, rows).T, true @ rows.T.cpu().double())
    if not torch.equal(products, kept):
        raise ContractError(f"{call}: expected results of before unchanged; got them overwritten")
    U, V = close.columns(2, n), close.columns(2, n)
    combined = multiplied("linearity", 3 * U - V / 2)
    expected = 3 * multiplied("linearity", U) - multiplied("linearity", V) / 2
    close.results(f"{call}, linearity", combined.T, expected.T, scale=8.0)
    lengths = [1e-4, 1.0, 1e4]
    rows = close.columns(3, n)
    rows = rows * torch.tensor(lengths).to(rows)[:, None]
    products = multiplied("rows of unequal length", rows)
    for row, got, length in zip(rows, products, lengths, strict=True):
        what = f"{call}, a row of length {length:g} beside others"
        close.results(what, got, true @ row.cpu().double(), scale=length)


def _check_memory(representation: Any) -> None:
    before = (0, 0)
    for count in (1, 2, 16):
        memory = representation.memory(count)
        now = (memory.kept, memory.working)
        if not all(type(size) is int and size >= 0 for size in now):
            raise ContractError(f"memory({count}): expected integers of 0 or more; got {now}")
        if now[0] < before[0] or now[1] < before[1]:
            raise ContractError(
                f"memory({count}): expected at least {before}, as for fewer columns; got {now}"
            )
        before = now


def check_estimator(estimate: Callable[[int], Any], truth: Any, *, num_seeds: int = 200) -> None:
    """Check that a stochastic estimate is unbiased and that its standard error tells the truth.

    Over K seeds, with mean μ, variance s² and kurtosis κ (at least 3, that of normal errors) of the
    values, and mean q and variance d² of the squared standard errors, entry by entry:

    - bias: |μ − truth| ≤ 4 s/√K;
    - calibration: |q/s² − 1| ≤ 4 √((κ − 1 + d²/q²)/K), four standard deviations of that ratio:
      with 200 seeds and normal errors, a standard error 20 % too large or 25 % too small fails.

    Both allow for rounding, 1e-12 of the values; an estimate that varies by less has no error.

    Args:
        estimate: A function of the seed; its result has `.value` and `.stderr` of one shape.
        truth: What it estimates: a number, array or tensor.
        num_seeds: How many seeds K, from 0 on.

    Raises:
        ContractError: If it is biased, or its standard error is not calibrated.
    """
    records = [estimate(seed) for seed in range(num_seeds)]
    expected = _as_array(truth)
    values = np.stack([_as_array(record.value) for record in records])
    errors = np.stack([_as_array(record.stderr) for record in records])
    for what, numbers, low in (("value", values, -np.inf), ("stderr", errors, 0.0)):
        fits = numbers.shape[1:] == expected.shape and np.isfinite(numbers).all()
        if not fits or numbers.min() < low:
            raise ContractError(
                f"{what}: expected {expected.size} finite numbers above {low}; got {numbers[0]}"
            )
    rounding = 1e-12 * (np.abs(expected) + np.abs(values).max(0))
    bias, spread = values.mean(0) - expected, values.std(0, ddof=1)
    _require_within("bias", bias, _SIGMAS * spread / math.sqrt(num_seeds) + rounding, num_seeds)
    fixed = spread <= rounding
    _require_within("stderr of a fixed value", errors.max(0)[fixed], 1e3 * rounding[fixed], 1)
    centred, squares = (values - values.mean(0))[:, ~fixed], np.square(errors[:, ~fixed])
    q = squares.mean(0)
    kurtosis = np.maximum(np.mean(centred**4, 0) / np.mean(centred**2, 0) ** 2, 3.0)
    relative_variance = squares.var(0) / np.where(q > 0, q, 1.0) ** 2
    allowed = _SIGMAS * np.sqrt((kurtosis - 1 + relative_variance) / num_seeds)
    _require_within("stderr² / variance − 1", q / spread[~fixed] ** 2 - 1, allowed, num_seeds)


def _as_array(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64).reshape(-1)


def _require_within(what: str, got: Any, allowed: Any, num_seeds: int) -> None:
    if got.size and (excess := np.abs(got) - allowed).max() > 0:
        i = int(excess.argmax())
        raise ContractError(
            f"{what} over {num_seeds} seeds: expected at most ±{allowed[i]:.3g}; got {got[i]:.3g}"
        )
