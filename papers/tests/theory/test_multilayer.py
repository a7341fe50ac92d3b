"""Wu's form for deep networks: by enumeration where it is exact, by simulation where it is not."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, ShapeError, UnknownNameError
from eigenscape_papers.theory import (
    centred_row_space,
    multilayer_output_hessian,
    row_overlap_limit,
)

F64 = torch.float64


def random_weights(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Draw weights (outputs, inputs) with rows of expected norm 1."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(m, n, generator=generator, dtype=F64) / math.sqrt(n)
        for n, m in itertools.pairwise(sizes)
    ]


def overlap(U: Tensor, V: Tensor) -> float:
    return float((U.T @ V).square().sum()) / U.shape[1]


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("known", [False, True])
def test_it_is_the_form_of_the_mean_jacobian_over_independent_activations(
    layer: int, known: bool
) -> None:
    weights = random_weights((2, 4, 3, 5), 0)
    generator = torch.Generator().manual_seed(1)
    firing = [torch.rand(n, generator=generator, dtype=F64) for n in (4, 3)]
    half = [torch.full((n,), 0.5, dtype=F64) for n in (4, 3)]
    q = torch.rand(5, generator=generator, dtype=F64).softmax(0)
    A = torch.diag(q) - torch.outer(q, q)
    # E[G] over all 2^(4 + 3) patterns, G = W3 D2 W2 D1 cut off at the layer.
    mean = torch.zeros(5, (4, 3, 5)[layer - 1], dtype=F64)
    pi1, pi2 = firing if known else half
    for bits in itertools.product((0.0, 1.0), repeat=7):
        d1, d2 = torch.tensor(bits[:4], dtype=F64), torch.tensor(bits[4:], dtype=F64)
        G = {1: weights[2] * d2 @ weights[1] * d1, 2: weights[2] * d2, 3: torch.eye(5, dtype=F64)}
        chances = [torch.where(d > 0, pi, 1 - pi).prod() for d, pi in ((d1, pi1), (d2, pi2))]
        mean += chances[0] * chances[1] * G[layer]
    found = multilayer_output_hessian(
        weights, layer, softmax_hessian=A, firing=firing if known else None
    )
    torch.testing.assert_close(found, mean.T @ A @ mean)


def test_two_layers_and_equal_probabilities() -> None:
    W1, W2 = random_weights((3, 7, 4), 2)
    A = (torch.eye(4, dtype=F64) - 0.25) / 4  # diag(1/4) − 1/16
    torch.testing.assert_close(multilayer_output_hessian([W1, W2], 1), W2.T @ A @ W2 / 4)


def test_the_centred_row_space_is_the_range_of_the_form() -> None:
    weights = random_weights((3, 9, 8, 4), 3)
    M = multilayer_output_hessian(weights, 1)
    U = centred_row_space(weights[2] @ weights[1])
    assert U.shape == (9, 3)
    torch.testing.assert_close(U.T @ U, torch.eye(3, dtype=F64))
    torch.testing.assert_close(U @ (U.T @ M), M)
    # 1ᵀS is no part of it, where the rows of S are not orthogonal to it.
    assert overlap(U, centred_row_space(weights[1][:4])) < 0.99


def simulate(weights: list[Tensor], layer: int, N: int, seed: int) -> tuple[Tensor, ...]:
    """Return M of a layer, E[A] and the firing probabilities, from N Gaussian inputs."""
    # Another seed than that of the weights: inputs must not repeat their rows.
    generator = torch.Generator().manual_seed(1000 + seed)
    h = torch.randn(N, weights[0].shape[1], generator=generator, dtype=F64)
    active = []
    for W in weights[:-1]:
        u = h @ W.T
        active.append((u > 0).to(F64))
        h = u.relu()
    p = (h @ weights[-1].T).softmax(1)
    R = p.sqrt()[:, :, None] * (weights[-1] - (p @ weights[-1])[:, None, :])
    for i in range(len(weights) - 1, layer, -1):
        R = R * active[i - 1][:, None, :] @ weights[i - 1]
    rows = (R * active[layer - 1][:, None, :]).flatten(0, 1)
    A = torch.diag(p.mean(0)) - p.T @ p / N
    return rows.T @ rows / N, A, *(D.mean(0) for D in active)


@pytest.mark.parametrize(("layer", "limit"), [(1, 0.829029), (2, 0.829029)])
def test_three_layers_keep_0_83_of_wus_eigenspace_and_all_with_firing(
    layer: int, limit: float
) -> None:
    overlaps = []
    for seed in range(3):
        weights = random_weights((500, 420, 380, 4), seed)
        M, A, *firing = simulate(weights, layer, 1200, seed)
        top = torch.linalg.eigh(M).eigenvectors[:, -3:]
        S = weights[2] if layer == 2 else weights[2] @ weights[1]
        overlaps.append(overlap(top, centred_row_space(S)))
        better = multilayer_output_hessian(weights, layer, softmax_hessian=A, firing=firing)
        assert overlap(top, torch.linalg.eigh(better).eigenvectors[:, -3:]) > 0.99
        wus = multilayer_output_hessian(weights, layer, softmax_hessian=A)
        assert float((M - wus).norm() / M.norm()) > 0.5
        assert float((M - better).norm() / M.norm()) < 0.3
    assert row_overlap_limit(num_layers=3, layer=layer) == pytest.approx(limit, abs=1e-6)
    # Networks of this width differ by 0.016: the mean of three has a standard error of 0.01.
    assert sum(overlaps) / 3 == pytest.approx(limit, abs=0.04)


def test_four_layers_lose_more() -> None:
    overlaps = []
    for seed in range(4):
        weights = random_weights((500, 400, 380, 360, 4), seed)
        M, _, *_ = simulate(weights, 2, 1200, seed)
        top = torch.linalg.eigh(M).eigenvectors[:, -3:]
        overlaps.append(overlap(top, centred_row_space(weights[3] @ weights[2])))
    limit = row_overlap_limit(num_layers=4, layer=2)
    assert limit == pytest.approx(0.6239, abs=1e-4)
    assert row_overlap_limit(num_layers=4, layer=1) == limit
    assert row_overlap_limit(num_layers=4, layer=3) == pytest.approx(0.7525, abs=1e-4)
    assert sum(overlaps) / 4 == pytest.approx(limit, abs=0.06)  # standard error 0.017


def test_the_limits_closed_form() -> None:
    # 1/(1 + (2/π) arcsin(1/π)) for rectified inputs: the plateau where the Thesis has 1.
    plateau = 1 / (1 + 2 / math.pi * math.asin(1 / math.pi))
    assert row_overlap_limit(inputs="rectified") == pytest.approx(plateau, rel=1e-15)
    assert plateau == pytest.approx(0.8290, abs=5e-5)
    # Rectified inputs are what a first layer makes of Gaussian ones.
    deeper = row_overlap_limit(num_layers=3, layer=2)
    assert deeper == pytest.approx(plateau, rel=1e-14)


def test_refusals() -> None:
    W1, W2 = random_weights((3, 7, 4), 2)
    with pytest.raises(InvalidArgumentError, match="from 1 to 2"):
        multilayer_output_hessian([W1, W2], 3)
    with pytest.raises(ShapeError, match="each fitting"):
        multilayer_output_hessian([W2, W1], 1)
    with pytest.raises(ShapeError, match=r"\(4, 4\)"):
        multilayer_output_hessian([W1, W2], 1, softmax_hessian=torch.eye(3))
    with pytest.raises(ShapeError, match="hidden layer"):
        multilayer_output_hessian([W1, W2], 1, firing=[torch.ones(4)])
    with pytest.raises(ShapeError, match="n \\+ 1"):
        centred_row_space(torch.ones(4, 2))
    with pytest.raises(InvalidArgumentError, match="from 1 to 1"):
        row_overlap_limit(layer=2)
    with pytest.raises(UnknownNameError, match="rectified"):
        row_overlap_limit(inputs="uniform")
