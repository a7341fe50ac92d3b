"""Comparisons: closed forms for distances and overlaps, and what cannot be compared."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from eigenscape.analyses import Analysis
from eigenscape.errors import InvalidArgumentError, RunError, WrongTypeError
from eigenscape.report import compare
from tests.report import samples


def scaled(record: Analysis, factor: float) -> Analysis:
    """Return the analysis of the same Hessian times a factor."""
    values = samples.bulk_and_outliers(40) * factor
    return dataclasses.replace(record, hessian=samples.spectrum_of(torch.diag(values)))


def rows(record: Analysis, *others: Analysis) -> dict[str, list[float | None]]:
    comparison = compare([record, *others])
    names = comparison.to_frame().columns.tolist()
    return {row[0]: list(row[1:]) for row in comparison.to_frame()[names].itertuples(index=False)}


def test_a_comparison_has_a_row_a_quantity_and_a_column_a_run() -> None:
    first = samples.analysis(n=40, title="first")
    table = rows(scaled(first, 1.0), scaled(first, 3.0))
    assert table["loss"] == [0.0123, 0.0123]
    assert table["largest eigenvalue λ₁"] == pytest.approx([11.0, 33.0])
    assert table["λ₁ of layer fc2"] == [2.5, 2.5]
    distance = table["distance of log |λ| to the first run"]
    assert distance[0] == 0.0
    assert distance[1] == pytest.approx(math.log(3.0), rel=0.05)  # but for ε at the small ones
    overlap = table["overlap of the top 10 eigenvectors with the first run"]
    assert overlap == pytest.approx([1.0, 1.0])


def test_overlap_of_orthogonal_eigenspaces_is_zero() -> None:
    first = samples.analysis(n=40)
    diagonal = samples.bulk_and_outliers(40)
    turned = samples.spectrum_of(torch.diag(diagonal.flip(0)))
    straight = samples.spectrum_of(torch.diag(diagonal))
    a, b = (dataclasses.replace(first, hessian=h) for h in (straight, turned))
    name = "overlap of the top 10 eigenvectors with the first run"
    U, V = (x.hessian.largest.vectors[:, :10] for x in (a, b))
    expected = float((U.T @ V).square().sum()) / 10
    assert rows(a, b)[name] == pytest.approx([1.0, expected])


def test_layers_and_vectors_that_do_not_agree_are_left_out() -> None:
    first = samples.analysis(n=40)
    other = samples.analysis(n=30, names=["conv1", "fc2"])
    table = rows(first, other)
    assert [name for name in table if "layer" in name] == ["λ₁ of layer fc2"]
    assert table["overlap of the top 10 eigenvectors with the first run"][1] is None or math.isnan(
        table["overlap of the top 10 eigenvectors with the first run"][1]
    )
    bare = dataclasses.replace(
        first.hessian, largest=samples.without_vectors(first.hessian.largest)
    )
    table = rows(first, dataclasses.replace(first, hessian=bare))
    assert not [name for name in table if name.startswith("overlap")]


def test_names_are_folders_and_stay_distinct(tmp_path: Path) -> None:
    record = samples.tiny()
    for name in ("x/run", "y/run", "quantity"):
        record.save(tmp_path / name)
    folders = [tmp_path / "x" / "run", str(tmp_path / "y" / "run"), tmp_path / "quantity"]
    comparison = compare(folders)
    assert comparison.names == ("run (1)", "run (2)", "quantity (3)")
    assert list(comparison.columns()) == ["quantity", *comparison.names]
    assert "largest eigenvalue" in str(comparison)


def test_a_comparison_can_be_saved_and_read(tmp_path: Path) -> None:
    from eigenscape.runs import read_run

    comparison = compare([samples.tiny(), samples.tiny()])
    back = read_run(comparison.save(tmp_path / "c")).record
    assert back.values == comparison.values
    assert back.names == comparison.names


def test_runs_that_did_not_converge_show_in_the_status() -> None:
    poor = dataclasses.replace(samples.tiny(), status=samples.POOR)
    assert not compare([poor, samples.tiny()]).status
    assert "1 of the runs did not converge" in compare([poor, samples.tiny()]).status.text


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    record = samples.tiny()
    with pytest.raises(WrongTypeError, match="a list of two or more runs; got Analysis"):
        compare(record)
    with pytest.raises(InvalidArgumentError, match="at least 2 runs; got 1"):
        compare([record])
    with pytest.raises(WrongTypeError, match=r"compare\(runs\)\[1\].*got Training"):
        compare([record, samples.training()])
    with pytest.raises(RunError, match="There is no folder"):
        compare([record, tmp_path / "none"])
