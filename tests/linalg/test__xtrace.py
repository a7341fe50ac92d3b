"""XTrace's arithmetic against its definition, probe by probe with a dense matrix."""

import math

import pytest
import torch
from torch import Tensor

from eigenscape.linalg._few_samples import widening
from eigenscape.linalg._xtrace import new_directions, xtrace_from_products
from tests.linalg.matrices import with_spectrum

N, M = 19, 6


def projector(Y: Tensor) -> Tensor:
    Q, _ = torch.linalg.qr(Y)
    return Q @ Q.T


def estimate_without(A: Tensor, Omega: Tensor, i: int, left_out: list[int]) -> tuple[float, float]:
    """t_i by its definition, without some probes, and its variance given the others."""
    n, m = Omega.shape
    others = [j for j in range(m) if j != i and j not in left_out]
    P = projector(A @ Omega[:, others])
    complement = torch.eye(n) - P
    z = complement @ Omega[:, i]
    d = n - len(others)
    t = float((P @ A).trace() + d * (z @ A @ z) / (z @ z))
    z = z / z.norm() * math.sqrt(d)
    moved = complement @ (A @ z) - (z @ A @ z) / d * z
    return t, 2 * float(moved.square().sum())


def truth(A: Tensor, Omega: Tensor) -> tuple[float, float]:
    m = Omega.shape[1]
    t, variances = zip(*(estimate_without(A, Omega, i, []) for i in range(m)), strict=True)
    moves = [
        (t[i] - estimate_without(A, Omega, i, [j])[0])
        * (t[j] - estimate_without(A, Omega, j, [i])[0])
        for i in range(m)
        for j in range(m)
        if i != j
    ]
    single, shared = sum(variances) / m, sum(moves) / len(moves)
    variance = single / m + (1 - 1 / m) * min(max(shared, 0.0), single)
    return sum(t) / m, float(widening(m)) * math.sqrt(variance)


def answer(A: Tensor, Omega: Tensor) -> tuple[float, float]:
    Y = A @ Omega
    Q = new_directions(Y.new_zeros(len(A), 0), Y, 1e-12)
    return xtrace_from_products(Omega, Y, Q, A @ Q)


def symmetric() -> Tensor:
    return with_spectrum(1.0 / torch.arange(1.0, N + 1) ** 2)


@pytest.mark.parametrize("kind", ["decaying", "indefinite", "not symmetric"])
def test_estimate_and_error_are_those_of_the_definition(kind: str) -> None:
    A = symmetric() if kind == "decaying" else with_spectrum(torch.linspace(-1.0, 2.0, N))
    if kind == "not symmetric":
        A = A + torch.randn(N, N) / 5
    for _ in range(3):
        Omega = torch.randn(N, M)
        value, error = truth(A, Omega)
        both = answer(A, Omega)
        assert both[0] == pytest.approx(value, rel=1e-9)
        assert both[1] == pytest.approx(error, rel=1e-7)
        assert both[1] != pytest.approx(answer(A, Omega.roll(1, 0))[1], rel=1e-3)


def test_few_probes_suffice_for_a_matrix_of_low_rank() -> None:
    A = with_spectrum([4.0, -1.0, 0.5, *[0.0] * (N - 3)])
    value, error = answer(A, torch.randn(N, M))
    assert value == pytest.approx(3.5, rel=1e-11)
    assert error <= 1e-10


def test_the_order_of_the_probes_does_not_matter() -> None:
    A, Omega = symmetric(), torch.randn(N, M)
    one, other = answer(A, Omega), answer(A, Omega[:, [4, 2, 0, 5, 1, 3]])
    assert one == pytest.approx(other, rel=1e-10)


def test_the_length_of_the_probes_does_not_matter() -> None:
    A, Omega = symmetric(), torch.randn(N, M)
    assert answer(A, Omega) == pytest.approx(answer(A, Omega * 1e3), rel=1e-9)


def test_new_directions_complete_the_basis() -> None:
    Q = torch.linalg.qr(torch.randn(N, 4)).Q
    Y = torch.randn(N, 3) + 1e6 * Q[:, :3]
    fresh = new_directions(Q, Y, 1e-8)
    both = torch.cat([Q, fresh], 1)
    torch.testing.assert_close(both.T @ both, torch.eye(7), rtol=0, atol=1e-13)
    missed = Y - both @ (both.T @ Y)
    assert missed.norm() <= 1e-14 * Y.norm()


def test_directions_of_rounding_are_left_out() -> None:
    Q = torch.linalg.qr(torch.randn(N, 4)).Q
    new = torch.randn(N)
    Y = torch.stack([Q @ torch.randn(4), new, 2 * new, 1e-9 * torch.randn(N)], 1)
    assert new_directions(Q, Y, 1e-6).shape == (N, 1)
    assert new_directions(Q, Y, 1e-12).shape == (N, 2)
    assert new_directions(Q, Y[:, :1], 1e-12).shape == (N, 0)
