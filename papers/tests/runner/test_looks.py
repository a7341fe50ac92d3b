import dataclasses
import math
from pathlib import Path
from statistics import fmean

import pytest

from eigenscape_papers.runner import (
    Measured,
    Networks,
    Setting,
    Workshop,
    by_label,
    finite,
    of_each_network,
    over_networks,
    worst,
)
from papers.tests.conftest import TINY, TINY_BN


@dataclasses.dataclass(frozen=True)
class Net:
    label: str
    value: float


NETS = [Net("a", 0.9), Net("b", 0.5), Net("a", 0.7), Net("b", 0.6), Net("c", math.nan)]


def test_every_network_is_looked_at_once_and_kept_by_cast(shop: Workshop, tmp_path: Path) -> None:
    looks: list[tuple[str, int]] = []

    def look(networks: Networks, seed: int, setting: Setting, workshop: Workshop) -> float:
        looks.append((networks.cast.model, seed))
        return setting.options["k"] + float(seed)

    setting = Setting((TINY, TINY_BN), {"k": 3})
    kept = dataclasses.replace(shop, parts=tmp_path)
    for _ in range(2):
        assert of_each_network("sums", setting, kept, look) == [3.0, 4.0, 3.0, 4.0]
    assert looks == [(cast.model, seed) for cast in (TINY, TINY_BN) for seed in (0, 1)]
    files = [kept.part_file("sums", (cast,), setting.options) for cast in setting.casts]
    assert sorted((tmp_path / "sums").iterdir()) == sorted(files)


def test_networks_of_one_label_belong_together() -> None:
    groups = by_label(NETS)
    assert [*groups] == ["a", "b", "c"]
    assert groups["a"] == [NETS[0], NETS[2]]


def test_the_label_with_the_worst_mean_counts() -> None:
    most = worst(NETS, lambda net: net.value, fmean)
    assert most.ours == pytest.approx(0.8)
    assert most.spread == pytest.approx(0.1 * 2**0.5)
    least = worst(NETS, lambda net: net.value, fmean, is_least=True)
    assert least.ours == pytest.approx(0.55)
    assert worst(NETS[:1], lambda net: net.value, fmean).spread is None
    assert math.isnan(worst(NETS[4:], lambda net: net.value, fmean).ours)


def test_claims_are_averaged_over_the_networks_that_have_them() -> None:
    numbers = over_networks([{"x": 1.0}, {"y": 5.0, "x": 3.0}])
    assert numbers == {"x": Measured(2.0, 2**0.5), "y": Measured(5.0)}
    assert over_networks([]) == {}


def test_what_is_not_finite_stays_empty() -> None:
    assert [finite(v) for v in (0.5, math.nan, math.inf)] == [0.5, None, None]
