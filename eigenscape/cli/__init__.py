"""The command line: `eigenscape VERB`, one file per verb; more verbs by entry points."""

import importlib


def main() -> None:
    """Run the command line of this process."""
    importlib.import_module("eigenscape.cli.app").main()
