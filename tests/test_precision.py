"""Precision switches: off inside, as they were outside, by either of PyTorch's two interfaces."""

from collections.abc import Iterator

import pytest
import torch

from eigenscape.precision import full_precision

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
