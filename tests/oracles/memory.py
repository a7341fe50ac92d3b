"""The most memory that a computation takes on the CPU, from what its allocator was asked for."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._subclasses import FakeTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(function: Callable[[], object]) -> int:
    """Run a function and return the most bytes of tensors that it held at one time.

    Every allocation counts, those inside a kernel too; what was there before does not.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        kept = function()
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    del kept
    return most


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that were made inside and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves(args) if isinstance(t, Tensor)}
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and not isinstance(tensor, FakeTensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self.sizes:
                    self.sizes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return found
