import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import cross_entropy

from eigenscape.operator import Dense
from eigenscape.space import ParamSpace, Partition
from eigenscape.structure import squared_block_norms
from eigenscape_papers.dong import adam_diagonal
from eigenscape_papers.dong import networks_study as dong_networks
from eigenscape_papers.networks import build
from eigenscape_papers.runner import Networks, StudyResult, Workshop
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import SMALL, numbers_of

NAME = "dong-networks"


def rows_of(result: StudyResult, name: str) -> list[dict[str, float]]:
    (table,) = (sheet.columns for sheet in result.sheets if sheet.name == name)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def test_the_claims_are_those_of_the_tables(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    units = [row for row in rows_of(ran(NAME), "losses") if row["B"] == "units"]
    worst = max(row["‖G−B‖/‖G‖"] for row in units)
    assert ours["dong.networks.neurons.error"] == pytest.approx(worst, rel=1e-5)
    worst = max(row["max/mean λ"] / row["without B"] for row in units)
    assert ours["dong.networks.neurons.condition"] == pytest.approx(worst, rel=1e-4)
    logs: dict[tuple[object, object], list[float]] = {}
    for row in rows_of(ran(NAME), "scores"):
        logs.setdefault((row["network"], row["epoch"]), []).append(math.log(row["r"]))
    last = [math.exp(sum(v) / len(v)) for (_, epoch), v in logs.items() if epoch == 2]
    assert ours["dong.networks.blocks"] == pytest.approx(max(last), rel=1e-4)


def test_the_transformer_has_heads_and_the_others_none(ran: Callable[[str], StudyResult]) -> None:
    rows = rows_of(ran(NAME), "losses")
    with_heads = {row["network"] for row in rows if row["B"] == "heads"}
    assert with_heads == {"GPT-1x4x2 (digit-tokens)"}
    said = "The transformer tells the next pair of grey"
    assert any(note.startswith(said) for note in ran(NAME).notes)


def test_finer_blocks_lose_more(ran: Callable[[str], StudyResult]) -> None:
    rows = rows_of(ran(NAME), "losses")
    for network in {row["network"] for row in rows}:
        error = {row["B"]: row["‖G−B‖/‖G‖"] for row in rows if row["network"] == network}
        assert error["layers"] < error["units"] < error["diagonal"] < 1


def test_error_of_blocks_is_that_of_the_dense_matrix(tiny: Networks) -> None:
    rows, notes = dong_networks.losses_of(tiny, 1100)
    assert notes == []
    error = {row[0]: row[1] for row in rows}
    model = tiny.model(0)
    x, names = tiny.data.inputs, dict(model.named_parameters())
    logits = model(x)
    jacobian = torch.stack(
        [
            torch.cat(
                [
                    part.reshape(-1)
                    for part in torch.autograd.grad(z, list(names.values()), retain_graph=True)
                ]
            )
            for z in logits.reshape(-1)
        ]
    ).reshape(*logits.shape, -1)
    p = logits.softmax(1).detach()
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    G = torch.einsum("nca,ncd,ndb->ab", jacobian, A, jacobian) / len(x)
    space = ParamSpace.of(names)
    label = Partition.by_output(space).labels()
    outside = G[label[:, None] != label]
    assert error["units"] == pytest.approx(float(outside.norm() / G.norm()), rel=1e-8)
    rest = (G - torch.diag(G.diagonal())).norm() / G.norm()
    assert error["diagonal"] == pytest.approx(float(rest), rel=1e-8)


def test_of_large_networks_blocks_are_left_out(tiny: Networks) -> None:
    rows, (note,) = dong_networks.losses_of(tiny, 1000)
    assert [row[0] for row in rows] == ["Kronecker", "Adam"]
    assert "has 1066 parameters, more than 1000" in note


def test_adams_state_is_that_of_the_point(tiny: Networks) -> None:
    state = dong_networks.adam_state(tiny, num_steps=2)
    model = tiny.model(0)
    draw = torch.Generator().manual_seed(0)
    squares = []
    for _ in range(2):
        chosen = torch.randint(100, (20,), generator=draw)
        loss = cross_entropy(model(tiny.data.inputs[chosen]), tiny.data.targets[chosen])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        squares.append(torch.cat([slope.reshape(-1) for slope in slopes]).square())
    mean = (0.999 * squares[0] + squares[1]) / 1.999
    space = ParamSpace.of(dict(model.named_parameters()))
    expected = mean.sqrt() + 1e-8
    torch.testing.assert_close(adam_diagonal(state, space), expected, rtol=1e-6, atol=1e-12)


def test_ratios_of_layers_come_from_their_own_pairs() -> None:
    space = ParamSpace({"a.weight": (2, 1), "b.weight": (3, 1), "c.weight": (1, 1)})
    matrix = torch.full((6, 6), 9.0)
    matrix[:2, :2] = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    matrix[2:5, 2:5] = torch.eye(3)
    A = Dense(matrix, space=space)
    norms = squared_block_norms(A, Partition.by_output(space), num_products=6)
    assert dong_networks.layer_ratios(norms) == {"a": 0.25, "b": 1e-12}


def test_partitions_cover_everything_and_heads_are_whole() -> None:
    net = build("GPT-1x4x2", input_shape=(5,), num_classes=3)
    space = ParamSpace.of(dict(net.named_parameters()))
    found = dong_networks.partitions(space, 2)
    for partition in found.values():
        assert bool((partition.labels() >= 0).all())
    assert found["heads"].names[:2] == ("b1.head.0", "b1.head.1")
    assert "heads" not in dong_networks.partitions(space, None)


def test_without_the_text_digits_stand_in(empty_shop: Workshop) -> None:
    empty_shop.data_dir = str(empty_shop.folder / "nothing")
    options = {**SMALL[NAME]["transformer"], "data": "characters"}
    cast, notes = dong_networks.transformer(options, empty_shop)
    assert cast.data == "digit-tokens"
    assert len(notes) == 1
    assert cast.load().num_samples == 6
