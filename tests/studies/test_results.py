import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from eigenscape.errors import FileError
from eigenscape.records import Status, pack
from eigenscape.report import Axis, Line, Panel, Picture, Raster, Sheet, StudyResult
from eigenscape.report._matplotlib import make_figure
from eigenscape.studies import (
    STUDIES,
    Claim,
    Finding,
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    all_findings,
    read_result,
    read_results,
    results_folder,
    stepsize_learned,
    to_json,
    write_result,
    wu_bounds,
)

A = Claim("wu.a.x", "Fig. 1", "a", "3", low=3, high=3, why="exact")
B = Claim("wu.b.x", "Fig. 2", "b", "large", low=10, why="round")
C = Claim("thesis.c.x", "Fig. 3", "c", "0", high=0, why="sign", scales=("paper",))
STUDY = Study("wu-x", "Wu", "Figs", "X?", {"laptop": Setting()}, lambda *_: Outcome({}), (A, B, C))


def result_of(scale: str, **numbers: float) -> StudyResult:
    measured = {"wu.a.x": numbers.get("a"), "wu.b.x": numbers.get("b")}
    found = tuple(
        claim.judge(None if ours is None else Measured(ours, 0.5), scale=scale)
        for claim in STUDY.claims
        for ours in [measured.get(claim.id)]
    )
    panel = Panel([Line((1.0, 2.0), (math.nan, math.inf), "hessian", "l")], Axis("x"), Axis("y"))
    matrix = Panel([Raster(((1.0, math.nan), (0.0, 2.5)), "share")], Axis(), Axis(downward=True))
    return StudyResult(
        Status(True, "fine"),
        3,
        0,
        "wu-x",
        "Wu",
        "Figs",
        "X?",
        scale,
        {"widths": (1, 2), "networks 1": "none"},
        found,
        (Picture("p", "P", (panel, matrix), shows="It."),),
        (Sheet("s", "S", {"layer": ("fc1", "fc2"), "sd": (None, 0.1)}),),
        ("a note",),
        1.25,
        "CPU",
    )


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    result = result_of("paper", a=3.0)
    path = write_result(result, tmp_path / "deep" / "er")
    assert path == tmp_path / "deep" / "er" / "wu-x-paper.json"
    again = read_result(path)
    assert pack(again) == pack(result)
    assert again.findings == result.findings
    assert again.sheets == result.sheets
    text = path.read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {"created", "device", "seconds", "versions", "commit"} <= content["provenance"].keys()


