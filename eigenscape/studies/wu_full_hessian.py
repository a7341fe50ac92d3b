"""Wu Fig. 8: top eigenpairs of the whole Hessian from the stacked output Hessian (44)–(51)."""

from functools import partial

import torch

from eigenscape.analyses import FullApproximation, full_approximation
from eigenscape.report import Axis, Line, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import curve, indices, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

_CLAIMS = (
    Claim(
        "wu.fig8.eigenvalues",
        "Fig. 8, (51)",
        "σ_i‖w_i‖² over λ_i, geometric mean over the first c − 1, furthest from 1 over networks",
        "reasonably accurate",
        low=0.5,
        high=2.0,
        why="Within a factor of two.",
    ),
    Claim(
        "wu.fig8.overlap",
        "Fig. 8, (50)",
        "overlap of the top c − 1 eigenspaces, smallest over networks",
        "reasonably accurate",
        low=0.5,
        why="More than half of the space in common.",
    ),
    Claim(
        "wu.fig8.rescaled-is-better",
        "App. B, (50)",
        "overlap with eigenvectors of T E[M] Tᵀ less that with w_i, top c − 1, smallest over "
        "networks",
        "(our check) no worse: (50) takes T u_i for eigenvectors, which needs inputs of one norm "
        "in all layers",
        low=-0.05,
        why="Leaving the paper's last step out should not make the fit worse.",
    ),
)
_NAMED = 6


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Approximate the whole Hessian of the first network of each cast."""
    rows, products = [], 0
    values: list[Panel] = []
    overlaps: list[Panel] = []
    for cast in setting.casts:
        row, *panels, spent = workshop.part(
            "full-hessian",
            (cast,),
            setting.options,
            partial(_of_cast, cast, setting, workshop),
        )
        rows.append(row)
        values.append(panels[0])
        overlaps.append(panels[1])
        products += spent
    measured = {
        "wu.fig8.eigenvalues": Measured(max((r[1] for r in rows), key=lambda r: max(r, 1 / r))),
        "wu.fig8.overlap": Measured(min(r[2] for r in rows)),
        "wu.fig8.rescaled-is-better": Measured(min(r[3] - r[2] for r in rows)),
    }
    names = ("network", "λ̂/λ, first c − 1", "overlap (50)", "overlap rescaled", "λ₁")
    pictures = (
        Picture(
            "full-hessian-values",
            "Top eigenvalues of the whole Hessian, and their approximation",
            tuple(values),
            shows="The line is the Hessian. The approximation knows E[M] of all layers together "
            "and the mean input of each.",
        ),
        Picture(
            "full-hessian-overlaps",
            "Overlap of the whole Hessian's top eigenspaces with their approximation",
            tuple(overlaps),
            shows="(50) takes T u_i for eigenvectors; “rescaled” takes those of T E[M] Tᵀ. Where "
            "only one curve is seen they agree.",
        ),
    )
    table = sheet("networks", "Every network", names, rows)
    return Outcome(measured, pictures, (table,), _notes(setting, workshop), products)


def _notes(setting: Setting, workshop: Workshop) -> tuple[str, ...]:
    """Say what is no part of the Hessian of a reader's own network."""
    found = []
    for cast in setting.casts:
        if cast.own is None:  # the paper's networks have no other layers
            continue
        risk = workshop.networks(cast).risk(cast.seeds[0])
        layers = matrix_layers(risk)
        owners = [name.rpartition(".")[0] or name for name in risk.space.names]
        others = [name for name in dict.fromkeys(owners) if name not in layers]
        if others:
            more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            found.append(
                f"The Hessian of {cast.label} is that of linear layers and convolutions; held "
                f"fixed are the parameters of {', '.join(others[:_NAMED])}{more}."
            )
    return tuple(found)


def _of_cast(
    cast: Cast, setting: Setting, workshop: Workshop
) -> tuple[tuple[str, float, float, float, float], Panel, Panel, int]:
    """Return a row, both panels, and products spent."""
    networks = workshop.networks(cast)
    c = networks.data.num_classes or 2
    risk = networks.risk(cast.seeds[0])
    layers = matrix_layers(risk)
    outputs = sum(risk.space.shapes[f"{name}.weight"][0] for name in layers)
    count = min(setting.options["num_pairs"], outputs)  # (44) has no more eigenvectors
    found = full_approximation(risk, layers, num_pairs=count, tolerance=1e-4)
    top = min(c - 1, len(found.values))
    logs = (found.approximated[:top] / found.values[:top].cpu()).clamp_min(1e-12).log()
    ratio = float(torch.exp(logs.mean()))
    own = float(found.overlaps[top - 1])
    better = float(found.rescaled_overlaps[top - 1])
    row = (cast.label, ratio, own, better, float(found.values[0]))
    return row, _values(cast.label, found), _overlaps(cast.label, found), found.num_products


def _values(title: str, found: FullApproximation) -> Panel:
    marks: list[Points | Line] = [
        Points(
            indices(len(found.approximated)),
            rounded(found.approximated),
            "gauss_newton",
            "(51)",
            hollow=True,
        ),
        curve(found.values, "hessian", "H"),
    ]
    return Panel(marks, Axis("index", whole=True), Axis("eigenvalue", log=True), title)


def _overlaps(title: str, found: FullApproximation) -> Panel:
    marks = [
        curve(found.overlaps, "gauss_newton", "(50)"),
        curve(found.rescaled_overlaps, "residual", "rescaled", dashed=True),
    ]
    return Panel(marks, Axis("k", whole=True), Axis("overlap with H", limits=(0, 1.02)), title)


STUDY = Study(
    name="wu-full-hessian",
    paper="Wu",
    where="Fig. 8; (44)–(51)",
    title="Can the top of the whole Hessian be had from the output Hessian and mean inputs?",
    settings={
        "laptop": Setting((casts.SMALL_MLP,), {"num_pairs": 30}),
        "paper": Setting((casts.MLP, *casts.DEEP), {"num_pairs": 50}),
    },
    measure=measure,
    claims=_CLAIMS,
)
