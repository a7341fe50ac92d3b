"""What a user gets: both wheels, built and installed into an empty folder, far from the source."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"eigenscape": ROOT, "eigenscape_papers": ROOT / "papers"}
MOST_BYTES = 2_000_000  # of a wheel; with pictures, or parts, that of the papers has more

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("hatchling", reason="builds wheels; it is among the tools of `.[dev]`")
    folder = tmp_path_factory.mktemp("wheels")
    for source in PACKAGES.values():
        pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source))
    return {name: next(folder.glob(f"{name}-*.whl")) for name in PACKAGES}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is installed here but our packages, whose editable installs would be seen."""
    folder = tmp_path_factory.mktemp("others")
    for path in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
        for entry in path.iterdir():
            if "eigenscape" not in entry.name and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def installed(wheels: dict[str, Path], others: Path, tmp_path: Path) -> Callable[..., Run]:
    def install(*names: str) -> Run:
        target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
        elsewhere.mkdir()
        pip("install", "--no-deps", "--target", str(target), *(str(wheels[n]) for n in names))
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (target, others)))

        def run(*words: str, command: Sequence[str] = ("-m", "eigenscape")) -> object:
            # -S: no folder of this Python, and so no link to the source tree.
            line = [sys.executable, "-S", *command, *words]
            return subprocess.run(
                line,
                cwd=elsewhere,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )

        return run

    return install


def test_wheels_hold_numbers_and_tables_but_no_pictures(wheels: dict[str, Path]) -> None:
    records = {path.name for path in (ROOT / "papers/results/studies").glob("*.json")}
    held = {name: zipfile.ZipFile(path).namelist() for name, path in wheels.items()}
    data = [name for name in held["eigenscape_papers"] if name.endswith(".json")]
    folder = "eigenscape_papers/results"
    assert {Path(name).name for name in data if str(Path(name).parent) == folder} == records
    claims = {path.name for path in ROOT.glob("papers/eigenscape_papers/*/claims/*.toml")}
    assert {Path(name).name for name in held["eigenscape_papers"] if "/claims/" in name} == claims
    assert not [name for names in held.values() for name in names if "pictures/" in name]
    assert all(path.stat().st_size < MOST_BYTES for path in wheels.values())


def test_both_wheels_work_far_from_the_source(installed: Callable[..., Run]) -> None:
    run = installed("eigenscape", "eigenscape_papers")
    where = run("import eigenscape, eigenscape_papers as p; print(p.__file__)", command=["-c"])
    assert str(ROOT) not in where.stdout
    assert "target" in where.stdout, where.stderr
    text = run("--help").stdout
    for verb in ("analyze", "study", "claims", "data", "models", "stepsize", "train"):
        assert f"  {verb} " in text
    assert "--scale" in run("study", "--help").stdout
    assert "wu-rank" in run("study").stdout
    claims = run("claims")
    assert claims.returncode == 0, claims.stderr
    assert "wu.fig22.rank-one.top" in claims.stdout
    counted = claims.stdout.rpartition("measured: ")[2]
    assert int(counted.partition(" pass")[0]) > 100
    page = run("claims", "--page", "docs/papers")
    assert page.returncode == 2
    assert "An installed package has none: take papers/results/studies/pictures" in page.stderr


def test_without_the_papers_a_verb_says_how_to_get_them(installed: Callable[..., Run]) -> None:
    run = installed("eigenscape")
    assert run("--help").returncode == 0
    refused = run("study", "wu-rank")
    assert refused.returncode == 2
    assert refused.stderr == "`eigenscape study` comes with `pip install eigenscape-papers`.\n"
