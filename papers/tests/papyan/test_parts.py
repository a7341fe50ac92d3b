import dataclasses
import math

import pytest
import torch
from scipy.stats import spearmanr

from eigenscape.records import Status
from eigenscape_papers.papyan import (
    BackpropagatedErrors,
    LayerPart,
    error_part,
    feature_part,
    layer_products,
    weight_part,
)
from eigenscape_papers.papyan.parts import _by_squares
from eigenscape_papers.runner.orders import rank_correlation

CPU = torch.device("cpu")
N, C, IN, OUT = 90, 3, 8, 9


@pytest.fixture
def seen() -> BackpropagatedErrors:
    """Unequal classes with long means, small deviations, and a candidate label's own direction."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    y = torch.arange(N) % 7 % C
    h = 0.1 * normal(N, IN) + normal(C, IN)[y] + 2.0
    errors = 0.05 * normal(N, C, OUT) + normal(C, OUT)[y][:, None] + 0.5 * normal(C, C, OUT)[y]
    p = normal(N, C).softmax(1)
    return BackpropagatedErrors(
        status=Status(True, "made up"),
        num_products=0,
        seed=0,
        layer="fc",
        classes=y,
        features=h,
        errors=errors,
        probabilities=p,
    )


def eigenvalues(matrix: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvalsh(matrix).flip(0)


def projector(columns: torch.Tensor) -> torch.Tensor:
    Q = torch.linalg.qr(columns).Q
    return torch.eye(len(Q)) - Q @ Q.T


def taken(before: torch.Tensor, after: torch.Tensor, k: int) -> float:
    edge = before[k]
    left = sum(max(float(v - edge), 0.0) for v in after[:k])
    return 1.0 - left / float((before[:k] - edge).sum())


def agree(part: LayerPart, matrix: torch.Tensor, cause: torch.Tensor, within: torch.Tensor) -> None:
    """Check what features and errors have in common; the columns of `cause` make the class part."""
    P = projector(cause)
    before, after = eigenvalues(matrix), eigenvalues(P @ matrix @ P)
    values = eigenvalues(cause @ cause.T)
    bulk = float(eigenvalues(within)[0])
    torch.testing.assert_close(part.before, before)
    torch.testing.assert_close(part.after, after.clamp_min(0), atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(part.class_values, values[:C])
    assert part.bulk == pytest.approx(bulk)
    assert part.mass == pytest.approx(taken(before, after, C))
    assert part.mass > 0.9 > part.null
    assert part.ratio == pytest.approx(float(values[C - 1]) / bulk)
    assert part.whiskers == pytest.approx(float(values[1] / values[C - 1]))
    rest = float(before[C:].sum())
    assert part.change == pytest.approx((float(after.sum()) - rest) / rest)


def test_features(seen: BackpropagatedErrors) -> None:
    part = feature_part(seen, 4, CPU)
    h, y = seen.features, seen.classes
    means = torch.stack([h[y == c].mean(0) for c in range(C)])
    shares = torch.stack([(y == c).double().mean() for c in range(C)])
    within = (h - means[y]).T @ (h - means[y]) / N
    H = h.T @ h / N
    agree(part, H, (shares.sqrt()[:, None] * means).T, within)
    P = projector(h.mean(0)[:, None])
    first = taken(eigenvalues(H), eigenvalues(P @ H @ P), 1)
    assert part.first == pytest.approx(first)
    assert (part.kind, part.depth, part.num_cross) == ("features", 4, 0)
    assert math.isnan(part.cross)


def test_errors(seen: BackpropagatedErrors) -> None:
    part = error_part(seen, 2, CPU)
    w, y = seen.probabilities / N, seen.classes
    total, within = torch.zeros(OUT, OUT), torch.zeros(OUT, OUT)
    columns, crossed = [], []
    for c in range(C):
        cells = {}
        for label in range(C):
            weights, v = w[y == c, label], seen.errors[y == c, label]
            mean = (weights[:, None] * v).sum(0) / weights.sum()
            cells[label] = (weights.sum(), mean)
            total += (weights[:, None] * v).T @ v
            within += (weights[:, None] * (v - mean)).T @ (v - mean)
        others = [cells[label] for label in range(C) if label != c]
        weight = sum(x for x, _ in others)
        middle = sum(x * mean for x, mean in others) / weight
        columns.append(weight.sqrt() * middle)
        crossed += [x.sqrt() * (mean - middle) for x, mean in others]
    agree(part, total, torch.stack(columns, 1), within)
    cross = torch.stack(crossed, 1)
    above = int((eigenvalues(cross @ cross.T) > part.bulk).sum())
    assert part.num_cross == above > 0
    P = projector(torch.stack(columns, 1))
    leading = torch.linalg.svd(P @ cross, full_matrices=False)[0][:, :above]
    Q = projector(leading)
    left = P @ total @ P
    assert part.cross == pytest.approx(taken(eigenvalues(left), eigenvalues(Q @ left @ Q), above))


def test_weights(seen: BackpropagatedErrors) -> None:
    y, true = seen.classes, seen.errors[torch.arange(N), seen.classes]
    between = sum(
        (y == c).double().mean() * torch.outer(true[y == c].mean(0), seen.features[y == c].mean(0))
        for c in range(C)
    )
    noise = torch.randn(OUT, IN, generator=torch.Generator().manual_seed(1))
    W = -5.0 * between + 0.1 * noise
    part = weight_part(W, seen, 1, CPU)
    U, sizes, Vt = torch.linalg.svd(between)
    left = projector(U[:, :C]) @ W @ projector(Vt[:C].T)
    before, after = torch.linalg.svdvals(W), torch.linalg.svdvals(left)
    torch.testing.assert_close(part.before, before)
    torch.testing.assert_close(part.after, after, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(part.class_values, sizes[:C])
    assert part.mass == pytest.approx(taken(before, after, C))
    assert part.mass > 0.9 > part.null
    means = true.mean(0)[:, None], seen.features.mean(0)[:, None]
    rest = torch.linalg.svdvals(projector(means[0]) @ W @ projector(means[1]))
    assert part.first == pytest.approx(taken(before, rest, 1))
    assert part.ratio == pytest.approx(float(before[C - 1] / before[C]))
    ratios = (before[:-1] / before[1:]).tolist()
    assert part.gap == pytest.approx(ratios[C - 1] / max(ratios[C : C + 1]))


def test_without_a_bulk_there_is_no_part(seen: BackpropagatedErrors) -> None:
    narrow = BackpropagatedErrors(
        status=seen.status,
        num_products=0,
        seed=0,
        layer="fc",
        classes=seen.classes,
        features=seen.features[:, :C],
        errors=seen.errors[:, :, :C],
        probabilities=seen.probabilities,
    )
    assert feature_part(narrow, 0, CPU) is None
    assert error_part(narrow, 1, CPU) is None
    assert weight_part(torch.ones(C, C), narrow, 1, CPU) is None
    assert weight_part(torch.ones(OUT, IN + 1), seen, 1, CPU) is None  # a convolution's
    dead = BackpropagatedErrors(**{**vars(seen), "features": torch.ones(N, IN)})
    assert feature_part(dead, 0, CPU) is None  # no gap anywhere


@pytest.mark.parametrize("values", [(1.0, 3.0, 2.0, 2.0, 9.0), (5.0, 5.0, 1.0)])
def test_rank_correlation(values: tuple[float, ...]) -> None:
    expected = spearmanr(values, range(len(values))).statistic
    assert rank_correlation(values) == pytest.approx(expected)


def test_rank_correlation_of_nothing() -> None:
    assert math.isnan(rank_correlation([1.0]))
    assert math.isnan(rank_correlation([2.0, 2.0, 2.0]))


@pytest.mark.parametrize("shape", [(9, 14), (14, 9), (9, 9)])
def test_singular_values_of_a_gpu_are_those_of_the_host(shape: tuple[int, int]) -> None:
    """A GPU finds them from squares: those that are not near zero to twelve digits."""
    W = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    exact = torch.linalg.svdvals(W)
    # ε σ₁²/σ relative to σ: the smallest of these is a tenth of the largest or more.
    torch.testing.assert_close(_by_squares(W), exact, rtol=1e-12, atol=0)
    basis = torch.linalg.qr(W[:, :2]).Q
    left = W - basis @ (basis.T @ W)
    exact = torch.linalg.svdvals(left)
    # Of those that are zero the square is ε σ₁².
    torch.testing.assert_close(_by_squares(left), exact, rtol=1e-12, atol=1e-7)


def test_products_of_means(seen: BackpropagatedErrors) -> None:
    """With features that are constant in each class a mean gradient is a product of means."""
    y = seen.classes
    centres = torch.stack([seen.features[y == c].mean(0) for c in range(C)])
    constant = layer_products(dataclasses.replace(seen, features=centres[y]), CPU)
    assert (constant.classes, constant.pairs) == pytest.approx((1.0, 1.0))
    assert constant.others < 0.95
    # Features without means, and no weight at all for one of the labels.
    draw = torch.Generator().manual_seed(1)
    p = seen.probabilities.clone()
    p[:, 1] = 0.0
    other = torch.randn(N, IN, generator=draw)
    found = layer_products(dataclasses.replace(seen, features=other, probabilities=p), CPU)
    means: list[torch.Tensor] = []
    for c, label in ((0, 2), (1, 0), (1, 2), (2, 0)):
        w, d, h = p[y == c, label], seen.errors[y == c, label], other[y == c]
        g = torch.einsum("i,ia,ib->ab", w, d, h).flatten()
        product = torch.outer(w @ d, h.mean(0)).flatten()
        means.append(torch.nn.functional.cosine_similarity(g, product, dim=0))
    assert found.pairs == pytest.approx(float(torch.stack(means).mean()))
    assert found.pairs < 0.95


def test_a_class_without_samples_has_no_product(seen: BackpropagatedErrors) -> None:
    fewer = seen.classes != 1
    found = layer_products(
        dataclasses.replace(
            seen,
            classes=seen.classes[fewer],
            features=seen.features[fewer],
            errors=seen.errors[fewer],
            probabilities=seen.probabilities[fewer],
        ),
        CPU,
    )
    assert all(math.isfinite(value) for value in dataclasses.astuple(found))
