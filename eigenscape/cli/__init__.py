"""The command line: `eigenscape VERB`, one file per verb."""

from eigenscape.cli.app import app as app
from eigenscape.cli.app import main as main

__all__ = ["app", "main"]
