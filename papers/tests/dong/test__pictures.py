import pytest
import torch

from eigenscape.errors import InvalidArgumentError, ShapeError
from eigenscape.records import Bars, Line, Raster, Rule
from eigenscape.structure import pool_magnitudes
from eigenscape.structure.blocks import _pictures as module
from eigenscape_papers.dong import block_panel, law_panel
from eigenscape_papers.theory import spectral_law


def raster(panel: object) -> Raster:
    (found,) = (mark for mark in panel.marks if isinstance(mark, Raster))
    return found


def test_cells_hold_the_largest_magnitudes(monkeypatch: pytest.MonkeyPatch) -> None:
    A = torch.randn(7, 10, generator=torch.Generator().manual_seed(0))
    expected = torch.empty(3, 3)
    rows, columns = (0, 2, 4, 7), (0, 3, 6, 10)
    for i in range(3):
        for j in range(3):
            part = A[rows[i] : rows[i + 1], columns[j] : columns[j + 1]]
            expected[i, j] = part.abs().max()
    assert torch.equal(pool_magnitudes(A, 3), expected)
    monkeypatch.setattr(module, "_STRIP", 10)  # one row at a time
    assert torch.equal(pool_magnitudes(A, 3), expected)


def test_small_matrices_stay_as_they_are() -> None:
    A = torch.tensor([[1.0, -2.0, 0.0], [3.0, 0.0, -4.0]])
    assert torch.equal(pool_magnitudes(A, 8), A.abs())


def test_pooling_refuses_what_is_no_matrix() -> None:
    with pytest.raises(ShapeError, match=r"got \(3,\)"):
        pool_magnitudes(torch.ones(3), 2)
    with pytest.raises(ShapeError, match=r"got \(0, 3\)"):
        pool_magnitudes(torch.ones(0, 3), 2)
    with pytest.raises(InvalidArgumentError):
        pool_magnitudes(torch.ones(3, 3), 0)


def test_a_large_entry_does_not_hide_the_blocks() -> None:
    A = torch.block_diag(*[torch.ones(4, 4)] * 5)
    A[0, 19] = 1e6
    assert raster(block_panel(A, sizes=[4] * 5)).limits == (0.0, 1.0)
    assert raster(block_panel(A, sizes=[4] * 5, log=True)).limits == (1e-3, 1.0)
    assert raster(block_panel(A, sizes=[4] * 5, quantile=1.0)).limits == (0.0, 1e6)


def test_cells_do_not_straddle_equal_blocks() -> None:
    # Of 6 blocks of 10 rows, 5 cells for each fit into 32.
    A = torch.block_diag(*[torch.ones(10, 10)] * 6)
    values = torch.tensor(raster(block_panel(A, sizes=[10] * 6, num_cells=32)).values)
    assert torch.equal(values, torch.block_diag(*[torch.ones(5, 5)] * 6))
    # Of 30 blocks of 2 rows, three in each of 10 cells.
    A = torch.block_diag(*[torch.ones(2, 2)] * 30)
    values = torch.tensor(raster(block_panel(A, sizes=[2] * 30, num_cells=12)).values)
    assert torch.equal(values, torch.eye(10))
    # A prime number of blocks.
    assert len(raster(block_panel(torch.eye(58), sizes=[2] * 29, num_cells=12)).values) == 12


def test_lines_lie_between_wide_blocks_only() -> None:
    panel = block_panel(torch.eye(20), sizes=(5, 5, 2, 2, 2, 4))
    upright = [mark.at for mark in panel.marks if isinstance(mark, Rule) and mark.upright]
    assert upright == [4.5, 9.5, 15.5]
    level = [mark.at for mark in panel.marks if isinstance(mark, Rule) and not mark.upright]
    assert level == upright


def test_names_stand_in_the_middle_of_their_parts() -> None:
    panel = block_panel(torch.eye(20), sizes=(6, 6, 4, 4), names=((0, "W"), (12, "V")))
    assert list(panel.x.ticks) == [(5.5, "W"), (15.5, "V")]
    assert panel.y.downward
    assert list(panel.y.ticks) == list(panel.x.ticks)


def test_a_matrix_of_zeros_can_be_shown() -> None:
    mark = raster(block_panel(torch.zeros(4, 4), sizes=(2, 2), log=True))
    assert mark.limits is None
    assert not mark.log


def test_blocks_must_fill_the_matrix() -> None:
    with pytest.raises(ShapeError, match="2 blocks of 5 rows"):
        block_panel(torch.eye(4), sizes=(2, 3))
    with pytest.raises(ShapeError):
        block_panel(torch.eye(4), sizes=(4, 0))
    with pytest.raises(InvalidArgumentError, match=r"from 0 to 1; got 1\.5"):
        block_panel(torch.eye(4), sizes=(4,), quantile=1.5)


def test_bars_and_curve_are_densities_of_the_same_mass() -> None:
    law = spectral_law(torch.ones(1), ratio=2.0, num_points=64)
    x = torch.randn(50, 100, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.eigvalsh(x.T @ x / 50)
    panel = law_panel(law, values, title="here", num_bins=20)
    bars, line = panel.marks
    assert isinstance(bars, Bars)
    assert isinstance(line, Line)
    edges, heights = torch.tensor(bars.edges), torch.tensor(bars.heights)
    assert float((heights * edges.diff()).sum()) == pytest.approx(0.5, rel=1e-3)
    assert float(torch.trapezoid(torch.tensor(line.y), torch.tensor(line.x))) == pytest.approx(
        0.5, rel=0.01
    )
    assert panel.x.label == "eigenvalue (50 % are zero)"
    assert panel.title == "here"


def test_laws_without_an_atom_keep_all_eigenvalues() -> None:
    law = spectral_law(torch.ones(1), ratio=0.5, num_points=16)
    panel = law_panel(law, torch.tensor([0.0, 1.0, 5.0]), num_bins=5)
    bars = panel.marks[0]
    assert bars.edges[0] == 0.0
    assert bars.edges[-1] == 5.0
    assert panel.x.label == "eigenvalue"
    with pytest.raises(ShapeError):
        law_panel(law, torch.ones(2, 2))
    with pytest.raises(InvalidArgumentError):
        law_panel(law, torch.ones(2), num_bins=1)
