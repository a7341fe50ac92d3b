"""Products on a GPU without starting their operations one by one."""

from collections.abc import Callable

import torch
from torch import Tensor

from eigenscape.parallel import recording


class Replay:
    """A function recorded as one CUDA graph, for inputs of one shape."""

    def __init__(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> None:
        """Record the function; it must have run before with inputs of this shape.

        Args:
            function: From tensor to tensor, the same operations at each call, none of which waits
                for the GPU. Whatever else it reads must stay where it is.
            rows: An input.
        """
        self._rows = rows.clone()
        self._graph = torch.cuda.CUDAGraph()
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):  # libraries set themselves up once for each stream
            function(self._rows)
        here.wait_stream(aside)
        with recording(self._graph, aside, None):
            self._result = function(self._rows)

    def __call__(self, rows: Tensor) -> Tensor:
        """Run it again; the result is overwritten by the next call."""
        self._rows.copy_(rows)
        self._graph.replay()
        return self._result
