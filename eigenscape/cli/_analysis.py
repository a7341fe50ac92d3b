"""The steps that `analyze` and `demo` share: make a plan, confirm it, and print the result."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen, duration
from eigenscape.cli._verb import FINE, NOT_CONVERGED, is_launched, open_file

if TYPE_CHECKING:
    from eigenscape.analyses import Analysis, Plan
    from eigenscape.risk import EmpiricalRisk

# A plan that takes longer than this is confirmed first, where someone can be asked.
_ASK_ABOVE_SECONDS = 600.0
# What ten figures in two formats and the report take on two cores.
_REPORT_SECONDS = 10.0


def make_plan(
    screen: Screen,
    risk: "EmpiricalRisk",
    budget: str,
    *,
    num_pairs: int | None = None,
    stages: Sequence[str] | None = None,
) -> "Plan":
    """Predict the cost of an analysis with its report, and show it."""
    from eigenscape.analyses import plan_analysis
    from eigenscape.records import size

    with Watch(screen, "timing a few products"):
        plan = plan_analysis(risk, budget=budget, num_pairs=num_pairs, stages=stages)
    plan = dataclasses.replace(plan, report_seconds=_REPORT_SECONDS)
    rows = [(s.name, s.num_products, duration(s.seconds)) for s in plan.stages]
    rows.append(("figures and report", 0, duration(plan.report_seconds)))
    names = ("stage", "products", "predicted time")
    screen.table(
        {name: [row[column] for row in rows] for column, name in enumerate(names)},
        title=f"Plan, budget '{plan.budget.name}'",
    )
    screen.say(
        f"Predicted: {duration(plan.seconds)} on {plan.device}, after {duration(screen.seconds)} "
        f"so far; {size(plan.memory_bytes)} of memory in addition to model and data, "
        f"{size(plan.disk_bytes)} on disk."
    )
    if plan.num_samples is not None:
        screen.say(
            f"It uses {plan.num_samples} of {risk.num_samples} samples, and as many others for "
            "comparison."
        )
    screen.list(plan.limits)
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
        typer.echo("Nothing was started. `--budget quick` or fewer `--samples` take less time.")
        raise typer.Exit(FINE)


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
    for name, reason in analysis.failures.items():
        screen.note(f"Failed, {name}: {reason}")
    for doubt in analysis.remarks()[1:]:
        screen.note(doubt)
    if screen.quiet:
        screen.result(str(folder))
    elif report.is_file():
        screen.result(f"Report: {report}")
        screen.say(f"Show it again: eigenscape show {shlex.quote(str(folder))}")
    if open_report and report.is_file():
        open_file(screen, report)
    if not analysis.status:
        raise typer.Exit(NOT_CONVERGED)
