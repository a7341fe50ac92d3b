import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import eigenscape_papers
from eigenscape.errors import FileError
from eigenscape.records import Axis, Line, Panel, Picture, Raster, Status, pack
from eigenscape.report._matplotlib import make_figure
from eigenscape_papers.runner import (
    Claim,
    Finding,
    Measured,
    Outcome,
    Setting,
    Sheet,
    Study,
    StudyResult,
    Workshop,
    all_findings,
    read_result,
    read_results,
    results_folder,
    to_json,
    write_result,
)
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import stepsize_learned_study as stepsize_learned
from eigenscape_papers.wu import bounds_study as wu_bounds

A = Claim("wu.a.x", "Fig. 1", "a", "3", low=3, high=3, reason="exact")
B = Claim("wu.b.x", "Fig. 2", "b", "large", low=10, reason="round")
C = Claim("thesis.c.x", "Fig. 3", "c", "0", high=0, reason="sign", scales=("paper",))
STUDY = Study(
    "wu-x",
    "Wu",
    "Figs",
    "X?",
    {"laptop": Setting()},
    lambda *_: Outcome({}),
    claims=(A, B, C),
)


def result_of(scale: str, **numbers: float) -> StudyResult:
    measured = {f"wu.{name}.x": Measured(ours, 0.5) for name, ours in numbers.items()}
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
        measured,
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
    assert again.measured == result.measured
    assert again.sheets == result.sheets
    text = path.read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {"created", "device", "seconds", "versions", "commit"} <= content["provenance"].keys()


def test_pictures_are_apart_and_those_of_the_result(tmp_path: Path) -> None:
    result = result_of("paper", a=3.0)
    path = write_result(result, tmp_path)
    pictures = tmp_path / "pictures" / path.name
    assert "hessian" in pictures.read_text()
    assert "hessian" not in path.read_text()
    plain = read_result(path, pictures=False)
    assert pack(plain) == pack(dataclasses.replace(result, figures=()))
    pictures.write_text(pictures.read_text().replace("hessian", "fisher"))
    with pytest.raises(FileError, match=r"pictures/wu-x-paper.json must have the SHA-256"):
        read_result(path)
    pictures.unlink()
    with pytest.raises(
        FileError, match=r"pictures must be in .*wu-x-paper.json; got .* repository"
    ):
        read_results(tmp_path)
    assert read_results(tmp_path, pictures=False)[0].measured == result.measured


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
    path.write_text(path.read_text().replace('{"format": 2', '{"format": 3', 1))
    with pytest.raises(FileError, match="format 3"):
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
    package = Path(eigenscape_papers.__file__).parent
    assert results_folder() == package.parent / "results" / "studies"
    (tmp_path / "papers" / "results" / "studies").mkdir(parents=True)
    assert results_folder().resolve() == tmp_path / "papers" / "results" / "studies"


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
    wider = dataclasses.replace(A, high=5, reason="now we know", known="a seed")
    today = dataclasses.replace(STUDY, claims=(wider,))
    (found,) = all_findings([today], [result_of("paper", a=4.0)])
    assert (found.status, found.expected, found.reason) == ("pass", "3 to 5", "now we know")
    assert found.known == "a seed"


def old_content(result: StudyResult, status: str) -> dict[str, Any]:
    """Return a record as version 0.2 wrote it, with the words of claims."""
    content = {"format": 1, "result": pack(result)[0]}
    fields = content["result"]["fields"]
    del fields["network"]
    for old, new in {"pictures": "figures", "findings": "measured"}.items():
        fields[old] = fields.pop(new)
    fields["status"]["fields"]["text"] = status
    words = dict.fromkeys(("paper", "where", "says", "theirs", "expected", "scale", "why"), "old")
    entries = [*fields["findings"].items(), ("thesis.c.x", {"fields": {"ours": None}})]
    fields["findings"] = [
        {
            "$record": "Finding",
            "fields": {"id": id, "spread": None, **words, **entry["fields"], "status": "pass"},
        }
        for id, entry in entries
    ]
    return content


@pytest.mark.parametrize("doubts", ["", "Not everything converged: 2 pairs are poor."])
def test_of_old_records_only_the_numbers_are_read(tmp_path: Path, doubts: str) -> None:
    result = result_of("paper", a=4.0)
    path = tmp_path / "wu-x-paper.json"
    path.write_text(json.dumps(old_content(result, f"1 of 1 claims agree. {doubts}".rstrip())))
    again = read_result(path)
    assert again.measured == result.measured
    assert again.status.text == (doubts or "Everything converged.")
    (finding, *_) = again.judged(STUDY.claims)
    assert (finding.status, finding.says) == ("fail", "a")


def test_records_hold_numbers_and_no_words_of_claims(tmp_path: Path) -> None:
    text = write_result(result_of("paper", a=4.0), tmp_path).read_text()
    content = json.loads(text)["result"]["fields"]
    assert content["measured"] == {
        "wu.a.x": {
            "$record": "eigenscape_papers.runner:Measured",
            "fields": {"ours": 4.0, "spread": 0.5},
        }
    }
    assert not {"findings", "claims"} & content.keys()
    assert "exact" not in text


def test_findings_as_json() -> None:
    found = all_findings([STUDY], [result_of("paper", a=4.0)])
    found.append(dataclasses.replace(found[0], ours=math.nan, spread=math.inf))
    plain = to_json(found)
    text = json.dumps(plain, allow_nan=False)
    assert json.loads(text) == plain
    assert plain[0]["ours"] == 4.0
    assert plain[0]["paper"] == "wu"
    assert plain[2]["paper"] == "thesis"
    assert (plain[3]["ours"], plain[3]["spread"]) == (None, None)
    assert plain[0].keys() == {f.name for f in dataclasses.fields(Finding)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_picture_of_our_records_can_be_drawn(scale: str) -> None:
    results = [r for r in read_results(results_folder()) if r.scale == scale]
    pictures = [picture for result in results for picture in result.pictures()]
    assert len(pictures) > 50
    for picture in pictures:
        make_figure(picture)


@pytest.mark.parametrize("path", sorted(results_folder().glob("*.json")), ids=lambda p: p.stem)
def test_old_records_judge_claims_as_they_are_worded_now(path: Path) -> None:
    # Where a claim is worded anew another number may be meant, and it must be measured again.
    stored = json.loads(path.read_text("utf-8"))
    content = stored["result"]["fields"]
    fields = [entry["fields"] for entry in content.get("findings", ())]
    words = {entry["id"]: entry["says"] for entry in fields}
    words |= {id: entry["says"] for id, entry in stored.get("judged", {}).items()}
    claims = {claim.id: claim.says for claim in STUDIES[content["study"]].claims}
    assert words.items() <= claims.items()


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
