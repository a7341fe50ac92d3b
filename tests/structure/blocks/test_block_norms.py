"""Squared norms of blocks: exact ones, and estimates for bias and for their stated errors."""

import pytest
import torch

from eigenscape.curvature import Hessian
from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape.linalg import block_norms
from eigenscape.operator import Dense
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.space import Block, ParamSpace, Partition
from eigenscape.structure import squared_block_norms
from tests.linalg.matrices import nan_operator
from tests.small_net import X, Y, net, oracle

SIZES = (5, 2, 9, 3)


def blocks(sizes=SIZES, uncovered=0):
    space = ParamSpace.flat(sum(sizes) + uncovered)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return Partition(
        space,
        [
            Block(f"b{i}", (range(s, s + q),))
            for i, (s, q) in enumerate(zip(starts, sizes, strict=True))
        ],
    )


def matrix(n, *, symmetric=True, seed=0):
    A = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    # Entries of very different sizes, so that a transposed or shifted block shows.
    A = A * torch.linspace(0.2, 2.0, n, dtype=torch.float64)
    return (A + A.T) / 2 if symmetric else A


def by_hand(A, partition):
    index = [block.index() for block in partition]
    return torch.stack(
        [torch.stack([A[i[:, None], j].square().sum() for j in index]) for i in index]
    )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("uncovered", [0, 4])
@pytest.mark.parametrize("batch", [1, 7])
def test_enough_products_make_it_exact(symmetric, uncovered, batch) -> None:
    partition = blocks(uncovered=uncovered)
    A = matrix(19 + uncovered, symmetric=symmetric)
    found = squared_block_norms(Dense(A), partition, num_products=19, batch=batch)
    torch.testing.assert_close(found.values, by_hand(A, partition))
    assert (found.method, found.num_products, found.num_probes) == ("exact", 19, 0)
    assert not found.stderr.any()
    assert found.left_out.shape == (0, 4, 4)
    assert found.sizes == SIZES
    assert found.is_symmetric == symmetric
    columns = found.columns()
    assert (columns["row"][1], columns["column"][1]) == ("b0", "b1")
    assert columns["squared norm"][1] == float(found.values[0, 1])


def test_small_blocks_are_exact_and_the_budget_is_kept() -> None:
    partition, A = blocks(), matrix(19)
    for budget in (11, 13, 18):
        found = squared_block_norms(Dense(A), partition, num_products=budget)
        assert found.method == "masked"
        assert found.num_products <= budget
        # One probe more for each block would not fit.
        more = sum(min(found.num_probes + 1, size) for size in SIZES)
        assert more > budget
        exact = torch.tensor(SIZES) <= found.num_probes
        sure = exact[:, None] | exact
        true = by_hand(A, partition)
        torch.testing.assert_close(found.values[sure], true[sure])
        assert bool((found.stderr[sure] < 1e-12 * true.max()).all())
        assert bool((found.stderr[~sure] > 0).all())
    few = squared_block_norms(Dense(A), partition, num_products=7)
    assert (few.method, few.num_products, few.num_probes) == ("shared", 7, 7)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("method", "budget"), [("masked", 14), ("shared", 12)])
def test_estimates_are_unbiased_and_their_errors_are_true(symmetric, method, budget) -> None:
    partition, A = blocks(), matrix(19, symmetric=symmetric)
    operator, true = Dense(A), by_hand(A, partition)
    runs = [
        squared_block_norms(operator, partition, num_products=budget, method=method, seed=1000 + s)
        for s in range(400)
    ]
    values = torch.stack([run.values for run in runs])
    spread = values.std(0)
    random = spread > 1e-9 * true
    assert random.any()
    error = (values.mean(0) - true) / (spread / 20)
    # 16 pairs, 10 of them different: 4.5 standard errors happen once in 10^4 such tests.
    assert bool((error[random].abs() < 4.5).all())
    torch.testing.assert_close(values[0][~random], true[~random])
    told = torch.stack([run.stderr.square() for run in runs]).mean(0).sqrt()
    ratio = (told / spread)[random]
    assert bool(((ratio > 0.8) & (ratio < 1.25)).all()), ratio


@pytest.mark.parametrize(("method", "budget"), [("masked", 16), ("shared", 20)])
def test_a_score_carries_its_standard_error(method, budget) -> None:
    partition, A = blocks((6, 4, 9, 5)), matrix(24)
    true = by_hand(A, partition)

    def inside(squares):
        return squares.trace() / squares.sum()

    found = [
        squared_block_norms(
            Dense(A), partition, num_products=budget, method=method, seed=s
        ).estimate(inside)
        for s in range(300)
    ]
    values, errors = (torch.stack(part) for part in zip(*found, strict=True))
    # A ratio of estimates has a bias of its own, well below its spread.
    assert abs(values.mean() - inside(true)) < 0.3 * values.std()
    assert 0.75 < float(errors.square().mean().sqrt() / values.std()) < 1.35


