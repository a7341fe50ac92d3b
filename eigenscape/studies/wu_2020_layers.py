"""Wu-2020 Tables 6, 7 and 8: how much of each layer's input is its mean.

Networks see the pixels that wu-inputs finds theirs saw, but for LeNet5-BN. What is measured of them
is what wu-autocorrelation measures, and kept with it.
"""

import math
from collections.abc import Sequence

from eigenscape.report import Axis, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import indices, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop
from eigenscape.studies.wu_autocorrelation import autocorrelation_part

# Network: layer: ‖E[x]E[x]ᵀ‖/‖Σ‖ (Table 6), |v₁ᵀÊ[x]| (Table 7); Table 8 has both with BatchNorm.
_TABLES = {
    "F-200^2": {"fc1": (25.142, 0.9999), "fc2": (13.991, 0.9999), "fc3": (10.237, 0.9998)},
    "LeNet5": {
        "conv1": (5.474, 0.9999),
        "conv2": (7.647, 0.9994),
        "fc1": (6.885, 0.9991),
        "fc2": (6.136, 0.9991),
        "fc3": (5.707, 0.9988),
    },
    "LeNet5-(fc1-80)": {
        "conv1": (5.474, 0.9999),
        "conv2": (7.072, 0.9991),
        "fc1": (6.895, 0.9995),
        "fc2": (7.135, 0.9995),
        "fc3": (5.224, 0.9978),
    },
    "F-200^2-BN": {"fc1": (25.142, 0.9999), "fc2": (0.010, 0.2414), "fc3": (0.011, 0.2677)},
    "LeNet5-BN": {
        "conv1": (0.020, 0.9675),
        "conv2": (0.045, 0.5179),
        "fc1": (0.016, 0.0837),
        "fc2": (0.019, 0.1805),
        "fc3": (0.013, 0.2107),
    },
}
_SHARE = 0.25
_DIRECTION = 0.2  # behind BatchNorm, where it is left to chance
_FIRST = "The first layer, which no training touches, agrees to all digits: the images are theirs."
_LENET = (
    "First weights matter: conv2, fc1, fc2, fc3 of LeNet5 have 7.5, 7.7, 6.6, 5.6 with PyTorch's "
    f"own rule, as here, and 7.0, 8.8, 8.3, 7.4 with Xavier's (the errata to App. D.3). {_FIRST}"
)
_NOISE = (
    "What BatchNorm leaves of E[x] is the noise of its running mean: with momentum 0.1 and batches "
    "of 128 about ‖E[x]‖² = tr Σ/2432, which makes ratios of 0.004 to 0.006 here. Theirs are 2.0 "
    "to 2.4 times ours in fc2 and fc3 of both networks; why is not known."
)
_BATCHNORM = {
    ("LeNet5-BN", "conv1", "inner-product"): "Pixels are standardised here, by 0.247, 0.243, "
    "0.262. With the 0.2023, 0.1994, 0.2010 that wu-inputs finds, conv1 has 0.9675.",
    ("LeNet5-BN", "conv2", "norm-ratio"): "0.06 to 0.09 in three networks. BatchNorm before the "
    "pooling, as their Table 5 has it, gives 1.4 (the errata).",
    ("LeNet5-BN", "conv2", "inner-product"): "0.85 to 0.94 in three networks. Not explained; λ₁/λ₂ "
    "is 1.1 to 1.5, so that v₁ is hardly told from v₂.",
    ("LeNet5-BN", "fc1", "norm-ratio"): "BatchNorm after a convolution takes the mean of a channel "
    "over all positions, and at each position a mean is left. 0.016 is as little as fc2 and fc3 "
    "have, where noise alone is left: their 400 inputs may have been normalised one by one. "
    "BatchNorm before the pooling, as their Table 5 has it, gives 3.4 (the errata).",
}


def _known(network: str, layer: str, quantity: str) -> str:
    """Say what is known about why a number of ours differs."""
    if network.endswith("-BN"):
        return _BATCHNORM.get((network, layer, quantity), _NOISE * (quantity == "norm-ratio"))
    if quantity == "inner-product":
        return ""
    return _LENET if network.startswith("LeNet5") else f"Not explained. {_FIRST}"


def _stem(network: str, layer: str) -> str:
    plain = network.lower().replace("^", "x")
    return f"wu.2020.{''.join(letter for letter in plain if letter.isalnum())}.{layer}"


def _claims() -> tuple[Claim, ...]:
    return tuple(
        claim
        for network, layers in _TABLES.items()
        for place, (layer, (ratio, inner)) in enumerate(layers.items())
        for claim in (
            _ratio_claim(network, layer, ratio),
            # Behind BatchNorm, which all layers but the first are.
            _inner_claim(network, layer, inner, place > 0 and network.endswith("-BN")),
        )
    )


