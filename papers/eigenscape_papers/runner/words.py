"""What studies and their pictures are called and say: `studies.toml` in the folder of their paper.

The table of a study has where in the paper it belongs (`where`), what it asks (`title`), by scale
what differs from the paper (`laptop.note`) and options (`laptop.options`), its `pictures` and
`tables`. Of a picture there are `title`, what it `shows`, and `name`, where that is another than
here; of a table `title` and `columns`. `$network` stands for what the study calls so; in notes, for
one of the `[texts]` that several share.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from eigenscape.errors import FileError
from eigenscape.records import Panel, Picture
from eigenscape_papers.runner.claims import SCALES, letters
from eigenscape_papers.runner.study import Outcome, Setting, Study
from eigenscape_papers.runner.study_result import Sheet
from eigenscape_papers.runner.tables import sheet
from eigenscape_papers.runner.workshop import Workshop


def described(
    name: str,
    measure: Callable[[Setting, Workshop], Outcome],
    laptop: Setting,
    paper: Setting,
    *,
    own: bool = True,
) -> Study:
    """Return a study with the words of its file.

    Args:
        name: For the command line; the first part is the folder of the paper.
        measure: Does the work.
        laptop: Networks and options of this scale; more options may stand in the file.
        paper: The same.
        own: Whether a user's own network may take the place of the casts.

    Returns:
        The study.

    Raises:
        FileError: If the file does not have the study, or something else than it should.
    """
    words, texts = _words(name)
    settings = {}
    for scale, setting in zip(SCALES, (laptop, paper), strict=True):
        more = words.get(scale, {})
        _require(more, set(), {"note", "options"}, f"[{name}.{scale}]")
        settings[scale] = dataclasses.replace(
            setting,
            options={**setting.options, **_fixed(more.get("options", {}))},
            note=Template(more.get("note", "")).substitute(texts),
        )
    where, title = words["where"], words["title"]
    return Study(name, name.partition("-")[0].capitalize(), where, title, settings, measure, own)


def picture(words: str, panels: Iterable[Panel], network: str = "", **names: object) -> Picture:
    """Return a picture with the words that its study's file has for it.

    Args:
        words: The study and the picture's table in its file, e.g. "wu-rank.singular-values".
        panels: What is drawn.
        network: Whose; it stands for `$network`, and its letters for `$key`.
        names: What stands for other names.

    Returns:
        The picture.
    """
    study, _, name = words.partition(".")
    of_study, texts = _words(study)
    entry = of_study["pictures"][name]
    _require(entry, {"title", "shows"}, {"name"}, f"[{study}.pictures.{name}]")
    known = {**texts, "network": network, "key": letters(network), **names}
    file, title, shows = (
        Template(text).substitute(known)
        for text in (entry.get("name", name), entry["title"], entry["shows"])
    )
    return Picture(file, title, tuple(panels), shows=shows)


def table(words: str, rows: Sequence[Sequence[Any]], **names: object) -> Sheet:
    """Return a table with the words that its study's file has for it.

    Args:
        words: The study and the table's own in its file, e.g. "wu-rank.layers".
        rows: A cell for each column.
        names: What stands for names in the words.

    Returns:
        The table; numbers keep six digits.
    """
    study, _, name = words.partition(".")
    entry = _words(study)[0]["tables"][name]
    _require(entry, {"title", "columns"}, set(), f"[{study}.tables.{name}]")
    title, *columns = (
        Template(text).substitute(names) for text in (entry["title"], *entry["columns"])
    )
    return sheet(name, title, columns, rows)


@cache
def _content(folder: str) -> Mapping[str, Any]:
    path = files("eigenscape_papers") / folder / "studies.toml"
    return tomllib.loads(path.read_text("utf-8"))


def _words(study: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return what the file has of a study, and the shared texts."""
    content = _content(study.partition("-")[0])
    words = content.get(study, {})
    _require(words, {"where", "title"}, {*SCALES, "pictures", "tables"}, f"[{study}]")
    return words, content.get("texts", {})


def _require(words: Mapping[str, Any], needed: set[str], also: set[str], table: str) -> None:
    if not needed <= words.keys() <= needed | also:
        raise FileError(
            f"`{table}` in studies.toml must have {sorted(needed)} and may have {sorted(also)}; it "
            f"has {sorted(words)}. Mend it there."
        )


def _fixed(value: Any) -> Any:
    """Return lists as tuples, at any depth: options do not change."""
    if isinstance(value, dict):
        return {key: _fixed(each) for key, each in value.items()}
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
