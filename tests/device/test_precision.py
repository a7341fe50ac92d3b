"""Precision switches, off inside and as they were outside; and the noise of products."""

from collections.abc import Iterator

import pytest
import torch

from eigenscape.device import full_precision, product_defects

needs_new = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has old switches"
)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize("asked", ["highest", "high", "medium"])
@pytest.mark.parametrize("cudnn", [True, False])
def test_old_switches(asked: str, cudnn: bool) -> None:
    torch.set_float32_matmul_precision(asked)
    torch.backends.cudnn.allow_tf32 = cudnn
    for _ in range(2):
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == asked
        assert torch.backends.cudnn.allow_tf32 == cudnn
        assert torch.backends.cuda.matmul.allow_tf32 == (asked != "highest")


@needs_new
def test_new_switches() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    with full_precision():
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cudnn.conv.fp32_precision != "tf32"
        assert torch.backends.cudnn.rnn.fp32_precision != "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert torch.backends.cudnn.rnn.fp32_precision == "tf32"
    torch.backends.cuda.matmul.fp32_precision = "ieee"


def test_restored_after_an_error_and_as_a_decorator() -> None:
    torch.set_float32_matmul_precision("high")

    @full_precision()
    def fail() -> None:
        assert torch.get_float32_matmul_precision() == "highest"
        raise ArithmeticError

    for _ in range(2):
        with pytest.raises(ArithmeticError):
            fail()
        assert torch.get_float32_matmul_precision() == "high"


def test_defects_of_rounded_products_are_of_the_size_of_rounding() -> None:
    matrix = torch.diag(torch.arange(1.0, 41.0, dtype=torch.float64))

    def rounded(X: torch.Tensor) -> torch.Tensor:
        return (matrix @ X).bfloat16().double()

    kind = {"dtype": torch.float64, "device": torch.device("cpu"), "num_probes": 4, "seed": 0}
    exact = product_defects(lambda X: matrix @ X, 40, **kind)
    found = product_defects(rounded, 40, **kind)
    # bfloat16 rounds by 2⁻⁹ at most and by about a third of that on average.
    assert 2**-12 < found.linearity < 2**-8
    assert exact.linearity < 1e-15
    assert exact.asymmetry < 1e-15
    assert found.num_products == 12
    # A small step beside a vector, as a finite difference takes it, sees nothing at all.
    v = torch.ones(40, 1)
    assert torch.equal(rounded(v + 1e-6), rounded(v))
