from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.runner import (
    SCALES,
    Networks,
    StudyResult,
    Workshop,
    read_result,
    results_folder,
)
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import measured_of
from eigenscape_papers.wu import networks as wu_casts
from papers.tests.conftest import TINY, TINY_BN, block, inputs_of, numbers_of, top_vectors

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
    errors = [torch.linalg.norm(H - K) / torch.linalg.norm(H) for H, K in pairs]
    assert ours["wu.eq7.frobenius-error"] == pytest.approx(float(sum(errors) / 3), rel=1e-4)
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


def test_errors_with_batchnorm_less_those_without(
    ran: Callable[[str], StudyResult], tiny: Networks, shop: Workshop
) -> None:
    ours = numbers_of(ran(NAME))
    for name, order in (("spectral", 2), ("frobenius", "fro")):
        means = []
        for networks in (shop.networks(TINY_BN), tiny):
            pairs = [both(networks, layer) for layer in ("fc2", "fc3")]
            errors = [
                torch.linalg.norm(H - K, order) / torch.linalg.norm(H, order) for H, K in pairs
            ]
            means.append(float(sum(errors) / 2))
        gap = means[0] - means[1]
        assert ours[f"wu.fig29.batchnorm.{name}-error"] == pytest.approx(gap, abs=1e-4)


def test_each_network_has_errors_of_its_own() -> None:
    def row(label: str, kind: str, spectral: float) -> tuple[object, ...]:
        return (label, "fc1", kind, spectral, spectral + 0.1, 1.0, 0.5)

    casts = (wu_casts.MLP, wu_casts.LENET)
    rows = [row(casts[0].label, "kronecker", 0.2), row(casts[0].label, "ekfac", 9.0)]
    rows += [row(casts[1].label, "kronecker", value) for value in (0.4, 0.8)]
    ours = {name: found.ours for name, found in measured_of(casts, rows).items()}
    assert ours["wu.eq7.spectral-error"] == pytest.approx(0.2)
    assert ours["wu.eq7.frobenius-error"] == pytest.approx(0.3)
    assert ours["wu.eq7.lenet5.spectral-error"] == pytest.approx(0.6)
    assert ours["wu.eq7.lenet5.frobenius-error"] == pytest.approx(0.7)


@pytest.mark.parametrize("scale", SCALES)
def test_the_record_has_the_numbers_of_its_own_table(scale: str) -> None:
    """Claims that are newer than what was measured at paper scale were judged from its table."""
    result = read_result(results_folder() / f"{NAME}-{scale}.json")
    rows = list(zip(*result.sheets[0].columns.values(), strict=True))
    found = measured_of(STUDIES[NAME].settings[scale].casts, rows)
    # A table has six digits, and numbers of later claims are as exact as that.
    assert numbers_of(result) == pytest.approx({k: v.ours for k, v in found.items()}, abs=2e-6)


def test_values_and_overlaps_are_drawn_apart(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    values, overlaps = ran(NAME).pictures()[:2]
    assert [panel.title for panel in values.panels] == list(LAYERS)
    H, K = both(tiny, "fc2")
    drawn = values.panels[1].marks
    true = torch.linalg.eigvalsh(H).flip(0)
    assert drawn[-1].y == pytest.approx(true[: len(drawn[-1].y)].tolist(), rel=1e-4)  # on top
    assert drawn[0].hollow
    assert drawn[0].y[0] == pytest.approx(float(torch.linalg.norm(K, 2)), rel=1e-4)
    assert overlaps.panels[1].marks[0].y[8] == pytest.approx(overlap(H, K, 9), abs=1e-4)
    assert [mark.label for mark in drawn] == ["kronecker", "ekfac", "best pair", "H"]
