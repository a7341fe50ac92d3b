"""The shape of the two packages, read from their source with `ast` and never by importing it.

The tables below are the only place where it is written; `docs/design.md` renders them (run this
file). Every import counts: at the top of a file, inside a function, under TYPE_CHECKING, and a
string that names a module. There are no exceptions.
"""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY, GUEST = "eigenscape", "eigenscape_papers"
FOLDERS = {LIBRARY: ROOT / "eigenscape", GUEST: ROOT / "papers" / "eigenscape_papers"}
TESTS = {LIBRARY: "tests", GUEST: "papers/tests"}

# --- the tables ----------------------------------------------------------------------------------

# A room imports from the lines above its own; what each is for stands in docs/design.md.
LINES: dict[str, tuple[tuple[str, ...], ...]] = {
    LIBRARY: (
        ("errors", "plugins"),
        ("space", "tracing"),
        ("records",),
        ("device", "selftest", "parallel", "runs"),
        ("operator",),
        ("risk", "testing"),
        ("linalg", "zoo"),
        ("curvature",),
        ("analyses",),
        ("structure", "bounds"),
        ("report",),
        ("cli",),
    ),
    GUEST: (
        ("theory", "datasets", "networks"),
        ("ensemble",),
        ("representations", "stepsize"),
        ("runner",),
        ("wu", "papyan", "dong", "thesis"),  # no paper sees another
        ("studies",),
        ("cli",),
    ),
}
# What a room may import from its own line.
SAME_LINE: dict[str, tuple[str, ...]] = {"plugins": ("errors",), "networks": ("datasets",)}
# Rooms that see less than all that stands above them.
ONLY: dict[str, tuple[str, ...]] = {
    # It must work for a matrix that never saw a network.
    "linalg": ("errors", "plugins", "space", "records", "device", "operator"),
    # A leaf: callables in, a verdict out.
    "selftest": ("errors", "records"),
    "curvature": (
        "errors", "space", "tracing", "records", "device", "selftest", "parallel", "operator",
        "risk",
    ),
}  # fmt: skip
# The door that a package may use beside a room's own: what a guest's verb needs.
DOORS = ("eigenscape.cli.verbs",)
# Rooms of one file.
FILES = ("errors", "plugins", "testing", "studies")

# Third-party packages of the rooms that compute; every other package is imported in a function.
NUMERICAL = ("torch", "numpy", "scipy", "safetensors")
COMPUTING = {room for line in LINES[LIBRARY][:10] for room in line}
# Packages that have one home.
HOME = {"torch.distributed": "parallel", "typer": "cli", "rich": "cli", "triton": "bounds"}
LAZY = ("matplotlib", "pandas", "sklearn", "plotly", "jinja2")

MOST_LINES, MOST_BODY_LINES = 500, 60
MOST_UNTESTED_LINES = 150
MOST_NAMES_AT_THE_TOP = 50
MOST_ROOM_LINES = 3700
MOST_REACHED_FILES, MOST_REACHED_LINES = 45, 5500
LONG_FILES = {  # "eigenscape/room/file.py": "reason"
    "eigenscape/operator/linear_operator.py": "the operator and its algebra: one subject",
}
# Long files without a test file opposite them, with the tests that are theirs.
TESTED_ELSEWHERE = {
    "eigenscape/curvature/layers/choice.py": "test_layer_hessian, contracts/test_layer_storage",
    "eigenscape/curvature/network_matrix.py": "products/test_representation, test_hessian",
    "eigenscape/curvature/products/network.py": "contracts/test_representations",
    "eigenscape/curvature/products/plan.py": "test_layer_hessian, contracts/test_layer_storage",
    "eigenscape/curvature/products/trust.py": "contracts/test_representations",
    "papers/eigenscape_papers/datasets/_catalogue.py": "test_registry",
    "papers/eigenscape_papers/ensemble/_layers.py": "test__stacked, test_engine",
    "papers/eigenscape_papers/ensemble/_update.py": "test_engine, test_fit",
    "papers/eigenscape_papers/stepsize/_segments.py": "test_learned",
    "papers/eigenscape_papers/theory/_one_hidden_layer.py": "test_dense_hessians",
    "papers/eigenscape_papers/theory/_two_layer_samples.py": "test_two_layer",
    "papers/eigenscape_papers/wu/_bounds_rows.py": "test_bounds_study",
}

