"""The command line: `eigenscape VERB`, one file per verb; more verbs by entry points."""

import importlib
import sys

from eigenscape.errors import MissingPackageError, require_packages


def main() -> None:
    """Run the command line of this process."""
    try:
        require_packages("eigenscape", "typer", "rich")
    except MissingPackageError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None  # refused, as by a verb
    importlib.import_module("eigenscape.cli.app").main()
