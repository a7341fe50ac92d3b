from collections.abc import Callable

import pytest
import torch

from eigenscape.records import Picture
from eigenscape_papers.runner import Networks, Study, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import CorrespondenceOfLayer
from eigenscape_papers.wu.correspondence_study import _counted, _diagonal, _own_claims
from papers.tests.conftest import TINY, block, inputs_of, numbers_of, top_vectors

NAME = "wu-correspondence"


def shares(vectors: torch.Tensor, basis: torch.Tensor, m: int, n: int) -> torch.Tensor:
    """Return Corr(v_j, h_i) = ‖Mat(h_i) v_j‖² as (j, i)."""
    return (vectors.T.reshape(-1, m, n) @ basis).square().sum(1).T


def test_likeness_of_both_patterns(
    small_study: Callable[[str], Study], shop: Workshop, tiny: Networks
) -> None:
    result = run_study(small_study(NAME), shop, own=TINY)
    found = []
    for layer, m, n in (("fc1", 12, 64), ("fc2", 12, 12)):
        x = inputs_of(tiny, 0, layer)
        A, M = x.T @ x / len(x), block(tiny, 0, f"{layer}.bias")
        V = torch.linalg.eigh(A).eigenvectors.flip(1)
        both = [
            shares(top_vectors(matrix, m), V, m, n).flatten()
            for matrix in (block(tiny, 0, f"{layer}.weight"), torch.kron(M, A))
        ]
        found.append(float(torch.corrcoef(torch.stack(both))[0, 1]))
    ours = numbers_of(result)["wu.fig3.true-and-kronecker"]
    assert ours == pytest.approx(sum(found) / 2, abs=1e-4)
    assert len(result.pictures()) == 3  # the last layer is drawn, and not part of the mean


def test_four_matrices_are_drawn_and_counted_from_one(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    panels = ran(NAME).pictures()[0].panels
    assert [len(panel.marks[0].values[0]) for panel in panels] == [15] * 4
    M = block(tiny, 0, "fc1.bias")
    x = inputs_of(tiny, 0, "fc1")
    h = top_vectors(torch.kron(M, x.T @ x / len(x)), 15).T.reshape(15, 12, 64)
    expected = (h.mT @ torch.linalg.eigh(M).eigenvectors.flip(1)).square().sum(1).T
    for found, row in zip(panels[3].marks[0].values, expected, strict=True):
        assert found == pytest.approx(row.tolist(), abs=0.006)
    assert panels[0].x.ticks[0] == (0.0, "1")
    assert panels[0].y.downward


def test_a_wide_layer_is_drawn_up_to_its_outputs() -> None:
    axis = _counted("h_i", 120)
    assert axis.ticks == tuple((float(n - 1), str(n)) for n in (1, 20, 40, 60, 80, 100, 120))
    assert [text for _, text in _counted("v_j", 6).ticks] == ["1", "2", "3", "4", "5", "6"]


def test_the_diagonal_and_its_neighbours_count() -> None:
    class Found:
        output = torch.zeros(6, 6)

    Found.output[2, 0], Found.output[3, 1], Found.output[5, 2] = 0.5, 1.0, 1.0
    assert _diagonal(Found, count=5) == pytest.approx(1.5 / 5)  # 5 is three from 2, and no row
    assert _diagonal(Found, count=5, near=1) == 0.0


def layer(name: str, first: list[float], m: int = 2) -> CorrespondenceOfLayer:
    picture = Picture("none", "", ())
    return CorrespondenceOfLayer(name, m, torch.tensor(first), 1.0, 0.9, False, picture, 0)


def test_the_claims_on_one_network_are_known() -> None:
    fc1 = {"fc1": layer("fc1", [0.9, 0.7, 0.0])}
    found = {**_own_claims("LeNet5", fc1), **_own_claims("LeNet5-BN", fc1)}
    rest = {claim.id for claim in STUDIES[NAME].claims} - found.keys()
    assert rest == {"wu.fig3.true-and-kronecker"}
    assert found["wu.fig3.lenet5.fc1.diagonal"].ours == 1.0
    for id in ("wu.fig27.batchnorm.first-input", "wu.fig3.lenet5.fc1.first-input"):
        assert found[id].ours == pytest.approx(0.8)  # the first m alone
    assert _own_claims("LeNet5", {"fc2": layer("fc2", [0.8])}) == {}


def test_the_claims_on_deeper_networks_are_known() -> None:
    convs = {
        name: layer(name, first)
        for name, first in (
            ("conv1", [0.9, 0.9]),
            ("conv2", [0.8, 0.6, 0.4, 0.5]),
            ("conv3", [0.3, 0.3]),
        )
    }
    found = _own_claims("VGG11-W32", convs)
    rest = {claim.id for claim in STUDIES[f"{NAME}-deep"].claims} - found.keys()
    assert rest == {"wu.fig25.vgg11.true-and-kronecker"}
    assert found["wu.2020.fig14.vgg11.first-input"].ours == pytest.approx((0.9 + 0.7 + 0.3) / 3)
    assert found["wu.fig26.vgg11.conv2.decreasing"].ours == pytest.approx(-0.8)
    assert _own_claims("VGG11 of a user", {"conv1": convs["conv1"]}) == {}
