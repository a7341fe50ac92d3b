from collections.abc import Callable

import pytest
import torch

from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Networks, Study, Workshop, run_study
from eigenscape.studies.wu_correspondence import _counted, _diagonal, _own_claims
from tests.studies.conftest import TINY, block, inputs_of, numbers_of, top_vectors

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
    assert len(result.pictures) == 3  # the last layer is drawn, and not part of the mean


def test_four_matrices_are_drawn_and_counted_from_one(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    panels = ran(NAME).pictures[0].panels
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


def test_the_claims_on_one_network_are_known() -> None:
    class Found:
        output = torch.eye(4)

    found = {
        **_own_claims("LeNet5", "fc1", Found, 0.8),
        **_own_claims("LeNet5-BN", "fc1", Found, 0.1),
    }
    rest = {claim.id for claim in STUDIES[NAME].claims} - found.keys()
    assert rest == {"wu.fig3.true-and-kronecker"}
    assert found["wu.fig3.lenet5.fc1.diagonal"].ours == 1.0
    assert found["wu.fig27.batchnorm.first-input"].ours == 0.1
    assert _own_claims("LeNet5", "fc2", Found, 0.8) == {}
