"""What pictures and tables of studies are called and say, which stands in the studies' files."""

from collections.abc import Iterable, Sequence
from string import Template
from typing import Any

from eigenscape.records import Panel, Picture
from eigenscape_papers.runner.cast import Cast
from eigenscape_papers.runner.claims import letters, study_file
from eigenscape_papers.runner.study_result import Sheet
from eigenscape_papers.runner.tables import sheet


def picture(words: str, panels: Iterable[Panel], of: Cast | str = "", **names: object) -> Picture:
    """Return a picture with the words that its study's file has for it.

    They are `title`, what it `shows`, and `name`, where that is another than in the file.

    Args:
        words: The study and the picture's name in its file, e.g. "wu-rank.singular-values".
        panels: What is drawn.
        of: Whose networks, or their label, which stands for `$network`. `$key` is for names.
        names: What stands for other names.

    Returns:
        The picture.
    """
    study, _, name = words.partition(".")
    entry = study_file(study)["pictures"][name]
    if isinstance(of, Cast):
        known = {"network": of.label, "key": of.key[:-11], "data": of.data}
        known["model"] = of.model.lower().replace("^", "x")
    else:
        known = {"network": of, "key": letters(of)}
    file, title, shows = (
        Template(text).substitute({**known, **names})
        for text in (entry.get("name", name), entry["title"], entry["shows"])
    )
    return Picture(file, title, tuple(panels), shows=shows)


def table(words: str, rows: Sequence[Sequence[Any]], **names: object) -> Sheet:
    """Return a table with the words that its study's file has for it: `title` and `columns`.

    Args:
        words: The study and the table's name in its file, e.g. "wu-rank.layers".
        rows: A cell for each column.
        names: What stands for names in the words.

    Returns:
        The table; numbers keep six digits.
    """
    study, _, name = words.partition(".")
    entry = study_file(study)["tables"][name]
    title, *columns = (
        Template(text).substitute(names) for text in (entry["title"], *entry["columns"])
    )
    return sheet(name, title, columns, rows)
