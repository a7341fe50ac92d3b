"""A layer's block from stored inputs and Jacobian roots, without any pass through the network.

For a piecewise linear tail, H = (1/D) Σ_n Σ_j vec(R_nj) vec(R_nj)ᵀ with R_nj = Σ_t b_njt x̃_ntᵀ, the
gradient of the layer's matrix W̃ (m × ñ) when r_j goes backward from the output.

Letters: N samples, P positions, C roots; x̃ (N, P, ñ) the layer's inputs, with a 1 for the bias;
b (N, C, P, m) the roots brought back to the layer's output; V (k, m, ñ) the vectors. An embedding's
x̃ are one-hot: their indices (N, P) are kept instead, and products gather and add rows.

Factors may be kept rounded (bfloat16), or in the host's memory. They come to the device, and to the
dtype of the products, a chunk of samples at a time: what is multiplied is then a matrix H̃ that is
exactly symmetric and close to H. Vectors and sums are never rounded.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from eigenscape.curvature.layers.piecewise import curved_operation
from eigenscape.curvature.roots import exact_roots, have_exact_roots
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import (
    Batch,
    CallableLoss,
    EmpiricalRisk,
    Layer,
    Tail,
    capture_tail,
    from_matrices,
    input_numbers,
    input_vectors,
    is_lookup,
    matrix_obstacle,
    output_vectors,
    to_matrices,
)

# Intermediate results of a product stay in a processor's cache, and on a GPU within a small part of
# its memory. Smaller chunks are slower for many columns: each adds a whole result in float64.
CACHE_BYTES, GPU_BYTES = 16 * 2**20, 2**29
# Rows of a Gram matrix come in blocks large enough for the product to run at full speed.
ROWS_BYTES = 2**26

_Chunk = TypeVar("_Chunk")
_Pair = tuple[Tensor, Tensor]


class Factors:
    """Inputs and roots of some samples, and what can be made of them."""

    def __init__(
        self,
        layer: Layer,
        inputs: Tensor,
        roots: Tensor,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        gpu_bytes: int = GPU_BYTES,
    ) -> None:
        """Take what is stored as it is.

        Args:
            layer: The layer.
            inputs: x̃ (N, P, ñ), or indices (N, P) for a lookup.
            roots: b (N, C, P, m).
            device: Where products are computed; where the roots are by default.
            dtype: In which dtype; the roots' by default, and never less than float32.
            gpu_bytes: Memory for intermediate results on a GPU.
        """
        self._layer, self.inputs, self.roots = layer, inputs, roots
        self._device = device or roots.device
        self._dtype = dtype or torch.promote_types(roots.dtype, torch.float32)
        self._gpu_bytes = gpu_bytes

    @property
    def nbytes(self) -> int:
        """Memory of what is stored."""
        return sum(t.numel() * t.element_size() for t in (self.inputs, self.roots))

    @property
    def num_inputs(self) -> int:
        """ñ, the length of an input vector."""
        if self._is_lookup:
            return int(self._layer.module.get_parameter("weight").shape[0])
        return self.inputs.shape[-1]

    @property
    def _is_lookup(self) -> bool:
        return self.inputs.ndim == 2

    def product(self, rows: Tensor) -> Tensor:
        """Multiply rows (k, q), without 1/D: U = x̃Vᵀ, s = ⟨b, U⟩, then Σ (b s)ᵀ x̃.

        Args:
            rows: The vectors.

        Returns:
            The products (k, q), float64: sums over chunks of samples are long.
        """
        m, k = self.roots.shape[-1], rows.shape[0]
        V = to_matrices(self._layer, rows.to(self._dtype), m).reshape(k * m, -1)
        table = V.T.contiguous() if self._is_lookup else V.T
        total = self._zeros(k * m)
        for x, b in self._chunks(self.roots.shape[2] * k * m, CACHE_BYTES):
            N, C, P, _ = b.shape
            U = (table[x] if self._is_lookup else x.flatten(0, 1) @ table).view(N, P, k, m)
            s = torch.bmm(b.reshape(N, C, P * m), U.transpose(2, 3).reshape(N, P * m, k))
            _add_weighted(total, x, b, s)
        return from_matrices(self._layer, total.view(k, m, -1))

    def combinations(self, weights: Tensor) -> Tensor:
        """Add the rows vec(R_nj), each with its weight, without forming them.

        Args:
            weights: Weights (N·C, k), float64, in the order of `gram`.

        Returns:
            The sums (k, q), float64.
        """
        (N, C, P, m), k = self.roots.shape, weights.shape[1]
        total = self._zeros(k * m)
        weight_chunks = iter(weights.reshape(N, C, k).split(self._size(P * k * m, CACHE_BYTES)))
        for x, b in self._chunks(P * k * m, CACHE_BYTES):
            wide = x if self._is_lookup else x.double()
            _add_weighted(total, wide, b.double(), next(weight_chunks))
        return from_matrices(self._layer, total.view(k, m, -1))

    def gram(self) -> Tensor:
        """Return ⟨R_nj, R_n'j'⟩ (N·C, N·C), without 1/D, all in float64.

        Two ways, by what they cost: Σ_pp' (b_p·b'_p')(x̃_p·x̃'_p'), in which no row is formed (one
        position), or the rows themselves (many positions).
        """
        N, C, P, m = self.roots.shape
        n = self.num_inputs
        compared = 1 if self._is_lookup else n
        if P * P * (compared + C * C * m) <= C * (C + P / N) * m * n:
            # Pairs of chunks hold (C·P)² numbers for each pair of samples.
            side = int((self._limit(ROWS_BYTES) / 16) ** 0.5) // (C * P)
            return self._by_pairs(lambda x, b: (x, b), _contracted, max(1, side))
        # Rows may take as much memory as the matrix: small chunks would be formed too often.
        most = max(self._limit(ROWS_BYTES), 8 * (N * C) ** 2)
        return self._by_pairs(
            lambda x, b: _matrices(x, b, n).flatten(2).flatten(0, 1),
            lambda R, S: R @ S.T,
            max(1, most // (8 * C * m * n)),
        )

    def _by_pairs(
        self,
        prepare: Callable[[Tensor, Tensor], _Chunk],
        multiply: Callable[[_Chunk, _Chunk], Tensor],
        size: int,
    ) -> Tensor:
        """Fill a symmetric matrix from pairs of chunks of `size` samples."""
        N, C = self.roots.shape[:2]
        K = torch.empty(N * C, N * C, dtype=torch.float64, device=self._device)

        def chunk(start: int) -> _Chunk:
            picked = slice(start, start + size)
            x = self.inputs[picked].to(self._device)
            b = self.roots[picked].to(self._device, torch.float64)
            return prepare(x if self._is_lookup else x.double(), b)

        for i in range(0, N, size):
            first = chunk(i)
            for j in range(i, N, size):
                block = multiply(first, first if i == j else chunk(j))
                rows = slice(i * C, i * C + block.shape[0])
                columns = slice(j * C, j * C + block.shape[1])
                K[rows, columns], K[columns, rows] = block, block.T
        return K

    def jacobian_rows(self) -> Iterator[Tensor]:
        """Yield vec(R_nj) (rows, q), a chunk of samples at a time."""
        C, m, n = self.roots.shape[1], self.roots.shape[-1], self.num_inputs
        for x, b in self._chunks(C * m * n, ROWS_BYTES):
            yield from_matrices(self._layer, _matrices(x, b, n).flatten(0, 1))

    def add_to(self, block: Tensor) -> None:
        """Add RᵀR to a float64 matrix (q, q), a few of its rows at a time.

        Numbers of another dtype are copied to be added, on a CPU, and the block is the largest
        thing there is.
        """
        for rows in self.jacobian_rows():
            for some in _bands(block, self._limit(ROWS_BYTES)):
                block[some] += rows[:, some].T @ rows
            del rows  # before the next ones take their memory

    def _zeros(self, width: int) -> Tensor:
        """Return zeros (width, ñ) for sums; for a lookup, each column is contiguous in memory."""
        shape = (width, self.num_inputs)[:: -1 if self._is_lookup else 1]
        zeros = torch.zeros(shape, dtype=torch.float64, device=self._device)
        return zeros.T if self._is_lookup else zeros

    def _chunks(self, width: int, cpu_bytes: int) -> Iterator[_Pair]:
        """Yield chunks of samples as products take them; each makes `width` temporary numbers."""
        size = self._size(width, cpu_bytes)
        chunks = list(zip(self.inputs.split(size), self.roots.split(size), strict=True))
        coming = iter(chunks) if self._is_here else _conveyed(chunks, self._device)
        for x, b in coming:
            yield x if self._is_lookup else x.to(self._dtype), b.to(self._dtype)

    @property
    def _is_here(self) -> bool:
        return self.roots.device == self._device

    def _size(self, width: int, cpu_bytes: int) -> int:
        if not self._is_here or self.roots.dtype != self._dtype:
            width += (self.inputs[0].numel() + self.roots[0].numel()) * (
                1 + 2 * (not self._is_here)
            )
        return max(1, self._limit(cpu_bytes) // (width * self._dtype.itemsize))

    def _limit(self, cpu_bytes: int) -> int:
        return self._gpu_bytes if self._device.type == "cuda" else cpu_bytes


def symmetrise(block: Tensor, limit: int) -> None:
    """Replace a matrix by its symmetric part, with at most `limit` bytes of temporaries."""
    for some in _bands(block, limit):
        row, column = block[some, some.start :], block[some.start :, some]
        mean = (row + column.T).div_(2)
        row.copy_(mean)
        column.copy_(mean.T)


def _bands(block: Tensor, limit: int) -> Iterator[slice]:
    """Cut the rows of a matrix into bands, so that two copies of a band stay small."""
    size = max(1, limit // (16 * len(block)))
    return (slice(start, start + size) for start in range(0, len(block), size))


def _conveyed(chunks: list[_Pair], device: torch.device) -> Iterator[_Pair]:
    """Yield chunks copied to a GPU, each copied while the one before it is multiplied."""
    # Two buffers are used in turn: copies wait until the work on a buffer is done, and work waits
    # until a copy has arrived. Without them a host that runs ahead would allocate all chunks.
    user, courier = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    buffers = [tuple(torch.empty_like(t, device=device) for t in chunks[0]) for _ in range(2)]
    come, done = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    courier.wait_stream(user)  # other work on that stream may still use this memory

    def send(number: int) -> _Pair:
        x, b = (
            buffer[: len(t)] for buffer, t in zip(buffers[number % 2], chunks[number], strict=True)
        )
        with torch.cuda.stream(courier):
            if number >= 2:
                courier.wait_event(done[number % 2])
            x.copy_(chunks[number][0], non_blocking=True)
            b.copy_(chunks[number][1], non_blocking=True)
            come[number % 2].record(courier)
        return x, b

    coming = send(0)
    try:
        for number in range(len(chunks)):
            here = coming
            if number + 1 < len(chunks):
                coming = send(number + 1)
            user.wait_event(come[number % 2])
            yield here
            done[number % 2].record(user)
    finally:
        user.wait_stream(courier)  # the buffers are freed on the user's stream


def _add_weighted(total: Tensor, x: Tensor, b: Tensor, s: Tensor) -> None:
    """Add Σ_nj s_njk R_nj to a total (k·m, ñ)."""
    (N, C, P, m), k = b.shape, s.shape[-1]
    W = torch.bmm(b.reshape(N, C, P * m).transpose(1, 2), s).view(N, P, m, k).transpose(2, 3)
    W = W.reshape(N * P, k * m)
    if x.ndim == 2:
        total.T.index_add_(0, x.flatten(), W.to(total.dtype))
    else:
        total += W.T @ x.flatten(0, 1)


def _matrices(x: Tensor, b: Tensor, num_inputs: int) -> Tensor:
    """Return R_nj (N, C, m, ñ)."""
    if x.ndim == 3:
        return torch.einsum("ncpm,npi->ncmi", b, x)
    N, C, P, m = b.shape
    R = b.new_zeros(N * num_inputs, C, m)
    number = x + num_inputs * torch.arange(N, device=x.device)[:, None]
    R.index_add_(0, number.flatten(), b.transpose(1, 2).reshape(N * P, C, m))
    return R.view(N, num_inputs, C, m).permute(0, 2, 3, 1)


def _contracted(first: _Pair, second: _Pair) -> Tensor:
    """Return ⟨R_nj, R_n'j'⟩ = Σ_pp' (b_p·b'_p')(x̃_p·x̃'_p') for two chunks."""
    (x, b), (y, d) = first, second
    (N, C, P, m), M = b.shape, len(y)
    if x.ndim == 2:  # one-hot vectors are equal or orthogonal
        X = (x.view(-1, 1) == y.view(1, -1)).to(b.dtype)
    else:
        X = x.flatten(0, 1) @ y.flatten(0, 1).T
    B = (b.reshape(N * C * P, m) @ d.reshape(M * C * P, m).T).view(N, C, P, M, C, P)
    return (B * X.view(N, 1, P, M, 1, P)).sum(dim=(2, 5)).view(N * C, M * C)


