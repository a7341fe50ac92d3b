"""`eigenscape study`: reproduce a figure or table of a paper, also with a network of your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eigenscape.cli.verbs import (
    NOT_CONVERGED,
    DataDir,
    Debug,
    Device,
    Out,
    Overwrite,
    Quiet,
    Screen,
    Watch,
    duration,
    open_run,
    resumable,
    settings_of,
)
from eigenscape.errors import EigenscapeError, InvalidArgumentError, UnknownNameError, near_matches
from eigenscape_papers.cli.train import parse_numbers

if TYPE_CHECKING:
    import torch

    from eigenscape.records import ProgressCallback
    from eigenscape_papers.datasets import DataSet
    from eigenscape_papers.runner import Cast, Study, StudyResult

# Options that are for the user's own network.
_TRAINING = ("epochs", "lr", "momentum", "weight_decay", "batch_size", "seeds", "test_data")
_ALONG = (1, 10, 100)  # epochs kept for studies that look along training


def study(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which; without it all are listed.")] = None,
    scale: Annotated[
        Literal["laptop", "paper"],
        typer.Option(help="A narrow network in minutes, or the paper's own setting."),
    ] = "laptop",
    model: Annotated[
        str | None, typer.Option(help="Your own network: a built-in name, or file.py:function.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Your own data: a built-in name, or file.py:function.")
    ] = None,
    test_data: Annotated[
        str | None,
        typer.Option(help="Your own test data [default: the test part of a built-in set]."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Training of your own network.", min=1)] = 30,
    lr: Annotated[float, typer.Option(help="Learning rate for your own network.")] = 0.01,
    momentum: Annotated[float, typer.Option(help="Momentum for your own network.")] = 0.0,
    weight_decay: Annotated[
        float, typer.Option(help="Weight decay for your own network.", min=0.0)
    ] = 0.0,
    batch_size: Annotated[int, typer.Option(help="Batch size for your own network.", min=1)] = 128,
    seeds: Annotated[str, typer.Option(help="Seeds of your own network, e.g. 0-2.")] = "0-2",
    networks: Annotated[
        Path, typer.Option(help="Folder in which trained networks are kept and found.")
    ] = Path("runs/studies"),
    record: Annotated[
        Path | None, typer.Option(help="Also write the result as a small record to this folder.")
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Reproduce a figure or table of a paper, or do the same to your own network.

    Examples:
      eigenscape study
      eigenscape study wu-overlap
      eigenscape study wu-overlap --scale paper --device cuda --data-dir DATA
      eigenscape study wu-overlap --model my.py:build --data my.py:data --seeds 0-4

    Networks are trained once and kept; interrupted, the same command continues.

    Raises:
        UnknownNameError: If there is no such study.
        InvalidArgumentError: If options do not go together.
        Exit: If something did not converge.
    """
    screen = Screen(quiet=quiet)
    if name is None:
        _list(screen)
        return
    from eigenscape.cli.verbs import choose_device
    from eigenscape_papers.runner import Workshop, run_study, write_result
    from eigenscape_papers.studies import STUDIES

    if name not in STUDIES:
        raise UnknownNameError(
            f"`eigenscape study {name}`: there is no such study. {near_matches(name, STUDIES)}"
        )
    settings = settings_of(ctx)
    # What can be refused is refused before anything is written.
    cast = _own(ctx, settings)
    setting = STUDIES[name].setting(scale, cast)
    if cast is not None:
        _require_fit(cast, setting.dtype)
    chosen = choose_device(device)
    shown = "own" if cast is not None else scale
    run = open_run(ctx, "study", name, shown, out=out, overwrite=overwrite)
    with resumable(screen, run):
        run.begin()
        with Watch(screen, "starting") as watch:
            workshop = Workshop(networks, chosen, settings["data_dir"], _then_measuring(watch))
            result = run_study(STUDIES[name], workshop, scale=scale, own=cast)
        run.save(screen, result)
    if record is not None:
        write_result(result, record)
    _tell(screen, result, run.folder)
    if not result.status:
        raise typer.Exit(NOT_CONVERGED)


def _then_measuring(watch: "ProgressCallback") -> "ProgressCallback":
    """Say that something is measured once what was reported is done: not all of it reports."""
    from eigenscape.records import Progress

    def tell(step: Progress) -> None:
        watch(step)
        if step.done >= step.total:
            watch(Progress("measuring", 0, 0, step.seconds, None))

    return tell


def _list(screen: Screen) -> None:
    from eigenscape_papers.studies import STUDIES

    studies: list[Study] = list(STUDIES.values())
    screen.table(
        {
            "name": [each.name for each in studies],
            "paper": [each.paper for each in studies],
            "where": [each.where for each in studies],
            "own networks": ["yes" if each.own else "no" for each in studies],
            "what": [each.title for each in studies],
        }
    )
    screen.say("Run one with `eigenscape study NAME`; `eigenscape claims` shows what came out.")


