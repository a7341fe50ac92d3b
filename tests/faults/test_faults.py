"""What is promised when things go wrong: a killed run loses nothing, a full disk leaves no ruin."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import eigenscape as es
from eigenscape.errors import EmptySelectionError, NonFiniteError, RunError

SCRIPT = """
import sys
import torch
import eigenscape as es

torch.manual_seed(0)
X = torch.randn(300, 12)
y = (X @ torch.randn(12, 4)).argmax(1)
model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 4))
risk = es.EmpiricalRisk(model, es.CrossEntropy(), (X, y))

def progress(step):
    print(step.task, flush=True)

analysis = es.analyze(risk, budget="quick", checkpoint=sys.argv[1], progress=progress)
torch.save(analysis.hessian.density.nodes, sys.argv[2])
print("value", repr(analysis.hessian.trace), repr(analysis.layers.layers[0].trace))
"""


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def killed_when(process: subprocess.Popen[str], seen: Callable[[str], bool]) -> None:
    """Kill the process, without any chance to clean up, once a line says so."""
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if seen(line):
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", ["residual: density", "layers"])
def test_kill_during_an_analysis(tmp_path: Path, moment: str) -> None:
    folder, arrays = tmp_path / "checkpoint", [tmp_path / "killed", tmp_path / "whole"]
    killed_when(run(SCRIPT, folder, arrays[0]), lambda line: line.startswith(moment))
    resumed = run(SCRIPT, folder, arrays[0]).communicate()[0]
    assert "Hessian: largest eigenvalues" not in resumed  # what was finished is not done again
    whole = run(SCRIPT, tmp_path / "other", arrays[1]).communicate()[0]
    assert resumed.splitlines()[-1].startswith("value ")
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]
    first, second = (torch.load(file, weights_only=True) for file in arrays)
    assert torch.equal(first, second)


SAVE = """
import sys
import eigenscape as es
run = es.read_run(sys.argv[1])
while True:
    print("saving", flush=True)
    run.record.save(sys.argv[2], overwrite=True)
"""


@pytest.fixture(scope="module")
def analysis() -> es.Analysis:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(60, 5, generator=generator)
    y = torch.randint(0, 3, (60,), generator=generator)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    return es.analyze(es.EmpiricalRisk(model.float(), es.CrossEntropy(), (X, y)), budget="quick")


@pytest.mark.parametrize("wait", [0.1, 0.8])
def test_kill_while_a_report_is_written(tmp_path: Path, analysis: es.Analysis, wait: float) -> None:
    source, target = analysis.save(tmp_path / "source"), tmp_path / "target"
    with run(SAVE, source, target) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
    with contextlib.suppress(RunError):  # either whole, or refused
        assert es.read_run(target).record.findings == analysis.findings
    analysis.save(target, overwrite=True)  # the way out that the refusal names
    assert es.read_run(target).record.findings == analysis.findings


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB, where this machine lets us mount one."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a small tmpfs here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_while_saving(tiny_disk: Path, analysis: es.Analysis) -> None:
    with pytest.raises(OSError, match="No space left"):
        analysis.save(tiny_disk / "run")
    with pytest.raises(RunError):
        es.read_run(tiny_disk / "run")


def test_full_disk_during_an_analysis(tiny_disk: Path) -> None:
    (tiny_disk / "ballast").write_bytes(bytes(150_000))
    process = run(SCRIPT, tiny_disk / "checkpoint", "/dev/null")
    output = process.communicate()[0]
    assert process.returncode == 1
    assert "No space left" in output
    (tiny_disk / "ballast").unlink()
    # Given room, the same command goes on from what it had.
    subprocess.run(["mount", "-o", "remount,size=50m", str(tiny_disk)], check=True)
    process = run(SCRIPT, tiny_disk / "checkpoint", tiny_disk / "nodes")
    assert process.communicate()[0].splitlines()[-1].startswith("value ")


def test_a_save_that_fails_leaves_the_earlier_run_as_it_was(
    tmp_path: Path, analysis: es.Analysis
) -> None:
    folder = analysis.save(tmp_path / "run")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
        with pytest.raises(OSError, match="too large"):
            analysis.save(folder, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert es.read_run(folder).record.findings == analysis.findings


def test_truncated_arrays(tmp_path: Path, analysis: es.Analysis) -> None:
    folder = analysis.save(tmp_path / "run")
    file = folder / "arrays.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RunError, match=r"arrays\.safetensors"):
        es.read_run(folder)


def test_a_model_that_returns_nan() -> None:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    data = (torch.randn(5, 3), torch.randint(0, 2, (5,)))
    with pytest.raises(NonFiniteError, match="NaN"):
        es.EmpiricalRisk(model, es.CrossEntropy(), data)


def test_a_loader_that_yields_nothing() -> None:
    with pytest.raises(EmptySelectionError, match="gave no batch"):
        es.EmpiricalRisk(torch.nn.Linear(3, 2), es.CrossEntropy(), [])


def test_a_loader_that_shuffles_is_read_once_and_gives_the_same_answer() -> None:
    X, y = torch.randn(50, 3), torch.randint(0, 2, (50,))
    model = torch.nn.Linear(3, 2)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(X, y), batch_size=8, shuffle=True
    )
    shuffled = es.analyze(es.EmpiricalRisk(model, es.CrossEntropy(), loader), budget="quick")
    plain = es.analyze(es.EmpiricalRisk(model, es.CrossEntropy(), (X, y)), budget="quick")
    for one, other in zip(shuffled.columns()["value"], plain.columns()["value"], strict=True):
        assert one == pytest.approx(other, rel=1e-8, abs=1e-10)
