"""The inside of a run folder: what is proven on reading, and what is never touched."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from eigenscape.errors import RunError
from eigenscape.runs import _folder
from eigenscape.runs._folder import (
    check_files,
    clear_old,
    empty_saving,
    is_checkpoint,
    is_unfinished,
    listed,
    manifest_bytes,
    move_in,
    read_manifest,
    require_free,
)


def facts(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}


FILES = {"arrays.safetensors": b"numbers", "figures/one.png": b"a picture"}


def manifest(**changes: Any) -> dict[str, Any]:
    files = {name: facts(content) for name, content in FILES.items()}
    return {"format": "eigenscape-run", "version": 1, "files": files, "title": "λ", **changes}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run, written by hand."""
    folder = tmp_path / "run"
    (folder / "figures").mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "run.json").write_bytes(manifest_bytes(manifest()))
    return folder


def checkpoint_in(folder: Path, *names: str) -> Path:
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True)
    for name in names or ("key.json", "basis.safetensors"):
        (checkpoint / name).write_bytes(b"{}")
    return checkpoint


# --- reading -------------------------------------------------------------------------------------


def test_a_manifest_comes_back_as_it_was(run: Path) -> None:
    assert read_manifest(run) == manifest()
    check_files(run, read_manifest(run))


def rewrite(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Edit run.json and give it a checksum that fits again."""

    def edit(path: Path) -> None:
        plain = manifest()
        change(plain)
        path.write_bytes(manifest_bytes(plain))

    return edit


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:40]), "must be JSON"),
    "edited": (lambda p: p.write_text(p.read_text().replace('"title"', '"name"')), "checksum"),
    "without checksum": (lambda p: p.write_text(json.dumps(manifest())), "checksum"),
    "a list": (lambda p: p.write_text("[1]"), "got 'list'"),
    "another program's": (rewrite(lambda m: m.update(format="other")), "got 'other'"),
    "newer": (rewrite(lambda m: m.update(version=2)), "update yours"),
    "no whole version": (rewrite(lambda m: m.update(version=True)), "whole number as its version; got True"),
    "gone": (lambda p: p.unlink(), "is no run"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_of_a_manifest_is_told(run: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    damage(run / "run.json")
    with pytest.raises(RunError, match=words):
        read_manifest(run)


def test_files_are_proven_by_size_and_content(run: Path) -> None:
    path = run / "figures" / "one.png"
    path.write_bytes(b"a pictur3")
    check_files(run, manifest(), content=False)  # the size is the same
    with pytest.raises(RunError, match="SHA-256"):
        check_files(run, manifest())
    path.write_bytes(b"a pic")
    with pytest.raises(RunError, match="must have 9 bytes; it has 5"):
        check_files(run, manifest(), content=False)
    path.unlink()
    with pytest.raises(RunError, match="part of the run and missing"):
        check_files(run, manifest(), content=False)


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a\\..\\b", ""])
def test_a_manifest_lists_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="not inside the folder"):
        listed(tmp_path, {"files": {name: facts(b"")}})


@pytest.mark.parametrize(
    "files", [None, [], {"a": 1}, {"a": {"bytes": "1", "sha256": ""}}, {"a": {"bytes": 1}}]
)
def test_a_list_without_sizes_and_sums_is_refused(tmp_path: Path, files: object) -> None:
    with pytest.raises(RunError, match="must list its files with size and SHA-256"):
        listed(tmp_path, {"files": files})


def test_what_is_no_run_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    begun, saving, other = (tmp_path / name for name in ("begun", "saving", "other"))
    checkpoint_in(begun)
    (saving / ".saving").mkdir(parents=True)
    other.mkdir()
    for folder, words in {
        tmp_path / "nowhere": "There is no folder",
        file: "is a file",
        begun: "has a checkpoint.*Resume",
        saving: "interrupted while it was being saved",
        other: "is no run: it has no 'run.json'",
    }.items():
        with pytest.raises(RunError, match=words):
            read_manifest(folder)
        assert is_unfinished(folder) is (folder in (begun, saving))


# --- writing -------------------------------------------------------------------------------------


def test_folders_that_are_free(tmp_path: Path, run: Path) -> None:
    require_free(tmp_path / "new", overwrite=False)
    (tmp_path / "empty").mkdir()
    require_free(tmp_path / "empty", overwrite=False)
    (tmp_path / "begun" / ".saving").mkdir(parents=True)
    require_free(tmp_path / "begun", overwrite=False)
    checkpoint_in(tmp_path / "resumed")
    (tmp_path / "resumed" / "notes.txt").touch()
    require_free(tmp_path / "resumed", overwrite=False)
    require_free(run, overwrite=True)


def test_what_belongs_to_others_is_left_alone(tmp_path: Path, run: Path) -> None:
    with pytest.raises(RunError, match=r"holds a run.*overwrite=True"):
        require_free(run, overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="is a file"):
        require_free(tmp_path / "file", overwrite=True)
    others = tmp_path / "others"
    others.mkdir()
    (others / "run.json").write_text('{"format": "another"}')
    with pytest.raises(RunError, match="another program"):
        require_free(others, overwrite=True)
    (others / "run.json").rename(others / "thesis.tex")
    with pytest.raises(RunError, match=r"other files \('thesis.tex'\)"):
        require_free(others, overwrite=True)
    resumed = tmp_path / "resumed"
    checkpoint_in(resumed)
    (resumed / "report.html").touch()
    with pytest.raises(RunError, match=r"other files \('report.html'\)"):
        require_free(resumed, overwrite=True)


def test_a_checkpoint_of_others_is_none(tmp_path: Path) -> None:
    assert is_checkpoint(checkpoint_in(tmp_path / "a"))
    assert not is_checkpoint(checkpoint_in(tmp_path / "b", "weights.pt", "key.json"))
    assert not is_checkpoint(checkpoint_in(tmp_path / "c", "basis.safetensors"))
    assert not is_checkpoint(tmp_path / "nowhere")
    os.symlink(tmp_path / "a" / "checkpoint", tmp_path / "link")
    assert not is_checkpoint(tmp_path / "link")


@pytest.mark.parametrize("damaged", [False, True])
def test_an_old_run_goes_and_what_lay_beside_it_stays(run: Path, damaged: bool) -> None:
    (run / "notes.txt").write_text("mine")
    (run / "figures" / "mine.png").touch()
    if damaged:
        (run / "run.json").write_text("eigenscape-run")
    clear_old(run)
    left = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    kept = {"figures/one.png"} if damaged else set()  # its list is lost
    assert left == {"notes.txt", "figures/mine.png"} | kept
    clear_old(run)  # nothing more to do


def test_an_old_manifest_takes_away_nothing_outside(run: Path) -> None:
    victim = run.parent / "victim"
    victim.write_text("mine")
    rewrite(lambda m: m["files"].update({"../victim": facts(b"mine")}))(run / "run.json")
    clear_old(run)
    assert victim.read_text() == "mine"
    assert not (run / "run.json").exists()


def test_new_files_move_in_and_the_manifest_last(tmp_path: Path, monkeypatch: Any) -> None:
    saving = empty_saving(tmp_path)
    (saving / "figures").mkdir()
    for name, content in {**FILES, "run.json": manifest_bytes(manifest())}.items():
        (saving / name).write_bytes(content)
    checkpoint_in(tmp_path)
    order = []
    write = _folder.write_with
    monkeypatch.setattr(
        _folder, "write_with", lambda path, put: (order.append(path.name), write(path, put))
    )
    move_in(tmp_path, list(FILES))
    assert order == ["arrays.safetensors", "one.png", "run.json"]
    check_files(tmp_path, read_manifest(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["arrays.safetensors", "figures", "run.json"]


def test_a_foreign_folder_called_checkpoint_stays(tmp_path: Path) -> None:
    saving = empty_saving(tmp_path)
    (saving / "run.json").write_bytes(manifest_bytes(manifest(files={})))
    foreign = checkpoint_in(tmp_path, "weights.pt")
    move_in(tmp_path, [])
    assert (foreign / "weights.pt").exists()


def test_what_an_interrupted_save_left_is_emptied(tmp_path: Path) -> None:
    (tmp_path / ".saving" / "figures").mkdir(parents=True)
    (tmp_path / ".saving" / "half").touch()
    assert list(empty_saving(tmp_path).iterdir()) == []
    assert is_unfinished(tmp_path)