# Tests with no file of a package opposite them. A folder ends in a slash.
EXTRA_TESTS = (
    "tests/test_architecture.py", "tests/test_final_classes.py", "tests/test_hops.py",
    "tests/test_wheels.py", "tests/cases.py", "tests/distributed_jobs.py", "tests/small_net.py",
    "tests/spaces.py", "tests/linalg/matrices.py", "tests/report/samples.py",
    "tests/contracts/", "tests/browser/", "tests/docs/", "tests/faults/", "tests/fuzz/",
    "tests/golden/", "tests/gpu/", "tests/oracles/", "tests/strangers/", "papers/tests/contracts/",
    "papers/tests/gpu/",
)  # fmt: skip


# --- the source, read once -----------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A file of a package.

    Attributes:
        path: From the repository's root.
        module: Its dotted name.
        tree: What it says.
    """

    path: str
    module: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The room, or "" for the package's own front doors."""
        names = self.module.split(".")
        return "" if len(names) < 2 or names[1] == "__main__" else names[1]


@functools.cache
def sources(package: str) -> dict[str, Source]:
    """Return the files of a package by module."""
    files = {}
    for path in sorted(FOLDERS[package].rglob("*.py")):
        names = (package, *path.relative_to(FOLDERS[package]).with_suffix("").parts)
        module = ".".join(names[:-1] if names[-1] == "__init__" else names)
        relative = path.relative_to(ROOT).as_posix()
        files[module] = Source(relative, module, path.read_text(encoding="utf-8"))
    return files


@dataclass(frozen=True)
class Import:
    """One import of a module, or a string that names one.

    Attributes:
        line: Where it stands.
        module: What is named, with the imported name where that is what decides.
        at_top: Whether it is run when the file is imported.
        is_from: Whether names are imported from it.
    """

    line: int
    module: str
    at_top: bool
    is_from: bool = False


def imports(source: Source) -> Iterator[Import]:
    """Yield every import of a file, at any depth, and strings that name modules of ours."""
    top = {id(node) for node in source.tree.body}
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(source.tree):
        at_top = id(node) in top
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, at_top)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module in (LIBRARY, GUEST, "torch"):
                for alias in node.names:
                    yield Import(node.lineno, f"{module}.{alias.name}", at_top, True)
            else:
                for alias in node.names:
                    inner = f"{module}.{alias.name}"
                    is_file = is_module(inner) and alias.name not in names_of(module)
                    yield Import(node.lineno, inner if is_file else module, at_top, True)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            ours = rf"({LIBRARY}|{GUEST})(\.\w+)+"
            if id(node) not in docstrings and re.fullmatch(ours, node.value):
                yield Import(node.lineno, node.value, False)


def is_module(name: str) -> bool:
    package = name.partition(".")[0]
    return package in FOLDERS and name in sources(package)


@functools.cache
def names_of(module: str) -> frozenset[str]:
    """Return the names that a module imports: a room's function may have the name of its file."""
    if not is_module(module):
        return frozenset()
    tree = sources(module.partition(".")[0])[module].tree
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return frozenset(alias.asname or alias.name for node in nodes for alias in node.names)


def allowed(package: str, room: str) -> set[str]:
    """Return the rooms that a room may import."""
    if package == LIBRARY and room in ONLY:
        return {room, *ONLY[room]}
    above: set[str] = set()
    for line in LINES[package]:
        if room in line:
            return {room, *above, *SAME_LINE.get(room, ())}
        above |= set(line)
    return set()


# --- what a file may not do ----------------------------------------------------------------------


def import_violations(source: Source) -> list[str]:
    """List what the imports of one file break, each as `path:line: what`."""
    package, room = source.module.partition(".")[0], source.room
    if room and not allowed(package, room):
        return [f"{source.path}:1: `{room}` is no room of the table; give it a line"]
    violations = []
    for imported in imports(source):
        complaint = (
            internal_complaint(package, room, imported)
            if imported.module.partition(".")[0] in FOLDERS
            else third_party_complaint(package, room, imported)
        )
        if complaint:
            violations.append(f"{source.path}:{imported.line}: {complaint}")
    return violations


