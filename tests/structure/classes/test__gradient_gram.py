"""Inner products of gradients need layers with samples in their first dimension.

What they are is compared with dense matrices in test_class_span.py.
"""

import pytest

from eigenscape.errors import UnsupportedModelError
from eigenscape.structure import class_span
from tests.curvature.classes.test_moments import LAYOUTS, OTHER_ROWS, Bag, Mixing, bag_risk


@pytest.mark.parametrize(("layout", "positions"), LAYOUTS)
def test_rows_that_are_not_samples_are_refused(layout: str, positions: int) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"{OTHER_ROWS}.*ClassGradients"):
        class_span(bag_risk(Bag(layout), positions))
    assert class_span(bag_risk(Bag(), positions)).traces()["class"] > 0


@pytest.mark.parametrize("sizes", [(6,), (1, 5)])
def test_samples_that_mix_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModelError, match="samples change each other's outputs"):
        class_span(bag_risk(Mixing(), 5, sizes))
