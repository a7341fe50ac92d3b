import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import cross_entropy

from eigenscape.records import Line, Rule
from eigenscape_papers.papyan import KroneckerSpectra, kronecker_spectra, range_ratio, shifted_ratio
from eigenscape_papers.runner import Networks, Setting, Study, StudyResult, Workshop, run_study
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import TINY, TINY_BN, block, inputs_of, numbers_of

NAME = "papyan-kronecker"


def output_hessian(networks: Networks, seed: int, kept: torch.Tensor) -> torch.Tensor:
    """Return the Hessian of the mean loss of some samples at fc2's output: that of its bias."""
    model = networks.model(seed)
    loss = cross_entropy(model(networks.data.inputs[kept]), networks.data.targets[kept])
    bias = model.fc2.bias
    (slope,) = torch.autograd.grad(loss, bias, create_graph=True)
    return torch.stack([torch.autograd.grad(s, bias, retain_graph=True)[0] for s in slope])


def spectra(networks: Networks, seed: int) -> list[torch.Tensor]:
    """Return the eigenvalues of G, CFAC, KFAC of fc2.weight; behind it all is linear in pieces."""
    h, y = inputs_of(networks, seed, "fc2"), networks.data.targets
    everything = torch.ones_like(y, dtype=torch.bool)
    KFAC = torch.kron(output_hessian(networks, seed, everything), h.T @ h / len(h))
    CFAC = torch.zeros_like(KFAC)
    for c in range(10):
        mine = y == c
        left, right = output_hessian(networks, seed, mine), h[mine].T @ h[mine] / int(mine.sum())
        CFAC += mine.double().mean() * torch.kron(left, right)
    matrices = (block(networks, seed, "fc2.weight"), CFAC, KFAC)
    return [torch.linalg.eigvalsh((M + M.T) / 2).flip(0).clamp_min(0) for M in matrices]


def test_claims(ran: Callable[[str], StudyResult], shop: Workshop) -> None:
    ours, networks = numbers_of(ran(NAME)), shop.networks(TINY_BN)
    found: dict[str, list[float]] = {"outliers": [], "mini-bulk": [], "all": [], "shifted": []}
    for seed in TINY_BN.seeds:
        values = spectra(networks, seed)
        epsilon = 1e-6 * float(values[0][0])
        G, CFAC, KFAC = (v.add(epsilon).log() for v in values)
        for name, part in (("outliers", (0, 10)), ("mini-bulk", (10, 100)), ("all", (0, 100))):
            own, other = ((X - G)[slice(*part)].abs().sum() for X in (CFAC, KFAC))
            found[name].append(float(own / other))
        gaps = [(X - G)[:100] for X in (CFAC, KFAC)]
        own, other = ((gap - gap.median()).abs().mean() for gap in gaps)
        found["shifted"].append(float(own / other))
    # Of two hidden layers the deeper half is the second.
    for name, numbers in found.items():
        assert ours[f"papyan.fig12.deep.{name}"] == pytest.approx(sum(numbers) / 2, rel=1e-5)
    for name in ("outliers", "mini-bulk"):
        assert ours[f"papyan.fig11.{name}"] == ours[f"papyan.fig12.deep.{name}"]
    assert "papyan.fig12.cifar10.aligned" not in ours


def test_depth_compares_halves(ran: Callable[[str], StudyResult]) -> None:
    table = ran(NAME).sheets[0].columns
    assert table["layer"] == ("fc1", "fc2", "fc3") * 4  # two casts, here the same, and two seeds
    halves = [table["C²"][i + 1] / table["C²"][i] for i in (0, 3)]
    depth = numbers_of(ran(NAME))["papyan.fig12.depth"]
    assert depth == pytest.approx(sum(halves) / 2, rel=1e-4)


def test_names_of_rules_have_room(ran: Callable[[str], StudyResult]) -> None:
    panel = ran(NAME).pictures()[1].panels[0]
    rules = {mark.text: mark.at for mark in panel.marks if isinstance(mark, Rule)}
    assert rules == {"C": 10, "C²": 100}
    drawn = [y for mark in panel.marks if isinstance(mark, Line) for y in mark.y]
    assert panel.x.limits[1] > 100
    assert panel.y.limits[1] == pytest.approx(1.2 * max(drawn), rel=1e-4)


def test_laptop_scale_has_a_wide_network_that_was_trained_for_long() -> None:
    narrow, wide = STUDIES[NAME].settings["laptop"].casts
    assert (narrow.model, wide.model) == ("MLP-6x32-BN", "MLP-6x96-BN")
    assert STUDIES["papyan-layers"].settings["laptop"].casts == (wide,)


@pytest.fixture
def found(tiny: Networks) -> KroneckerSpectra:
    return kronecker_spectra(tiny.risk(0), "fc2.weight", num_values=30)


def test_ratios_of_parts(found: KroneckerSpectra) -> None:
    logs = [(v + found.epsilon).log() for v in (found.values, found.class_kronecker)]
    other = (found.kronecker + found.epsilon).log()
    gaps = [(x - logs[0]).abs() for x in (logs[1], other)]
    for first, last in ((0, 10), (10, 30), (29, 30)):
        own, theirs = (float(gap[first:last].sum()) for gap in gaps)
        assert range_ratio(found, first, last) == pytest.approx(own / theirs)
    assert range_ratio(found, 0, 99) == pytest.approx(range_ratio(found, 0, 30))
    assert math.isnan(range_ratio(found, 30, 99))
    assert range_ratio(found, 0, 10) == pytest.approx(found.ratio(10))


def test_a_factor_is_no_difference_once_shifted(found: KroneckerSpectra) -> None:
    same = dataclasses.replace(
        found, epsilon=0.0, class_kronecker=3.0 * found.values, kronecker=found.values**2
    )
    assert shifted_ratio(same, 10) == pytest.approx(0.0, abs=1e-12)
    swapped = dataclasses.replace(
        same, class_kronecker=same.kronecker, kronecker=same.class_kronecker
    )
    assert shifted_ratio(swapped, 10) > 1e6 or math.isnan(shifted_ratio(swapped, 10))


def test_paper_scale_asks_for_pairs_and_some_samples(
    small_study: Callable[[str], Study], shop: Workshop
) -> None:
    """What the paper's scale does, with a small network: products, and the best of a grid."""
    short = dataclasses.replace(TINY.recipe, epochs=1)
    grid = tuple(
        dataclasses.replace(TINY, model="MLP-2x12-BN", recipe=recipe, keep_epochs=(), seeds=(0,))
        for recipe in (TINY.recipe, short)
    )
    options = STUDIES[NAME].settings["paper"].options
    options = options | {"samples": 80, "max_exact": 100, "num_values": 20}
    study = dataclasses.replace(
        small_study(NAME), settings={"laptop": Setting(), "paper": Setting(grid, options)}
    )
    result = run_study(study, shop, scale="paper")
    best = max(grid, key=lambda cast: shop.networks(cast).test_accuracy)
    networks = dataclasses.replace(
        shop.networks(best), data=shop.networks(best).data.take(80, seed=0)
    )
    top = torch.linalg.eigvalsh(block(networks, 0, "fc2.weight"))[-1]
    marks = result.pictures()[0].panels[1].marks
    assert marks[0].y[0] == pytest.approx(float(top), rel=1e-3)
    assert len(marks[0].y) == 20
    assert result.num_products > 0
