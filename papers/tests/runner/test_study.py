import dataclasses
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from eigenscape.errors import (
    ConvergenceWarning,
    FileError,
    InvalidArgumentError,
    UnknownNameError,
)
from eigenscape.records import Status, pack
from eigenscape.report._matplotlib import make_figure
from eigenscape.report._plotly import plots
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.ensemble import SGD, Recipe
from eigenscape_papers.runner import (
    SCALES,
    Cast,
    Claim,
    Measured,
    Outcome,
    Own,
    Setting,
    Study,
    StudyResult,
    Workshop,
    read_result,
    run_study,
    write_result,
)
from eigenscape_papers.runner import study as study_module
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import RECIPE, TINY

TAKE_OWN = [name for name, study in STUDIES.items() if study.own]


# --- what is written down ------------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES.keys())
def test_studies_have_both_scales_and_claims(study: Study) -> None:
    assert set(study.settings) == set(SCALES)
    assert study.name.startswith(f"{study.paper.lower()}-")
    assert study.claims
    assert study.title.endswith("?")
    # A study of several trainings or widths has networks, and no place for one of a user's.
    assert study.settings["laptop"].casts or not study.own
    for setting in study.settings.values():
        assert len({cast.key for cast in setting.casts}) == len(setting.casts)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES.keys())
def test_products_with_deep_convolutions_are_in_float32(study: Study) -> None:
    forward_only = study.name == "wu-autocorrelation"
    for setting in study.settings.values():
        deep = any(cast.model.startswith(("VGG", "ResNet")) for cast in setting.casts)
        expected = torch.float32 if deep and not forward_only else torch.float64
        assert setting.dtype == expected


