"""Write every picture of a record as PNG and PDF."""

import os
from functools import partial
from pathlib import Path

from eigenscape.errors import require_packages
from eigenscape.records import Picture, Record, write_with
from eigenscape.report._matplotlib import make_figure, style
from eigenscape.report.draw import pictures_of

_DPI = 150
ENDINGS = ("png", "pdf")


def write_figures(record: Record, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw a record's pictures into a folder, each as PNG (150 dots an inch) and PDF.

    The files hold no date, so that the same record gives the same bytes.

    Args:
        record: A record that has pictures.
        folder: Where; it is made if it is not there. Files of the same name are replaced.

    Returns:
        The files, in the order of the pictures.

    Raises:
        EigenscapeError: If there is no picture of this kind of record.
        MissingPackageError: If matplotlib is not installed.

    Examples:
        >>> import torch
        >>> from eigenscape.linalg import eigsh
        >>> from eigenscape.operator import Dense
        >>> pairs = eigsh(Dense(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), num_pairs=2)
        >>> [path.name for path in write_figures(pairs, "figures")]
        ['eigenvalues.png', 'eigenvalues.pdf']
    """
    pictures = pictures_of(record)
    require_packages("write_figures(...)", "matplotlib")
    directory = Path(folder)
    directory.mkdir(parents=True, exist_ok=True)
    return [path for picture in pictures for path in _write(picture, directory)]


def _write(picture: Picture, directory: Path) -> list[Path]:
    paths = [directory / f"{picture.name}.{ending}" for ending in ENDINGS]
    figure = make_figure(picture)

    def save(file: Path, ending: str) -> None:
        undated = {"CreationDate": None} if ending == "pdf" else {"Software": None}
        figure.savefig(file, format=ending, dpi=_DPI, metadata=undated)

    with style():
        figure.draw_without_rendering()  # arranges everything once, for both files
        figure.set_layout_engine("none")
        for path, ending in zip(paths, ENDINGS, strict=True):
            write_with(path, partial(save, ending=ending))
    return paths
