import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.runner import (
    Cast,
    Networks,
    Own,
    Setting,
    Study,
    Workshop,
    portrait,
    run_study,
)
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import OverlapOfLayer, first_peak, overlap_prediction
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu import overlap_study as wu_overlap
from eigenscape_papers.wu.overlap_study import _linearity, _measured, _notes
from papers.tests.conftest import TINY, block, numbers_of, top_vectors

NAME = "wu-overlap"


def overlaps(networks: Networks, layer: str, count: int) -> torch.Tensor:
    """Return the overlap of the top k eigenvectors of both networks, k = 1, …, count."""
    U, V = (top_vectors(block(networks, s, f"{layer}.weight"), count) for s in (0, 1))
    squares = (U.T @ V).square()
    return torch.stack([squares[:k, :k].sum() / k for k in range(1, count + 1)])


def test_overlaps(small_study: Callable[[str], Study], shop: Workshop, tiny: Networks) -> None:
    result = run_study(small_study(NAME), shop, own=TINY)
    table = result.sheets[0].columns
    assert table["layer"] == ("fc1", "fc2", "fc3")
    assert table["sd over pairs"] == (None,) * 3  # there is one pair
    curves = {layer: overlaps(tiny, layer, 15) for layer in table["layer"]}
    for i, (layer, m) in enumerate((("fc1", 12), ("fc2", 12), ("fc3", 10))):
        assert table["rank of E[M]"][i] == m - (layer == "fc3")  # a softmax has rank c − 1
        assert table["overlap at m"][i] == pytest.approx(float(curves[layer][m - 1]), abs=1e-5)
    lines = [panel.marks[0] for panel in result.pictures()[0].panels]
    assert lines[1].y == pytest.approx(curves["fc2"].tolist(), abs=1e-5)
    above, errors = [], []
    for layer, size in (("fc1", 768), ("fc2", 144)):
        seen = [shop.portrait(tiny, seed, layer, num_pairs=15) for seed in (0, 1)]
        told = overlap_prediction(
            seen[0].kronecker, seen[1].kronecker, num_vectors=15, num_inputs=10
        ).overlaps
        chance = torch.arange(1, 16) / size
        above.append(float((curves[layer] / chance)[(told - chance).argmax()]))
        gap = (told - curves[layer])[:12].abs().mean()
        errors.append(float(gap / curves[layer][:12].mean()))
    ours = numbers_of(result)
    assert ours["wu.overlap.above-chance"] == pytest.approx(min(above), rel=1e-4)
    assert ours["wu.theorem-f1.curve"] == pytest.approx(sum(errors) / 2, rel=1e-4)


def wide_cast(build: Callable[[], nn.Module]) -> Cast:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 0.5
    own = Own(lambda seed: build(), DataSet("x", x, (x[:, 0] > 0).long(), 2))
    return dataclasses.replace(TINY, model="net.py:build", samples=None, own=own)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))


def test_own_layers_are_looked_at_beyond_m(
    small_study: Callable[[str], Study], empty_shop: Workshop
) -> None:
    """The first layer has more outputs than the 15 pairs of the setting."""
    cast = wide_cast(wide)
    result = run_study(small_study(NAME), empty_shop, own=cast)
    table = result.sheets[0].columns
    truth = overlaps(empty_shop.networks(cast), "0", 24)
    assert result.pictures()[0].panels[0].marks[0].y == pytest.approx(truth.tolist(), abs=1e-5)
    assert table["overlap at m"][0] == pytest.approx(float(truth[19]), abs=1e-5)
    assert table["chance at m"][0] == pytest.approx(20 / 120, rel=1e-5)
    assert not [note for note in result.notes if "eigenvectors were taken" in note]


def test_where_m_is_out_of_reach_nothing_is_said_of_it(
    small_study: Callable[[str], Study], empty_shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portrait, "_MOST_NUMBERS", 0)
    result = run_study(small_study(NAME), empty_shop, own=wide_cast(wide))
    table = result.sheets[0].columns
    for name in ("overlap at m", "sd over pairs", "predicted at m", "chance at m"):
        assert table[name][0] is None
    assert table["overlap at m"][1] is not None
    (note,) = [note for note in result.notes if "eigenvectors were taken" in note]
    assert note.startswith("Of 0 of net.py:build (digits) 15 eigenvectors were taken, and m = 20:")
    ours = numbers_of(result)
    assert "wu.theorem-f1.curve" not in ours
    assert "wu.overlap.above-chance" in ours


