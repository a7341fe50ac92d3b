"""`eigenscape analyze`: everything about the curvature of a network of your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eigenscape.cli import _analysis, _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import DataDir, Debug, Quiet, Seed, is_follower
from eigenscape.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from eigenscape.parallel import Ranks
    from eigenscape.risk import EmpiricalRisk

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="file.py:function or package.module:function that returns an nn.Module, or a "
        "built-in name such as F-200^2 (see `eigenscape models`).",
    ),
]
DataName = Annotated[
    str,
    typer.Option(
        "--data",
        "-d",
        metavar="DATA",
        help="file.py:function that returns tensors, a Dataset or a DataLoader, or a built-in name "
        "such as digits or mnist (see `eigenscape data list`).",
    ),
]
CHECKPOINT = typer.Option(
    "--checkpoint",
    "-c",
    help="Trained weights: .safetensors, .pt or .pth (a state dict; code in it is refused), or the "
    "folder of a training run.",
)
Checkpoint = Annotated[Path | None, CHECKPOINT]
WeightsSeed = Annotated[
    int | None, typer.Option(help="Which seed of a training run [default: the first].")
]
Dtype = Annotated[
    Literal["float32", "float64"] | None,
    typer.Option(help="Precision [default: the model's own, at least float32]."),
]
Split = Annotated[Literal["train", "test"], typer.Option(help="Which part of a built-in data set.")]
Samples = Annotated[
    int | None,
    typer.Option(help="Number of samples to use, drawn at random [default: all].", min=1),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or cuda:1 and so on.")]
Init = Annotated[
    Literal["pytorch", "xavier", "kaiming", "lecun"],
    typer.Option(help="Initial weights of a built-in network."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder of the run [default: runs/MODEL-DATA-time]."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in --out.")]
LossName = Annotated[
    str | None,
    typer.Option(
        metavar="LOSS",
        help="cross-entropy, next-token, same-token, squared-error, binary-cross-entropy; model, "
        "for what the model returns; or file.py:function [default: guessed].",
    ),
]


def analyze(
    ctx: typer.Context,
    model: ModelName,
    data: DataName,
    checkpoint: Checkpoint = None,
    weights_seed: WeightsSeed = None,
    loss: LossName = None,
    split: Split = "train",
    data_dir: DataDir = None,
    samples: Samples = None,
    params: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Differentiate these parameters only, e.g. fc1 or 'conv*.weight'; repeatable.",
        ),
    ] = None,
    init: Init = "pytorch",
    budget: Annotated[
        Literal["first-look", "quick", "standard", "thorough"],
        typer.Option(help="How much to compute; first-look takes a minute, on some samples."),
    ] = "standard",
    num_pairs: Annotated[
        int | None,
        typer.Option(help="Largest eigenpairs of each matrix [default: the budget's].", min=1),
    ] = None,
    stages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="Compute these parts only: hessian, gauss-newton, residual, layers, block-norms; "
            "repeatable, or with commas.",
        ),
    ] = None,
    ignore_limits: Annotated[
        bool,
        typer.Option("--ignore-limits", help="Start even if memory or disk will not be enough."),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Largest number of samples at a time; changes the memory used, not the results.",
            min=1,
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = 0,
    out: Out = None,
    overwrite: Overwrite = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a long run.")] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report when done.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Analyse your network, with certificates and a report.

    Loss and gradient; spectra of the Hessian, the Gauss-Newton matrix and what is between them;
    outliers; each layer with its Kronecker approximation; norms between layers.

    Examples:
      eigenscape analyze my_net.py:build --data my_net.py:loader -c net.safetensors
      eigenscape analyze F-200^2 --data mnist --samples 5000 --budget quick
      eigenscape analyze my_gpt.py:build --data my_gpt.py:text --budget first-look
      eigenscape analyze my_net.py:build --data my_net.py:loader --stages hessian,layers
      eigenscape analyze LeNet5 --data mnist -c runs/my-training --device cuda
      torchrun --nproc-per-node=4 -m eigenscape analyze LeNet5 --data mnist

    A part that fails costs no other; the report says which failed and why. Interrupted with Ctrl-C,
    the same command continues where it was.
    """
    from eigenscape.analyses import analyze as run_analysis
    from eigenscape.cli._subject import choose_device
    from eigenscape.parallel import join

    screen = Screen(quiet=quiet, silent=is_follower())
    with join(device=choose_device(device)) as ranks:
        # Sums in another order end in other digits.
        more = {"processes": ranks.size} if ranks.size > 1 else {}
        with ranks.together():
            run = _runs.open_run(ctx, model, data, out=out, overwrite=overwrite, **more)
        with _runs.resumable(screen, run):
            risk, facts = find(screen, run.settings, ranks)
            stage_names = [name for option in stages or () for name in option.split(",")] or None
            plan = _analysis.make_plan(
                screen, risk, budget, num_pairs=num_pairs, stages=stage_names
            )
            _analysis.confirm(plan, yes=yes)
            with ranks.together():
                if ranks.is_first:
                    run.begin()
            with Watch(screen, "starting") as watch:
                analysis = run_analysis(
                    risk,
                    budget=plan.budget,
                    plan=plan,
                    title=f"{model} on {data}",
                    description=facts,
                    seed=seed,
                    checkpoint=run.checkpoint,
                    ignore_limits=ignore_limits,
                    progress=watch,
                )
            with ranks.together():
                if ranks.is_first:
                    run.save(screen, analysis)
    if ranks.is_first:
        _analysis.tell(screen, analysis, run.folder, open_report=open_report)


