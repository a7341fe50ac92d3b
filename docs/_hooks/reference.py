"""Makes the reference pages while mkdocs runs: one per room, each public name with its docstring.

The package is read with `ast` and never imported, so that the pages say what the source says. A new
room or a new name appears by itself. `tests/docs/test_docs.py` holds the pages against `__all__`.
"""

import ast
from pathlib import Path
from typing import Any

PACKAGE, GUEST = "eigenscape", "eigenscape_papers"
ROOT = Path(__file__).resolve().parent.parent.parent
# Rooms of studies: their pages are those of docs/papers.
STUDIES = ("wu", "papyan", "dong", "thesis", "studies", "cli")

# Sections whose front page is a list of what is there, as long as nobody writes a better one.
SECTIONS = {
    "concepts": ("Concepts", "What the words mean, and which matrix answers which question."),
    "how-to": ("How to", "One task a page, from your own model to the answer."),
    "gallery": ("Gallery", "One question a page, from data to picture."),
}


def exported_names(tree: ast.Module) -> dict[str, str]:
    """Map the public names of one module to the modules that define them ("" for its own).

    Public is what `__all__` lists; where there is none, what is defined at the top of the module
    under a name without an underscore.

    Args:
        tree: The parsed module.

    Returns:
        The names in their order.
    """
    origin: dict[str, str] = {}
    own: list[str] = []
    listed: list[str] | None = None
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
            PACKAGE,
            GUEST,
        ):
            origin |= {alias.asname or alias.name: node.module or "" for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.append(node.name)
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            listed = [str(name) for name in ast.literal_eval(node.value)]
    if listed is None:
        listed = [name for name in own if not name.startswith("_")]
    return {name: origin.get(name, "") for name in listed}


def stub_names(tree: ast.Module) -> dict[str, str]:
    """Map the names of the package's stub to the modules they come from.

    Args:
        tree: The parsed stub.

    Returns:
        The names in alphabetical order.
    """
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found = {alias.name: node.module or "" for node in imports for alias in node.names}
    return dict(sorted(found.items()))


def rooms(package: Path) -> dict[str, Path]:
    """Map each room of the package to the file that speaks for it.

    Args:
        package: The folder of the package.

    Returns:
        The rooms by name, in alphabetical order.
    """
    files = {path.stem: path for path in package.glob("*.py")}
    files |= {path.parent.name: path for path in package.glob("*/__init__.py")}
    return {name: files[name] for name in sorted(files) if not name.startswith("_")}


def room_page(room: str, path: Path, package: str = PACKAGE) -> str:
    """Write the reference page of one room.

    Args:
        room: Name of the room.
        path: The file that speaks for it.
        package: Whose room it is.

    Returns:
        Markdown with one mkdocstrings block a name, at the place where the name is defined: a
        function may be called as its file is (`linalg.eigsh`), and there it cannot be mistaken.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = [f"# {package}.{room}", ast.get_docstring(tree) or ""]
    for name, module in exported_names(tree).items():
        target = f"{module or f'{package}.{room}'}.{name}"
        parts.append(f"::: {target}\n    options:\n      heading: {name}\n      toc_label: {name}")
    return "\n\n".join(part for part in parts if part) + "\n"


def index_page(package: Path) -> str:
    """Write the front page of the reference: the names of the package itself, then the rooms.

    Args:
        package: The folder of the package.

    Returns:
        Markdown.
    """
    present = rooms(package)
    parts = ["# Reference", "Made from the docstrings, one page a room."]
    front = package / "__init__.pyi"
    names = stub_names(ast.parse(front.read_text(encoding="utf-8"))) if front.exists() else {}
    if names:
        rows = [f"| `import {PACKAGE} as es` | defined in |", "|---|---|"]
        for name, module in names.items():
            room = name if module == PACKAGE else module.removeprefix(f"{PACKAGE}.").split(".")[0]
            place = f"[`{room}`]({room}.md)" if room in present else ""
            rows.append(f"| `es.{name}` | {place} |")
        parts.append("\n".join(rows))
    parts.append("\n".join(f"- [`{PACKAGE}.{room}`]({room}.md)" for room in present))
    return "\n\n".join(parts) + "\n"


def reference_pages(root: Path = ROOT) -> dict[str, str]:
    """Write all pages of the reference.

    Args:
        root: The root of the repository.

    Returns:
        Markdown by path below `docs/`.
    """
    package, guest = root / PACKAGE, root / "papers" / GUEST
    pages = {f"reference/{room}.md": room_page(room, path) for room, path in rooms(package).items()}
    pages |= {
        f"reference/papers/{room}.md": room_page(room, path, GUEST)
        for room, path in rooms(guest).items()
        if room not in STUDIES
    }
    return {"reference/index.md": index_page(package)} | pages


def section_pages(docs: Path) -> dict[str, str]:
    """Write the front page of each section that has none of its own.

    Args:
        docs: The folder of the pages.

    Returns:
        Markdown by path below `docs/`.
    """
    pages = {}
    for folder, (title, sentence) in SECTIONS.items():
        if (docs / folder / "index.md").exists():
            continue
        items = [
            f"- [{heading(path)}]({path.name})" for path in sorted((docs / folder).glob("*.md"))
        ]
        parts = [f"# {title}", sentence, "\n".join(items)]
        pages[f"{folder}/index.md"] = "\n\n".join(part for part in parts if part) + "\n"
    return pages


def heading(page: Path) -> str:
    """Return the first heading of a page, or the name of its file."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return next((line[2:].strip() for line in lines if line.startswith("# ")), page.stem)


def on_files(files: Any, config: Any) -> Any:
    """Add the made pages to those of the folder; mkdocs calls this by its name."""
    from mkdocs.structure.files import File  # here, so that the tests need no mkdocs

    pages = reference_pages() | section_pages(Path(config["docs_dir"]))
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files
