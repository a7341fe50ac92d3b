"""`eigenscape verify`: check a kept certificate, with fresh draws."""

from pathlib import Path
from typing import Annotated, Any

import typer

from eigenscape.cli import _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import Debug, Quiet
from eigenscape.cli.analyze import Device
from eigenscape.cli.bound import find_prior, find_risk
from eigenscape.errors import FileError, InvalidArgumentError


def verify(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a bound, or a name under runs/.")
    ],
    draws: Annotated[
        int | None,
        typer.Option(help="Number of fresh networks [default: as many as it had].", min=1),
    ] = None,
    prior: Annotated[
        Path | None,
        typer.Option(help="The weights from before training [default: where the bound had them]."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the fresh networks [default: the next one].")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check a certificate that `eigenscape bound` has kept.

    Model and data are loaded as they were for the bound, so run it in the same folder. Compared are
    the data, the weights from before training, the parameters that are not drawn, the divergence by
    another formula, all arithmetic, and the error of fresh networks.

    Examples:
      eigenscape verify runs/my-bound
      eigenscape verify my-bound --draws 100

    Raises:
        InvalidArgumentError: If the run holds no certificate, or not what it was made from.
    """
    from eigenscape.bounds import NetworkCertificate
    from eigenscape.runs import read_run

    screen, folder = Screen(quiet=quiet), _runs.find_run(run)
    with Watch(screen, "reading the run"):
        stored = read_run(folder)
    record = stored.record
    if not isinstance(record, NetworkCertificate) or stored.settings.get("verb") != "bound":
        raise InvalidArgumentError(
            f"'{folder}' holds no certificate made by `eigenscape bound`; it is a run of kind "
            f"'{stored.kind}'. In Python, `read_run(folder).record.verify(risk)` checks any."
        )
    first = prior or _first_weights(stored.settings)
    risk = find_risk(screen, {**stored.settings, "device": device})
    with Watch(screen, "drawing networks") as watch:
        fresh = record.verify(risk, prior=first, num_samples=draws, seed=seed, progress=watch)
    screen.facts(
        {
            "certificate": record.certificate.status,
            "fresh networks": f"{fresh.num_samples:,}, with an error of {fresh.error:.4g}; the "
            f"certificate says at most {record.certificate.error_bound:.4g}",
            "prior": f"equal to '{first}'; whether it is from before training cannot be checked",
        }
    )
    screen.result("Confirmed.")


def _first_weights(settings: dict[str, Any]) -> Path:
    """Return the file that the bound took its prior from."""
    named, checkpoint = settings["prior"], Path(settings["checkpoint"])
    path = find_prior(Path(named) if named else None, checkpoint, settings["weights_seed"])
    if not path.is_file():
        raise FileError(
            f"`eigenscape verify` compares the prior with the weights from before training, and "
            f"there is no '{path}' here. Name the file with `--prior`, or check the rest in "
            "Python: `read_run(folder).record.verify(risk)`."
        )
    return path
