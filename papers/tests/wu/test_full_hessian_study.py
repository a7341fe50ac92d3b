import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn

from eigenscape_papers.datasets import DataSet
from eigenscape_papers.runner import Networks, Own, Study, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import full_approximation
from papers.tests.conftest import TINY, block, numbers_of

NAME = "wu-full-hessian"


def test_the_claims(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    names = [name for name, _ in tiny.model(0).named_parameters()]
    values = torch.linalg.eigvalsh(block(tiny, 0, *names)).flip(0)
    result = ran(NAME)
    table, panels = result.sheets[0].columns, result.pictures()[0].panels
    drawn = {mark.label: mark.y for mark in panels[0].marks}
    assert table["λ₁"] == pytest.approx((float(values[0]),), rel=1e-5)
    assert drawn["H"] == pytest.approx(values[:15].tolist(), rel=1e-4)
    found = full_approximation(tiny.risk(0), num_pairs=15, tolerance=1e-4)
    assert drawn["(51)"] == pytest.approx(found.approximated.tolist(), rel=1e-4)
    lines = {mark.label: mark for mark in result.pictures()[1].panels[0].marks}
    assert lines["(50)"].y == pytest.approx(found.overlaps.tolist(), rel=1e-4)
    assert lines["rescaled"].dashed  # or it would hide the other
    ratio = (found.approximated[:9] / values[:9]).log().mean().exp()
    ours = numbers_of(result)
    assert ours["wu.fig8.eigenvalues"] == pytest.approx(float(ratio), rel=1e-4)
    assert ours["wu.fig8.overlap"] == pytest.approx(float(found.overlaps[8]), rel=1e-6)
    gain = float(found.rescaled_overlaps[8] - found.overlaps[8])
    assert ours["wu.fig8.rescaled-is-better"] == pytest.approx(gain, abs=1e-8)
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_other_layers_of_ones_own_network_are_held_fixed(
    small_study: Callable[[str], Study], empty_shop: Workshop
) -> None:
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))

    def build(seed: int) -> nn.Module:
        norms = [nn.LayerNorm(4) for _ in range(7)]
        return nn.Sequential(nn.Linear(3, 4), *norms, nn.ReLU(), nn.Linear(4, 2))

    own = Own(build, DataSet("x", x, (x[:, 0] > 0).long(), 2))
    cast = dataclasses.replace(TINY, model="net.py:build", samples=None, own=own)
    result = run_study(small_study(NAME), empty_shop, own=cast)
    names = [f"{layer}.{kind}" for layer in (0, 9) for kind in ("weight", "bias")]
    H = block(empty_shop.networks(cast), 0, *names)
    values = torch.linalg.eigvalsh(H).flip(0)
    assert result.sheets[0].columns["λ₁"] == pytest.approx((float(values[0]),), rel=1e-5)
    assert result.notes[-1] == (
        "The Hessian of net.py:build (digits) is that of linear layers and convolutions; held "
        "fixed are the parameters of 1, 2, 3, 4, 5, 6 and 1 more."
    )


def test_nothing_of_the_papers_networks_is_held_fixed(ran: Callable[[str], StudyResult]) -> None:
    assert not [note for note in ran(NAME).notes if "held fixed" in note]
