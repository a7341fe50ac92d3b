"""Find data files and read them, each one checked against its published checksum first."""

import hashlib
import lzma
import os
import tarfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from eigenscape.errors import DataError
from eigenscape_papers.datasets._specs import FileSet, Form

FOLDER_VARIABLE = "EIGENSCAPE_DATA"

# What a packed file of unknown size may grow to: well above the largest file of any set here.
_LARGEST_CONTENT = 1 << 28


@dataclass(frozen=True)
class FileStatus:
    """What is known about one file of a data set.

    Attributes:
        name: The file's name.
        path: Where it lies (or the archive that holds it); None where it is missing.
        state: "ok", "missing" or "damaged". A foreign file under the right name counts as damaged.
        checksum: What is expected, as "md5:…" or "sha256:…".
        size: The expected number of bytes; None where that is not known.
        problem: In words, what is wrong with it; empty where nothing is.
    """

    name: str
    path: Path | None
    state: str
    checksum: str
    size: int | None
    problem: str = ""


@dataclass(frozen=True)
class Content:
    """A file that was read and found to be what it should be.

    Attributes:
        name: The file's name.
        data: Its bytes, unpacked.
        source: One sentence for a history.
    """

    name: str
    data: bytes
    source: str


def data_folders(folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """List the folders that are searched, in their order; a download goes to the first.

    Args:
        folder: If given, the only one. Otherwise the environment variable `EIGENSCAPE_DATA`, then
            `$XDG_CACHE_HOME/eigenscape/data`, or `~/.cache/eigenscape/data`.

    Returns:
        The folders; they need not exist.

    Examples:
        >>> [path.as_posix() for path in data_folders("my-data")]
        ['my-data']
    """
    if folder is not None:
        return [Path(folder)]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    named = os.environ.get(FOLDER_VARIABLE)
    return ([Path(named)] if named else []) + [Path(cache) / "eigenscape" / "data"]


def locate_files(
    file_set: FileSet, folder: str | os.PathLike[str] | None = None
) -> list[FileStatus]:
    """Say of each file of a set where it is and whether it is sound; every one is read for that.

    Args:
        file_set: The files.
        folder: Where to look; see `data_folders`.

    Returns:
        One status a file.
    """
    finder = _Finder(file_set, folder)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(lambda file: finder.find(file.name).status, file_set.files))


def read_files(
    file_set: FileSet, names: Sequence[str], folder: str | os.PathLike[str] | None = None
) -> Iterator[Content]:
    """Read files of a set, unpacked; nothing leaves this function unchecked.

    Args:
        file_set: The files.
        names: Which of them.
        folder: Where to look; see `data_folders`.

    Yields:
        Their contents; those that lie in an archive come last, in the archive's order.

    Raises:
        DataError: If one is missing (with the places that were looked at) or damaged.
    """
    finder = _Finder(file_set, folder)
    archived: dict[Path, list[str]] = {}
    # Unpacking and checksums release the interpreter's lock, so threads do help here.
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for lookup in pool.map(finder.find, names):
            status = lookup.status
            if status.path is None or status.state != "ok":
                raise DataError(f"{status.problem} {advice(file_set)}")
            if lookup.content is None:
                archived.setdefault(status.path, []).append(status.name)
            else:
                source = f"read {status.path.name} ({status.checksum}{lookup.note})"
                yield Content(status.name, lookup.content, source)
    for path, inside in archived.items():
        yield from _read_archive(file_set, path, inside)


def advice(file_set: FileSet) -> str:
    """Say how to get the files of a set."""
    return (
        f"Get the files with `eigenscape data fetch {file_set.name}` or "
        f"`data.fetch({file_set.name!r})`, which replaces what is damaged."
    )


def checksum_problem(data: bytes | Path, form: Form) -> str:
    """Compare bytes, or a file as it lies on the disk, with what is expected.

    Args:
        data: The bytes, or the path of a file.
        form: What is expected.

    Returns:
        What is wrong, in words; empty where nothing is.
    """
    algorithm, _, expected = form.checksum.partition(":")
    size = data.stat().st_size if isinstance(data, Path) else len(data)
    if form.size is not None and size != form.size:
        return f"expected {form.size} bytes, got {size}"
    # MD5 is what was published; against an attacker, CIFAR's reader has a second barrier.
    digest = hashlib.new(algorithm, usedforsecurity=False)
    if isinstance(data, Path):
        with data.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    else:
        digest.update(data)
    got = digest.hexdigest()
    return "" if got == expected else f"expected {form.checksum}, got {algorithm}:{got}"


@dataclass(frozen=True)
class _Found:
    status: FileStatus
    content: bytes | None = None  # also None where an archive holds it
    note: str = ""