def find(
    screen: Screen, settings: dict[str, Any], ranks: "Ranks"
) -> tuple["EmpiricalRisk", dict[str, str]]:
    """Load what the settings name, and show what was found.

    Args:
        screen: Where to show it.
        settings: The arguments of `analyze` by name.
        ranks: The processes that share the work.

    Returns:
        The risk, and the facts for the report.

    Raises:
        InvalidArgumentError: If options do not go together.
    """
    from eigenscape.cli import _subject
    from eigenscape.cli._user_code import users_own
    from eigenscape.risk import EmpiricalRisk

    if settings["weights_seed"] is not None and settings["checkpoint"] is None:
        raise InvalidArgumentError(
            "`--weights-seed` needs `--checkpoint` with the folder of a training run."
        )
    with ranks.together():
        data, model, weights = _load(screen, settings, ranks.device)
    with Watch(screen, "evaluating the loss"), users_own("The model failed on the data"):
        with ranks.together():
            loss, said = _subject.choose_loss(settings["loss"], model, data, ranks.device)
        risk = EmpiricalRisk(
            model,
            loss,
            data,
            params=settings["params"] or None,
            batch_size=settings["batch_size"],
            ranks=ranks,
        )
    total = sum(p.numel() for p in model.parameters())
    chosen = "" if risk.space.size == total else f"{risk.space.size:,} of "
    shared = "" if ranks.size == 1 else f", {ranks.size} processes"
    facts = {
        "model": f"{settings['model']}, {type(model).__name__} with {chosen}{total:,} parameters",
        "weights": weights,
        "data": _subject.describe_data(data, settings["data"], risk.num_samples),
        "loss": _subject.describe_loss(said, risk, guessed=settings["loss"] is None),
        "device": f"{risk.device}, {str(risk.dtype).removeprefix('torch.')}{shared}",
    }
    screen.facts(facts)
    if history := getattr(data, "history", ()):
        facts["history of the data"] = "; ".join(history)
    return risk, facts


def _load(
    screen: Screen, settings: dict[str, Any], device: "torch.device"
) -> tuple[Any, "nn.Module", str]:
    """Return the data, the model in its place, and what to say of its weights."""
    from eigenscape.cli import _subject
    from eigenscape.cli._weights import load_weights

    seed = settings["seed"]
    _subject.seed_everything(seed)
    with Watch(screen, "loading the data"):
        data = _subject.load_data(
            settings["data"],
            split=settings["split"],
            folder=settings["data_dir"],
            samples=settings["samples"],
            seed=seed,
        )
    with Watch(screen, "building the model"):
        model = _subject.load_model(settings["model"], data, seed=seed, init=settings["init"])
        weights = "as the model was built; `--checkpoint` loads others"
        if settings["checkpoint"] is not None:
            loaded = load_weights(
                model, Path(settings["checkpoint"]), seed=settings["weights_seed"]
            )
            weights = " ".join([f"{loaded.source}.", *loaded.notes])
        return data, _subject.place_model(model, device, settings["dtype"]), weights
