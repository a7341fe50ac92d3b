"""The verbs under one name. Heavy imports are inside the verbs, so that help is instant."""

import importlib
from typing import Annotated

import typer

from eigenscape.cli import _verb, data
from eigenscape.cli.analyze import analyze
from eigenscape.cli.bound import bound
from eigenscape.cli.claims import claims
from eigenscape.cli.compare import compare
from eigenscape.cli.demo import demo
from eigenscape.cli.env import env
from eigenscape.cli.ls import ls
from eigenscape.cli.models import models
from eigenscape.cli.show import show
from eigenscape.cli.stepsize import stepsize
from eigenscape.cli.study import study
from eigenscape.cli.train import train
from eigenscape.cli.verify import verify

app = typer.Typer(
    name="eigenscape",
    help="The curvature of your neural network: spectra of its Hessian, with certificates.",
    epilog=(
        "Start with `eigenscape demo`. Exit codes: 0 fine, 1 finished but something did not "
        "converge, 2 refused, 3 unexpected error, 130 interrupted (the same command resumes)."
    ),
    no_args_is_help=True,
    add_completion=False,
    # Plain help: it reads alike on a terminal, in a pipe and in a log.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    demo,
    analyze,
    train,
    bound,
    verify,
    stepsize,
    study,
    claims,
    ls,
    show,
    compare,
    models,
    env,
):
    app.command()(_verb.verb(command, in_parallel=command is analyze))
app.add_typer(data.app, name="data")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"eigenscape {importlib.import_module('eigenscape').__version__}")
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
