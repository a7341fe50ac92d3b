"""What the documentation says is true: its code runs, and the reference covers the public names."""

import ast
import doctest
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE, GUEST = "eigenscape", "eigenscape_papers"
FOLDERS = {PACKAGE: ROOT, GUEST: ROOT / "papers"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _float32(_float64: None) -> Iterator[None]:
    """Give the documentation the default dtype that a reader has."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


# --- code blocks of pages ------------------------------------------------------------------------


def pages() -> list[str]:
    """List README.md and the pages under docs/ that hold Python code, from the root."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.name == "README.md" or FENCE.search(path.read_text(encoding="utf-8"))
    ]


def run_blocks(text: str, name: str) -> int:
    """Run the Python blocks of a page in their order, in one namespace; return their number."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for match in FENCE.finditer(text):
        block, line = match.group(1), text[: match.start(1)].count("\n")
        if block.lstrip().startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, namespace, name, name, line)
            fail_if_wrong(test)
            namespace |= test.globs
        else:  # blank lines in front make the line numbers of a traceback those of the page
            exec(compile("\n" * line + block, name, "exec"), namespace)
        count += 1
    return count


def fail_if_wrong(test: doctest.DocTest) -> None:
    """Run one doctest, and fail with what it printed if it is wrong."""
    lines: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    if runner.run(test, out=lines.append, clear_globs=False).failed:
        pytest.fail("".join(lines), pytrace=False)


@pytest.mark.parametrize("page", pages())
def test_code_of_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / page
    monkeypatch.chdir(tmp_path)
    assert run_blocks(path.read_text(encoding="utf-8"), page) > 0, f"{page} has no Python block"


def test_wrong_blocks_are_found() -> None:
    assert run_blocks("```python\nx = 1\n```\n\n```python\n>>> x + 1\n2\n```\n", "good") == 2
    with pytest.raises(ZeroDivisionError):
        run_blocks("Words.\n\n```python\n1 / 0\n```\n", "bad")
    with pytest.raises(pytest.fail.Exception, match="Expected"):
        run_blocks("```python\n>>> 1 + 1\n3\n```\n", "wrong")
    assert run_blocks("```py\n1 / 0\n```\n```console\n$ make\n```\n", "not run") == 0


def test_scripts_of_the_gallery_are_the_code_of_their_pages() -> None:
    scripts = sorted((ROOT / "docs" / "gallery").glob("*.py"))
    assert scripts
    for script in scripts:
        page = script.with_name(script.stem.replace("_", "-") + ".md")
        blocks = FENCE.findall(page.read_text(encoding="utf-8"))
        _, _, code = script.read_text(encoding="utf-8").partition('"""\n\n')
        assert code == "\n".join(blocks), f"{script.name} is not the code of {page.name}"


# --- examples in docstrings ----------------------------------------------------------------------


def modules(package: str | None = None) -> list[str]:
    """List the modules of a package, or of both, by their files and without importing them."""
    names = set()
    for name, folder in FOLDERS.items():
        for path in (folder / name).rglob("*.py") if package in (None, name) else ():
            parts = path.relative_to(folder).with_suffix("").parts
            names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(names)


@pytest.mark.parametrize("name", modules())
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Not `from package import file`: a function may be called as its file is.
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        if test.examples:
            fail_if_wrong(test)


@pytest.mark.parametrize("name", FOLDERS)
def test_modules_are_those_that_python_finds(name: str) -> None:
    package = importlib.import_module(name)
    known = {info.name for info in pkgutil.walk_packages(package.__path__, f"{name}.")}
    assert set(modules(name)) == known | {name}


# --- the reference -------------------------------------------------------------------------------


def load_hook() -> ModuleType:
    """Load the mkdocs hook that makes the reference."""
    path = ROOT / "docs" / "_hooks" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference_hook", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = load_hook()


@pytest.fixture
def reference() -> dict[str, str]:
    return HOOK.reference_pages()


def targets(page: str) -> list[str]:
    """List the dotted names that a page asks mkdocstrings for."""
    return re.findall(r"^::: (\S+)$", page, re.MULTILINE)


def resolve(target: str) -> object:
    """Import what a dotted name of the reference stands for."""
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("room", ["analyses", "linalg", "curvature"])
def test_reference_of_room_is_its_public_names(room: str, reference: dict[str, str]) -> None:
    module = importlib.import_module(f"{PACKAGE}.{room}")
    listed = targets(reference[f"reference/{room}.md"])
    assert sorted(target.rpartition(".")[2] for target in listed) == sorted(module.__all__)
    for target in listed:
        assert resolve(target) is getattr(module, target.rpartition(".")[2])


def test_reference_of_package_is_its_public_names(reference: dict[str, str]) -> None:
    package = importlib.import_module(PACKAGE)
    listed = re.findall(r"^\| `es\.(\w+)` \|", reference["reference/index.md"], re.MULTILINE)
    assert sorted(listed) == sorted(package.__all__)


def test_every_public_object_is_described_on_some_page(reference: dict[str, str]) -> None:
    package = importlib.import_module(PACKAGE)
    described = {id(resolve(t)) for page in reference.values() for t in targets(page)}
    public = {name: getattr(package, name) for name in package.__all__}
    missing = [
        name for name, value in public.items() if callable(value) and id(value) not in described
    ]
    assert missing == []


def test_every_described_name_exists(reference: dict[str, str]) -> None:
    for page in reference.values():
        for target in targets(page):
            assert (resolve(target).__doc__ or "").strip(), f"{target} has no docstring"


def test_names_are_read_from_source() -> None:
    front = ast.parse("from eigenscape.linalg.eigsh import eigsh\n__all__ = ['eigsh', 'other']\n")
    assert HOOK.exported_names(front) == {"eigsh": "eigenscape.linalg.eigsh", "other": ""}
    stub = ast.parse(
        "from eigenscape import data as data\nfrom eigenscape.risk.empirical_risk import B as B\n"
    )
    assert HOOK.stub_names(stub) == {"B": "eigenscape.risk.empirical_risk", "data": "eigenscape"}
    plain = ast.parse("import torch\nclass A: ...\ndef f(): ...\ndef _g(): ...\n")
    assert HOOK.exported_names(plain) == {"A": "", "f": ""}


def test_the_first_page_lists_every_lesson() -> None:
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    lessons = sorted(path.name for path in (ROOT / "docs" / "gallery").glob("*.md"))
    assert len(lessons) >= 5
    assert [name for name in lessons if f"(docs/gallery/{name})" not in front] == []


@pytest.mark.parametrize("path", ["concepts/defects.md", "errata.md"])
def test_pages_name_tests_that_exist(path: str) -> None:
    page = (ROOT / "docs" / path).read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("tests", "papers/tests")
        for path in (ROOT / folder).rglob("test_*.py")
    ]
    defined = set(re.findall(r"def (test_\w+)\(", "\n".join(sources)))
    assert len(named) > 15
    assert named <= defined, sorted(named - defined)
