"""Checks of products before they are used: with double backward, a transpose, a single row."""

from collections.abc import Callable

import torch
from torch import Tensor

from eigenscape.curvature.products.linearised import LinearisedGraph, Program, signature
from eigenscape.curvature.products.representation import BatchProduct, Maker, agree
from eigenscape.curvature.products.saved_bytes import saved_bytes
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import Batch, EmpiricalRisk, OutputProduct


def probe_rows(risk: EmpiricalRisk) -> Tensor:
    """Return two random rows, always the same: one with a pattern may be multiplied to zero."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, risk.space.size, generator=generator)
    return rows.to(risk.device, risk.dtype)


def _rounding(product: BatchProduct, rows: Tensor, Au: Tensor, Av: Tensor) -> float:
    """Measure how far rounding takes products: but for it they are linear, right or wrong.

    Where an output is saturated, large numbers cancel in each product, and what they leave may be
    rounded a million times more than usual. That of one vector may be small by chance.

    Args:
        product: What a batch adds.
        rows: Two vectors, u and v, as rows.
        Au: The product with u, in float64.
        Av: The product with v, in float64.

    Returns:
        The largest error of some sums of multiples of the two.
    """
    # Float64 scales so exactly; what a backward pass rounds to float32 would be lost altogether.
    scale = 2.0**-200 if rows.dtype == torch.float64 else 1.0
    factors = scale * torch.randn(8, 2, generator=torch.Generator().manual_seed(1)).double()
    errors = []
    for a, b in factors.tolist():
        mixed = product.product((a * rows[0] + b * rows[1])[None], batched=False)[0]
        errors.append(float((mixed - a * Au - b * Av).norm()) / scale)
    return max(errors)


class KeptGraphs(Maker):
    """Makes autograd graphs to keep: double backward, which everything else is compared with."""

    def __init__(
        self,
        risk: EmpiricalRisk,
        name: str,
        build: Callable[[Batch], BatchProduct],
        *,
        bytes_per_sample: float | None = None,
    ) -> None:
        """Make nothing yet.

        Args:
            risk: The risk.
            name: The matrix's name, for refusals.
            build: Builds the graph of a batch.
            bytes_per_sample: What a graph holds, if that is known; else one is built to count it.
        """
        self._risk, self._name, self.build = risk, name, build
        self.bytes_per_sample = bytes_per_sample
        self._is_symmetric = False

    def make(self, batch: Batch) -> BatchProduct:
        """Build the graph of one batch."""
        nbytes = self.nbytes(batch)
        product = self.build(batch)
        product.nbytes = nbytes
        self.require_symmetric(product, batch)
        return product

    def nbytes(self, batch: Batch) -> float:
        """Predict what the graph of a batch holds; the first time one is built to count it."""
        if self.bytes_per_sample is None:
            self.bytes_per_sample = saved_bytes(lambda: self.build(batch)) / batch.size
        return self.bytes_per_sample * batch.size

    def forget(self) -> None:
        """Graphs are built anew; what they hold and whether they are symmetric stays."""

    def require_symmetric(self, product: BatchProduct, batch: Batch) -> None:
        """Refuse, once, a matrix that is not symmetric: some layers of PyTorch have such a bug.

        Args:
            product: What a batch adds.
            batch: The batch.

        Raises:
            UnsupportedModelError: If it is not.
        """
        risk = self._risk
        if self._is_symmetric or risk.dtype.itemsize < 4:  # half precision is noise of this size
            return
        rows = probe_rows(risk)
        Hu, Hv = (product.product(row[None], batched=False)[0].double() for row in rows)
        u, v = rows.double()
        # One number, but for rounding, about eps·√n of the products: at n = 1e8 that is 2e-12 in
        # float64 and 1e-3 in float32.
        slack, size = 1e-8 if risk.dtype == torch.float64 else 1e-2, Hu.norm() + Hv.norm()
        slack = max(slack, risk.slack) if risk.precision != risk.dtype else slack
        is_zero = size <= batch.size * torch.finfo(risk.dtype).eps ** 0.5  # but for rounding
        if is_zero:  # it says nothing about the other batches
            return
        asymmetry = (u @ Hv - v @ Hu).abs()
        if asymmetry > slack * size:
            rounding = _rounding(product, rows, Hu, Hv)
            # More than that is no rounding: the product is not linear at all.
            if asymmetry <= 16 * rounding <= 16 * max(slack, 1e-4) * size:
                return
            raise UnsupportedModelError(
                f"{self._name} is not symmetric: uᵀAv = {u @ Hv:.4g}, vᵀAu = {v @ Hu:.4g}."
                " An operation in the model has a wrong second derivative (in PyTorch 2.13 "
                "`weight_norm` has). Replace it, e.g. with `parametrize.remove_parametrizations`."
            )
        self._is_symmetric = True


class TrustedTraces(Maker):
    """Makes products from traces, each compared with double backward before it is used.

    A trace holds whatever was true of the batch that it was made on, so one product of each batch
    is compared; and again, of one batch that contributes, where the parameters moved.
    """

    def __init__(
        self,
        risk: EmpiricalRisk,
        kind: str,
        name: str,
        exact: KeptGraphs,
        curvature_at: Callable[[Tensor, Batch], OutputProduct],
        *,
        compiled: bool,
        refused: Callable[[str, bool], Maker],
    ) -> None:
        """Trace nothing yet.

        Args:
            risk: The risk.
            kind: "hessian", "gauss-newton" or "residual".
            name: The matrix's name, for refusals.
            exact: Makes what products are compared with.
            curvature_at: Gives the matrix at the output.
            compiled: Whether the stages are compiled.
            refused: Called with a problem and whether to warn of it; returns what is used instead.
        """
        self._risk, self._kind, self._name, self._exact = risk, kind, name, exact
        self._curvature_at, self._compiled, self._refused = curvature_at, compiled, refused
        self._instead: Maker | None = None
        self._programs: dict[object, Program] = {}
        self._tensors: tuple[int, ...] = ()
        self._verified: set[object] = set()
        self._is_verified_here = False

    def make(self, batch: Batch) -> BatchProduct:
        """Run what does not depend on the vector; fall back to another maker if a product differs.

        Args:
            batch: The batch.

        Returns:
            What it adds.
        """
        if self._instead is not None:
            return self._instead.make(batch)
        try:
            product = self._compared(batch)
        except Exception as error:  # tracing and compiling meet whatever a model may do
            problem = str(error).strip().splitlines() or [""]
            self._instead = self._refused(f"{type(error).__name__}: {problem[0]}", False)
        else:
            if product is not None:
                self._exact.require_symmetric(product, batch)
                return product
            self._instead = self._refused("a product disagrees with double backward", True)
        self._programs.clear()
        return self._instead.make(batch)

    def forget(self) -> None:
        """Compare again, with one batch that contributes."""
        self._is_verified_here = False
        if self._instead is not None:
            self._instead.forget()

    def _compared(self, batch: Batch) -> LinearisedGraph | None:
        """Return what a batch adds by its trace; None if a product disagrees."""
        key = signature(batch), batch.first
        is_known = key in self._verified and self._is_verified_here
        # First, so that not both are in memory at a time.
        expected = None if is_known else self._expected(batch)
        product = self._linearised(batch)
        if expected is not None:
            if not self._agrees(product, expected):
                return None
            self._is_verified_here |= bool(expected.any())
        self._verified.add(key)
        return product

    def _expected(self, batch: Batch) -> Tensor:
        """Multiply probes by double backward: two at the first batch, one at each other."""
        oracle = self._exact.build(batch)
        rows = probe_rows(self._risk)[: 1 if self._verified else 2]
        return torch.cat([oracle.product(row[None], batched=False) for row in rows])

    def _agrees(self, product: BatchProduct, expected: Tensor) -> bool:
        """Compare products with single columns; several at once take more memory."""
        pairs = zip(probe_rows(self._risk), expected, strict=False)
        return all(
            agree(self._risk, product.product(v[None], batched=False)[0], Av) for v, Av in pairs
        )

    def _linearised(self, batch: Batch) -> LinearisedGraph:
        # A program holds the tensors that it was traced with, and does not see their replacements.
        if (tensors := self._risk.places()) != self._tensors:
            self._programs.clear()
            self._tensors = tensors
        key = signature(batch)
        if key not in self._programs:
            self._programs[key] = Program(
                self._risk, batch, self._kind, self._name, compiled=self._compiled
            )
        return LinearisedGraph(self._programs[key], self._risk, batch, self._curvature_at)
