"""`eigenscape bound`: a certified bound on the error of your network on new data."""

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eigenscape.cli import _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import NOT_CONVERGED, DataDir, Debug, Quiet, Seed
from eigenscape.cli._weights import numbered
from eigenscape.cli.analyze import (
    CHECKPOINT,
    DataName,
    Device,
    LossName,
    ModelName,
    Out,
    Overwrite,
    Samples,
    WeightsSeed,
    find,
)
from eigenscape.errors import FileError, InvalidArgumentError, UnknownNameError, near_matches

if TYPE_CHECKING:
    from eigenscape.bounds import NetworkCertificate
    from eigenscape.risk import EmpiricalRisk

_FIRST = "epoch-0000.safetensors"
# What a recipe file may say beside the fields of `BoundRecipe`.
_BESIDE = {
    "prior_source": "initialisation",
    "examples_per_draw": None,
    "delta_samples": 0.01,
    "split": "train",
}
# Options of version 0.2.
_OLD = (
    *("--batch-size", "--delta", "--delta-samples", "--examples-per-draw", "--init", "--initial"),
    *("--lr", "--noise", "--prior-source", "--split"),
)


def bound(
    ctx: typer.Context,
    model: ModelName,
    data: DataName,
    checkpoint: Annotated[Path, CHECKPOINT],
    prior: Annotated[
        Path | None,
        typer.Option(
            help="The weights from before training [default: those of epoch 0 in the folder of "
            "the training run]."
        ),
    ] = None,
    method: Annotated[
        Literal["base", "appr", "iter", "iter-d", "iter-m"],
        typer.Option(help="How the posterior's basis is chosen."),
    ] = "iter",
    epochs: Annotated[int, typer.Option(help="Passes of the optimisation.", min=1)] = 200,
    draws: Annotated[int, typer.Option(help="Networks drawn for the certificate.", min=1)] = 1000,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Further settings, such as `batch_size = 256`."),
    ] = None,
    weights_seed: WeightsSeed = None,
    loss: LossName = None,
    data_dir: DataDir = None,
    samples: Samples = None,
    device: Device = "auto",
    seed: Seed = 0,
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
    old: Annotated[str | None, typer.Option(*_OLD, hidden=True)] = None,
) -> None:
    """Bound the error of your network on new data, with a PAC-Bayes certificate.

    The bound is about networks drawn from a Gaussian around your weights. It needs the data that
    the network was trained on, and the weights from before training.

    Examples:
      eigenscape train F-32^2 --data digits --epochs 50 --keep-epochs 0 --out runs/net
      eigenscape bound F-32^2 --data digits --checkpoint runs/net
      eigenscape bound my.py:build --data my.py:data -c net.safetensors --prior init.safetensors

    A recipe file may set prior_source, examples_per_draw, delta_samples, split, and every field of
    eigenscape.bounds.BoundRecipe, such as batch_size, learning_rate, noise, initial and delta.
    Interrupted with Ctrl-C, the same command continues where it was. `eigenscape verify` checks a
    saved certificate.

    Raises:
        InvalidArgumentError: If an option is one of an earlier version.
        Exit: If the optimisation stopped early.
    """
    if old is not None:
        raise InvalidArgumentError(
            f"`eigenscape bound` has no options {', '.join(_OLD)} any more. Write them to a recipe "
            "file, for instance `batch_size = 256`, and give `--recipe FILE.toml`; `--lr` is "
            "`learning_rate` there, and `--init` is not needed, since `--checkpoint` has all "
            "weights."
        )
    screen = Screen(quiet=quiet)
    further = read_recipe(recipe)
    origin = find_prior(prior, checkpoint, weights_seed)
    run = _runs.open_run(ctx, "bound", model, data, out=out, overwrite=overwrite, **further)
    with _runs.resumable(screen, run):
        result, converged = _compute(screen, run.settings, origin, run)
        run.save(screen, result)
    _tell(screen, result, run.folder)
    if not converged:
        raise typer.Exit(NOT_CONVERGED)


def read_recipe(path: Path | None) -> dict[str, Any]:
    """Return what a recipe file says, and the defaults of what only this verb knows.

    Args:
        path: A TOML file; None for the defaults.

    Returns:
        Fields of `BoundRecipe` that the file sets, and everything of `_BESIDE`.

    Raises:
        FileError: If it is no TOML file.
        UnknownNameError: If it sets something else.
        InvalidArgumentError: If a value is of another type.
    """
    if path is None:
        return dict(_BESIDE)
    from eigenscape.bounds import BoundRecipe

    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"`--recipe {path}` must be a TOML file, with lines such as `batch_size = 256`; it "
            f"cannot be read ({error})."
        ) from error
    fields = {field.name: field.default for field in dataclasses.fields(BoundRecipe)}
    defaults = {**fields, **_BESIDE}
    del defaults["epochs"]  # an option
    for name, value in written.items():
        if name not in defaults:
            raise UnknownNameError(
                f"`--recipe {path}` sets '{name}', which is no setting of a recipe file. "
                f"{near_matches(name, defaults)}"
            )
        kind = type(defaults[name]) if defaults[name] is not None else int
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise InvalidArgumentError(
                f"`--recipe {path}`: {name} must be of type {kind.__name__}; got {value!r}."
            )
    return {**_BESIDE, **written}


