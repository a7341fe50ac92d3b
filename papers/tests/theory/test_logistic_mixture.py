"""The Fisher matrix of the Gaussian mixture: closed forms against samples and a trained model."""

import math

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from eigenscape.errors import EigenscapeError, InvalidArgumentError, UnknownNameError
from eigenscape_papers.theory import (
    FisherLevels,
    error_from_ratio,
    expected_fisher,
    fisher_levels,
    mixture_error,
    mixture_uncertainty,
    optimal_fisher_levels,
)

RATIOS = ("outliers/bulk", "outliers/mini-bulk", "mini-bulk/bulk")


def draw(D: int, C: int, t: float, N: int) -> tuple[Tensor, Tensor]:
    """Draw N inputs, each class as often as the others."""
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    labels = torch.arange(N) % C
    x[torch.arange(N), labels] += t
    return x, labels


def fisher(x: Tensor, p: Tensor) -> Tensor:
    """Average U ⊗ xxᵀ over samples, a block of two classes at a time."""
    C = p.shape[1]
    weights = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    blocks = [
        torch.cat([(x * weights[:, j, k, None]).T @ x for k in range(C)], dim=1) for j in range(C)
    ]
    return torch.cat(blocks) / len(x)


def batch_means(x: Tensor, p: Tensor, num_batches: int = 40) -> tuple[Tensor, Tensor]:
    """Return the sampled Fisher matrix and the standard error of its entries."""
    parts = zip(x.chunk(num_batches), p.chunk(num_batches), strict=True)
    each = torch.stack([fisher(*part) for part in parts])
    return each.mean(0), each.std(0) / math.sqrt(num_batches)


def levels_match(levels: FisherLevels, G: Tensor) -> float:
    """Return the largest distance of an eigenvalue from its level, relative to the largest."""
    values = torch.linalg.eigvalsh(G).flip(0)
    return float((values - levels.eigenvalues()).abs().max() / values[0])


@pytest.mark.parametrize(
    ("D", "C", "t", "error"),
    [
        (5, 2, 1.5, 0.3),
        (6, 3, 1.0, 0.6),
        (7, 4, 2.0, 0.1),
        (12, 10, 3.0, 0.4),
        (4, 4, 0.7, 0.75),
        (6, 3, 40.0, 0.2),  # with α given there is no integral, and t has no limit
    ],
)
def test_the_theorem_is_the_spectrum_of_the_lemma(D: int, C: int, t: float, error: float) -> None:
    levels = fisher_levels(D, C, t, error=error)
    assert sum(levels.multiplicities) == D * C
    assert levels_match(levels, expected_fisher(D, C, t, error=error)) < 1e-14
    # As printed: the index at which each level ends.
    ends = torch.tensor(levels.multiplicities).cumsum(0).tolist()
    assert ends == [C, C * (C - 1), D * (C - 1), D * C]


@pytest.mark.parametrize(("D", "C", "t", "error"), [(5, 2, 1.5, 0.3), (7, 4, 2.0, 0.2)])
def test_the_lemma_is_the_mean_of_samples(D: int, C: int, t: float, error: float) -> None:
    x, labels = draw(D, C, t, 40_000)
    p = torch.full((len(x), C), error / (C - 1), dtype=torch.float64)
    p[torch.arange(len(x)), labels] = 1.0 - error
    G, stderr = batch_means(x, p)
    assert float(((G - expected_fisher(D, C, t, error=error)).abs() / stderr).max()) < 5
    # The same check refuses a signal that is 10 % stronger.
    other = expected_fisher(D, C, 1.1 * t, error=error)
    assert float(((G - other).abs() / stderr).max()) > 8