def internal_complaint(package: str, room: str, imported: Import) -> str:
    """Say why a room may not import a module of ours; "" if it may."""
    if imported.module.startswith("."):
        return "relative import; write it from the package's name"
    target, *names = imported.module.split(".")
    if target != package and package == LIBRARY:
        return f"the library names its guest, `{imported.module}`"
    if not names:
        return f"imports `{target}` itself; import from a room" if room else ""
    goal = names[0]
    rooms = {name for line in LINES[target] for name in line}
    if goal not in rooms:
        # A string such as the name of an entry point's group is no module.
        return f"imports `{imported.module}`, which is no room" if imported.is_from else ""
    if target == package and room and goal not in allowed(package, room):
        return f"`{room}` may not import `{goal}`"
    is_inside = len(names) > 1 and is_module(f"{target}.{goal}.{names[1]}")
    if is_inside and (target != package or goal != room) and imported.module not in DOORS:
        if target == package == GUEST:
            return f"`{imported.module}` is private" if names[1].startswith("_") else ""
        return f"imports from inside a room, `{imported.module}`"
    return ""


def third_party_complaint(package: str, room: str, imported: Import) -> str:
    """Say why a room may not import a module from outside; "" if it may."""
    if imported.module.startswith("."):
        return "relative import; write it from the package's name"
    name = imported.module.partition(".")[0]
    if name in sys.stdlib_module_names or package == GUEST:
        return ""
    for owned, home in HOME.items():
        if f"{imported.module}.".startswith(f"{owned}."):
            return "" if room == home else f"`{owned}` is used only in `{home}`"
    if name in LAZY:
        return f"`{name}` is optional; import it inside the function" if imported.at_top else ""
    if room in COMPUTING and name not in NUMERICAL:
        return f"`{name}` in a room that computes, which has {', '.join(NUMERICAL)} only"
    return ""


def size_violations(source: Source) -> dict[str, str]:
    """Map what is too long in one file, `path` or `path::function`, to a sentence about it."""
    path, violations = source.path, {}
    if (count := len(source.text.splitlines())) > MOST_LINES:
        violations[path] = f"{path}: {count} lines, more than {MOST_LINES}"
    for name, function in functions(source.tree):
        body = function.body[ast.get_docstring(function) is not None :]
        count = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if count > MOST_BODY_LINES:
            long = f"body of {count} lines > {MOST_BODY_LINES}"
            violations[f"{path}::{name}"] = f"{path}::{name}: {long}"
    return violations


def functions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function below `node` with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from functions(child, f"{prefix}{child.name}." if named else prefix)


