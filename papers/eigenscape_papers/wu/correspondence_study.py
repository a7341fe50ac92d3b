"""Wu Figs 3, 14–17, 24c–d, 25–27: which Kronecker factors is each eigenvector of a layer made of?

Corr(v₁, h_i) near 1 for the first m eigenvectors and a diagonal in Corr(u_j, h_i) mean
h_i ≈ u_i ⊗ Ê[x]. VGG11 has a study of its own, as products with deep convolutions are in float32.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial

import torch

from eigenscape.records import Axis, Panel, Picture, Raster, storable
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Networks,
    Outcome,
    Portrait,
    Setting,
    Study,
    Workshop,
    last_layer,
    letters,
    matrix_layers,
    of_each_cast,
    picture,
    table,
)
from eigenscape_papers.runner.orders import rank_correlation
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.eigenvector_correspondence import (
    EigenvectorCorrespondence,
    eigenvector_correspondence,
)

# Rows and columns that are drawn: m of them, within these ends. 120 is the m of fc1 of LeNet5.
_LEAST, _MOST = 60, 120
# How like the Kronecker product the layers are, here and of deeper networks.
_ALIKE, _DEEP_ALIKE = "wu.fig3.true-and-kronecker", "wu.fig25.vgg11.true-and-kronecker"


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class CorrespondenceOfLayer:
    """One layer of one network.

    Attributes:
        layer: Its name.
        num_outputs: m.
        first: Corr(v₁, h_i) of all eigenvectors that were taken.
        diagonal: Share near the diagonal of Corr(u_j, h_i), first 20.
        alike: How like the Kronecker product Corr(v_j, h_i) is, first m.
        is_last: Whether it is the output layer.
        picture: Its four matrices.
        num_products: Products spent.
    """

    layer: str
    num_outputs: int
    first: torch.Tensor
    diagonal: float
    alike: float
    is_last: bool
    picture: Picture
    num_products: int

    @property
    def first_mean(self) -> float:
        """Mean of Corr(v₁, h_i) over the first m eigenvectors."""
        return float(self.first[: self.num_outputs].mean())


def measure(setting: Setting, workshop: Workshop, *, alike: str = _ALIKE) -> Outcome:
    """Take the eigenvectors of every layer of the first network of each cast apart.

    Args:
        setting: The networks.
        workshop: Where they are kept.
        alike: Claim on how like the Kronecker product their hidden layers are.

    Returns:
        Matrices, a table, and numbers for the claims.
    """
    layers_of_casts = of_each_cast("correspondence", setting, workshop, _of_cast)
    by_cast = dict(zip(setting.casts, layers_of_casts, strict=True))
    by_name: dict[str, Measured] = {}
    for cast, layers in by_cast.items():
        by_name |= _own_claims(cast.model, {each.layer: each for each in layers})
    pairs = [(cast, each) for cast, layers in by_cast.items() for each in layers]
    hidden = [
        each.alike for cast, each in pairs if not each.is_last and not cast.model.endswith("-BN")
    ]
    measured = {alike: Measured(sum(hidden) / len(hidden))} if hidden else {}
    rows = [
        (cast.label, one.layer, one.num_outputs, one.first_mean, one.diagonal, one.alike)
        for cast, one in pairs
    ]
    matrices = table("wu-correspondence.layers", rows)
    products = sum(each.num_products for _, each in pairs)
    pictures = tuple(each.picture for _, each in pairs)
    return Outcome(measured, pictures, (matrices,), (), products, by_name)


def _of_cast(cast: Cast, setting: Setting, workshop: Workshop) -> tuple[CorrespondenceOfLayer, ...]:
    networks = workshop.networks(cast)
    risk = networks.risk(cast.seeds[0])
    last, count = last_layer(risk), setting.options["num_pairs"]
    results = []
    for layer in matrix_layers(risk):
        portrait = workshop.portrait(networks, cast.seeds[0], layer, num_pairs=count)
        true = eigenvector_correspondence(portrait.pairs, portrait.kronecker)
        product = eigenvector_correspondence(
            portrait.kronecker_pairs(len(portrait.values)), portrait.kronecker
        )
        m = min(portrait.num_outputs, true.input.shape[1])
        results.append(
            CorrespondenceOfLayer(
                layer,
                portrait.num_outputs,
                true.input[0].cpu(),
                _diagonal(true),
                _alike(true, product, m),
                layer == last,
                _picture(networks, portrait, true, product),
                portrait.pairs.num_products,
            )
        )
    return tuple(results)


def _own_claims(model: str, layers: Mapping[str, CorrespondenceOfLayer]) -> dict[str, Measured]:
    numbers: dict[str, Measured] = {}
    if model == "LeNet5" and "fc1" in layers:
        numbers["wu.fig3.lenet5.fc1.first-input"] = Measured(layers["fc1"].first_mean)
        numbers["wu.fig3.lenet5.fc1.diagonal"] = Measured(layers["fc1"].diagonal)
    if model == "LeNet5-BN" and "fc1" in layers:
        numbers["wu.fig27.batchnorm.first-input"] = Measured(layers["fc1"].first_mean)
    convs = ("conv1", "conv2", "conv3")
    if model.startswith("VGG11") and set(convs) <= layers.keys():  # a user's may have others
        firsts = [layers[name].first_mean for name in convs]
        numbers["wu.2020.fig14.vgg11.first-input"] = Measured(sum(firsts) / 3)
        along = rank_correlation(layers["conv2"].first.tolist())
        numbers["wu.fig26.vgg11.conv2.decreasing"] = Measured(along)
    return numbers


def _diagonal(correspondence: EigenvectorCorrespondence, count: int = 20, near: int = 2) -> float:
    """Return the mean over the first eigenvectors of the largest share near the diagonal."""
    k = min(count, *correspondence.output.shape)
    i = torch.arange(k)
    is_near = (i[:, None] - i[None, :]).abs() <= near
    return float((correspondence.output[:k, :k] * is_near).amax(0).mean())


def _alike(one: EigenvectorCorrespondence, two: EigenvectorCorrespondence, m: int) -> float:
    pair = torch.stack([each.input[:, :m].flatten() for each in (one, two)])
    return float(torch.corrcoef(pair)[0, 1])


def _picture(
    networks: Networks,
    portrait: Portrait,
    true: EigenvectorCorrespondence,
    product: EigenvectorCorrespondence,
) -> Picture:
    side = min(max(portrait.num_outputs, _LEAST), _MOST)
    name = letters(f"{networks.cast.model}{portrait.layer}")
    return picture(
        "wu-correspondence.correspondence",
        (
            _panel(true.input[:side, :side], "H with E[xxᵀ]", "v_j"),
            _panel(true.output[:side, :side], "H with E[M]", "u_j"),
            _panel(product.input[:side, :side], "product, E[xxᵀ]", "v_j"),
            _panel(product.output[:side, :side], "product, E[M]", "u_j"),
        ),
        networks.cast.label,
        key=name,
        layer=portrait.layer,
        outputs=portrait.num_outputs,
        most=side,
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
    return Axis(label, ticks=tuple((float(number - 1), str(number)) for number in places))


STUDY = Study.of(
    "wu-correspondence",
    measure,
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_CONV),
        "paper": (casts.LENET, casts.MLP, casts.LENET_BN),
    },
)

DEEP = Study.of(
    "wu-correspondence-deep",
    partial(measure, alike=_DEEP_ALIKE),
    {"laptop": (casts.SMALL_CONV,), "paper": (casts.VGG,)},
)
