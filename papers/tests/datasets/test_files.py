import hashlib
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eigenscape.errors import DataError
from eigenscape_papers.datasets import data_folders, locate_files, read_files


def states(tiny: Any) -> set[str]:
    return {status.state for status in locate_files(tiny.spec.files, tiny.folder)}


def read(tiny: Any, *names: str) -> dict[str, bytes]:
    names = names or tuple(tiny.contents)
    return {c.name: c.data for c in read_files(tiny.spec.files, names, tiny.folder)}


def test_folders_in_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EIGENSCAPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folders() == [tmp_path / "eigenscape" / "data"]
    monkeypatch.setenv("EIGENSCAPE_DATA", "mine")
    assert data_folders() == [Path("mine"), tmp_path / "eigenscape" / "data"]
    assert data_folders("given") == [Path("given")]
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("EIGENSCAPE_DATA", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert data_folders() == [Path("/home/someone/.cache/eigenscape/data")]


def test_environment_and_cache_are_searched(
    tiny_idx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EIGENSCAPE_DATA", str(tmp_path / "empty"))
    tiny = replace(tiny_idx, folder=tmp_path / "cache" / "eigenscape" / "data")
    tiny.write("gz", "Tiny/raw")
    found = locate_files(tiny.spec.files)
    assert [status.state for status in found] == ["ok"] * 4
    assert found[0].path == tiny.folder / "Tiny/raw/train-images.gz"


@pytest.mark.parametrize("sub", ["Tiny/raw", "."])
@pytest.mark.parametrize("packing", ["gz", "none"])
def test_every_layout_of_idx_is_found(tiny_idx: Any, packing: str, sub: str) -> None:
    tiny_idx.write(packing, sub)
    assert states(tiny_idx) == {"ok"}
    assert read(tiny_idx) == tiny_idx.contents


@pytest.mark.parametrize("sub", ["tiny-py", "."])
@pytest.mark.parametrize("packing", ["xz", "none"])
def test_every_layout_of_cifar_is_found(tiny_cifar: Any, packing: str, sub: str) -> None:
    tiny_cifar.write(packing, sub)
    assert states(tiny_cifar) == {"ok"}
    assert read(tiny_cifar) == tiny_cifar.contents


def test_archive_is_read_without_extracting(tiny_cifar: Any) -> None:
    tiny_cifar.put("tiny-python.tar.gz", tiny_cifar.tar)
    found = locate_files(tiny_cifar.spec.files, tiny_cifar.folder)
    assert {status.path.name for status in found if status.path} == {"tiny-python.tar.gz"}
    assert {status.state for status in found} == {"ok"}
    assert read(tiny_cifar) == tiny_cifar.contents
    assert [path.name for path in tiny_cifar.folder.parent.rglob("*")] == [
        "cifar",
        "tiny-python.tar.gz",
    ]


def test_source_names_file_and_checksum(tiny_idx: Any) -> None:
    tiny_idx.write("none", "")
    (content,) = read_files(tiny_idx.spec.files, ["test-labels"], tiny_idx.folder)
    checksum = tiny_idx.form("test-labels", "none").checksum
    assert content.source == f"read test-labels ({checksum}, made here)"


def test_missing_lists_names_and_places(tiny_idx: Any) -> None:
    assert states(tiny_idx) == {"missing"}
    with pytest.raises(DataError) as caught:
        read(tiny_idx)
    text = str(caught.value)
    assert "train-images.gz or train-images" in text
    assert f"{tiny_idx.folder / 'Tiny/raw'}, {tiny_idx.folder};" in text
    assert "eigenscape data fetch tiny" in text


def test_missing_names_the_archive(tiny_cifar: Any) -> None:
    with pytest.raises(DataError, match=r"batch_1\.xz or tiny-python\.tar\.gz"):
        read(tiny_cifar)


@pytest.mark.parametrize("packing", ["gz", "none"])
@pytest.mark.parametrize("damage", ["bit", "short", "long", "empty", "foreign"])
def test_damaged_file_is_refused(tiny_idx: Any, packing: str, damage: str) -> None:
    tiny_idx.write(packing, "Tiny/raw")
    path = tiny_idx.folder / "Tiny/raw" / tiny_idx.form("train-images", packing).name
    good = path.read_bytes()
    other = (path.parent / tiny_idx.form("test-images", packing).name).read_bytes()
    path.write_bytes(
        {
            "bit": good[:-1] + bytes([good[-1] ^ 1]),
            "short": good[:-3],
            "long": good + b"\0",
            "empty": b"",
            "foreign": other,
        }[damage]
    )
    found = {status.name: status for status in locate_files(tiny_idx.spec.files, tiny_idx.folder)}
    assert found["train-images"].state == "damaged"
    assert found["train-images"].path == path
    assert found["train-labels"].state == "ok"
    with pytest.raises(DataError, match=r"expected .*, got .*eigenscape data fetch tiny") as caught:
        read(tiny_idx)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("damage", ["short", "bit", "bomb", "foreign", "text"])
def test_damaged_xz_is_refused(tiny_cifar: Any, damage: str) -> None:
    tiny_cifar.write("xz", "tiny-py")
    good = lzma.compress(tiny_cifar.contents["batch_1"])
    content = {
        "short": good[:-10],
        "bit": good[:40] + bytes([good[40] ^ 1]) + good[41:],
        "bomb": lzma.compress(tiny_cifar.contents["batch_1"] + bytes(10_000_000)),
        "foreign": lzma.compress(tiny_cifar.contents["batch_2"]),
        "text": b"<html>not found</html>",
    }[damage]
    tiny_cifar.put("tiny-py/batch_1.xz", content)
    with pytest.raises(DataError, match=r"batch_1\.xz is damaged.*expected .*, got ") as caught:
        read(tiny_cifar)
    assert ("more than expected" in str(caught.value)) == (damage == "bomb")


def test_sound_form_is_taken_where_another_is_damaged(tiny_cifar: Any) -> None:
    tiny_cifar.put("tiny-py/batch_1", b"damaged")
    tiny_cifar.put("tiny-python.tar.gz", tiny_cifar.tar)
    assert states(tiny_cifar) == {"ok"}
    assert read(tiny_cifar, "batch_1") == {"batch_1": tiny_cifar.contents["batch_1"]}


def test_damaged_archive_is_refused(tiny_cifar: Any) -> None:
    tiny_cifar.put("tiny-python.tar.gz", tiny_cifar.tar[:-1])
    assert states(tiny_cifar) == {"damaged"}
    with pytest.raises(DataError, match=r"tiny-python\.tar\.gz is damaged"):
        read(tiny_cifar)


def test_archive_must_be_one(tiny_cifar: Any) -> None:
    noise = b"this is no archive"
    checksum = "md5:" + hashlib.md5(noise, usedforsecurity=False).hexdigest()
    archive = tiny_cifar.spec.files.archive
    form = replace(archive.form, checksum=checksum, size=len(noise))
    files = replace(tiny_cifar.spec.files, archive=replace(archive, form=form))
    tiny_cifar.put("tiny-python.tar.gz", noise)
    with pytest.raises(DataError, match=r"expected a tar\.gz archive"):
        list(read_files(files, ["batch_1"], tiny_cifar.folder))


def test_archive_must_hold_the_members(tiny_cifar: Any) -> None:
    tiny_cifar.put("tiny-python.tar.gz", tiny_cifar.tar)
    archive = replace(tiny_cifar.spec.files.archive, prefix="elsewhere")
    moved = replace(tiny_cifar.spec.files, archive=archive)
    with pytest.raises(DataError, match="expected the members elsewhere/batch_1"):
        list(read_files(moved, ["batch_1"], tiny_cifar.folder))
    # Sound as an archive, but a member is not what it should be.
    other = tiny_cifar.with_content("batch_1", b"another file")
    with pytest.raises(DataError, match="member tiny-py/batch_1: expected 12 bytes"):
        read(other)


def test_unreadable_file_is_refused(tiny_idx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_idx.write("gz", "")

    def forbidden(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    with pytest.raises(DataError, match=r"can be read, got .*Permission denied"):
        read(tiny_idx)
