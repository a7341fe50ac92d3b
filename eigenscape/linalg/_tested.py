"""Records that say whether their matrix was compared with the user's own function."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from eigenscape.records import Record

_P = ParamSpec("_P")
_R = TypeVar("_R", bound=Record)


def carries_self_test(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Put an operator's verdict on itself into the record that a function of it returns."""

    def tested(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        record = function(*args, **kwargs)
        operator: Any = args[0] if args else kwargs["operator"]
        verdict = operator.self_test
        return record if verdict is None else dataclasses.replace(record, self_test=verdict)

    functools.update_wrapper(tested, function)
    return tested
