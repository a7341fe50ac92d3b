"""What each representation of a layer's block would cost: operations, traffic and memory.

Shapes decide, and one batch: what its graphs hold and what its product needs are counted while they
are made. Buffers inside a kernel are not seen. Letters: as in `factors`, and q parameters.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from eigenscape.curvature.layers.factors import CACHE_BYTES, GPU_BYTES, ROWS_BYTES, factors_obstacle
from eigenscape.curvature.layers.tail import TailGraph
from eigenscape.curvature.products.plan import Candidate, Plan, choose
from eigenscape.curvature.roots import num_outputs
from eigenscape.parallel import host_budget, machine_of
from eigenscape.risk import (
    Batch,
    EmpiricalRisk,
    Layer,
    Tail,
    capture_tail,
    input_vectors,
    is_lookup,
    output_vectors,
)

_STORED = ("factors", "streamed", "dense")
REPRESENTATIONS = (*_STORED, "tail", "full")


class Live(TorchDispatchMode):
    """Adds up the memory of tensors made inside it, while they live.

    Attributes:
        now: Bytes of those that are still there.
        peak: The most there were at one time.

    Examples:
        >>> with Live() as live:
        ...     a = torch.ones(100, dtype=torch.float64)
        ...     b = (a + 1.0).sum()
        >>> live.now, live.peak
        (808, 1608)
    """

    def __init__(self) -> None:
        start: Any = super().__init__  # PyTorch gives it no types
        start()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for storage in _storages((args, kwargs)):
            self._see(storage, 0)  # it was there before
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            self._see(storage, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _see(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.now += nbytes
            weakref.finalize(storage, self._gone, key, nbytes).atexit = False

    def _gone(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.now -= nbytes


def _storages(tree: Any) -> Iterable[torch.UntypedStorage]:
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return (t.untyped_storage() for t in tensors if t.layout == torch.strided)


@dataclass(frozen=True)
class Limits:
    """The memory that products have.

    Attributes:
        device: The kind of device.
        budget: Bytes that may be used there.
        itemsize: Bytes of a number of the parameters.
    """

    device: str
    budget: int
    itemsize: int

    @property
    def gpu_bytes(self) -> int:
        """Memory for intermediate results on a GPU."""
        return min(GPU_BYTES, max(self.budget // 8, 2**20))

    def of_chunks(self, cpu_bytes: int) -> int:
        """Return the memory for intermediate results here."""
        return self.gpu_bytes if self.device == "cuda" else cpu_bytes


@dataclass(frozen=True)
class Work:
    """What products of the tail cost; bytes are those of the largest batch.

    Attributes:
        flops: Multiplications and additions of a product, over all data.
        graph: Bytes that its graph holds for products.
        product: Bytes of temporaries in a product.
        forward: Bytes that its graph holds for going back once.
        back: Bytes while it goes forward and back, that graph included.
        num_batches: Batches at each pass.
        batch_share: The batch's share of the samples.
        num_roots: C, or None where what follows is not piecewise linear.
    """

    flops: float
    graph: float
    product: float
    forward: float
    back: float
    num_batches: int
    batch_share: float
    num_roots: int | None


def plan_layer(
    risk: EmpiricalRisk,
    layer: Layer,
    limits: Limits,
    probe: Tensor,
    *,
    obstacle: str | None,
    num_products: int,
    storage: int,
    asked: str,
) -> tuple[Plan, Work | None]:
    """Count what each representation would cost, on the first batch, and choose.

    Args:
        risk: The risk as a function of the layer's parameters.
        layer: The layer.
        limits: Where products are computed.
        probe: One row (1, q) to multiply.
        obstacle: Why only the full product can be used, or None.
        num_products: Products to expect.
        storage: Bytes of a stored number.
        asked: The representation asked for, or "auto".

    Returns:
        The plan, and what the tail takes where it can be used.
    """

    def plan(*candidates: Candidate) -> Plan:
        return choose(
            layer.name,
            candidates,
            num_products=num_products,
            memory_budget=limits.budget,
            machine=machine_of(limits.device),
        )

    if obstacle is not None:
        blocked = (Candidate(name, obstacle=obstacle) for name in (*_STORED, "tail"))
        return plan(*blocked, Candidate("full")), None
    batch = next(iter(risk.batches))
    with torch.enable_grad(), risk.evaluating():
        with Live() as live:
            tail = capture_tail(risk, layer, batch)
        forward, reason = live.now, factors_obstacle(risk, layer, tail)
        if reason is None:
            seed = torch.ones_like(tail.prediction)
            with live:
                torch.autograd.grad(tail.prediction, tail.output, seed, retain_graph=True)
        roots = num_outputs(tail.prediction) if reason is None else None
        work = _tail_work(risk, layer, batch, probe, (forward, live.peak), roots)
    full = Candidate("full", obstacle="never cheaper than the tail")
    q = risk.space.size
    passes = tail_candidate(work, limits, q, is_fixed=risk.batches.is_fixed)
    if reason is not None:
        return plan(*(Candidate(n, obstacle=reason) for n in _STORED), full, passes), work
    sizes = Sizes.of(layer, tail, risk.num_own_samples, q, limits.itemsize, storage)
    factors, streamed, dense = stored_candidates(sizes, work, limits, asked=asked)
    return plan(factors, streamed, dense, full, passes), work


def _tail_work(
    risk: EmpiricalRisk,
    layer: Layer,
    batch: Batch,
    probe: Tensor,
    passed: tuple[int, int],
    num_roots: int | None,
) -> Work:
    """Multiply a batch once, and count."""
    with Live() as live:
        graph = TailGraph(risk, layer, batch)
    held = live.peak = live.now
    with live, FlopCounterMode(display=False) as counter:
        graph.product(probe, batched=False)
    sizes = [b.size for b in risk.batches] if risk.batches.is_fixed else [batch.size]
    largest, N = max(sizes) / batch.size, risk.num_own_samples
    return Work(
        flops=float(counter.get_total_flops()) * N / batch.size,
        graph=largest * held,
        product=largest * (live.peak - held),
        forward=largest * passed[0],
        back=largest * passed[1],
        num_batches=len(sizes),
        batch_share=max(sizes) / N,
        num_roots=num_roots,
    )


def tail_candidate(work: Work, limits: Limits, num_params: int, *, is_fixed: bool) -> Candidate:
    """Count for products of the tail.

    Args:
        work: What it takes.
        limits: Where.
        num_params: q.
        is_fixed: Whether graphs of batches can be kept.

    Returns:
        The candidate.
    """
    q, held = num_params, work.graph / work.batch_share
    kept = min(work.num_batches, int(limits.budget // max(work.graph, 1.0))) if is_fixed else 0
    graphs = held if kept == work.num_batches else (kept + 1) * work.graph
    # In addition to the graphs: the row, and a float64 sum if there is more than one batch.
    each = work.product + q * (limits.itemsize + 8 * (work.num_batches > 1))
    # The first graph is tried on two vectors; the first's product waits in float64.
    tried = work.graph + work.product + q * (3 * limits.itemsize + 8)
    return Candidate(
        "tail",
        product_flops=work.flops,
        traffic=2 * held,
        nbytes=held,
        peak=max(graphs + each, tried),
        passes=2 * work.num_batches,
    )


@dataclass(frozen=True)
class Sizes:
    """The lengths that factors are made of, and bytes of their numbers.

    Attributes:
        N: Samples.
        P: Positions.
        C: Roots.
        n: Entries of an input that are multiplied: 1 for a one-hot vector.
        m: Entries of an output.
        q: Parameters.
        made: Bytes of one input as the model makes it.
        kept: Bytes of one input as it is stored.
        size: Bytes of a number of the parameters.
        storage: Bytes of a stored number.
        copies: How often rows of parameters are copied: joining a bias is a copy.
    """

    N: int
    P: int
    C: int
    n: int
    m: int
    q: int
    made: int
    kept: int
    size: int
    storage: int
    copies: int

    @classmethod
    def of(cls, layer: Layer, tail: Tail, N: int, q: int, size: int, storage: int) -> "Sizes":
        """Read them off one batch."""
        P, m = output_vectors(layer, tail.output).shape[1:]
        n, made, kept = 1, 8, 8
        if not is_lookup(layer):
            n = input_vectors(layer, tail).shape[-1]
            made, kept = n * size, n * storage
        copies = 1 + ("bias" in layer.fields)
        roots = num_outputs(tail.prediction)
        return cls(N, P, roots, n, m, q, made, kept, size, storage, copies)

    @property
    def held(self) -> float:
        """Bytes of all stored factors."""
        return float(self.N * self.P * (self.kept + self.C * self.m * self.storage))

    @property
    def wide(self) -> int:
        """Bytes of a number in products: float32 at least."""
        return max(self.size, 4)


def stored_candidates(
    sizes: Sizes, work: Work, limits: Limits, *, asked: str
) -> tuple[Candidate, Candidate, Candidate]:
    """Count for factors, for streamed factors and for the dense block.

    Args:
        sizes: Of what is stored.
        work: What the tail takes.
        limits: Where products are computed.
        asked: The representation that was asked for.

    Returns:
        The candidates.
    """
    N, P, C, q, held = sizes.N, sizes.P, sizes.C, sizes.q, sizes.held
    # One batch's inputs A and roots B, and all that is there while they are made.
    samples = N * work.batch_share
    batch_factors = samples * P * (sizes.made + C * sizes.m * sizes.size)
    batch = _batch_bytes(sizes, work, samples)
    product = _product_bytes(sizes, limits.of_chunks(CACHE_BYTES))
    passes = C * work.num_batches
    going_back = C * work.flops / 2  # a product goes back too, and has one more for the slope
    # With a single batch, storage is allocated after the batch's temporaries are freed.
    making = max(held * (work.num_batches > 1) + batch, held + batch_factors)
    factors = Candidate(
        "factors",
        build_flops=going_back,
        build_passes=passes,
        product_flops=4.0 * N * P * sizes.m * (sizes.n + C),
        traffic=2 * held,
        nbytes=held,
        peak=max(making, held + product),
    )
    streamed = replace(factors, representation="streamed", moved=held)
    if limits.device == "cpu":
        alike = None if asked == "streamed" else "the host's memory is the device's"
        streamed = replace(streamed, obstacle=alike)
    else:
        room, peak = host_budget(), max(batch, product + 2 * limits.gpu_bytes)
        short = f"{held / 2**20:.3g} MiB exceed half of the host's memory, {room / 2**20:.3g}"
        streamed = replace(streamed, nbytes=0.0, peak=peak, obstacle=short if held > room else None)
    forming = max(batch, batch_factors + _rows_bytes(sizes, limits, samples))
    dense = Candidate(
        "dense",
        build_flops=going_back + 2.0 * N * C * (P * sizes.m * sizes.n + q * q),
        build_passes=passes,
        product_flops=2.0 * q * q,
        traffic=float(q * q * sizes.size),
        nbytes=float(q * q * sizes.size),
        # It is summed in float64, and then rounded.
        peak=8.0 * q * q + max(forming, (sizes.size < 8) * sizes.size * q * q),
    )
    return factors, streamed, dense


def _batch_bytes(sizes: Sizes, work: Work, samples: float) -> float:
    """Predict the memory while one batch's factors are made."""
    C, size = sizes.C, sizes.size
    roots = samples * C * (sizes.P * sizes.m + C) * size
    inputs = samples * sizes.P * sizes.made
    # The curvature at the output is decomposed in float64; its roots go back one by one; then
    # inputs are unfolded.
    apart = work.forward + samples * C * C * (32 + 2 * size)
    return max(apart, work.back + roots, work.forward + roots + sizes.copies * inputs)


