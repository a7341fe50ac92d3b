"""One, two and three processes give the same answers, fail together, and survive a kill."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, RankError
from eigenscape.parallel import Ranks, join
from eigenscape.records import read_tensors
from eigenscape.risk import BatchSource
from eigenscape.runs import read_run
from tests import distributed_jobs as jobs
from tests.cli.conftest import invoke

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 120.0  # far above what is needed: a test that hangs ends here
SIZES = (2, 3)


def environment(**changed: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in jobs_environment()}
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**plain, **paths, **changed}


def jobs_environment() -> tuple[str, ...]:
    return ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def launch(size: int, *words: str) -> None:
    """Start the ranks as a launcher would, and wait for all of them."""
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    started = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment(**common, RANK=str(rank), LOCAL_RANK=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [process.communicate(timeout=LIMIT)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * size, "\n".join(errors)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Run the job once with each number of ranks."""
    made = {size: tmp_path_factory.mktemp(f"ranks-{size}") for size in SIZES}
    for size, folder in made.items():
        (folder / "checkpoint" / "inner").mkdir(parents=True)
        (folder / "checkpoint" / "inner" / "piece").write_bytes(bytes(range(256)))
        (folder / "checkpoint" / "empty").touch()
        (folder / "checkpoint" / ".x.unfinished").touch()
        launch(size, "-m", "tests.distributed_jobs", str(folder))
    return made


@pytest.fixture(scope="module")
def alone() -> Iterator[dict[str, Tensor]]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield jobs.answers(Ranks())
    torch.set_default_dtype(before)


def remarks(folder: Path, size: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"remarks-{rank}.json").read_text()) for rank in range(size)]


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_answers_do_not_depend_on_the_number_of_ranks(
    folders: dict[int, Path], alone: dict[str, Tensor], size: int
) -> None:
    found = read_tensors(folders[size] / "answers-0.safetensors")
    assert found.keys() == alone.keys()
    far = {
        name: error
        for name, tensor in alone.items()
        if not (error := float((found[name] - tensor).norm() / tensor.norm())) <= 1e-12
    }
    assert far == {}
    assert all(float(tensor.norm()) > 0 for tensor in alone.values())


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_have_the_same_bits(folders: dict[int, Path], size: int) -> None:
    first = read_tensors(folders[size] / "answers-0.safetensors")
    for rank in range(1, size):
        other = read_tensors(folders[size] / f"answers-{rank}.safetensors")
        assert all(torch.equal(other[name], tensor) for name, tensor in first.items())


def test_the_comparison_can_fail(alone: dict[str, Tensor]) -> None:
    # A forgotten rank is not lost in the tolerance.
    share = jobs.risk(Ranks(0, 2))
    whole = alone["tensors in batches: gradient"]
    assert float((share.gradient() - whole).norm() / whole.norm()) > 1e-3


# --- shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_cover_everything_once(size: int) -> None:
    parts = [Ranks(rank, size).share(23) for rank in range(size)]
    assert [number for part in parts for number in part] == list(range(23))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("form", ["tensors", "data set", "list", "loader"])
def test_samples_keep_their_numbers(form: str) -> None:
    data = {
        "tensors": (jobs.X, jobs.Y),
        "data set": jobs.Rows(),
        "list": jobs.batches(),
        "loader": torch.utils.data.DataLoader(jobs.Rows(), batch_size=4),
    }[form]
    seen: list[int] = []
    for rank in range(3):
        source = BatchSource(
            data,
            batch_size=3 if form == "tensors" else None,
            device=torch.device("cpu"),
            dtype=torch.float64,
            keep_bytes=10**9,
            ranks=Ranks(rank, 3),
        )
        source.keep()
        for batch in source:
            assert torch.equal(batch.args[0], jobs.X[batch.first : batch.first + batch.size])
            seen += range(batch.first, batch.first + batch.size)
    assert sorted(seen) == list(range(23))


def test_more_ranks_than_samples_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"2 samples .* 3 processes. Start at most 2"):
        Ranks(0, 3).share(2)


# --- talking, and failing together ---------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_ranks_talk(folders: dict[int, Path], size: int) -> None:
    for rank, said in enumerate(remarks(folders[size], size)):
        assert said["first"] == {"rank": 0, "text": "ä"}
        assert said["gathered"] == ["x" * other for other in range(size)]
        assert said["inner"] == [size, float(size)]
        assert said["alone"] == 23
        assert said["is the real one"] == (rank == 0)
        files = {name for name in said["files"] if not name.endswith(".unfinished")}
        assert files == {"empty", "inner/piece"}
        assert bytes.fromhex(said["files"]["inner/piece"]) == bytes(range(256))
        assert rank == 0 or len(said["files"]) == 2


