"""Wu-2020 Tables 6, 7 and 8: how much of each layer's input is its mean.

Networks see the pixels that wu-inputs finds theirs saw, but for LeNet5-BN. What is measured of them
is what wu-autocorrelation measures, and kept with it.
"""

from collections.abc import Sequence

from eigenscape.records import Axis, Panel, Points
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    indices,
    picture,
    printed,
    rounded,
    slug,
    table,
)
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.autocorrelation_study import autocorrelation_part

_NAME = "wu-2020-layers"


def _stem(network: str, layer: str) -> str:
    return f"wu.2020.{slug(network)}.{layer}"


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure E[xxᵀ] of every layer of every network."""
    rows, panels = [], []
    by_name: dict[str, Measured] = {}
    for cast in setting.casts:
        layers: dict[str, list[tuple[float, float]]] = {}
        for *_, layer, _, alignment, _, dominance in autocorrelation_part(cast, workshop).rows:
            layers.setdefault(layer, []).append((dominance, alignment**0.5))
        means: list[Measured] = []
        for layer, pairs in layers.items():
            ratio, inner = (Measured.over(numbers) for numbers in zip(*pairs, strict=True))
            means.append(ratio)
            ids = [f"{_stem(cast.model, layer)}.{end}" for end in ("norm-ratio", "inner-product")]
            by_name |= dict(zip(ids, (ratio, inner), strict=True))
            theirs = [printed(_NAME).get(id) for id in ids]
            rows.append(
                (cast.label, layer, ratio.ours, ratio.spread, theirs[0], inner.ours, theirs[1])
            )
        panels.append(_panel(cast, tuple(layers), means))
    drawn = picture(f"{_NAME}.norm-ratios", panels)
    return Outcome({}, (drawn,), (table(f"{_NAME}.layers", rows),), by_name=by_name)


def _panel(cast: Cast, names: Sequence[str], ratios: Sequence[Measured]) -> Panel:
    x = indices(len(names))
    errors = rounded([one.spread or 0.0 for one in ratios]) if len(cast.seeds) > 1 else None
    marks = [Points(x, rounded([one.ours for one in ratios]), "first", "ours", y_error=errors)]
    ids = [f"{_stem(cast.model, name)}.norm-ratio" for name in names]
    if printed(_NAME).keys() >= set(ids):
        theirs = [printed(_NAME)[id] for id in ids]
        marks.append(Points(x, rounded(theirs), "second", "Wu-2020", hollow=True))
    ticks = tuple(zip(x, names, strict=True))
    return Panel(
        marks,
        Axis("layer", ticks=ticks, limits=(0.5, len(names) + 0.5)),
        Axis("‖E[x]E[x]ᵀ‖/‖Σ‖", log=True),
        cast.label,
    )


STUDY = Study.of(
    _NAME,
    measure,
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_CONV, casts.SMALL_MLP_BN),
        "paper": (casts.MLP, casts.LENET, casts.LENET_WIDTHS[0], casts.MLP_BN[0], casts.LENET_BN),
    },
)
