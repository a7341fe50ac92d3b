"""The shape of the package, read from its source with `ast` and never by importing it.

The table below is the only place where it is written; `docs/design.md` renders it (run this file).
"""

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "eigenscape"

# --- the table ---------------------------------------------------------------------------------

# A room imports from the lines below its own.
LINES: dict[int, tuple[str, ...]] = {
    7: ("cli",),
    6: ("studies",),
    5: ("report", "bounds"),
    4: ("analyses", "theory", "stepsize", "representations"),
    3: ("train", "models", "data"),
    2: ("linalg", "operators"),
    1: (
        "knockout",
        "linear_operator",
        "layers",
        "sharpest",
        "risk",
        "first_look",
        "slopes",
        "telling_samples",
        "guard",
        "changes",
        "evaluation",
        "borrowed",
        "leaves",
        "parameters",
        "loss_choice",
        "model_look",
        "model_loss",
        "losses",
        "unfolding",
        "batches",
        "batch",
        "distributed",
    ),
    0: (
        "selftest",
        "pairs",
        "records",
        "checkpoint",
        "files",
        "progress",
        "partition",
        "space",
        "precision",
        "recording",
        "dense",
        "errors",
    ),
}

# What a room may import from its own line.
SAME_LINE: dict[str, tuple[str, ...]] = {
    "space": ("errors",),
    "partition": ("space", "errors"),
    "dense": ("errors",),
    "files": ("errors",),
    "checkpoint": ("files", "errors"),
    "records": ("errors",),
    "pairs": ("records", "errors"),
    "selftest": ("records", "errors"),
    "knockout": ("linear_operator",),
    "batches": ("batch", "borrowed", "distributed"),
    "loss_choice": ("model_look", "model_loss", "losses", "leaves", "batch"),
    "model_look": ("model_loss", "losses", "batch"),
    "model_loss": ("losses", "batch"),
    "losses": ("batch",),
    "changes": ("borrowed",),
    "guard": ("borrowed", "changes"),
    "evaluation": ("borrowed", "parameters"),
    "first_look": ("batches", "batch", "parameters"),
    "telling_samples": ("batches", "batch"),
    "slopes": ("batches", "leaves", "parameters", "telling_samples", "risk"),
    "risk": (
        "first_look",
        "guard",
        "changes",
        "evaluation",
        "borrowed",
        "leaves",
        "parameters",
        "loss_choice",
        "model_loss",
        "losses",
        "batches",
        "distributed",
    ),
    "layers": ("risk", "losses", "batches", "unfolding", "parameters"),
    "sharpest": ("risk", "losses", "batches"),
}

# Rooms that see less than everything below them.
ONLY: dict[str, tuple[str, ...]] = {
    # It must work for a matrix that never saw a network.
    "linalg": (
        "linear_operator",
        "pairs",
        "records",
        "checkpoint",
        "files",
        "progress",
        "partition",
        "space",
        "precision",
        "dense",
        "errors",
    ),
}

# Rooms whose methods hand their work upstairs, by an import inside the method.
LATE: dict[str, tuple[str, ...]] = {
    "records": ("report",),  # `record.plot()` and `record.save()`
    "first_look": ("risk",),  # the name of a type
    "loss_choice": ("risk",),
    "model_look": ("risk",),
}

# Stands beside the lines: sees every line below 3, and nothing in the library imports it.
TESTING, TESTING_BELOW = "testing", 3

# Third-party packages of the numerical rooms (lines 0 to 2, and testing).
NUMERICAL = ("torch", "numpy", "scipy", "safetensors")
NUMERICAL_BELOW = 3

# Modules that have one home.
HOME: dict[str, str] = {"torch.distributed": "distributed", "typer": "cli", "rich": "cli"}

# Optional packages: imported inside functions, in any room.
LAZY = ("matplotlib", "pandas", "sklearn", "plotly", "jinja2")

# --- limits, and the exceptions from them with their reasons -------------------------------------

