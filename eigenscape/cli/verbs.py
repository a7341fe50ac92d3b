"""What a verb of another package needs: options, the screen, run folders, exit codes."""

from eigenscape.cli._progress import Watch
from eigenscape.cli._runs import (
    claim,
    command_line,
    default_folder,
    open_run,
    resumable,
    save,
    settings_of,
)
from eigenscape.cli._screen import Screen, duration
from eigenscape.cli._subject import (
    choose_device,
    describe_data,
    load_data,
    load_model,
    seed_everything,
)
from eigenscape.cli._user_code import is_reference, users_own
from eigenscape.cli._verb import NOT_CONVERGED, AsJson, DataDir, Debug, Quiet, Seed, verb
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

__all__ = [
    "NOT_CONVERGED",
    "AsJson",
    "DataDir",
    "DataName",
    "Debug",
    "Device",
    "Init",
    "LossName",
    "ModelName",
    "Out",
    "Overwrite",
    "Quiet",
    "Samples",
    "Screen",
    "Seed",
    "Split",
    "Watch",
    "choose_device",
    "claim",
    "command_line",
    "default_folder",
    "describe_data",
    "duration",
    "find",
    "is_reference",
    "load_data",
    "load_model",
    "open_run",
    "resumable",
    "save",
    "seed_everything",
    "settings_of",
    "users_own",
    "verb",
]