def factors_obstacle(risk: EmpiricalRisk, layer: Layer, tail: Tail) -> str | None:
    """Say why the block is not a sum of squares of gradients at this layer, or None.

    Args:
        risk: The risk.
        layer: The layer.
        tail: What follows it, for some batch.

    Returns:
        The reason, or None.
    """
    if (
        not is_lookup(layer)
        and (obstacle := matrix_obstacle(layer, outputs_first=False)) is not None
    ):
        return obstacle
    if not have_exact_roots(tail.prediction):
        return "the model's output is not (samples, up to 256 numbers)"
    if (num_rows := len(tail.output)) != (num_samples := len(tail.prediction)):
        return f"the layer's output has {num_rows} rows for {num_samples} samples"
    if isinstance(risk.loss, CallableLoss):
        return "a loss of your own may not be convex in the model's output"
    if (name := curved_operation(tail.prediction, tail.output)) is not None:
        return f"what follows is not known to be piecewise linear ({name})"
    if not risk.batches.is_fixed:
        return "the data are read anew at every pass"
    return None


def batch_factors(
    risk: EmpiricalRisk, layer: Layer, batch: Batch, *, gpu_bytes: int = GPU_BYTES
) -> Factors:
    """Go back from the output once for each root. Cost: C backward passes of the tail.

    Args:
        risk: The risk.
        layer: The layer; what follows it must be piecewise linear.
        batch: The samples.
        gpu_bytes: As for `Factors`.

    Returns:
        Their inputs and roots; no graph is kept.

    Raises:
        UnsupportedModelError: If the block is not made of such factors.
    """
    with torch.enable_grad(), risk.evaluating():
        tail = capture_tail(risk, layer, batch)
        # The plan looked at the first batch; a model may branch differently on this one.
        if (reason := factors_obstacle(risk, layer, tail)) is not None:
            raise UnsupportedModelError(
                f"Layer '{layer.name}' cannot be stored as factors: {reason}. Use "
                "`LayerHessian(risk, layer, representation='tail')`."
            )
        shape = output_vectors(layer, tail.output).shape
        output_roots = exact_roots(risk, tail.prediction.detach(), batch)
        roots = tail.output.new_empty(shape[0], len(output_roots), *shape[1:])
        for number, root in enumerate(output_roots):
            (slope,) = torch.autograd.grad(tail.prediction, tail.output, root, retain_graph=True)
            roots[:, number] = output_vectors(layer, slope)
    if not is_lookup(layer):
        return Factors(layer, input_vectors(layer, tail), roots, gpu_bytes=gpu_bytes)
    numbers = input_numbers(tail)
    padding = layer.module.padding_idx
    if isinstance(padding, int):  # PyTorch gives this row no gradient
        roots.masked_fill_(numbers.eq(padding)[:, None, :, None], 0.0)
    return Factors(layer, numbers, roots, gpu_bytes=gpu_bytes)


