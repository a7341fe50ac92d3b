"""Matrices as operators."""

from typing import Any

import pytest
import torch

from eigenscape.errors import NonFiniteError, ShapeError, WrongTypeError
from eigenscape.operator import Dense
from eigenscape.space import ParamSpace
from eigenscape.testing import check_operator, matrix_with_spectrum


def test_symmetry_is_read_off_the_bits() -> None:
    A = matrix_with_spectrum([1.0, 2.0, 3.0], seed=0)
    assert Dense(A).is_symmetric
    A[0, 1] += 1e-16
    A[0, 1] = A[0, 1].nextafter(torch.tensor(9.0))
    assert not Dense(A).is_symmetric
    assert not Dense(torch.ones(2, 3)).is_symmetric


def test_spaces_name_rows_and_columns() -> None:
    rows, columns = ParamSpace({"a": (2,), "b": (1,)}), ParamSpace({"w": (2, 2), "v": (1,)})
    M = torch.randn(3, 5)
    A = Dense(M, space=columns, output_space=rows)
    assert (A.space, A.output_space, A.shape) == (columns, rows, (3, 5))
    check_operator(A["b", "w"], M[2:, :4], rtol=1e-14)
    assert Dense(M).space == ParamSpace.flat(5)
    assert Dense(M).output_space == ParamSpace.flat(3)
    assert Dense(torch.eye(3), space=rows).output_space == rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_and_device_are_the_matrixs(dtype: torch.dtype) -> None:
    A = Dense(torch.eye(3, dtype=dtype))
    assert (A.dtype, A.device.type) == (dtype, "cpu")
    assert (A @ torch.ones(3, dtype=dtype)).dtype == dtype


def test_the_matrix_is_detached_and_shared() -> None:
    M = torch.eye(3, requires_grad=True)
    A = Dense(M)
    assert not (A @ torch.ones(3)).requires_grad
    with torch.no_grad():
        M.mul_(2)
    assert (A @ torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("matrix", "error", "text"),
    [
        ([[1.0]], WrongTypeError, "got list"),
        (torch.eye(3).numpy(), WrongTypeError, "got ndarray"),
        (torch.eye(3).long(), WrongTypeError, "got torch.int64"),
        (torch.eye(3) * 1j, WrongTypeError, "got torch.complex"),
        (torch.ones(3), ShapeError, r"got \(3,\)"),
        (torch.ones(0, 3), ShapeError, r"non-empty matrix \(m, n\); got \(0, 3\)"),
        (torch.eye(3) / 0, NonFiniteError, "NaN or infinity"),
    ],
)
def test_refusals(matrix: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Dense(matrix)


def test_spaces_must_fit() -> None:
    with pytest.raises(
        ShapeError, match=r"of shape \(2, 3\) needs spaces of those sizes; got 2 and 4"
    ):
        Dense(torch.ones(2, 3), space=ParamSpace.flat(4))
