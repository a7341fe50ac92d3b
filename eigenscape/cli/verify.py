"""`eigenscape verify`: check a kept certificate, with fresh draws."""

from typing import Annotated

import typer

from eigenscape.cli import _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import Debug, Quiet
from eigenscape.cli.analyze import Device
from eigenscape.cli.bound import find_risk
from eigenscape.errors import InvalidArgumentError


def verify(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a bound, or a name under runs/.")
    ],
    draws: Annotated[
        int | None, typer.Option(help="Fresh networks [default: as many as it had].", min=1)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the fresh networks [default: the next one].")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check a certificate that `eigenscape bound` has kept.

    Model and data are loaded as they were for the bound, so run it in the same folder. Compared are
    the data, the parameters that are not drawn, the divergence by another formula, all arithmetic,
    and the error of fresh networks.

    Examples:
      eigenscape verify runs/my-bound
      eigenscape verify my-bound --draws 100

    Raises:
        InvalidArgumentError: If the run holds no certificate, or not what it was made from.
    """
    from eigenscape.bounds import NetworkCertificate
    from eigenscape.report import read_run

    screen, folder = Screen(quiet=quiet), _runs.find_run(run)
    with Watch(screen, "reading the run"):
        found = read_run(folder)
    record = found.record
    if not isinstance(record, NetworkCertificate) or found.settings.get("verb") != "bound":
        raise InvalidArgumentError(
            f"'{folder}' holds no certificate made by `eigenscape bound`; it is a run of kind "
            f"'{found.kind}'. In Python, `read_run(folder).record.verify(risk)` checks any."
        )
    risk = find_risk(screen, {**found.settings, "device": device})
    with Watch(screen, "drawing networks") as watch:
        fresh = record.verify(risk, num_samples=draws, seed=seed, progress=watch)
    screen.facts(
        {
            "certificate": record.certificate.status,
            "fresh networks": f"{fresh.num_samples:,}, with an error of {fresh.error:.4g}; it says "
            f"at most {record.certificate.error_bound:.4g}",
        }
    )
    screen.result("Confirmed.")
