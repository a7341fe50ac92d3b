"""Wu Fig. 8: top eigenpairs of the whole Hessian from the stacked output Hessian (44)–(51)."""

import torch

from eigenscape.records import Panel
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    curve,
    matrix_layers,
    of_each_cast,
    overlaps_panel,
    picture,
    table,
    values_panel,
)
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.full_approximation import full_approximation

_NAMED = 6


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Approximate the whole Hessian of the first network of each cast."""
    by_cast = of_each_cast("full-hessian", setting, workshop, _of_cast)
    rows, values, overlaps, products = zip(*by_cast, strict=True)
    measured = {
        "wu.fig8.eigenvalues": Measured(max((r[1] for r in rows), key=lambda r: max(r, 1 / r))),
        "wu.fig8.overlap": Measured(min(r[2] for r in rows)),
        "wu.fig8.rescaled-is-better": Measured(min(r[3] - r[2] for r in rows)),
    }
    pictures = (
        picture("wu-full-hessian.full-hessian-values", values),
        picture("wu-full-hessian.full-hessian-overlaps", overlaps),
    )
    networks = table("wu-full-hessian.networks", rows)
    return Outcome(measured, pictures, (networks,), _notes(setting, workshop), sum(products))


def _notes(setting: Setting, workshop: Workshop) -> tuple[str, ...]:
    """Say what is no part of the Hessian of a user's own network."""
    notes = []
    for cast in setting.casts:
        if cast.own is None:  # the paper's networks have no other layers
            continue
        risk = workshop.networks(cast).risk(cast.seeds[0])
        layers = matrix_layers(risk)
        owners = [name.rpartition(".")[0] or name for name in risk.space.names]
        others = [name for name in dict.fromkeys(owners) if name not in layers]
        if others:
            more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            notes.append(
                f"The Hessian of {cast.label} is that of linear layers and convolutions; held "
                f"fixed are the parameters of {', '.join(others[:_NAMED])}{more}."
            )
    return tuple(notes)


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
    fit = full_approximation(risk, layers, num_pairs=count, tolerance=1e-4)
    top = min(c - 1, len(fit.values))
    logs = (fit.approximated[:top] / fit.values[:top].cpu()).clamp_min(1e-12).log()
    ratio = float(torch.exp(logs.mean()))
    overlap = float(fit.overlaps[top - 1])
    better = float(fit.rescaled_overlaps[top - 1])
    row = (cast.label, ratio, overlap, better, float(fit.values[0]))
    values = [("(51)", fit.approximated, "gauss_newton")]
    lines = [
        curve(fit.overlaps, "gauss_newton", "(50)"),
        curve(fit.rescaled_overlaps, "residual", "rescaled", dashed=True),
    ]
    return (
        row,
        values_panel(fit.values, values, cast.label),
        overlaps_panel(lines, cast.label),
        fit.num_products,
    )


STUDY = Study.of(
    "wu-full-hessian", measure, {"laptop": (casts.SMALL_MLP,), "paper": (casts.MLP, *casts.DEEP)}
)
