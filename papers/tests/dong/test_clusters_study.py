from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.datasets import load
from eigenscape_papers.dong import clusters_study as dong_clusters
from eigenscape_papers.runner import StudyResult, Workshop
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import numbers_of

NAME = "dong-clusters"


def test_the_claims(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    table = ran(NAME).sheets[0].columns
    names = ("data", "loss", "C", "hidden: off / diagonal")
    rows = list(zip(*(table[name] for name in names), strict=True))
    for loss, figure in (("squared errors", 11), ("cross-entropy", 12)):
        own = [row for row in rows if row[:2] == ("clusters", loss)]
        two = min(row[3] for row in own if row[2] == 2)
        many = max(row[3] for row in own if row[2] == 12)
        assert ours[f"dong.fig{figure}.two-classes"] == pytest.approx(two, rel=1e-5)
        assert ours[f"dong.fig{figure}.many-classes"] == pytest.approx(many, rel=1e-5)
    assert len(rows) == 2 + 2 * 4


def test_two_classes_have_one_output_block_up_to_sign(ran: Callable[[str], StudyResult]) -> None:
    table = ran(NAME).sheets[0].columns
    rows = zip(table["loss"], table["C"], table["output: off / diagonal"], strict=True)
    for loss, classes, ratio in rows:
        if loss == "squared errors":
            assert ratio == 0.0
        elif classes == 2:
            assert ratio == pytest.approx(1.0)
        else:
            assert 0.0 < ratio < 1.0


def test_a_stand_in_is_named(ran: Callable[[str], StudyResult]) -> None:
    assert any("stand-in for 128 images of CIFAR-100" in note for note in ran(NAME).notes)


def test_missing_images_have_a_stand_in_of_their_size(shop: Workshop, tmp_path: object) -> None:
    nowhere = Workshop(shop.folder, shop.device, str(tmp_path))
    data, note = dong_clusters._images((3072, 100, 16), nowhere)
    assert data.inputs.shape == (16, 3072)
    assert data.num_classes == 100
    assert "stand-in" in note[0]


def test_the_hessian_at_the_start(shop: Workshop) -> None:
    data = load("clusters", dimension=5, num_classes=3, num_clusters=3, num_samples=12)
    scores, panel = dong_clusters.at_start(data, 4, "ce", shop, "here")
    assert panel.title == "here"
    generator = torch.Generator().manual_seed(0)
    W = (torch.randn(4, 5, generator=generator, dtype=torch.float32) / 5**0.5).requires_grad_()
    V = (torch.randn(3, 4, generator=generator, dtype=torch.float32) / 2.0).requires_grad_()

    def loss(W: torch.Tensor) -> torch.Tensor:
        z = (data.inputs @ W.T).relu() @ V.detach().T
        return torch.nn.functional.cross_entropy(z, data.targets)

    (slope,) = torch.autograd.grad(loss(W), W, create_graph=True)
    rows = [torch.autograd.grad(s, W, retain_graph=True)[0].flatten() for s in slope.flatten()]
    squares = torch.stack(rows).view(4, 5, 4, 5).square().sum((1, 3))
    share = float(squares.trace() / squares.sum())
    assert scores.hidden.share == pytest.approx(share, rel=1e-4)


def test_targets_of_squared_errors_are_one_hot() -> None:
    data = load("clusters", dimension=5, num_classes=3, num_clusters=3, num_samples=6)
    assert dong_clusters.targets_of(data, "ce") is data.targets
    rows = dong_clusters.targets_of(data, "mse")
    assert rows.shape == (6, 3)
    assert torch.equal(rows.argmax(1), data.targets)
