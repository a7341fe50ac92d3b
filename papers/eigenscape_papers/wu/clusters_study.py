"""Wu Figs 20 and 21: do logit gradients Δ and Γ cluster, by logit at first, by class later?"""

from eigenscape.records import Axis, Panel, Points
from eigenscape_papers.runner import (
    SERIES,
    Measured,
    Networks,
    Outcome,
    Setting,
    Study,
    Workshop,
    picture,
    rounded,
    table,
)
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.logit_gradients import LogitGradients, logit_gradients
from eigenscape_papers.wu.spectra_study import first_linear

_Cases = dict[tuple[str, str], LogitGradients]


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure Δ and Γ of the first fully connected layer at the start and at the end."""
    measured: dict[str, Measured] = {}
    pictures, rows = [], []
    # The paper's network first, that of Wu-2020 second.
    for prefix, cast in zip(("wu.fig20", "wu.2020.fig20"), setting.casts, strict=False):
        networks = workshop.networks(cast)
        layer = first_linear(networks)
        cases = _cases(networks, layer)
        start, end = cases["start", "output"], cases["minimum", "output"]
        by_class = "wu.fig21" if prefix == "wu.fig20" else prefix
        measured[f"{prefix}.logit-clusters"] = Measured(start.logit_share)
        measured[f"{by_class}.class-clusters"] = Measured(end.class_share)
        cosines = start.center_cosines
        if cosines is not None and prefix == "wu.fig20":
            measured["wu.fig20.centres"] = Measured.over(cosines)
        rows += [
            (cast.label, layer, when, _letter(variable), *_numbers(r))
            for (when, variable), r in cases.items()
        ]
        panels = [_panel(when, variable, r) for (when, variable), r in cases.items()]
        pictures.append(picture("wu-clusters.clusters", panels, cast, layer=layer))
    return Outcome(measured, tuple(pictures), (table("wu-clusters.shares", rows),))


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


def _numbers(gradients: LogitGradients) -> tuple[float | None, ...]:
    cosines = gradients.center_cosines
    mean = None if cosines is None else float(cosines.mean())
    return gradients.logit_share, gradients.class_share, gradients.mean_share, mean


def _panel(when: str, variable: str, gradients: LogitGradients) -> Panel:
    marks: list[Points] = []
    by, other, kind = gradients.point_logits, gradients.point_classes, "logit"
    if when == "minimum":
        by, other, kind = other, by, "class"
    if gradients.coordinates is not None:
        centres = (by >= 0) & (other < 0)
        for index in sorted({int(i) for i in by if i >= 0}):
            x, y = gradients.coordinates[(by == index) & (other >= 0)].T
            tint = SERIES[index % len(SERIES)]
            hollow = index >= len(SERIES)
            marks.append(Points(rounded(x), rounded(y), tint, str(index), hollow=hollow))
        x, y = gradients.coordinates[centres].T
        marks.append(Points(rounded(x), rounded(y), "ink", hollow=True))
    title = f"{_letter(variable)}, {when}, by {kind}"
    return Panel(marks, Axis("t-SNE 1"), Axis("t-SNE 2"), title)


STUDY = Study.of(
    "wu-clusters", measure, {"laptop": (casts.SMALL_MLP,), "paper": (casts.MLP, casts.LENET)}
)
