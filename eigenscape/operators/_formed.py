"""What operators share that are made once, from a pass over the data, and hold no risk."""

import torch

from eigenscape.linear_operator import LinearOperator
from eigenscape.space import ParamSpace


class FormedOperator(LinearOperator):
    """A symmetric operator made once from a pass over the data; `matmat` is left to say."""

    _space: ParamSpace
    _dtype: torch.dtype
    _device: torch.device

    @property
    def space(self) -> ParamSpace:
        """The space in which it multiplies."""
        return self._space

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' dtype."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """The parameters' device."""
        return self._device

    @property
    def is_symmetric(self) -> bool:
        """Always: what it is made of is."""
        return True
