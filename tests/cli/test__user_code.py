"""The user's own functions: found, called, and blamed with their own lines alone."""

import sys
from pathlib import Path
from typing import Any

import pytest

from eigenscape.cli._user_code import call, is_reference, users_own
from eigenscape.errors import EigenscapeError, InvalidArgumentError, UnknownNameError

NET = """
import helper

runs = []
runs.append(1)
ready = {"made": True}


def build():
    return {"net": helper.VALUE, "runs": len(runs)}


def needs(width, depth=2):
    return width


def broken():
    return deeper()


def deeper():
    raise ValueError("too deep")


def quits():
    import sys
    sys.exit(3)


def late():
    import beside
    return beside.VALUE


def _hidden():
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files of the user's, and no module of it left afterwards."""
    before, path = set(sys.modules), list(sys.path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "helper.py").write_text("VALUE = 42\n")
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def made(reference: str, ready: Any = lambda value: isinstance(value, dict)) -> Any:
    return call(reference, "MODEL", ready=ready)


def refusal(reference: str) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        made(reference)
    return str(caught.value)


def test_references_are_told_from_names() -> None:
    assert all(map(is_reference, ("net.py:build", "a.b:c", "net.py")))
    assert not any(map(is_reference, ("F-200^2", "digits", "net")))


def test_a_function_is_called_with_its_folder_on_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert made(f"{folder}/net.py:build")["net"] == 42
    assert made(f"{folder}/net.py:late", lambda value: False) == 7


def test_a_file_runs_once_for_all_that_name_it() -> None:
    assert made("net.py:build")["runs"] == 1
    assert made("./net.py:build")["runs"] == 1


def test_a_file_does_not_take_the_name_of_a_module(folder: Path) -> None:
    (folder / "json.py").write_text("def build():\n    return {'mine': 1}\n")
    import json

    assert made("json.py:build") == {"mine": 1}
    assert sys.modules["json"] is json


def test_what_is_ready_is_not_called() -> None:
    assert made("net.py:ready") == {"made": True}
    with pytest.raises(InvalidArgumentError, match="must be a function; got dict"):
        made("net.py:ready", lambda value: False)


def test_a_module_is_found_by_its_name() -> None:
    assert made("helper:VALUE", lambda value: value == 42) == 42
    assert "Python finds no 'nowhere'" in refusal("nowhere.at.all:build")


def test_what_a_module_lacks_is_not_taken_for_the_module(folder: Path) -> None:
    (folder / "lacking.py").write_text("import nowhere_to_be_found\n")
    text = refusal("lacking:build")
    assert "`lacking` could not be imported" in text
    assert "No module named 'nowhere_to_be_found'" in text


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("net.py", "must name a function too: `net.py:function`. It has build, needs, broken"),
        ("net.py:", "must name a function too"),
        ("ent.py:build", "'ent.py', which does not exist"),
        ("net.py:needs", "needs width. Give them defaults"),
        ("net.py:quits", r"it called sys.exit(3)"),
    ],
)
def test_refusals_say_what_to_write(reference: str, words: str) -> None:
    assert words in refusal(reference)


def test_a_near_name_is_offered() -> None:
    with pytest.raises(UnknownNameError, match=r"no 'biuld'.*build"):
        made("net.py:biuld")
    assert "'net.py'" in refusal("nett.py:build")


def test_an_error_shows_the_users_lines_alone() -> None:
    text = refusal("net.py:broken")
    assert text.startswith("`net.py:broken` failed:\n\nTraceback")
    assert text.endswith("ValueError: too deep")
    assert "in broken" in text
    assert "in deeper" in text
    assert "_user_code" not in text


def test_a_file_that_does_not_compile_is_shown(folder: Path) -> None:
    (folder / "bad.py").write_text("x = 1\ndef build(:\n    pass\n")
    text = refusal("bad.py:build")
    assert "def build(:" in text
    assert "SyntaxError" in text
    assert "_user_code" not in text
    assert "must name a function too: `bad.py:function`." in refusal("bad.py")


def test_a_file_that_fails_is_run_again(folder: Path) -> None:
    path = folder / "twice.py"
    path.write_text("raise RuntimeError('not yet')\n")
    assert "not yet" in refusal("twice.py:build")
    path.write_text("def build():\n    return {'now': 1}\n")
    assert made("twice.py:build") == {"now": 1}


def test_refusals_keep_their_words_and_gain_the_users_lines(folder: Path) -> None:
    source = "def build():\n    raise ValueError('inside')\n"
    (folder / "model.py").write_text(source)
    namespace: dict[str, Any] = {}
    exec(compile(source, str(folder / "model.py"), "exec"), namespace)

    def refuse() -> None:
        try:
            namespace["build"]()
        except ValueError as error:
            raise EigenscapeError("It cannot be had.") from error

    with pytest.raises(InvalidArgumentError) as caught, users_own("x", folder / "model.py"):
        refuse()
    text = str(caught.value)
    assert text.startswith("It cannot be had.\n\nTraceback")
    assert "raise ValueError('inside')" in text
    with pytest.raises(EigenscapeError, match=r"^Plain\.$"), users_own("x"):
        raise EigenscapeError("Plain.")
