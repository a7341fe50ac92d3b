"""The verbs under one name. Heavy imports are inside the verbs, so that help is instant."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Annotated

import typer

from eigenscape.cli import _verb
from eigenscape.cli.analyze import analyze
from eigenscape.cli.bound import bound
from eigenscape.cli.compare import compare
from eigenscape.cli.demo import demo
from eigenscape.cli.env import env
from eigenscape.cli.ls import ls
from eigenscape.cli.show import show
from eigenscape.cli.verify import verify
from eigenscape.plugins import __version__, verbs

app = typer.Typer(
    name="eigenscape",
    help="The curvature of your neural network: spectra of its Hessian, with certificates.",
    epilog=(
        "Start with `eigenscape demo`. Reproductions of papers come with `pip install "
        "eigenscape-papers`. Exit codes: 0 fine, 1 finished but something did not "
        "converge, 2 refused, 3 unexpected error, 130 interrupted (the same command resumes)."
    ),
    no_args_is_help=True,
    add_completion=False,
    # Plain help: it reads alike on a terminal, in a pipe and in a log.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (demo, analyze, bound, verify, ls, show, compare, env):
    app.command()(_verb.verb(command, in_parallel=command is analyze))

# Verbs of packages that may be installed beside this one.
_ELSEWHERE = {
    "eigenscape-papers": ("study", "claims", "data", "models", "stepsize", "train"),
}


def add_verbs(to: typer.Typer, points: Sequence[EntryPoint]) -> None:
    """Add the verbs of other packages; one that cannot be loaded says so and breaks nothing.

    Args:
        to: The command line.
        points: What installed packages offer: functions, or groups of them.
    """
    for point in points:
        try:
            added = point.load()
        except Exception as error:  # whatever another package raises
            _add_refusal(to, point.name, f"is not available: {type(error).__name__}: {error}")
            continue
        if isinstance(added, typer.Typer):
            to.add_typer(added, name=point.name)
        else:
            to.command(name=point.name)(_verb.verb(added))
    offered = {point.name for point in points}
    for distribution, names in _ELSEWHERE.items():
        for name in names:
            if name not in offered:
                _add_refusal(to, name, f"comes with `pip install {distribution}`", hidden=True)


def _add_refusal(to: typer.Typer, name: str, why: str, *, hidden: bool = False) -> None:
    def refuse(ctx: typer.Context) -> None:
        typer.echo(f"`eigenscape {name}` {why}.", err=True)
        raise typer.Exit(_verb.REFUSED)

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    to.command(
        name=name, help=why[:1].upper() + why[1:] + ".", hidden=hidden, context_settings=settings
    )(refuse)


add_verbs(app, verbs())


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"eigenscape {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line of this process."""
    app()
