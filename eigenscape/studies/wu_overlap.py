"""Wu Figs 1a, 5, 9–13, 23–26, 28: networks that share nothing share their top eigenspaces.

For each layer, the overlap (Def. 4.1) of the top k eigenvectors of the layer Hessians of two
networks, averaged over all pairs of networks. Theorem F.1 predicts (k/m)(t₁·t₁')² up to k = m, and
the same without k/m for the last layer, whose neurons cannot be permuted.
"""

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from eigenscape.analyses import OverlapPrediction, eigenspace_overlap, overlap_prediction
from eigenscape.errors import InvalidArgumentError
from eigenscape.report import Axis, Panel, Picture, Rule, Sheet
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import curve, mean_and_band
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import Portrait, matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

_PEAK = "Their figures show a peak “around m”; a fifth of m on either side is around it."
_SIZE = (
    "Holds where τ_m γ₁ > τ₁ γ₂; the table's regime “delayed peak” says where it does not. "
    "The text has “approximately”, from an argument that leaves out all but one input direction."
)


def _slug(network: str) -> str:
    return "".join(c for c in network.lower().replace("^", "x") if c.isalnum())


def layer_claims(
    network: str, figure: str, layers: dict[str, int], stem: str = "wu"
) -> tuple[Claim, ...]:
    """Return the claims on hidden layers of a network.

    Args:
        network: Its name.
        figure: Where they stand.
        layers: The layers with their numbers of outputs.
        stem: What ids begin with.

    Returns:
        Three for each layer: place and height of the peak, growth before it.
    """
    found = []
    for layer, m in layers.items():
        where = f"{figure}, {layer} of {network}"
        found += [
            Claim(
                f"{stem}.{_slug(network)}.{layer}.peak",
                where,
                f"where the mean overlap is furthest above chance, over m = {m}",
                "the peak is around m",
                low=0.8,
                high=1.2,
                why=_PEAK,
                scales=("paper",),
            ),
            Claim(
                f"{stem}.{_slug(network)}.{layer}.height",
                where,
                "mean overlap at k = m over the mean of (t₁·t₁')²",
                "1 (Theorem F.1)",
                low=0.75,
                high=1.1,
                why=_SIZE,
                scales=("paper",),
            ),
            Claim(
                f"{stem}.{_slug(network)}.{layer}.growth",
                where,
                "squared correlation of the overlap with k, for k ≤ m",
                "linear growth before m",
                low=0.97,
                why="A straight line through a curve with a visible bend still has 0.97. Layers "
                "with few outputs have few points: conv1 of LeNet5 has six, and its peak at five.",
                scales=("paper",),
            ),
        ]
    return tuple(found)


_CLAIMS = (
    *layer_claims("LeNet5", "Figs 1a, 5, 9", {"conv1": 6, "conv2": 16, "fc1": 120, "fc2": 84}),
    Claim(
        "wu.lenet5.fc3.flat",
        "Figs 9, 23, App. F.3.2",
        "smallest over largest mean overlap for k ≤ c − 1, last layer of LeNet5",
        "no growth from 0: constant, (t₁·t₁')²",
        low=0.5,
        why="Flat beside a line from 0, whose quotient would be 1/9.",
        scales=("paper",),
    ),
    Claim(
        "wu.f200x2.fc2.early-peak.place",
        "Figs 12a, 24, App. F.3.3",
        "first k whose mean overlap, fc2 of F-200², is above that of the next five",
        "linear growth, then a sharp decrease after dimension 9",
        low=8,
        high=11,
        why="c − 1 = 9, “around 10” in the text. Chosen after the largest value among k ≤ 40, "
        "asked for at first, gave 40: the curve falls after 9 and rises again later.",
        scales=("paper",),
    ),
    Claim(
        "wu.f200x2.fc2.early-peak.height",
        "App. F.3.3",
        "mean overlap of fc2 of F-200² at k = 9",
        "around 0.012",
        low=0.006,
        high=0.024,
        why="Within a factor of two: it is 9/200 of (t₁·t₁')², which depends on training.",
        scales=("paper",),
    ),
    Claim(
        "wu.theorem-f1.curve",
        "Theorem F.1, App. F.3",
        "mean over k ≤ m of |predicted − measured| over the mean measured, mean over hidden layers",
        "failures “can be predicted” from E[M] and E[xxᵀ]",
        high=0.3,
        why="The prediction takes as random what it does not know; a third off still shows peaks.",
    ),
    Claim(
        "wu.overlap.above-chance",
        "§5.1",
        "mean overlap at the predicted peak over what random spaces have, smallest over layers",
        "highly nontrivial overlap",
        low=1.5,
        why="Clearly above chance; the papers' layers have 3 to 100.",
    ),
    Claim(
        "wu.fig28.batchnorm.height",
        "Fig. 28, App. F.4",
        "mean overlap at k = m behind BatchNorm over that without, fc1 of LeNet5",
        "the peak disappears",
        high=0.5,
        why="A peak that is gone leaves less than half of it.",
        scales=("paper",),
    ),
)


