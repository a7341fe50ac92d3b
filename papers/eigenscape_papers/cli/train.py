"""`eigenscape train`: train networks from one or many seeds, and keep their weights."""

import copy
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eigenscape.cli.verbs import (
    NOT_CONVERGED,
    DataDir,
    DataName,
    Debug,
    Device,
    Init,
    ModelName,
    Out,
    Overwrite,
    Quiet,
    Samples,
    Screen,
    Watch,
    describe_data,
    duration,
    load_data,
    load_model,
    open_run,
    resumable,
    seed_everything,
    settings_of,
)
from eigenscape.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch import nn

    from eigenscape_papers.ensemble import Recipe, Training

_MOST_SEEDS_SHOWN = 20


def train(
    ctx: typer.Context,
    model: ModelName,
    data: DataName,
    epochs: Annotated[int, typer.Option(help="Passes over the data.", min=1)] = 10,
    batch_size: Annotated[int, typer.Option(help="Samples per step.", min=1)] = 128,
    optimizer: Annotated[
        Literal["sgd", "adam", "rmsprop"], typer.Option(help="The update rule.")
    ] = "sgd",
    lr: Annotated[
        float | None, typer.Option(help="Learning rate [default: 0.01; 0.001 for adam].")
    ] = None,
    momentum: Annotated[float, typer.Option(help="Of sgd and rmsprop.")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="Added to the gradient.")] = 0.0,
    schedule: Annotated[
        Literal["constant", "step", "cosine", "thirds"],
        typer.Option(help="How the learning rate falls."),
    ] = "constant",
    step_every: Annotated[
        int | None, typer.Option(help="Epochs between drops of `--schedule step`.", min=1)
    ] = None,
    drop: Annotated[
        float, typer.Option(help="Factor of a drop, for `--schedule step` and thirds.")
    ] = 0.1,
    loss: Annotated[
        Literal["cross-entropy", "squared-error"], typer.Option(help="The loss.")
    ] = "cross-entropy",
    seeds: Annotated[str, typer.Option(help="Such as 0,1,2 or 0-9; trained together.")] = "0",
    keep_epochs: Annotated[
        str, typer.Option(help="Keep weights after these epochs too, e.g. 0,10,20.")
    ] = "",
    init: Init = "pytorch",
    data_dir: DataDir = None,
    samples: Samples = None,
    test_data: Annotated[
        str | None,
        typer.Option(help="Data to evaluate on [default: the test part of a built-in set]."),
    ] = None,
    device: Device = "auto",
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a network from one or many seeds.

    Examples:
      eigenscape train F-32^2 --data digits --epochs 30 --lr 0.05 --momentum 0.9
      eigenscape train LeNet5 --data mnist --seeds 0-9 --keep-epochs 0,1,5 --out runs/lenet

    Weights are kept as weights/seed-0/epoch-0010.safetensors in the run's folder; `eigenscape
    analyze --checkpoint FOLDER` takes the last ones. Interrupted, the same command continues.

    Raises:
        Exit: If a loss stopped being finite.
    """
    screen = Screen(quiet=quiet)
    settings = settings_of(ctx)
    numbers = parse_numbers(seeds, "--seeds")
    kept = parse_numbers(keep_epochs, "--keep-epochs")
    recipe = make_recipe(settings)
    run = open_run(ctx, "train", model, data, out=out, overwrite=overwrite)
    with resumable(screen, run):
        inputs, build = _load(screen, settings)
        run.begin()
        from eigenscape.cli.verbs import choose_device
        from eigenscape_papers.ensemble import fit

        with Watch(screen, "starting") as watch:
            training = fit(
                build,
                inputs["train"],
                recipe,
                seeds=numbers,
                test=inputs["test"],
                keep_epochs=kept,
                keep=run.checkpoint.with_name("weights"),
                checkpoint=run.checkpoint,
                device=choose_device(device),
                progress=watch,
            )
        _move_in(run.checkpoint.with_name("weights"), run.folder / "weights")
        run.save(screen, training)
    _tell(screen, training, run.folder, settings)
    if not training.status:
        raise typer.Exit(NOT_CONVERGED)


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Read "0,1,2" or "0-9" or both mixed.

    Args:
        text: What the user wrote.
        option: Where, for the message.

    Returns:
        The numbers, in their order.

    Raises:
        InvalidArgumentError: If it reads otherwise.

    Examples:
        >>> parse_numbers("0-3,7", "--seeds"), parse_numbers("", "--keep-epochs")
        ((0, 1, 2, 3, 7), ())
    """
    numbers: list[int] = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = item.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidArgumentError(
                f"`{option}` must be whole numbers such as 0,1,2 or 0-9; got '{text}'."
            )
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def make_recipe(settings: dict[str, Any]) -> "Recipe":
    """Turn the options of `train` into a recipe.

    Args:
        settings: The options by name.

    Returns:
        The recipe.

    Raises:
        InvalidArgumentError: If options do not go together.
    """
    from eigenscape_papers.ensemble import (
        SGD,
        Adam,
        Constant,
        Cosine,
        Recipe,
        RMSprop,
        Step,
        Thirds,
    )

    name, momentum, decay = (settings[n] for n in ("optimizer", "momentum", "weight_decay"))
    schedule, every, drop = (settings[n] for n in ("schedule", "step_every", "drop"))
    rate = settings["lr"] if settings["lr"] is not None else 0.001 if name == "adam" else 0.01
    if name == "adam" and momentum:
        raise InvalidArgumentError(
            f"`--momentum {momentum}` is for sgd and rmsprop; adam has its own. Leave it out."
        )
    if (schedule == "step") != (every is not None):
        raise InvalidArgumentError("`--schedule step` and `--step-every N` go together.")
    schedules: dict[str, Callable[[], Any]] = {
        "constant": Constant,
        "cosine": Cosine,
        "step": lambda: Step(every, drop),
        "thirds": lambda: Thirds(drop),
    }
    optimizers: dict[str, Callable[[], Any]] = {
        "sgd": lambda: SGD(rate, momentum, decay),
        "adam": lambda: Adam(rate, weight_decay=decay),
        "rmsprop": lambda: RMSprop(rate, momentum=momentum, weight_decay=decay),
    }
    return Recipe(
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        optimizer=optimizers[name](),
        schedule=schedules[schedule](),
        loss=settings["loss"],
    )


def _load(
    screen: Screen, settings: dict[str, Any]
) -> tuple[dict[str, Any], Callable[[int], "nn.Module"]]:
    """Load data and a builder of networks, and show what was found."""
    from eigenscape.cli.verbs import is_reference

    name, folder, other = settings["data"], settings["data_dir"], settings["test_data"]
    seed_everything(0)
    with Watch(screen, "loading the data"):
        sets = {"train": load_data(name, folder=folder, samples=settings["samples"])}
        if other is not None:
            sets["test"] = load_data(other, split="test", folder=folder, role="--test-data")
        elif not is_reference(name):
            sets["test"] = load_data(name, split="test", folder=folder)

    def build(seed: int) -> "nn.Module":
        network: nn.Module = load_model(
            settings["model"], sets["train"], seed=seed, init=settings["init"]
        )
        # A file may hold one network ready made; every seed needs its own.
        return copy.deepcopy(network) if is_reference(settings["model"]) else network

    first = build(0)
    total = sum(p.numel() for p in first.parameters())
    facts = {"model": f"{settings['model']}, {type(first).__name__} with {total:,} parameters"}
    for split, value in sets.items():
        facts[f"{split} data"] = describe_data(value, name if split == "train" else other or name)
    screen.facts(facts)
    return {"test": None, **sets}, build


def _move_in(weights: Path, target: Path) -> None:
    """Put the new weights in the place of those that an earlier training left.

    They are copied: what is in the checkpoint must stay there until the run is saved.
    """
    for file in target.glob("seed-*/epoch-*.safetensors"):
        file.unlink()
    if weights.is_dir():  # not so if the first epoch failed
        shutil.copytree(weights, target, dirs_exist_ok=True)


def _tell(screen: Screen, training: "Training", folder: Path, settings: dict[str, Any]) -> None:
    """Show where each seed ended, and what to do with it."""
    shown = training.seeds[:_MOST_SEEDS_SHOWN]
    columns: dict[str, list[Any]] = {"seed": list(shown)}
    for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
        values = getattr(training, name)
        if values is not None and len(values):
            columns[name.replace("_", " ")] = values[-1, : len(shown)].tolist()
    more = "" if len(shown) == len(training.seeds) else f", the first {len(shown)} seeds"
    screen.table(columns, title=f"After {training.epochs_done} epochs{more}")
    if not training.status:
        screen.note(f"{training.status}")
    if screen.quiet:
        screen.result(str(folder))
        return
    screen.say(f"{duration(training.seconds)} on {training.device}. Run: {folder}")
    if not (folder / "weights").is_dir():
        return
    words = ["eigenscape", "analyze", settings["model"], "--data", settings["data"]]
    if settings["samples"] is not None:
        words += ["--samples", str(settings["samples"])]
    if settings["data_dir"] is not None:
        words += ["--data-dir", settings["data_dir"]]
    if settings["loss"] != "cross-entropy":
        words += ["--loss", settings["loss"]]
    screen.say(f"Next: {shlex.join([*words, '--checkpoint', str(folder)])}")