def test_results_with_arrays_are_refused(tmp_path: Path) -> None:
    result = dataclasses.replace(result_of("paper"), settings={"x": torch.ones(2)})
    with pytest.raises(FileError, match=r"\['settings.x'\]"):
        write_result(result, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "3",
        "{}",
        '{"format": 1}',
        '{"format": 1, "result": {"$record": "StudyResult", "fields": 3}}',
        '{"format": 1, "result": {"$record": "StudyResult", "fields": {}}}',
        '{"format": 1, "result": {"$record": "Nothing", "fields": {}}}',
        '{"format": 1, "result": {"$record": "Status", "fields": {"converged": true, "text": ""}}}',
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "wu-x-paper.json"
    path.write_text(content)
    with pytest.raises(FileError, match=r"wu-x-paper\.json"):
        read_results(tmp_path)


def test_other_formats_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = write_result(result_of("paper"), tmp_path)
    path.write_text(path.read_text().replace('{"format": 1', '{"format": 2', 1))
    with pytest.raises(FileError, match="format 2"):
        read_result(path)
    with pytest.raises(FileError, match=r"none\.json"):
        read_result(tmp_path / "none.json")


def test_a_folder_is_read_by_name(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none") == []
    for scale in ("paper", "laptop"):
        write_result(result_of(scale), tmp_path)
    assert [result.scale for result in read_results(tmp_path)] == ["laptop", "paper"]


def test_the_results_folder_is_here_or_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    import eigenscape

    package = Path(eigenscape.__file__).parent
    assert results_folder() == package.parent / "results" / "studies"
    (tmp_path / "results" / "studies").mkdir(parents=True)
    assert results_folder().resolve() == tmp_path / "results" / "studies"


def test_paper_comes_before_laptop_before_nothing() -> None:
    results = [result_of("laptop", a=3.0, b=11.0), result_of("paper", a=4.0)]
    for order in (results, results[::-1]):
        found = all_findings([STUDY], order)
        assert [(f.id, f.scale, f.status, f.ours) for f in found] == [
            ("wu.a.x", "paper", "fail", 4.0),
            ("wu.b.x", "laptop", "pass", 11.0),
            ("thesis.c.x", "–", "not run", None),
        ]
    assert found[0].spread == 0.5
    assert all_findings([STUDY], [result_of("own", a=3.0)])[0].status == "not run"


def test_findings_follow_the_claims_of_today() -> None:
    wider = dataclasses.replace(A, high=5, why="now we know", known="a seed")
    today = dataclasses.replace(STUDY, claims=(wider,))
    (found,) = all_findings([today], [result_of("paper", a=4.0)])
    assert (found.status, found.expected, found.why) == ("pass", "3 to 5", "now we know")
    assert found.known == "a seed"


def test_records_without_what_is_known_are_read(tmp_path: Path) -> None:
    path = write_result(result_of("paper", a=4.0), tmp_path)
    content = json.loads(path.read_text())
    for finding in content["result"]["fields"]["findings"]:
        assert finding["fields"].pop("known") == ""
    path.write_text(json.dumps(content))
    assert read_result(path).findings == result_of("paper", a=4.0).findings


def test_findings_as_json() -> None:
    found = all_findings([STUDY], [result_of("paper", a=4.0)])
    found.append(dataclasses.replace(found[0], ours=math.nan, spread=math.inf))
    plain = to_json(found)
    text = json.dumps(plain, allow_nan=False)
    assert json.loads(text) == plain
    wanted = {"id", "paper", "where", "theirs", "ours", "spread", "status", "scale", "why"}
    for entry in plain:
        assert wanted <= entry.keys()
    assert plain[0]["ours"] == 4.0
    assert plain[0]["paper"] == "wu"
    assert plain[2]["paper"] == "thesis"
    assert (plain[3]["ours"], plain[3]["spread"]) == (None, None)
    assert plain[0].keys() == {f.name for f in dataclasses.fields(Finding)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_picture_of_our_records_can_be_drawn(scale: str) -> None:
    pictures = [p for r in read_results(results_folder()) if r.scale == scale for p in r.pictures]
    assert len(pictures) > 50
    for picture in pictures:
        make_figure(picture)


@pytest.mark.parametrize(
    "result", read_results(results_folder()), ids=lambda r: f"{r.study}-{r.scale}"
)
def test_records_judge_claims_as_they_are_worded_now(result: StudyResult) -> None:
    # `all_findings` takes numbers from records and words from claims: where a claim is worded anew
    # another number may be meant, and it must be measured again at every scale.
    recorded = {finding.id: finding.says for finding in result.findings}
    assert recorded == {claim.id: claim.says for claim in STUDIES[result.study].claims}


def test_kept_parts_are_of_the_settings_as_they_are_now(tmp_path: Path) -> None:
    # Parts of other settings would lie there unused for ever.
    kept, shop = results_folder().parent / "parts", Workshop(tmp_path, torch.device("cpu"))
    options = wu_bounds.STUDY.settings["paper"].options
    ours = {wu_bounds._folder(name, options, shop).name for name in options["networks"]}
    assert {path.name for path in (kept / "bounds").glob("*")} <= ours
    options = stepsize_learned.STUDY.settings["paper"].options
    some = torch.zeros(60_000), torch.zeros(60_000)
    parts = stepsize_learned.parts(options, some)
    places = [stepsize_learned._place(part, options, shop) for part in parts]
    # Rules that go on in another session.
    groups = stepsize_learned.together(parts, options)
    places += [stepsize_learned._unfinished(group, options, shop) for group in groups]
    rules = {place.relative_to(shop.folder / "rules") for place in places}
    found = (kept / "rules").glob("*/*")
    assert {path.relative_to(kept / "rules") for path in found} <= rules
    rows = [path for path in (kept / "bounds").glob("*/seed-*/*.json") if "test" not in path.name]
    assert all(json.loads(path.read_text())["device"] for path in rows)
