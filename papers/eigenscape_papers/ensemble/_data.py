"""Data as two tensors, and the order in which an epoch of a seed walks through them."""

from collections.abc import Sequence

from torch import Tensor
from torch.utils.data import TensorDataset

from eigenscape.errors import EmptySelectionError, ShapeError, WrongTypeError
from eigenscape.parallel import mixed_seed


def as_tensors(data: object, call: str) -> tuple[Tensor, Tensor]:
    """Return inputs and targets from anything that holds the two whole.

    Args:
        data: An object with `.inputs` and `.targets`, a pair of tensors, or a `TensorDataset`.
        call: How the user wrote it.

    Returns:
        Inputs and targets with equal first dimensions.

    Raises:
        WrongTypeError: If it is something else.
        ShapeError: If the two differ in length.
        EmptySelectionError: If there is no sample.
    """
    pair: Sequence[object] = ()
    if isinstance(data, TensorDataset):
        pair = data.tensors
    elif hasattr(data, "inputs") and hasattr(data, "targets"):
        pair = (data.inputs, data.targets)
    elif isinstance(data, tuple | list):
        pair = data
    tensors = [tensor for tensor in pair if isinstance(tensor, Tensor)]
    if len(pair) != 2 or len(tensors) != 2:
        raise WrongTypeError(
            f"`{call}` must hold inputs and targets as two tensors: an object with `.inputs` and "
            f"`.targets`, a pair, or a TensorDataset of two; got {_describe(data, pair)}. Training "
            "keeps all data in memory, so read a loader into tensors first."
        )
    inputs, targets = tensors
    sizes = [len(tensor) if tensor.ndim else None for tensor in (inputs, targets)]
    if sizes[0] != sizes[1] or sizes[0] is None:
        raise ShapeError(
            f"`{call}` must have as many targets as inputs; got shapes {tuple(inputs.shape)} and "
            f"{tuple(targets.shape)}."
        )
    if sizes[0] == 0:
        raise EmptySelectionError(f"`{call}` must hold at least one sample; got none.")
    return inputs.detach(), targets.detach()


def epoch_noise(seeds: Sequence[int], epoch: int) -> int:
    """Return what to seed PyTorch's own random numbers (dropout) with in an epoch."""
    return mixed_seed("noise", *seeds, epoch)


def _describe(data: object, pair: Sequence[object]) -> str:
    if not pair:
        return type(data).__name__
    kinds = ", ".join(type(item).__name__ for item in pair)
    return f"{type(data).__name__} of {len(pair)} ({kinds})"