REFUSALS = {
    "few samples": ("InvalidArgumentError", "cannot be shared by"),
    "few batches": ("InvalidArgumentError", "batches for"),
    "other model": ("InvalidArgumentError", "the same model in every process; rank 1"),
    "other data": ("InvalidArgumentError", "the same data in every process; rank 1"),
    "other order": ("InvalidArgumentError", "the same data in every process; rank 1"),
    "reshuffled": ("NonDeterministicRiskError", "in another order at every pass"),
    "batch statistics": ("UnsupportedModelError", "statistics of its batch"),
    "uncut": ("InvalidArgumentError", "has shape (5, 4)"),
    "same kind": ("UnsupportedModelError", "not such a model"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_are_the_same_on_all_ranks(folders: dict[int, Path], case: str, size: int) -> None:
    kind, words = REFUSALS[case]
    found = [said[case] for said in remarks(folders[size], size)]
    assert [what[0] for what in found] == [kind] * size
    assert words in found[0][1]


@pytest.mark.parametrize("size", SIZES)
def test_an_error_of_one_rank_reaches_all_with_its_reason(
    folders: dict[int, Path], size: int
) -> None:
    told = remarks(folders[size], size)
    last = size - 1
    cases = {
        "own error": ("ValueError", "only here"),
        "in a product": ("UnsupportedModelError", "not to my taste"),
    }
    for case, (kind, words) in cases.items():
        assert [said[case][0] for said in told] == ["RankError"] * last + [kind]
        assert all(words in said[case][1] for said in told)
        assert told[0][case][1].startswith(f"Rank {last} failed with ValueError")
    # The ranks are still in step, and decide alike.
    assert len({said["afterwards"] for said in told}) == 1
    assert len({said["plan"] for said in told}) == 1


@pytest.mark.parametrize("size", SIZES)
def test_what_one_rank_cannot_do_none_does(folders: dict[int, Path], size: int) -> None:
    told = remarks(folders[size], size)
    for said in told:  # the first rank's own data would allow factors
        assert said["moody"][0] == "tail"
        assert "not known to be piecewise linear" in said["moody"][1]
    assert len({said["moody product"] for said in told}) == 1


# --- joining -------------------------------------------------------------------------------------


def test_without_a_launcher_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in jobs_environment():
        monkeypatch.delenv(name, raising=False)
    with join(device="cpu") as ranks:
        assert (ranks.rank, ranks.size, ranks.is_first) == (0, 1, True)
        assert ranks.folder("somewhere") == Path("somewhere")
        assert ranks.folder(None) is None
        assert ranks.gather(3) == [3]
        with pytest.raises(ZeroDivisionError), ranks.together():
            _ = 1 / 0


def test_a_launcher_with_one_process_makes_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("0", "1", "0", "127.0.0.1", free_port())
    for name, value in zip(jobs_environment(), words, strict=True):
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGTERM)
    with join(device="cpu", timeout_seconds=30.0) as ranks:
        assert ranks.sum(torch.tensor([1.5], dtype=torch.float32)).dtype == torch.float64
        with pytest.raises(RankError, match="Rank 0 of 1 was told to end: another process"):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
    assert not torch.distributed.is_initialized()
    assert float(jobs.risk(Ranks()).gradient().norm()) > 0


def test_each_process_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        pytest.raises(InvalidArgumentError, match="process 3 on a machine with 2 GPUs"),
        join(device="cuda"),
    ):
        pass


# --- the command line ----------------------------------------------------------------------------

NET = """
import os
import signal
from pathlib import Path

import torch
from torch import nn


class Fragile(nn.Module):
    def forward(self, x):
        done = Path("runs/one/checkpoint/parts/Hessian.json")
        if os.environ.get("KILL") == os.environ.get("RANK", "none") and done.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tanh(x)


def build():
    kind = {"dtype": torch.float64}
    return nn.Sequential(nn.Linear(3, 4, **kind), Fragile(), nn.Linear(4, 2, **kind))


def data():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(25, 3, generator=draw, dtype=torch.float64)
    return x, (x[:, 0] > 0).long()
"""
QUICK = ("analyze", "net.py:build", "--data", "net.py:data", "--budget", "quick", "--device", "cpu")


def torchrun(folder: Path, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    return subprocess.run(
        [sys.executable, *start, "-m", "eigenscape", *words],
        cwd=folder,
        env=environment(**changed),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def numbers(folder: Path) -> Tensor:
    columns = read_run(folder).record.columns()
    return torch.tensor([float(value) for value in columns["value"]])


def test_a_killed_rank_ends_all_and_the_same_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(NET)
    words = (*QUICK, "--out", "runs/one")
    killed = torchrun(tmp_path, *words, KILL="1")
    assert killed.returncode != 0
    assert "Rank 0 of 2" in killed.stderr
    assert "another process has ended" in killed.stderr
    assert "start the same command again" in killed.stderr
    assert "torchrun --nproc-per-node=2 -m eigenscape analyze" in killed.stderr
    assert "eigenscape/distributed.py" not in killed.stderr  # torchrun has a traceback, we not
    kept = tmp_path / "runs" / "one" / "checkpoint" / "parts"
    assert (kept / "Hessian.safetensors").exists()
    assert not (kept / "block-norms.safetensors").exists()

    resumed = torchrun(tmp_path, *words)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("Resuming the unfinished run in runs/one") == 1
    assert resumed.stdout.count("Report: runs/one/report.html") == 1
    assert "2 processes" in resumed.stdout
    assert not (tmp_path / "runs" / "one" / "checkpoint").exists()

    monkeypatch.chdir(tmp_path)
    plain = invoke(*QUICK, "--out", "runs/plain")
    assert plain.exit_code == 0, plain.output
    torch.testing.assert_close(
        numbers(Path("runs/one")), numbers(Path("runs/plain")), rtol=1e-9, atol=0.0
    )


def test_other_verbs_refuse_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = invoke("env")
    assert result.exit_code == 2
    assert "`eigenscape env` works in one process; torchrun started 2" in result.stderr
