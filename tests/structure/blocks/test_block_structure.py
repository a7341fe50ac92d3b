"""Scores of block structure on matrices whose scores are known, and their null values."""

import math

import pytest
import torch
from torch import nn

from eigenscape.curvature import Hessian
from eigenscape.errors import InvalidArgumentError, WrongTypeError
from eigenscape.linalg import block_norms
from eigenscape.operator import Dense
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.space import Block, ParamSpace, Partition
from eigenscape.structure import block_structure, null_block_norms, squared_block_norms, stripes
from eigenscape.testing import matrix_with_spectrum
from eigenscape_papers.theory import linear_hessian
from tests.small_net import oracle


def blocks(*sizes):
    space = ParamSpace.flat(sum(sizes))
    ends = torch.tensor(sizes).cumsum(0).tolist()
    pairs = zip(sizes, ends, strict=True)
    return Partition(
        space, [Block(f"b{i}", (range(end - q, end),)) for i, (q, end) in enumerate(pairs)]
    )


def exact(A, partition):
    return squared_block_norms(Dense(A), partition, num_products=len(A))


def random(n, seed):
    return torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_block_diagonal_matrix_scores_zero_and_one() -> None:
    A = torch.block_diag(random(3, 0), random(5, 1), random(2, 2))
    found = block_structure(exact(A, blocks(3, 5, 2)))
    assert found.ratio == 0.0
    assert found.inside == 1.0
    assert found.ratio_stderr == found.inside_stderr == 0.0
    torch.testing.assert_close(found.pair_ratios, torch.eye(3, dtype=torch.float64))


def test_scores_by_hand_with_unequal_sizes() -> None:
    # Entries 1, 2, 3, 4 in the blocks (0,0), (0,1), (1,0), (1,1) of sizes 2 and 3.
    A = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    A = A.repeat_interleave(torch.tensor([2, 3]), 0).repeat_interleave(torch.tensor([2, 3]), 1)
    found = block_structure(exact(A, blocks(2, 3)))
    E = [[4.0, 24.0], [54.0, 144.0]]
    assert found.ratio == pytest.approx((24 + 54) / (4 + 144))
    assert found.inside == pytest.approx(148 / 226)
    assert found.inside_null == pytest.approx((4 + 9) / 25)
    assert found.ratio_null == pytest.approx(12 / 13)
    expected = torch.tensor([[1.0, 24 / 4], [54 / 144, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(found.pair_ratios, expected)
    torch.testing.assert_close(exact(A, blocks(2, 3)).values, torch.tensor(E).double())
    assert found.columns()["null"] == [found.ratio_null, found.inside_null]


def test_null_of_entries_of_one_mean_square() -> None:
    partition = blocks(2, 7, 4)
    E = torch.stack([exact(random(13, seed), partition).values for seed in range(400)])
    error = (E.mean(0) - null_block_norms((2, 7, 4))) / (E.std(0) / 20)
    assert bool((error.abs() < 4.5).all())


@pytest.mark.parametrize(
    "values", [[5.0, 1.0, 0, 0, 0, 0, 0, 0, 0], [3.0, -3.0, 1, -1, 0, 0, 2, -2, 0], [1.0] * 9]
)
def test_null_of_a_random_basis(values) -> None:
    """The closed form of E over rotations, against rotated matrices."""
    partition = blocks(1, 5, 3)
    true = null_block_norms(
        partition.sizes, trace=sum(values), square=sum(value**2 for value in values)
    )
    drawn = [matrix_with_spectrum(values, seed=seed).double() for seed in range(900)]
    E = torch.stack([exact(A, partition).values for A in drawn])
    error = E.mean(0) - true
    assert bool((error.abs() <= 4.5 * E.std(0) / 30 + 1e-9).all())
    # All of ‖H‖² is there.
    assert float(true.sum()) == pytest.approx(sum(value**2 for value in values))


def test_the_trace_changes_the_null_values() -> None:
    A = matrix_with_spectrum([4.0, 2.0, 1.0, 1.0, 0.5], seed=0).double()
    norms = exact((A + A.T) / 2, blocks(1, 4))
    free, known = block_structure(norms), block_structure(norms, trace=8.5)
    assert free.inside == known.inside
    null = null_block_norms((1, 4), trace=8.5, square=float(A.square().sum()))
    assert known.inside_null == pytest.approx(float(null.trace() / null.sum()))
    assert known.inside_null > free.inside_null
    with pytest.raises(InvalidArgumentError, match="fits no symmetric matrix of size 5"):
        block_structure(norms, trace=50.0)


def test_the_ratio_of_a_linear_model_falls_as_dong_says() -> None:
    """r of Case 1 with cross-entropy is near (γe² + 1) / (γe + 1) / C², (26)."""
    generator = torch.Generator().manual_seed(0)
    N, d = 300, 30
    gamma = d / N
    scaled = []
    for C in (4, 16):
        X, V = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in
                ((N, d), (C, d)))  # fmt: skip
        H = linear_hessian(X, V / d**0.5, torch.zeros(N, dtype=torch.long))
        found = block_structure(exact((H + H.T) / 2, blocks(*[d] * C)))
        assert found.ratio_null == pytest.approx(1.0)
        assert found.inside_null == pytest.approx(1 / C)
        scaled.append(found.ratio * C**2)
    limit = (gamma * math.e**2 + 1) / (gamma * math.e + 1)
    assert scaled[1] == pytest.approx(limit, rel=0.35)
    assert abs(scaled[1] - limit) < abs(scaled[0] - limit)


def test_stripes_by_hand() -> None:
    # Rows of sizes 2, 1, 3 against columns of sizes 1, 2, 2, and a block that is in neither.
    partition = blocks(2, 1, 3, 1, 2, 2, 4)
    A = torch.zeros(15, 15, dtype=torch.float64)
    grid = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]).double()
    index = [block.index() for block in partition]
    for i in range(3):
        for k in range(3):
            block = index[i][:, None], index[3 + k]
            A[block] = grid[i, k] / (len(index[i]) * len(index[3 + k])) ** 0.5
    found = stripes(exact(A, partition), ["b0", "b1", "b2"], ["b3", "b4", "b5"])
    total = 285.0
    by_hand = [1 + 25 + 81, 4 + 36 + 49, 9 + 16 + 64]
    torch.testing.assert_close(found.shares, torch.tensor(by_hand).double() / total)
    sizes = torch.outer(torch.tensor([2.0, 1, 3]), torch.tensor([1.0, 2, 2]))
    on = [sizes[0, 0] + sizes[1, 1] + sizes[2, 2], sizes[0, 1] + sizes[1, 2] + sizes[2, 0]]
    assert found.null[:2].tolist() == pytest.approx([float(part / sizes.sum()) for part in on])
    assert float(found.null.sum()) == pytest.approx(1.0)
    assert found.shift == 0
    assert list(found.columns()["shift"]) == [0, 1, 2]


