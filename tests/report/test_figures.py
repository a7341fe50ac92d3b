"""Every picture as PNG and PDF: complete, the same bytes twice, whatever the analysis lacks."""

from pathlib import Path

import pytest
import torch

from eigenscape.errors import EigenscapeError
from eigenscape.linalg import eigsh, solve
from eigenscape.operator import Dense
from eigenscape.report import write_figures
from tests.report import samples

ALL = [
    "hessian-spectrum",
    "log-spectrum",
    "three-matrices",
    "top-eigenvalues",
    "gradient-overlap",
    "layers",
    "kronecker",
    "input-output-spectra",
    "block-norms",
    "cost",
]


def test_an_analysis_has_ten_pictures(tmp_path: Path) -> None:
    paths = write_figures(samples.analysis(n=40), tmp_path / "figures")
    expected = [f"{name}.{ending}" for name in ALL for ending in ("png", "pdf")]
    assert [path.name for path in paths] == expected
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths[::2])
    assert all(path.read_bytes()[:5] == b"%PDF-" for path in paths[1::2])
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(expected)


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    names = [path.stem for path in write_figures(samples.tiny(), tmp_path)][::2]
    left = ("three-matrices", "layers", "kronecker", "input-output-spectra")
    assert names == [name for name in ALL if name not in left]


def test_sixty_layers_are_drawn(tmp_path: Path) -> None:
    record = samples.layer_curvature([f"blocks.{i}.attention.projection" for i in range(60)])
    assert len(write_figures(record, tmp_path)) == 6


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    pairs = eigsh(Dense(torch.diag(torch.arange(1.0, 5.0))), num_pairs=2)
    first, second = (write_figures(pairs, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_png_has_150_dots_an_inch(tmp_path: Path) -> None:
    from matplotlib.image import imread

    path = write_figures(samples.plan(), tmp_path)[0]
    assert imread(path).shape[1] == round(6.8 * 150)


def test_records_without_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EigenscapeError, match="no picture of a Solution"):
        write_figures(solve(Dense(torch.eye(3)), torch.ones(3)), tmp_path / "x")
    assert not (tmp_path / "x").exists()
