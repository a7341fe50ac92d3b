from collections.abc import Callable

import pytest
import torch

from eigenscape.report import StudyResult
from eigenscape.studies import Networks, Workshop
from tests.studies.conftest import TINY, TINY_BN, block, inputs_of, numbers_of, top_vectors

NAME = "wu-approximation"
LAYERS = ("fc1", "fc2", "fc3")


def both(networks: Networks, layer: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return H and E[M] ⊗ E[xxᵀ] of a layer of seed 0."""
    x = inputs_of(networks, 0, layer)
    product = torch.kron(block(networks, 0, f"{layer}.bias"), x.T @ x / len(x))
    return block(networks, 0, f"{layer}.weight"), product


def overlap(H: torch.Tensor, K: torch.Tensor, k: int) -> float:
    return float((top_vectors(H, k).T @ top_vectors(K, k)).square().sum() / k)


def test_the_claims(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    ours = numbers_of(ran(NAME))
    pairs = [both(tiny, layer) for layer in LAYERS]
    errors = [torch.linalg.norm(H - K, 2) / torch.linalg.norm(H, 2) for H, K in pairs]
    assert ours["wu.eq7.spectral-error"] == pytest.approx(float(sum(errors) / 3), rel=1e-4)
    ratios = [float(torch.linalg.norm(K, 2) / torch.linalg.norm(H, 2)) for H, K in pairs]
    furthest = max(ratios, key=lambda r: max(r, 1 / r))
    assert ours["wu.fig2.eigenvalue"] == pytest.approx(furthest, rel=1e-4)
    least = min(overlap(H, K, 9) for H, K in pairs)
    assert ours["wu.fig2.overlap"] == pytest.approx(least, abs=1e-4)


def test_batchnorm_is_compared_layer_by_layer(
    ran: Callable[[str], StudyResult], tiny: Networks, shop: Workshop
) -> None:
    table = ran(NAME).sheets[0].columns
    rows = list(zip(table["networks"], table["layer"], table["overlap of top 9"], strict=True))
    known = {
        (label, layer): value
        for (label, layer, value), name in zip(rows, table["approximation"], strict=True)
        if name == "kronecker"
    }
    gaps = [known[TINY_BN.label, layer] - known[TINY.label, layer] for layer in ("fc2", "fc3")]
    ours = numbers_of(ran(NAME))["wu.fig29.batchnorm.overlap"]
    assert ours == pytest.approx(sum(gaps) / 2, abs=1e-5)
    H, K = both(shop.networks(TINY_BN), "fc2")
    assert known[TINY_BN.label, "fc2"] == pytest.approx(overlap(H, K, 9), abs=1e-4)


def test_values_and_overlaps_are_drawn_apart(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    values, overlaps = ran(NAME).pictures[:2]
    assert [panel.title for panel in values.panels] == list(LAYERS)
    H, K = both(tiny, "fc2")
    drawn = values.panels[1].marks
    true = torch.linalg.eigvalsh(H).flip(0)
    assert drawn[-1].y == pytest.approx(true[: len(drawn[-1].y)].tolist(), rel=1e-4)  # on top
    assert drawn[0].hollow
    assert drawn[0].y[0] == pytest.approx(float(torch.linalg.norm(K, 2)), rel=1e-4)
    assert overlaps.panels[1].marks[0].y[8] == pytest.approx(overlap(H, K, 9), abs=1e-4)
    assert [mark.label for mark in drawn] == ["kronecker", "ekfac", "best pair", "H"]
