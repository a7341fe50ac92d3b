import dataclasses
import math
from pathlib import Path

import pytest
import torch

from eigenscape.curvature import ClassGradients, GaussNewton
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.networks import build
from eigenscape_papers.papyan.dynamics_study import _along, _class_levels
from eigenscape_papers.runner import Cast, Networks, Own, Setting, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import numbers_of
from papers.tests.papyan.test_spectra_study import NARROW

NAME = "papyan-dynamics"
SIZES = (60, 100)


def cast(samples: int) -> Cast:
    return dataclasses.replace(NARROW, samples=samples, keep_epochs=(1,))


@pytest.fixture(scope="module")
def result(shop: Workshop) -> StudyResult:
    # The larger first: the study sorts.
    setting = Setting(tuple(cast(n) for n in reversed(SIZES)), {"max_bytes": 2**30, "shown": None})
    study = dataclasses.replace(STUDIES[NAME], settings={"laptop": setting})
    return run_study(study, shop)


def distances(networks: Networks, seed: int, epoch: int) -> tuple[float, float]:
    """Decades from the level of G_within to those of G_cross and of G_class, from dense parts."""
    risk = networks.risk(seed, epoch)
    found = ClassGradients(risk)
    traces = {
        name: float(found.part(name).to_dense().trace()) for name in ("class", "cross", "same")
    }
    within = float(GaussNewton(risk).to_dense().trace()) - sum(traces.values())
    within /= networks.data.num_samples
    return math.log10(traces["cross"] / 80 / within), math.log10(traces["class"] / 10 / within)


def test_levels_and_what_becomes_of_them(result: StudyResult, shop: Workshop) -> None:
    expected = {
        (samples, seed, epoch): distances(shop.networks(cast(samples)), seed, epoch)
        for samples in SIZES
        for seed in (0, 1)
        for epoch in (1, 2)
    }
    table = result.sheets[0].columns
    keys = list(zip(table["samples"], table["seed"], table["epoch"], strict=True))
    assert keys == list(expected)
    cross, both = zip(*expected.values(), strict=True)
    assert table["cross above within (decades)"] == pytest.approx(cross, rel=1e-4)
    assert table["class above within (decades)"] == pytest.approx(both, rel=1e-4)
    ours = numbers_of(result)
    size = {key: abs(value[0]) for key, value in expected.items()}
    apart = [size[n, s, 2] > size[n, s, 1] for n in SIZES for s in (0, 1)]
    assert ours["papyan.fig6.epochs"] == sum(apart) / 4
    closer = [size[SIZES[1], s, e] < size[SIZES[0], s, e] for s in (0, 1) for e in (1, 2)]
    assert ours["papyan.fig6.sizes"] == sum(closer) / 4
    spans = [max(values) - min(values) for values in (both, cross)]
    assert ours["papyan.fig6.class-distance"] == pytest.approx(spans[0] / spans[1], rel=1e-6)


def test_medians_are_those_of_dense_parts(result: StudyResult, shop: Workshop) -> None:
    found = ClassGradients(shop.networks(cast(60)).risk(1, 2))
    values = {
        name: torch.linalg.eigvalsh(found.part(name).to_dense()).flip(0)
        for name in ("class", "cross", "within")
    }
    within = values["within"][values["within"] > 1e-9 * values["within"][0]]
    expected = [float(values[name][:k].median()) for name, k in (("class", 10), ("cross", 80))]
    table = result.sheets[0].columns
    keys = list(zip(table["samples"], table["seed"], table["epoch"], strict=True))
    row = keys.index((60, 1, 2))
    ours = [table[f"{name} above within by medians"][row] for name in ("class", "cross")]
    assert ours == pytest.approx(
        [math.log10(value / float(within.median())) for value in expected], rel=1e-4
    )


def test_levels_of_classes_add_up(shop: Workshop) -> None:
    networks = shop.networks(cast(60))
    gradients = ClassGradients(networks.risk(0, 2))
    model, data = networks.model(0, 2), networks.data
    levels = _class_levels(model, data, gradients)
    counts = data.targets.bincount().tolist()
    total = sum(n * level for n, level in zip(counts, levels, strict=True))
    assert total == pytest.approx(float(gradients.part("within").to_dense().trace()))
    # Of one class alone: G_c less the second moments of its cells.
    chosen = data.targets == 3
    risk = EmpiricalRisk(model, CrossEntropy(), (data.inputs[chosen], data.targets[chosen]))
    whole = GaussNewton(risk).to_dense().trace() * counts[3] / 60
    cells = [gradients.weights[3, k] * gradients.mean(3, k).square().sum() for k in range(10)]
    assert levels[3] == pytest.approx(float(whole - sum(cells)) / counts[3])


def test_the_means_have_no_eigenvalues_for_the_same_class(shop: Workshop) -> None:
    """Of C² eigenvalues the caption has C for G_{c=c'}; they are zero, not small."""
    found = ClassGradients(shop.networks(cast(100)).risk(0, 2))
    means = sum(found.part(name).to_dense() for name in ("class", "cross", "same"))
    values = torch.linalg.eigvalsh(means).flip(0)
    floor = 1e-13 * float(values[0])
    assert float(values[9 * 10 - 1]) > floor > float(values[9 * 10])


