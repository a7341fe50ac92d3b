"""Wu Figs 20 and 21: do logit gradients Δ and Γ cluster, by logit at first, by class later?"""

from eigenscape.analyses import LogitGradients, logit_gradients
from eigenscape.report import Axis, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import SERIES, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Networks, Workshop

_HALF = 0.5
_STRONG = "Clusters hold more than half of the variance between them."
_WEAK = (
    "Weak clusters hold less than half of the variance between them, as strong ones hold more; by "
    "chance ten classes of ten points have 0.09."
)
_CLAIMS = (
    Claim(
        "wu.fig20.logit-clusters",
        "Fig. 20",
        "share of the variance of Γ between logits at the start, first layer",
        "logit clustering at initialisation",
        low=_HALF,
        why=_STRONG,
    ),
    Claim(
        "wu.fig20.centres",
        "Fig. 20, (57)",
        "mean cosine of the logit centres with their approximations (57)",
        "the centres directly correspond to the approximated ones",
        low=0.7,
        why="Within 45 degrees, in a space of many dimensions.",
        known="(57) takes every unit to fire half of the time. With the rates at which they do "
        "between the factors of S, or with E[∂z/∂output] in place of S, the mean cosine is above "
        "0.999 on two networks, where S has 0.70 and 0.66; see the errata to (56).",
    ),
    Claim(
        "wu.fig21.class-clusters",
        "Fig. 21, F.1",
        "share of the variance of Γ between classes at the minimum, first layer",
        "very weak class clustering",
        high=_HALF,
        why=f"{_WEAK} Changed after the first run, which asked for class clusters: the text says "
        "that there are hardly any.",
    ),
    Claim(
        "wu.2020.fig20.logit-clusters",
        "Wu-2020 Fig. 20",
        "share of the variance of Γ between logits at the start, fc1 of LeNet5",
        "logit clustering at initialisation",
        low=_HALF,
        why=_STRONG,
        scales=("paper",),
    ),
    Claim(
        "wu.2020.fig20.class-clusters",
        "Wu-2020 Fig. 20, App. E.1",
        "share of the variance of Γ between classes at the minimum, fc1 of LeNet5",
        "no clear class clustering",
        high=_HALF,
        why=_WEAK,
        scales=("paper",),
    ),
)

_Cases = dict[tuple[str, str], LogitGradients]


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure Δ and Γ of the first fully connected layer at the start and at the end."""
    measured: dict[str, Measured] = {}
    pictures, rows = [], []
    # The paper's network first, that of Wu-2020 second.
    for prefix, cast in zip(("wu.fig20", "wu.2020.fig20"), setting.casts, strict=False):
        networks = workshop.networks(cast)
        layer = _layer(networks)
        found = _cases(networks, layer)
        start, end = found["start", "output"], found["minimum", "output"]
        by_class = "wu.fig21" if prefix == "wu.fig20" else prefix
        measured[f"{prefix}.logit-clusters"] = Measured(start.logit_share)
        measured[f"{by_class}.class-clusters"] = Measured(end.class_share)
        cosines = start.center_cosines
        if cosines is not None and prefix == "wu.fig20":
            measured["wu.fig20.centres"] = Measured.over(cosines)
        rows += [
            (cast.label, layer, when, _letter(variable), *_numbers(r))
            for (when, variable), r in found.items()
        ]
        pictures.append(_picture(networks, layer, found))
    names = (
        "network",
        "layer",
        "when",
        "gradients",
        "between logits",
        "between classes",
        "kept by class means",
        "cosine with (57)",
    )
    table = sheet("shares", "Shares of variance", names, rows)
    return Outcome(measured, tuple(pictures), (table,))


def _layer(networks: Networks) -> str:
    names = matrix_layers(networks.risk(networks.cast.seeds[0]))
    return next((name for name in names if name.startswith("fc")), names[0])


def _cases(networks: Networks, layer: str) -> _Cases:
    seed = networks.cast.seeds[0]
    return {
        (when, variable): logit_gradients(
            networks.risk(seed, epoch), f"{layer}.weight", variable=variable
        )
        for when, epoch in (("start", 0), ("minimum", networks.last))
        for variable in ("parameters", "output")
    }


def _letter(variable: str) -> str:
    """Return the paper's letter for gradients by the parameters or by the output."""
    return "Δ" if variable == "parameters" else "Γ"


def _numbers(found: LogitGradients) -> tuple[float | None, ...]:
    cosines = found.center_cosines
    mean = None if cosines is None else float(cosines.mean())
    return found.logit_share, found.class_share, found.mean_share, mean


def _picture(networks: Networks, layer: str, found: _Cases) -> Picture:
    first = networks.cast.model.lower().replace("^", "x")
    return Picture(
        f"clusters-{first}",
        f"Logit gradients of {layer} of {networks.cast.label}, by t-SNE",
        tuple(_panel(when, variable, r) for (when, variable), r in found.items()),
        shows="A point is the mean over a class of the gradient of a logit. Colours are logits at "
        "the start and classes at the minimum; black rings are the centres of these. "
        "t-SNE keeps neighbours, not distances.",
    )


def _panel(when: str, variable: str, found: LogitGradients) -> Panel:
    marks: list[Points] = []
    by, other, kind = found.point_logits, found.point_classes, "logit"
    if when == "minimum":
        by, other, kind = other, by, "class"
    if found.coordinates is not None:
        centres = (by >= 0) & (other < 0)
        for place in sorted({int(i) for i in by if i >= 0}):
            x, y = found.coordinates[(by == place) & (other >= 0)].T
            tint = SERIES[place % len(SERIES)]
            hollow = place >= len(SERIES)
            marks.append(Points(rounded(x), rounded(y), tint, str(place), hollow=hollow))
        x, y = found.coordinates[centres].T
        marks.append(Points(rounded(x), rounded(y), "ink", hollow=True))
    title = f"{_letter(variable)}, {when}, by {kind}"
    return Panel(marks, Axis("t-SNE 1"), Axis("t-SNE 2"), title)


STUDY = Study(
    name="wu-clusters",
    paper="Wu",
    where="Figs 20, 21; (53)–(57); Wu-2020 Fig. 20",
    title="Do logit gradients cluster by logit, or by class?",
    settings={
        "laptop": Setting((casts.SMALL_MLP,)),
        "paper": Setting((casts.MLP, casts.LENET)),
    },
    measure=measure,
    claims=_CLAIMS,
)
