"""Classes are abstract or final: what a base has implemented, no class writes anew.

What varies is an object that is handed in. Two families have hooks, methods with a default that a
class may give itself; each list stands in one place.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eigenscape.operator.linear_operator import OPTIONAL
from eigenscape.records.record import HOOKS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "eigenscape", ROOT / "papers" / "eigenscape_papers")
MAY_GIVE = {"LinearOperator": OPTIONAL, "Record": HOOKS}


@dataclass
class Class:
    """A class as its file has it.

    Attributes:
        where: File and line.
        bases: Names of its bases.
        implemented: Methods with a body, but for those that Python itself calls.
        abstract: Methods that are left to subclasses.
    """

    where: str
    bases: list[str]
    implemented: set[str] = field(default_factory=set)
    abstract: set[str] = field(default_factory=set)


def classes_of(path: str, text: str) -> Iterator[tuple[str, Class]]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        names = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        bases = [ast.unparse(name).rpartition(".")[2] for name in names]
        made = Class(f"{path}:{node.lineno}", bases)
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = {ast.unparse(mark).rpartition(".")[2] for mark in item.decorator_list}
                if item.name.startswith("__") or "overload" in marks:
                    continue
                (made.abstract if "abstractmethod" in marks else made.implemented).add(item.name)
        yield node.name, made


def violations(classes: dict[str, Class]) -> list[str]:
    """Name each method that is written anew, and whose it was."""

    def ancestors(name: str) -> Iterator[str]:
        for base in classes[name].bases:
            if base in classes and base != name:
                yield base
                yield from ancestors(base)

    lines = []
    for name, made in classes.items():
        above = list(dict.fromkeys(ancestors(name)))
        hooks = {hook for base in above for hook in MAY_GIVE.get(base, ())}
        for base in above:
            lines += [
                f"{made.where}: {name}.{method} is implemented in {base}"
                for method in sorted(made.implemented & classes[base].implemented - hooks)
            ]
    return lines


def test_no_class_writes_anew_what_a_base_has_implemented() -> None:
    classes: dict[str, Class] = {}
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            shown = path.relative_to(ROOT).as_posix()
            classes |= dict(classes_of(shown, path.read_text(encoding="utf-8")))
    assert len(classes) > 100
    assert violations(classes) == []


def test_hooks_have_a_default() -> None:
    for family, path in (("LinearOperator", "operator/linear_operator.py"),
                         ("Record", "records/record.py")):  # fmt: skip
        text = (ROOT / "eigenscape" / path).read_text(encoding="utf-8")
        assert set(MAY_GIVE[family]) <= dict(classes_of(path, text))[family].implemented


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "class A:\n  def f(self): ...\nclass B(A):\n  def f(self): ...",
            "B.f is implemented in A",
        ),
        (
            "class A:\n  def f(self): ...\nclass B(A): ...\nclass C(B):\n  def f(self): ...",
            "C.f is implemented in A",
        ),
        ("class A(Generic[T]):\n  def f(self): ...\nclass B(A[int]):\n  def f(self): ...", "B.f"),
    ],
)
def test_an_override_is_reported(text: str, said: str) -> None:
    (line,) = violations(dict(classes_of("x.py", text)))
    assert said in line


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n  @abstractmethod\n  def f(self): ...\nclass B(A):\n  def f(self): ...",
        "class A:\n  def __init__(self): ...\nclass B(A):\n  def __init__(self): ...",
        "class Record:\n  def columns(self): ...\nclass B(Record):\n  def columns(self): ...",
        "class LinearOperator:\n  def noise(self): ...\nclass B(LinearOperator):\n"
        "  def noise(self): ...",
    ],
)
def test_what_is_left_open_is_not_reported(text: str) -> None:
    assert violations(dict(classes_of("x.py", text))) == []
