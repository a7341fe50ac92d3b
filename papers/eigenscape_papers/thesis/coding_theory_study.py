"""Thesis Theorems 2.3.2 and 2.3.6: a dictionary beats the truth, and masking takes that away.

Letters as in `eigenscape_papers.representations`: A the truth, σ the noise, σ_z the scale of codes,
M what is decoded from.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from eigenscape.records import Axis, Line, Mark, Panel, Picture, Points
from eigenscape_papers.representations import (
    best_sparse_losses,
    coherence,
    largest_chi_square_bound,
    masked_losses,
    masked_oracle_loss,
    net_dictionary,
    orthogonal_matching_pursuit,
    pursuit_guarantee,
    random_dictionary,
    recovery_error,
    sparse_samples,
)
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    rounded,
    sheet,
)

_SCALES = (1.0, 10.0, 100.0, 1000.0)
_REFERENCE = (3.25, 2.77, 2.63, 2.62)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Try every support for the first theorem, and many scales for the second."""
    options = setting.options
    overfit, losses = _overfitting(options)
    masked, rows = _masking(options)
    measured = (
        overfit
        | masked
        | {
            "thesis.theorema.1.1.chosen": _chosen(options),
            "thesis.lemmaa.1.2.largest": _largest(options),
        }
    )
    names = ("σ_z", "masked loss", "standard error", "oracle", "Bayes bound", "support found")
    sheets = (
        sheet("masked", "Masked loss of the truth", names, rows),
        sheet("overfit", "Loss in units of σ²", ("dictionary", "atoms", "k", "loss"), losses),
    )
    return Outcome(measured, (_picture(rows),), sheets)


def _overfitting(options: Mapping[str, Any]) -> tuple[dict[str, Measured], list[tuple[Any, ...]]]:
    sigma = options["noise"]
    A = random_dictionary(options["num_atoms"], options["dimension"])
    Y, _ = sparse_samples(A, options["num_samples"], sparsity=1, noise=sigma)
    net = net_dictionary(A, num_directions=math.ceil(math.pi / sigma), clearance=sigma / 2)
    rows = [
        (name, len(B), k, float(best_sparse_losses(Y, B, sparsity=k).mean()) / sigma**2)
        for name, B, k in (("truth", A, 1), ("truth", A, 2), ("net", net, 1))
    ]
    one, two, ours = (row[3] for row in rows)
    far = recovery_error(A, net, metric="squared") / sigma**2
    return {
        "thesis.theorem2.3.2.two-more": Measured(one - two),
        "thesis.theorem2.3.2.net-wins": Measured(one - ours),
        "thesis.theorem2.3.2.net-is-far": Measured(far),
    }, rows


def _masking(options: Mapping[str, Any]) -> tuple[dict[str, Measured], list[tuple[float, ...]]]:
    """Run the setting of the reference: d = 60, p = 90, k = 2, |M| = 50, σ = 0.5."""
    A, unmasked, sigma = random_dictionary(90, 60), torch.arange(50), 0.5
    oracle = masked_oracle_loss(A, unmasked, sparsity=2, noise=sigma)
    rows: list[tuple[float, ...]] = []
    slack = []
    for scale in _SCALES:
        Y, codes = sparse_samples(
            A, options["num_masked"], sparsity=2, noise=sigma, scale=scale, seed=1
        )
        losses = masked_losses(Y, A, unmasked, sparsity=2)
        bayes = masked_oracle_loss(A, unmasked, sparsity=2, noise=sigma, scale=scale)
        error = float(losses.std()) / math.sqrt(len(losses))
        chosen = orthogonal_matching_pursuit(Y[:, unmasked], A[:, unmasked], sparsity=2).support
        right = (chosen.sort(1).values == codes.support.sort(1).values).all(1)
        loss = float(losses.mean())
        rows.append((scale, loss, error, oracle, bayes, float(right.double().mean())))
        slack.append((loss - bayes) / error)
    gaps = [row[1] - oracle for row in rows]
    differences = [abs(row[1] / theirs - 1) for row, theirs in zip(rows, _REFERENCE, strict=True)]
    return {
        "thesis.theorem2.3.6.gap": Measured(gaps[-1] / oracle, rows[-1][2] / oracle),
        "thesis.theorem2.3.6.falls": Measured(gaps[-1] / gaps[0]),
        "thesis.theorem2.3.6.bayes": Measured(min(slack)),
        "thesis.theorem2.3.6.support": Measured(rows[-1][5]),
        "thesis.theorem2.3.6.independent": Measured(max(differences)),
    }, rows


def _chosen(options: Mapping[str, Any]) -> Measured:
    """Give every entry exactly the size that the theorem asks for."""
    A, sigma, k = random_dictionary(40, 400), 0.1, 2
    size, chance = pursuit_guarantee(
        noise=sigma, sparsity=k, num_atoms=40, mu=coherence(A), eta=0.5
    )
    draw, n = torch.Generator().manual_seed(0), options["num_masked"] // 4
    support = torch.rand(n, 40, generator=draw).topk(k).indices
    signs = torch.randint(2, (n, k, 1), generator=draw).double() * 2 - 1
    noise = torch.randn(n, 400, generator=draw, dtype=torch.float64)
    Y = size * (signs * A[support]).sum(1) + sigma * noise
    chosen = orthogonal_matching_pursuit(Y, A, sparsity=k).support
    right = (chosen.sort(1).values == support.sort(1).values).all(1).double().mean()
    return Measured(float(right) - chance)


def _largest(options: Mapping[str, Any]) -> Measured:
    draw, n = torch.Generator().manual_seed(0), options["num_masked"] // 10
    ratios = [
        float(torch.randn(n, count, generator=draw).square().amax(1).mean())
        / largest_chi_square_bound(count)
        for count in (1, 10, 100, 1000)
    ]
    return Measured(max(ratios))


def _picture(rows: list[tuple[float, ...]]) -> Picture:
    x = tuple(row[0] for row in rows)
    columns = list(zip(*rows, strict=True))
    marks: list[Mark] = [
        Points(x, rounded(columns[1]), "hessian", "the truth", y_error=rounded(columns[2])),
        Line(x, rounded(columns[3]), "muted", "oracle"),
        Line(x, rounded(columns[4]), "gauss_newton", "Bayes bound", dashed=True),
    ]
    drawn = [Points(x, rounded(columns[5]), "hessian")]
    scale = Axis("scale of codes σ_z", log=True)
    return Picture(
        "masked-loss",
        "The masked loss of the true dictionary",
        (
            Panel(marks, scale, Axis("masked loss")),
            Panel(drawn, scale, Axis("support found", limits=(0.0, 1.05))),
        ),
        shows="As signals grow, matching pursuit finds every support, and the masked loss of the "
        "truth meets the bound that no dictionary can beat.",
    )


STUDY = Study.of("thesis-coding-theory", measure)
