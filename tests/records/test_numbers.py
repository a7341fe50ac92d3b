"""Numbers as people read them."""

import pytest

from eigenscape.records import size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_499, "999 kB"),
        (999_600, "1 MB"), (3_200_000, "3.2 MB"), (2.5e15, "2500 TB"),
    ],
)  # fmt: skip
def test_bytes_are_written_in_units_that_fit(count: float, text: str) -> None:
    assert size(count) == text