class TwoHeads(nn.Module):
    """Runs its last layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 5), nn.Linear(5, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).tanh()
        return self.last(self.last(x).tanh())


def test_a_layer_before_one_that_is_left_out_is_not_the_last(
    small_study: Callable[[str], Study], empty_shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theorem F.1 has an exception for the last layer alone."""
    real, seen = wu_overlap._compare, []
    monkeypatch.setattr(wu_overlap, "_compare", lambda *args: seen.append(args) or real(*args))
    for build in (TwoHeads, wide):
        result = run_study(small_study(NAME), empty_shop, own=wide_cast(build))
        if build is TwoHeads:
            assert result.sheets[0].columns["layer"] == ("first", "second")
            assert any("last (it runs 2 times in a forward pass)" in n for n in result.notes)
    assert [is_last for _, _, is_last in seen] == [False, False, False, True]


def test_one_network_is_refused(small_study: Callable[[str], Study], shop: Workshop) -> None:
    with pytest.raises(InvalidArgumentError, match="--seeds 0-2"):
        run_study(small_study(NAME), shop, own=dataclasses.replace(TINY, seeds=(0,)))


class Told:
    overlaps, alignment = torch.linspace(0.1, 0.9, 260), 0.5

    def __init__(self, rank: int, reach: int = 3, regime: str = "delayed peak") -> None:
        self.rank, self.reach, self.regime = rank, reach, regime


def layer(group: str, name: str, m: int, last: bool = False, pairs: int = 3) -> OverlapOfLayer:
    """Return a layer whose overlap rises to 0.4 at m, and falls from there."""
    rise = torch.minimum(torch.arange(1, 261) / m, m / torch.arange(1, 261))
    noise = torch.linspace(-0.1, 0.1, pairs)[:, None] if pairs > 1 else torch.zeros(1, 1)
    return OverlapOfLayer(group, name, m, 0.4 * rise + noise, (Told(m),), last, 10**6)


def test_every_claim_can_be_measured_on_the_papers_networks() -> None:
    layers = [layer("LeNet5 (cifar10)", n, m) for n, m in (("conv1", 6), ("conv2", 16))]
    layers += [layer("LeNet5 (cifar10)", n, m) for n, m in (("fc1", 120), ("fc2", 84))]
    layers += [layer("LeNet5 (cifar10)", "fc3", 10, last=True)]
    layers += [layer("LeNet5-BN (cifar10)", "fc1", 120), layer("F-200^2 (mnist)", "fc2", 200)]
    found = _measured(layers, "wu")
    assert found.keys() >= {claim.id for claim in STUDIES[NAME].claims}
    assert found["wu.lenet5.fc1.peak"].ours == 1.0
    assert found["wu.lenet5.fc1.height"].ours == pytest.approx(0.8)
    assert found["wu.lenet5.fc1.height"].spread == pytest.approx(0.2)
    assert found["wu.lenet5.fc1.growth"].ours == pytest.approx(1.0)
    assert found["wu.lenet5.fc3.flat"].ours == pytest.approx(1 / 9)
    assert found["wu.fig28.batchnorm.height"].ours == pytest.approx(1.0)
    assert found["wu.f200x2.fc2.early-peak.height"].ours == pytest.approx(0.4 * 9 / 200)


def test_a_layer_where_the_theorem_ends_at_nine() -> None:
    """Overlap 0.02 k up to 9, then half as steep up to 100, with m = 84 and (t₁·t₁')² = 0.5."""
    k = torch.arange(1.0, 261.0)
    values = 0.02 * k.clamp(max=9) + 0.01 * (k - 9).clamp(0, 91) - 0.1 * (k - 100).clamp(0, 1)
    found = _measured(
        [OverlapOfLayer("LeNet5 (cifar10)", "fc2", 84, values[None], (Told(84),), False, 10**9)],
        "wu.x",
    )
    assert found["wu.x.lenet5.fc2.late"].ours == pytest.approx(100 / 84)
    assert found["wu.x.lenet5.fc2.low"].ours == pytest.approx(1.09 / 0.5)
    assert found["wu.x.lenet5.fc2.bend"].ours == pytest.approx(0.18 / (0.93 * 9 / 84))
    assert found["wu.x.lenet5.fc2.early-peak"].ours == 100  # a kink is no peak


