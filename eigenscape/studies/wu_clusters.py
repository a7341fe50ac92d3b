"""Wu Figs 20 and 21: do logit gradients Δ and Γ cluster, by logit at first, by class later?"""

from eigenscape.analyses import LogitGradients, logit_gradients
from eigenscape.report import Axis, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import SERIES, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

_CLAIMS = (
    Claim(
        "wu.fig20.logit-clusters",
        "Fig. 20",
        "share of the variance of Γ between logits at the start, first layer",
        "logit clustering at initialisation",
        low=0.5,
        why="Clusters hold more than half of the variance between them.",
    ),
    Claim(
        "wu.fig20.centres",
        "Fig. 20, (57)",
        "mean cosine of the logit centres with their approximations (57)",
        "the centres directly correspond to the approximated ones",
        low=0.7,
        why="Within 45 degrees, in a space of many dimensions.",
    ),
    Claim(
        "wu.fig21.class-clusters",
        "Fig. 21",
        "class share less logit share of Γ at the minimum, less the same at the start",
        "class clustering at the minimum",
        low=0.0,
        why="Training should move the clusters from logits towards classes.",
    ),
)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure Δ and Γ of the first layer at the start and at the end."""
    cast = setting.casts[0]
    networks = workshop.networks(cast)
    layer = matrix_layers(networks.risk(cast.seeds[0]))[0]
    found: dict[tuple[str, str], LogitGradients] = {}
    for when, epoch in (("start", 0), ("minimum", networks.last)):
        risk = networks.risk(cast.seeds[0], epoch)
        for variable in ("parameters", "output"):
            found[when, variable] = logit_gradients(risk, f"{layer}.weight", variable=variable)
    start, end = found["start", "output"], found["minimum", "output"]
    measured = {
        "wu.fig20.logit-clusters": Measured(start.logit_share),
        "wu.fig21.class-clusters": Measured(
            (end.class_share - end.logit_share) - (start.class_share - start.logit_share)
        ),
    }
    if start.center_cosines is not None:
        cosines = start.center_cosines
        measured["wu.fig20.centres"] = Measured(float(cosines.mean()), float(cosines.std()))
    rows = [
        (when, "Δ" if variable == "parameters" else "Γ", r.logit_share, r.class_share, r.mean_share)
        for (when, variable), r in found.items()
    ]
    names = ("when", "gradients", "between logits", "between classes", "kept by class means")
    picture = Picture(
        "clusters",
        f"Logit gradients of {layer} of {cast.label}, by t-SNE",
        tuple(_panel(when, variable, r) for (when, variable), r in found.items()),
        shows="A point is the mean over a class of the gradient of a logit; colours are logits. "
        "t-SNE keeps neighbours, not distances.",
    )
    return Outcome(measured, (picture,), (sheet("shares", "Shares of variance", names, rows),))


def _panel(when: str, variable: str, found: LogitGradients) -> Panel:
    points = []
    if found.coordinates is not None:
        for logit in sorted({int(j) for j in found.point_logits if j >= 0}):
            own = (found.point_logits == logit) & (found.point_classes >= 0)
            x, y = found.coordinates[own].T
            tint = SERIES[logit % len(SERIES)]
            points.append(Points(rounded(x), rounded(y), tint, hollow=logit >= len(SERIES)))
    letter = "Δ (parameters)" if variable == "parameters" else "Γ (outputs)"
    return Panel(points, Axis("t-SNE 1"), Axis("t-SNE 2"), f"{letter}, {when}")


STUDY = Study(
    name="wu-clusters",
    paper="Wu",
    where="Figs 20, 21; (53)–(57)",
    title="Do logit gradients cluster by logit, or by class?",
    settings={
        "laptop": Setting((casts.SMALL_MLP,)),
        "paper": Setting((casts.MLP,)),
    },
    measure=measure,
    claims=_CLAIMS,
)
