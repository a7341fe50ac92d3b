"""Looking at every network of a study, and saying something of all of them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np

from eigenscape_papers.runner.cast import Cast
from eigenscape_papers.runner.claims import Measured
from eigenscape_papers.runner.study import Setting, of_each_cast
from eigenscape_papers.runner.workshop import Networks, Workshop

T = TypeVar("T")


class _Labelled(Protocol):
    @property
    def label(self) -> str: ...


_L = TypeVar("_L", bound=_Labelled)


def of_each_network(
    name: str,
    setting: Setting,
    workshop: Workshop,
    look: Callable[[Networks, int, Setting, Workshop], T],
) -> list[T]:
    """Look at the network of each seed of each cast, or read what was seen; it is kept by cast.

    Args:
        name: Of what is measured.
        setting: Its casts are looked at; its options decide.
        workshop: Where networks are, and what was measured of them.
        look: Does it for one seed.

    Returns:
        What was seen of each.
    """

    def of_cast(cast: Cast, setting: Setting, workshop: Workshop) -> tuple[T, ...]:
        networks = workshop.networks(cast)
        return tuple(look(networks, seed, setting, workshop) for seed in cast.seeds)

    return [*chain(*of_each_cast(name, setting, workshop, of_cast))]


def by_label(items: Iterable[_L]) -> dict[str, list[_L]]:
    """Return what belongs to networks by their label, in order."""
    groups: dict[str, list[_L]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    return groups


def worst(
    networks: Iterable[_L],
    value: Callable[[_L], float],
    mean: Callable[[Sequence[float]], float],
    *,
    is_least: bool = False,
) -> Measured:
    """Return the mean over seeds, of the label where it is largest; NaN where there is none.

    Args:
        networks: One for each seed.
        value: The number of a network; one that is not finite does not count.
        mean: Of numbers.
        is_least: Where it is least instead.

    Returns:
        The mean, and the standard deviation over seeds.
    """
    groups = [
        [number for number in map(value, group) if math.isfinite(number)]
        for group in by_label(networks).values()
    ]
    choose = min if is_least else max
    numbers = choose(filter(None, groups), key=mean, default=[math.nan])
    spread = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return Measured(mean(numbers), spread)


def over_networks(numbers: Sequence[Mapping[str, float]]) -> dict[str, Measured]:
    """Return the mean of each claim's number, and its spread, over the networks that have one.

    Args:
        numbers: Of each network by the ids of claims.

    Returns:
        The measured numbers by the same ids.
    """
    ids = dict.fromkeys(id for of_one in numbers for id in of_one)
    return {id: Measured.over([one[id] for one in numbers if id in one]) for id in ids}


def finite(value: float) -> float | None:
    """Return a number for a table: None for one that is not finite."""
    return value if math.isfinite(value) else None