def test_title_and_settings_stand_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists come as tuples; what one scale says goes before what holds for both."""
    facts = {"paper": "Wu", "where": "Fig. 0", "title": "Is one one?", "keeps": "ones"}
    settings = {
        "both": {"k": 3, "sizes": [[1, 2], {"n": [3]}]},
        "laptop": {"note": "small"},
        "paper": {"k": 9},
    }
    tables = {"study": facts, "settings": settings}
    monkeypatch.setattr(study_module, "study_file", lambda name: tables)
    monkeypatch.setattr(study_module, "claims_of", lambda name: ())
    study = Study.of("made-up", lambda *_: Outcome({}), {"laptop": (TINY,)})
    assert (study.paper, study.where, study.title) == ("Wu", "Fig. 0", "Is one one?")
    assert (study.own, study.keeps, study.keeps_by) == (True, "ones", "cast")
    sizes = ((1, 2), {"n": (3,)})
    assert study.settings == {
        "laptop": Setting((TINY,), {"k": 3, "sizes": sizes}, "small"),
        "paper": Setting((), {"k": 9, "sizes": sizes}),
    }
    assert settings["laptop"] == {"note": "small"}  # the file's own tables stay what they are
    facts["keeps_by"] = "seed"
    with pytest.raises(InvalidArgumentError, match="'cast', 'label'; got 'seed'"):
        Study.of("made-up", lambda *_: Outcome({}))
    del facts["title"], settings["paper"]
    with pytest.raises(FileError, match=r"made-up.toml must have .* Add \['paper', 'title'\]"):
        Study.of("made-up", lambda *_: Outcome({}))


# --- running -------------------------------------------------------------------------------------


def made_up(**changes: object) -> Study:
    study = Study(
        name="made-up",
        paper="Wu",
        where="Fig. 0",
        title="Is one one?",
        settings={"laptop": Setting((TINY,), {"k": 3}, "small"), "paper": Setting((), {"k": 9})},
        measure=lambda setting, shop: Outcome({"wu.a": Measured(float(setting.options["k"]))}),
        claims=(
            Claim("wu.a", "Fig. 0", "a", "3", low=3, high=3, reason="exact"),
            Claim("wu.b", "Fig. 0", "b", "?", low=0, reason="none"),
        ),
    )
    return dataclasses.replace(study, **changes)


def test_what_was_measured_is_kept_by_the_id_of_its_claim(empty_shop: Workshop) -> None:
    study = made_up()
    result = run_study(study, empty_shop)
    assert result.measured == {"wu.a": Measured(3.0)}
    assert [(f.id, f.status, f.ours) for f in result.judged(study.claims)] == [
        ("wu.a", "pass", 3.0),
        ("wu.b", "not run", None),
    ]
    assert result.status.text == "Everything converged."
    assert result.notes == ("small",)
    assert result.device == "CPU"
    assert result.settings == {
        "k": 3,
        "networks 1": f"F-12^2 (digits), 100 samples, 2 seeds, xavier weights, {RECIPE}",
    }
    paper = run_study(made_up(), empty_shop, scale="paper")
    assert [f.status for f in paper.judged(study.claims)] == ["fail", "not run"]
    assert (paper.scale, paper.notes, paper.settings) == ("paper", (), {"k": 9})


def test_how_far_trainings_came_is_noted(shop: Workshop) -> None:
    """Also of networks that were trained for another study, and with labels of their own."""
    fast = dataclasses.replace(TINY, recipe=Recipe(2, 20, SGD(0.2)), seeds=(0,))
    casts = (TINY, fast)

    def measure(setting: Setting, at: Workshop) -> Outcome:
        for cast in setting.casts:
            at.networks(cast)
        return Outcome({}, notes=("last",))

    settings = {"laptop": Setting(casts, note="first")}
    study = made_up(measure=measure, settings=settings)
    shop.networks(TINY)
    for _ in range(2):
        result = run_study(study, shop)
        first, note, last = result.notes
        assert (first, last) == ("first", "last")
        losses = torch.tensor(shop.networks(TINY).train_loss)
        shares = torch.tensor(shop.networks(TINY).train_accuracy)
        one, two = note.removeprefix("At the end of training: ").removesuffix(".").split("; ")
        assert one == (
            f"F-12^2 (digits, learning rate 0.1): loss {losses.mean():.4g} ± {losses.std():.2g}, "
            f"accuracy {shares.mean():.4g} ± {shares.std():.2g}"
        )
        loss = shop.networks(fast).train_loss[0]
        assert two.startswith(f"F-12^2 (digits, learning rate 0.2): loss {loss:.4g}, accuracy 0.")
        assert result.measured == {}


def test_curvature_is_in_the_dtype_of_the_setting_and_said_to_be(shop: Workshop) -> None:
    seen: list[torch.dtype] = []

    def measure(setting: Setting, at: Workshop) -> Outcome:
        seen.extend(at.networks(cast).risk(0).dtype for cast in setting.casts)
        return Outcome({})

    settings = {"laptop": Setting((TINY,)), "paper": Setting((TINY,), dtype=torch.float32)}
    study = made_up(measure=measure, settings=settings)
    notes = [run_study(study, shop, scale=scale).notes for scale in SCALES]
    assert seen == [torch.float64, torch.float32]
    assert notes[1] == ("Curvature in float32.", *notes[0])


def test_own_networks_take_the_place_of_the_studys(empty_shop: Workshop) -> None:
    seen: list[Setting] = []

    def measure(setting: Setting, shop: Workshop) -> Outcome:
        seen.append(setting)
        return Outcome({"wu.a": Measured(3.0)})

    other = dataclasses.replace(TINY, model="F-3")
    result = run_study(made_up(measure=measure), empty_shop, own=other)
    assert seen[0] == Setting((other,), {"k": 3})
    assert (result.scale, result.network) == ("own", "F-3")
    assert {f.scale for f in result.judged(made_up().claims)} == {"own"}
    only_paper = dataclasses.replace(made_up().claims[0], scales=SCALES)
    (finding,) = result.judged((only_paper,))
    assert finding.status == "not run"


def test_what_cannot_be_run_is_refused(empty_shop: Workshop) -> None:
    with pytest.raises(InvalidArgumentError, match="made-up` is about networks of its own making"):
        run_study(made_up(own=False), empty_shop, own=TINY)
    with pytest.raises(InvalidArgumentError, match="'laptop', 'paper'; got 'poster'"):
        run_study(made_up(), empty_shop, scale="poster")


def test_a_number_without_its_claim_is_a_mistake(empty_shop: Workshop) -> None:
    wrong = made_up(measure=lambda setting, shop: Outcome({"wu.A": Measured(1.0)}))
    with pytest.raises(UnknownNameError, match=r"none of its claims says: \['wu.A'\]"):
        run_study(wrong, empty_shop)


def test_numbers_of_networks_that_no_claim_asks_for_are_dropped(empty_shop: Workshop) -> None:
    by_name = {"wu.b": Measured(1.0), "wu.other-network": Measured(1.0)}
    study = made_up(measure=lambda setting, shop: Outcome({"wu.a": Measured(3.0)}, by_name=by_name))
    assert run_study(study, empty_shop).measured.keys() == {"wu.a", "wu.b"}


def test_what_did_not_converge_is_told_and_noted(empty_shop: Workshop) -> None:
    poor = Status(False, "2 residuals are above the tolerance.")

    def measure(setting: Setting, shop: Workshop) -> Outcome:
        poor.warn()
        poor.warn()
        return Outcome({"wu.a": Measured(3.0)})

    with pytest.warns(ConvergenceWarning, match="2 residuals") as told:
        result = run_study(made_up(measure=measure), empty_shop)
    assert len(told) == 1
    assert not result.status
    assert "Not everything converged: 2 residuals are above" in result.status.text


def test_other_warnings_are_passed_on(empty_shop: Workshop) -> None:
    def measure(setting: Setting, shop: Workshop) -> Outcome:
        warnings.warn("look", UserWarning, stacklevel=1)
        return Outcome({})

    with pytest.warns(UserWarning, match="look"):
        assert run_study(made_up(measure=measure), empty_shop).status


# --- all studies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_and_is_complete(name: str, ran: Callable[[str], StudyResult]) -> None:
    result = ran(name)
    assert [f.id for f in result.findings] == [claim.id for claim in STUDIES[name].claims]
    judged = {f.id for f in result.findings if f.status != "not run"}
    assert judged or {claim.scales for claim in STUDIES[name].claims} == {("paper",)}
    assert judged <= {claim.id for claim in STUDIES[name].claims if "laptop" in claim.scales}
    assert result.pictures()
    assert result.sheets
    names = [picture.name for picture in result.pictures()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
    assert all(picture.shows for picture in result.pictures())
    for sheet in result.sheets:
        assert len({len(column) for column in sheet.columns.values()}) == 1


@pytest.mark.parametrize("name", STUDIES)
def test_every_picture_can_be_drawn(name: str, ran: Callable[[str], StudyResult]) -> None:
    for picture in ran(name).pictures():
        figure = make_figure(picture)
        figure.draw_without_rendering()
        titles = [text for axes in figure.axes if (text := axes.get_title(loc="left"))]
        # On lines of their own where they are long.
        assert [text.split() for text in titles] == [
            panel.title.split() for panel in picture.panels if panel.title
        ]
        plt.close(figure)
        drawn = plots(picture)
        assert len(drawn) == len(picture.panels)
        json.dumps(drawn, allow_nan=False)
        traces = [trace for plot in drawn for trace in plot["data"]]
        assert not [t for t in traces if t.get("showlegend") and not t["name"]]


@pytest.mark.parametrize("name", STUDIES)
def test_every_result_can_be_stored(
    name: str, ran: Callable[[str], StudyResult], tmp_path: Path
) -> None:
    path = write_result(ran(name), tmp_path / "new")
    assert path.name == f"{name}-laptop.json"
    assert path.stat().st_size < 10**6
    assert pack(read_result(path)) == pack(ran(name))


@pytest.fixture(scope="module")
def mine() -> Cast:
    """A user's network: narrow, few classes, names of its own."""
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))

    def build(seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    own = Own(build, DataSet("toy", x, (x[:, 0] > 0).long(), 2))
    return Cast("mine.py", "toy", RECIPE, (0, 1, 2), own=own)


@pytest.mark.parametrize("name", TAKE_OWN)
def test_every_study_takes_a_small_network_of_ones_own(
    name: str, shop: Workshop, mine: Cast
) -> None:
    result = run_study(STUDIES[name], shop, own=mine)
    assert result.scale == "own"
    words = f"mine.py (toy), all samples, 3 seeds, {RECIPE}"  # whose first weights are their own
    assert result.settings["networks 1"] == words
    assert [f.id for f in result.findings] == [claim.id for claim in STUDIES[name].claims]
    for picture in result.pictures():
        make_figure(picture).draw_without_rendering()
    plt.close("all")
