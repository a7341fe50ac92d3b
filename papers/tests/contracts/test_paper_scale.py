"""The benchmark that runs studies part by part: all parts, once each, and kept."""

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import paper_scale
from benchmarks.paper_scale import OverError, Run, copy_parts, record, record_all, work
from eigenscape_papers.runner import read_result
from eigenscape_papers.wu import bounds_study as bounds
from papers.tests.conftest import shrunk_study

KEPT = ["wu-autocorrelation", "wu-full-hessian", "wu-overlap"]  # by cast
NAMES = ["wu-bounds", "thesis-stepsize-learned", *KEPT, "wu-spectra"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_scale, "STUDIES", {name: shrunk_study(name) for name in NAMES})


def a_run(folder: Path, seconds: float = 600.0) -> Run:
    claims = folder / "claims"
    claims.mkdir(parents=True)
    shop, parts = folder / "shop", folder / "parts"
    return Run(NAMES, "laptop", seconds, time.time(), shop, claims, parts, "cpu", None)


def test_parts_are_done_kept_and_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = a_run(tmp_path / "first")
    assert work(first)
    told = capsys.readouterr().out
    assert told.count("T-3 0 ") == 5  # rows: four methods, and variances left at their index
    assert told.count("rule ") == 3 + 4  # seeds of rules that are learned side by side, and SGD
    assert told.count("train ") >= 2  # T-3, and the networks of wu-spectra
    for name in NAMES:
        assert record(first, paper_scale.STUDIES[name], tmp_path / "results", first.workshop())
    for name in NAMES:
        result = read_result(tmp_path / "results" / f"{name}-laptop.json")
        assert not any("Not run" in note for note in result.notes)
        assert any(finding.ours is not None for finding in result.findings)
        is_made_of_parts = name in ("wu-bounds", "thesis-stepsize-learned")
        assert (result.seconds == 0.0) == is_made_of_parts
        assert result.device == "CPU"
    # Elsewhere, with the small parts alone: only networks that must be seen are trained again.
    second = a_run(tmp_path / "second")
    copy_parts(first.parts, second.shop)
    capsys.readouterr()
    work(second)
    told = capsys.readouterr().out
    assert "T-3" not in told
    assert "rule" in told  # looked at, and there
    casts = paper_scale.STUDIES["wu-spectra"].settings["laptop"].casts
    assert told.count("train ") == len({cast.key for cast in casts})
    shutil.rmtree(second.shop / "networks")
    for name in KEPT:
        record(second, paper_scale.STUDIES[name], tmp_path / "again", second.workshop())
        one, two = (read_result(tmp_path / r / f"{name}-laptop.json") for r in ("results", "again"))
        assert one.findings == two.findings
        assert [note for note in two.notes if "an earlier run" not in note] == [*one.notes]
        assert len(two.notes) == len(one.notes) + 1
        assert [sheet.columns for sheet in one.sheets] == [sheet.columns for sheet in two.sheets]
    assert not (second.shop / "networks").exists()


def test_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = a_run(tmp_path, seconds=-1.0)
    work(late)
    for name in ("wu-bounds", "wu-spectra"):
        record(late, paper_scale.STUDIES[name], tmp_path / "results", late.workshop())
    told = capsys.readouterr().out
    assert "time is over" in told
    assert "wu-spectra: no networks are trained" in told
    result = read_result(tmp_path / "results" / "wu-bounds-laptop.json")
    assert any("Not run: T-3 seed 0" in note for note in result.notes)


def test_rules_that_were_not_finished_go_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dataclasses.replace(a_run(tmp_path / "first"), studies=["thesis-stepsize-learned"])
    seen: list[float] = []

    def check(_: Run, step: Any = None) -> None:
        if step is not None:
            seen.append(step.done)
            if len(seen) == 4:  # in the second of two runs
                raise OverError

    monkeypatch.setattr(Run, "check", check)
    work(first)
    (unfinished,) = first.parts.glob(paper_scale.UNFINISHED)
    assert sorted(p.name for p in unfinished.iterdir()) == ["key.json", "piece-000000.safetensors"]
    claims = tmp_path / "second" / "claims"
    claims.mkdir(parents=True)
    second = dataclasses.replace(first, shop=tmp_path / "second" / "shop", claims=claims)
    copy_parts(second.parts, second.shop)
    assert work(second)
    assert seen[4] >= 1  # the first run was not done again
    assert not list(second.parts.glob(paper_scale.UNFINISHED))
    assert len(list(second.parts.glob("rules/*/*.safetensors"))) == 4 * (3 + 3 + 1)


def test_a_study_of_some_of_its_networks_says_so(tmp_path: Path) -> None:
    run, study = a_run(tmp_path), paper_scale.STUDIES["wu-autocorrelation"]
    first, *others = study.settings["laptop"].casts
    run.workshop().networks(first)
    record(run, study, tmp_path / "results", run.workshop())
    result = read_result(tmp_path / "results" / "wu-autocorrelation-laptop.json")
    assert f"Not run: {', '.join(cast.label for cast in others)}." in result.notes[0]
    assert set(result.sheets[0].columns["network"]) == {first.model}


def test_a_part_that_fails_is_said_and_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bounds.certified

    def certified(net: Any, method: str, *others: Any) -> None:
        if method == "appr":
            raise RuntimeError("the moon is full")
        real(net, method, *others)

    monkeypatch.setattr(bounds, "certified", certified)
    assert not work(dataclasses.replace(a_run(tmp_path), studies=["wu-bounds"]))
    told = capsys.readouterr().out
    assert "T-3 0 appr failed: Traceback" in told
    assert "the moon is full" in told
    kept = {path.stem for path in (tmp_path / "parts").glob("bounds/*/seed-0/*.json")}
    assert kept == {"base", "iter", "iter-m", "iter-index", "test-error"}


def test_a_study_does_not_wait_for_the_networks_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, asked, order = ["wu-spectra", "wu-autocorrelation"], [], []
    run = dataclasses.replace(a_run(tmp_path), studies=names)
    for cast in paper_scale.STUDIES["wu-spectra"].settings["laptop"].casts:
        run.workshop().networks(cast)

    def recorded(_: Run, study: Any, *others: Any) -> bool:
        order.append((study.name, len(asked)))
        return True

    def is_working() -> bool:
        asked.append(time.time())
        return len(asked) < 3

    monkeypatch.setattr(paper_scale, "record", recorded)
    assert record_all(run, tmp_path, is_working) == [True, True]
    assert order == [("wu-spectra", 1), ("wu-autocorrelation", 3)]
