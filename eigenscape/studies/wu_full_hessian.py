"""Wu Fig. 8: top eigenpairs of the whole Hessian from the stacked output Hessian (44)–(51)."""

import torch

from eigenscape.analyses import full_approximation
from eigenscape.report import Axis, Panel, Picture
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import curve, spectrum
from eigenscape.studies._tables import sheet
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
        "(50) takes T u_i for eigenvectors, which needs inputs of one norm in all layers",
        low=-0.05,
        why="Not of the paper: leaving its last step out should not make the fit worse.",
    ),
)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Approximate the whole Hessian of the first network of each cast."""
    rows, panels, products = [], [], 0
    for cast in setting.casts:
        networks = workshop.networks(cast)
        c = networks.data.num_classes or 2
        risk = networks.risk(cast.seeds[0])
        outputs = sum(risk.space.shapes[f"{name}.weight"][0] for name in matrix_layers(risk))
        count = min(setting.options["num_pairs"], outputs)  # (44) has no more eigenvectors
        found = full_approximation(risk, num_pairs=count, tolerance=1e-4)
        products += found.num_products
        top = min(c - 1, len(found.values))
        logs = (found.approximated[:top] / found.values[:top].cpu()).clamp_min(1e-12).log()
        ratio = float(torch.exp(logs.mean()))
        own = float(found.overlaps[top - 1])
        better = float(found.rescaled_overlaps[top - 1])
        rows.append((cast.label, ratio, own, better, float(found.values[0])))
        panels += [
            Panel(
                [
                    spectrum(found.values, "hessian", "H"),
                    spectrum(found.approximated, "gauss_newton", "(51)"),
                ],
                Axis("index", whole=True),
                Axis("eigenvalue", log=True),
                cast.label,
            ),
            Panel(
                [
                    curve(found.overlaps, "gauss_newton", "(50)"),
                    curve(found.rescaled_overlaps, "residual", "rescaled"),
                ],
                Axis("k", whole=True),
                Axis("overlap with H", limits=(0, 1.02)),
                cast.label,
            ),
        ]
    measured = {
        "wu.fig8.eigenvalues": Measured(max((r[1] for r in rows), key=lambda r: max(r, 1 / r))),
        "wu.fig8.overlap": Measured(min(r[2] for r in rows)),
        "wu.fig8.rescaled-is-better": Measured(min(r[3] - r[2] for r in rows)),
    }
    names = ("network", "λ̂/λ, first c − 1", "overlap (50)", "overlap rescaled", "λ₁")
    picture = Picture(
        "full-hessian",
        "Top eigenvalues and eigenspace of the whole Hessian, and their approximation",
        tuple(panels),
        shows="The approximation knows E[M] of all layers together and the mean input of each.",
    )
    return Outcome(
        measured, (picture,), (sheet("networks", "Every network", names, rows),), (), products
    )


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
