"""Tables of studies from rows."""

from collections.abc import Sequence
from typing import Any

from eigenscape_papers.runner.study_result import Sheet


def sheet(name: str, title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Sheet:
    """Return rows as a table; numbers keep six digits."""
    columns = zip(*rows, strict=True) if rows else [() for _ in names]
    return Sheet(
        name,
        title,
        {
            name: tuple(float(f"{v:.6g}") if isinstance(v, float) else v for v in column)
            for name, column in zip(names, columns, strict=True)
        },
    )
