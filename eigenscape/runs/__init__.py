"""Results on disk: run folders with checksums and where a result comes from; users' weights."""

from eigenscape.runs._folder import FIGURES as FIGURES
from eigenscape.runs._folder import REPORT as REPORT
from eigenscape.runs.provenance import commit as commit
from eigenscape.runs.provenance import device_of as device_of
from eigenscape.runs.provenance import now as now
from eigenscape.runs.provenance import provenance as provenance
from eigenscape.runs.provenance import seconds_of as seconds_of
from eigenscape.runs.provenance import versions as versions
from eigenscape.runs.runs import Run as Run
from eigenscape.runs.runs import RunSummary as RunSummary
from eigenscape.runs.runs import kind_of as kind_of
from eigenscape.runs.runs import list_runs as list_runs
from eigenscape.runs.runs import read_run as read_run
from eigenscape.runs.runs import save_run as save_run
from eigenscape.runs.weights import WRAPPERS as WRAPPERS
from eigenscape.runs.weights import read_weights as read_weights
from eigenscape.runs.weights import unwrapped as unwrapped

__all__ = [
    "Run",
    "RunSummary",
    "list_runs",
    "read_run",
    "save_run",
]