def all_factors(
    risk: EmpiricalRisk,
    layer: Layer,
    *,
    storage: torch.dtype | None = None,
    on_host: bool = False,
    gpu_bytes: int = GPU_BYTES,
) -> Factors:
    """Store the factors of this rank's data in one place: a product is a few contractions.

    Args:
        risk: The risk.
        layer: The layer.
        storage: The dtype in which they are kept; the parameters' by default.
        on_host: Keep them in host memory, page-locked if products are computed on a GPU.
        gpu_bytes: As for `Factors`.

    Returns:
        The factors; at no time are there more than those and one batch's.
    """
    device = torch.device("cpu") if on_host else risk.device
    pinned = on_host and risk.device.type == "cuda"
    inputs = roots = torch.empty(0)

    def put(chunk: Tensor, buffer: Tensor, first: int) -> Tensor:
        """Write a chunk into the buffer, enlarged if the chunk has more positions or roots."""
        sizes = list(chunk.shape[1:])
        if first == 0 or any(map(int.__gt__, sizes, buffer.shape[1:])):
            # Chunks with fewer positions or roots are padded with zeros, which add nothing.
            shape = sizes if first == 0 else list(map(max, sizes, buffer.shape[1:]))
            dtype = storage if chunk.is_floating_point() else None
            larger = torch.zeros(
                (risk.num_own_samples, *shape),
                dtype=dtype or chunk.dtype,
                device=device,
                pin_memory=pinned,
            )
            if first > 0:
                larger[:, *map(slice, buffer.shape[1:])] = buffer
            buffer = larger
        buffer[first : first + len(chunk), *map(slice, sizes)] = chunk
        return buffer

    first = 0
    for batch in risk.batches:
        factors = batch_factors(risk, layer, batch)
        inputs, roots = put(factors.inputs, inputs, first), put(factors.roots, roots, first)
        first += len(factors.inputs)
        del factors  # before the next batch takes its memory
    dtype = torch.promote_types(risk.dtype, torch.float32)
    return Factors(layer, inputs, roots, device=risk.device, dtype=dtype, gpu_bytes=gpu_bytes)
