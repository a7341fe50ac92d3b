"""The data sets by name: what there is, where its files are, how to get and load it."""

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eigenscape.errors import InvalidArgumentError, UnknownNameError, near_matches, require_choice
from eigenscape.records import ProgressCallback
from eigenscape_papers.datasets._catalogue import (
    CIFAR10,
    CIFAR100,
    FASHION_MNIST,
    MNIST,
    SHAKESPEARE,
)
from eigenscape_papers.datasets._specs import FileSet, ImageSpec
from eigenscape_papers.datasets.characters import load_characters
from eigenscape_papers.datasets.cifar import load_cifar
from eigenscape_papers.datasets.data_set import DataSet
from eigenscape_papers.datasets.digits import load_digits
from eigenscape_papers.datasets.download import fetch_files
from eigenscape_papers.datasets.files import FileStatus, locate_files
from eigenscape_papers.datasets.idx import load_idx
from eigenscape_papers.datasets.synthetic import class_mixture, clusters, gaussian


@dataclass(frozen=True)
class DataInfo:
    """What a data set is, without loading it.

    Attributes:
        name: For `load`.
        summary: One sentence.
        needs_files: Whether files must be there, or fetched, before it can be loaded.
        num_classes: Number of classes; by default, where options change it.
        input_shape: Shape of one input; by default, where options change it.
        num_train: Samples of the training split; by default, where options change it.
        num_test: Samples of the test split; by default, where options change it.
        citation: Whom to cite.
        licence: What is known of the licence.
    """

    name: str
    summary: str
    needs_files: bool
    num_classes: int
    input_shape: tuple[int, ...]
    num_train: int
    num_test: int
    citation: str
    licence: str


@dataclass(frozen=True)
class _Entry:
    info: DataInfo
    load: Callable[..., DataSet]
    files: FileSet | None = None

    @property
    def options(self) -> list[str]:
        """Names of the keyword arguments of the loader."""
        parameters = inspect.signature(self.load).parameters.values()
        return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def _images(
    spec: ImageSpec, load: Callable[..., DataSet], summary: str, citation: str, licence: str
) -> _Entry:
    info = DataInfo(
        name=spec.files.name,
        summary=summary,
        needs_files=True,
        num_classes=spec.num_classes,
        input_shape=spec.shape,
        num_train=spec.num_samples["train"],
        num_test=spec.num_samples["test"],
        citation=citation,
        licence=licence,
    )
    return _Entry(info, partial(load, spec), spec.files)


_KRIZHEVSKY = (
    'A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, 2009'
)
_DONG = "Dong, Zhang, Yao, Sun, Towards Quantifying the Hessian Structure of Neural Networks"
_PAPYAN = "V. Papyan, Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra"
_NO_LICENCE = "none needed: random numbers"