def _ratio_claim(network: str, layer: str, ratio: float) -> Claim:
    table = 8 if network.endswith("-BN") else 6
    return Claim(
        f"{_stem(network, layer)}.norm-ratio",
        f"Wu-2020 Table {table}, {layer} of {network}",
        "‖E[x]E[x]ᵀ‖/‖Σ‖, mean over networks",
        f"{ratio}",
        low=ratio * (1 - _SHARE),
        high=ratio * (1 + _SHARE),
        why="A quarter either way: one number without a spread, and ours vary by a "
        f"{'sixth' if table == 8 else 'tenth'} over seeds.",
        known=_known(network, layer, "norm-ratio"),
        scales=("paper",),
    )


def _inner_claim(network: str, layer: str, inner: float, by_chance: bool) -> Claim:
    table = 8 if network.endswith("-BN") else 7
    return Claim(
        f"{_stem(network, layer)}.inner-product",
        f"Wu-2020 Table {table}, {layer} of {network}",
        "|v₁ᵀÊ[x]|, mean over networks",
        f"{inner}",
        low=max(0.0, inner - _DIRECTION) if by_chance else inner - 0.001,
        high=inner + _DIRECTION if by_chance else math.inf,
        why="Theirs and ours are means of three networks, which by themselves vary by 0.12 here: "
        "twice what the difference varies by."
        if by_chance
        else "The last digit but one.",
        known=_known(network, layer, "inner-product"),
        scales=("paper",),
    )


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure E[xxᵀ] of every layer of every network."""
    rows, panels = [], []
    by_name: dict[str, Measured] = {}
    for cast in setting.casts:
        layers: dict[str, list[tuple[float, float]]] = {}
        for *_, layer, _, alignment, _, dominance in autocorrelation_part(cast, workshop).rows:
            layers.setdefault(layer, []).append((dominance, alignment**0.5))
        means: list[Measured] = []
        for layer, found in layers.items():
            ratio, inner = (Measured.over(numbers) for numbers in zip(*found, strict=True))
            means.append(ratio)
            theirs = _TABLES.get(cast.model, {}).get(layer, (None, None))
            rows.append(
                (cast.label, layer, ratio.ours, ratio.spread, theirs[0], inner.ours, theirs[1])
            )
            by_name[f"{_stem(cast.model, layer)}.norm-ratio"] = ratio
            by_name[f"{_stem(cast.model, layer)}.inner-product"] = inner
        panels.append(_panel(cast, tuple(layers), means))
    picture = Picture(
        "norm-ratios",
        "How much of a layer's input is its mean",
        tuple(panels),
        shows="Mean and standard deviation over networks, layers from first to last, and their "
        "Tables 6 and 8.",
    )
    names_of = (
        "networks",
        "layer",
        "‖E[x]E[x]ᵀ‖/‖Σ‖",
        "sd over seeds",
        "Tables 6, 8",
        "|v₁ᵀÊ[x]|",
        "Tables 7, 8",
    )
    table = sheet("layers", "Every layer, mean over networks", names_of, rows)
    return Outcome({}, (picture,), (table,), by_name=by_name)


def _panel(cast: Cast, names: Sequence[str], found: Sequence[Measured]) -> Panel:
    x = indices(len(names))
    errors = rounded([one.spread or 0.0 for one in found]) if len(cast.seeds) > 1 else None
    marks = [Points(x, rounded([one.ours for one in found]), "first", "ours", y_error=errors)]
    table = _TABLES.get(cast.model)
    if table is not None and set(names) == set(table):
        theirs = [table[name][0] for name in names]
        marks.append(Points(x, rounded(theirs), "second", "Wu-2020", hollow=True))
    ticks = tuple(zip(x, names, strict=True))
    return Panel(
        marks,
        Axis("layer", ticks=ticks, limits=(0.5, len(names) + 0.5)),
        Axis("‖E[x]E[x]ᵀ‖/‖Σ‖", log=True),
        cast.label,
    )


STUDY = Study(
    name="wu-2020-layers",
    paper="Wu",
    where="Wu-2020 Tables 6, 7, 8",
    title="How much of a layer's input is its mean?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_CONV, casts.SMALL_MLP_BN)),
        "paper": Setting(
            (casts.MLP, casts.LENET, casts.LENET_WIDTHS[0], casts.MLP_BN[0], casts.LENET_BN),
            note="The rows LeNet5-(conv2-25), VGG11, F-200²-100 and those of T-600 to T-1200 are "
            "left out: these networks were not trained. First layers are all in wu-inputs. "
            "LeNet5-BN saw standardised pixels; wu-inputs finds that theirs were scaled by other "
            "numbers.",
        ),
    },
    measure=measure,
    claims=_claims(),
)
