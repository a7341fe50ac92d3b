"""How much memory the graph of a computation holds."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from eigenscape.risk import memory_of


def saved_bytes(build: Callable[[], object]) -> int:
    """Count what a computation saves for its backward pass, by running it once.

    The hooks that count also switch off PyTorch's check for tensors changed in place, so what is
    built under them is thrown away.

    Args:
        build: Runs it.

    Returns:
        The bytes. Of a model that uses `torch.func`, which takes no hooks, those of all results.

    Raises:
        RuntimeError: As the computation does.
    """
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        key, size = memory_of(tensor)
        saved[key] = size
        return tensor.detach()

    try:
        with saved_tensors_hooks(count, lambda tensor: tensor):
            build()
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        results = _Results()
        with results:
            build()
        return results.nbytes
    return sum(saved.values())


class _Results(TorchDispatchMode):
    """Adds up the sizes of what operations return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.nbytes += leaf.numel() * leaf.element_size()
        return result
