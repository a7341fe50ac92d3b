"""Refusals: what they are called, what they inherit, and how they are worded."""

import inspect

import pytest

from eigenscape import errors
from eigenscape.errors import (
    EigenscapeError,
    EigenscapeWarning,
    InvalidArgumentError,
    UnknownNameError,
    WrongTypeError,
    near_matches,
    require_choice,
    require_count,
    require_not_negative,
    require_positive,
    require_seed,
)


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