class _Finder:
    """Looks for the files of one set, and checks an archive only once."""

    def __init__(self, file_set: FileSet, folder: str | os.PathLike[str] | None) -> None:
        self._set = file_set
        self._roots = data_folders(folder)
        self._lock = threading.Lock()
        self._archives: dict[Path, str] = {}

    def find(self, name: str) -> _Found:
        """Return the first sound form of a file, with its content unless an archive holds it."""
        damaged: FileStatus | None = None
        for path, form in self._candidates(name):
            if not path.is_file():
                continue
            in_archive = self._set.archive is not None and form is self._set.archive.form
            content: bytes | None = None
            try:
                if in_archive:
                    problem = self._archive_problem(path, form)
                else:
                    content, problem = _unpacked(path, form)
            except OSError as error:
                problem = f"expected a file that can be read, got {error}"
            if not problem:
                note = f", {form.note}" if form.note else ""
                status = FileStatus(name, path, "ok", form.checksum, form.size)
                return _Found(status, content, note)
            text = f"{path} is damaged or not the published file: {problem}."
            damaged = damaged or FileStatus(
                name, path, "damaged", form.checksum, form.size, problem=text
            )
        if damaged is not None:
            return _Found(damaged)
        first = self._set.file(name).forms[0]
        text = self._missing(name)
        return _Found(FileStatus(name, None, "missing", first.checksum, first.size, problem=text))

    def _missing(self, name: str) -> str:
        archive = self._set.archive
        forms = [form.name for form in self._set.file(name).forms]
        expected = " or ".join([*forms, *([archive.form.name] if archive else [])])
        places = ", ".join(str(root / sub) for root in self._roots for sub in self._set.folders)
        return (
            f"A file of {self._set.name!r} is missing: expected {expected} in one of {places}; "
            "found none. Name another folder with `folder=...` or the environment variable "
            f"{FOLDER_VARIABLE}."
        )

    def _candidates(self, name: str) -> Iterator[tuple[Path, Form]]:
        for root in self._roots:
            for sub in self._set.folders:
                for form in self._set.file(name).forms:
                    yield root / sub / form.name, form
            if self._set.archive is not None:
                yield root / self._set.archive.form.name, self._set.archive.form

    def _archive_problem(self, path: Path, form: Form) -> str:
        with self._lock:
            if path not in self._archives:
                self._archives[path] = checksum_problem(path, form)
            return self._archives[path]


def _unpacked(path: Path, form: Form) -> tuple[bytes, str]:
    """Return the content of a file, and what is wrong with it."""
    if form.packing != "xz" and form.size is not None and path.stat().st_size != form.size:
        return b"", f"expected {form.size} bytes, got {path.stat().st_size}"
    raw = path.read_bytes()
    if form.packing != "xz" and (problem := checksum_problem(raw, form)):
        return b"", problem
    if form.packing == "none":
        return raw, ""
    # A few bytes may unpack to very many: never more than are expected.
    limit = (form.size if form.packing == "xz" else None) or _LARGEST_CONTENT
    packer = lzma.LZMADecompressor() if form.packing == "xz" else zlib.decompressobj(wbits=31)
    try:
        content = packer.decompress(raw, limit + 1)
    except (lzma.LZMAError, zlib.error, EOFError) as error:
        return b"", f"expected a whole .{form.packing} file, got another ({error})"
    if not packer.eof:
        shape = "more than expected in it" if len(content) > limit else "one that breaks off"
        return b"", f"expected a whole .{form.packing} file, got {shape}"
    return content, checksum_problem(content, form) if form.packing == "xz" else ""


def _read_archive(file_set: FileSet, path: Path, names: Sequence[str]) -> Iterator[Content]:
    """Read members into memory in one pass; nothing is ever extracted to the disk."""
    archive = file_set.archive
    if archive is None:
        return
    wanted = {f"{archive.prefix}/{name}": name for name in names}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                name = wanted.pop(member.name, None) if member.isreg() else None
                stream = tar.extractfile(member) if name is not None else None
                if name is None or stream is None:
                    continue
                # The archive was sound a moment ago; its members have checksums of their own.
                form = file_set.file(name).forms[0]
                data = stream.read(_LARGEST_CONTENT)
                if problem := checksum_problem(data, form):
                    raise DataError(f"{path}, member {member.name}: {problem}. {advice(file_set)}")
                source = f"read {name} ({form.checksum}) from {archive.form.name}"
                yield Content(name, data, source)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(
            f"{path} is damaged: expected a tar.gz archive, got {error}. {advice(file_set)}"
        ) from error
    if wanted:
        raise DataError(
            f"{path} is incomplete: expected the members {', '.join(wanted)}, found none of them. "
            f"{advice(file_set)}"
        )