def test_masked_beats_shared_for_one_budget() -> None:
    partition, A = blocks((8, 8, 8)), matrix(24)
    spread = {
        method: torch.stack(
            [
                squared_block_norms(
                    Dense(A), partition, num_products=12, method=method, seed=s
                ).values
                for s in range(100)
            ]
        ).std(0)
        for method in ("masked", "shared")
    }
    assert bool((spread["masked"] < spread["shared"]).all())


@pytest.mark.parametrize("budget", [20, 43])
def test_a_network_against_its_dense_hessian(budget) -> None:
    torch.manual_seed(0)
    model = net().double()
    H = Hessian(EmpiricalRisk(model, CrossEntropy(), (X, Y)))
    partition = Partition.by_output(H.space)
    assert partition.sizes == (5,) * 5 + (6,) * 3
    found = squared_block_norms(H, partition, num_products=budget)
    true = by_hand(oracle(model), partition)
    if budget == 43:
        torch.testing.assert_close(found.values, true)
        norms = block_norms(H, partition, num_probes=6).values
        torch.testing.assert_close(found.values.sqrt(), norms)
    else:
        assert found.method == "masked"
        assert found.num_probes == 2
        assert (found.values - true).norm() < 5 * found.stderr.norm()


@pytest.mark.parametrize("method", ["masked", "shared"])
def test_entries_of_no_block_add_no_noise(method) -> None:
    A = matrix(23)
    louder = A.clone()
    louder[19:] *= 1000.0
    louder[:, 19:] *= 1000.0
    runs = [
        squared_block_norms(Dense(M), blocks(uncovered=4), num_products=12, method=method)
        for M in (A, louder)
    ]
    torch.testing.assert_close(runs[0].values, runs[1].values)
    torch.testing.assert_close(runs[0].stderr, runs[1].stderr)


def test_seed_batch_and_dtype_do_not_change_the_probes() -> None:
    partition, A = blocks(), matrix(19)
    for method in ("masked", "shared"):
        options = dict(num_products=12, method=method)
        one = squared_block_norms(Dense(A), partition, **options, batch=1)
        two = squared_block_norms(Dense(A), partition, **options, batch=5)
        torch.testing.assert_close(one.values, two.values)
        single = squared_block_norms(Dense(A.float()), partition, **options)
        torch.testing.assert_close(one.values, single.values, rtol=1e-4, atol=1e-4)
        other = squared_block_norms(Dense(A), partition, **options, seed=1)
        assert not torch.equal(one.values, other.values)


def test_zero_blocks_have_no_error() -> None:
    A = torch.block_diag(matrix(5), matrix(9))
    found = squared_block_norms(Dense(A), blocks((5, 9)), num_products=8)
    assert found.method == "masked"
    assert found.values[0, 1] == 0
    assert found.stderr[0, 1] == 0
    empty = squared_block_norms(
        Dense(torch.zeros(14, 14)), blocks((5, 9)), num_products=4, method="shared"
    )
    assert not empty.values.any()
    assert not empty.stderr.any()


def test_progress_counts_products() -> None:
    steps = []
    squared_block_norms(Dense(matrix(19)), blocks(), num_products=13, progress=steps.append)
    assert steps[-1].done == steps[-1].total == 13


def test_refusals() -> None:
    A, partition = Dense(matrix(19)), blocks()
    with pytest.raises(InvalidArgumentError, match="needs 4 for 4 blocks of 19 entries"):
        squared_block_norms(A, partition, num_products=3)
    with pytest.raises(InvalidArgumentError, match="needs 19 for"):
        squared_block_norms(A, partition, num_products=18, method="exact")
    with pytest.raises(InvalidArgumentError, match="needs 8 for"):
        squared_block_norms(A, partition, num_products=7, method="masked")
    with pytest.raises(InvalidArgumentError, match="method"):
        squared_block_norms(A, partition, num_products=7, method="mask")
    with pytest.raises(ShapeError, match="must divide the operator's own space"):
        squared_block_norms(A, blocks((5, 5)), num_products=7)
    with pytest.raises(ShapeError, match="square operator"):
        squared_block_norms(Dense(matrix(19)[:4]), partition, num_products=7)
    with pytest.raises(WrongTypeError, match="must be a Partition; got list"):
        squared_block_norms(A, list(partition), num_products=7)
    with pytest.raises(NonFiniteError, match="NaN"):
        squared_block_norms(nan_operator(8), blocks((3, 5)), num_products=8)