def test_dead_units_count_for_less() -> None:
    """Two of three pairs have E[M] of rank 5, and the mean curve is straight up to there."""
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 4.0, 3.0]) / 10
    told = (Told(5, 5, "early peak"), Told(6, 6, "linear growth"), Told(5, 5, "early peak"))
    dead = OverlapOfLayer("LeNet5 (cifar10)", "conv1", 6, values.repeat(3, 1), told, False, 10**6)
    assert (dead.rank, dead.reach, dead.regime) == (5, 5, "early peak")
    found = _measured([dead], "wu")
    assert found["wu.lenet5.conv1.peak"].ours == 1.0
    assert found["wu.lenet5.conv1.growth"].ours == pytest.approx(1.0)
    assert found["wu.lenet5.conv1.height"].ours == pytest.approx(0.4 / 0.5)  # at m, as printed


def test_the_layers_that_decide_are_named() -> None:
    layers = [layer("LeNet5 (cifar10)", n, m) for n, m in (("fc1", 120), ("fc2", 84))]
    layers += [layer("LeNet5 (cifar10)", "fc3", 10, last=True)]
    least, worst, first, second = _notes(layers)
    # The prediction peaks at 260, where 0.4 · m/260 is less for fc2; it is a tenth at the start.
    assert "fc2 of LeNet5 (cifar10) has the least overlap" in least
    assert "at k = 260" in least
    assert "furthest off in" in worst
    assert first.startswith("fc1 of LeNet5 (cifar10): delayed peak. Theorem F.1 holds up to k = 3")
    assert f"{float(Told.overlaps[83]) / 0.5:.2f} (t₁·t₁')² is predicted" in second
    assert _notes(layers[2:]) == ()


def test_one_pair_has_no_spread() -> None:
    found = _measured([layer("LeNet5 (cifar10)", "fc1", 120, pairs=1)], "wu")
    assert found["wu.lenet5.fc1.height"].spread is None


def test_linearity() -> None:
    assert _linearity(torch.tensor([1.0, 2.0, 3.0])) == pytest.approx(1.0)
    assert _linearity(torch.tensor([1.0, 5.0, 1.0])) == pytest.approx(0.0, abs=1e-12)


def test_the_first_peak_is_one_that_is_followed_by_less() -> None:
    curve = torch.tensor([1.0, 3.0, 2.0, 4.0, 3.5, 3.4, 3.3, 3.2, 3.1, 9.0])
    assert first_peak(curve, following=1) == 2
    assert first_peak(curve) == 4
    assert first_peak(torch.arange(6.0)) == 6


# --- other widths, other trainings and deeper networks


@pytest.mark.parametrize("name", ["wu-overlap-trainings", "wu-overlap-deep"])
def test_what_holds_for_any_network_is_judged(name: str, shop: Workshop, tiny: Networks) -> None:
    """Ids are made from the network's name; those of the paper's networks are not run here."""
    setting = Setting((tiny.cast,), {"num_pairs": 12})
    study = dataclasses.replace(STUDIES[name], settings={"paper": setting})
    result = run_study(study, shop, scale="paper")
    found = {f.id: f.status for f in result.findings}
    general = {name for name in found if name.endswith(("above-chance", "curve"))}
    assert general
    assert {name for name in found if found[name] != "not run"} == general


def test_claims_are_named_as_they_are_measured(shop: Workshop, tiny: Networks) -> None:
    """A claim on a network's layer is found under the id that measuring gives it."""
    study = STUDIES["wu-overlap-widths"]
    claim = study.claims[0]
    renamed = dataclasses.replace(claim, id=claim.id.replace("lenet5fc180", "f12x2"))
    setting = Setting((tiny.cast,), {"num_pairs": 12})
    own = dataclasses.replace(study, claims=(renamed,), settings={"paper": setting})
    assert run_study(own, shop, scale="paper").measured.keys() == {renamed.id}


def test_networks_of_one_label_are_compared_with_each_other() -> None:
    """All three trainings of LeNet5 are one group, as in Fig. 9: 16 networks."""
    group = STUDIES["wu-overlap-trainings"].settings["paper"].casts
    assert {cast.label for cast in group} == {casts.LENET.label}
    seeds = [seed for cast in group for seed in cast.seeds]
    assert len(seeds) == len(set(seeds)) == 16
