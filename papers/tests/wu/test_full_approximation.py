"""Wu App. B against the same formulas written out with dense matrices."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eigenscape.curvature import GaussNewton, Hessian
from eigenscape.errors import EmptySelectionError, InvalidArgumentError, UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.wu import full_approximation
from tests.curvature.classes.test_moments import LAYOUTS, OTHER_ROWS, Bag, bag_risk


def net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6, bias=False), nn.ReLU(),
                         nn.Linear(6, 3)).double()  # fmt: skip


def made(model, x, **options):
    y = torch.arange(len(x)) % 3
    return EmpiricalRisk(model.double(), CrossEntropy(), (x, y), **options)


def by_hand(model, x):
    """E[M] (47), the mean inputs and T (49), one sample at a time from Jacobians (22)."""
    W1, W2, W3 = (model[i].weight.detach() for i in (0, 2, 4))
    b1 = model[0].bias.detach()
    total, ones = 0, torch.ones(1, dtype=torch.float64)
    inputs = [[], [], []]
    for sample in x:
        h1 = W1 @ sample + b1
        h2 = W2 @ h1.relu()
        p = (W3 @ h2.relu() + model[4].bias.detach()).softmax(0)
        A = torch.diag(p) - torch.outer(p, p)
        G2 = W3 @ torch.diag((h2 > 0).double())
        G1 = G2 @ W2 @ torch.diag((h1 > 0).double())
        G = torch.cat([G1, G2, torch.eye(3, dtype=torch.float64)], dim=1)
        total = total + G.T @ A @ G / len(x)
        parts = [torch.cat([sample, ones]), h1.relu(), torch.cat([h2.relu(), ones])]
        for kept, value in zip(inputs, parts, strict=True):
            kept.append(value)
    means = [torch.stack(kept).mean(0) for kept in inputs]
    columns = []
    for layer, (m, mean, biased) in enumerate(zip((5, 6, 3), means, (1, 0, 1), strict=True)):
        for i in range(m):
            blocks = [torch.zeros(p.shape, dtype=torch.float64) for p in model.parameters()]
            first = (0, 2, 3)[layer]
            n = len(mean) - biased
            blocks[first][i] = mean[:n]
            if biased:
                blocks[first + 1][i] = 1.0
            columns.append(torch.cat([block.flatten() for block in blocks]))
    return total, means, torch.stack(columns, dim=1)


def overlap(first, second):
    first, second = torch.linalg.qr(first).Q, torch.linalg.qr(second).Q
    return (first.T @ second).square().sum() / first.shape[1]


def top(matrix, k):
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0)[:k], vectors.flip(1)[:, :k]


@pytest.mark.parametrize("matrix", ["hessian", "gauss_newton"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_every_number_is_that_of_the_formulas(matrix, batch_size) -> None:
    model = net()
    x = torch.randn(11, 4, dtype=torch.float64) + 1
    risk = made(model, x, batch_size=batch_size)
    found = full_approximation(risk, num_pairs=4, matrix=matrix)
    M, means, T = by_hand(model, x)
    true = (Hessian(risk) if matrix == "hessian" else GaussNewton(risk)).to_dense()
    values, V = top(true, 4)
    torch.testing.assert_close(found.values, values)
    sigma, U = top(M, 4)
    W = T @ U
    torch.testing.assert_close(found.approximated, sigma * W.norm(dim=0) ** 2)
    torch.testing.assert_close(found.overlaps[-1], overlap(V, W))
    torch.testing.assert_close(found.overlaps[0], F.cosine_similarity(V[:, 0], W[:, 0], dim=0) ** 2)
    lifted, E = top(T @ M @ T.T, 4)
    torch.testing.assert_close(found.rescaled, lifted)
    torch.testing.assert_close(found.rescaled_overlaps[-1], overlap(V, E))
    torch.testing.assert_close(found.input_norms, torch.stack([mean.norm() for mean in means]))
    assert not torch.allclose(found.rescaled, found.approximated, rtol=1e-2)
    assert len(list(found.columns()["overlap"])) == 4


def second_derivatives(model, x, names):
    """Form the Hessian of the mean loss in some parameters, by double backward."""
    loss = F.cross_entropy(model(x), torch.arange(len(x)) % 3)
    chosen = [dict(model.named_parameters())[name] for name in names]
    slopes = torch.autograd.grad(loss, chosen, create_graph=True)
    entries = torch.cat([slope.flatten() for slope in slopes])
    rows = [torch.autograd.grad(entry, chosen, retain_graph=True) for entry in entries]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def test_stacked_convolutions_against_second_derivatives() -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv2d(2, 3, (2, 3), padding=(1, 0)), nn.ReLU(),
                          nn.Conv2d(3, 4, 2, stride=(1, 2)), nn.ReLU(), nn.Flatten(),
                          nn.Linear(16, 3)).double()  # fmt: skip
    x = torch.randn(7, 2, 4, 5, dtype=torch.float64) + 1
    found = full_approximation(made(model, x, batch_size=3), num_pairs=4)
    # Biases move every position of a layer's output alike: their Hessian is E[M], shared.
    M = second_derivatives(model, x, ["0.bias", "2.bias", "5.bias"])
    seen = [F.unfold(x, (2, 3), padding=(1, 0)), F.unfold(model[:2](x), 2, stride=(1, 2))]
    means = [patches.mean((0, 2)) for patches in seen] + [model[:5](x).mean(0)]
    blocks = []
    for mean, m in zip(means, (3, 4, 3), strict=True):
        ones = torch.eye(m, dtype=torch.float64)
        blocks.append(torch.cat([torch.kron(ones, mean.detach()[:, None]), ones]))
    T = torch.block_diag(*blocks)
    values, V = top(second_derivatives(model, x, [n for n, _ in model.named_parameters()]), 4)
    torch.testing.assert_close(found.values, values)
    sigma, U = top(M, 4)
    torch.testing.assert_close(found.approximated, sigma * (T @ U).norm(dim=0) ** 2)
    torch.testing.assert_close(found.overlaps[-1], overlap(V, T @ U))
    lifted, E = top(T @ M @ T.T, 4)
    torch.testing.assert_close(found.rescaled, lifted)
    torch.testing.assert_close(found.rescaled_overlaps[-1], overlap(V, E))


def test_constant_inputs_make_the_rescaled_one_exact_and_the_space_of_the_other() -> None:
    model = net()
    x = torch.randn(1, 4, dtype=torch.float64).expand(6, 4).contiguous()
    found = full_approximation(made(model, x), num_pairs=2, matrix="gauss_newton")
    torch.testing.assert_close(found.rescaled, found.values)
    torch.testing.assert_close(found.rescaled_overlaps, torch.ones(2, dtype=torch.float64))
    # E[M] has rank c − 1 = 2, so its range goes to the range of the Gauss-Newton matrix.
    torch.testing.assert_close(found.overlaps[1], torch.tensor(1.0, dtype=torch.float64))
    # (50) and (51) are not exact, since the layers' inputs differ in length.
    assert float(found.overlaps[0]) < 1 - 1e-6
    assert not torch.allclose(found.approximated, found.values, rtol=1e-3)


def test_one_layer_with_constant_inputs_is_exact_in_all_ways() -> None:
    model = net()
    x = torch.randn(1, 4, dtype=torch.float64).expand(5, 4).contiguous()
    found = full_approximation(made(model, x), ["2"], num_pairs=2)
    for values in (found.approximated, found.rescaled):
        torch.testing.assert_close(values, found.values)
    for overlaps in (found.overlaps, found.rescaled_overlaps):
        torch.testing.assert_close(overlaps, torch.ones(2, dtype=torch.float64))


def test_convolutions_with_constant_inputs_are_exact_too() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
    x = torch.randn(2, dtype=torch.float64)[None, :, None, None].expand(4, 2, 4, 3).contiguous()
    found = full_approximation(made(model, x), num_pairs=2, matrix="gauss_newton")
    torch.testing.assert_close(found.rescaled, found.values)
    torch.testing.assert_close(found.rescaled_overlaps, torch.ones(2, dtype=torch.float64))


def test_what_does_not_fit_is_refused() -> None:
    x = torch.randn(6, 4, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    risk = made(model, x)
    with pytest.raises(UnsupportedModelError, match="'1' will not do"):
        full_approximation(risk)
    assert len(full_approximation(risk, ["0", "2"], num_pairs=3).values) == 3
    with pytest.raises(EmptySelectionError, match="no layer"):
        full_approximation(risk, [])
    with pytest.raises(InvalidArgumentError, match="num_pairs"):
        full_approximation(risk, ["2"], num_pairs=4)
    with pytest.raises(InvalidArgumentError, match="matrix="):
        full_approximation(risk, ["2"], matrix="fisher")


def test_ignored_samples_do_not_count() -> None:
    model, x = net(), torch.randn(9, 4, dtype=torch.float64)
    y = torch.arange(9) % 3
    kept = full_approximation(
        EmpiricalRisk(model, CrossEntropy(), (x[2:], y[2:])), num_pairs=4, tolerance=1e-8
    )
    y[:2] = -100
    found = full_approximation(
        EmpiricalRisk(model, CrossEntropy(), (x, y)), num_pairs=4, tolerance=1e-8
    )
    for name in ("values", "approximated", "rescaled", "input_norms", "overlaps"):
        torch.testing.assert_close(getattr(found, name), getattr(kept, name), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("layout", "positions"), LAYOUTS)
def test_rows_that_are_not_samples_are_refused(layout, positions) -> None:
    with pytest.raises(UnsupportedModelError, match=OTHER_ROWS):
        full_approximation(bag_risk(Bag(layout), positions), num_pairs=2)
    assert len(full_approximation(bag_risk(Bag(), positions), num_pairs=2).values) == 2
