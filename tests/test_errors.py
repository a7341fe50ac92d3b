"""Refusals: what they are called, what they inherit, and how they are worded."""

import inspect
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eigenscape import cli, errors
from eigenscape.errors import (
    EXTRAS,
    EigenscapeError,
    EigenscapeWarning,
    InvalidArgumentError,
    MissingPackageError,
    UnknownNameError,
    WrongTypeError,
    near_matches,
    require_choice,
    require_count,
    require_not_negative,
    require_packages,
    require_positive,
    require_seed,
)
from eigenscape.linalg import TraceEstimate, trace
from eigenscape.operator import Dense
from eigenscape.report import write_figures, write_report
from eigenscape.zoo import load_digits


def test_every_exception_is_caught_by_the_root() -> None:
    kinds = [
        k for _, k in inspect.getmembers(errors, inspect.isclass) if k.__module__ == errors.__name__
    ]
    assert len(kinds) > 12
    for kind in kinds:
        root = EigenscapeWarning if issubclass(kind, Warning) else EigenscapeError
        assert issubclass(kind, root)
        assert kind.__doc__


def test_exceptions_are_also_pythons_own() -> None:
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(errors.ShapeError, ValueError)
    assert issubclass(WrongTypeError, TypeError)
    assert issubclass(errors.NonFiniteError, ArithmeticError)
    assert issubclass(errors.NonDeterministicRiskError, RuntimeError)
    assert issubclass(errors.UnsupportedModelError, RuntimeError)


def test_near_matches() -> None:
    names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "head.weight"]
    assert near_matches("fc1.wieght", names, limit=1) == "Nearest: 'fc1.weight'."
    assert near_matches("zzz", names) == "There are 5: 'fc1.weight', 'fc1.bias', 'fc2.weight', …."
    assert near_matches("zzz", iter(["a"])) == "There are 1: 'a'."


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0, InvalidArgumentError, r"`f\(k=...\)` must be at least 1; got 0"),
        (2.0, WrongTypeError, "must be an integer; got float"),
        (True, WrongTypeError, "got bool"),
        ("3", WrongTypeError, "got str"),
        (None, WrongTypeError, "got NoneType"),
    ],
)
def test_require_count(value: object, error: type[Exception], text: str) -> None:
    assert require_count(7, "f(k=...)") == 7
    with pytest.raises(error, match=text):
        require_count(value, "f(k=...)")


def test_require_count_in_a_range() -> None:
    assert require_count(0, "f(k=...)", at_least=0, at_most=3) == 0
    with pytest.raises(InvalidArgumentError, match="from 0 to 3; got 4"):
        require_count(4, "f(k=...)", at_least=0, at_most=3)


def test_require_choice() -> None:
    assert require_choice("a", ("a", "b"), "f(kind=...)") == "a"
    for wrong in ("c", 3, None, ["a"]):
        with pytest.raises(UnknownNameError, match=r"`f\(kind=...\)` must be one of 'a', 'b'; got"):
            require_choice(wrong, ("a", "b"), "f(kind=...)")


def test_require_positive() -> None:
    assert require_positive(2, "f(x=...)") == 2.0
    for wrong in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match="finite and above 0"):
            require_positive(wrong, "f(x=...)")
    for kind in ("1", None, True, [1.0]):
        with pytest.raises(WrongTypeError, match="must be a number"):
            require_positive(kind, "f(x=...)")


def test_numbers_of_zero_or_more() -> None:
    assert require_not_negative(0, "f(x)") == 0.0
    assert require_not_negative(2.5, "f(x)") == 2.5
    for value in (-1e-9, float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match=r"`f\(x\)` must be finite and 0 or more"):
            require_not_negative(value, "f(x)")
    for value in (True, "1", None):
        with pytest.raises(WrongTypeError, match="must be a number"):
            require_not_negative(value, "f(x)")


def test_seeds_have_32_bits() -> None:
    assert [require_seed(seed, "f") for seed in (0, 2**32 - 1)] == [0, 2**32 - 1]
    for value in (-1, 2**32):
        with pytest.raises(InvalidArgumentError, match=r"`f\(seed=\.\.\.\)`"):
            require_seed(value, "f")
    with pytest.raises(WrongTypeError, match="seed"):
        require_seed(1.5, "f")


def test_extras_are_those_that_can_be_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    offered = project["project"]["optional-dependencies"]
    imported_as = {"scikit-learn": "sklearn"}
    listed = {}
    for extra in ("report", "cli", "tables", "digits"):
        for requirement in offered[extra]:
            name = re.split(r"[<>=]", requirement)[0]
            listed[imported_as.get(name, name)] = extra
    assert listed == EXTRAS
    require_packages("f()", *EXTRAS)  # all are installed for the tests


def record() -> TraceEstimate:
    return trace(Dense(torch.eye(3)), num_products=3)


@pytest.mark.parametrize(
    ("package", "call", "use"),
    [
        ("pandas", "record.to_frame()", lambda: record().to_frame()),
        ("matplotlib", "record.plot()", lambda: record().plot()),
        ("matplotlib", "write_figures(...)", lambda: write_figures(record(), "figures")),
        ("plotly", "write_report(...)", lambda: write_report(record(), "report.html")),
        ("jinja2", "write_report(...)", lambda: write_report(record(), "report.html")),
        ("sklearn", "load_digits()", lambda: load_digits("train")),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, call: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError) as caught:
        use()
    text = str(caught.value)
    assert text.startswith(f"`{call}` needs the package {package}; got: ")
    assert text.endswith(f"Install it: `pip install 'eigenscape[{EXTRAS[package]}]'`.")
    assert "\n" not in text


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_without_its_extra_says_so_in_a_line(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"`eigenscape` needs the package {package}; got: ")
    assert said.err.endswith("`pip install 'eigenscape[cli]'`.\n")
    assert said.err.count("\n") == 1