def own_cast(num_samples: int) -> Cast:
    """A user's network on data sorted by class."""
    whole = dataclasses.replace(NARROW, samples=num_samples).load()
    order = whole.targets.argsort()
    data = dataclasses.replace(whole, inputs=whole.inputs[order], targets=whole.targets[order])
    own = Own(lambda seed: NARROW.build(seed, data), data)
    return dataclasses.replace(NARROW, model="mine", own=own, samples=None)


def test_ones_own_network_gets_sizes_and_epochs(shop: Workshop) -> None:
    whole = own_cast(160)
    whole = dataclasses.replace(whole, recipe=dataclasses.replace(whole.recipe, epochs=8))
    found = _along(whole)
    assert [each.samples for each in found] == [20, 40, 160]  # two of each class at least
    assert {each.keep_epochs for each in found} == {(1, 2, 4)}
    assert len({each.key for each in found}) == 3
    assert int(found[0].load().targets.unique().numel()) > 5  # though they are sorted
    assert _along(NARROW) == [NARROW]
    result = run_study(STUDIES[NAME], shop, own=own_cast(60))
    assert result.sheets[0].columns["samples"] == (20,) * 4 + (60,) * 4
    assert numbers_of(result).keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_one_size_and_epoch_say_nothing_of_distances(shop: Workshop) -> None:
    setting = Setting(
        (dataclasses.replace(NARROW, samples=60),), {"max_bytes": 2**30, "shown": None}
    )
    study = dataclasses.replace(STUDIES[NAME], settings={"laptop": setting})
    assert numbers_of(run_study(study, shop)).keys() == {"papyan.fig6.alignment"}


def test_what_is_kept_of_a_size_needs_no_network(
    shop: Workshop, empty_shop: Workshop, tmp_path: Path
) -> None:
    setting = Setting((cast(60), cast(100)), {"max_bytes": 2**30, "shown": (100,)})
    first, again = (
        STUDIES[NAME].measure(setting, dataclasses.replace(here, parts=tmp_path))
        for here in (shop, empty_shop)
    )
    assert (again.measured, again.sheets) == (first.measured, first.sheets)
    assert again.pictures == first.pictures
    assert [panel.title for panel in first.pictures[0].panels] == [
        f"epoch {epoch}, 100 samples" for epoch in (1, 2)
    ]
    assert not (empty_shop.folder / "networks").exists()


def test_sizes_without_panels_make_a_record_too(shop: Workshop) -> None:
    """A run may have ended before those that are drawn were trained."""
    setting = Setting((cast(60), cast(100)), {"max_bytes": 2**30, "shown": (7,)})
    study = dataclasses.replace(STUDIES[NAME], settings={"laptop": setting})
    found = run_study(study, shop)
    assert [picture.name for picture in found.pictures()] == ["distances"]
    assert STUDIES[NAME].claims[-1].id == "papyan.fig6.alignment"
    assert numbers_of(found).keys() == {claim.id for claim in STUDIES[NAME].claims[:-1]}


def test_alignment(result: StudyResult, shop: Workshop) -> None:
    wrong = []
    for samples in SIZES:
        for epoch in (1, 2):
            found = ClassGradients(shop.networks(cast(samples)).risk(0, epoch))
            means = sum(found.part(name).to_dense() for name in ("class", "cross", "same"))
            tops = [torch.linalg.eigvalsh(M).flip(0)[:10] for M in (found.total.to_dense(), means)]
            wrong.append(float((tops[0].log10() - tops[1].log10()).abs().mean()))
    assert numbers_of(result)["papyan.fig6.alignment"] == pytest.approx(sum(wrong) / 4, rel=1e-6)
    column = result.sheets[0].columns["top C of G and of the means apart (decades)"]
    assert [value for value in column if value is not None] == pytest.approx(wrong, rel=1e-4)


def test_panels_are_epochs_by_sizes(result: StudyResult) -> None:
    titles = [panel.title for panel in result.pictures()[0].panels]
    assert titles == [f"epoch {epoch}, {samples} samples" for epoch in (1, 2) for samples in SIZES]
    assert result.pictures()[0].across == len(SIZES)
    panels = result.pictures()[0].panels
    assert len({panel.y for panel in panels}) == 1
    within = next(mark for mark in panels[0].marks if getattr(mark, "label", None) == "within")
    assert len(within.x) == 10  # one for each class


def test_language_models_have_no_levels_of_classes(shop: Workshop) -> None:
    """A sample has a label for each position, so that it is in no class alone."""
    tokens = torch.randint(3, (8, 6), generator=torch.Generator().manual_seed(0))
    data = DataSet("tokens", tokens[:, :-1], tokens[:, 1:], num_classes=3)
    own = Own(lambda seed: build("GPT-1x4x2", input_shape=(5,), num_classes=3), data)
    recipe = dataclasses.replace(NARROW.recipe, epochs=1, batch_size=3)
    whole = dataclasses.replace(
        NARROW, model="mine", own=own, samples=None, recipe=recipe, seeds=(0,)
    )
    found = run_study(STUDIES[NAME], shop, own=whole)
    assert any("a label for each position" in note for note in found.notes)
    assert "papyan.fig6.alignment" in numbers_of(found)


def test_panels_with_levels_need_no_note(result: StudyResult) -> None:
    assert not any("a label for each position" in note for note in result.notes)


def test_panels_are_of_sizes_that_there_are() -> None:
    setting = STUDIES[NAME].settings["paper"]
    assert set(setting.options["shown"]) < {cast.samples for cast in setting.casts}
