"""A layer's block multiplied without the network: by stored factors, or by the block itself."""

from collections.abc import Callable

import torch
from torch import Tensor

from eigenscape.curvature.layers.costs import Limits
from eigenscape.curvature.layers.factors import (
    ROWS_BYTES,
    Factors,
    all_factors,
    batch_factors,
    symmetrise,
)
from eigenscape.curvature.products.representation import Memory, Representation
from eigenscape.device import full_precision
from eigenscape.risk import EmpiricalRisk, Layer


class StoredFactors(Representation):
    """Inputs and roots of all samples, made once and multiplied without a pass of autograd."""

    def __init__(
        self,
        risk: EmpiricalRisk,
        layer: Layer,
        limits: Limits,
        *,
        storage: torch.dtype,
        on_host: bool,
        look_at: Callable[["StoredFactors"], None] | None,
    ) -> None:
        """Make nothing yet.

        Args:
            risk: The risk as a function of the layer's parameters.
            layer: The layer.
            limits: Memory for products.
            storage: The dtype in which factors are kept.
            on_host: Whether they are kept in the host's memory.
            look_at: Called with this object when factors were made.
        """
        self._risk, self._layer, self._limits = risk, layer, limits
        self._storage, self._on_host, self._look_at = storage, on_host, look_at
        self._factors: Factors | None = None

    @property
    def factors(self) -> Factors:
        """The factors, made where there are none."""
        if self._factors is None:
            self.num_evaluations += 1
            with self._risk.ranks.together():
                self._factors = all_factors(
                    self._risk,
                    self._layer,
                    storage=self._storage,
                    on_host=self._on_host,
                    gpu_bytes=self._limits.gpu_bytes,
                )
            if self._look_at is not None:
                self._look_at(self)
        return self._factors

    @full_precision()
    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply rows (k, q)."""
        factors, risk = self.factors, self._risk
        with risk.ranks.together():
            total = factors.product(rows)
        return (risk.ranks.sum(total) / risk.divisor).to(risk.dtype)

    def memory(self, num_columns: int) -> Memory:
        """Say what is held on the device; a product takes chunks beside it."""
        factors = self._factors
        if factors is None:
            return Memory(0, 0)
        is_here = factors.roots.device == self._risk.device
        return Memory(factors.nbytes if is_here else 0, 0)

    def forget(self) -> None:
        """Drop the factors."""
        self._factors = None


class DenseBlock(Representation):
    """The block itself."""

    def __init__(self, risk: EmpiricalRisk, layer: Layer, limits: Limits) -> None:
        """Form nothing yet.

        Args:
            risk: The risk as a function of the layer's parameters.
            layer: The layer.
            limits: Memory for products.
        """
        self._risk, self._layer, self._limits = risk, layer, limits
        self._block: Tensor | None = None

    @property
    def block(self) -> Tensor:
        """The block (q, q), formed where there is none."""
        if self._block is None:
            self.num_evaluations += 1
            self._block = self._formed()
        return self._block

    @full_precision()
    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply rows (k, q)."""
        return (self.block @ rows.T).T

    def memory(self, num_columns: int) -> Memory:
        """Say what is held; a product takes nothing beside it."""
        block = self._block
        return Memory(0 if block is None else block.numel() * block.element_size(), 0)

    def forget(self) -> None:
        """Drop the block."""
        self._block = None

    @full_precision()
    def _formed(self) -> Tensor:
        """Form the block as a sum of Gram matrices; long sums in float64."""
        risk, q = self._risk, self._risk.space.size
        with risk.ranks.together():
            total = torch.zeros(q, q, dtype=torch.float64, device=risk.device)
            for batch in risk.batches:
                batch_factors(risk, self._layer, batch, gpu_bytes=self._limits.gpu_bytes).add_to(
                    total
                )
        total = risk.ranks.sum(total)
        symmetrise(total, self._limits.of_chunks(ROWS_BYTES))
        return total.div_(risk.divisor).to(risk.dtype)
