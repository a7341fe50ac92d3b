"""The most memory that a computation takes on the CPU, from what its allocator was asked for."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


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
