"""Wu Figs 1a, 5, 9–13, 23–26, 28: networks that share nothing share their top eigenspaces.

For each layer, the overlap (Def. 4.1) of the top k eigenvectors of the layer Hessians of two
networks, averaged over all pairs of networks. Theorem F.1 predicts (k/m)(t₁·t₁')² up to k = m, and
the same without k/m for the last layer, whose neurons cannot be permuted.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from eigenscape.analyses import eigenspace_overlap
from eigenscape.errors import InvalidArgumentError
from eigenscape.records import Axis, Panel, Picture, Rule, storable
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Outcome,
    Portrait,
    Setting,
    Study,
    Workshop,
    by_label,
    curve,
    last_layer,
    mean_and_band,
    picture,
    slug,
    table,
)
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.overlap_prediction import OverlapPrediction, overlap_prediction


@storable
@dataclass(frozen=True, eq=False)
class OverlapOfLayer:
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
        """Overlap (K,), mean over pairs."""
        return self.overlaps.mean(0)

    @property
    def chance(self) -> Tensor:
        """What random spaces have (K,)."""
        return torch.arange(1, len(self.mean) + 1, dtype=torch.float64) / self.num_parameters

    @property
    def predicted(self) -> Tensor:
        """What Theorem F.1 and its exceptions predict (K,), mean over pairs."""
        return torch.stack([p.overlaps[: len(self.mean)] for p in self.predictions]).mean(0)

    @property
    def alignment(self) -> float:
        """(t₁·t₁')², mean over pairs."""
        return sum(p.alignment for p in self.predictions) / len(self.predictions)

    @property
    def rank(self) -> int:
        """The rank of E[M], mean over pairs: m, or less where units are dead."""
        return round(sum(p.rank for p in self.predictions) / len(self.predictions))

    @property
    def reach(self) -> int:
        """How far the theorem's condition holds, mean over pairs."""
        return round(sum(p.reach for p in self.predictions) / len(self.predictions))

    @property
    def regime(self) -> str:
        """The regime that most pairs have."""
        return Counter(p.regime for p in self.predictions).most_common(1)[0][0]

    @property
    def reaches_outputs(self) -> bool:
        """Whether so many eigenvectors were taken that there is a number at k = m."""
        return len(self.mean) >= self.num_outputs

    @property
    def words(self) -> str:
        """The layer's name for readers."""
        return f"{self.layer} of {self.group}"

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
    groups = by_label(setting.casts)
    layers: list[OverlapOfLayer] = []
    products = 0
    for group, members in groups.items():
        look = partial(_of_group, group, members, setting, workshop)
        compared, spent = workshop.part("overlap", members, setting.options, look)
        layers, products = [*layers, *compared], products + spent
    pictures = tuple(_picture(group, [r for r in layers if r.group == group]) for group in groups)
    by_name = _measured(layers, stem)
    rows = table("wu-overlap.layers", [_row(layer) for layer in layers])
    return Outcome({}, pictures, (rows,), _notes(layers), products, by_name)


def _of_group(
    group: str, members: list[Cast], setting: Setting, workshop: Workshop
) -> tuple[tuple[OverlapOfLayer, ...], int]:
    """Compare the networks of one architecture; return their layers, and products spent."""
    layers, products = [], 0
    last = last_layer(workshop.networks(members[0]).risk(members[0].seeds[0]))
    for name, portraits in workshop.portraits(members, setting.options["num_pairs"]):
        if len(portraits) < 2:
            raise InvalidArgumentError(
                f"`eigenscape study wu-overlap` compares networks with each other; {group} has "
                "one seed. Give more, e.g. `--seeds 0-2`."
            )
        products += sum(p.pairs.num_products for p in portraits)
        layers.append(_compare(group, portraits, name == last))
    return tuple(layers), products


def _compare(group: str, portraits: list[Portrait], is_last: bool) -> OverlapOfLayer:
    count = len(portraits[0].values)
    overlaps, predictions = [], []
    for one, two in combinations(portraits, 2):
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
    return OverlapOfLayer(
        group,
        portraits[0].layer,
        portraits[0].num_outputs,
        torch.stack(overlaps),
        tuple(predictions),
        is_last,
        portraits[0].num_parameters,
    )


def _picture(group: str, layers: list[OverlapOfLayer]) -> Picture:
    panels = []
    for layer in layers:
        marks = [
            *mean_and_band(layer.overlaps, "hessian", "measured"),
            curve(layer.predicted, "gauss_newton", "predicted (F.1)", dashed=True),
            curve(layer.chance, "muted", "chance", dashed=True),
            Rule(layer.num_outputs),
        ]
        title = f"{layer.layer}, m = {layer.num_outputs}"
        panels.append(Panel(marks, Axis("k", whole=True), Axis("overlap"), title))
    pairs = len(layers[0].overlaps)
    return picture("wu-overlap.overlap", panels, group, pairs=pairs)


def _row(layer: OverlapOfLayer) -> tuple[object, ...]:
    m, mean, predicted, chance = (
        layer.num_outputs,
        *(_at_outputs(layer, curve) for curve in (layer.mean, layer.predicted, layer.chance)),
    )
    return (
        *(layer.group, layer.layer, m, layer.rank, layer.reach, layer.peak()),
        *(_predicted_peak(layer), mean, layer.spread(m) if layer.reaches_outputs else None),
        *(predicted, layer.alignment, chance, layer.regime),
    )


def _at_outputs(layer: OverlapOfLayer, curve: Tensor) -> float | None:
    """Return a curve at k = m; None where curves end before."""
    return float(curve[layer.num_outputs - 1]) if layer.reaches_outputs else None


def _notes(layers: list[OverlapOfLayer]) -> tuple[str, ...]:
    """Name the layers that decide, and say what is to be expected of each regime."""
    notes = [
        f"Of {r.words} {len(r.mean)} eigenvectors were taken, and m = {r.num_outputs}: nothing is "
        f"said at m, the prediction is not judged, and the peak is sought up to k = {len(r.mean)}."
        for r in layers
        if not r.reaches_outputs
    ]
    hidden = _hidden(layers)
    if not hidden:
        return tuple(notes)
    least = min(hidden, key=_above)
    notes.append(
        f"Of the hidden layers {least.words} has the least overlap: {_above(least):.3g} times "
        f"chance at k = {_predicted_peak(least)}."
    )
    complete = [r for r in hidden if r.reaches_outputs]
    if complete:
        worst = max(complete, key=_curve_error)
        notes.append(
            f"The prediction is furthest off in {worst.words}: by {_curve_error(worst):.2g} of the "
            "mean overlap up to m."
        )
    for r in complete:
        if r.regime != "linear growth":
            height = float(r.predicted[r.num_outputs - 1]) / r.alignment
            notes.append(
                f"{r.words}: {r.regime}. Theorem F.1 holds up to k = {r.reach} of {r.num_outputs}; "
                f"with other inputs counted, {height:.2f} (t₁·t₁')² is predicted at m."
            )
    return tuple(notes)


def _hidden(layers: list[OverlapOfLayer]) -> list[OverlapOfLayer]:
    """Return the layers that Theorem F.1 is about."""
    return [r for r in layers if not r.is_last and not r.group.partition(" (")[0].endswith("-BN")]


def _above(layer: OverlapOfLayer) -> float:
    """Return the overlap at the predicted peak over chance."""
    return float((layer.mean / layer.chance)[_predicted_peak(layer) - 1])


def _predicted_peak(layer: OverlapOfLayer) -> int:
    return int((layer.predicted - layer.chance).argmax()) + 1


def _measured(layers: list[OverlapOfLayer], begin: str) -> dict[str, Measured]:
    numbers: dict[str, Measured] = {}
    at_m: dict[tuple[str, str], float] = {}
    for r in layers:
        network = r.group.partition(" (")[0]
        stem = f"{begin}.{slug(network)}.{r.layer}"
        m = r.num_outputs
        if not r.reaches_outputs:
            continue
        at_m[network, r.layer] = float(r.mean[m - 1])
        if r.is_last:
            top = r.mean[: m - 1]
            numbers[f"{stem}.flat"] = Measured(float(top.min() / top.max()))
            continue
        sd = r.spread(m)
        numbers[f"{stem}.peak"] = Measured(r.peak() / r.rank)
        numbers[f"{stem}.height"] = Measured(
            float(r.mean[m - 1]) / r.alignment, None if sd is None else sd / r.alignment
        )
        numbers[f"{stem}.growth"] = Measured(_linearity(r.mean[: r.rank]))
        if (network, r.layer) == ("LeNet5", "fc2"):
            numbers |= _exception(stem, r)
        if stem == "wu.f200x2.fc2":
            numbers[f"{stem}.early-peak.place"] = Measured(first_peak(r.mean))
            numbers[f"{stem}.early-peak.height"] = Measured(float(r.mean[8]), r.spread(9))
    hidden = _hidden(layers)
    errors = [_curve_error(r) for r in hidden if r.reaches_outputs]
    if errors:
        numbers[f"{begin}.theorem-f1.curve"] = Measured(sum(errors) / len(errors))
    if hidden:
        numbers[f"{begin}.overlap.above-chance"] = Measured(min(_above(r) for r in hidden))
    normed = at_m.get(("LeNet5-BN", "fc1"))
    if normed is not None and ("LeNet5", "fc1") in at_m:
        numbers["wu.fig28.batchnorm.height"] = Measured(normed / at_m["LeNet5", "fc1"])
    return numbers


def _exception(stem: str, layer: OverlapOfLayer) -> dict[str, Measured]:
    """Return the numbers on a layer for which Theorem F.1 ends at c − 1 = 9."""
    m, peak = layer.num_outputs, layer.peak()
    sd = layer.spread(peak)
    return {
        f"{stem}.late": Measured(peak / m),
        f"{stem}.low": Measured(
            float(layer.mean[peak - 1]) / layer.alignment,
            None if sd is None else sd / layer.alignment,
        ),
        f"{stem}.bend": Measured(float(layer.mean[8] / (layer.mean[m - 1] * 9 / m))),
        f"{stem}.early-peak": Measured(first_peak(layer.mean)),
    }


def _curve_error(layer: OverlapOfLayer) -> float:
    m = layer.num_outputs
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


STUDY = Study.of(
    "wu-overlap",
    measure,
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_CONV),
        "paper": (casts.LENET, casts.MLP, casts.LENET_BN),
    },
)

TRAININGS = Study.of(
    "wu-overlap-trainings",
    partial(measure, stem="wu.fig9"),
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_MLP_MOMENTUM),
        "paper": (casts.LENET, casts.LENET_SMALL_STEP, casts.LENET_TRICKS),
    },
)

WIDTHS = Study.of(
    "wu-overlap-widths",
    partial(measure, stem="wu.fig5"),
    {"laptop": (casts.SMALL_MLP, casts.SMALL_MLP_NARROW), "paper": casts.LENET_WIDTHS},
)

DEEP = Study.of(
    "wu-overlap-deep",
    partial(measure, stem="wu.fig10"),
    {"laptop": (casts.SMALL_CONV,), "paper": (casts.VGG, casts.RESNET)},
)
