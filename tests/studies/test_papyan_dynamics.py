import dataclasses
import math

import pytest
import torch

from eigenscape.operators import ClassGradients, GaussNewton
from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Cast, Networks, Setting, Workshop, run_study
from tests.studies.conftest import numbers_of
from tests.studies.test_papyan_spectra import NARROW

NAME = "papyan-dynamics"
SIZES = (60, 100)


def cast(samples: int) -> Cast:
    return dataclasses.replace(NARROW, samples=samples, keep_epochs=(1,))


@pytest.fixture(scope="module")
def result(shop: Workshop) -> StudyResult:
    # The larger first: the study sorts.
    setting = Setting(tuple(cast(n) for n in reversed(SIZES)), {"max_bytes": 2**30})
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


def test_alignment(result: StudyResult, shop: Workshop) -> None:
    wrong = []
    for samples in SIZES:
        for epoch in (1, 2):
            found = ClassGradients(shop.networks(cast(samples)).risk(0, epoch))
            means = sum(found.part(name).to_dense() for name in ("class", "cross", "same"))
            tops = [torch.linalg.eigvalsh(M).flip(0)[:10] for M in (found.total.to_dense(), means)]
            wrong.append(float((tops[0].log10() - tops[1].log10()).abs().mean()))
    assert numbers_of(result)["papyan.fig6.alignment"] == pytest.approx(sum(wrong) / 4, rel=1e-6)


def test_panels_are_epochs_by_sizes(result: StudyResult) -> None:
    titles = [panel.title for panel in result.pictures[0].panels]
    assert titles == [f"epoch {epoch}, {samples} samples" for epoch in (1, 2) for samples in SIZES]
