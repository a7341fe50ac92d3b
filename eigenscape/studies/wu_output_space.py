"""Wu Table 10: is the top eigenspace of E[M] the row space of the weights above the layer?"""

from statistics import fmean, pstdev

from eigenscape.analyses import output_space_overlap
from eigenscape.errors import UnsupportedModelError
from eigenscape.report import Axis, Panel, Picture, Points
from eigenscape.risk import EmpiricalRisk
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import SERIES, indices, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

# Table 10: network, data, labels: fc1, fc2, fc3.
_TABLE = {
    ("LeNet5", "cifar10", "true"): (0.951, 0.972, 0.999),
    ("LeNet5", "mnist", "true"): (0.890, 0.931, 0.999),
}
_TOLERANCE = 0.1


def _claims() -> tuple[Claim, ...]:
    found = []
    for (model, data, labels), numbers in _TABLE.items():
        for layer, theirs in zip(("fc1", "fc2", "fc3"), numbers, strict=True):
            found.append(
                Claim(
                    f"wu.table10.{model.lower()}.{data}.{labels}.{layer}",
                    f"Table 10, {layer} of {model} on {data}",
                    "overlap of the top c − 1 eigenspace of E[M] with R(S) less S·1",
                    f"{theirs}",
                    low=theirs - _TOLERANCE,
                    high=min(1.0 + 1e-9, theirs + _TOLERANCE),
                    why="0.1 either way: they give one number and no spread.",
                    scales=("paper",),
                )
            )
    return (
        *found,
        Claim(
            "wu.table10.last-layer",
            "Table 10",
            "the same for the last layer, smallest over networks",
            "0.98 to 0.999",
            low=0.98,
            why="Their smallest. Above the last layer S is the identity, so it should be 1 but for "
            "near-null directions of E[M].",
        ),
        Claim(
            "wu.sec4.4.initial",
            "§4.4, Theorem 4.1",
            "the same at the start, first layer, mean over networks",
            "approximately R(S) for a large network",
            low=0.7,
            why="Narrow layers at the start are rougher; chance is (c − 1)/m.",
        ),
    )


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Compare the spaces for every fully connected layer, at the start and at the end."""
    rows: list[tuple[object, ...]] = []
    measured: dict[str, Measured] = {}
    lasts, starts, panels = [], [], []
    for place, cast in enumerate(setting.casts):
        networks = workshop.networks(cast)
        names = matrix_layers(networks.risk(cast.seeds[0]))
        means = []
        for layer in names:
            at_end = [_overlap(networks.risk(seed), layer) for seed in cast.seeds]
            at_start = [_overlap(networks.risk(seed, 0), layer) for seed in cast.seeds]
            found = [value for value in at_end if value is not None]
            first = [value for value in at_start if value is not None]
            if not found:
                continue
            means.append(fmean(found))
            rows.append((cast.label, layer, fmean(found), pstdev(found), fmean(first)))
            stem = f"wu.table10.{cast.model.lower()}.{cast.data}.{cast.labels}.{layer}"
            if (cast.model, cast.data, cast.labels) in _TABLE:
                measured[stem] = Measured(fmean(found), pstdev(found))
            if layer == names[-1] and cast.labels == "true":
                lasts.append(fmean(found))
            if len(means) == 1 and cast.labels == "true":
                starts.append(fmean(first))
        x = indices(len(means))
        panels.append(
            Panel(
                [Points(x, rounded(means), SERIES[place % len(SERIES)])],
                Axis("layer", whole=True),
                Axis("overlap", limits=(0, 1.02)),
                cast.label,
            )
        )
    if lasts:
        measured["wu.table10.last-layer"] = Measured(min(lasts))
    if starts:
        measured["wu.sec4.4.initial"] = Measured(fmean(starts))
    names_of = ("network", "layer", "overlap at the minimum", "sd over seeds", "at the start")
    picture = Picture(
        "output-space",
        "Overlap of the top c − 1 eigenspace of E[M] with the row space of the weights above",
        tuple(panels),
        shows="Mean over seeds at the minimum, fully connected layers from first to last.",
    )
    return Outcome(measured, (picture,), (sheet("layers", "Every layer", names_of, rows),))


def _overlap(risk: EmpiricalRisk, layer: str) -> float | None:
    # A convolution has no chain of linear layers above it.
    try:
        return output_space_overlap(risk, layer).overlap
    except UnsupportedModelError:
        return None


STUDY = Study(
    name="wu-output-space",
    paper="Wu",
    where="Table 10; §4.4",
    title="Is the top eigenspace of E[M] the row space of the weights above the layer?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_MLP_RANDOM)),
        "paper": Setting((casts.LENET, casts.LENET_MNIST, casts.MLP, casts.MLP_RANDOM)),
    },
    measure=measure,
    claims=_claims(),
)
