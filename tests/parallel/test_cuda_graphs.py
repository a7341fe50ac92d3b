"""Nothing is freed while a graph is recorded."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eigenscape.parallel import recording


class Old:
    """A graph of an earlier recording, in a cycle: it goes when garbage is collected."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand in for PyTorch's context, which needs a GPU; returns what it was given."""
    seen: list[Any] = []

    @contextmanager
    def graph(*args: Any, capture_error_mode: str) -> Iterator[None]:
        seen.extend((*args, capture_error_mode))
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    return seen


def test_garbage_is_collected_before_and_not_meanwhile(given: list[Any]) -> None:
    new: Any = SimpleNamespace()
    stream: Any = SimpleNamespace()
    pool = (0, 1)
    gc.disable()  # the cycle must be there when the recording begins
    try:
        before = weakref.ref(Old())
    finally:
        gc.enable()
    with recording(new, stream, pool):
        assert before() is None
        assert not gc.isenabled()
    assert gc.isenabled()
    assert given == [new, pool, stream, "thread_local"]


@pytest.mark.usefixtures("given")
def test_the_collector_is_left_as_it_was() -> None:
    nothing: Any = SimpleNamespace()
    with pytest.raises(RuntimeError, match="refused"), recording(nothing, nothing, None):
        raise RuntimeError("refused")
    assert gc.isenabled()
    gc.disable()
    try:
        with recording(nothing, nothing, None):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
