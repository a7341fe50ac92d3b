import math
from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.runner import SCALES, StudyResult, read_result, results_folder
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.theory import finite_width_curve
from eigenscape_papers.theory._two_layer_samples import draw_inputs
from eigenscape_papers.wu import rectified_gap
from papers.tests.conftest import THEORY, numbers_of, top_vectors

NAME = "wu-two-layer"


def test_the_claims(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    options = {"num_classes": THEORY["num_classes"], "num_samples": THEORY["num_samples"]}
    gaussian, rectified = (
        finite_width_curve(THEORY["widths"], **options, seeds=range(2), inputs=inputs)
        for inputs in ("gaussian", "rectified")
    )
    gap = gaussian.ratios[1] / gaussian.ratios[0]
    assert ours["wu.theorem4.1.gap"] == pytest.approx(float(gap.mean()))
    assert ours["wu.theorem4.1.space"] == pytest.approx(float(gaussian.row_overlaps[1].mean()))
    rows = float(rectified.row_overlaps[1].mean())
    assert ours["thesis.theorem4.4.2.rows"] == pytest.approx(rows)
    assert ours["thesis.theorem4.4.2.plateau"] == pytest.approx(rows - 0.8290, abs=1e-3)
    firing = float(rectified.firing_overlaps[1].mean())
    assert ours["thesis.theorem4.4.2.corrected"] == pytest.approx(firing)
    ratios = rectified.ratios.mean(1)
    assert ours["thesis.theorem4.4.2.gap"] == pytest.approx(float(ratios[1] / ratios[0]))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_claims_of_the_thesis_are_not_wus() -> None:
    assert {claim.paper for claim in STUDIES[NAME].claims} == {"wu", "thesis"}


def test_spread_is_over_seeds(ran: Callable[[str], StudyResult]) -> None:
    spreads = {f.id: f.spread for f in ran(NAME).findings}
    assert spreads["wu.theorem4.1.space"] > 0
    assert spreads["thesis.theorem4.4.1.decoupling"] is None  # measured once


def network(share: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return W1, W2, inputs, and the rows of ∇²ℓ = RᵀR at the hidden layer (samples, c, n)."""
    n, d = (size // share for size in THEORY["decoupling"])
    c, N = THEORY["num_classes"], THEORY["num_samples"] // 4
    draw = torch.Generator().manual_seed(0)
    W1 = torch.randn(n, d, generator=draw) / d**0.5
    W2 = torch.randn(c, n, generator=draw) / n**0.5
    x = torch.cat(list(draw_inputs(d, N, "rectified", seed=0)))
    u = x @ W1.T
    p = (u.relu() @ W2.T).softmax(1)
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    values, vectors = torch.linalg.eigh(A)
    roots = vectors.mT * values.clamp_min(0).sqrt()[:, :, None]
    return W1, W2, x, roots @ W2 * (u > 0)[:, None, :]


def test_the_output_hessian_has_the_space_of_its_limit(ran: Callable[[str], StudyResult]) -> None:
    """M* is the mean over activations drawn apart from the logits: π_j π_k T_jk, π_j T_jj."""
    W1, W2, x, R = network(1)
    k = len(W2) - 1
    M = torch.einsum("sci,scj->ij", R, R) / len(x)
    p = ((x @ W1.T).relu() @ W2.T).softmax(1)
    T = W2.T @ (p.mean(0).diag() - p.T @ p / len(x)) @ W2
    spread = math.sqrt((math.pi - 1) / (2 * math.pi))
    pi = torch.special.ndtr(W1.sum(1) / math.sqrt(2 * math.pi) / (spread * W1.norm(dim=1)))
    limit = torch.outer(pi, pi) * T
    limit.diagonal().copy_(pi * T.diagonal())
    overlap = (top_vectors(M, k).T @ top_vectors(limit, k)).square().sum() / k
    ours = numbers_of(ran(NAME))["thesis.theorem4.4.2.space"]
    assert ours == pytest.approx(float(overlap), abs=1e-5)


def test_the_gap_of_the_layers_hessian(ran: Callable[[str], StudyResult]) -> None:
    c, gaps = THEORY["num_classes"], []
    for share in (1, 4):
        _, _, x, R = network(share)
        rows = torch.einsum("sci,sj->scij", R, x).flatten(2).flatten(0, 1)
        values = torch.linalg.eigvalsh(rows.T @ rows).flip(0)
        gaps.append(float(values[c - 1] / values[c - 2]))
    ours = numbers_of(ran(NAME))["thesis.theorem4.4.1.gap"]
    assert ours == pytest.approx(gaps[0] / gaps[1], rel=1e-5)


@pytest.mark.parametrize("scale", SCALES)
def test_the_record_has_the_gap_of_its_own_table(scale: str) -> None:
    """The claim is newer than what was measured at paper scale, and was judged from its table."""
    result = read_result(results_folder() / f"{NAME}-{scale}.json")
    rows = list(zip(*result.sheets[0].columns.values(), strict=True))
    ours = numbers_of(result)["thesis.theorem4.4.2.gap"]
    assert ours == pytest.approx(rectified_gap(rows).ours, rel=1e-5)  # a table has six digits
