"""`eigenscape stepsize`: the step size that the curvature of your network asks for."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eigenscape.cli.verbs import (
    NOT_CONVERGED,
    AsJson,
    Checkpoint,
    DataDir,
    DataName,
    Debug,
    Device,
    Dtype,
    Init,
    LossName,
    ModelName,
    Overwrite,
    Quiet,
    Samples,
    Screen,
    Seed,
    Split,
    Watch,
    find,
    save,
    settings_of,
)

if TYPE_CHECKING:
    from eigenscape.risk import EmpiricalRisk
    from eigenscape_papers.stepsize import StepSize

# Settings that `find` reads and for which this verb has no option.
_NOT_ASKED = {"params": None, "batch_size": None, "weights_seed": None}


def stepsize(
    ctx: typer.Context,
    model: ModelName,
    data: DataName,
    checkpoint: Checkpoint = None,
    steps: Annotated[int, typer.Option(help="How many steps lie ahead, t.", min=1)] = 20,
    products: Annotated[
        int | None,
        typer.Option(help="Products to spend; t of them are exact [default: t, 20 to 40]."),
    ] = None,
    matrix: Annotated[
        Literal["hessian", "gauss-newton"],
        typer.Option(help="The curvature of the model; the Hessian may have a negative part."),
    ] = "gauss-newton",
    check: Annotated[
        bool, typer.Option("--check", help="Also take the steps, and say what the loss does.")
    ] = False,
    loss: LossName = None,
    split: Split = "train",
    data_dir: DataDir = None,
    samples: Samples = None,
    init: Init = "pytorch",
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to keep the result in.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the step size that lowers the loss most in the next t steps, beside 2/λ_max.

    It is that of full-batch gradient descent on the local quadratic model, from a few products with
    the Gauss-Newton matrix or the Hessian. Far from where the network stands the model no longer
    holds; `--check` shows.

    Examples:
      eigenscape stepsize my_net.py:build --data my_net.py:loader -c net.safetensors --steps 20
      eigenscape stepsize F-32^2 --data digits --steps 50 --check

    Raises:
        Exit: If there is no such step size, or it is not yet certain.
    """
    import json

    from eigenscape.cli.verbs import choose_device
    from eigenscape.parallel import join

    screen = Screen(quiet=quiet or as_json)
    settings = {**_NOT_ASKED, **settings_of(ctx)}
    with join(device=choose_device(device)) as ranks:
        risk, _ = find(screen, settings, ranks)
    result = _compute(screen, settings, risk)
    measured = _measure(screen, result, risk) if check and result.status else {}
    if out is not None:
        save(screen, result, out, settings, overwrite=overwrite)
    if as_json:
        facts = result.to_dict() | {"measured": measured, "status": str(result.status)}
        screen.result(json.dumps({name: _for_json(value) for name, value in facts.items()}))
    else:
        _tell(screen, result, measured)
    if not result.status:
        raise typer.Exit(NOT_CONVERGED)


def _compute(screen: Screen, settings: dict[str, Any], risk: "EmpiricalRisk") -> "StepSize":
    from eigenscape.curvature import GaussNewton, Hessian
    from eigenscape_papers.stepsize import best_step_size

    kind = Hessian if settings["matrix"] == "hessian" else GaussNewton
    with Watch(screen, "multiplying by the curvature") as watch:
        return best_step_size(
            kind(risk),
            risk.gradient(),
            num_steps=settings["steps"],
            num_products=settings["products"],
            progress=watch,
        )


def _measure(screen: Screen, result: "StepSize", risk: "EmpiricalRisk") -> dict[str, float]:
    """Take the steps on the network itself, and return by how much the loss changed."""
    from eigenscape_papers.stepsize import loss_after

    with Watch(screen, "taking the steps"):
        before = risk.value()
        return {
            name: loss_after(risk, size, num_steps=result.num_steps) - before
            for name, size in zip(*list(result.columns().values())[:2], strict=True)
        }


def _tell(screen: Screen, result: "StepSize", measured: dict[str, float]) -> None:
    """Print the step size beside the usual ones, how certain it is, or why there is none."""
    columns = dict(result.columns())
    if measured:
        columns["change of the loss"] = list(measured.values())
    facts = {
        "λ_max": f"{result.largest:.5g}, residual {result.largest_residual:.1e}, as seen from the"
        " gradient"
    }
    if math.isnan(result.step_size):
        facts["λ_min"] = f"{result.smallest:.5g}"
    else:
        steps = f"{result.num_steps} step{'s' if result.num_steps > 1 else ''}"
        screen.table(columns, title=f"In {steps} of gradient descent")
        exact = result.error == 0
        facts["error of η*"] = "none but rounding" if exact else f"about {result.error:.2g}"
    screen.facts({**facts, "products": result.num_products})
    screen.result(str(result.status))


def _for_json(value: Any) -> Any:
    """Return the value, with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _for_json(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
