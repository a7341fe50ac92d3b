"""Models of real libraries: products against plain double backward, and no false alarm.

A library that is not installed is skipped, and said so; `pip install -e ".[dev,zoo]"` brings all.
"""

import importlib
import warnings
from collections.abc import Iterator

import pytest
import torch

import eigenscape as es
from eigenscape.errors import SelfTestError
from tests.strangers.oracle import (
    RTOL,
    differenced,
    direction,
    gauss_newton_product,
    hessian_product,
)
from tests.strangers.zoo import SICK, ZOO, Animal

# Sums of a few hundred terms in float32 lose so many times its rounding error.
SINGLE_RTOL = 64 * torch.finfo(torch.float32).eps
# Of most models float32 takes longer: its self-test is made in both precisions.
SOON = ("gpt2", "llama", "bert", "low_rank_adapter", "prompt_adapter")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Libraries warn of each other and of old names; models are built in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_dtype(torch.float32)
        yield


def made(name: str) -> Animal:
    library, maker = (ZOO | SICK)[name]
    torch.manual_seed(0)
    try:
        importlib.import_module(library)
        return maker()
    except (ImportError, RuntimeError) as error:  # the latter from a torchvision of another build
        pytest.skip(f"{library} cannot be imported: {error}")


def check_products(animal: Animal, dtype: torch.dtype) -> None:
    """Compare Hv and Gv with plain double backward in float64, and hear no alarm."""
    exact, case = animal.to(torch.float64).case(), animal.to(dtype).case()
    params = list(exact.named().values())
    v = direction(sum(p.numel() for p in params)).double()
    truths = [hessian_product(exact, params, v), gauss_newton_product(exact, params, v)]
    risk = case.risk()
    rtol = RTOL if risk.precision == torch.float64 else SINGLE_RTOL
    for matrix, truth in zip((es.Hessian(risk), es.GaussNewton(risk)), truths, strict=True):
        error = float(((matrix @ v.to(dtype)).double() - truth).norm() / truth.norm())
        assert error <= rtol
        assert matrix.self_test.verdict in ("passed", "unresolved")


@pytest.mark.parametrize("name", ZOO)
def test_products_in_float64(name: str) -> None:
    check_products(made(name), torch.float64)


@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in ZOO]
)
def test_products_in_float32(name: str) -> None:
    check_products(made(name), torch.float32)


@pytest.mark.parametrize("name", SICK)
def test_a_wrong_second_derivative_is_refused(name: str) -> None:
    case = made(name).to(torch.float64).case()
    params = list(case.named().values())
    v = direction(sum(p.numel() for p in params)).double()
    plain, true = hessian_product(case, params, v), differenced(case, params, v)
    assert (plain - true).norm() > 1e-5 * true.norm()  # else it is sick no longer
    with pytest.raises(SelfTestError):
        es.Hessian(case.risk()) @ v
