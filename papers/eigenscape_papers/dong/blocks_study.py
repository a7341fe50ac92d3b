"""Dong Figs 4 to 7: Hessians of random linear and one-hidden-layer models, as classes are added.

Squared errors leave strict zeros beside the diagonal of a linear model and of an output layer.
Cross-entropy does not, and there the blocks stand out as C grows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.records import Panel, Picture
from eigenscape_papers.datasets import load
from eigenscape_papers.dong._pictures import block_panel
from eigenscape_papers.runner import Measured, Outcome, Setting, Study, Workshop, sheet
from eigenscape_papers.theory import linear_block_norms, linear_hessian, one_hidden_layer_hessian

LOSSES = {"mse": "squared-error", "ce": "cross-entropy"}
_FIGURES = {("linear", "mse"): 4, ("linear", "ce"): 5, ("network", "mse"): 6, ("network", "ce"): 7}
_STRICT = ("linear.mse", "output.mse")
_GROWING = ("linear.ce", "hidden.mse", "hidden.ce", "output.ce")


@dataclass(frozen=True)
class Scores:
    """How block-diagonal a matrix is.

    Attributes:
        ratio: Root mean square norm of off-diagonal blocks over that of diagonal ones; 1 for a
            matrix whose blocks are all alike.
        share: Share of the squared norm inside the diagonal blocks; 1/k for k blocks all alike.
    """

    ratio: float
    share: float


def scores_of(norms: Tensor) -> Scores:
    """Return the two scores of equal blocks from their norms.

    Args:
        norms: Frobenius norms (k, k), k at least 2.

    Returns:
        The scores.

    Examples:
        >>> scores_of(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        Scores(ratio=0.5, share=0.8)
    """
    squares = norms.double().square()
    k = len(squares)
    inside = float(squares.diagonal().sum())
    outside = float(squares.fill_diagonal_(0.0).sum())
    return Scores(((outside / (k - 1)) / inside) ** 0.5, inside / (inside + outside))


def norms_of(matrix: Tensor, num_blocks: int) -> Tensor:
    """Return the Frobenius norms of all blocks of a matrix of equal blocks.

    Args:
        matrix: A square matrix.
        num_blocks: Blocks in a row.

    Returns:
        The norms (k, k), float64.

    Examples:
        >>> norms_of(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), 2)
        tensor([[3., 4.],
                [0., 1.]], dtype=torch.float64)
    """
    size = len(matrix) // num_blocks
    rows = [
        row.unflatten(1, (num_blocks, size)).norm(dim=(0, 2), dtype=torch.float64)
        for row in matrix.split(size)
    ]
    return torch.stack(rows)


@dataclass(frozen=True)
class NetworkScores:
    """How the Hessian of a network with one hidden layer is built.

    Attributes:
        hidden: Of the blocks of hidden units, H_ww.
        output: Of the blocks of output neurons, H_vv.
        cross: ‖H_wv‖² over ‖H_ww‖ ‖H_vv‖: how heavy the part between the layers is.
        stripes: Share of ‖H_wv‖² between a unit's incoming weights and its own outgoing ones, which
            are every m-th column; 1/m where there are no stripes.
    """

    hidden: Scores
    output: Scores
    cross: float
    stripes: float


def network_scores(H: Tensor, hidden: Tensor, output: Tensor) -> NetworkScores:
    """Return the scores of the whole Hessian of a network with one hidden layer.

    Args:
        H: As `one_hidden_layer_hessian` makes it.
        hidden: W (m, d).
        output: V (C, m).

    Returns:
        The scores.
    """
    (m, d), C = hidden.shape, len(output)
    cut = m * d
    inner, outer = norms_of(H[:cut, :cut], m), norms_of(H[cut:, cut:], C)
    between = [
        rows.view(d, C, m).norm(dim=(0, 1), dtype=torch.float64).square()
        for rows in H[:cut, cut:].split(d)
    ]
    squares = torch.stack(between)
    total = float(squares.sum())
    return NetworkScores(
        scores_of(inner),
        scores_of(outer),
        total / float(inner.norm() * outer.norm()),
        float(squares.trace()) / total,
    )


def network_panel(H: Tensor, hidden: Tensor, title: str, num_cells: int = 72) -> Panel:
    """Return the whole Hessian of a network with one hidden layer as a panel, over three decades.

    Args:
        H: As `one_hidden_layer_hessian` makes it.
        hidden: W (m, d).
        title: Of the panel.
        num_cells: Cells in a row.

    Returns:
        The panel.
    """
    m, d = hidden.shape
    cut = m * d
    sizes = (*[d] * m, *[m] * ((len(H) - cut) // m))
    names = ((0, "W"), (cut, "V"))
    return block_panel(H, sizes=sizes, title=title, names=names, num_cells=num_cells, log=True)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Make the Hessians of all cases, and score their blocks."""
    options = setting.options
    scores: dict[str, dict[int, Scores]] = {}
    zeros = dict.fromkeys(_STRICT, 0.0)
    panels: dict[tuple[str, str], list[Panel]] = {case: [] for case in _FIGURES}
    below: dict[str, list[Panel]] = {name: [] for name in LOSSES}
    for C in options["classes"]:
        data = load("gaussian", dimension=options["dimension"], num_classes=C, per_class=1)
        x = data.inputs.to(workshop.device, torch.float32)
        y = data.targets.to(workshop.device)
        for name, loss in LOSSES.items():
            targets = y if name == "ce" else torch.nn.functional.one_hot(y, C).to(x)
            V = lecun_weights(C, x.shape[1]).to(x)
            shown = min(C, options["shown"])
            H, norms = _linear(x, V, targets, loss, shown)
            kinds = {f"linear.{name}": norms}
            panels["linear", name].append(_panel(H, shown, C))
            shapes = ((options["num_units"], x.shape[1]), (C, options["num_units"]))
            W, V = (lecun_weights(*shape).to(x) for shape in shapes)
            H = one_hidden_layer_hessian(x, W, V, targets, loss=loss)
            cut = W.numel()
            hidden, output = H[:cut, :cut], H[cut:, cut:]
            kinds[f"hidden.{name}"] = norms_of(hidden, len(W))
            kinds[f"output.{name}"] = norms_of(output, C)
            panels["network", name].append(_panel(hidden, len(W), C, f"hidden layer, C = {C}"))
            below[name].append(_panel(output, C, C, f"output layer, C = {C}"))
            for kind, one in kinds.items():
                scores.setdefault(kind, {})[C] = scores_of(one)
                if kind in zeros:
                    zeros[kind] = max(zeros[kind], float(one.clone().fill_diagonal_(0.0).max()))
    for name in LOSSES:
        panels["network", name] += below[name]
    pictures = tuple(_picture(case, one) for case, one in panels.items())
    rows = [(kind, C, s.ratio, s.share) for kind, one in scores.items() for C, s in one.items()]
    names = ("blocks", "C", "off-diagonal / diagonal", "share inside")
    table = sheet("scores", "Norms of blocks", names, rows)
    return Outcome(_numbers(scores, zeros), pictures, (table,))


