"""Tables of studies: made from rows, and looked up for the number of a claim.

A claim may say where its number stands: `number = { table = "layers", column = "cosine", rows = {
layer = "fc1" }, take = "mean" }`. `table` is the short name of one of the study's tables, `rows`
chooses among its rows by the values of other columns, and `take` says what becomes of several:
"mean" with their standard deviation, "least" or "largest"; without it there must be one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eigenscape.errors import FileError
from eigenscape_papers.runner.claims import TAKES, Measured
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


def read_number(sheets: Sequence[Sheet], number: Mapping[str, Any]) -> Measured:
    """Return the number that stands in a study's tables.

    Args:
        sheets: The tables.
        number: Where: "table", "column", and if needed "rows" and "take".

    Returns:
        The number.

    Raises:
        FileError: If there is no such table, column or row, or another number of rows.

    Examples:
        >>> table = Sheet("layers", "", {"layer": ("fc1", "fc1"), "share": (0.25, 0.75)})
        >>> where = {"table": "layers", "column": "share", "rows": {"layer": "fc1"}}
        >>> read_number([table], {**where, "take": "largest"})
        Measured(ours=0.75, spread=None)
    """
    tables = {sheet.name: sheet.columns for sheet in sheets}
    columns, rows = tables.get(number["table"]), number.get("rows", {})
    if columns is None:
        raise FileError(f"there is no table {number['table']!r} among {sorted(tables)}")
    missing = [name for name in (number["column"], *rows) if name not in columns]
    if missing:
        raise FileError(f"the table {number['table']!r} has no {missing}, but {list(columns)}")
    values = [
        value
        for i, value in enumerate(columns[number["column"]])
        if all(columns[name][i] == wanted for name, wanted in rows.items())
    ]
    if not values or not all(isinstance(value, int | float) for value in values):
        raise FileError(f"{number} must be numbers; there are {values}")
    take = number.get("take", TAKES[0])
    if take == "mean":
        return Measured.over(values)
    if take == "only" and len(values) > 1:
        raise FileError(f"{number} must be one row; there are {len(values)}. Give `take`")
    return Measured(float(max(values) if take == "largest" else min(values)))
