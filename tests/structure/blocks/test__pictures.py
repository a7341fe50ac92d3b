import math

import pytest
import torch

from eigenscape.operator import Dense
from eigenscape.records.pictures import Heat, Line, Points, Raster
from eigenscape.report._matplotlib import make_figure
from eigenscape.space import ParamSpace, Partition
from eigenscape.structure import (
    block_spectra,
    block_structure,
    squared_block_norms,
    stripes,
)
from eigenscape.structure.blocks._pictures import (
    norms_picture,
    spectra_picture,
    stripes_picture,
    structure_picture,
)

SPACE = ParamSpace({"a": (3,), "b": (4,), "c": (5,)})
BLOCKS = Partition.by_tensor(SPACE)
MANY = ParamSpace({f"t{i}": (2,) for i in range(15)})


def matrix(space: ParamSpace, *, zero: int = 0) -> Dense:
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(space.size, space.size, generator=draw, dtype=torch.float64)
    H = X @ X.T / space.size
    H[:zero] = 0.0
    H[:, :zero] = 0.0
    return Dense((H + H.T) / 2, space=space)


def test_few_blocks_are_named() -> None:
    norms = squared_block_norms(matrix(SPACE), BLOCKS, num_products=12)
    picture = norms_picture(norms)
    (heat,) = picture.panels[0].marks
    assert isinstance(heat, Heat)
    assert heat.rows == ("a", "b", "c")
    torch.testing.assert_close(torch.tensor(heat.values), norms.values)
    assert heat.hover[0][1].startswith("a × b\n")
    assert picture.table["row"][1] == "a"


def test_many_blocks_are_a_raster_that_dead_ones_do_not_spoil() -> None:
    A = matrix(MANY, zero=2)  # the first block is zero, and its ratios are 0/0
    norms = squared_block_norms(A, Partition.by_tensor(MANY), num_products=30)
    picture = structure_picture(block_structure(norms))
    (raster,) = picture.panels[0].marks
    assert isinstance(raster, Raster)
    assert raster.log
    assert raster.limits is not None
    assert all(math.isfinite(v) for row in raster.values for v in row)
    assert picture.notes == ("29 pairs are not above zero and stay empty.",)


def test_scores_stand_beside_their_null_values() -> None:
    norms = squared_block_norms(matrix(SPACE), BLOCKS, num_products=6, method="masked")
    found = block_structure(norms)
    null, points = structure_picture(found).panels[1].marks
    assert isinstance(points, Points)
    assert isinstance(null, Points)
    assert list(points.x) == [found.ratio, found.inside]
    assert points.x_error == [2 * found.ratio_stderr, 2 * found.inside_stderr]
    assert list(null.x) == [found.ratio_null, found.inside_null]


def test_stripes_show_every_shift() -> None:
    space = ParamSpace({name: () for name in "abcdef"})
    A = Dense(torch.eye(6).roll(3, 0) + torch.eye(6).roll(3, 1) + 1.0, space=space)
    found = stripes(
        squared_block_norms(A, Partition.by_tensor(space), num_products=6), "abc", "def"
    )
    line, points = stripes_picture(found).panels[0].marks
    assert isinstance(line, Line)
    assert isinstance(points, Points)
    torch.testing.assert_close(torch.tensor(points.y), found.shares)
    torch.testing.assert_close(torch.tensor(line.y), found.null)


def test_spectra_have_one_colour_for_each_kind() -> None:
    found = block_spectra(matrix(SPACE), BLOCKS, kinds=("x", "y", "x"))
    curves, distances = spectra_picture(found).panels
    colours = [mark.colour for mark in curves.marks if isinstance(mark, Line)]
    assert colours[0] == colours[2] != colours[1]
    assert [mark.label for mark in curves.marks if isinstance(mark, Line)] == ["x", "y", None]
    (raster,) = distances.marks
    assert isinstance(raster, Raster)
    torch.testing.assert_close(torch.tensor(raster.values), found.wasserstein)


@pytest.mark.parametrize("size", [3, 15])
def test_records_can_be_drawn(size: int) -> None:
    space = SPACE if size == 3 else MANY
    A, blocks = matrix(space), Partition.by_tensor(space)
    norms = squared_block_norms(A, blocks, num_products=space.size)
    records = [norms, block_structure(norms), block_spectra(A, blocks)]
    for record in records:
        record.plot().figure.draw_without_rendering()
    figure = make_figure(norms_picture(norms))
    assert figure.axes