def find_prior(prior: Path | None, checkpoint: Path, seed: int | None) -> Path:
    """Return the file with the weights from before training.

    Args:
        prior: What the user named, a file or the folder of a training run, or None.
        checkpoint: The trained weights, or the folder of a training run.
        seed: Which seed of a training run; the first by default.

    Returns:
        The file.

    Raises:
        InvalidArgumentError: If there is none.
    """
    source = checkpoint if prior is None else prior
    if source.is_dir():
        seeds = numbered(source / "weights", "seed")
        files = {number: folder / _FIRST for number, folder in seeds.items()}
        kept = [number for number, file in files.items() if file.is_file()]
        chosen = min(kept, default=None) if seed is None else seed
        if chosen not in kept:
            raise InvalidArgumentError(
                f"'{source}' does not hold the weights from before training (weights/seed-…/"
                f"{_FIRST}), which the prior needs. Train with `--keep-epochs 0`, or name a file "
                "with `--prior`."
            )
        return files[chosen]
    if prior is None:
        raise InvalidArgumentError(
            "`--prior` must name the weights from before training: save "
            "`model.state_dict()` before the first step. A prior made from the data voids the "
            "certificate."
        )
    return prior


def find_risk(screen: Screen, settings: dict[str, Any]) -> "EmpiricalRisk":
    """Load the model and the data that the settings of a bound name, and show them.

    Args:
        screen: Where to show them.
        settings: The arguments of `bound` by name.

    Returns:
        The risk.
    """
    from eigenscape.cli._subject import choose_device
    from eigenscape.parallel import join

    wanted = {**settings, "params": None, "batch_size": None, "dtype": None, "init": "pytorch"}
    with join(device=choose_device(settings["device"])) as ranks:
        risk, _ = find(screen, wanted, ranks)
    return risk


def learning_rate(num_examples: int, epochs: int, batch_size: int) -> float:
    """Return a learning rate for so many steps.

    RMSprop changes no number by more than a few rates a step, and a fifth of the steps has the
    first rate. The logarithms of standard deviations have a few units to go.

    Args:
        num_examples: n.
        epochs: Passes over them.
        batch_size: Examples per step.

    Returns:
        30 over the number of steps; the paper's 0.001 where there are more than 30 000.
    """
    steps = epochs * math.ceil(num_examples / batch_size)
    return min(0.01, max(0.001, 30.0 / steps))


def _compute(
    screen: Screen, settings: dict[str, Any], prior: Path, run: _runs.Place
) -> tuple["NetworkCertificate", bool]:
    """Load, optimise, certify; return the certificate and whether the optimisation ended well."""
    from eigenscape.bounds import BoundRecipe, bound_recipe, certify, optimise_posterior

    risk = find_risk(screen, settings)
    fields = {field.name for field in dataclasses.fields(BoundRecipe)}
    chosen = {name: value for name, value in settings.items() if name in fields}
    chosen = {"initial": "curvature", "drop_every": max(1, settings["epochs"] // 5), **chosen}
    recipe = bound_recipe(settings["method"], **chosen)
    if "learning_rate" not in chosen:
        rate = learning_rate(risk.num_samples, recipe.epochs, recipe.batch_size)
        recipe = dataclasses.replace(recipe, learning_rate=rate)
    screen.facts({"learning rate": f"{recipe.learning_rate:.3g}"})
    run.begin()
    with Watch(screen, "optimising") as watch:
        fit = optimise_posterior(
            risk,
            prior,
            recipe=recipe,
            prior_source=settings["prior_source"].replace("-", " "),
            checkpoint=run.checkpoint,
            seed=settings["seed"],
            progress=watch,
        )
    with Watch(screen, "drawing networks") as watch:
        result = certify(
            risk,
            fit.posterior,
            num_samples=settings["draws"],
            examples_per_draw=settings["examples_per_draw"],
            delta=recipe.delta,
            precision=recipe.precision,
            ceiling=recipe.ceiling,
            delta_samples=settings["delta_samples"],
            checkpoint=run.checkpoint.with_name("draws"),
            seed=settings["seed"],
            progress=watch,
        )
    return result, bool(fit.status)


def _tell(screen: Screen, result: "NetworkCertificate", folder: Path) -> None:
    """Say what is certain, of what, and where it is kept."""
    certificate, per_draw = result.certificate, result.examples_per_draw
    judged = "" if per_draw is None else f", each on {per_draw:,} random examples"
    screen.say()
    screen.facts(
        {
            "error of the draws": f"{certificate.error:.4g}, at most "
            f"{certificate.error_bound:.4g} ({certificate.num_samples:,} networks{judged})",
            "divergence": f"{certificate.kl:.5g} nats from the prior "
            f"({result.posterior.prior_source}), variance {certificate.prior_variance:.4g}",
            "examples": f"{certificate.num_examples:,}",
            "run": folder,
        }
    )
    screen.say(
        "The bound holds for networks drawn at random around the weights, not for any single one."
    )
    screen.result(str(certificate.status))
