"""Wu-2020 Tables 6 and 7: each layer's input, with the pixels that its networks saw (wu-inputs)."""

from collections.abc import Sequence

from eigenscape.analyses import autocorrelations
from eigenscape.report import Axis, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import indices, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

# Network: layer: ‖E[x]E[x]ᵀ‖/‖Σ‖ (Table 6), |v₁ᵀÊ[x]| (Table 7).
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
}
_SHARE = 0.25
_FIRST = "The first layer, which no training touches, agrees to all digits: the images are theirs."
_LENET = (
    "First weights matter: conv2, fc1, fc2, fc3 of LeNet5 have 7.5, 7.7, 6.6, 5.6 with PyTorch's "
    f"own rule, as here, and 7.0, 8.8, 8.3, 7.4 with Xavier's (the errata to App. D.3). {_FIRST}"
)


def _stem(network: str, layer: str) -> str:
    plain = network.lower().replace("^", "x")
    return f"wu.2020.{''.join(letter for letter in plain if letter.isalnum())}.{layer}"


def _claims() -> tuple[Claim, ...]:
    found = []
    for network, layers in _TABLES.items():
        for layer, (ratio, inner) in layers.items():
            where = f"{layer} of {network}"
            found += [
                Claim(
                    f"{_stem(network, layer)}.norm-ratio",
                    f"Wu-2020 Table 6, {where}",
                    "‖E[x]E[x]ᵀ‖/‖Σ‖, mean over networks",
                    f"{ratio}",
                    low=ratio * (1 - _SHARE),
                    high=ratio * (1 + _SHARE),
                    why="A quarter either way: one number without a spread, and ours vary by a "
                    "tenth over seeds.",
                    known=_LENET if network.startswith("LeNet5") else f"Not explained. {_FIRST}",
                    scales=("paper",),
                ),
                Claim(
                    f"{_stem(network, layer)}.inner-product",
                    f"Wu-2020 Table 7, {where}",
                    "|v₁ᵀÊ[x]|, mean over networks",
                    f"{inner}",
                    low=inner - 0.001,
                    why="The last digit but one.",
                    scales=("paper",),
                ),
            ]
    return tuple(found)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure E[xxᵀ] of every layer of every network."""
    rows, panels = [], []
    by_name: dict[str, Measured] = {}
    for cast in setting.casts:
        networks = workshop.networks(cast)
        names = matrix_layers(networks.risk(cast.seeds[0]))
        records = [autocorrelations(networks.risk(seed), names).layers for seed in cast.seeds]
        means: list[Measured] = []
        for layer, found in zip(names, zip(*records, strict=True), strict=True):
            ratio = Measured.over([record.dominance for record in found])
            inner = Measured.over([record.alignment**0.5 for record in found])
            means.append(ratio)
            theirs = _TABLES.get(cast.model, {}).get(layer, (None, None))
            rows.append(
                (cast.label, layer, ratio.ours, ratio.spread, theirs[0], inner.ours, theirs[1])
            )
            by_name[f"{_stem(cast.model, layer)}.norm-ratio"] = ratio
            by_name[f"{_stem(cast.model, layer)}.inner-product"] = inner
        panels.append(_panel(cast, names, means))
    picture = Picture(
        "norm-ratios",
        "How much of a layer's input is its mean",
        tuple(panels),
        shows="Mean and standard deviation over networks, layers from first to last, and their "
        "Table 6.",
    )
    names_of = (
        "networks",
        "layer",
        "‖E[x]E[x]ᵀ‖/‖Σ‖",
        "sd over seeds",
        "Table 6",
        "|v₁ᵀÊ[x]|",
        "Table 7",
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
    where="Wu-2020 Tables 6, 7",
    title="How much of a layer's input is its mean?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_CONV)),
        "paper": Setting(
            (casts.MLP, casts.LENET, casts.LENET_WIDTHS[0]),
            note="The rows LeNet5-(conv2-25), VGG11, F-200²-100 and those of T-600 to T-1200 are "
            "left out: there are no such networks here. First layers are all in wu-inputs.",
        ),
    },
    measure=measure,
    claims=_claims(),
)
