from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.dong import norms_study as dong_norms
from eigenscape_papers.runner import Study, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.theory import (
    hidden_block_norms,
    linear_block_norms,
    linear_class_limits,
    linear_hessian,
    one_hidden_layer_hessian,
)
from papers.tests.conftest import numbers_of

NAME = "dong-norms"


def drawn(seed: int, *shapes: tuple[int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def test_linear_blocks_are_those_of_the_hessian() -> None:
    N, d, classes = 6, 5, (10, 13)
    found = dong_norms.linear_squares(N, d, classes, 1, seed=3)[0]
    x, V = (t.double() for t in drawn(3, (N, d), (13, d), dtype=torch.float32))
    for k, C in enumerate(classes):
        weight = V[:C] / d**0.5
        H = linear_hessian(x, weight, torch.zeros(N, dtype=torch.long)).view(C, d, C, d)
        norms = H.square().sum((1, 3))
        pairs = [float(norms[i, i + 1]) for i in range(0, 10, 2)]
        own = C**2 / d * float(norms.diagonal()[:10].mean())
        other = C**4 / d * sum(pairs) / 5
        torch.testing.assert_close(found[k], torch.tensor([own, other]), rtol=1e-5, atol=0.0)


def test_hidden_and_output_blocks_are_those_of_the_hessian() -> None:
    N, d, m, classes = 6, 5, 3, (10, 13)
    hidden, output = (t[0] for t in dong_norms.hidden_squares(N, d, m, classes, 1, seed=3))
    x, W, V = drawn(3, (N, d), (m, d), (13, m), dtype=torch.float64)
    W = W / d**0.5
    for k, C in enumerate(classes):
        weight, y = V[:C] / m**0.5, torch.zeros(N, dtype=torch.long)
        norms = hidden_block_norms(x, W, weight, y).square()
        beside = float(norms.sum() - norms.trace()) / (m * (m - 1))
        expected = torch.tensor([float(norms.trace()) / m / d, C * beside / d])
        torch.testing.assert_close(hidden[k], expected)
        # Without the terms n = n': the squares of the blocks of single samples.
        H = one_hidden_layer_hessian(x, W, weight, y)[m * d :, m * d :]
        squares = H.view(C, m, C, m).square().sum((1, 3)) * N**2
        for one in x:
            alone = linear_block_norms((one[None] @ W.T).relu(), weight, y[:1])
            squares -= alone.square()
        squares /= N * (N - 1)
        beside = float(squares.sum() - squares.trace()) / (C * (C - 1))
        expected = torch.tensor([C**2 * float(squares.trace()) / C, C**4 * beside])
        torch.testing.assert_close(output[k], expected)


def test_the_claims(small_study: Callable[[str], Study], shop: Workshop) -> None:
    result = run_study(small_study(NAME), shop, scale="paper")
    ours = numbers_of(result)
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    table = result.sheets[0].columns
    last = table["C"].index(40)
    limit = linear_class_limits(20 / 24).diagonal
    share = table["diagonal"][last] / limit
    assert ours["dong.norms.linear.diagonal.limit"] == pytest.approx(share, rel=1e-5)
    off = [abs(a / b - 1) for a, b in zip(table["diagonal"], table["theory"], strict=True)]
    assert ours["dong.norms.linear.diagonal.theory"] == pytest.approx(max(off[:3]), rel=1e-3)


def test_slopes_are_those_of_the_table(ran: Callable[[str], StudyResult]) -> None:
    table = ran(NAME).sheets[0].columns
    for start, case in ((0, "linear"), (3, "hidden"), (6, "output")):
        C = torch.tensor(table["C"][start : start + 3], dtype=torch.float64).log()
        r = torch.tensor(table["r"][start : start + 3]).log()
        design = torch.stack([C, torch.ones_like(C)], 1)
        slope = float(torch.linalg.lstsq(design, r[:, None]).solution[0])
        assert numbers_of(ran(NAME))[f"dong.norms.{case}.rate"] == pytest.approx(slope, abs=1e-4)


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = torch.randn(60, generator=torch.Generator().manual_seed(0))
    mean, error = dong_norms.jackknife(values, float, 60)
    assert mean == pytest.approx(float(values.mean()))
    assert error == pytest.approx(float(values.std()) / 60**0.5)
    # Groups of unequal sizes do not move the statistic.
    assert dong_norms.jackknife(values, float, 7)[0] == pytest.approx(mean)


def test_repetitions_are_different_and_seeds_fix_them() -> None:
    one = dong_norms.linear_squares(6, 5, (10,), 2, seed=1)
    assert torch.equal(one, dong_norms.linear_squares(6, 5, (10,), 2, seed=1))
    assert not torch.equal(one[0], one[1])
