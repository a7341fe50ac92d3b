"""See and use the curvature of neural networks: exact operators, certified solvers.

The names are those of `__init__.pyi`. Each is imported from its room when it is first used, so that
`eigenscape --help` need not wait for PyTorch.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.2.0"


def _homes() -> dict[str, str]:
    """Read from the stub which module each name comes from."""
    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


_HOMES = _homes()
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a name from its room when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'eigenscape' has no attribute {name!r}")
    if home == __name__:  # a whole room, as in `es.data.load("digits")`
        return importlib.import_module(f"{__name__}.{name}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List everything, also what is not imported yet."""
    return sorted([*globals(), *__all__])