def mirror_violations(package: str, lengths: Mapping[str, int], tests: Iterable[str]) -> list[str]:
    """List long files without their test file, and test files without their package file.

    A file of up to 150 lines may have one and need not: its room's tests are its tests.
    """
    mirrored = {test_path(package, path): path for path in lengths}
    wanted = {
        test: path
        for test, path in mirrored.items()
        if lengths[path] > MOST_UNTESTED_LINES and path not in TESTED_ELSEWHERE
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


def test_path(package: str, path: str) -> str:
    """Give the test file that stands opposite a file of a package."""
    depth = 1 if package == LIBRARY else 2
    parts = PurePosixPath(path).parts[depth:]
    return str(PurePosixPath(TESTS[package], *parts[:-1], f"test_{parts[-1]}"))


test_path.__test__ = False


# --- the present tree ----------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("package", [LIBRARY, GUEST])


def report(violations: Iterable[str]) -> None:
    """Fail with all violations at once."""
    if lines := list(violations):
        pytest.fail("\n".join(lines), pytrace=False)


@BOTH
def test_imports_follow_the_table(package: str) -> None:
    files = sources(package).values()
    assert files
    report(violation for source in files for violation in import_violations(source))


@BOTH
def test_the_graph_of_rooms_has_no_cycle(package: str) -> None:
    graph: dict[str, set[str]] = {}
    for source in sources(package).values():
        for imported in imports(source):
            names = imported.module.split(".")
            if names[0] == package and len(names) > 1 and source.room and is_module(nearest(names)):
                graph.setdefault(source.room, set()).add(names[1])
    assert cycle_in(graph) == []


def nearest(names: list[str]) -> str:
    return ".".join(names[:2])


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Return rooms that import each other in a circle, or nothing."""
    done: set[str] = set()

    def visit(room: str, path: list[str]) -> list[str]:
        if room in path:
            return [*path[path.index(room) :], room]
        if room in done:
            return []
        for other in sorted(graph.get(room, set()) - {room}):
            if circle := visit(other, [*path, room]):
                return circle
        done.add(room)
        return []

    return next((circle for room in sorted(graph) if (circle := visit(room, []))), [])


@BOTH
def test_files_and_functions_are_small(package: str) -> None:
    too_long = {
        name: text
        for source in sources(package).values()
        for name, text in size_violations(source).items()
    }
    excused = {name for name in LONG_FILES if name.split("/")[0] == package}
    report(text for name, text in too_long.items() if name not in excused)
    report(f"{name}: no longer too long; remove its excuse" for name in excused - too_long.keys())


@BOTH
def test_tests_mirror_the_source(package: str) -> None:
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / TESTS[package]).rglob("*.py")]
    lengths = {source.path: source.text.count("\n") for source in sources(package).values()}
    report(mirror_violations(package, lengths, tests))


def test_no_file_lies_loose_at_the_root() -> None:
    loose = [path.stem for path in FOLDERS[LIBRARY].glob("*.py")]
    assert sorted(loose) == ["__init__", "__main__", "errors", "plugins", "testing"]


def test_names_at_the_top_are_few_and_no_room_has_one_of_them() -> None:
    stub = ast.parse((FOLDERS[LIBRARY] / "__init__.pyi").read_text(encoding="utf-8"))
    names = {
        alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert len(names) <= MOST_NAMES_AT_THE_TOP
    assert not names & {room for line in LINES[LIBRARY] for room in line}


def test_the_solvers_reach_few_files() -> None:
    reached, ahead = {"eigenscape.linalg.eigsh"}, ["eigenscape.linalg.eigsh"]
    while ahead:
        for imported in imports(sources(LIBRARY)[ahead.pop()]):
            names = imported.module.split(".")
            for length in range(2, len(names) + 1):
                module = ".".join(names[:length])
                if module in sources(LIBRARY) and module not in reached:
                    reached.add(module)
                    ahead.append(module)
    assert len(reached) <= MOST_REACHED_FILES
    assert sum(code_lines(sources(LIBRARY)[module]) for module in reached) <= MOST_REACHED_LINES


def code_lines(source: Source) -> int:
    """Count lines that hold a name, a number or a string, and are no docstring."""
    held: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.alias | ast.arg):
            held |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.stmt):
            held.add(node.lineno)
    for node in ast.walk(source.tree):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            text = node.body[0]
            held -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(held)


def test_no_room_is_too_large() -> None:
    sizes: dict[str, int] = {}
    for source in sources(LIBRARY).values():
        sizes[source.room] = sizes.get(source.room, 0) + code_lines(source)
    report(f"{room}: {n} lines of code" for room, n in sizes.items() if n > MOST_ROOM_LINES)


def test_a_solver_loads_nothing_of_the_rooms_above_it() -> None:
    program = (
        "import sys, eigenscape.linalg; "
        "print(*sorted({m.split('.')[1] for m in sys.modules if m.startswith('eigenscape.')}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"linalg", *ONLY["linalg"]}


def test_the_design_page_shows_these_tables() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- import table: start -->\n")[2]
    shown = shown.partition("\n<!-- import table: end -->")[0]
    assert shown.strip() == render_tables(), (
        "docs/design.md is out of step; paste what `python tests/test_architecture.py` prints"
    )


def render_tables() -> str:
    """Render the tables as the Markdown that stands in docs/design.md."""
    rows = ["| line | rooms of the library |", "|---|---|"]
    for number, line in enumerate(LINES[LIBRARY]):
        shown = [
            f"`{room}`" + (f" (only {', '.join(ONLY[room])})" if room in ONLY else "")
            for room in line
        ]
        rows.append(f"| {number} | {', '.join(shown)} |")
    rows += ["", "| line | rooms of the papers |", "|---|---|"]
    for number, line in enumerate(LINES[GUEST]):
        rows.append(f"| {number} | {', '.join(f'`{room}`' for room in line)} |")
    return "\n".join(rows)


# --- the checks can fail -------------------------------------------------------------------------


def source_of(path: str, text: str) -> Source:
    package = GUEST if path.startswith("papers/") else LIBRARY
    module = path.removeprefix("papers/").removesuffix(".py").replace("/", ".")
    assert module.startswith(package)
    return Source(path, module.removesuffix(".__init__"), text)


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("eigenscape/linalg/x.py", "from eigenscape.risk import Batch", "may not import `risk`"),
        ("eigenscape/risk/x.py", "def f():\n    import eigenscape.report", "may not import"),
        ("eigenscape/records/x.py", "NAME = 'eigenscape.report'", "may not import `report`"),
        ("eigenscape/risk/x.py", "import eigenscape_papers.wu", "names its guest"),
        ("eigenscape/bounds/x.py", "from eigenscape.linalg.eigsh import eigsh", "inside a room"),
        ("eigenscape/bounds/x.py", "from eigenscape import Hessian", "is no room"),
        ("eigenscape/bounds/x.py", "from . import kl", "relative import"),
        ("eigenscape/bounds/x.py", "import pandas", "import it inside the function"),
        ("eigenscape/bounds/x.py", "import networkx", "in a room that computes"),
        ("eigenscape/risk/x.py", "import torch.distributed", "only in `parallel`"),
        ("eigenscape/surprise/x.py", "", "no room of the table"),
        ("papers/eigenscape_papers/wu/x.py", "from eigenscape_papers.dong import y", "may not"),
        ("papers/eigenscape_papers/wu/x.py", "from eigenscape.linalg.eigsh import eigsh", "inside"),
    ],
)
def test_a_forbidden_import_is_reported(path: str, text: str, said: str) -> None:
    (violation,) = import_violations(source_of(path, text))
    assert violation.startswith(f"{path}:")
    assert said in violation


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("eigenscape/curvature/x.py", "from eigenscape.risk import Batch"),
        ("eigenscape/curvature/products/x.py", "from eigenscape.curvature.hessian import Hessian"),
        ("eigenscape/report/x.py", "def f():\n    import pandas"),
        ("eigenscape/plugins.py", "GROUP = 'eigenscape.verbs'"),
        ("eigenscape/__init__.py", "ROOM = 'eigenscape.report'"),
        ("papers/eigenscape_papers/wu/x.py", "import eigenscape as es"),
        ("papers/eigenscape_papers/cli/x.py", "from eigenscape.cli.verbs import Screen"),
    ],
)
def test_an_allowed_import_is_not_reported(path: str, text: str) -> None:
    if text == "import eigenscape as es":
        assert "itself" in import_violations(source_of(path, text))[0]
    else:
        assert import_violations(source_of(path, text)) == []


def test_a_cycle_is_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle_in({"a": {"b", "a"}, "b": {"c"}, "d": {"a"}}) == []


def test_what_is_too_long_is_reported() -> None:
    body = "\n".join(f"    x = {i}" for i in range(70))
    long = source_of("eigenscape/linalg/x.py", f"class A:\n    pass\n\ndef f():\n{body}\n" * 8)
    assert set(size_violations(long)) == {long.path, f"{long.path}::f"}


def test_files_without_tests_and_tests_without_files_are_reported() -> None:
    one, other = mirror_violations(
        LIBRARY,
        {"eigenscape/linalg/x.py": 200, "eigenscape/linalg/_y.py": 20},
        ["tests/linalg/test_z.py", "tests/linalg/test__y.py", "tests/contracts/test_a.py"],
    )
    assert one == "eigenscape/linalg/x.py has no tests/linalg/test_x.py"
    assert other == "tests/linalg/test_z.py mirrors no file of the package"


def test_code_lines_leave_out_docstrings_and_brackets() -> None:
    text = '"""A\nB."""\n\nx = [\n    1,\n]\n\n\ndef f():\n    """C."""\n    return x  # why\n'
    assert code_lines(source_of("eigenscape/linalg/x.py", text)) == 4


if __name__ == "__main__":
    print(render_tables())
