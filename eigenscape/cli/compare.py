"""`eigenscape compare`: several analyses side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eigenscape.cli import _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import Debug
from eigenscape.errors import InvalidArgumentError, require_packages

if TYPE_CHECKING:
    from eigenscape.report import Comparison

_ENDINGS = (".png", ".pdf", ".svg", ".html")


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Two or more run folders.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the figure: .png, .pdf, .svg, or a page: .html."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Put several analyses side by side, with a figure.

    Examples:
      eigenscape compare runs/before runs/after --out change.png

    Distances and overlaps are those to the first run.

    Raises:
        InvalidArgumentError: If the figure would have an unknown kind.
    """
    if out is not None and out.suffix not in _ENDINGS:
        raise InvalidArgumentError(
            f"`--out {out}` must end in {', '.join(_ENDINGS)}; got '{out.suffix}'."
        )
    from eigenscape.report import compare as compare_runs
    from eigenscape.report import write_report

    screen = Screen()
    with Watch(screen, "reading the runs"):
        comparison = compare_runs([_runs.find_run(name) for name in runs])
    screen.table(comparison.columns())
    screen.say(str(comparison.status))
    if out is None:
        screen.say("`--out FILE.png` or `.html` also draws the spectra.")
        return
    with Watch(screen, "drawing"):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".html":
            write_report(comparison, out)
        else:
            _draw(comparison, out)
    screen.result(f"Figure: {out}")


def _draw(comparison: "Comparison", path: Path) -> None:
    require_packages("eigenscape compare --out", "matplotlib")
    import matplotlib.pyplot as plt

    figure = comparison.plot().figure.get_figure(root=True)
    try:
        figure.savefig(path, dpi=150)
    finally:
        plt.close(figure)
