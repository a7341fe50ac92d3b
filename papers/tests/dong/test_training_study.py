from collections.abc import Callable

import pytest
import torch

from eigenscape.records import Line, Raster, read_tensors
from eigenscape_papers.datasets import load
from eigenscape_papers.dong import network_scores
from eigenscape_papers.dong import training_study as dong_training
from eigenscape_papers.runner import StudyResult, Workshop
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.theory import one_hidden_layer_hessian
from papers.tests.conftest import SMALL, numbers_of

NAME = "dong-training"


def scores_of(ran: Callable[[str], StudyResult], loss: str) -> list[dict[str, float]]:
    table = ran(NAME).sheets[0].columns
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return [row for row in rows if row["loss"] == loss]


def test_the_claims(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    mse, ce = scores_of(ran, "squared errors"), scores_of(ran, "cross-entropy")
    assert [row["training"] for row in ce] == ["0 %", "10 %", "25 %", "50 %", "75 %", "100 %"]
    for rows, figure in ((mse, 2), (ce, 3)):
        least = min(row["share inside"] for row in rows)
        assert ours[f"dong.fig{figure}.hidden.kept"] == pytest.approx(least, rel=1e-5)
        least = min(row["share inside "] for row in rows)
        assert ours[f"dong.fig{figure}.output.kept"] == pytest.approx(least, rel=1e-5)
    weights = [row["weight of H_wv"] * row["stripes in H_wv"] for row in (ce[0], ce[-1], mse[0])]
    fade = weights[1] / weights[0]
    assert ours["dong.fig3.stripes.fade"] == pytest.approx(fade, rel=1e-4)
    assert ours["dong.fig2.stripes.absent"] == pytest.approx(weights[2] / weights[0], rel=1e-4)
    assert ours["dong.fig3.stripes.start"] == pytest.approx(ce[0]["stripes in H_wv"], rel=1e-5)
    assert ours["dong.fig3.stripes.end"] == pytest.approx(ce[-1]["stripes in H_wv"], rel=1e-5)
    heaviest = max(row["weight of H_wv"] for row in mse)
    assert ours["dong.fig2.cross.negligible"] == pytest.approx(heaviest, rel=1e-5)


def test_the_last_hessian_is_that_of_the_last_weights(
    ran: Callable[[str], StudyResult], shop: Workshop
) -> None:
    rows = scores_of(ran, "cross-entropy")
    data = load("gaussian", **SMALL[NAME]["data"])
    found = []
    for path in sorted(shop.folder.glob("networks/dong-*/seed-0/epoch-0020.safetensors")):
        weights = read_tensors(path)
        W, V = weights["fc1.weight"], weights["fc2.weight"]
        H = one_hidden_layer_hessian(data.inputs, W, V, data.targets)
        found.append(network_scores(H, W, V).hidden.ratio)
    assert len(found) == 2  # one for each loss
    assert rows[-1]["hidden: off / diagonal"] in [pytest.approx(one, rel=1e-4) for one in found]


def test_stripes_are_where_a_unit_meets_its_own_column() -> None:
    m, d, C = 3, 4, 5
    H = torch.zeros(m * (d + C), m * (d + C))
    W = torch.zeros(m, d)
    for i in range(m):
        H[i * d : (i + 1) * d, m * d + i :: m] = 1.0
    (mark,) = dong_training.stripes_panel(H, W, "").marks
    assert isinstance(mark, Raster)
    values = torch.tensor(mark.values)
    assert values.shape == (m * d, m * C)
    assert torch.equal(values, H[: m * d, m * d :])
    scores = network_scores(H + torch.eye(len(H)), W, torch.zeros(C, m))
    assert scores.stripes == 1.0


def test_losses_fall_and_are_drawn(ran: Callable[[str], StudyResult]) -> None:
    (picture,) = (p for p in ran(NAME).pictures() if p.name == "fig13-losses")
    for panel in picture.panels:
        (line,) = panel.marks
        assert isinstance(line, Line)
        assert len(line.y) == SMALL[NAME]["epochs"]
        assert line.y[-1] < line.y[0]


def test_trainings_of_other_settings_have_other_folders(
    ran: Callable[[str], StudyResult], shop: Workshop
) -> None:
    ran(NAME)
    folders = list(shop.folder.glob("networks/dong-training-*"))
    assert len(folders) == 2
