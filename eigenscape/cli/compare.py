"""`eigenscape compare`: several analyses side by side."""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eigenscape.cli import _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen, cell
from eigenscape.cli._verb import Debug
from eigenscape.errors import InvalidArgumentError, require_packages

if TYPE_CHECKING:
    from eigenscape.report import Comparison

_ENDINGS = (".png", ".pdf", ".svg", ".html")
_PAGE = """<!doctype html>
<meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui;margin:2em auto;max-width:60em}}
td,th{{padding:.2em .8em;text-align:right}}td:first-child,th:first-child{{text-align:left}}
svg{{max-width:100%;height:auto}}</style>
<h1>{title}</h1>{figure}{table}
"""


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
        _draw(comparison, out)
    screen.result(f"Figure: {out}")


def _draw(comparison: "Comparison", path: Path) -> None:
    import io

    require_packages("eigenscape compare --out", "matplotlib")
    import matplotlib.pyplot as plt

    figure = comparison.plot().figure.get_figure(root=True)
    try:
        if path.suffix != ".html":
            figure.savefig(path, dpi=150)
            return
        picture = io.StringIO()
        figure.savefig(picture, format="svg")
    finally:
        plt.close(figure)
    svg = picture.getvalue()
    title = html.escape(" and ".join(comparison.names))
    page = _PAGE.format(title=title, figure=svg[svg.index("<svg") :], table=_table(comparison))
    path.write_text(page, encoding="utf-8")


def _table(comparison: "Comparison") -> str:
    columns = {name: list(values) for name, values in comparison.columns().items()}
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = (
        "".join(f"<td>{html.escape(cell(value))}</td>" for value in row)
        for row in zip(*columns.values(), strict=True)
    )
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
