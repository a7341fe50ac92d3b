import dataclasses

import pytest
import torch

from eigenscape.operator import Dense
from eigenscape_papers.papyan import paper_density
from eigenscape_papers.papyan.lanczos_study import _curves, _distance, _pareto, _runs, _spiked
from eigenscape_papers.runner import Setting, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import numbers_of
from papers.tests.papyan.test_spectra_study import NARROW

NAME = "papyan-lanczos"


@pytest.fixture(scope="module")
def result(shop: Workshop) -> StudyResult:
    options = {"spiked": 120, "pareto": (60, 30), "log_steps": 120, "steps": (40, 80)}
    study = STUDIES[NAME]
    return run_study(
        dataclasses.replace(study, settings={"laptop": Setting((NARROW,), options)}), shop
    )


def test_the_matrices_of_the_figure() -> None:
    values = torch.linalg.eigvalsh(_spiked(400))
    # A spike l above the bulk of ZZᵀ/n stands at l + 1 + 1/l or so; the bulk ends at 4.
    assert float(values[-1]) == pytest.approx(5 + 1 + 1 / 5, abs=0.5)
    assert float(values[-4]) < 4.3
    values = torch.linalg.eigvalsh(_pareto(40, 15))
    assert int((values > 1e-10 * values[-1]).sum()) == 15


def test_a_density_of_all_eigenvalues_is_in_the_right_place() -> None:
    A = torch.diag(torch.tensor([1.0, 2.0, 5.0]))
    density = paper_density(Dense(A), 3, num_probes=1, reorthogonalise=True)
    exact = dataclasses.replace(
        density, weights=torch.full((1, 3), 1 / 3), nodes=torch.tensor([[1.0, 2.0, 5.0]])
    ).redraw()
    grid, y, truth = _curves(exact, A.diagonal())
    assert _distance(grid, y, truth) < 1e-6
    moved = _distance(grid, torch.zeros_like(y), truth)
    assert moved == pytest.approx(0.5)  # nothing where all should be


def test_ghosts_are_counted() -> None:
    A = torch.diag(torch.cat([torch.linspace(0.0, 1.0, 100), torch.tensor([50.0, 100.0])]))
    slow, fast, single = _runs(Dense(A), (90,))
    assert (slow.ghosts, slow.above(2.0)) == (0, 2)
    assert fast.ghosts > 0
    assert fast.above(2.0) == 2 + sum(n - 1 for _, n in fast.copies(2.0))
    assert single.above(2.0) > fast.above(2.0)  # more rounding, more copies
    places = [place for place, _ in fast.copies(2.0)]
    assert places == pytest.approx([100.0, 50.0])


def test_ghosts_of_a_network(result: StudyResult) -> None:
    table = next(s for s in result.sheets if s.name == "ghosts").columns
    slow = [i for i, name in enumerate(table["run"]) if name == "reorthogonalised"]
    assert [table["ghosts"][i] for i in slow] == [0, 0]
    # With 80 steps of 330 the outliers are there once, as they are in the matrix.
    assert table["Ritz values above the bulk"][slow[1]] == table["eigenvalues there"][slow[1]] == 10
    assert numbers_of(result)["papyan.appc5.ghosts"] == table["ghosts"][slow[1] + 1]


def test_every_run_is_drawn(result: StudyResult) -> None:
    names = ["FastLanczos", "reorthogonalised"]
    pictures = {picture.name: picture.panels for picture in result.pictures()}
    for panel in pictures["fig15"]:
        assert [mark.label for mark in panel.marks] == ["all eigenvalues", *names]
    assert len(pictures["ghosts"]) == 3
    fast, single = pictures["harmless"][0].marks
    assert (fast.label, single.label) == ("FastLanczos", "FastLanczos, float32")
    assert max(map(abs, fast.y)) < 0.5  # of one eigenvalue's height


def test_every_claim_is_measured(result: StudyResult) -> None:
    assert numbers_of(result).keys() == {claim.id for claim in STUDIES[NAME].claims}
