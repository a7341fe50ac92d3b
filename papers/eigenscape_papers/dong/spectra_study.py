"""Limiting spectra of single blocks, which Dong leaves as future work, over simulated eigenvalues.

A block of rows i, j is (1/N) Σ w_n x_n x_nᵀ, and its eigenvalues follow a generalised
Marchenko–Pastur law: Dong's proofs need its second moment only (the norm), and here it is solved
for. Off-diagonal blocks of a linear model have negative weights, those of hidden units both signs.
"""

import torch
from torch import Tensor

from eigenscape.records import Panel, Picture
from eigenscape_papers.dong._pictures import law_panel
from eigenscape_papers.runner import Measured, Outcome, Setting, Study, Workshop, sheet
from eigenscape_papers.theory import SpectralLaw, block_law

_CASES = (
    ("linear", "diagonal", (0, 0)),
    ("linear", "off-diagonal", (0, 1)),
    ("hidden", "diagonal", (0, 0)),
    ("hidden", "off-diagonal", (0, 1)),
)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Simulate one block of each kind for every γ, and solve for its law."""
    options = setting.options
    d, C, m = options["dimension"], options["num_classes"], options["num_units"]
    pictures, rows = [], []
    worst: dict[str, float] = {}
    for index, (model, blocks, (i, j)) in enumerate(_CASES):
        panels = []
        for ratio in options["ratios"]:
            generator = torch.Generator().manual_seed(index)
            x = _normal(generator, round(d / ratio), d)
            if model == "linear":
                weights = linear_weights(x, _normal(generator, C, d) / d**0.5, i, j)
                law = block_law(gamma=ratio, num_classes=C, rows=(i, j), **options["law"])
            else:
                V = _normal(generator, C, m) / m**0.5
                weights = hidden_weights(x, _normal(generator, m, d) / d**0.5, V, i, j)
                law = block_law(gamma=ratio, output=V, rows=(i, j), **options["law"])
            block = (x * weights[:, None]).T @ x / len(x)
            values = torch.linalg.eigvalsh(block.to(workshop.device)).cpu()
            distance = law.wasserstein(values) / float(values.square().mean().sqrt())
            key = f"dong.spectra.{model}.{blocks}"
            worst[key] = max(worst.get(key, 0.0), distance)
            rows.append((model, blocks, ratio, *_ends(law, values), distance))
            panels.append(law_panel(law, values, title=f"γ = {ratio:g}"))
        pictures.append(_picture(model, blocks, panels, C, d))
    names = ("model", "block", "γ", "least", "theory", "largest", "theory ", "distance")
    table = sheet("spectra", "Ends of the spectra, and distances from the laws", names, rows)
    return Outcome(
        {key: Measured(value) for key, value in worst.items()}, tuple(pictures), (table,)
    )


def _picture(model: str, blocks: str, panels: list[Panel], C: int, d: int) -> Picture:
    signs = {
        ("linear", "off-diagonal"): " All eigenvalues are negative.",
        ("hidden", "off-diagonal"): " Eigenvalues may have either sign.",
    }
    return Picture(
        f"{model}-{blocks}",
        f"Eigenvalues of one {blocks} block, {model} {'model' if model == 'linear' else 'layer'}, "
        f"C = {C}",
        tuple(panels),
        shows=f"One simulated block for each γ = d/N, d = {d}; the curves are solved for without "
        f"it.{signs.get((model, blocks), '')}",
    )


def linear_weights(x: Tensor, V: Tensor, i: int, j: int) -> Tensor:
    """Return the weights of x xᵀ in the block of rows i, j of V, cross-entropy.

    Args:
        x: Samples (N, d).
        V: Weights (C, d).
        i: A row.
        j: A row.

    Returns:
        p_i(1 − p_i) or −p_i p_j, for every sample.
    """
    p = (x @ V.T).softmax(1)
    return p[:, i] * ((1.0 if i == j else 0.0) - p[:, j])


def hidden_weights(x: Tensor, W: Tensor, V: Tensor, i: int, j: int) -> Tensor:
    """Return the weights of x xᵀ in the block of hidden units i, j, ReLU and cross-entropy.

    Args:
        x: Samples (N, d).
        W: Weights of the hidden layer (m, d).
        V: Weights of the output layer (C, m).
        i: A unit.
        j: A unit.

    Returns:
        The covariance of columns i and j of V under p where both are active, else 0.
    """
    u = x @ W.T
    p = (u.relu() @ V.T).softmax(1)
    covariance = p @ (V[:, i] * V[:, j]) - (p @ V[:, i]) * (p @ V[:, j])
    return covariance * ((u[:, i] > 0.0) & (u[:, j] > 0.0))


def _ends(law: SpectralLaw, values: Tensor) -> tuple[float, float, float, float]:
    """Return the least and the largest eigenvalue, each beside theory, the atom left out."""
    kept = values[values.abs() > 1e-9 * values.abs().max()] if law.zero_mass > 0.0 else values
    return float(kept.min()), law.lower, float(kept.max()), law.upper


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


STUDY = Study.of("dong-spectra", measure)
