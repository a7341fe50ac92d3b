"""Layers whose first dimension is not that of the samples: refused by all that takes classes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.curvature import ClassKronecker
from eigenscape.errors import UnsupportedModelError
from eigenscape_papers.papyan import KhatriRao, backpropagated_errors, kronecker_spectra

LABELS = torch.tensor([0, 2, 0, 1, 2, 0])
N = len(LABELS)
# How the layer sees its positions, and how many there are.
LAYOUTS = [("folded", 5), ("positions first", 4), ("positions first", N), ("first token", N)]
OTHER_ROWS = r"begin with the \d+ rows.* samples; 'fc' has|one sample in each row; at 'fc'"


class Bag(nn.Module):
    """A layer at each position, whose mean is classified; the same function in every layout."""

    def __init__(self, layout: str = "samples first") -> None:
        super().__init__()
        self.fc, self.out, self.layout = nn.Linear(3, 4), nn.Linear(4, 3), layout

    def forward(self, x: Tensor) -> Tensor:
        if self.layout == "folded":
            return self.out(torch.tanh(self.fc(x.flatten(0, 1)).unflatten(0, x.shape[:2])).mean(1))
        if self.layout == "samples first":
            return self.out(torch.tanh(self.fc(x)).mean(1))
        h = torch.tanh(self.fc(x.transpose(0, 1)))
        return self.out(h[0] if self.layout == "first token" else h.mean(0))


class Mixing(Bag):
    """Samples that change each other's outputs, behind the layer."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.fc(x)).mean(1)
        return self.out(h - 0.5 * h.mean(0))


class Normalised(Bag):
    """The outputs of each sample add up to zero, whatever the layer does."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return z - z.mean(1, keepdim=True)


def bag_risk(model: nn.Module, positions: int, sizes: tuple[int, ...] = (N,)) -> es.EmpiricalRisk:
    """Give batches of so many samples; the data are the same for a number of positions."""
    generator = torch.Generator().manual_seed(positions)
    x = torch.randn(N, positions, 3, generator=generator) + torch.arange(N)[:, None, None] / 4
    data = list(zip(x.split(sizes), LABELS.split(sizes), strict=True))
    return es.EmpiricalRisk(model, es.CrossEntropy(), data, sample_dim=None)  # batches as they are


CALLS: dict[str, Callable[[es.EmpiricalRisk], object]] = {
    "ClassKronecker": lambda risk: ClassKronecker(risk, "fc"),
    "KhatriRao": lambda risk: KhatriRao(risk, ["fc", "out"]),
    "KhatriRao of one layer": lambda risk: KhatriRao(risk, ["fc"], per_class=False),
    "kronecker_spectra": lambda risk: kronecker_spectra(risk, "fc"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("layout", "positions"), LAYOUTS)
def test_rows_that_are_not_samples_are_refused(
    call: Callable[[es.EmpiricalRisk], object], layout: str, positions: int
) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"{OTHER_ROWS}.*ClassGradients"):
        call(bag_risk(Bag(layout), positions))
    call(bag_risk(Bag(), positions))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("sizes", [(6,), (1, 5)])
def test_samples_that_mix_are_refused(
    call: Callable[[es.EmpiricalRisk], object], sizes: tuple[int, ...]
) -> None:
    with pytest.raises(UnsupportedModelError, match="samples change each other's outputs"):
        call(bag_risk(Mixing(), 5, sizes))
    call(bag_risk(Mixing(), 5, (1,) * N))  # a sample alone


def test_rows_are_told_from_samples_where_outputs_add_up_to_nothing() -> None:
    with pytest.raises(UnsupportedModelError, match=OTHER_ROWS):
        ClassKronecker(bag_risk(Normalised("positions first"), N), "fc")
    assert ClassKronecker(bag_risk(Normalised(), N), "fc").classes.tolist() == [0, 1, 2]


def test_transformers_must_put_samples_first() -> None:
    class Encoder(nn.Module):
        def __init__(self, batch_first: bool) -> None:
            super().__init__()
            self.inner = nn.TransformerEncoderLayer(
                4, 2, dim_feedforward=5, dropout=0.0, batch_first=batch_first
            )
            self.embed, self.out = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.inner.self_attn.batch_first:
                return self.out(self.inner(self.embed(x)).mean(1))
            return self.out(self.inner(self.embed(x.transpose(0, 1))).mean(0))

    for positions in (4, N):
        with pytest.warns(es.errors.SubstitutionWarning, match="fused attention"):
            risks = [bag_risk(Encoder(first), positions) for first in (True, False)]
        assert ClassKronecker(risks[0], "inner.linear1").shape == (25, 25)
        with pytest.raises(UnsupportedModelError, match="`batch_first="):
            ClassKronecker(risks[1], "inner.linear1")


def test_a_flattened_output_has_other_samples_than_its_layers() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.embed(x)).flatten(0, 1)

    model, x = Flat(), torch.randint(0, 9, (8, 3))
    y = x.clone()
    y[2:] = -100  # then no number of a sample is too large
    whole = es.EmpiricalRisk(model, es.CrossEntropy(), [(x, y.flatten())])
    for call in (ClassKronecker, KhatriRao, backpropagated_errors):
        with pytest.raises(
            UnsupportedModelError, match=r"24 rows of the model's output.*'out' has \(8, 3, 9\)"
        ):
            call(whole, "out")
