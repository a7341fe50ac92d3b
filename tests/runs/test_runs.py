"""Run folders: bit by bit back, every damage named, and no crash that reads as finished."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eigenscape.analyses import Analysis
from eigenscape.errors import EigenscapeWarning, RunError, WrongTypeError
from eigenscape.linalg import eigsh, solve, trace
from eigenscape.operator import Dense
from eigenscape.records import Checkpoint, Record, pack
from eigenscape.runs import list_runs, read_run, save_run
from tests.report import samples


def plain(value: float = 1.0) -> Record:
    """Return a record without pictures, which is saved in no time."""
    return solve(Dense(torch.eye(3)), value * torch.ones(3))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    record = samples.analysis(n=40)
    folder = save_run(
        record, tmp_path_factory.mktemp("runs") / "whole", settings={"command": "analyze <x>"}
    )
    torch.set_default_dtype(before)
    return record, folder


# --- there and back ------------------------------------------------------------------------------


def test_an_analysis_comes_back_bit_by_bit(whole: tuple[Analysis, Path]) -> None:
    record, folder = whole
    run = read_run(folder)
    (before, tensors), (after, again) = pack(record), pack(run.record)
    assert before == after
    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    assert (run.kind, run.title, run.seed) == ("analysis", "A small network", 7)
    assert run.settings == {"command": "analyze <x>"}
    assert (run.device, run.num_products) == ("cpu", 4321)
    assert run.seconds == pytest.approx(3.75)
    assert run.versions["torch"] == torch.__version__
    assert set(run.versions) == {"eigenscape", "python", "torch", "numpy"}
    assert run.created.endswith("+00:00")


def test_a_run_folder_holds_what_it_says(whole: tuple[Analysis, Path]) -> None:
    folder = whole[1]
    names = {path.name for path in folder.iterdir()}
    assert names == {"run.json", "arrays.safetensors", "figures", "report.html"}
    manifest = json.loads((folder / "run.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("eigenscape-run", 1)
    assert set(manifest["files"]) == set(contents(folder)) - {"run.json"}
    assert len(list((folder / "figures").iterdir())) == 20


def test_other_records_have_their_class_as_kind(tmp_path: Path) -> None:
    pairs = eigsh(Dense(torch.diag(torch.arange(1.0, 5.0))), num_pairs=2)
    run = read_run(pairs.save(tmp_path / "pairs"))
    assert run.kind == "eigen-pairs"
    assert torch.equal(run.record.vectors, pairs.vectors)
    assert (tmp_path / "pairs" / "report.html").is_file()
    assert read_run(save_run(plain(), tmp_path / "plain")).kind == "solution"


def test_a_training_has_a_report(tmp_path: Path) -> None:
    training = samples.training()
    run = read_run(training.save(tmp_path / "t"))
    assert run.kind == "training"
    assert run.seconds == 3.5
    assert torch.equal(run.record.weights["0.weight"], training.weights["0.weight"])
    assert (tmp_path / "t" / "report.html").is_file()


def test_the_commit_of_the_repository_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_run(save_run(plain(), "none")).commit is None
    if shutil.which("git") is None:
        pytest.skip("no git on this machine")
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    assert len(read_run(save_run(plain(), "some")).commit or "") == 40
    monkeypatch.setenv("PATH", "")
    assert read_run(save_run(plain(), "no git")).commit is None


def test_without_optional_packages_the_result_is_saved_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("matplotlib", "plotly"):
        monkeypatch.setitem(sys.modules, package, None)
    record = trace(Dense(torch.eye(3)), num_products=3)
    with (
        pytest.warns(EigenscapeWarning, match="needs the package matplotlib; "),
        pytest.warns(EigenscapeWarning, match="needs the package plotly; "),
    ):
        folder = record.save(tmp_path / "x")
    assert read_run(folder).record.value == 3.0
    assert not (folder / "figures").exists()


# --- where a run may be written ------------------------------------------------------------------


def test_an_earlier_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    folder = save_run(plain(1.0), tmp_path / "r")
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    with pytest.raises(RunError, match=r"holds a run.*overwrite=True"):
        save_run(plain(2.0), folder)
    assert contents(folder) == before
    save_run(plain(2.0), folder, overwrite=True)
    assert read_run(folder).record.x.tolist() == [2.0, 2.0, 2.0]
    assert (folder / "notes.txt").read_text() == "mine"


def test_replacing_leaves_no_figures_of_the_old_run(tmp_path: Path) -> None:
    folder = trace(Dense(torch.eye(3)), num_products=3).save(tmp_path / "r")
    assert (folder / "figures" / "trace.png").is_file()
    save_run(plain(), folder, overwrite=True)
    assert set(contents(folder)) == {"run.json", "arrays.safetensors", "report.html"}


@pytest.mark.parametrize("name", ["thesis.tex", "figures/mine.png", "checkpoint/model.pt"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_refused_and_left_alone(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("precious")
    with pytest.raises(RunError, match="holds other files"):
        save_run(plain(), tmp_path, overwrite=overwrite)
    assert contents(tmp_path) == {name: b"precious"}


def test_a_manifest_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": "theirs"}')
    with pytest.raises(RunError, match="another program"):
        save_run(plain(), tmp_path, overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        save_run(plain(), tmp_path / "file")


def test_a_damaged_run_can_be_replaced(tmp_path: Path) -> None:
    folder = save_run(plain(1.0), tmp_path / "r")
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text[: len(text) // 2])
    save_run(plain(2.0), folder, overwrite=True)
    assert read_run(folder).record.x.tolist() == [2.0, 2.0, 2.0]


def test_a_checkpoint_makes_an_unfinished_run_that_can_be_finished(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    Checkpoint(folder / "checkpoint" / "hessian", {"n": 3}).append({"v": torch.ones(2)})
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="Resume by running the same command again"):
        read_run(folder)
    assert [(s.state, s.path) for s in list_runs(tmp_path)] == [("unfinished", folder)]
    save_run(plain(), folder)
    assert read_run(folder).kind == "solution"
    assert not (folder / "checkpoint").exists()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_checkpoint_beside_foreign_results_is_refused(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "checkpoint", {"n": 3})
    (tmp_path / "report.html").write_text("theirs")
    with pytest.raises(RunError, match=r"holds other files \('report.html'\)"):
        save_run(plain(), tmp_path)
    assert (tmp_path / "checkpoint").exists()


def test_what_is_no_record_or_not_plain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongTypeError, match="must be a record; got dict"):
        save_run({}, tmp_path / "r")
    for bad in ({"x": torch.ones(1)}, {"x": float("nan")}):
        with pytest.raises(WrongTypeError, match=r"settings=...\)` must be a dict of text"):
            save_run(plain(), tmp_path / "r", settings=bad)
    assert not (tmp_path / "r").exists()


# --- damage --------------------------------------------------------------------------------------


def edit(path: Path, **changes: Any) -> None:
    """Change a manifest and sign it again, as another version would."""
    from eigenscape.runs._folder import manifest_bytes

    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    path.write_bytes(manifest_bytes(manifest | changes))


DAMAGE = {
    "truncated arrays": (
        lambda f: (f / "arrays.safetensors").write_bytes(
            (f / "arrays.safetensors").read_bytes()[:-7]
        ),
        r"arrays.safetensors' must have \d+ bytes; it has \d+",
    ),
    "flipped byte": (
        lambda f: (f / "arrays.safetensors").write_bytes(
            (f / "arrays.safetensors").read_bytes()[:-1] + b"!"
        ),
        "arrays.safetensors' is damaged or was edited: its SHA-256",
    ),
    "missing file": (
        lambda f: (f / "figures" / "trace.png").unlink(),
        "trace.png' is part of the run and missing",
    ),
    "bad JSON": (lambda f: (f / "run.json").write_text("{"), "must be JSON"),
    "not UTF-8": (lambda f: (f / "run.json").write_bytes(b"\xff\xfe{"), "must be JSON"),
    "a list": (lambda f: (f / "run.json").write_text("[]"), "got 'list'"),
    "other format": (
        lambda f: edit(f / "run.json", format="x"),
        "format 'eigenscape-run'; got 'x'",
    ),
    "newer": (lambda f: edit(f / "run.json", version=2), "version 2.*up to 1.*update yours"),
    "no version": (lambda f: edit(f / "run.json", version=None), "whole number as its version; got None"),
    "edited": (
        lambda f: (f / "run.json").write_text(
            (f / "run.json").read_text().replace('"seed": 0', '"seed": 1', 1)
        ),
        "run.json' is damaged or was edited",
    ),
    "no files": (lambda f: edit(f / "run.json", files=None), "must list its files"),
    "outside": (
        lambda f: edit(f / "run.json", files={"../x": {"bytes": 1, "sha256": ""}}),
        "not inside the folder",
    ),
    "no record": (lambda f: edit(f / "run.json", record=3), "holds no record"),
    "unknown class": (
        lambda f: edit(f / "run.json", record={"$record": "Nope", "fields": {}}),
        "unknown kind 'Nope'",
    ),
    "half a record": (
        lambda f: edit(f / "run.json", record={"$record": "TraceEstimate"}),
        "not as `pack` writes it",
    ),
    "gone": (lambda f: shutil.rmtree(f), "There is no folder"),
    "empty": (lambda f: [shutil.rmtree(f), f.mkdir()], "is no run: it has no 'run.json'"),
    "a file": (lambda f: [shutil.rmtree(f), f.write_text("")], "A run is a folder"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = trace(Dense(torch.eye(3)), num_products=3)
    return record.save(tmp_path_factory.mktemp("good") / "run")


@pytest.mark.parametrize(("harm", "words"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_named(good: Path, tmp_path: Path, harm: Any, words: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    assert read_run(folder).record.value == 3.0
    harm(folder)
    with pytest.raises(RunError, match=words):
        read_run(folder)


def test_files_beside_a_run_are_let_be(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert read_run(tmp_path / "run").record.value == 3.0


# --- lists ---------------------------------------------------------------------------------------


def test_a_list_has_a_line_for_each_run_good_or_bad(
    good: Path, whole: tuple[Analysis, Path], tmp_path: Path
) -> None:
    for name in ("a", "cut", "flipped", "json"):
        shutil.copytree(good, tmp_path / name)
    shutil.copytree(whole[1], tmp_path / "whole")
    (tmp_path / "cut" / "arrays.safetensors").write_bytes(b"")
    DAMAGE["flipped byte"][0](tmp_path / "flipped")
    (tmp_path / "json" / "run.json").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "file.txt").write_text("")
    Checkpoint(tmp_path / "begun" / "checkpoint", {})
    found = {summary.path.name: summary for summary in list_runs(tmp_path)}
    states = {name: summary.state for name, summary in found.items()}
    assert states == {
        "a": "finished",
        "begun": "unfinished",
        "cut": "damaged",
        "flipped": "finished",
        "json": "damaged",
        "whole": "finished",
    }
    assert (found["whole"].kind, found["whole"].title) == ("analysis", "A small network")
    assert found["whole"].text.startswith("loss 0.0123, λ₁ 11, trace ")
    assert "must have" in found["cut"].text
    assert "\n" not in found["a"].text
    checked = {s.path.name: s.state for s in list_runs(tmp_path, verify=True)}
    assert checked == states | {"flipped": "damaged"}


def test_a_list_holds_the_folder_itself(good: Path) -> None:
    assert [summary.path for summary in list_runs(good)] == [good]
    with pytest.raises(RunError, match="must be a folder; there is none"):
        list_runs(good / "nowhere")


# --- crashes -------------------------------------------------------------------------------------


def full_disk(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "where",
    [
        "eigenscape.records.files.save_file",
        "eigenscape.report.files.write_figures",
        "eigenscape.runs.runs.write_bytes",
    ],
)
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    record = trace(Dense(torch.eye(3)), num_products=3)
    old = save_run(plain(), tmp_path / "old")
    before = contents(old)
    Checkpoint(tmp_path / "begun" / "checkpoint", {})
    with monkeypatch.context() as patch:
        patch.setattr(where, full_disk)
        for name in ("new", "begun"):
            with pytest.raises(OSError, match="No space left"):
                save_run(record, tmp_path / name)
        with pytest.raises(OSError, match="No space left"):
            save_run(record, old, overwrite=True)
    assert not (tmp_path / "new").exists()
    assert contents(old) == before
    with pytest.raises(RunError, match="unfinished"):
        read_run(tmp_path / "begun")
    for name in ("new", "begun"):
        assert read_run(save_run(record, tmp_path / name)).record.value == 3.0


class Crash(BaseException):
    """What no code catches."""


def crash_after(steps: int, folder: Path) -> Callable[..., None]:
    """Return what is called before each step in a folder, and crashes after so many."""
    left = [steps]

    def step(path: Path, *args: Any) -> None:
        inside = folder in path.parents and ".saving" not in str(args or path)
        if inside and left[0] == 0:
            raise Crash
        left[0] -= inside

    return step


def test_a_crash_at_any_step_of_the_move_never_reads_as_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = trace(Dense(torch.eye(3)), num_products=3)
    unlink, replace = Path.unlink, Path.replace
    finished = 0
    for limit in range(40):
        folder = save_run(plain(), tmp_path / f"r{limit}")
        step = crash_after(limit, folder)
        with monkeypatch.context() as patch:
            patch.setattr(
                Path, "unlink", lambda s, *a, step=step, **k: (step(s), unlink(s, *a, **k))[1]
            )
            patch.setattr(Path, "replace", lambda s, t, step=step: (step(s, t), replace(s, t))[1])
            try:
                save_run(record, folder, overwrite=True)
                finished += 1
            except Crash:
                pass
        try:
            outcome = read_run(folder).kind
        except RunError as error:
            outcome = str(error)
        whole = outcome in ("solution", "trace-estimate")
        assert whole or "Resume by running the same command again" in outcome
        assert read_run(save_run(record, folder, overwrite=True)).record.value == 3.0
        if finished:
            break
    assert 4 < limit < 40, "the loop met every step"


ARENA = """
import os, random, signal, sys, time, torch
torch.set_num_threads(1)
from eigenscape.errors import RunError
from eigenscape.linalg import solve
from eigenscape.operator import Dense
from eigenscape.runs import read_run, save_run
records = [solve(Dense(torch.eye(3)), v * torch.ones(3)) for v in (1.0, 2.0)]
random.seed(0)
for number in range(40):
    child = os.fork()
    if child == 0:
        i = 0
        while True:
            i += 1
            save_run(records[i % 2], sys.argv[1], overwrite=True)
    time.sleep(random.uniform(0.02, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        x = read_run(sys.argv[1]).record.x
        assert x.tolist() in ([1.0] * 3, [2.0] * 3)
        print("read", flush=True)
    except RunError as error:
        assert "unfinished" in str(error), error
        print("refused", flush=True)
save_run(records[0], sys.argv[1], overwrite=True)
print(read_run(sys.argv[1]).kind)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_killed_save_is_read_or_refused(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ARENA, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.split()
    assert lines[-1] == "solution"
    assert set(lines[:-1]) <= {"read", "refused"}
    assert len(lines) == 41
