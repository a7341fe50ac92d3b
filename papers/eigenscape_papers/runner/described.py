"""Studies whose words stand in a file: `studies.toml` in the folder of their paper.

A table for each study has where in the paper it belongs and what it asks, and by scale what differs
from the paper (`laptop.note`) and options (`laptop.options`). Texts that several notes share stand
under `[texts]` and are named in braces.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from eigenscape.errors import FileError
from eigenscape_papers.runner.claims import SCALES
from eigenscape_papers.runner.study import Outcome, Setting, Study
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
    folder = name.partition("-")[0]
    content = _content(folder)
    words = content.get(name, {})
    _require(words, {"where", "title"}, set(SCALES), f"{folder}/studies.toml: [{name}]")
    settings = {}
    for scale, setting in zip(SCALES, (laptop, paper), strict=True):
        more = words.get(scale, {})
        _require(more, set(), {"note", "options"}, f"{folder}/studies.toml: [{name}.{scale}]")
        settings[scale] = dataclasses.replace(
            setting,
            options={**setting.options, **_fixed(more.get("options", {}))},
            note=more.get("note", "").format_map(content.get("texts", {})),
        )
    where, title = words["where"], words["title"]
    return Study(name, folder.capitalize(), where, title, settings, measure, own)


@cache
def _content(folder: str) -> Mapping[str, Any]:
    path = files("eigenscape_papers") / folder / "studies.toml"
    return tomllib.loads(path.read_text("utf-8"))


def _require(words: Mapping[str, Any], needed: set[str], also: set[str], table: str) -> None:
    if not needed <= words.keys() <= needed | also:
        raise FileError(
            f"{table} must have {sorted(needed)} and may have {sorted(also)}; it has "
            f"{sorted(words)}. Mend it there."
        )


def _fixed(value: Any) -> Any:
    """Return lists as tuples, at any depth: options do not change."""
    if isinstance(value, dict):
        return {key: _fixed(each) for key, each in value.items()}
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