def _own(ctx: typer.Context, settings: dict[str, Any]) -> "Cast | None":
    """Make a cast of the reader's network and data, where there are any."""
    model, data = settings["model"], settings["data"]
    if model is None and data is None:
        _require_none_given(ctx)
        return None
    if model is None or data is None:
        raise InvalidArgumentError("`--model` and `--data` go together: give both, or none.")
    from eigenscape.cli.verbs import is_reference, load_model
    from eigenscape_papers.ensemble import SGD, Recipe
    from eigenscape_papers.runner import Cast, Own

    recipe = Recipe(
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        optimizer=SGD(
            settings["lr"], momentum=settings["momentum"], weight_decay=settings["weight_decay"]
        ),
    )
    train_data = _set(data, settings["data_dir"], "--data")
    other = settings["test_data"] or (None if is_reference(data) else data)
    test = None if other is None else _set(other, settings["data_dir"], "--test-data")
    return Cast(
        model.rpartition("/")[2] if is_reference(model) else model,
        train_data.name,
        recipe,
        parse_numbers(settings["seeds"], "--seeds"),
        keep_epochs=tuple(epoch for epoch in _ALONG if epoch < recipe.epochs),
        own=Own(lambda seed: load_model(model, train_data, seed=seed), train_data, test),
    )


def _require_fit(cast: "Cast", dtype: "torch.dtype") -> None:
    """Run a batch through the network, so that what does not fit is told before it is trained.

    Args:
        cast: A reader's own.
        dtype: What curvature will be computed in.

    Raises:
        InvalidArgumentError: If it fails, or its output and the targets do not fit.
    """
    from eigenscape.cli.verbs import users_own
    from eigenscape.risk import CrossEntropy, EmpiricalRisk

    task = cast.own
    if task is None:
        return
    network = task.network(0).to("cpu", dtype)
    for data, role in ((task.data, "--data"), (task.test, "--test-data")):
        if data is None:
            continue
        try:
            with users_own("it failed"):
                few = data.take(min(data.num_samples, cast.recipe.batch_size))
                EmpiricalRisk(network, CrossEntropy(), few)
                _ = cast.key  # for which it is run in train mode too
        except EigenscapeError as error:
            raise InvalidArgumentError(
                f"`--model` cannot be studied on `{role}`: {error}"
            ) from error


def _require_none_given(ctx: typer.Context) -> None:
    for name in _TRAINING:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidArgumentError(
                f"`--{name.replace('_', '-')}` is for a network of your own: give `--model` and "
                "`--data` too, or leave it out."
            )


def _set(reference: str, folder: str | None, role: str) -> "DataSet":
    """Load the data that an option names."""
    from eigenscape.cli.verbs import load_data
    from eigenscape_papers.datasets import DataSet

    split = "test" if role == "--test-data" else "train"
    loaded = load_data(reference, split=split, folder=folder, role=role)
    if isinstance(loaded, DataSet):
        return loaded
    inputs, targets = _pair(loaded, role)
    if not targets.numel():
        raise InvalidArgumentError(
            f"`{role}` of a study must give one sample or more; got inputs of shape "
            f"{tuple(inputs.shape)} and targets of shape {tuple(targets.shape)}."
        )
    return DataSet(reference, inputs, targets, num_classes=int(targets.max()) + 1)


def _pair(data: Any, role: str) -> Any:
    import torch

    tensors = getattr(data, "tensors", data)
    got = type(data).__name__
    if isinstance(tensors, tuple | list):
        is_pair = len(tensors) == 2 and all(isinstance(item, torch.Tensor) for item in tensors)
        got = f"a {got} of {', '.join(type(item).__name__ for item in tensors) or 'nothing'}"
        if is_pair:
            kind = tensors[1].dtype
            if not (kind.is_floating_point or kind.is_complex or kind == torch.bool):
                return tensors
            got = f"targets of {kind}. Return whole numbers, e.g. `targets.long()`"
    raise InvalidArgumentError(
        f"`{role}` of a study must give inputs and class indices as two tensors, or a "
        f"TensorDataset; got {got}."
    )


def _tell(screen: Screen, result: "StudyResult", folder: Path) -> None:
    for sheet in result.sheets[:1]:
        screen.table(sheet.columns, title=sheet.title)
    judged = [finding for finding in result.findings if finding.status != "not run"]
    if judged:
        screen.table(
            {
                "claim": [finding.id for finding in judged],
                "theirs": [finding.theirs for finding in judged],
                "ours": [finding.ours for finding in judged],
                "expected": [finding.expected for finding in judged],
                "verdict": [finding.verdict for finding in judged],
            },
            title=result.summary,
        )
        screen.list([f"{f.id}: {f.explanation}" for f in judged if f.explanation])
    else:
        screen.say(result.summary)
    if not result.status:
        screen.say(result.status.text)
    if result.scale == "own":  # of their own network readers know less than of the paper's
        screen.list(result.notes)
    if screen.quiet:
        screen.result(str(folder))
        return
    screen.say(f"{duration(result.seconds)} on {result.device}. Report: {folder / 'report.html'}")