@dataclass(frozen=True, eq=False)
class _Layer:
    """All pairs of networks at one layer."""

    group: str
    layer: str
    num_outputs: int
    overlaps: Tensor  # (pairs, K)
    predictions: tuple[OverlapPrediction, ...]
    is_last: bool
    num_parameters: int

    @property
    def mean(self) -> Tensor:
        return self.overlaps.mean(0)

    @property
    def chance(self) -> Tensor:
        return torch.arange(1, len(self.mean) + 1, dtype=torch.float64) / self.num_parameters

    @property
    def predicted(self) -> Tensor:
        return torch.stack([p.overlaps[: len(self.mean)] for p in self.predictions]).mean(0)

    @property
    def alignment(self) -> float:
        return sum(p.alignment for p in self.predictions) / len(self.predictions)

    def spread(self, k: int) -> float | None:
        """Return the standard deviation of the overlap of k vectors; None of a single pair."""
        return float(self.overlaps[:, k - 1].std()) if len(self.overlaps) > 1 else None

    def peak(self) -> int:
        """Return where the mean overlap is furthest above chance."""
        return int((self.mean - self.chance).argmax()) + 1


def measure(setting: Setting, workshop: Workshop, *, stem: str = "wu") -> Outcome:
    """Compare all pairs of networks of each architecture, layer by layer.

    Args:
        setting: Casts of one label are compared with each other too.
        workshop: Where networks are kept.
        stem: What the ids of claims begin with.

    Returns:
        Curves, a table, and numbers for the claims.

    Raises:
        InvalidArgumentError: If there is only one network.
    """
    groups: dict[str, list[Cast]] = {}
    for cast in setting.casts:
        groups.setdefault(cast.label, []).append(cast)
    layers: list[_Layer] = []
    products = 0
    for group, members in groups.items():
        first = workshop.networks(members[0])
        names = matrix_layers(first.risk(members[0].seeds[0]))
        for name in names:
            seen = [
                workshop.portrait(
                    workshop.networks(cast), seed, name, num_pairs=setting.options["num_pairs"]
                )
                for cast in members
                for seed in cast.seeds
            ]
            if len(seen) < 2:
                raise InvalidArgumentError(
                    f"`eigenscape study wu-overlap` compares networks with each other; {group} has "
                    "one seed. Give more, e.g. `--seeds 0-2`."
                )
            products += sum(p.pairs.num_products for p in seen)
            layers.append(_compare(group, seen, name == names[-1]))
    pictures = tuple(_picture(group, [r for r in layers if r.group == group]) for group in groups)
    by_name = _measured(layers, stem)
    return Outcome({}, pictures, (_sheet(layers),), (), products, by_name)


def _compare(group: str, seen: list[Portrait], is_last: bool) -> _Layer:
    count = len(seen[0].values)
    overlaps, predictions = [], []
    for one, two in combinations(seen, 2):
        overlaps.append(eigenspace_overlap(one.pairs, two.pairs).overlaps)
        predictions.append(
            overlap_prediction(
                one.kronecker,
                two.kronecker,
                num_vectors=count,
                num_inputs=min(10, one.num_inputs),
                is_output_layer=is_last,
            )
        )
    return _Layer(
        group,
        seen[0].layer,
        seen[0].num_outputs,
        torch.stack(overlaps),
        tuple(predictions),
        is_last,
        seen[0].num_parameters,
    )


