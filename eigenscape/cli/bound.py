"""`eigenscape bound`: a certified bound on the error of your network on new data."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eigenscape.cli import _analysis, _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import NOT_CONVERGED, DataDir, Debug, Quiet, Seed
from eigenscape.cli.analyze import (
    DataName,
    Device,
    Init,
    LossName,
    ModelName,
    Out,
    Overwrite,
    Samples,
    Split,
    find,
)
from eigenscape.errors import InvalidArgumentError

if TYPE_CHECKING:
    from eigenscape.bounds import NetworkCertificate
    from eigenscape.risk import EmpiricalRisk

_NO_SETTINGS = ("ctx", "out", "overwrite", "quiet", "debug")
_FIRST = "epoch-0000.safetensors"


def bound(
    ctx: typer.Context,
    model: ModelName,
    data: DataName,
    checkpoint: Annotated[
        Path,
        typer.Option(
            "--checkpoint",
            "-c",
            help="The trained weights: .safetensors, .pt or .pth, or the folder of a training run.",
        ),
    ],
    prior: Annotated[
        Path | None,
        typer.Option(
            help="The weights from before training [default: those of epoch 0 in the folder of "
            "the training run]."
        ),
    ] = None,
    prior_source: Annotated[
        Literal["initialisation", "other-data"],
        typer.Option(help="What the prior was made from; your word, and the certificate's."),
    ] = "initialisation",
    method: Annotated[
        Literal["base", "appr", "iter", "iter-d", "iter-m"],
        typer.Option(help="How the posterior's basis is chosen."),
    ] = "iter",
    initial: Annotated[
        Literal["weights", "curvature"], typer.Option(help="The first variances.")
    ] = "curvature",
    epochs: Annotated[int, typer.Option(help="Passes of the optimisation.", min=1)] = 200,
    batch_size: Annotated[int, typer.Option(help="Examples per step.", min=1)] = 128,
    noise: Annotated[
        Literal["weights", "outputs"],
        typer.Option(
            help="What a step draws: whole networks, or the outputs of linear layers for each "
            "example; the second has less noise, and needs a network of linear layers."
        ),
    ] = "weights",
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate; falls tenfold four times [default: 30 over the number of steps, "
            "but within 0.001 and 0.01]."
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="Networks drawn for the certificate.", min=1)] = 1000,
    examples_per_draw: Annotated[
        int | None,
        typer.Option(
            help="Examples that each of them is judged on, drawn at random [default: all].", min=1
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="Chance that the examples mislead.")] = 0.025,
    delta_samples: Annotated[float, typer.Option(help="Chance that the draws mislead.")] = 0.01,
    weights_seed: Annotated[
        int | None, typer.Option(help="Which seed of a training run [default: the first].")
    ] = None,
    loss: LossName = None,
    split: Split = "train",
    data_dir: DataDir = None,
    samples: Samples = None,
    init: Init = "pytorch",
    device: Device = "auto",
    seed: Seed = 0,
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Bound the error of your network on new data, with a PAC-Bayes certificate.

    The bound is about networks drawn from a Gaussian around your weights. It needs the data that
    the network was trained on, and the weights from before training.

    Examples:
      eigenscape train F-32^2 --data digits --epochs 50 --keep-epochs 0 --out runs/net
      eigenscape bound F-32^2 --data digits --checkpoint runs/net
      eigenscape bound my.py:build --data my.py:data -c net.safetensors --prior init.safetensors

    Interrupted with Ctrl-C, the same command continues where it was. `eigenscape verify` checks
    what is kept.

    Raises:
        Exit: If the optimisation stopped early.
    """
    screen = Screen(quiet=quiet)
    settings = {"verb": "bound"} | {
        name: str(value) if isinstance(value, Path) else value
        for name, value in ctx.params.items()
        if name not in _NO_SETTINGS
    }
    origin = find_prior(prior, checkpoint, weights_seed)
    folder = out or _runs.default_folder("bound", model, data)
    command = _runs.command_line(ctx, out=folder)
    run = _runs.claim(folder, settings=settings, command=command, overwrite=overwrite)
    with _runs.resumable(screen, run):
        result, converged = _compute(screen, settings, origin, run)
        noted = {**settings, "command": command}
        _analysis.save(screen, result, folder, noted, overwrite=run.overwrite)
    _tell(screen, result, folder)
    if not converged:
        raise typer.Exit(NOT_CONVERGED)


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
        kept = sorted((source / "weights").glob(f"seed-{'*' if seed is None else seed}"))
        files = [folder / _FIRST for folder in kept if (folder / _FIRST).is_file()]
        if not files:
            raise InvalidArgumentError(
                f"'{source}' does not hold the weights from before training (weights/seed-…/"
                f"{_FIRST}), which the prior needs. Train with `--keep-epochs 0`, or name a file "
                "with `--prior`."
            )
        return min(files, key=lambda file: int(file.parent.name.removeprefix("seed-")))
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

    wanted = {**settings, "params": None, "batch_size": None, "dtype": None}
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
    from eigenscape.bounds import bound_recipe, certify, optimise_posterior

    risk = find_risk(screen, settings)
    rate = settings["lr"] or learning_rate(
        risk.num_samples, settings["epochs"], settings["batch_size"]
    )
    screen.facts({"learning rate": f"{rate:.3g}"})
    recipe = bound_recipe(
        settings["method"],
        epochs=settings["epochs"],
        drop_every=max(1, settings["epochs"] // 5),
        batch_size=settings["batch_size"],
        noise=settings["noise"],
        learning_rate=rate,
        initial=settings["initial"],
        delta=settings["delta"],
    )
    if run.resumed:
        screen.say(f"Resuming the unfinished run in {run.folder}.")
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
            delta=settings["delta"],
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
    screen.say("It holds for networks drawn at random around the weights, not for one of them.")
    screen.result(str(certificate.status))
