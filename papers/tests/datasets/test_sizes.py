import pytest

from eigenscape.errors import InvalidArgumentError, WrongTypeError
from eigenscape_papers.datasets import sample_sizes


def test_sizes_are_those_of_the_paper() -> None:
    sizes = sample_sizes()
    assert len(sizes) == 20
    assert sizes[0] == 10
    assert sizes[-1] == 5000
    # The sizes that captions of figures 4, 5, 16 and 17 name; rounding up would give 137.
    assert {136, 1351, 5000} <= set(sizes)


def test_sizes_are_evenly_spaced_in_the_logarithm() -> None:
    assert sample_sizes(5, 1, 10_000) == (1, 10, 100, 1000, 10_000)
    assert sample_sizes(4, 1, 1000) == (1, 10, 100, 1000)  # 1000 ** (1 / 3) is 9.999999999999998
    assert sample_sizes(2, 3, 8) == (3, 8)


def test_too_many_sizes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"20 different whole numbers; got 1\d after"):
        sample_sizes(20, 1, 50)
    with pytest.raises(InvalidArgumentError, match=r"largest=\.\.\.\)` must be at least 10; got 9"):
        sample_sizes(5, 10, 9)
    with pytest.raises(InvalidArgumentError, match="num"):
        sample_sizes(1)
    with pytest.raises(WrongTypeError, match="smallest"):
        sample_sizes(5, 1.0, 10)
