import pytest
import torch
from torch.nn.functional import cross_entropy

from eigenscape_papers.papyan import fisher_matrix, mixture, regress, train

CPU = torch.device("cpu")
OPTIONS = {"num_inputs": 5, "num_classes": 3, "per_class": 40}


def hessian(W: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return that of the loss by double backward; of a linear model it is the Fisher matrix."""
    W = W.clone().requires_grad_()
    (slope,) = torch.autograd.grad(cross_entropy(x @ W.T, y), W, create_graph=True)
    rows = [torch.autograd.grad(s, W, retain_graph=True)[0].flatten() for s in slope.flatten()]
    return torch.stack(rows)


def test_fisher_matrix() -> None:
    x, y = mixture(OPTIONS, 1.0, 0, "train", CPU)
    W = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fisher_matrix(x, (x @ W.T).softmax(1)), hessian(W, x, y))


def test_training_ends_at_the_minimum() -> None:
    x, y = mixture(OPTIONS, 1.0, 0, "train", CPU)
    W, slope = train(x, y, 3)
    assert slope < 1e-9
    other = torch.zeros(3, 5, requires_grad=True)
    slow = torch.optim.LBFGS([other], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15)

    def closure() -> torch.Tensor:
        slow.zero_grad()
        loss = cross_entropy(x @ other.T, y)
        loss.backward()
        return loss

    slow.step(closure)
    other = other.detach()
    torch.testing.assert_close(W, other - other.mean(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(W.sum(0), torch.zeros(5), atol=1e-9, rtol=0)


def test_mixture() -> None:
    x, y = mixture(OPTIONS, 4.0, 1, "train", CPU, per_class=500)
    assert x.shape == (1500, 5)
    assert x.dtype == torch.float64
    means = torch.stack([x[y == c].mean(0) for c in range(3)])
    torch.testing.assert_close(means, 4.0 * torch.eye(3, 5), atol=0.2, rtol=0)
    assert not torch.equal(x, mixture(OPTIONS, 4.0, 1, "test", CPU, per_class=500)[0])


def test_what_is_seen_of_a_regression() -> None:
    found = regress(OPTIONS, 1.5, 2, CPU)
    (x, y), (new, truth) = (mixture(OPTIONS, 1.5, 2, split, CPU) for split in ("train", "test"))
    W, _ = train(x, y, 3)
    p = (x @ W.T).softmax(1)
    G = hessian(W, x, y)
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(G).flip(0))
    # Inputs 3 and 4 have no signal; two of three classes' weights count.
    quiet = [c * 5 + a for c in range(3) for a in (3, 4)]
    assert found.bulk == pytest.approx(float(G[quiet, quiet].sum()) / 4)
    assert found.uncertainty == pytest.approx(
        1 - sum(float(p[i, label]) for i, label in enumerate(y.tolist())) / 120
    )
    wrong = sum(int((W @ v).argmax()) != int(c) for v, c in zip(new, truth, strict=True))
    assert found.error == pytest.approx(wrong / 120)
