"""How many samples a class: the sizes that studies of the sample size run through."""

import math

from eigenscape.errors import InvalidArgumentError, require_count


def sample_sizes(num: int = 20, smallest: int = 10, largest: int = 5000) -> tuple[int, ...]:
    """Return log-spaced numbers of samples per class.

    The defaults are Papyan's (App. D.1): 20 sizes "logarithmically spaced in the range [10, 5000]".
    That they are per class, and that fractions are cut off, follows from the captions of his
    figures 5, 16 and 17: 136 (of 136.9) and 1351 (of 1351.3) examples per class.

    Args:
        num: How many sizes.
        smallest: The first.
        largest: The last.

    Returns:
        `num` different sizes, ascending, for `DataSet.per_class`.

    Raises:
        InvalidArgumentError: If the range is empty, or too short for `num` different whole numbers.

    Examples:
        >>> sample_sizes()[:9]
        (10, 13, 19, 26, 37, 51, 71, 98, 136)
        >>> sample_sizes(num=3, smallest=10, largest=1000)
        (10, 100, 1000)
    """
    require_count(num, "sample_sizes(num=...)", at_least=2)
    require_count(smallest, "sample_sizes(smallest=...)")
    require_count(largest, "sample_sizes(largest=...)", at_least=smallest)
    ratio = largest / smallest
    # The small number undoes rounding where a size is whole: 99.99999999999999 stands for 100.
    inner = (
        math.floor(smallest * ratio ** (i / (num - 1)) * (1.0 + 1e-12)) for i in range(1, num - 1)
    )
    sizes = (smallest, *inner, largest)
    if len(set(sizes)) < num:
        raise InvalidArgumentError(
            f"`sample_sizes(num={num}, smallest={smallest}, largest={largest})` needs {num} "
            f"different whole numbers; got {len(set(sizes))} after rounding down. Use fewer "
            "sizes or a larger `smallest`."
        )
    return sizes