@pytest.mark.parametrize(("D", "C", "t"), [(5, 2, 1.5), (6, 3, 1.0), (7, 4, 2.0), (8, 6, 3.0)])
def test_levels_at_the_best_weights_are_those_of_samples(D: int, C: int, t: float) -> None:
    x, labels = draw(D, C, t, 60_000)
    p = (t * x[:, :C]).softmax(1)
    levels = optimal_fisher_levels(D, C, t)
    assert levels_match(levels, fisher(x, p)) < 0.03
    assert levels_match(fisher_levels(D, C, t), fisher(x, p)) > 0.1
    wrong = (p.argmax(1) != labels).double()
    assert abs(wrong.mean() - mixture_error(C, t)) < 4 * wrong.std() / math.sqrt(len(x))
    rest = 1.0 - p[torch.arange(len(x)), labels]
    assert abs(rest.mean() - mixture_uncertainty(C, t)) < 4 * rest.std() / math.sqrt(len(x))
    assert sum(levels.multiplicities) == D * C


def test_two_classes_are_integrals_over_the_margin() -> None:
    t = 1.7

    def integrand(g: float, power: int) -> float:
        margin = t / math.sqrt(2.0) + g  # of x along (e₁ − e₂)/√2, in the first class
        q = 1.0 / (1.0 + math.exp(-t * math.sqrt(2.0) * margin))
        return margin**power * 2 * q * (1 - q) * math.exp(-0.5 * g * g) / math.sqrt(2 * math.pi)

    def integral(power: int) -> float:
        return float(quad(integrand, -12, 12, args=(power,), epsabs=1e-14, epsrel=1e-13)[0])

    levels = optimal_fisher_levels(3, 2, t)
    # Along the sum of both means x does not depend on the margin: 1 + t²/2 times the bulk.
    wanted = [integral(0) * (1.0 + 0.5 * t * t), integral(0), integral(2), 0.0]
    assert levels.values.tolist() == pytest.approx(wanted, abs=1e-12)
    assert levels.names == ("outliers", "bulk", "below", "zero")
    assert levels.multiplicities == (1, 1, 1, 3)


