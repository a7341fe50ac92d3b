from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.datasets import load
from eigenscape_papers.dong import binary_study as dong_binary
from eigenscape_papers.runner import StudyResult, Workshop
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import SMALL, numbers_of

NAME = "dong-binary"


def test_the_claims(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    table = ran(NAME).sheets[0].columns
    rows = zip(table["loss"], table["passes"], table["hidden: off / diagonal"], strict=True)
    known: dict[tuple[str, int], list[float]] = {}
    for loss, passes, ratio in rows:
        known.setdefault((loss, passes), []).append(ratio)
    ce, mse = known["cross-entropy", 1], known["squared errors", 10]
    assert len(ce) == len(mse) == 2
    assert ours["dong.fig10.ce.blocks"] == pytest.approx(sum(ce) / 2, rel=1e-4)
    assert ours["dong.fig10.mse.no-blocks"] == pytest.approx(sum(mse) / 2, rel=1e-4)
    contrast = (ce[0] / mse[0] + ce[1] / mse[1]) / 2
    assert ours["dong.fig10.contrast"] == pytest.approx(contrast, rel=1e-4)


def test_two_digits_are_left() -> None:
    data = load("digits")
    found = dong_binary.two_digits(data)
    assert found.inputs.shape == (int((data.targets < 2).sum()), 64)
    assert found.targets.unique().tolist() == [0, 1]
    assert found.num_classes == 2


def test_few_passes_are_the_start_of_many(shop: Workshop) -> None:
    options = {**STUDIES[NAME].settings["laptop"].options, **SMALL[NAME]}
    data = dong_binary.two_digits(load("digits")).take(30)
    states = {
        epochs: list(dong_binary._trained(data, "ce", epochs, options, shop)) for epochs in (0, 1)
    }
    (first, _), (moved, _) = states[0], states[1]
    assert first[0].shape == (5, 64)
    assert first[1].shape == (2, 5)
    # One step by hand, with all samples in a batch.
    all_at_once = {**options, "batch_size": 30, "learning_rate": 0.1}
    (W, _), _ = dong_binary._trained(data, "ce", 1, all_at_once, shop)
    w = first[0].clone().requires_grad_()
    z = (data.inputs @ w.T).relu() @ first[1].T
    torch.nn.functional.cross_entropy(z, data.targets).backward()
    torch.testing.assert_close(W, first[0] - 0.1 * w.grad)
    assert not torch.equal(moved[0], first[0])
