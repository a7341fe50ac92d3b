from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from eigenscape.errors import DataError
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.networks import build
from eigenscape_papers.representations import (
    anchor_table,
    embedding_diagnostics,
    fit_anchors,
    log_bulk_partitions,
    output_states,
)
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Networks,
    Study,
    StudyResult,
    Workshop,
    run_study,
)
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import anchor_fit_study as anchor_fit
from eigenscape_papers.thesis import make_network, pairs, synthetic
from papers.tests.conftest import numbers_of

NAME = "thesis-anchor-fit"
SIZES = {"num_contexts": 400, "num_words": 200}
OF_TEXT = {
    claim.id for claim in STUDIES[NAME].claims if "characters" in claim.id or "pairs" in claim.id
}


def text(*_: object, **__: object) -> DataSet:
    """A text that needs no file: 40 characters, and more than 300 pairs of them."""
    windows = torch.randint(40, (120, 16), generator=torch.Generator().manual_seed(0))
    return DataSet("characters", windows, windows.roll(-1), 40)


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
    one, both = (fit_anchors(two.states, targets, num_anchors=K) for K in (1, 2))
    assert ours["thesis.tableb.2.one-anchor"] == pytest.approx(one.mse / one.variance)
    assert ours["thesis.tableb.2.two-anchors"] == pytest.approx(both.mse / both.variance)
    assert both.mse / both.variance < 0.01 < 0.9 < one.mse / one.variance


def test_what_is_asked_of_the_models_of_pairs_fails_without_an_anchor(
    ran: Callable[[str], StudyResult],
) -> None:
    model = synthetic("unplanted", **SIZES)
    targets = log_bulk_partitions(model.states, model.embedding, (0, 30, 100))
    fits = [fit_anchors(model.states, column) for column in targets.T]
    whole, some, most = (fit.mse / fit.variance for fit in fits)
    claims = {claim.id: claim for claim in STUDIES[NAME].claims}
    for id, fall in (
        ("thesis.table3.1.pairs.bulk", most / whole),
        ("thesis.fig3.1.pairs.falls", most / some),
    ):
        assert claims[id].judge(Measured(fall), scale="laptop").status == "fail"
    assert fits[2].mse < 0.5 * fits[1].mse < 0.1 * fits[0].mse  # and mse alone falls
    ours = numbers_of(ran(NAME))["thesis.fig3.1.unplanted.falls"]
    assert ours == pytest.approx(most / whole)


