"""The papers' data sets, checksummed."""

from eigenscape_papers.datasets.characters import load_characters as load_characters
from eigenscape_papers.datasets.cifar import load_cifar as load_cifar
from eigenscape_papers.datasets.cifar import unpickle as unpickle
from eigenscape_papers.datasets.data_set import DataSet as DataSet
from eigenscape_papers.datasets.download import fetch_files as fetch_files
from eigenscape_papers.datasets.files import FileStatus as FileStatus
from eigenscape_papers.datasets.files import data_folders as data_folders
from eigenscape_papers.datasets.files import locate_files as locate_files
from eigenscape_papers.datasets.files import read_files as read_files
from eigenscape_papers.datasets.idx import load_idx as load_idx
from eigenscape_papers.datasets.idx import parse_idx as parse_idx
from eigenscape_papers.datasets.pixels import NORMALISATIONS as NORMALISATIONS
from eigenscape_papers.datasets.pixels import PixelScale as PixelScale
from eigenscape_papers.datasets.pixels import from_pixels as from_pixels
from eigenscape_papers.datasets.pixels import pixel_statistics as pixel_statistics
from eigenscape_papers.datasets.pixels import rescaled as rescaled
from eigenscape_papers.datasets.registry import DataInfo as DataInfo
from eigenscape_papers.datasets.registry import describe as describe
from eigenscape_papers.datasets.registry import fetch as fetch
from eigenscape_papers.datasets.registry import file_state as file_state
from eigenscape_papers.datasets.registry import load as load
from eigenscape_papers.datasets.registry import locate as locate
from eigenscape_papers.datasets.registry import names as names
from eigenscape_papers.datasets.sizes import sample_sizes as sample_sizes

__all__ = [
    "NORMALISATIONS",
    "DataInfo",
    "DataSet",
    "FileStatus",
    "PixelScale",
    "describe",
    "fetch",
    "file_state",
    "load",
    "locate",
    "names",
    "sample_sizes",
]
