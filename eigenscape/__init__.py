"""See and use the curvature of neural networks: exact operators, certified solvers.

The names are those of `__init__.pyi`. Each is imported from its room when it is first used, so that
`eigenscape --help` need not wait for PyTorch.
"""

import ast
import importlib
import json
from pathlib import Path
from typing import Any, cast

from eigenscape import plugins
from eigenscape.plugins import __version__ as __version__

plugins.use(
    renderer=lambda: cast(plugins.Renderer, importlib.import_module("eigenscape.report")),
    run_keeper=lambda: cast(plugins.RunKeeper, importlib.import_module("eigenscape.runs")),
)


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
        raise AttributeError(_advice(name))
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def _advice(name: str) -> str:
    """Say where a name lives that stood here before 0.3."""
    path = Path(__file__).with_name("moved_names.json")
    import_line = json.loads(path.read_text(encoding="utf-8")).get(name)
    if import_line is None:
        return f"module 'eigenscape' has no attribute {name!r}"
    return f"`eigenscape.{name}` lives elsewhere since 0.3: `{import_line}`."


def __dir__() -> list[str]:
    """List everything, also what is not imported yet."""
    return sorted([*globals(), *__all__])
