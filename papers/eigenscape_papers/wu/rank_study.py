"""Wu Figs 1b, 6, 22: top eigenvectors of a layer, as matrices, are nearly of rank one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses import rank_one_share
from eigenscape.records import Axis, Panel, Picture, Rule
from eigenscape_papers.runner import (
    SERIES,
    Cast,
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    curve,
    mean_and_band,
    picture,
    table,
)
from eigenscape_papers.wu import networks as casts

_FEW = 8
_VECTORS, _VALUES = 4, 10  # as in Fig. 1b
_HALF = 0.5


@dataclass(frozen=True, eq=False)
class _Layer:
    """One layer of the networks of all seeds."""

    name: str
    num_outputs: int
    num_inputs: int
    shares: Tensor  # ‖Mat(h_i)‖/‖Mat(h_i)‖_F (seeds, k)
    null: float  # the same for random vectors
    singular: Panel

    @property
    def first(self) -> Tensor | None:
        """The shares of the first m eigenvectors (seeds, m); None where fewer were taken."""
        m = self.num_outputs
        return self.shares[:, :m] if self.shares.shape[1] >= m else None

    @property
    def words(self) -> str:
        """Its name and shape."""
        return f"{self.name} ({self.num_outputs} × {self.num_inputs})"


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure the leading singular value of every top eigenvector."""
    pictures: list[Picture] = []
    rows, products = [], 0
    lenet: list[Measured] = []
    firsts: list[Tensor] = []
    chance: list[float] = []
    notes: list[str] = []
    for cast in setting.casts:
        layers, spent = _layers(cast, setting, workshop)
        products += spent
        for layer in layers:
            m, n, first, null = layer.num_outputs, layer.num_inputs, layer.first, layer.null
            mean = smallest = None
            if first is not None:
                firsts.append(first.flatten())
                mean, smallest = float(first.mean(1).mean()), float(first.min())
                if cast.model == "LeNet5":
                    lenet.append(Measured.over(first.mean(1)))
            rows.append((cast.label, layer.name, m, n, mean, smallest, null))
            if min(m, n) >= _FEW:
                chance.append(null)
        pictures += _pictures(cast, layers)
        notes += _notes(cast, layers)
    measured: dict[str, Measured] = {}
    if firsts:
        usual = (torch.cat(firsts) > _HALF).double().mean()
        measured["wu.fig22.rank-one.top"] = Measured(float(usual))
    if lenet:
        measured["wu.fig22.lenet5.rank-one"] = min(lenet, key=lambda top: top.ours)
    if chance:
        measured["wu.fig22.rank-one.random"] = Measured(max(chance))
    sheets = (table("wu-rank.layers", rows),)
    return Outcome(measured, tuple(pictures), sheets, tuple(notes), products)


def _layers(cast: Cast, setting: Setting, workshop: Workshop) -> tuple[list[_Layer], int]:
    """Look at the layers of a cast; return them, and products spent."""
    layers, products = [], 0
    for name, portraits in workshop.portraits((cast,), setting.options["num_pairs"]):
        m, n = portraits[0].num_outputs, portraits[0].num_inputs
        shares = torch.stack([rank_one_share(each.matrices()) for each in portraits])
        singular = _singular_values(name, portraits[0].matrices())
        layers.append(_Layer(name, m, n, shares, _chance(m, n), singular))
        products += sum(each.pairs.num_products for each in portraits)
    return layers, products


def _notes(cast: Cast, layers: Sequence[_Layer]) -> list[str]:
    """Say what cannot be seen in some layers."""
    notes = [
        f"Of {layer.name} of {cast.label} {layer.shares.shape[1]} eigenvectors were taken, and m = "
        f"{layer.num_outputs}: nothing is said of the first m."
        for layer in layers
        if layer.first is None
    ]
    small = [layer.words for layer in layers if layer.null > _HALF]
    if small and cast.own is not None:
        notes.append(
            f"Random matrices of the shape of {', '.join(small)} are above {_HALF} too: there "
            "rank one says little."
        )
    return notes


def _chance(m: int, n: int, count: int = 20) -> float:
    """Return the share of random matrices of that shape."""
    draw = torch.Generator().manual_seed(0)
    random = torch.randn(count, m, n, generator=draw, dtype=torch.float64)
    return float(rank_one_share(random).mean())


def _pictures(cast: Cast, layers: Sequence[_Layer]) -> list[Picture]:
    return [
        picture("wu-rank.rank", map(_panel, layers), cast),
        picture("wu-rank.singular-values", (layer.singular for layer in layers), cast),
    ]


def _panel(layer: _Layer) -> Panel:
    marks = [*mean_and_band(layer.shares, "hessian", None), Rule(layer.num_outputs)]
    marks.append(Rule(layer.null, upright=False))
    x, y = Axis("eigenvector", whole=True), Axis("share", limits=(0, 1.02))
    return Panel(marks, x, y, f"{layer.name}, m = {layer.num_outputs}")


def _singular_values(layer: str, matrices: Tensor) -> Panel:
    """Draw the largest singular values of the first eigenvectors (k, m, n)."""
    values = torch.linalg.svdvals(matrices[:_VECTORS].double())[:, :_VALUES]
    marks = [curve(row, SERIES[i], f"h_{i + 1}") for i, row in enumerate(values)]
    x, y = Axis("singular value", whole=True), Axis("size", limits=(0, 1.02))
    return Panel(marks, x, y, layer)


STUDY = Study.of(
    "wu-rank",
    measure,
    {"laptop": (casts.SMALL_MLP, casts.SMALL_CONV), "paper": (casts.LENET, casts.MLP)},
)