@pytest.mark.parametrize("t", [0.2, 1.0, 3.0, 9.0])
@pytest.mark.parametrize("C", [3, 4, 10])
def test_only_some_of_the_outliers_stay_outliers(C: int, t: float) -> None:
    levels = optimal_fisher_levels(C + 3, C, t)
    kept = [part for part in zip(levels.names, levels.multiplicities, strict=True) if part[1]]
    assert kept[:3] == [
        ("outliers", C - 1),
        ("mini-bulk", (C - 1) * (C - 2) // 2),
        ("bulk", 3 * (C - 1)),
    ]
    assert kept[-2] == ("below", 1)
    assert bool((levels.values[:-1] > levels.values[1:]).all())
    bulk = levels.values[levels.names.index("bulk")].item()
    assert bulk == pytest.approx(levels.error / (C - 1), rel=1e-12)
    # For the same α the theorem's bulk is between once and twice as high.
    assert 1.0 < fisher_levels(C + 3, C, t).values[2].item() / bulk < 2.0
    # x along the sum of the means is independent of p, and this quotient of Rayleigh is exact.
    assert levels.values[0].item() >= bulk * (1.0 + t * t / C)


def test_the_trace_is_that_of_calibrated_probabilities() -> None:
    D, C, t, N = 6, 5, 1.5, 400_000
    x, _ = draw(D, C, t, N)
    p = (t * x[:, :C]).softmax(1)
    each = x.square().sum(1) * (1.0 - p.square().sum(1))
    trace = float(optimal_fisher_levels(D, C, t).eigenvalues().sum())
    assert abs(float(each.mean()) - trace) < 4 * float(each.std()) / math.sqrt(N)


def test_a_trained_model_has_the_levels_of_the_best_one() -> None:
    D, C, t = 6, 4, 2.0
    x, labels = draw(D, C, t, 20_000)
    W = torch.zeros(C, D, dtype=torch.float64)
    for _ in range(10):  # Newton's steps: for this model the Fisher matrix is the Hessian
        p = (x @ W.T).softmax(1)
        gradient = (p - torch.eye(C, dtype=torch.float64)[labels]).T @ x / len(x)
        W -= (torch.linalg.pinv(fisher(x, p), rtol=1e-10) @ gradient.flatten()).reshape(C, D)
    assert float(gradient.abs().max()) < 1e-12
    weights = W - W.mean(0)
    best = t * (torch.eye(C, D, dtype=torch.float64) - torch.tensor([[0.25] * C + [0.0] * 2]))
    assert float((weights - best).abs().max()) < 0.15
    G = fisher(x, (x @ weights.T).softmax(1))
    assert levels_match(optimal_fisher_levels(D, C, t), G) < 0.05
    assert levels_match(fisher_levels(D, C, t), G) > 0.3
    values = torch.linalg.eigvalsh(G).flip(0)
    # C − 1 outliers, where symmetric probabilities would have C.
    assert float(values[C - 2] / values[C - 1]) > 1.5 > float(values[C - 1] / values[C])
    measured = float(values[: C - 1].mean() / values[6:12].mean())
    predicted = error_from_ratio(measured, C, exact=True)
    wrong = float(((x @ weights.T).argmax(1) != labels).double().mean())
    assert predicted == pytest.approx(wrong, abs=0.02)
    assert error_from_ratio(measured, C) > wrong - 0.02


def test_uncertainty_is_more_than_the_rate_of_errors() -> None:
    for C in (2, 5, 50):
        for t in (0.5, 2.0, 5.0):
            assert mixture_error(C, t) < mixture_uncertainty(C, t) < 2 * mixture_error(C, t)
        assert mixture_error(C, 1e-6) == pytest.approx(1.0 - 1.0 / C, abs=1e-5)


@pytest.mark.parametrize("kind", RATIOS)
@pytest.mark.parametrize("exact", [False, True])
def test_ratios_predict_the_error(kind: str, exact: bool) -> None:
    levels = optimal_fisher_levels if exact else fisher_levels
    ratios = [levels(4, 3, t).ratio(kind) for t in (0.5, 1.5, 3.0, 6.0)]
    assert ratios == sorted(ratios)
    found = error_from_ratio(ratios[1], 3, kind=kind, exact=exact)
    assert found == pytest.approx(mixture_error(3, 1.5), rel=1e-8)


def test_empty_parts_have_no_ratio() -> None:
    assert math.isnan(fisher_levels(3, 3, 1.0).ratio("outliers/bulk"))
    assert math.isnan(fisher_levels(3, 2, 1.0).ratio("outliers/mini-bulk"))
    assert list(fisher_levels(3, 3, 1.0).to_frame()["multiplicity"]) == [3, 3, 0, 3]


def test_refusals() -> None:
    with pytest.raises(InvalidArgumentError, match="at least 4"):
        fisher_levels(3, 4, 1.0)
    with pytest.raises(InvalidArgumentError, match="at most 1 − 1/C"):
        fisher_levels(5, 2, 1.0, error=0.6)
    with pytest.raises(EigenscapeError, match="must be a number"):
        expected_fisher(5, 2, 1.0, error=True)
    for limited in (mixture_error, mixture_uncertainty):
        with pytest.raises(InvalidArgumentError, match="at most 10"):
            limited(3, 11.0)
    with pytest.raises(InvalidArgumentError, match="at most 10"):
        optimal_fisher_levels(5, 3, 11.0)
    for form in (fisher_levels, expected_fisher):
        with pytest.raises(InvalidArgumentError, match=f"`{form.__name__}.* For more give `error`"):
            form(5, 3, 11.0)
    with pytest.raises(UnknownNameError, match="outliers/bulk"):
        fisher_levels(5, 2, 1.0).ratio("bulk")
    with pytest.raises(InvalidArgumentError, match="3 classes or more"):
        error_from_ratio(2.0, 2, kind="mini-bulk/bulk")
    with pytest.raises(InvalidArgumentError, match="must lie between"):
        error_from_ratio(0.9, 3)