def test_the_models_of_a_text(
    empty_shop: Workshop, small_study: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: dict[tuple[str, str], Networks] = {}
    train = Workshop.networks

    def keep(shop: Workshop, cast: Cast) -> Networks:
        trained[cast.data, cast.model.partition(", ")[2]] = made = train(shop, cast)
        return made

    monkeypatch.setattr(anchor_fit, "load", text)
    monkeypatch.setattr(Workshop, "networks", keep)
    result = run_study(small_study(NAME), empty_shop)
    heads = ("tied head", "untied, small head", "untied head")
    assert trained.keys() == {
        (data, head) for data in ("characters", "pairs of characters") for head in heads
    }
    ours = numbers_of(result)
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    for data, kind, k in (("pairs of characters", "pairs", 100), ("characters", "characters", 10)):
        networks = trained[data, "tied head"]
        assert networks.cast.seeds == (0, 1)
        shares, cosines, falls = [], [], []
        for seed in (0, 1):
            net = networks.model(seed)
            assert net.head.weight is net.embed.weight  # also after it was written and read
            found = output_states(net, networks.data.inputs[:4].long(), head="head")
            sizes = (0, k, 300)[: 3 if kind == "pairs" else 2]
            table = anchor_table(found.states, found.embedding, num_top=sizes, ridge=1e-9)
            each = [mse / of for mse, of in zip(table.mse, table.variance, strict=True)]
            shares.append(each[1])
            falls.append([after / before for before, after in pairwise(each)])
            cosines.append(embedding_diagnostics(found.embedding).mean_cosine)
        assert ours[f"thesis.fig3.3.{kind}.linear"] == pytest.approx(sum(shares) / 2)
        assert ours[f"thesis.figb.2.{kind}.cosine"] == pytest.approx(sum(cosines) / 2)
        if kind == "pairs":
            ids = ("thesis.table3.1.pairs.bulk", "thesis.fig3.1.pairs.falls")
            means = torch.tensor(falls).mean(0).tolist()
            assert [ours[id] for id in ids] == pytest.approx(means)


def test_figures_and_tables_of_a_text(
    empty_shop: Workshop, small_study: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchor_fit, "load", text)
    result = run_study(small_study(NAME), empty_shop)
    found = {picture.name: picture for picture in result.pictures()}
    assert {name: len(picture.panels) for name, picture in found.items()} == {
        "anchors": 2,
        "embedding": 3,
        "partitions": 3,
    }
    labels = [mark.label for mark in found["anchors"].panels[0].marks if mark.label]
    assert "two kinds, two anchors" in labels
    assert "pairs, tied" in labels
    for panel in found["partitions"].panels:
        whole, bulk = panel.marks
        assert sum(whole.heights) == sum(bulk.heights) == 4 * 16  # every context once
        assert max(bulk.edges) < max(whole.edges)  # less is in it
    cosines = found["embedding"].panels[2].marks[0]
    assert sum(cosines.y) * (cosines.x[1] - cosines.x[0]) == pytest.approx(1.0, rel=1e-3)
    table = {sheet.name: sheet for sheet in result.sheets}["heads"].columns
    assert table["text as"] == ("pairs",) * 4 + ("characters",) * 4  # two seeds of the tied head
    assert set(table["words"][4:]) == {40}


def test_pairs_are_the_text_read_two_by_two() -> None:
    data = text()
    found = pairs(data)
    stream = data.inputs.reshape(-1)
    spelled = sorted({(int(a), int(b)) for a, b in stream.reshape(-1, 2)})
    assert found.num_classes == len(spelled)
    assert found.inputs.shape == found.targets.shape == (59, 16)  # the last has no next one
    again = [character for word in found.inputs.reshape(-1).tolist() for character in spelled[word]]
    assert again == stream[: len(again)].tolist()
    assert torch.equal(found.targets.reshape(-1)[:-1], found.inputs.reshape(-1)[1:])


def test_heads_differ_in_nothing_else() -> None:
    nets = {head: make_network("GPT-1x8x2", head, text(), 3) for head in anchor_fit._HEADS}
    assert nets["tied"].head.weight is nets["tied"].embed.weight
    plain, small = nets["untied"].head.weight, nets["untied, small"].head.weight
    assert small.std().item() == pytest.approx(nets["untied"].embed.weight.std().item())
    torch.testing.assert_close(small / small.norm(), plain / plain.norm())
    assert plain.std() > 5 * small.std()
    for name, parameter in nets["tied"].named_parameters():
        assert all(torch.equal(net.get_parameter(name), parameter) for net in nets.values())


def test_without_the_text_it_says_so(
    empty_shop: Workshop, small_study: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise DataError("There is no text.")

    monkeypatch.setattr(anchor_fit, "load", missing)
    result = run_study(small_study(NAME), empty_shop)
    assert result.notes[-1] == "The models of text were left out: There is no text."
    status = {f.id: f.status for f in result.findings}
    assert {id for id, word in status.items() if word == "not run"} == OF_TEXT


def test_the_networks_can_be_built_and_the_sizes_are_measured() -> None:
    for setting in STUDIES[NAME].settings.values():
        build(f"{setting.options['model']}-tied", input_shape=(64,), num_classes=65)
        assert {0, 10, 100, 300} <= set(setting.options["num_top"])
