"""Pictures of the spectra of whole matrices: the numbers of the records, and nothing else."""

import pytest

from eigenscape.analyses import Analysis, MatrixSpectrum
from eigenscape.analyses.whole._spectrum_pictures import (
    eigenvalue_limits,
    hessian_spectrum,
    log_spectrum,
    side_by_side,
)
from eigenscape.linalg import one_eigenvalue
from eigenscape.records import Band, Line, Note, Points, Rule
from tests.report.samples import SIZE, marks, same


def test_both_ends_stand_over_the_density_with_their_residuals(analysis: Analysis) -> None:
    H = analysis.hessian
    picture = hessian_spectrum(H, 9)
    (curve, down), (band,) = marks(picture, Line), marks(picture, Band)
    same(curve.x, H.density.grid)
    same(curve.y, H.density.density)
    assert len(band.x) == len(curve.x)
    outliers, others, bottom = marks(picture, Points)
    same([*outliers.x, *others.x], H.largest.values)
    same([*outliers.x_error, *others.x_error], H.largest.residuals)
    same(bottom.x, H.smallest.values)
    assert (len(outliers.x), outliers.label) == (9, "9 outliers, certified")
    assert {*outliers.y, *bottom.y} == {one_eigenvalue(H.density)}
    assert down.x == [float(H.smallest.values[-1])] * 2
    (note,) = marks(picture, Note)
    assert note.text.startswith("λ min ")
    with pytest.raises(AssertionError):
        same(bottom.x, H.largest.values[:2])


def test_axes_hold_all_that_is_certified(analysis: Analysis) -> None:
    spectra = analysis.spectra()
    low, high = eigenvalue_limits(spectra)
    for spectrum in spectra:
        for pairs in (spectrum.largest, spectrum.smallest):
            assert low < float((pairs.values - pairs.residuals).min())
            assert high > float((pairs.values + pairs.residuals).max())
        assert low < float(spectrum.density.grid[0])
    apart = [eigenvalue_limits([spectrum]) for spectrum in spectra]
    assert low == pytest.approx(min(a for a, _ in apart), rel=0.1)


def test_ranks_count_from_both_ends(analysis: Analysis) -> None:
    *_, bottom = marks(hessian_spectrum(analysis.hessian), Points)
    assert [text.rsplit("\n")[-1] for text in bottom.hover] == [
        "rank 2 from the bottom",
        "rank 1 from the bottom",
    ]


def test_three_matrices_share_their_axes(analysis: Analysis) -> None:
    picture = side_by_side(analysis.spectra(), 9)
    assert picture.linked
    assert [panel.title for panel in picture.panels] == [
        "Hessian H", "Gauss-Newton G", "residual H − G",
    ]  # fmt: skip
    assert len({panel.x.limits for panel in picture.panels}) == 1
    assert len({panel.y.limits for panel in picture.panels}) == 1
    assert all(mark.label is None for i in range(3) for mark in marks(picture, Points, i))
    # Outliers are those of H.
    assert [len(marks(picture, Points, i)) for i in range(3)] == [3, 2, 2]
    assert picture.table["trace"] == [spectrum.trace for spectrum in analysis.spectra()]


def test_a_matrix_of_zeros_is_told_on_both_axes(analysis: Analysis, zero: MatrixSpectrum) -> None:
    (rule,) = hessian_spectrum(zero).panels[0].marks
    assert isinstance(rule, Rule)
    assert rule.text == f"all {SIZE} eigenvalues are 0"
    assert eigenvalue_limits([zero]) == (-1.0, 1.0)
    both, alone = log_spectrum([analysis.hessian, zero]), log_spectrum([zero])
    assert both.notes == alone.notes == ("residual H − G is zero and not on a logarithmic axis.",)
    assert len(marks(both, Line)) == 1
    assert alone.panels[0].marks == []


def test_magnitudes_are_drawn_filled_from_the_top_and_hollow_from_below(
    analysis: Analysis,
) -> None:
    H = analysis.hessian
    picture = log_spectrum([H])
    top, bottom = marks(picture, Points)
    same(top.x, H.largest.values.abs() + H.log_density.epsilon)
    same(bottom.x, H.smallest.values.abs() + H.log_density.epsilon)
    assert (top.hollow, bottom.hollow) == (False, True)
    low, high = picture.panels[0].x.limits
    assert 0 < low < min(top.x)
    assert max(top.x) < high


def test_decades_count_every_eigenvalue_once(analysis: Analysis) -> None:
    table = log_spectrum(analysis.spectra()).table
    for name in ("Hessian H", "Gauss-Newton G", "residual H − G"):
        assert sum(table[f"{name}, number"]) == pytest.approx(SIZE, rel=1e-9)
    assert table["|λ| from"][1:] == table["to"][:-1]
