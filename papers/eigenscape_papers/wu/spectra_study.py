"""Wu Figs 4, 18, 19: the spectra of E[M], E[xxᵀ] and H, at the start, along training, at the end.

E[M] has c − 1 large eigenvalues at the start and at a minimum with true labels, none that stand out
with random labels; H follows E[M]; E[xxᵀ] stays close to rank one all along.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from eigenscape.errors import UnsupportedModelError
from eigenscape.records import Axis, Line, Panel, Picture, Points, Rule
from eigenscape_papers.runner import (
    SERIES,
    Cast,
    Measured,
    Networks,
    Outcome,
    Portrait,
    Setting,
    Study,
    Workshop,
    matrix_layers,
    picture,
    spectrum,
    table,
)
from eigenscape_papers.runner.orders import gap_place
from eigenscape_papers.wu import networks as casts

_TOP = 20
_START, _MINIMUM, _RANDOM = "at the start", "at the minimum", "minimum, random labels"
_NEAR = 3


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure spectra of the first layer in all cases, and of two layers along training.

    Args:
        setting: The first cast is looked at, the last with true labels followed along training.
        workshop: Where networks are kept.

    Returns:
        Spectra, a table, and numbers for the claims.

    Raises:
        UnsupportedModelError: If the network has one layer.
    """
    true = workshop.networks(setting.casts[0])
    layers = matrix_layers(true.risk(true.cast.seeds[0]))
    if len(layers) < 2:
        raise UnsupportedModelError(
            "`eigenscape study wu-spectra` looks at the input of a second layer; this network has "
            f"one, {layers[0]}. Take a deeper one."
        )
    chosen = layers[0]
    cases: dict[str, tuple[Networks, int]] = {
        _START: (true, 0),
        _MINIMUM: (true, true.last),
    }
    for cast in (*setting.casts, *_control(setting)):
        if cast.labels == "random":
            random = workshop.networks(cast)
            cases[_RANDOM] = (random, random.last)
    portraits = {
        name: _portrait(workshop, networks, chosen, epoch)
        for name, (networks, epoch) in cases.items()
    }
    c = true.data.num_classes or 0
    measured = _gaps(portraits, c)
    # Figs 18 and 19 follow LeNet5. Fig. 4 does not say whom: so both are shown.
    followed = workshop.networks(_followed(setting))
    pictures = [_cases_picture(chosen, true.cast, portraits, c)]
    if followed is not true:
        layer = first_linear(followed)
        both = {
            name: _portrait(workshop, followed, layer, epoch)
            for name, epoch in ((_START, 0), (_MINIMUM, followed.last))
        }
        measured |= {f"{name}.lenet5": value for name, value in _gaps(both, c).items()}
        pictures.append(_cases_picture(layer, followed.cast, both, c))
        portraits |= {f"{followed.cast.label}, {name}": portrait for name, portrait in both.items()}
    measured["wu.fig4.similar-spectra"] = Measured(min(_similarity(p) for p in portraits.values()))
    if _RANDOM in portraits and 2 <= c <= portraits[_MINIMUM].num_outputs:
        sizes = [
            _ratio(_values(portraits[name].kronecker.output_factor), c - 1)
            for name in (_RANDOM, _MINIMUM)
        ]
        measured["wu.fig4c.random-labels.no-gap"] = Measured(sizes[0] / sizes[1])
    along, drawn, rows = _trajectory(workshop, followed)
    moments = table("wu-spectra.trajectory", rows)
    products = sum(p.pairs.num_products for p in portraits.values())
    return Outcome(measured | along, (*pictures, drawn), (moments,), (), products)


def _control(setting: Setting) -> list[Cast]:
    """Return a user's own network with random labels, of one seed; the study's has them."""
    return [
        dataclasses.replace(cast, labels="random", seeds=cast.seeds[:1], keep_epochs=())
        for cast in setting.casts
        if cast.own is not None and cast.labels == "true"
    ]


def _portrait(workshop: Workshop, networks: Networks, layer: str, epoch: int) -> Portrait:
    return workshop.portrait(networks, networks.cast.seeds[0], layer, num_pairs=_TOP, epoch=epoch)


def _gaps(portraits: Mapping[str, Portrait], c: int) -> dict[str, Measured]:
    """Return the gaps at the start and at the minimum that layers are wide enough to have."""
    numbers = {}
    for name, claim in ((_START, "wu.fig4a.initial.gap"), (_MINIMUM, "wu.fig4b.minimum.gap")):
        size = gap_size(_values(portraits[name].kronecker.output_factor), (c - 1, c))
        if size is not None:
            numbers[claim] = Measured(size)
    return numbers


def first_linear(networks: Networks) -> str:
    """Return the first fully connected layer of the paper's networks, or the first layer."""
    layers = matrix_layers(networks.risk(networks.cast.seeds[0]))
    return next((layer for layer in layers if layer.startswith("fc")), layers[0])


