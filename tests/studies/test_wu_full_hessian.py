from collections.abc import Callable

import pytest
import torch

from eigenscape.analyses import full_approximation
from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Networks
from tests.studies.conftest import block, numbers_of

NAME = "wu-full-hessian"


def test_the_claims(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    names = [name for name, _ in tiny.model(0).named_parameters()]
    values = torch.linalg.eigvalsh(block(tiny, 0, *names)).flip(0)
    result = ran(NAME)
    table, panels = result.sheets[0].columns, result.pictures[0].panels
    drawn = {mark.label: mark.y for mark in panels[0].marks}
    assert table["λ₁"] == pytest.approx((float(values[0]),), rel=1e-5)
    assert drawn["H"] == pytest.approx(values[:15].tolist(), rel=1e-4)
    found = full_approximation(tiny.risk(0), num_pairs=15, tolerance=1e-4)
    assert drawn["(51)"] == pytest.approx(found.approximated.tolist(), rel=1e-4)
    lines = {mark.label: mark for mark in result.pictures[1].panels[0].marks}
    assert lines["(50)"].y == pytest.approx(found.overlaps.tolist(), rel=1e-4)
    assert lines["rescaled"].dashed  # or it would hide the other
    ratio = (found.approximated[:9] / values[:9]).log().mean().exp()
    ours = numbers_of(result)
    assert ours["wu.fig8.eigenvalues"] == pytest.approx(float(ratio), rel=1e-4)
    assert ours["wu.fig8.overlap"] == pytest.approx(float(found.overlaps[8]), rel=1e-6)
    gain = float(found.rescaled_overlaps[8] - found.overlaps[8])
    assert ours["wu.fig8.rescaled-is-better"] == pytest.approx(gain, abs=1e-8)
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