_ENTRIES = [
    _images(
        MNIST,
        load_idx,
        "Handwritten digits, grey, 28 × 28.",
        "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document "
        "recognition, 1998",
        "none in the files; usually given as CC BY-SA 3.0",
    ),
    _images(
        FASHION_MNIST,
        load_idx,
        "Pieces of clothing, grey, 28 × 28.",
        "H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
        "MIT",
    ),
    _images(
        CIFAR10,
        load_cifar,
        "Small photographs of ten kinds of things, colour, 32 × 32.",
        _KRIZHEVSKY,
        "none in the files; the authors ask for the citation",
    ),
    _images(
        CIFAR100,
        load_cifar,
        "Small photographs of a hundred kinds of things, colour, 32 × 32.",
        _KRIZHEVSKY,
        "none in the files; the authors ask for the citation",
    ),
    _Entry(
        DataInfo(
            "digits",
            "Handwritten digits that come with scikit-learn, grey, 8 × 8.",
            needs_files=False,
            num_classes=10,
            input_shape=(1, 8, 8),
            num_train=1437,
            num_test=360,
            citation="E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998",
            licence="CC BY 4.0 (UCI); shipped by scikit-learn",
        ),
        load_digits,
    ),
    _Entry(
        DataInfo(
            "gaussian",
            "Standard Gaussian inputs with labels that are independent of them.",
            needs_files=False,
            num_classes=500,
            input_shape=(500,),
            num_train=5000,
            num_test=5000,
            citation=f"{_DONG}, App. B.3",
            licence=_NO_LICENCE,
        ),
        gaussian,
    ),
    _Entry(
        DataInfo(
            "clusters",
            "Gaussian clusters around points of the unit sphere; a class has one or more.",
            needs_files=False,
            num_classes=500,
            input_shape=(64,),
            num_train=5000,
            num_test=5000,
            citation=f"{_DONG}, App. B.2",
            licence=_NO_LICENCE,
        ),
        clusters,
    ),
    _Entry(
        DataInfo(
            "class-mixture",
            "A Gaussian around t times the canonical vector of each class.",
            needs_files=False,
            num_classes=10,
            input_shape=(64,),
            num_train=1000,
            num_test=1000,
            citation=f"{_PAPYAN}, Def. 8.1",
            licence=_NO_LICENCE,
        ),
        class_mixture,
    ),
    _Entry(
        DataInfo(
            "characters",
            "Tiny Shakespeare, or your own text, as windows of characters.",
            needs_files=True,
            num_classes=65,
            input_shape=(64,),
            num_train=15_685,
            num_test=1_742,
            citation="A. Karpathy, char-rnn, 2015",
            licence="public domain",
        ),
        partial(load_characters, SHAKESPEARE),
        SHAKESPEARE,
    ),
]
_BY_NAME = {entry.info.name: entry for entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """List the data sets that `load` knows.

    Returns:
        Their names.

    Examples:
        >>> "digits" in names()
        True
    """
    return tuple(_BY_NAME)


def describe(name: str) -> DataInfo:
    """Say what a data set is, without loading it.

    Args:
        name: One of `names()`.

    Returns:
        Its summary, sizes, citation and licence.

    Raises:
        UnknownNameError: If there is no such set, with near matches.

    Examples:
        >>> describe("digits").input_shape
        (1, 8, 8)
    """
    return _entry(name, "describe").info


def load(
    name: str,
    *,
    split: str = "train",
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DataSet:
    """Load a data set; every file is compared with its published checksum before it is read.

    Options by set: `normalise=` for images ("standard", "unit", "half", "wu", "papyan",
    "dong");
    `dimension=`, `num_classes=`, `seed=` and more for the synthetic sets; `context=` and `path=`
    for characters. See the functions of the same names.

    Args:
        name: One of `names()`.
        split: "train" or "test".
        folder: Where the files are. By default the folder in the environment variable
            `EIGENSCAPE_DATA`, then the user's cache. Sets that need no files ignore it.
        **options: What the set takes.

    Returns:
        The data set, with the history of how it was made.

    Raises:
        UnknownNameError: If there is no such set, split or option, with near matches.
        DataError: If a file is missing (with the places that were looked at) or damaged.

    Examples:
        >>> load("digits", split="test")
        DataSet 'digits' (test): 360 samples of shape (1, 8, 8), 10 classes, torch.float32
        >>> load("class-mixture", dimension=12, num_classes=4, per_class=5, seed=1).num_samples
        20
    """
    entry = _entry(name, "load")
    require_choice(split, ("train", "test"), f"load({name!r}, split=...)")
    arguments: dict[str, Any] = {"split": split, "folder": folder}
    allowed = [option for option in entry.options if option not in arguments]
    for option in options:
        if option not in allowed:
            raise UnknownNameError(
                f"`load({name!r}, {option}=...)` is no option of this set. "
                f"{near_matches(option, allowed)}"
            )
    taken = {key: value for key, value in arguments.items() if key in entry.options}
    return entry.load(**taken, **options)


def locate(name: str, folder: str | os.PathLike[str] | None = None) -> list[FileStatus]:
    """Say of each file of a data set where it is, and whether it is sound; each one is read.

    Args:
        name: One of `names()`.
        folder: Where to look; by default as `load` does.

    Returns:
        One status a file; nothing for a set that needs no files.

    Raises:
        UnknownNameError: If there is no such set, with near matches.

    Examples:
        >>> [status.state for status in locate("mnist", folder="an-empty-folder")]
        ['missing', 'missing', 'missing', 'missing']
    """
    files = _entry(name, "locate").files
    return [] if files is None else locate_files(files, folder)


def fetch(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Path:
    """Download the files that a folder lacks; damaged ones are replaced.

    Each file is compared with its checksum before it gets its name; files that an interrupted
    call had finished are not fetched again.

    Args:
        name: One of `names()`.
        folder: Where they go; by default the folder in the environment variable
            `EIGENSCAPE_DATA`, else the user's cache.
        mirrors: Base addresses to try instead of the set's own; https only.
        progress: Called with a `Progress` as bytes arrive; its steps are bytes.

    Returns:
        The folder that now holds them.

    Raises:
        UnknownNameError: If there is no such set, with near matches.
        InvalidArgumentError: If the set needs no files, or an address is not https.
        DataError: If no mirror gives a file with the right checksum, or it cannot be written.
    """
    files = _entry(name, "fetch").files
    if files is None:
        raise InvalidArgumentError(
            f"`fetch({name!r})` has nothing to do: this set needs no files. Load it with "
            f"`load({name!r})`."
        )
    return fetch_files(files, folder, mirrors=mirrors, progress=progress)


def _entry(name: str, call: str) -> _Entry:
    entry = _BY_NAME.get(name)
    if entry is None:
        raise UnknownNameError(
            f"`{call}(name=...)` knows no data set {name!r}. {near_matches(name, _BY_NAME)}"
        )
    return entry


def file_state(name: str, folder: str | os.PathLike[str] | None) -> str:
    """Return "found", "missing", "damaged", or "not needed"."""
    states = {file.state for file in locate(name, folder)}
    if not states:
        return "not needed"
    return "damaged" if "damaged" in states else "missing" if "missing" in states else "found"
