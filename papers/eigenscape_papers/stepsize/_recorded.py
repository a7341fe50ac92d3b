"""Functions of tensors that a CUDA graph replays: kernels take longer to launch than to run."""

from collections.abc import Callable

import torch
from torch import Tensor

from eigenscape.parallel import record_graph

Work = Callable[..., tuple[Tensor, ...]]


class Recorded:
    """A function of tensors that changes none of them.

    On a CUDA device it is recorded for each tuple of shapes and replayed from then on; elsewhere it
    is called. What it reads besides its arguments must stay where it is. What it returns is
    overwritten by the next call.
    """

    def __init__(self, work: Work, device: torch.device) -> None:
        self._work, self._device = work, device
        # By shapes: where arguments are written, where results are found, and what replays.
        self._graphs: dict[
            tuple[torch.Size, ...], tuple[list[Tensor], list[Tensor], Callable[[], None]]
        ] = {}
        self._use_graphs = device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self._use_graphs else None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        key = tuple(tensor.shape for tensor in inputs)
        if self._use_graphs and key not in self._graphs:
            self._record(key, inputs)
        if key not in self._graphs:
            return self._work(*inputs)
        buffers, found, replay = self._graphs[key]
        for ours, given in zip(buffers, inputs, strict=True):
            ours.copy_(given)
        replay()
        return tuple(found)

    def _record(self, key: tuple[torch.Size, ...], inputs: tuple[Tensor, ...]) -> None:
        """Record the work for these shapes; if that fails, go on without graphs."""
        buffers = [tensor.clone() for tensor in inputs]
        found: list[Tensor] = []

        def warm_up() -> None:
            self._work(*buffers)

        def work() -> None:
            found[:] = self._work(*buffers)

        replay = record_graph(
            work,
            warm_up,
            self._device,
            changing=(),
            what="The steps of stacked networks",
            # One for all graphs: they never run at the same time, and callers copy what they keep.
            pool=self._pool,
        )
        if replay is None:
            self._graphs.clear()
            self._use_graphs = False
        else:
            self._graphs[key] = buffers, found, replay
