"""Wu-2020 Tables 6 and 7: each layer's input, with the pixels that its networks saw (wu-inputs)."""

from statistics import fmean, stdev

from eigenscape.analyses import autocorrelations
from eigenscape.report import Axis, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import SERIES, indices, rounded
from eigenscape.studies._tables import sheet
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
}
_SHARE = 0.25


def _stem(network: str, layer: str) -> str:
    return f"wu.2020.{network.lower().replace('^', 'x').replace('-', '')}.{layer}"


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
                    "tenth over seeds. The first layer, which no training touches, agrees to the "
                    "last digit; where later ones do not, it is the trainings that differ.",
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
    for place, cast in enumerate(setting.casts):
        networks = workshop.networks(cast)
        names = matrix_layers(networks.risk(cast.seeds[0]))
        records = [autocorrelations(networks.risk(seed), names).layers for seed in cast.seeds]
        means = []
        for layer, found in zip(names, zip(*records, strict=True), strict=True):
            ratios = [record.dominance for record in found]
            inner = [record.alignment**0.5 for record in found]
            spread = stdev(ratios) if len(ratios) > 1 else None
            rows.append((cast.label, layer, fmean(ratios), spread, fmean(inner)))
            means.append(fmean(ratios))
            by_name[f"{_stem(cast.model, layer)}.norm-ratio"] = Measured(fmean(ratios), spread)
            by_name[f"{_stem(cast.model, layer)}.inner-product"] = Measured(fmean(inner))
        panels.append(
            Panel(
                [Points(indices(len(means)), rounded(means), SERIES[place % len(SERIES)])],
                Axis("layer", whole=True),
                Axis("‖E[x]E[x]ᵀ‖/‖Σ‖", log=True),
                cast.label,
            )
        )
    picture = Picture(
        "norm-ratios",
        "How much of a layer's input is its mean",
        tuple(panels),
        shows="Mean over networks, layers from first to last.",
    )
    names_of = ("networks", "layer", "‖E[x]E[x]ᵀ‖/‖Σ‖", "sd over seeds", "|v₁ᵀÊ[x]|")
    table = sheet("layers", "Every layer, mean over networks", names_of, rows)
    return Outcome({}, (picture,), (table,), by_name=by_name)


STUDY = Study(
    name="wu-2020-layers",
    paper="Wu",
    where="Wu-2020 Tables 6, 7",
    title="How much of a layer's input is its mean?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_CONV)),
        "paper": Setting((casts.MLP, casts.LENET)),
    },
    measure=measure,
    claims=_claims(),
)
