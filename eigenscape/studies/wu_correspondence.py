"""Wu Figs 3, 14–17, 24c–d, 27: which Kronecker factors is each eigenvector of a layer made of?

Corr(v₁, h_i) near 1 for the first m eigenvectors and a diagonal in Corr(u_j, h_i) mean
h_i ≈ u_i ⊗ Ê[x]. VGG11 (Figs 25, 26, Wu-2020 Figs 14–16) is left out: products with deep
convolutions are in float32, for which it would need a study of its own.
"""

import dataclasses

import torch

from eigenscape.analyses import EigenvectorCorrespondence, eigenvector_correspondence
from eigenscape.report import Axis, Panel, Picture, Raster
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._tables import sheet
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import Portrait, last_layer, matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Networks, Workshop

# Rows and columns that are drawn: m of them, within these ends. 120 is the m of fc1 of LeNet5.
_LEAST, _MOST = 60, 120
_CLAIMS = (
    Claim(
        "wu.fig3.lenet5.fc1.first-input",
        "Fig. 3a",
        "mean of Corr(v₁, h_i) over the first m = 120 eigenvectors of fc1 of LeNet5",
        "the top m eigenvectors are all highly correlated with v₁",
        low=0.7,
        why="“Near 1” on their colour scale; the last of the m mix with the rest.",
        scales=("paper",),
    ),
    Claim(
        "wu.fig3.lenet5.fc1.diagonal",
        "Fig. 3b",
        "mean over the first 20 eigenvectors of fc1 of LeNet5 of the largest Corr(u_j, h_i) with "
        "|j − i| ≤ 2",
        "near diagonal pattern",
        low=0.5,
        why="More than half of each vector on the diagonal or beside it.",
        scales=("paper",),
    ),
    Claim(
        "wu.fig3.true-and-kronecker",
        "Fig. 3",
        "correlation of Corr(v_j, h_i) of the true Hessian with that of the Kronecker product, "
        "first m eigenvectors, mean over hidden layers",
        "similar patterns",
        low=0.7,
        why="Similar is no number; 0.7 means that half of the variance is shared.",
    ),
    Claim(
        "wu.fig27.batchnorm.first-input",
        "Fig. 27b",
        "mean of Corr(v₁, h_i) over the first m eigenvectors of fc1 of LeNet5-BN",
        "only very few eigenvectors correspond to v₁",
        high=0.3,
        why="If 3 of 10 vectors were on v₁ they would not be very few.",
        scales=("paper",),
    ),
)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Take the eigenvectors of every layer of the first network of each cast apart."""
    rows, pictures, agreement = [], [], []
    measured: dict[str, Measured] = {}
    products = 0
    for cast in setting.casts:
        networks = workshop.networks(cast)
        risk = networks.risk(cast.seeds[0])
        last = last_layer(risk)
        for layer in matrix_layers(risk):
            seen = workshop.portrait(
                networks, cast.seeds[0], layer, num_pairs=setting.options["num_pairs"]
            )
            products += seen.pairs.num_products
            true = eigenvector_correspondence(seen.pairs, seen.kronecker)
            product = eigenvector_correspondence(
                seen.kronecker_pairs(len(seen.values)), seen.kronecker
            )
            m = min(seen.num_outputs, true.input.shape[1])
            alike = _alike(true, product, m)
            first = float(true.input[0, :m].mean())
            rows.append((cast.label, layer, seen.num_outputs, first, _diagonal(true), alike))
            if layer != last and not cast.model.endswith("-BN"):
                agreement.append(alike)
            measured |= _own_claims(cast.model, layer, true, first)
            pictures.append(_picture(networks, seen, true, product))
    if agreement:
        mean = sum(agreement) / len(agreement)
        measured["wu.fig3.true-and-kronecker"] = Measured(mean)
    names_of = ("networks", "layer", "m", "Corr(v₁, h_i), i ≤ m", "diagonal", "like Kronecker")
    table = sheet("layers", "Every layer", names_of, rows)
    return Outcome(measured, tuple(pictures), (table,), (), products)


def _own_claims(
    model: str, layer: str, true: EigenvectorCorrespondence, first: float
) -> dict[str, Measured]:
    if (model, layer) == ("LeNet5", "fc1"):
        return {
            "wu.fig3.lenet5.fc1.first-input": Measured(first),
            "wu.fig3.lenet5.fc1.diagonal": Measured(_diagonal(true)),
        }
    if (model, layer) == ("LeNet5-BN", "fc1"):
        return {"wu.fig27.batchnorm.first-input": Measured(first)}
    return {}


def _diagonal(found: EigenvectorCorrespondence, count: int = 20, near: int = 2) -> float:
    """Return the mean over the first eigenvectors of the largest share near the diagonal."""
    k = min(count, *found.output.shape)
    i = torch.arange(k)
    is_near = (i[:, None] - i[None, :]).abs() <= near
    return float((found.output[:k, :k] * is_near).amax(0).mean())


def _alike(one: EigenvectorCorrespondence, two: EigenvectorCorrespondence, m: int) -> float:
    pair = torch.stack([found.input[:, :m].flatten() for found in (one, two)])
    return float(torch.corrcoef(pair)[0, 1])


def _picture(
    networks: Networks,
    seen: Portrait,
    true: EigenvectorCorrespondence,
    product: EigenvectorCorrespondence,
) -> Picture:
    side = min(max(seen.num_outputs, _LEAST), _MOST)
    slug = "".join(c for c in f"{networks.cast.model}{seen.layer}".lower() if c.isalnum())
    return Picture(
        f"correspondence-{slug}",
        f"Eigenvector correspondence, {seen.layer} of {networks.cast.label}, m = "
        f"{seen.num_outputs}",
        (
            _panel(true.input[:side, :side], "H with E[xxᵀ]", "v_j"),
            _panel(true.output[:side, :side], "H with E[M]", "u_j"),
            _panel(product.input[:side, :side], "product, E[xxᵀ]", "v_j"),
            _panel(product.output[:side, :side], "product, E[M]", "u_j"),
        ),
        shows="A column is an eigenvector; a dark first row means it lies on the mean input. The "
        f"product is E[M] ⊗ E[xxᵀ]. At most the first {side} rows and columns are drawn.",
    )


def _panel(matrix: torch.Tensor, title: str, side: str) -> Panel:
    """Draw shares as a matrix, counted from 1 as in the text."""
    rows = [tuple(round(share, 2) for share in row) for row in matrix.tolist()]
    x, y = (
        _counted(name, size)
        for name, size in (("eigenvector h_i", matrix.shape[1]), (side, matrix.shape[0]))
    )
    return Panel(
        [Raster(tuple(rows), "share", (0.0, 1.0))], x, dataclasses.replace(y, downward=True), title
    )


def _counted(label: str, size: int) -> Axis:
    """Return an axis whose cells are numbered from 1."""
    step = next(step for step in (1, 5, 10, 20, 40) if size <= 6 * step)
    places = [1, *range(step, size + 1, step)] if step > 1 else range(1, size + 1)
    return Axis(label, ticks=tuple((float(place - 1), str(place)) for place in places))


STUDY = Study(
    name="wu-correspondence",
    paper="Wu",
    where="Figs 3, 14–17, 24c–d, 27; Def. 4.3",
    title="Which eigenvectors of E[M] and E[xxᵀ] is each eigenvector of a layer made of?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_CONV), {"num_pairs": 60}),
        "paper": Setting((casts.LENET, casts.MLP, casts.LENET_BN), {"num_pairs": 260}),
    },
    measure=measure,
    claims=_CLAIMS,
)
