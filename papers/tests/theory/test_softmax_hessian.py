"""The mean softmax Hessian against closed forms, another quadrature and simulation."""

import math

import pytest
import torch
from scipy.integrate import quad

from eigenscape.errors import InvalidArgumentError, ShapeError
from eigenscape_papers.theory import expected_softmax_hessian

MEANS = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64)
VARIANCES = torch.tensor([0.5, 1.0, 0.2, 3.0], dtype=torch.float64)


def test_logits_without_variance_have_the_hessian_of_their_softmax() -> None:
    p = MEANS.softmax(0)
    A = expected_softmax_hessian(MEANS, torch.zeros(4))
    torch.testing.assert_close(A, torch.diag(p) - torch.outer(p, p), atol=1e-14, rtol=0.0)


def test_two_classes_are_one_integral_over_the_difference() -> None:
    mean, deviation = 0.3 - -1.0, math.sqrt(0.5 + 1.0)

    def integrand(g: float) -> float:
        q = 1.0 / (1.0 + math.exp(-mean - deviation * g))
        return q * (1.0 - q) * math.exp(-0.5 * g * g) / math.sqrt(2.0 * math.pi)

    A = expected_softmax_hessian(MEANS[:2], VARIANCES[:2])
    wanted, _ = quad(integrand, -12.0, 12.0, epsabs=1e-14, epsrel=1e-13)
    expected = wanted * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(A, expected, atol=1e-13, rtol=0.0)


def test_unequal_logits_agree_with_simulation() -> None:
    N = 400_000
    generator = torch.Generator().manual_seed(0)
    z = MEANS + VARIANCES.sqrt() * torch.randn(N, 4, generator=generator, dtype=torch.float64)
    p = z.softmax(1)
    each = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    error = each.std(0) / math.sqrt(N)  # 0.5e-4 to 1.5e-4
    assert bool(
        ((expected_softmax_hessian(MEANS, VARIANCES) - each.mean(0)).abs() < 4 * error).all()
    )
    # The same check refuses logits with a tenth more variance.
    other = expected_softmax_hessian(MEANS, 1.1 * VARIANCES)
    assert float(((other - each.mean(0)).abs() / error).max()) > 8


@pytest.mark.parametrize(
    ("means", "variances"),
    [
        (MEANS, VARIANCES),
        (torch.zeros(10), torch.full((10,), 0.5)),
        (torch.zeros(3), torch.full((3,), 100.0)),
        (torch.tensor([30.0, 0.0, -30.0]), torch.tensor([1.0, 0.0, 4.0])),
    ],
)
def test_rows_sum_to_zero_and_values_are_not_negative(
    means: torch.Tensor, variances: torch.Tensor
) -> None:
    A = expected_softmax_hessian(means, variances)
    assert float(A.sum(1).abs().max()) < 1e-14
    assert float(torch.linalg.eigvalsh(A)[0]) > -1e-15
    assert torch.equal(A, A.T)


def test_equal_logits_have_one_eigenvalue() -> None:
    A = expected_softmax_hessian(torch.zeros(5), torch.full((5,), 0.5))
    values = torch.linalg.eigvalsh(A)[1:]
    torch.testing.assert_close(values, values[:1].expand(4), atol=1e-14, rtol=0.0)
    # Less than at p = 1/c, where it is 1/c.
    assert 0.15 < float(values[0]) < 0.2


def test_refusals() -> None:
    with pytest.raises(ShapeError, match="one length"):
        expected_softmax_hessian(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ShapeError, match="2 or more"):
        expected_softmax_hessian(torch.zeros(1), torch.zeros(1))
    with pytest.raises(InvalidArgumentError, match="0 or more"):
        expected_softmax_hessian(torch.zeros(2), torch.tensor([1.0, -1.0]))
