"""CUDA graphs: work on a GPU that is started once instead of operation by operation."""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from eigenscape.errors import SubstitutionWarning


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> Iterator[None]:
    """Record what is done inside into a graph.

    Garbage is collected before, and not meanwhile: an older graph that nobody needs is freed when
    it is collected, CUDA refuses that while another one is recorded, and the recording is lost.

    Args:
        graph: What is recorded into.
        stream: Where the work is done: not on the default stream, on which nothing is recorded.
        pool: Memory that graphs share which never run at the same time; None for its own.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            yield
    finally:
        if was_enabled:
            gc.enable()


def record_graph(
    work: Callable[[], None],
    warm_up: Callable[[], None],
    device: torch.device,
    *,
    changing: Sequence[Tensor],
    what: str,
    advice: str = "",
    pool: Any = None,
) -> Callable[[], None] | None:
    """Record work in a CUDA graph; if that fails, say so in a `SubstitutionWarning`.

    What the work reads and writes must stay where it is.

    Args:
        work: What is recorded.
        warm_up: So much of it that every kernel is loaded and every library is warm; runs twice.
        device: A CUDA device.
        changing: What the work changes; afterwards it is as before, whatever was run to record.
        what: Who could not be recorded, to begin the warning with: "The training steps".
        advice: How to end it.
        pool: Memory that graphs share which never run at the same time.

    Returns:
        What replays the work, or None where it has to run as it is.
    """
    before = [tensor.clone() for tensor in changing]
    try:
        return _captured(work, warm_up, device, pool)
    except RuntimeError as error:
        text = (
            f"{what} could not be recorded in a CUDA graph "
            f"({str(error).strip().splitlines()[0]}). They run one by one: the results are the "
            f"same, only slower. {advice}"
        )
        warnings.warn(text.strip(), SubstitutionWarning, stacklevel=3)
        return None
    finally:
        for tensor, value in zip(changing, before, strict=True):
            tensor.copy_(value)


def _captured(
    work: Callable[[], None], warm_up: Callable[[], None], device: torch.device, pool: Any
) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        # Libraries set themselves up in their first calls, once for each stream, which must not
        # be recorded; and not on the default stream, on which nothing can be.
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            warm_up()
            with _no_waiting():
                warm_up()
        here.wait_stream(aside)
        torch.cuda.synchronize()
        with recording(graph, aside, pool):
            work()
    return graph.replay


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Raise where the host would wait for the device.

    Such work cannot be recorded, and to find out while recording leaves PyTorch's generator in a
    state in which it no longer draws.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode does not see all; the rest shows later
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def has_kernels(like: Tensor) -> bool:
    """Tell whether kernels of our own can work on a tensor: float32 on a GPU, with Triton."""
    is_single = like.is_cuda and like.dtype == torch.float32
    return is_single and find_spec("triton") is not None
