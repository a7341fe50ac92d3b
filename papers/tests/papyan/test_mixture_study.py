import dataclasses
import math

import pytest
import torch

from eigenscape_papers.papyan import exactness, regress
from eigenscape_papers.papyan.mixture_study import _slope
from eigenscape_papers.runner import Setting, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import numbers_of

NAME = "papyan-mixture"
OPTIONS = {
    "cases": ((4, 3, 2.0, None), (5, 4, 1.0, 0.3)),
    "num_inputs": 6,
    "num_classes": 3,
    "signals": (1.0, 2.0, 3.0),
    "shown": 2.0,
    "per_class": 300,
    "sizes": (90, 900, 9000),
    "num_seeds": 2,
}


@pytest.fixture(scope="module")
def result(shop: Workshop) -> StudyResult:
    settings = dict.fromkeys(("laptop", "paper"), Setting(options=OPTIONS))
    return run_study(dataclasses.replace(STUDIES[NAME], settings=settings), shop)


def lemma(D: int, C: int, t: float, alpha: float) -> torch.Tensor:
    """Return Lemma 8.1's matrix as printed: (input) ⊗ (class)."""
    blocks = []
    for c in range(C):
        p = torch.full((C,), alpha / (C - 1))
        p[c] = 1 - alpha
        blocks.append(torch.diag(p) - torch.outer(p, p))
    first = torch.block_diag(
        *[t * t / C * U for U in blocks], torch.zeros(C * D - C * C, C * D - C * C)
    )
    return first + torch.kron(torch.eye(D), sum(blocks) / C)


@pytest.mark.parametrize(("D", "C", "t", "alpha"), [(7, 3, 2.0, 0.3), (5, 4, 0.5, 0.02)])
def test_the_theorem_is_that_of_the_printed_matrix(D: int, C: int, t: float, alpha: float) -> None:
    values = torch.linalg.eigvalsh(lemma(D, C, t, alpha)).flip(0)
    rest = 2 - alpha * C / (C - 1)
    levels = (t * t * (1 - alpha) + rest, t * t / C + rest, rest, 0.0)
    counts = (C, C * (C - 2), (D - C) * (C - 1), D)
    told = [alpha / (C - 1) * v for v, n in zip(levels, counts, strict=True) for _ in range(n)]
    torch.testing.assert_close(values, torch.tensor(told), atol=1e-12, rtol=0)
    gap, wrong = exactness([(D, C, t, alpha)])
    assert gap < 1e-12
    assert wrong == 0


def test_levels_that_meet_are_counted_wrong() -> None:
    gap, wrong = exactness([(5, 4, 1.0, 0.75), (5, 4, 1.0, 0.2)])  # at 1 − 1/C two are equal
    assert (gap < 1e-12, wrong) == (True, 1)


def test_slope() -> None:
    sizes = (10, 100, 1000)
    distances = torch.tensor([[n**-0.7, 2 * n**-0.7] for n in sizes])
    assert _slope(sizes, distances) == pytest.approx(-0.7)


def test_claims(result: StudyResult) -> None:
    ours = numbers_of(result)
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    fits = [
        regress(OPTIONS, t, seed, torch.device("cpu")) for t in (1.0, 2.0, 3.0) for seed in (0, 1)
    ]
    theirs = []
    for fit in fits:
        a = fit.uncertainty
        rest = a / 2 * (2 - 1.5 * a)
        level = rest + a / 2 * fit.signal**2 * (1 - a)
        theirs.append((float(fit.values[:3].mean()) / level, fit.bulk / rest))
    for i, name in enumerate(("outliers", "bulk")):
        furthest = max((row[i] for row in theirs), key=lambda x: abs(math.log(x)))
        assert ours[f"papyan.theorem8.1.trained.{name}"] == pytest.approx(furthest)
    assert ours["papyan.s8.2.predictive"] == pytest.approx(-1.0)
    assert ours["papyan.s8.2.separation"] == 1.0
    assert -0.7 < ours["papyan.lemma8.1.sampled"] < -0.3


def test_table(result: StudyResult) -> None:
    table = result.sheets[0].columns
    assert table["t"] == (1.0, 1.0, 2.0, 2.0, 3.0, 3.0)
    largest = max(
        abs(math.log(a / b))
        for a, b in zip(
            table["predicted misclassification"], table["misclassification"], strict=True
        )
    )
    ours = numbers_of(result)["papyan.s8.2.predicted-error"]
    assert ours == pytest.approx(largest, rel=1e-4)


def test_own_networks_have_no_place() -> None:
    assert not STUDIES[NAME].own
