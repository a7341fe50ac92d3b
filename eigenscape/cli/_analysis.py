"""The steps that `analyze` and `demo` share: plan, run, save, and say what was found."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen, duration, size
from eigenscape.cli._verb import FINE, NOT_CONVERGED, is_launched, open_file

if TYPE_CHECKING:
    from eigenscape.analyses import Analysis, Plan
    from eigenscape.records import Record
    from eigenscape.risk import EmpiricalRisk

# A plan that takes longer than this is confirmed first, where someone can be asked.
_ASK_ABOVE_SECONDS = 600.0


def make_plan(screen: Screen, risk: "EmpiricalRisk", budget: str) -> "Plan":
    """Predict the cost of an analysis, and show it."""
    from eigenscape.analyses import plan_analysis

    with Watch(screen, "timing a few products"):
        plan = plan_analysis(risk, budget=budget)
    stages = plan.stages
    screen.table(
        {
            "stage": [stage.name for stage in stages],
            "products": [stage.num_products for stage in stages],
            "predicted time": [duration(stage.seconds) for stage in stages],
        },
        title=f"Plan, budget '{plan.budget.name}'",
    )
    screen.say(
        f"Predicted: {duration(plan.seconds)} on {plan.device}, {size(plan.memory_bytes)} of "
        f"memory beside model and data, {size(plan.disk_bytes)} on disk."
    )
    return plan


def confirm(plan: "Plan", *, yes: bool) -> None:
    """Ask whether to start something long, where there is someone to ask, and one process asks.

    Args:
        plan: What would start.
        yes: Do not ask.

    Raises:
        Exit: If the answer is no.
    """
    if yes or plan.seconds <= _ASK_ABOVE_SECONDS or not sys.stdin.isatty() or is_launched():
        return
    if not typer.confirm(f"Start? It will take about {duration(plan.seconds)}", default=True):
        typer.echo("Nothing was started. `--budget quick` or fewer `--samples` take less.")
        raise typer.Exit(FINE)


def run_analysis(
    screen: Screen,
    risk: "EmpiricalRisk",
    plan: "Plan",
    *,
    title: str,
    description: Mapping[str, str],
    seed: int,
    checkpoint: Path | None,
) -> "Analysis":
    """Run what was planned, showing progress."""
    from eigenscape.analyses import analyze

    with Watch(screen, "starting") as watch:
        return analyze(
            risk,
            budget=plan.budget,
            plan=plan,
            title=title,
            description=description,
            seed=seed,
            checkpoint=checkpoint,
            progress=watch,
        )


def save(
    screen: Screen, record: "Record", folder: Path, settings: Mapping[str, Any], *, overwrite: bool
) -> Path:
    """Write a run folder, showing that it takes its time."""
    from eigenscape.report import save_run

    with Watch(screen, "writing figures and the report"):
        return save_run(record, folder, overwrite=overwrite, settings=settings)


def tell(screen: Screen, analysis: "Analysis", folder: Path, *, open_report: bool) -> None:
    """Say what was found and where it is, and end with the exit code of the status.

    Args:
        screen: Where to say it.
        analysis: What was found.
        folder: The run.
        open_report: Whether to open the report in a browser.

    Raises:
        Exit: If something did not converge.
    """
    report = folder / "report.html"
    screen.say()
    screen.say("Findings", bold=True)
    screen.list(analysis.findings)
    screen.table(analysis.columns(), title="Key numbers")
    if not analysis.status:
        screen.note(f"Not everything converged. {analysis.status}")
    if screen.quiet:
        screen.result(str(folder))
    elif report.is_file():
        screen.result(f"Report: {report}")
        screen.say(f"Again in words: eigenscape show {shlex.quote(str(folder))}")
    if open_report and report.is_file():
        open_file(screen, report)
    if not analysis.status:
        raise typer.Exit(NOT_CONVERGED)