MAX_FILE_LINES = 500
MAX_BODY_LINES = 60
LONG_FILES: dict[str, str] = {  # "eigenscape/room/file.py": "reason"
    "eigenscape/linear_operator.py": "the operator and its algebra: one subject",
}
LONG_FUNCTIONS: dict[str, str] = {}  # "eigenscape/room/file.py::Class.method": "reason"

# Tests with no file of the package opposite them. A folder ends in a slash.
EXTRA_TESTS = (
    "tests/test_architecture.py",
    "tests/cases.py",
    "tests/distributed_jobs.py",
    "tests/small_net.py",
    "tests/spaces.py",
    "tests/linalg/matrices.py",
    "tests/report/samples.py",
    "tests/contracts/",
    "tests/browser/",
    "tests/docs/",
    "tests/faults/",
    "tests/fuzz/",
    "tests/golden/",
    "tests/gpu/",
    "tests/oracles/",
    "tests/strangers/",
)


def line_of(room: str) -> int | None:
    """Give the line on which a room stands, or None for a room that stands on no line."""
    return next((line for line, rooms in LINES.items() if room in rooms), None)


def allowed(room: str) -> tuple[str, ...]:
    """Give the rooms that `room` may import, highest line first."""
    if room in ONLY:
        return ONLY[room]
    line = TESTING_BELOW if room == TESTING else line_of(room)
    if line is None:
        raise KeyError(room)
    lower = tuple(r for other, rooms in LINES.items() if other < line for r in rooms)
    return SAME_LINE.get(room, ()) + lower


def render_table() -> str:
    """Render the table as the Markdown that stands in docs/design.md."""
    rows = ["| line | room | may import |", "|---|---|---|"]
    places = [(line, room) for line, rooms in LINES.items() for room in rooms]
    for line, room in [*places, (TESTING_BELOW, TESTING)]:
        names = [f"`{name}`" for name in ONLY.get(room, SAME_LINE.get(room, ()))]
        if line > 0 and room not in ONLY:
            names.append("line 0" if line == 1 else f"lines 0 to {line - 1}")
        place = "beside" if room == TESTING else str(line)
        rows.append(f"| {place} | `{room}` | {', '.join(names) or 'nothing'} |")
    return "\n".join(rows)


# --- the checkers: functions of a path and a source, so that they can be shown to fail -----------


def room_of(path: str) -> str:
    """Give the room of a file of the package; "" for the package's own front doors."""
    name = PurePosixPath(path).parts[1]
    return "" if name in ("__init__.py", "__main__.py") else name.removesuffix(".py")


