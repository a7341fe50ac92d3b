"""Wu Figs 4, 18, 19: the spectra of E[M], E[xxᵀ] and H, at the start, along training, at the end.

E[M] has c − 1 large eigenvalues at the start and at a minimum with true labels, none that stand out
with random labels; H follows E[M]; E[xxᵀ] stays close to rank one all along.
"""

import torch
from torch import Tensor

from eigenscape.errors import UnsupportedModelError
from eigenscape.report import Axis, Line, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import SERIES, rounded, spectrum
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import Portrait, matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Networks, Workshop

_TOP = 20
_CLAIMS = (
    Claim(
        "wu.fig4a.initial.gap",
        "Fig. 4a",
        "place of the largest gap λ_i/λ_{i+1} among the first 20 eigenvalues of E[M] of the first "
        "layer, at the start, less the number of classes c (−1: after c − 1; 0: after c)",
        "a gap at c − 1 or c",
        low=-1,
        high=0,
        why="c − 1 by Theorem 4.1; one more where a class mean stands out. The text does not say "
        "which network: of F-200² the spectrum bends at 9 without a jump, while fc1 of LeNet5 has "
        "its largest ratio there at every kept epoch (Fig. 19).",
    ),
    Claim(
        "wu.fig4b.minimum.gap",
        "Fig. 4b",
        "the same at a minimum with true labels",
        "a gap at c − 1 or c",
        low=-1,
        high=0,
        why="As above.",
    ),
    Claim(
        "wu.fig4c.random-labels.no-gap",
        "Fig. 4c",
        "λ_{c−1}/λ_c of E[M] with random labels, over that with true labels, at a minimum",
        "no gap with random labels",
        high=0.7,
        why="A gap that is gone is smaller; how much the text does not say. 0.7 is a clear step.",
    ),
    Claim(
        "wu.fig4.similar-spectra",
        "Fig. 4",
        "correlation of the logarithms of the first 20 eigenvalues of E[M] and of H, smallest over "
        "the cases",
        "similar spectra",
        low=0.9,
        why="“Similar” is no number; 0.9 is high for 20 points that fall over decades.",
    ),
    Claim(
        "wu.fig18.rank-one-along",
        "Fig. 18, App. E.4",
        "λ₁/λ₂ of E[xxᵀ] of the second layer along training, the smallest",
        "always close to rank one",
        low=3.0,
        why="Their tables have no mean ratio under 3.8 (Table 7) at the end of training.",
    ),
    Claim(
        "wu.fig19.outliers-along",
        "Fig. 19, App. E.4",
        "share of kept epochs at which E[M] has its largest gap at c − 1 or c",
        "c or c − 1 outliers along the trajectory",
        low=0.5,
        why="Most of the trajectory; the text shows three moments.",
    ),
)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure spectra of the first layer in all cases, and of two layers along training."""
    true = workshop.networks(setting.casts[0])
    layers = matrix_layers(true.risk(true.cast.seeds[0]))
    chosen = layers[0]
    cases: dict[str, tuple[Networks, int]] = {
        "at the start": (true, 0),
        "at the minimum": (true, true.last),
    }
    if len(setting.casts) > 1:
        random = workshop.networks(setting.casts[1])
        cases["minimum, random labels"] = (random, random.last)
    seen = {
        name: _portrait(workshop, networks, chosen, epoch)
        for name, (networks, epoch) in cases.items()
    }
    c = true.data.num_classes or 0
    gaps = {name: gap_place(_values(p.kronecker.output_factor)) for name, p in seen.items()}
    measured = {
        "wu.fig4a.initial.gap": Measured(gaps["at the start"] - c),
        "wu.fig4b.minimum.gap": Measured(gaps["at the minimum"] - c),
        "wu.fig4.similar-spectra": Measured(min(_similarity(p) for p in seen.values())),
    }
    if "minimum, random labels" in seen and seen["at the minimum"].num_outputs >= c:
        sizes = [
            _ratio(_values(seen[name].kronecker.output_factor), c - 1)
            for name in ("minimum, random labels", "at the minimum")
        ]
        measured["wu.fig4c.random-labels.no-gap"] = Measured(sizes[0] / sizes[1])
    # Figs 18 and 19 follow LeNet5, Fig. 4 does not say whom.
    along, picture, rows = _trajectory(workshop, workshop.networks(_followed(setting)))
    table = sheet(
        "trajectory", "Along training", ("epoch", "layer", "λ₁/λ₂ of E[xxᵀ]", "gap of E[M]"), rows
    )
    products = sum(p.pairs.num_products for p in seen.values())
    return Outcome(
        measured | along, (_cases_picture(chosen, true.cast, seen), picture), (table,), (), products
    )


def _portrait(workshop: Workshop, networks: Networks, layer: str, epoch: int) -> Portrait:
    return workshop.portrait(networks, networks.cast.seeds[0], layer, num_pairs=_TOP, epoch=epoch)


def _followed(setting: Setting) -> Cast:
    return [cast for cast in setting.casts if cast.labels == "true"][-1]


def _trajectory(
    workshop: Workshop, true: Networks
) -> tuple[dict[str, Measured], Picture, list[tuple[object, ...]]]:
    layers = matrix_layers(true.risk(true.cast.seeds[0]))
    c = true.data.num_classes or 0
    hidden = [layer for layer in layers if layer.startswith("fc")] or list(layers)
    if len(layers) < 2:
        raise UnsupportedModelError(
            "`eigenscape study wu-spectra` looks at the input of a second layer; this network has "
            f"one, {layers[0]}. Take a deeper one."
        )
    epochs = sorted({0, *true.cast.keep_epochs, true.last})
    rows: list[tuple[object, ...]] = []
    ratios, places = [], []
    inputs: list[Line | Points] = []
    outputs: list[Line | Points] = []
    for place, epoch in enumerate(epochs):
        first = _portrait(workshop, true, hidden[0], epoch)
        later = _portrait(workshop, true, hidden[0] if hidden[0] != layers[0] else hidden[1], epoch)
        gap = gap_place(_values(first.kronecker.output_factor))
        ratios.append(later.inputs.ratio)
        places.append(gap - c in (-1, 0))
        rows.append((epoch, later.layer, later.inputs.ratio, gap))
        tint, label = SERIES[place % len(SERIES)], f"epoch {epoch}"
        inputs.append(spectrum(later.inputs.values[:_TOP].clamp_min(0), tint, label))
        outputs.append(spectrum(_values(first.kronecker.output_factor)[:_TOP], tint, label))
    picture = Picture(
        "along-training",
        f"Eigenvalues along training, {true.cast.label}",
        (
            Panel(inputs, Axis("index", whole=True), Axis("E[xxᵀ]", log=True), later.layer),
            Panel(outputs, Axis("index", whole=True), Axis("E[M]", log=True), hidden[0]),
        ),
        shows="Left, the input's autocorrelation keeps one large eigenvalue. Right, the output "
        "Hessian keeps as many large ones as there are classes, or one less.",
    )
    found = {
        "wu.fig18.rank-one-along": Measured(min(ratios)),
        "wu.fig19.outliers-along": Measured(sum(places) / len(places)),
    }
    return found, picture, rows


def _cases_picture(layer: str, cast: Cast, seen: dict[str, Portrait]) -> Picture:
    panels = []
    for name, portrait in seen.items():
        own = _values(portrait.kronecker.output_factor)[:_TOP]
        block = portrait.values[:_TOP]
        panels.append(
            Panel(
                [
                    spectrum(block / block[0], "hessian", "H / λ₁(H)"),
                    Points(
                        tuple(float(i + 1) for i in range(len(own))),
                        rounded(own / own[0]),
                        "gauss_newton",
                        "E[M] / λ₁(E[M])",
                        hollow=True,
                    ),
                ],
                Axis("index", whole=True),
                Axis("share of the first"),
                name,
            )
        )
    return Picture(
        "spectra",
        f"Spectra of E[M] and of the layer's Hessian, {layer} of {cast.label}",
        tuple(panels),
        shows="The two spectra fall alike because E[xxᵀ] is close to rank one.",
    )


def gap_place(values: Tensor, most: int = _TOP) -> int:
    """Return after how many eigenvalues the largest ratio of neighbours stands, first one left out.

    Args:
        values: Descending.
        most: Look at so many.

    Returns:
        The number of eigenvalues before the gap, 2 or more; of one or two eigenvalues, all.

    Examples:
        >>> gap_place(torch.tensor([100.0, 10.0, 9.0, 1.0, 0.9]))
        3
    """
    if len(values) < 3:
        return len(values)
    top = values[: most + 1].clamp_min(torch.finfo(values.dtype).tiny)
    ratios = top[:-1] / top[1:]
    return int(ratios[1:].argmax()) + 2


def _ratio(values: Tensor, place: int) -> float:
    return float(values[place - 1] / values[place].clamp_min(torch.finfo(values.dtype).tiny))


def _values(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix).flip(0).cpu()
    return values


def _similarity(portrait: Portrait) -> float:
    own = _values(portrait.kronecker.output_factor)
    count = min(_TOP, len(own), len(portrait.values))
    pair = torch.stack([own[:count].cpu(), portrait.values[:count].double().cpu()])
    return float(torch.corrcoef(pair.clamp_min(1e-12 * float(own[0])).log())[0, 1])


STUDY = Study(
    name="wu-spectra",
    paper="Wu",
    where="Figs 4, 18, 19; §4.4; App. E.4",
    title="Where do E[M], E[xxᵀ] and the layer's Hessian have their gaps?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_MLP_RANDOM)),
        "paper": Setting((casts.MLP, casts.MLP_RANDOM, casts.LENET)),
    },
    measure=measure,
    claims=_CLAIMS,
)
