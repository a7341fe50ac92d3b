"""What a first look needs of a risk: to evaluate the user's function, and to note what it is like.

`EmpiricalRisk` is the only such object; it imports those that look at it.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from eigenscape.parallel import Ranks
from eigenscape.risk.batch import Batch
from eigenscape.risk.batches import BatchSource
from eigenscape.risk.leaves import Params
from eigenscape.risk.losses import Loss


class Evaluable(Protocol):
    """A model, its loss and its data; see `EmpiricalRisk`."""

    module: nn.Module | None
    loss: Loss
    batches: BatchSource
    ranks: Ranks
    mode: str
    dtype: torch.dtype
    autocast: torch.dtype | None
    # What is found out.
    precision: torch.dtype
    takes_mapping: bool
    needs_grad_mode: bool
    samples_interact: bool
    num_terms: float
    num_own_samples: int

    @property
    def slack(self) -> float:
        """How far two exact ways may be apart, relative to their size."""

    def state(self) -> list[Tensor]:
        """Return the model's tensors."""

    def parameters(self) -> Params:
        """Return the selected parameters, detached."""

    def leaves(self) -> Params:
        """Return what to differentiate by."""

    def returned(self, params: Params, batch: Batch) -> Any:
        """Return what the model returns."""

    def output(self, params: Params, batch: Batch) -> Any:
        """Return what the loss takes of it."""

    def total(self, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of a batch's loss terms and their number."""

    def sums(self, batches: Iterable[Batch]) -> tuple[float, float]:
        """Add up terms and their number over batches and ranks."""

    def totals(
        self, batches: Iterable[Batch], dtype: torch.dtype | None = None
    ) -> list[tuple[float, float]]:
        """Return the sum of terms and their number for each batch."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Evaluate under the risk's own settings."""

    def in_float64(self) -> AbstractContextManager[None]:
        """Let float64 copies stand in for the model's tensors."""

    def on_first_look(self) -> AbstractContextManager[None]:
        """Learn what the model writes to."""
