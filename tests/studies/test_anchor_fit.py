import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from eigenscape.data import DataSet
from eigenscape.errors import DataError
from eigenscape.models import build
from eigenscape.report import StudyResult
from eigenscape.representations import anchor_table, fit_anchors, output_states
from eigenscape.studies import STUDIES, Cast, Study, Workshop, run_study
from eigenscape.studies.anchor_fit import synthetic
from tests.studies.conftest import numbers_of

NAME = "thesis-anchor-fit"
SIZES = {"num_contexts": 400, "num_words": 200}
OF_CHARACTERS = {claim.id for claim in STUDIES[NAME].claims if "characters" in claim.id}


def stand_in(cast: Cast) -> SimpleNamespace:
    """A network and a text that need no file."""
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(40, (cast.samples or 0, 16), generator=draw)
    net = build(cast.model, input_shape=(16,), num_classes=40).double()
    return SimpleNamespace(data=DataSet("characters", text, text, 40), model=lambda seed: net)


def test_models_with_known_answers(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    for kind in ("planted", "unplanted"):
        model = synthetic(kind, **SIZES)
        table = anchor_table(model.states, model.embedding, num_top=(10,))
        share = table.mse[0] / table.variance[0]
        assert ours[f"thesis.fig3.1.{kind}"] == pytest.approx(share)
    assert ours["thesis.fig3.1.planted"] < 0.01 < 0.5 < ours["thesis.fig3.1.unplanted"]
    two = synthetic("two", **SIZES)
    targets = two.logits().logsumexp(1)
    one, both = (fit_anchors(two.states, targets, num_anchors=K).mse for K in (1, 2))
    assert ours["thesis.tableb.2.two-anchors"] == pytest.approx(both / one)
    assert both / one < 0.05


def test_the_character_model(
    empty_shop: Workshop, small_study: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(Workshop, "networks", lambda _, cast: asked.append(cast) or stand_in(cast))
    ours = numbers_of(run_study(small_study(NAME), empty_shop))
    assert [(cast.model, cast.data, cast.samples) for cast in asked] == [
        ("GPT-1x8x2", "characters", 8)
    ]
    made = stand_in(asked[0])
    found = output_states(made.model(0), made.data.inputs[:4], head="head")
    table = anchor_table(found.states, found.embedding, num_top=(0, 10, 30), ridge=1e-9)
    bulk, falls = table.mse[1] / table.mse[0], table.mse[2] / table.mse[1]
    assert ours["thesis.table3.1.characters.bulk"] == pytest.approx(bulk)
    assert ours["thesis.fig3.1.characters.falls"] == pytest.approx(falls)
    share = table.mse[1] / table.variance[1]
    assert ours["thesis.fig3.3.characters.linear"] == pytest.approx(share)
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_without_the_text_it_says_so(
    empty_shop: Workshop, small_study: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(shop: Workshop, cast: Cast) -> None:
        raise DataError("There is no text.")

    monkeypatch.setattr(Workshop, "networks", missing)
    result = run_study(small_study(NAME), empty_shop)
    assert result.notes[-1] == "The character model was left out: There is no text."
    status = {f.id: f.status for f in result.findings}
    assert {id for id, word in status.items() if word == "not run"} == OF_CHARACTERS


def test_the_laptops_network_can_be_built() -> None:
    for setting in STUDIES[NAME].settings.values():
        options = dataclasses.replace(setting).options
        build(options["model"], input_shape=(64,), num_classes=65)
        assert {10, 30} <= set(options["num_top"])
