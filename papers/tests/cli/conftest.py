"""The runner of the command line, and the folder with a user's own network."""

from tests.cli.conftest import cli as cli
from tests.cli.conftest import no_pictures as no_pictures