def test_shares_of_a_structureless_matrix_are_their_null_values() -> None:
    names = [f"b{i}" for i in range(6)]
    partition = blocks(4, 4, 4, 3, 3, 3)
    shares = torch.stack(
        [stripes(exact(random(21, s), partition), names[:3], names[3:]).shares for s in range(400)]
    )
    error = (shares.mean(0) - 1 / 3) / (shares.std(0) / 20)
    assert bool((error.abs() < 4.5).all())


def test_stripes_of_a_network_against_its_dense_hessian() -> None:
    """Stripes under cross-entropy at the start: the columns i of ∂²/∂w_i∂v_j, Dong (21)."""
    torch.manual_seed(1)
    d, m, C = 6, 4, 30
    model = nn.Sequential(
        nn.Linear(d, m, bias=False), nn.ReLU(), nn.Linear(m, C, bias=False)
    ).double()
    x, y = torch.randn(60, d, dtype=torch.float64), torch.arange(60) % C
    H = Hessian(EmpiricalRisk(model, CrossEntropy(), (x, y)))
    units = Partition.by_output(H.space, "0") + Partition.by_input(H.space, "2")
    names = units.names
    norms = squared_block_norms(H, units, num_products=H.space.size)
    found = stripes(norms, names[:m], names[m:])
    cross = oracle(model, x, y)[: m * d, m * d :].view(m, d, C, m)
    stripe = torch.einsum("idji->", cross.square()) / cross.square().sum()
    assert float(found.shares[0]) == pytest.approx(float(stripe), rel=1e-9)
    assert found.null.tolist() == pytest.approx([1 / m] * m)
    assert found.shift == 0
    assert float(found.shares[0]) > 0.8
    # From probes, with errors that hold.
    rough = stripes(squared_block_norms(H, units, num_products=40, seed=3), names[:m], names[m:])
    assert float(rough.stderr[0]) > 0
    assert abs(float(rough.shares[0] - stripe)) < 5 * float(rough.stderr[0])


def test_errors_of_scores_are_true() -> None:
    A = random(30, 5) + 2 * torch.block_diag(random(12, 6), random(10, 7), random(8, 8))
    A = A + A.T
    partition = blocks(12, 10, 8)
    true = block_structure(exact(A, partition))
    runs = [
        block_structure(squared_block_norms(Dense(A), partition, num_products=18, seed=seed))
        for seed in range(200)
    ]
    for name in ("ratio", "inside"):
        values = torch.tensor([getattr(run, name) for run in runs])
        told = torch.tensor([getattr(run, f"{name}_stderr") for run in runs])
        assert 0.8 < float(told.square().mean().sqrt() / values.std()) < 1.25
        assert abs(float(values.mean()) - getattr(true, name)) < 0.5 * float(values.std())
    pairs = torch.stack([run.pair_ratios for run in runs])
    told = torch.stack([run.pair_ratios_stderr for run in runs]).square().mean(0).sqrt()
    off = ~torch.eye(3, dtype=torch.bool)
    ratio = (told / pairs.std(0))[off]
    assert bool(((ratio > 0.7) & (ratio < 1.5)).all())


def test_refusals() -> None:
    A = torch.ones(3, 3, dtype=torch.float64)
    with pytest.raises(WrongTypeError, match="got BlockNorms"):
        block_structure(block_norms(Dense(A), blocks(1, 2), num_probes=2))
    with pytest.raises(InvalidArgumentError, match="got 1 blocks"):
        block_structure(exact(A, blocks(3)))
    with pytest.raises(InvalidArgumentError, match=r"Σ E_aa = 0\.00"):
        block_structure(exact(torch.zeros(3, 3), blocks(1, 2)))
    with pytest.raises(InvalidArgumentError, match="no block is called 'c'"):
        stripes(exact(A, blocks(1, 2)), ["b0"], ["c"])
    with pytest.raises(InvalidArgumentError, match="got 1 and 2"):
        stripes(exact(A, blocks(1, 2)), ["b0"], ["b0", "b1"])
    with pytest.raises(InvalidArgumentError, match="sizes"):
        null_block_norms([2, 0])
