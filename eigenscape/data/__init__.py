"""Small data sets, each file checksummed before it is read, each step written down.

`load` gives a `DataSet`: tensors that a `DataLoader` and `EmpiricalRisk` take as they are, with the
history of how they were made.
"""

from eigenscape.data.data_set import DataSet as DataSet
from eigenscape.data.files import FileStatus as FileStatus
from eigenscape.data.pixels import NORMALISATIONS as NORMALISATIONS
from eigenscape.data.pixels import PixelScale as PixelScale
from eigenscape.data.registry import DataInfo as DataInfo
from eigenscape.data.registry import describe as describe
from eigenscape.data.registry import fetch as fetch
from eigenscape.data.registry import load as load
from eigenscape.data.registry import locate as locate
from eigenscape.data.registry import names as names
from eigenscape.data.sizes import sample_sizes as sample_sizes
from eigenscape.data.token_samples import TokenLogits as TokenLogits
from eigenscape.data.token_samples import token_samples as token_samples

__all__ = [
    "NORMALISATIONS",
    "DataInfo",
    "DataSet",
    "FileStatus",
    "PixelScale",
    "TokenLogits",
    "describe",
    "fetch",
    "load",
    "locate",
    "names",
    "sample_sizes",
    "token_samples",
]
