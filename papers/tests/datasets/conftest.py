"""Tiny data sets in the formats of the real ones, and the real ones where they can be found."""

import gzip
import hashlib
import io
import lzma
import os
import pickle
import struct
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from eigenscape_papers.datasets._specs import Archive, FileSet, FileSpec, Form, ImageSpec


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def tar_of(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@dataclass
class Tiny:
    """A data set in a folder of its own.

    Attributes:
        spec: What the loader gets.
        folder: The data folder; empty until something is written.
        contents: The files, unpacked, by name.
        images: Images of each split, uint8.
        labels: Labels of each split.
        tar: The archive with all files, where there is one.
    """

    spec: ImageSpec
    folder: Path
    contents: dict[str, bytes]
    images: dict[str, np.ndarray]
    labels: dict[str, list[int]]
    tar: bytes = b""

    def put(self, name: str | Path, content: bytes) -> Path:
        path = self.folder / name
        assert path.is_relative_to(self.folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def form(self, name: str, packing: str) -> Form:
        return next(f for f in self.spec.files.file(name).forms if f.packing == packing)

    def write(self, packing: str, sub: str) -> None:
        """Write every file of the set in one form."""
        pack = {"none": bytes, "gz": packed_gz, "xz": lzma.compress}[packing]
        for name, content in self.contents.items():
            self.put(Path(sub, self.form(name, packing).name), pack(content))

    def with_content(self, name: str, content: bytes) -> "Tiny":
        """Return the set with one file exchanged, as if it had been published so."""
        files = tuple(
            replace(
                file,
                forms=tuple(
                    replace(
                        form,
                        checksum=md5(packed_gz(content) if form.packing == "gz" else content),
                        size=len(packed_gz(content) if form.packing == "gz" else content),
                    )
                    for form in file.forms
                ),
            )
            if file.name == name
            else file
            for file in self.spec.files.files
        )
        spec = replace(self.spec, files=replace(self.spec.files, files=files))
        return replace(self, spec=spec, contents=self.contents | {name: content})


def packed_gz(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


@pytest.fixture
def tiny_idx(tmp_path: Path) -> Tiny:
    """Six and four images of 4 × 3 pixels in three classes, as IDX."""
    rng = np.random.default_rng(0)
    images = {s: rng.integers(0, 256, (n, 4, 3), dtype=np.uint8) for s, n in SIZES.items()}
    labels = {"train": [0, 1, 2, 0, 1, 2], "test": [2, 1, 0, 0]}
    parts = {s: (f"{s}-images", f"{s}-labels") for s in SIZES}
    contents = {parts[s][0]: idx(images[s]) for s in SIZES}
    contents |= {parts[s][1]: idx(np.array(labels[s])) for s in SIZES}
    files = tuple(
        FileSpec(
            name,
            (
                Form(f"{name}.gz", md5(packed_gz(c)), len(packed_gz(c)), "gz"),
                Form(name, md5(c), len(c), note="made here"),
            ),
        )
        for name, c in contents.items()
    )
    spec = ImageSpec(
        files=FileSet("tiny", ("Tiny/raw", ""), files, ("https://nowhere.invalid/",)),
        split_files=parts,
        num_samples=SIZES,
        shape=(1, 4, 3),
        num_classes=3,
        class_names=("a", "b", "c"),
    )
    return Tiny(spec, tmp_path / "idx", contents, images, labels)


SIZES = {"train": 6, "test": 4}


def cifar_batch(images: np.ndarray, labels: list[int]) -> bytes:
    rows = images.reshape(len(images), -1)
    content = {b"batch_label": b"tiny", b"labels": labels, b"data": rows, b"filenames": [b"x.png"]}
    return pickle.dumps(content, protocol=3)  # 3: the first that has byte strings


@pytest.fixture
def tiny_cifar(tmp_path: Path) -> Tiny:
    """Two batches of three and one of four images of 3 × 2 × 2, as CIFAR has them."""
    rng = np.random.default_rng(1)
    images = {s: rng.integers(0, 256, (n, 3, 2, 2), dtype=np.uint8) for s, n in SIZES.items()}
    labels = {"train": [0, 1, 2, 2, 1, 0], "test": [2, 1, 0, 1]}
    contents = {
        "batch_1": cifar_batch(images["train"][:3], labels["train"][:3]),
        "batch_2": cifar_batch(images["train"][3:], labels["train"][3:]),
        "test_batch": cifar_batch(images["test"], labels["test"]),
        "meta": pickle.dumps({b"label_names": [b"cat", b"dog", b"ship"]}, protocol=3),
    }
    files = tuple(
        FileSpec(
            name,
            (Form(name, md5(c), len(c)), Form(f"{name}.xz", md5(c), len(c), "xz")),
        )
        for name, c in contents.items()
    )
    # Not in the order of the batches, as in the real archive.
    members = {f"tiny-py/{name}": contents[name] for name in reversed(contents)}
    tar = tar_of({"../evil": b"x", **members})
    archive = Archive(Form("tiny-python.tar.gz", md5(tar), len(tar)), "tiny-py")
    spec = ImageSpec(
        files=FileSet("tiny-cifar", ("tiny-py", ""), files, ("https://nowhere.invalid/",), archive),
        split_files={"train": ("batch_1", "batch_2"), "test": ("test_batch",), "names": ("meta",)},
        num_samples=SIZES,
        shape=(3, 2, 2),
        num_classes=3,
    )
    return Tiny(spec, tmp_path / "cifar", contents, images, labels, tar)


@pytest.fixture
def real_folder() -> str:
    """The folder with the real files, or a skip."""
    folder = os.environ.get("EIGENSCAPE_DATA")
    if not folder:
        pytest.skip("EIGENSCAPE_DATA is not set, so the real files cannot be found")
    return folder
