"""The samples on which the loss is curved, against dense Hessians of the loss."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature import GaussNewton
from eigenscape.errors import InvalidArgumentError, UnsupportedModelError
from eigenscape.linalg import eigsh
from eigenscape.parallel import Ranks
from eigenscape.risk import (
    BinaryCrossEntropy,
    CrossEntropy,
    EmpiricalRisk,
    Loss,
    SquaredError,
    curvature_traces,
    sharpest_samples,
)


def exact(loss: Loss, z: Tensor, y: Tensor) -> Tensor:
    """Return the trace of each sample's own Hessian, by double backward."""
    found = []
    for one, target in zip(z, y, strict=True):
        H = torch.autograd.functional.hessian(
            lambda t, target=target: loss.total(t[None], target[None])[0], one
        )
        found.append(H.reshape(one.numel(), -1).trace())
    return torch.stack(found)


CASES: dict[str, tuple[Loss, tuple[int, ...]]] = {
    "classes": (CrossEntropy(), (3,)),
    "weighted": (CrossEntropy(class_weights=torch.tensor([1.0, 3.0, 0.5])), (3,)),
    "smoothed": (CrossEntropy(label_smoothing=0.2), (3,)),
    "texts": (CrossEntropy(), (4, 3)),
    "next tokens": (CrossEntropy(next_token=True), (4, 3)),
    "squares": (SquaredError(), (3,)),
    "two classes": (BinaryCrossEntropy(), (1,)),
}


class Out(nn.Module):
    """A linear model whose outputs have some shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.inner = shape, nn.Linear(5, int(torch.tensor(shape).prod()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).unflatten(1, self.shape)


@pytest.mark.parametrize("name", CASES)
def test_traces_are_those_of_the_hessians(name: str) -> None:
    loss, shape = CASES[name]
    torch.manual_seed(0)
    model, x = Out(shape), torch.randn(11, 5)
    y = torch.randint(0, 3, (11, *shape[:-1]))
    if isinstance(loss, SquaredError | BinaryCrossEntropy):
        y = torch.rand(11, *shape)
    if name == "texts":
        y[3, 1] = -100  # ignored
    risk = EmpiricalRisk(model, loss, (x, y), batch_size=4)
    with torch.no_grad():
        z = model(x)
    torch.testing.assert_close(curvature_traces(risk), exact(loss, z, y))


def problem(n: int = 40) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        model[2].weight.mul_(20.0)  # sure of most samples
    return model, (torch.randn(n, 4), torch.arange(n) % 3)


@pytest.mark.parametrize("batch_size", [7, 40])
@pytest.mark.parametrize("share", [0.0, 1e-3, 0.1, 0.9])
def test_the_fewest_samples_are_kept(share: float, batch_size: int) -> None:
    model, (x, y) = problem()
    risk = EmpiricalRisk(model, CrossEntropy(), (x, y), batch_size=batch_size)
    traces = curvature_traces(risk)
    few = sharpest_samples(risk, share)
    kept = torch.cat([batch.args[0] for batch in few.batches])
    number = [int((x == row).all(1).nonzero()[0, 0]) for row in kept]
    assert number == sorted(number)  # in their order, each once
    assert len(set(number)) == few.num_samples == len(kept)
    targets = torch.cat([batch.target for batch in few.batches])
    assert torch.equal(targets, y[number])
    left = traces.sum() - traces[number].sum()
    assert left <= share * traces.sum() + 1e-12
    # One fewer would leave out too much.
    assert left + traces[number].min() > share * traces.sum()


def test_operators_are_those_of_the_samples_up_to_a_factor() -> None:
    model, (x, y) = problem()
    risk = EmpiricalRisk(model, CrossEntropy(), (x, y), params="2.weight")
    few = sharpest_samples(risk, 0.05)
    assert few.num_samples < 40
    assert few.space == risk.space
    cut = sharpest_samples(EmpiricalRisk(model, CrossEntropy(), (x, y), batch_size=3), 0.05)
    assert max(batch.size for batch in cut.batches) == 3  # cut as the whole was
    G, part = GaussNewton(risk).to_dense(), GaussNewton(few).to_dense() * few.num_samples / 40
    rest = torch.linalg.eigvalsh(G - part)
    assert rest.min() > -1e-12  # what was left out has no negative eigenvalue
    # Its trace is at most the share's, times the largest input of the layer.
    longest = model[:2](x).square().sum(1).max()
    assert rest.sum() <= 0.05 * longest * curvature_traces(risk).mean() + 1e-12


def test_a_search_with_them_is_certified_with_all() -> None:
    model, data = problem(200)
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    G = GaussNewton(risk)
    few = sharpest_samples(risk, 0.01)
    # Residuals of about 0.01 λ make eigenvalues wrong by their square over a gap.
    found = eigsh(G, num_pairs=3, search=GaussNewton(few), tolerance=0.1)
    dense = G.to_dense()
    torch.testing.assert_close(
        found.values, torch.linalg.eigvalsh(dense).flip(0)[:3], rtol=1e-3, atol=0
    )
    residuals = (dense @ found.vectors - found.vectors * found.values).norm(dim=0)
    torch.testing.assert_close(found.residuals, residuals, rtol=1e-6, atol=1e-12)
    assert found.residuals.max() > 1e-6  # not those of the search


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_shares_out_of_range(share: float) -> None:
    model, data = problem()
    with pytest.raises(InvalidArgumentError, match="from 0 to below 1"):
        sharpest_samples(EmpiricalRisk(model, CrossEntropy(), data), share)


def test_what_cannot_be_done_is_said() -> None:
    model, (x, y) = problem()

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.w.expand(len(x), 2)

    flat = EmpiricalRisk(Flat(), lambda z, y: z.sum(), (x, y))
    with pytest.raises(InvalidArgumentError, match="loss is flat"):
        sharpest_samples(flat)
    maps = EmpiricalRisk(Out((2, 2)), SquaredError(), (torch.randn(5, 5), torch.randn(5, 2, 2)))
    with pytest.raises(UnsupportedModelError, match=r"got \(5, 2, 2\)"):
        curvature_traces(maps)
    named: Any = [{"input": x, "labels": y}]
    with pytest.raises(UnsupportedModelError, match="picked from tensors"):
        sharpest_samples(EmpiricalRisk(model, CrossEntropy(), named))
    shared = EmpiricalRisk(model, CrossEntropy(), (x, y))
    shared.ranks = Ranks(rank=0, size=2)
    with pytest.raises(UnsupportedModelError, match="2 share"):
        curvature_traces(shared)
