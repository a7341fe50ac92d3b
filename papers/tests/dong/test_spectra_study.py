from collections.abc import Callable

import pytest
import torch

from eigenscape.records import Bars
from eigenscape_papers.dong import spectra_study as dong_spectra
from eigenscape_papers.runner import StudyResult
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.theory import linear_hessian, one_hidden_layer_hessian
from papers.tests.conftest import numbers_of

NAME = "dong-spectra"
N, D, M, C = 7, 5, 3, 4


def drawn() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(s, generator=generator) for s in ((N, D), (M, D), (C, M), (C, D))]


@pytest.mark.parametrize("rows", [(0, 0), (2, 1)])
def test_weights_make_the_blocks_of_the_hessian(rows: tuple[int, int]) -> None:
    x, W, V, linear = drawn()
    i, j = rows
    y = torch.zeros(N, dtype=torch.long)
    weights = dong_spectra.linear_weights(x, linear, i, j)
    H = linear_hessian(x, linear, y).view(C, D, C, D)
    torch.testing.assert_close((x * weights[:, None]).T @ x / N, H[i, :, j])
    weights = dong_spectra.hidden_weights(x, W, V, i, j)
    H = one_hidden_layer_hessian(x, W, V, y)[: M * D, : M * D].view(M, D, M, D)
    torch.testing.assert_close((x * weights[:, None]).T @ x / N, H[i, :, j])


def test_the_claims_are_the_largest_distances(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    table = ran(NAME).sheets[0].columns
    rows = list(zip(table["model"], table["block"], table["distance"], strict=True))
    for model in ("linear", "hidden"):
        for part in ("diagonal", "off-diagonal"):
            own = [row[2] for row in rows if row[:2] == (model, part)]
            assert len(own) == 2
            assert ours[f"dong.spectra.{model}.{part}"] == pytest.approx(max(own), rel=1e-5)


def test_signs_of_eigenvalues(ran: Callable[[str], StudyResult]) -> None:
    table = ran(NAME).sheets[0].columns
    for model, part, largest in zip(table["model"], table["block"], table["largest"], strict=True):
        if model == "linear":
            assert (largest > 0) == (part == "diagonal")


def test_every_law_has_a_panel_with_its_eigenvalues(ran: Callable[[str], StudyResult]) -> None:
    pictures = ran(NAME).pictures()
    assert [p.name for p in pictures] == [
        "linear-diagonal",
        "linear-off-diagonal",
        "hidden-diagonal",
        "hidden-off-diagonal",
    ]
    assert [p.title for p in pictures[0].panels] == ["γ = 0.5", "γ = 3"]
    assert all(isinstance(panel.marks[0], Bars) for p in pictures for panel in p.panels)
    assert "67 % are zero" in pictures[0].panels[1].x.label
