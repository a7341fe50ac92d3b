from collections.abc import Callable

import pytest
import torch

from eigenscape.operator import Dense
from eigenscape.records import Raster
from eigenscape.space import ParamSpace, Partition
from eigenscape.structure import block_structure, squared_block_norms, stripes
from eigenscape_papers.dong import blocks_study as dong_blocks
from eigenscape_papers.runner import StudyResult
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.theory import linear_hessian, one_hidden_layer_hessian
from papers.tests.conftest import numbers_of

NAME = "dong-blocks"
M, D, C, N = 3, 5, 4, 11


def network() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, W, V = (torch.randn(s, generator=generator) for s in ((N, D), (M, D), (C, M)))
    y = torch.arange(N) % C
    return one_hidden_layer_hessian(x, W, V, y), W, V


def test_scores_are_those_of_the_measurement_for_any_network() -> None:
    H, W, V = network()
    found = dong_blocks.network_scores(H, W, V)
    space = ParamSpace({"fc1.weight": (M, D), "fc2.weight": (C, M)})
    operator = Dense(H, space=space)
    for layer, own in (("fc1", found.hidden), ("fc2", found.output)):
        blocks = Partition.by_output(space, f"{layer}.weight")
        norms = squared_block_norms(operator, blocks, num_products=len(H))
        known = block_structure(norms)
        assert own.ratio**2 == pytest.approx(known.ratio)
        assert own.share == pytest.approx(known.inside)
    rows = Partition.by_output(space, "fc1.weight")
    columns = Partition.by_input(space, "fc2.weight")
    norms = squared_block_norms(operator, rows + columns, num_products=len(H))
    assert norms.method == "exact"
    names = [block.name for block in rows], [block.name for block in columns]
    assert found.stripes == pytest.approx(float(stripes(norms, *names).shares[0]))


def test_the_weight_of_the_part_between_the_layers() -> None:
    H, W, V = network()
    cut = M * D
    sizes = [float(part.norm()) for part in (H[:cut, :cut], H[cut:, cut:], H[:cut, cut:])]
    found = dong_blocks.network_scores(H, W, V)
    assert found.cross == pytest.approx(sizes[2] ** 2 / (sizes[0] * sizes[1]))


def test_norms_of_blocks() -> None:
    A = torch.arange(36.0).view(6, 6)
    found = dong_blocks.norms_of(A, 3)
    assert float(found[0, 2]) == pytest.approx(float(A[:2, 4:].norm()))
    assert float(found[2, 0]) == pytest.approx(float(A[4:, :2].norm()))


def test_zero_means_zero(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    assert ours["dong.fig4.linear-mse.zero"] == 0.0
    assert ours["dong.fig6.output-mse.zero"] == 0.0
    assert ours["dong.fig5.linear-ce.ratio"] > 0.0


def test_the_drawn_corner_is_that_of_the_whole_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    x, V = (torch.randn(s, generator=generator) for s in ((N, D), (7, D)))
    y = torch.arange(N) % 7
    for loss, targets in (
        ("cross-entropy", y),
        ("squared-error", torch.nn.functional.one_hot(y, 7).to(x)),
    ):
        corner, norms = dong_blocks._linear(x, V, targets, loss, 3)
        whole = linear_hessian(x, V, targets, loss=loss)
        torch.testing.assert_close(corner, whole[: 3 * D, : 3 * D])
        torch.testing.assert_close(norms, dong_blocks.norms_of(whole, 7))


def test_ratios_are_those_of_the_table(ran: Callable[[str], StudyResult]) -> None:
    table = ran(NAME).sheets[0].columns
    known = dict(
        zip(
            zip(table["blocks"], table["C"], strict=True),
            table["off-diagonal / diagonal"],
            strict=True,
        )
    )
    ours = numbers_of(ran(NAME))
    last = known["hidden.ce", 12]
    assert ours["dong.fig7.hidden-ce.ratio"] == pytest.approx(last, rel=1e-5)
    clearer = last / known["hidden.ce", 3]
    assert ours["dong.fig7.hidden-ce.clearer"] == pytest.approx(clearer, rel=1e-4)


def test_pictures_have_hidden_and_output_layers(ran: Callable[[str], StudyResult]) -> None:
    pictures = {picture.name: picture for picture in ran(NAME).pictures()}
    assert len(pictures["fig5-linear-ce"].panels) == 2
    assert [p.title for p in pictures["fig7-network-ce"].panels] == [
        "hidden layer, C = 3",
        "hidden layer, C = 12",
        "output layer, C = 3",
        "output layer, C = 12",
    ]
    assert pictures["fig5-linear-ce"].panels[1].title == "C = 12, first 10 classes"
    assert all(isinstance(p.marks[0], Raster) for p in pictures["fig4-linear-mse"].panels)
