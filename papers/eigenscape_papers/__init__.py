"""A checkable reproduction of the papers that `eigenscape` grew from."""

import json
from importlib.resources import files

__version__ = "0.3.0"


def old_record_names() -> dict[str, str]:
    """Return the keys of stored classes by the names that files of before 0.3 have for them."""
    text = files("eigenscape_papers").joinpath("old_names.json").read_text(encoding="utf-8")
    names: dict[str, str] = json.loads(text)
    return names