def _linear(x: Tensor, V: Tensor, y: Tensor, loss: str, shown: int) -> tuple[Tensor, Tensor]:
    """Return the Hessian's corner of the first classes, and the norms of all blocks."""
    norms = linear_block_norms(x, V, y, loss=loss)
    if shown == len(V):
        return linear_hessian(x, V, y, loss=loss), norms
    size, N = x.shape[1], len(x)
    H = x.new_zeros(shown * size, shown * size)
    blocks = H.view(shown, size, shown, size)
    if loss == "squared-error":
        blocks.diagonal(dim1=0, dim2=2).add_((x.T @ x / N)[:, :, None])
        return H, norms
    p = (x @ V.T).softmax(1)
    for c in range(shown):
        weights = -p[:, c, None] * p[:, :shown]
        weights[:, c] += p[:, c]
        blocks[c] = torch.einsum("nk,nc,nl->kcl", x, weights / N, x)
    return H, norms


def _numbers(by_kind: dict[str, dict[int, Scores]], zeros: dict[str, float]) -> dict[str, Measured]:
    stem = {}
    for kind in by_kind:
        blocks, _, loss = kind.partition(".")
        figure = _FIGURES["linear" if blocks == "linear" else "network", loss]
        stem[kind] = f"dong.fig{figure}.{blocks}-{loss}"
    measured = {f"{stem[kind]}.zero": Measured(value) for kind, value in zeros.items()}
    for kind in _GROWING:
        ratios = [scores.ratio for scores in by_kind[kind].values()]
        measured[f"{stem[kind]}.ratio"] = Measured(ratios[-1])
        measured[f"{stem[kind]}.clearer"] = Measured(ratios[-1] / ratios[0])
    return measured


def lecun_weights(rows: int, columns: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw weights of a layer, float32, with LeCun's variance.

    Args:
        rows: Outputs.
        columns: Inputs.
        generator: Draws them; by default one that gives the same for the same sizes.

    Returns:
        The weights (rows, columns).
    """
    generator = generator or torch.Generator().manual_seed(0)
    drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float32)
    return drawn / math.sqrt(columns)


def _panel(H: Tensor, blocks: int, C: int, title: str = "") -> Panel:
    first = f", first {blocks} classes" if not title and blocks < C else ""
    sizes = (len(H) // blocks,) * blocks
    return block_panel(H, sizes=sizes, title=title or f"C = {C}{first}", num_cells=50)


def _picture(case: tuple[str, str], panels: list[Panel]) -> Picture:
    model, loss = case
    what = "a linear model" if model == "linear" else "a network with one hidden layer"
    words = {"mse": "squared errors", "ce": "cross-entropy"}[loss]
    trend = {
        ("linear", "mse"): "Blocks beside the diagonal are strictly zero, for every C.",
        ("linear", "ce"): "Blocks beside the diagonal fade as classes are added.",
        ("network", "mse"): "Hidden units uncouple as classes are added; output neurons are "
        "strictly apart.",
        ("network", "ce"): "Both layers become block-diagonal as classes are added.",
    }[case]
    return Picture(
        f"fig{_FIGURES[case]}-{model}-{loss}",
        f"Fig. {_FIGURES[case]}: Hessian of {what}, {words}",
        tuple(panels),
        shows=f"{trend} A cell is the largest magnitude in its part of the matrix; the darkest "
        "colour is that of nine tenths of the rows.",
    )


STUDY = Study.of("dong-blocks", measure)
