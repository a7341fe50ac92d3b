"""What a verb of another package needs: options, the screen, run folders, exit codes."""

from eigenscape.cli._analysis import save as save
from eigenscape.cli._progress import Watch as Watch
from eigenscape.cli._runs import claim as claim
from eigenscape.cli._runs import command_line as command_line
from eigenscape.cli._runs import default_folder as default_folder
from eigenscape.cli._runs import resumable as resumable
from eigenscape.cli._screen import Screen as Screen
from eigenscape.cli._screen import duration as duration
from eigenscape.cli._subject import choose_device as choose_device
from eigenscape.cli._subject import describe_data as describe_data
from eigenscape.cli._subject import load_data as load_data
from eigenscape.cli._subject import load_model as load_model
from eigenscape.cli._subject import seed_everything as seed_everything
from eigenscape.cli._user_code import is_reference as is_reference
from eigenscape.cli._user_code import users_own as users_own
from eigenscape.cli._verb import NOT_CONVERGED as NOT_CONVERGED
from eigenscape.cli._verb import AsJson as AsJson
from eigenscape.cli._verb import DataDir as DataDir
from eigenscape.cli._verb import Debug as Debug
from eigenscape.cli._verb import Quiet as Quiet
from eigenscape.cli._verb import Seed as Seed
from eigenscape.cli._verb import verb as verb
from eigenscape.cli.analyze import DataName as DataName
from eigenscape.cli.analyze import Device as Device
from eigenscape.cli.analyze import Init as Init
from eigenscape.cli.analyze import LossName as LossName
from eigenscape.cli.analyze import ModelName as ModelName
from eigenscape.cli.analyze import Out as Out
from eigenscape.cli.analyze import Overwrite as Overwrite
from eigenscape.cli.analyze import Samples as Samples
from eigenscape.cli.analyze import Split as Split
from eigenscape.cli.analyze import find as find

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
    "resumable",
    "save",
    "seed_everything",
    "users_own",
    "verb",
]