def _picture(group: str, layers: list[_Layer]) -> Picture:
    panels = []
    for found in layers:
        marks = [
            *mean_and_band(found.overlaps, "hessian", "measured"),
            curve(found.predicted, "gauss_newton", "predicted (F.1)", dashed=True),
            curve(found.chance, "muted", "chance", dashed=True),
            Rule(found.num_outputs, "m"),
        ]
        panels.append(Panel(marks, Axis("k", whole=True), Axis("overlap"), found.layer))
    pairs = len(layers[0].overlaps)
    return Picture(
        f"overlap-{''.join(c for c in group.lower() if c.isalnum())}",
        f"Overlap of top eigenspaces of different networks, {group}",
        tuple(panels),
        shows=f"Mean over {pairs} pairs of networks; the band is one standard deviation. The "
        "prediction knows only E[M] and E[xxᵀ] of each network.",
    )


def _sheet(layers: list[_Layer]) -> Sheet:
    names = (
        "networks",
        "layer",
        "m",
        "peak at",
        "predicted peak",
        "overlap at m",
        "sd over pairs",
        "(t₁·t₁')²",
        "chance at m",
        "regime",
    )
    rows = []
    for r in layers:
        m = min(r.num_outputs, len(r.mean))
        rows.append(
            (
                r.group,
                r.layer,
                r.num_outputs,
                r.peak(),
                _predicted_peak(r),
                float(r.mean[m - 1]),
                r.spread(m),
                r.alignment,
                float(r.chance[m - 1]),
                r.predictions[0].regime,
            )
        )
    return sheet("layers", "Every layer", names, rows)


def _predicted_peak(layer: _Layer) -> int:
    return int((layer.predicted - layer.chance).argmax()) + 1


def _measured(layers: list[_Layer], begin: str) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    at_m: dict[tuple[str, str], float] = {}
    for r in layers:
        network = r.group.partition(" (")[0]
        stem = f"{begin}.{_slug(network)}.{r.layer}"
        m = r.num_outputs
        if len(r.mean) < m:
            continue
        at_m[network, r.layer] = float(r.mean[m - 1])
        if r.is_last:
            top = r.mean[: m - 1]
            found[f"{stem}.flat"] = Measured(float(top.min() / top.max()))
            continue
        sd = r.spread(m)
        found[f"{stem}.peak"] = Measured(r.peak() / m)
        found[f"{stem}.height"] = Measured(
            float(r.mean[m - 1]) / r.alignment, None if sd is None else sd / r.alignment
        )
        found[f"{stem}.growth"] = Measured(_linearity(r.mean[:m]))
        if stem == "wu.f200x2.fc2":
            found[f"{stem}.early-peak.place"] = Measured(first_peak(r.mean))
            found[f"{stem}.early-peak.height"] = Measured(float(r.mean[8]), r.spread(9))
    hidden = [r for r in layers if not r.is_last and not r.group.partition(" (")[0].endswith("-BN")]
    if hidden:
        errors = [_curve_error(r) for r in hidden]
        found[f"{begin}.theorem-f1.curve"] = Measured(sum(errors) / len(errors))
        above = [float((r.mean / r.chance)[_predicted_peak(r) - 1]) for r in hidden]
        found[f"{begin}.overlap.above-chance"] = Measured(min(above))
    normed = at_m.get(("LeNet5-BN", "fc1"))
    if normed is not None and ("LeNet5", "fc1") in at_m:
        found["wu.fig28.batchnorm.height"] = Measured(normed / at_m["LeNet5", "fc1"])
    return found


def _curve_error(layer: _Layer) -> float:
    m = min(layer.num_outputs, len(layer.mean))
    gap = (layer.predicted - layer.mean)[:m].abs().mean()
    return float(gap / layer.mean[:m].mean())


def first_peak(curve: Tensor, following: int = 5) -> int:
    """Return the first place, counted from 1, whose value is above the next few; else the last."""
    for k in range(len(curve) - 1):
        if bool(curve[k] > curve[k + 1 : k + 1 + following].max()):
            return k + 1
    return len(curve)


def _linearity(values: Tensor) -> float:
    """Return the squared correlation with the index."""
    if len(values) < 3:
        return 1.0
    k = torch.arange(1, len(values) + 1, dtype=torch.float64)
    return float(torch.corrcoef(torch.stack([values.double(), k]))[0, 1] ** 2)


STUDY = Study(
    name="wu-overlap",
    paper="Wu",
    where="Figs 1a, 5, 9, 12, 23, 24, 28; §5.1; Theorem F.1",
    title="Do networks trained from different seeds share their top eigenspaces?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_CONV), {"num_pairs": 60}),
        "paper": Setting((casts.LENET, casts.MLP, casts.LENET_BN), {"num_pairs": 260}),
    },
    measure=measure,
    claims=_CLAIMS,
)
