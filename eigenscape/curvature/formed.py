"""The base of operators that are formed once, by a pass over the data, and keep no risk."""

import torch

from eigenscape.operator import LinearOperator
from eigenscape.records import SelfTest
from eigenscape.space import ParamSpace


class FormedOperator(LinearOperator):
    """A symmetric operator formed once by a pass over the data; subclasses define `matmat`."""

    _space: ParamSpace
    _dtype: torch.dtype
    _device: torch.device
    _self_test: SelfTest | None = None

    def _compare(self, matrix: LinearOperator) -> None:
        """Compare the matrix whose derivatives these are with the user's function.

        Args:
            matrix: The Hessian or Gauss-Newton matrix of the same risk.

        Raises:
            SelfTestError: If the two contradict each other.
        """
        self._self_test = matrix.self_test

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
    def self_test(self) -> SelfTest | None:
        """Whether the derivatives that it is made of are those of the user's own function."""
        return self._self_test

    @property
    def is_symmetric(self) -> bool:
        """Always true: it is formed from symmetric matrices."""
        return True
