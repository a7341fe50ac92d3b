"""What comes of a question, and whether what a user brought came back as it was."""

import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.errors import EigenscapeError
from tests.fuzz.networks import Problem

SLOWEST_S = 60


class TooSlow(BaseException):
    """A question took too long."""


@dataclass(frozen=True)
class Answer:
    """What came of one question.

    Attributes:
        question: What was asked.
        verdict: "right", "refused", "wrong" or "raw".
        words: The error relative to the truth, or what was said.
        is_false_alarm: Whether it should have been answered.
    """

    question: str
    verdict: str
    words: str = ""
    is_false_alarm: bool = False

    @property
    def is_failure(self) -> bool:
        return self.verdict in ("wrong", "raw") or self.is_false_alarm


def attempted(question: Callable[[], Any]) -> tuple[Any, tuple[str, str] | None]:
    """Ask; return the answer, or the verdict and the words of what was raised."""
    with warnings.catch_warnings(), limited_time():
        warnings.simplefilter("ignore")
        try:
            return question(), None
        except EigenscapeError as refusal:
            return None, ("refused", " ".join(f"{type(refusal).__name__}: {refusal}".split()))
        except TooSlow:
            return None, ("raw", f"longer than {SLOWEST_S} s")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rpartition('/')[2]}:{where.lineno}"
            said = " ".join(str(error).split())
            return None, ("raw", f"{type(error).__name__} at {place}: {said}")


@contextmanager
def limited_time() -> Iterator[None]:
    """Give up on what takes too long."""

    def stop(*_: object) -> None:
        raise TooSlow

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SLOWEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


PLAIN = (int, float, bool, str, type(None))


def state(problem: Problem) -> dict[str, Any]:
    """Return copies of all that must come back: tensors, flags, gradients, attributes, hooks."""
    found: dict[str, Any] = {
        "random state": torch.get_rng_state(),
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
    }
    modules = [
        (f"{root}{name}", module)
        for root, owner in (("", problem.model), ("loss.", problem.loss))
        if isinstance(owner, nn.Module)
        for name, module in owner.named_modules(remove_duplicate=False)
    ]
    named = [] if problem.params is None else list(problem.params.items())
    for place, module in modules:
        named += [(f"{place}.{n}", p) for n, p in module._parameters.items() if p is not None]
        named += [(f"{place}.{n}", b) for n, b in module._buffers.items() if b is not None]
        for key, value in vars(module).items():
            if isinstance(value, PLAIN):
                found[f"{place}.{key}"] = value
        found[f"{place} hooks"] = len(module._forward_hooks), len(module._forward_pre_hooks)
        found[f"{place} keys"] = sorted(k for k in vars(module) if k not in ("kept", "last"))
        found[f"{place} modules"] = [id(m) for m in module._modules.values()]
    for call in problem.calls:
        named += [(f"data {i}", t) for i, t in enumerate((*call.inputs, *call.named.values()))]
        named += [("target", call.target)] if call.target is not None else []
    for name, tensor in named:
        grad = None if tensor.grad is None else tensor.grad.clone()
        flags = type(tensor), tensor.requires_grad, tensor.is_leaf, id(tensor)
        found[f"{name} {len(found)}"] = (tensor.detach().clone(), grad, flags)
    return found


def difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Name the first thing that is not as it was, bit for bit."""
    for key in sorted(before):
        if key not in after or not _same(before[key], after[key]):
            return f"{key}: {before[key]} became {after.get(key)}"[:300]
    return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)