def _product_bytes(sizes: Sizes, limit: int) -> float:
    """Predict the temporaries of a product with one vector."""
    P, m, wide = sizes.P, sizes.m, sizes.wide
    # A chunk's U and what it is weighted to; chunks that are converted are copies too.
    each = P * m * wide
    if sizes.storage != wide:
        each += P * (sizes.n + sizes.C * m) * wide
    chunk = 2.0 * max(min(limit, sizes.N * each), each)
    return chunk + sizes.q * (8 + 8 * sizes.copies + sizes.copies * wide)


def _rows_bytes(sizes: Sizes, limits: Limits, samples: float) -> float:
    """Predict the temporaries while Jacobian rows are added to the block."""
    limit, wide, q = limits.of_chunks(ROWS_BYTES), sizes.wide, sizes.q
    row = sizes.C * q * wide
    count = max(1.0, min(samples, limit // row))
    roots = count * sizes.C * sizes.P * sizes.m * wide
    # A processor copies float32 to add it to float64; a GPU does not.
    number = wide + 8 * (wide < 8 and limits.device == "cpu")
    band = max(min(limit // 16, q * q), q) * number
    # Roots are transposed and multiplied, which gives the rows; then parts of the block are added.
    return max(roots + sizes.copies * count * row, count * row + band)