def imports(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield (line number, dotted module, is it at the top level) for each import.

    `from a.b import c` yields "a.b", and "a.b.c" where c alone decides: for `from eigenscape import
    linalg` and `from torch import distributed`. A relative import yields a leading dot.
    """
    inside = {
        id(node)
        for part in ast.walk(tree)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        or (isinstance(part, ast.If) and dotted(part.test) == "TYPE_CHECKING")
        for node in ast.walk(part)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, id(node) not in inside
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module in (PACKAGE, "torch"):
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}", id(node) not in inside
            else:
                yield node.lineno, module, id(node) not in inside
        elif isinstance(node, ast.Attribute) and dotted(node) in HOME:
            yield node.lineno, dotted(node), id(node) not in inside


def dotted(node: ast.expr) -> str:
    """Write an attribute chain of plain names with its dots; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def import_violations(path: str, source: str) -> list[str]:
    """List what the imports of one file break, each as `path:line: what`."""
    room = room_of(path)
    if room and room != TESTING and line_of(room) is None:
        return [f"{path}:1: `{room}` is no room of the table; give it a line"]
    found = []
    for number, module, at_top in imports(ast.parse(source)):
        if module.startswith("."):
            complaint = "relative import; write it from the package's name"
        elif module.split(".")[0] == PACKAGE:
            complaint = internal_complaint(room, module, at_top=at_top)
        else:
            complaint = third_party_complaint(room, module, at_top=at_top)
        if complaint:
            found.append(f"{path}:{number}: {complaint}")
    return found


def internal_complaint(room: str, module: str, *, at_top: bool) -> str:
    """Say why `room` may not import `module` of the package; "" if it may."""
    parts = module.split(".")
    if len(parts) == 1:
        return f"imports `{PACKAGE}` itself; import from a room"
    target = parts[1]
    if target == room:
        return ""
    if target == TESTING:
        return f"imports `{TESTING}`, which is for tests and users"
    if line_of(target) is None:
        return f"imports `{module}`, which is no room; names come from rooms"
    late = LATE.get(room, ()) if not at_top else ()
    if room and target not in (*allowed(room), *late):
        return f"`{room}` may not import `{target}`; it may import {', '.join(allowed(room))}"
    if len(parts) > 2:
        return f"imports from inside a room, `{module}`; write `from {PACKAGE}.{target} import ...`"
    return ""


def third_party_complaint(room: str, module: str, *, at_top: bool) -> str:
    """Say why `room` may not import `module` from outside the package; "" if it may."""
    package = module.split(".")[0]
    if package in sys.stdlib_module_names:
        return ""
    for name, home in HOME.items():
        if f"{module}.".startswith(f"{name}.") and room != home:
            return f"`{name}` is used only in `{home}`"
    if package in LAZY:
        return f"`{package}` is optional; import it inside the function" if at_top else ""
    line = 0 if room in ("", TESTING) else line_of(room)
    if line is not None and line < NUMERICAL_BELOW and package not in NUMERICAL:
        return f"`{package}` in a numerical room, which has {', '.join(NUMERICAL)} only"
    return ""


def size_violations(path: str, source: str) -> dict[str, str]:
    """Map what is too long in one file, `path` or `path::function`, to a sentence about it."""
    found = {}
    if (count := len(source.splitlines())) > MAX_FILE_LINES:
        found[path] = f"{path}: {count} lines, more than {MAX_FILE_LINES}"
    for name, function in functions(ast.parse(source)):
        body = function.body[ast.get_docstring(function) is not None :]
        count = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if count > MAX_BODY_LINES:
            found[f"{path}::{name}"] = f"{path}::{name}: body of {count} lines > {MAX_BODY_LINES}"
    return found


def functions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function below `node` with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from functions(child, f"{prefix}{child.name}." if named else prefix)


def mirror_violations(sources: Iterable[str], tests: Iterable[str]) -> list[str]:
    """List package files without their test file, and test files without their package file.

    A private file may have one and need not.
    """
    mirrored = {test_path(path): path for path in sources}
    wanted = {
        test: path
        for test, path in mirrored.items()
        if not PurePosixPath(path).name.startswith("_")
    }
    present = {
        path
        for path in tests
        if PurePosixPath(path).name not in ("__init__.py", "conftest.py")
        and not any(path == e or (e.endswith("/") and path.startswith(e)) for e in EXTRA_TESTS)
    }
    lonely = [f"{wanted[test]} has no {test}" for test in sorted(wanted.keys() - present)]
    return lonely + [
        f"{test} mirrors no file of the package" for test in sorted(present - mirrored.keys())
    ]


def test_path(path: str) -> str:
    """Give the test file that stands opposite a file of the package."""
    parts = PurePosixPath(path).parts[1:]
    return str(PurePosixPath("tests", *parts[:-1], f"test_{parts[-1]}"))


test_path.__test__ = False


# --- the present tree ----------------------------------------------------------------------------


def python_files(folder: str) -> dict[str, str]:
    """Read the Python files under a folder of the repository, by path from its root."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def report(violations: Iterable[str]) -> None:
    """Fail with all violations at once."""
    if lines := list(violations):
        pytest.fail("\n".join(lines), pytrace=False)


def test_imports_follow_the_table() -> None:
    files = python_files(PACKAGE)
    assert files
    report(v for path, source in files.items() for v in import_violations(path, source))


def test_files_and_functions_are_small() -> None:
    excused = LONG_FILES.keys() | LONG_FUNCTIONS.keys()
    found = {
        name: text
        for path, source in python_files(PACKAGE).items()
        for name, text in size_violations(path, source).items()
    }
    report(text for name, text in found.items() if name not in excused)
    report(f"{name}: no longer too long; remove its excuse" for name in excused - found.keys())


def test_tests_mirror_the_source() -> None:
    report(mirror_violations(python_files(PACKAGE), python_files("tests")))


def test_design_page_shows_this_table() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- import table: start -->\n")[2]
    shown = shown.partition("\n<!-- import table: end -->")[0]
    assert shown.strip() == render_table(), (
        "docs/design.md is out of step; paste what `python tests/test_architecture.py` prints"
    )


# --- the table itself makes sense ----------------------------------------------------------------


def test_rooms_that_records_imports_by_name_are_rooms() -> None:  # a name hides from the table
    assert set(importlib.import_module("eigenscape.records")._ROOMS) <= {*sum(LINES.values(), ())}


def test_no_room_stands_twice() -> None:
    rooms = [room for line in LINES.values() for room in line]
    assert len(rooms) == len(set(rooms))
    assert TESTING not in rooms


def test_grants_name_rooms_and_make_no_circle() -> None:
    for room, granted in SAME_LINE.items():
        assert {line_of(name) for name in granted} == {line_of(room)}
    for room, granted in ONLY.items():
        lines = [line_of(name) for name in granted]
        assert all(line is not None and line < (line_of(room) or 0) for line in lines)

    def reaches(room: str) -> set[str]:
        return {room}.union(*(reaches(name) for name in SAME_LINE.get(room, ())))

    for room, granted in SAME_LINE.items():  # a circle would recurse without end
        assert room not in set().union(*(reaches(name) for name in granted))


# --- the checkers can fail -----------------------------------------------------------------------

BAD_IMPORTS = {
    "upward": ("space.py", "from eigenscape.risk import EmpiricalRisk", "may not import `risk`"),
    "same line": ("losses.py", "from eigenscape.risk import x", "may not import `risk`"),
    "reverse grant": ("errors.py", "import eigenscape.space", "may not import `space`"),
    "operators to linalg": ("operators/a.py", "from eigenscape.linalg import eigsh", "`linalg`"),
    "linalg to operators": ("linalg/a.py", "from eigenscape.operators import Dense", "`operators`"),
    "linalg to risk": ("linalg/a.py", "from eigenscape import risk", "may not import `risk`"),
    "linalg to batches": ("linalg/a.py", "from eigenscape.batches import x", "`batches`"),
    "lazy upward": (
        "linalg/a.py",
        "def f():\n    from eigenscape.operators import Dense",
        ":2: `linalg` may not import `operators`",
    ),
    "testing too high": (
        "testing.py",
        "from eigenscape.train import fit",
        "may not import `train`",
    ),
    "testing in the library": ("cli/run.py", "from eigenscape.testing import x", "for tests"),
    "testing in front": ("__init__.py", "from eigenscape.testing import x", "for tests"),
    "inside a room": (
        "operators/a.py",
        "from eigenscape.space.flat import x",
        "`eigenscape.space.flat`",
    ),
    "inside, from the front": (
        "__init__.py",
        "from eigenscape.linalg.eigsh import eigsh",
        "from inside a room",
    ),
    "front door": ("operators/a.py", "import eigenscape as es", "itself"),
    "front door's name": ("operators/a.py", "from eigenscape import eigsh", "no room"),
    "relative": ("linalg/a.py", "from .lanczos import lanczos", "relative"),
    "relative, bare": ("linalg/a.py", "from . import lanczos", "relative"),
    "unknown room": ("utils.py", "", "no room of the table"),
    "unknown import": ("linalg/a.py", "from eigenscape.utils import x", "no room"),
    "late, but at the top": ("records.py", "from eigenscape.report import draw", "`report`"),
    "third party": ("linalg/a.py", "import networkx", "`networkx` in a numerical room"),
    "pandas at the top": ("linalg/a.py", "import pandas", "inside the"),
    "third party, testing": ("testing.py", "import pytest", "`pytest` in a numerical room"),
    "sklearn at the top": ("__init__.py", "import sklearn.datasets", "`sklearn`"),
    "matplotlib at the top": ("report/a.py", "import matplotlib.pyplot as plt", "inside the"),
    "torch.distributed": ("operators/a.py", "import torch.distributed as dist", "only in"),
    "torch.distributed, from": ("train.py", "from torch import distributed", "only in"),
    "torch.distributed, below": ("train.py", "from torch.distributed.rpc import x", "only in"),
    "torch.distributed, used": ("risk.py", "import torch\ntorch.distributed.barrier()", ":2: "),
    "typer": ("report/a.py", "def f():\n    import typer", "only in `cli`"),
    "rich": ("studies/a.py", "from rich.table import Table", "only in `cli`"),
}

GOOD_IMPORTS = {
    "downward": ("operators/a.py", "from eigenscape.risk import EmpiricalRisk"),
    "room by name": ("analyses/a.py", "from eigenscape import linalg, operators"),
    "granted": ("layers.py", "from eigenscape.risk import x\nfrom eigenscape.losses import y"),
    "space to errors": ("space.py", "from eigenscape.errors import ShapeError"),
    "linalg": ("linalg/a.py", "from eigenscape.linear_operator import LinearOperator"),
    "own room, by file": ("linalg/a.py", "from eigenscape.linalg.lanczos import lanczos"),
    "front": ("__init__.py", "from eigenscape.linalg import eigsh"),
    "testing": ("testing.py", "from eigenscape.operators import Dense\nimport torch"),
    "numerical": ("linalg/a.py", "import math\nimport numpy as np\nfrom scipy import linalg"),
    "late": ("records.py", "def f():\n    from eigenscape.report import draw"),
    "for types": ("records.py", "if TYPE_CHECKING:\n    import pandas"),
    "lazy matplotlib": ("linalg/a.py", "def f():\n    import matplotlib.pyplot as plt"),
    "distributed": ("distributed.py", "import torch.distributed as dist"),
    "cli": ("cli/run.py", "import typer\nfrom rich.table import Table"),
    "data": ("data/digits.py", "def f():\n    from sklearn.datasets import load_digits"),
}


@pytest.mark.parametrize(("path", "source", "words"), BAD_IMPORTS.values(), ids=BAD_IMPORTS.keys())
def test_bad_imports_are_found(path: str, source: str, words: str) -> None:
    found = import_violations(f"{PACKAGE}/{path}", source)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(("path", "source"), GOOD_IMPORTS.values(), ids=GOOD_IMPORTS.keys())
def test_good_imports_pass(path: str, source: str) -> None:
    assert import_violations(f"{PACKAGE}/{path}", source) == []


def test_long_files_and_functions_are_found() -> None:
    body = "        x = 1\n" * (MAX_BODY_LINES + 1)
    source = f"class A:\n    def long(self):\n{body}"
    assert list(size_violations("p.py", source)) == ["p.py::A.long"]
    assert list(size_violations("p.py", "x = 1\n" * (MAX_FILE_LINES + 1))) == ["p.py"]
    assert size_violations("p.py", "x = 1\n" * MAX_FILE_LINES) == {}
    text = "    words\n" * MAX_BODY_LINES  # of a docstring, which is no body
    assert size_violations("p.py", f'def f():\n    """Say.\n\n{text}    """\n    return 1\n') == {}


def test_broken_mirrors_are_found() -> None:
    sources = ["eigenscape/__init__.py", "eigenscape/space.py", "eigenscape/linalg/trace.py"]
    tests = ["tests/conftest.py", "tests/test_space.py", "tests/linalg/test_trace.py"]
    assert mirror_violations(sources, [*tests, "tests/gpu/test_any.py", "tests/cases.py"]) == []
    assert mirror_violations(sources, tests[:-1]) == [
        "eigenscape/linalg/trace.py has no tests/linalg/test_trace.py"
    ]
    private = [*sources, "eigenscape/linalg/_blocks.py"]
    for more in ([], ["tests/linalg/test__blocks.py"]):
        assert mirror_violations(private, [*tests, *more]) == []
    assert mirror_violations(sources, [*tests, "tests/test_extra.py"]) == [
        "tests/test_extra.py mirrors no file of the package"
    ]


if __name__ == "__main__":
    print(render_table())
