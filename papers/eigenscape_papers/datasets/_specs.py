"""What is known about the files of a data set: plain data, so that a test can bring its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from eigenscape_papers.datasets.pixels import PixelScale


@dataclass(frozen=True)
class Form:
    """One way in which a file may lie on the disk.

    Attributes:
        name: Its file name.
        checksum: "md5:…" or "sha256:…". Of the file as it lies there, but of what is inside where
            `packing` is "xz": those files were packed by somebody after they were published.
        size: Bytes of what the checksum is of; None where that is not known.
        packing: "none", "gz" or "xz".
        note: What a history should say of the checksum; empty where it is the published one.
    """

    name: str
    checksum: str
    size: int | None
    packing: str = "none"
    note: str = ""


@dataclass(frozen=True)
class FileSpec:
    """One file of a data set, in any of its forms; the first is the one that is downloaded."""

    name: str
    forms: tuple[Form, ...]


@dataclass(frozen=True)
class Archive:
    """A tar.gz that holds every file of the set, in `prefix`, under the names of the files."""

    form: Form
    prefix: str


@dataclass(frozen=True)
class FileSet:
    """The files of a data set.

    Attributes:
        name: Name of the data set.
        folders: Where they may lie, below the data folder; a download goes to the first.
        files: The files.
        mirrors: Base addresses of the downloads.
        archive: What is downloaded instead of the files, straight into the data folder.
    """

    name: str
    folders: tuple[str, ...]
    files: tuple[FileSpec, ...]
    mirrors: tuple[str, ...]
    archive: Archive | None = None

    def file(self, name: str) -> FileSpec:
        """Return the file of this name."""
        return next(file for file in self.files if file.name == name)


@dataclass(frozen=True)
class ImageSpec:
    """A set of labelled images.

    Attributes:
        files: Its files.
        split_files: Names of the files of each split, in the order in which they are read.
        num_samples: Images in each split.
        shape: (channels, height, width).
        num_classes: Number of classes.
        class_names: Their names, where no file has them.
        statistics: Of the training pixels; None to compute them when they are needed.
        label_key: Where the labels stand in a CIFAR file.
        names_key: Where the names stand in a CIFAR file.
    """

    files: FileSet
    split_files: Mapping[str, tuple[str, ...]]
    num_samples: Mapping[str, int]
    shape: tuple[int, int, int]
    num_classes: int
    class_names: tuple[str, ...] | None = None
    statistics: PixelScale | None = None
    label_key: bytes = b"labels"
    names_key: bytes = b"label_names"