def _followed(setting: Setting) -> Cast:
    return [cast for cast in setting.casts if cast.labels == "true"][-1]


def _trajectory(
    workshop: Workshop, true: Networks
) -> tuple[dict[str, Measured], Picture, list[tuple[object, ...]]]:
    layers = matrix_layers(true.risk(true.cast.seeds[0]))
    c = true.data.num_classes or 0
    hidden = [layer for layer in layers if layer.startswith("fc")] or list(layers)
    second = hidden[0] if hidden[0] != layers[0] else layers[1]
    epochs = sorted({0, *true.cast.keep_epochs, true.last})
    rows: list[tuple[object, ...]] = []
    ratios, places = [], []
    inputs: list[Line | Points] = []
    outputs: list[Line | Points] = []
    for number, epoch in enumerate(epochs):
        first = _portrait(workshop, true, hidden[0], epoch)
        later = _portrait(workshop, true, second, epoch)
        values = _values(first.kronecker.output_factor)
        gap = gap_place(values)
        ratios.append(later.inputs.ratio)
        places.append(gap - c in (-1, 0))
        size = _ratio(values, c - 1) if 2 <= c <= len(values) else None
        rows.append((epoch, later.layer, later.inputs.ratio, first.layer, gap, size))
        # Names in the first panel alone: a legend hides points.
        tint, label = SERIES[number % len(SERIES)], f"epoch {epoch}"
        inputs.append(spectrum(later.inputs.values[:_TOP].clamp_min(0), tint, label))
        outputs.append(spectrum(values[:_TOP].clamp_min(0), tint, None))
    index = Axis("index", whole=True)
    panels = (
        Panel(inputs, index, Axis("E[xxᵀ]", log=True), later.layer),
        Panel([Rule(c - 0.5, "c − 1"), *outputs], index, Axis("E[M]", log=True), hidden[0]),
    )
    numbers = {
        "wu.fig18.rank-one-along": Measured(min(ratios)),
        "wu.fig19.outliers-along": Measured(sum(places) / len(places)),
    }
    return numbers, picture("wu-spectra.along-training", panels, true.cast.label), rows


def _cases_picture(layer: str, cast: Cast, portraits: Mapping[str, Portrait], c: int) -> Picture:
    panels = []
    for name, portrait in portraits.items():
        outputs = _values(portrait.kronecker.output_factor)[:_TOP]
        block = portrait.values[:_TOP]
        panels.append(
            Panel(
                [
                    Rule(c - 0.5, "c − 1"),
                    spectrum(block / block[0], "hessian", "H / λ₁(H)"),
                    spectrum(outputs / outputs[0], "gauss_newton", "E[M] / λ₁(E[M])", hollow=True),
                ],
                Axis("index", whole=True),
                Axis("share of the first", limits=(0.0, 1.05)),
                name,
            )
        )
    return picture("wu-spectra.spectra", panels, cast, layer=layer)


def gap_size(values: Tensor, places: Sequence[int]) -> float | None:
    """Return how much larger the gap at some places is than those around.

    Args:
        values: Descending.
        places: After how many eigenvalues the gap may stand, in order.

    Returns:
        The largest λ_i/λ_{i+1} there over the largest at the three places on either side; None
        where there is none of one or the other.

    Examples:
        >>> gap_size(torch.tensor([100.0, 10.0, 9.0, 3.0, 2.0, 1.0]), (3,))
        0.3
        >>> gap_size(torch.tensor([100.0, 10.0, 9.0, 3.0, 2.0, 1.0])[1:], (2,))
        1.5
    """
    around = [*range(places[0] - _NEAR, places[0]), *range(places[-1] + 1, places[-1] + _NEAR + 1)]
    # Below its rounding an eigenvalue is zero, and no two zeros have a ratio.
    top = values.clamp_min(len(values) * torch.finfo(values.dtype).eps * float(values[0]))
    at_places, others = (
        [_ratio(top, i) for i in group if 1 <= i < len(top)] for group in (places, around)
    )
    return max(at_places) / max(others) if at_places and others else None


def _ratio(values: Tensor, count: int) -> float:
    return float(values[count - 1] / values[count].clamp_min(torch.finfo(values.dtype).tiny))


def _values(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix).flip(0).cpu()
    return values


def _similarity(portrait: Portrait) -> float:
    values = _values(portrait.kronecker.output_factor)
    count = min(_TOP, len(values), len(portrait.values))
    pair = torch.stack([values[:count].cpu(), portrait.values[:count].double().cpu()])
    return float(torch.corrcoef(pair.clamp_min(1e-12 * float(values[0])).log())[0, 1])


STUDY = Study.of(
    "wu-spectra",
    measure,
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_MLP_RANDOM),
        "paper": (casts.MLP, casts.MLP_RANDOM, casts.LENET),
    },
)
