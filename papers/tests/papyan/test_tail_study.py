import dataclasses

import pytest
import torch

from eigenscape.curvature import GaussNewton
from eigenscape_papers.papyan import power_tail
from eigenscape_papers.papyan.tail_study import _numbers
from eigenscape_papers.papyan.whole_spectra import held_out_risk
from eigenscape_papers.runner import Networks, Setting, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import numbers_of
from papers.tests.papyan.test_spectra_study import NARROW, hessian

NAME = "papyan-tail"


@pytest.fixture(scope="module")
def result(shop: Workshop) -> StudyResult:
    setting = Setting((NARROW,), {"num_steps": 20, "num_probes": 1, "samples": None})
    study = dataclasses.replace(STUDIES[NAME], settings={"laptop": setting})
    return run_study(study, shop)


@pytest.fixture(scope="module")
def networks(shop: Workshop) -> Networks:
    return shop.networks(NARROW)


def test_fits_are_those_of_the_residual(
    result: StudyResult, networks: Networks, shop: Workshop
) -> None:
    straight = []
    for seed in (0, 1):
        risk = held_out_risk(shop, networks, seed)
        E = hessian(networks, seed, "test") - GaussNewton(risk).to_dense()
        values = torch.linalg.eigvalsh((E + E.T) / 2)
        largest = float(values.abs().max())
        fit = power_tail(values, low=1e-3 * largest, high=largest / 3)
        straight.append(fit.both.r_squared)
    assert numbers_of(result)["papyan.fig16b.straight"] == pytest.approx(
        sum(straight) / 2, rel=1e-6
    )
    table = result.sheets[0].columns
    assert set(table["seed"]) == {0, 1}
    assert set(table["smoothed"]) == {"linear", "log"}


def test_exponents_wait_for_the_paper_scale(result: StudyResult) -> None:
    judged = {f.id: f.status for f in result.findings}
    assert judged["papyan.fig16a.exponent"] == judged["papyan.fig16b.exponent"] == "not run"
    assert all(f.ours is not None for f in result.findings if "exponent" not in f.id)
    table = result.sheets[0].columns
    rows = zip(table["|λ| over the largest"], table["smoothed"], table["exponent"], strict=True)
    found = [b for ends, scale, b in rows if (ends, scale) == ("0.001 to 0.33", "log")]
    assert any(f"{sum(found) / 2:.2f} along log|λ|" in note for note in result.notes)


def test_a_law_is_found_with_its_exponent_and_symmetry() -> None:
    u = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    sizes = u.pow(-1 / 1.2)  # density ∝ x^−2.2 above 1
    values = torch.cat([sizes, -sizes[::2]])
    fits = {
        scale: power_tail(values, low=1.0, high=50.0, scale=scale) for scale in ("linear", "log")
    }
    found = _numbers(fits)
    assert found["papyan.fig16b.exponent"] == pytest.approx(2.2, abs=0.05)
    assert found["papyan.fig16.symmetric"] == pytest.approx(2.0, rel=0.01)
