import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eigenscape.errors import ConvergenceWarning, EigenscapeError, RunError
from eigenscape.records import Progress, Status, pack
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.ensemble import SGD, Recipe
from eigenscape_papers.ensemble.fit import _Session
from eigenscape_papers.runner import Cast, Measured, Networks, Own, Study, Workshop, run_study
from eigenscape_papers.runner import workshop as module
from papers.tests.conftest import TINY, numbers_of

CPU = torch.device("cpu")
QUICK = dataclasses.replace(TINY, seeds=(3, 1), samples=40)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Count trainings."""
    calls: list[Any] = []
    real = module.fit

    def fit(*args: Any, **options: Any) -> Any:
        calls.append(options["seeds"])
        return real(*args, **options)

    monkeypatch.setattr(module, "fit", fit)
    return calls


def test_networks_are_trained_once(empty_shop: Workshop, counted: list[Any]) -> None:
    networks = empty_shop.networks(QUICK)
    assert empty_shop.networks(dataclasses.replace(QUICK)) is networks
    found = Workshop(empty_shop.folder, CPU).networks(QUICK)
    assert counted == [(3, 1)]
    assert found.train_loss == networks.train_loss
    assert found.test_accuracy == networks.test_accuracy
    assert len(found.train_loss) == 2
    torch.testing.assert_close(found.model(1).state_dict(), networks.model(1).state_dict())
    other = empty_shop.networks(dataclasses.replace(QUICK, samples=41))
    assert len(counted) == 2
    assert [*empty_shop.asked.values()] == [networks, other]


def test_the_best_rate_is_found_by_short_trainings(
    empty_shop: Workshop, counted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(epochs=20, batch_size=16, optimizer=SGD(7.0))
    cast = dataclasses.replace(QUICK, recipe=recipe, keep_epochs=(), rates=(1e-6, 0.1, 1e3))
    assert cast.key != dataclasses.replace(cast, rates=(1e-6, 0.1)).key
    networks = empty_shop.networks(cast)
    assert counted == [(3,), (3,), (3,), (3, 1)]
    assert networks.learning_rate == 0.1  # others learn nothing, or burst
    plain = dataclasses.replace(cast, recipe=cast.with_rate(0.1), rates=())
    torch.testing.assert_close(
        networks.model(1).state_dict(), empty_shop.networks(plain).model(1).state_dict()
    )
    assert Workshop(empty_shop.folder, CPU).networks(cast).learning_rate == 0.1
    # A training that was stopped after the choice does not choose again.
    (networks.folder / "cast.json").unlink()
    counted.clear()
    Workshop(empty_shop.folder, CPU).networks(cast)
    assert counted == [(3, 1)]


def test_without_test_data_the_loss_decides_over_the_rate(empty_shop: Workshop) -> None:
    data = QUICK.load()
    own = Own(lambda seed: QUICK.build(seed, data), data)
    recipe = Recipe(epochs=30, batch_size=8)
    cast = Cast("mine", "mine", recipe, rates=(1e-6, 0.1), own=own)
    assert empty_shop.networks(cast).learning_rate == 0.1


def test_the_facts_are_those_of_the_weights(tiny: Networks) -> None:
    model = tiny.model(1).eval()
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert not model.training
    test = tiny.cast.load(split="test")
    right = (model(test.inputs.double()).argmax(1) == test.targets).double().mean()
    assert tiny.test_accuracy is not None
    assert tiny.test_accuracy[1] == pytest.approx(float(right))
    loss = nn.functional.cross_entropy(model(tiny.data.inputs), tiny.data.targets)
    assert float(tiny.risk(1).value()) == pytest.approx(float(loss.detach()))
    assert tiny.last == 2


def test_each_dtype_has_its_own_networks(tiny: Networks, shop: Workshop) -> None:
    single = dataclasses.replace(shop, dtype=torch.float32)  # which shares what is remembered
    found = single.networks(TINY)
    assert single.networks(TINY) is found
    assert shop.networks(TINY) is tiny
    assert found.data.inputs.dtype == found.risk(0).dtype == torch.float32
    assert tiny.data.inputs.dtype == tiny.risk(0).dtype == torch.float64
    values = [
        at.portrait(nets, 0, "fc3", num_pairs=4) for at, nets in ((shop, tiny), (single, found))
    ]
    assert [each.pairs.vectors.dtype for each in values] == [torch.float64, torch.float32]
    torch.testing.assert_close(values[0].values, values[1].values.double(), rtol=1e-4, atol=0)


def test_epochs_follow_each_other(tiny: Networks) -> None:
    start = tiny.cast.build(0, tiny.data)
    torch.testing.assert_close(tiny.model(0, 0).state_dict(), start.double().state_dict())
    weights = [tiny.model(0, epoch).fc1.weight for epoch in (0, 1, 2)]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert torch.equal(tiny.model(0).fc1.weight, weights[2])


def test_a_killed_training_continues(
    empty_shop: Workshop, monkeypatch: pytest.MonkeyPatch, counted: list[Any]
) -> None:
    epochs: list[int] = []
    real = _Session._run_epoch

    def run(self: _Session) -> None:
        if len(epochs) == 1 and self._done == 1:
            epochs.append(-1)
            raise KeyboardInterrupt
        epochs.append(self._done)
        real(self)

    monkeypatch.setattr(_Session, "_is_due", lambda self, seconds: True)
    monkeypatch.setattr(_Session, "_run_epoch", run)
    with pytest.raises(KeyboardInterrupt):
        empty_shop.networks(QUICK)
    folder = empty_shop.folder / "networks" / QUICK.key
    assert (folder / "checkpoint").is_dir()
    assert not (folder / "cast.json").exists()
    networks = Workshop(empty_shop.folder, CPU).networks(QUICK)
    assert epochs == [0, -1, 1]  # the first epoch was not trained again
    assert not (folder / "checkpoint").exists()
    straight = Workshop(empty_shop.folder / "other", CPU).networks(QUICK)
    for seed in QUICK.seeds:
        for name, value in networks.model(seed).state_dict().items():
            assert torch.equal(value, straight.model(seed).state_dict()[name]), name
    assert json.loads((folder / "cast.json").read_text())["settings"]["seeds"] == [3, 1]


def test_weights_that_were_not_kept(tiny: Networks) -> None:
    with pytest.raises(RunError, match=r"epoch 7 were not kept; .* epochs \[0, 1, 2\]"):
        tiny.model(0, 7)
    with pytest.raises(RunError, match=r"seed 9, .*there are seeds \[0, 1\]"):
        tiny.risk(9, 0)


def spoil(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def swap(file: Path) -> None:
    from eigenscape.records import write_tensors

    write_tensors(file, {"fc1.weight": torch.zeros(2, 2)})


@pytest.mark.parametrize(
    ("harm", "words"), [(spoil, "checksum"), (Path.unlink, "damaged"), (swap, "fc1.weight")]
)
def test_damaged_weights_are_found(
    empty_shop: Workshop, harm: Callable[[Path], None], words: str
) -> None:
    networks = empty_shop.networks(QUICK)
    harm(networks.folder / "seed-3" / "epoch-0002.safetensors")
    networks.model(1)
    with pytest.raises(RunError, match=rf"(?s){words}.*Take the folder .* away"):
        networks.model(3)


def test_own_networks_start_where_their_training_did(empty_shop: Workshop) -> None:
    x = torch.randn(20, 3)
    own = Own(lambda seed: nn.Linear(3, 2), DataSet("toy", x, (x[:, 0] > 0).long(), 2))
    # A step so small that the end shows the start.
    cast = Cast("mine", "toy", Recipe(1, 20, SGD(1e-12)), (0, 4), own=own)
    networks = empty_shop.networks(cast)
    assert networks.test_accuracy is None
    for seed in cast.seeds:
        torch.testing.assert_close(networks.model(seed, 0).weight, networks.model(seed).weight)
    assert not torch.allclose(networks.model(0).weight, networks.model(4).weight)


def test_a_training_that_fails_leaves_no_networks(empty_shop: Workshop) -> None:
    wild = dataclasses.replace(
        QUICK, recipe=Recipe(3, 20, SGD(1e30), loss="squared-error"), keep_epochs=()
    )
    with pytest.warns(UserWarning, match="learning rate"), pytest.raises(EigenscapeError):
        empty_shop.networks(wild)
    assert not list(empty_shop.folder.rglob("cast.json"))


def test_portraits_are_remembered(tiny: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real = module.take_portrait

    def take(risk: Any, layer: str, num_pairs: int, progress: Any) -> Any:
        taken.append(num_pairs)
        return real(risk, layer, num_pairs, progress)

    monkeypatch.setattr(module, "take_portrait", take)
    shop = Workshop(tiny.folder, CPU)
    first = shop.portrait(tiny, 0, "fc2", num_pairs=5)
    few = shop.portrait(tiny, 0, "fc2", num_pairs=3, epoch=tiny.last)
    assert taken == [5]
    assert few.kronecker is first.kronecker
    assert torch.equal(few.values, first.values[:3])
    assert few.pairs.vectors.shape == (144, 3)
    more = shop.portrait(tiny, 0, "fc2", num_pairs=8)
    torch.testing.assert_close(more.values[:5], first.values)
    assert taken == [5, 8]
    assert len(shop.portrait(tiny, 0, "fc3", num_pairs=500).values) == 120
    shop.portrait(tiny, 0, "fc3", num_pairs=500)
    assert taken == [5, 8, 500]  # there are no more than 120, however many are asked for
    shop.portrait(tiny, 1, "fc2", num_pairs=5)
    shop.portrait(tiny, 0, "fc2", num_pairs=5, epoch=0)
    assert len(taken) == 5
    shop.forget()
    shop.portrait(tiny, 0, "fc2", num_pairs=2)
    assert len(taken) == 6


def test_a_remembered_portrait_still_says_that_it_did_not_converge(tiny: Networks) -> None:
    shop = Workshop(tiny.folder, CPU)
    good = shop.portrait(tiny, 0, "fc3", num_pairs=3)
    poor = dataclasses.replace(good.pairs, status=Status(False, "not there yet"))
    shop._portraits[TINY.key, tiny.dtype, 0, 2, "fc3"] = dataclasses.replace(good, pairs=poor)
    with pytest.warns(ConvergenceWarning, match="not there yet"):
        shop.portrait(tiny, 0, "fc3", num_pairs=3)


def test_progress_says_which_layer(tiny: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "eigenscape_papers.runner.portrait._DENSE", 10
    )  # or it is diagonalised whole
    monkeypatch.setattr("eigenscape_papers.runner.portrait._FORMED", 10)
    seen: list[Progress] = []
    Workshop(tiny.folder, CPU, progress=seen.append).portrait(tiny, 1, "fc2", num_pairs=3)
    assert {step.task for step in seen} == {"fc2 of F-12^2 (digits), seed 1"}
    assert seen[-1].done > 3


def test_what_was_measured_of_a_cast_is_kept_where_parts_are(
    empty_shop: Workshop, tmp_path: Path
) -> None:
    calls = []

    def measure() -> tuple[Measured, torch.Tensor, float]:
        shop.networks(TINY)
        calls.append(1)
        Status(False, "Not there yet.").warn()
        return Measured(2.0, None), torch.arange(3.0), math.inf

    shop = empty_shop
    for _ in range(2):  # nowhere by default
        with pytest.warns(ConvergenceWarning):
            shop.part("something", (TINY,), {"k": 1}, measure)
    assert len(calls) == 2
    shop = dataclasses.replace(empty_shop, parts=tmp_path / "parts")
    with pytest.warns(ConvergenceWarning, match="Not there yet"):
        first = shop.part("something", (TINY,), {"k": 1}, measure)
    loss = shop.asked[TINY.key].train_loss
    shutil.rmtree(shop.folder / "networks")
    shop = dataclasses.replace(Workshop(shop.folder, shop.device), parts=shop.parts)
    with pytest.warns(ConvergenceWarning, match="Not there yet"):
        again = shop.part("something", (TINY,), {"k": 1}, measure)
    assert len(calls) == 3
    assert again[0] == first[0]
    assert torch.equal(again[1], first[1])
    assert again[2] == math.inf
    assert shop.asked[TINY.key].train_loss == loss
    # Another option, another part.
    with pytest.warns(ConvergenceWarning):
        shop.part("something", (TINY,), {"k": 2}, measure)
    assert len(calls) == 4


@pytest.mark.parametrize(
    "name",
    [
        "papyan-attribution",
        "papyan-kronecker",
        "papyan-layers",
        "papyan-spectra",
        "wu-autocorrelation",
        "wu-full-hessian",
        "wu-output-space",
        "wu-overlap",
    ],
)
def test_what_is_kept_of_a_cast_needs_no_network(
    name: str,
    shop: Workshop,
    empty_shop: Workshop,
    small_study: Callable[[str], Study],
    tmp_path: Path,
) -> None:
    study = small_study(name)
    first = run_study(study, dataclasses.replace(shop, parts=tmp_path))
    again = run_study(study, dataclasses.replace(empty_shop, parts=tmp_path))
    assert numbers_of(again) == numbers_of(first)
    assert (again.seconds, again.device) == (0.0, "CPU")  # nothing was measured now
    assert first.seconds > 0
    # As a file has them, to which lists and tuples are the same.
    assert pack((again.sheets, again.figures)) == pack((first.sheets, first.figures))
    assert not (empty_shop.folder / "networks").exists()
