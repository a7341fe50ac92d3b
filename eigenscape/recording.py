"""CUDA graphs: work on a GPU that is started once instead of operation by operation."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


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
