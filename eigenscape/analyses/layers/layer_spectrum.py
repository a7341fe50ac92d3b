"""All eigenvalues of one layer's block, exactly.

Letters: H (q × q) the layer's block; R (N·C × q) the rows with H = RᵀR where what follows the layer
is piecewise linear, one for each sample and output; K = RRᵀ.
"""

import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses.layers._pictures import layer_picture
from eigenscape.curvature import LayerHessian
from eigenscape.device import eigh, full_precision
from eigenscape.errors import (
    NonFiniteError,
    SubstitutionWarning,
    TooLargeError,
    UnsupportedModelError,
    require_choice,
    require_count,
)
from eigenscape.linalg import certify
from eigenscape.records import Columns, EigenPairs, Picture, Record, Status
from eigenscape.risk import EmpiricalRisk

METHODS = ("auto", "dense", "gram")

# Multiplications and additions of a symmetric eigenproblem of size n, over n³, and the matrices of
# its size that are there meanwhile: without and with eigenvectors.
_FLOPS, _COPIES = (4 / 3, 9.0), (2, 4)


@dataclass(frozen=True, eq=False)
class LayerSpectrum(Record):
    """All eigenvalues of one layer's block.

    Attributes:
        layer: The layer's name.
        values: All eigenvalues (q,), descending, float64.
        rank: Eigenvalues whose size is above q·eps·max|λ|, eps of the parameters' dtype.
        trace: Their sum, tr H.
        frobenius: The root of the sum of their squares, ‖H‖_F.
        method: "dense" (H was formed) or "gram" (K was).
        reason: Why that one: what each costs.
        precision: The dtype in which the eigenproblem was solved.
        pairs: The largest pairs that were asked for, or None. Eigenvalues there are Rayleigh
            quotients.
        certified_by: The representation of `LayerHessian` whose products gave the residuals:
            another one than `values` come from, where there is another; "" without pairs.
        seconds: Wall time it took.
    """

    layer: str
    values: Tensor
    rank: int
    trace: float
    frobenius: float
    method: str
    reason: str
    precision: str
    pairs: EigenPairs | None
    certified_by: str
    seconds: float

    def columns(self) -> Columns:
        """Return one row for each eigenvalue."""
        return {"rank": range(1, len(self.values) + 1), "eigenvalue": self.values.tolist()}

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (layer_picture(self),)


@full_precision()
def layer_spectrum(
    risk: EmpiricalRisk,
    layer: str,
    *,
    num_vectors: int = 0,
    method: str = "auto",
    memory_budget: int | None = None,
) -> LayerSpectrum:
    """Find all eigenvalues of one layer's Hessian block, to rounding.

    "dense" forms the q × q block: from Jacobian rows where what follows the layer is piecewise
    linear, else by q products. "gram" forms the matrix of inner products of the N·C Jacobian
    rows, which has the same non-zero eigenvalues; it is for few samples, and needs a piecewise
    linear tail.

    Cost: about 4/3 n³ operations (9 n³ with vectors), n = q or N·C, and 16 n² bytes (32 n²), beside
    forming the matrix.

    Args:
        risk: Its model must be an `nn.Module`.
        layer: As for `LayerHessian`.
        num_vectors: Largest eigenpairs to return with vectors and residuals, up to q.
        method: "dense", "gram", or "auto" for the cheaper that fits.
        memory_budget: Bytes that it may take; as for `Hessian` by default. Where float64 does not
            fit, "dense" works in the parameters' dtype.

    Returns:
        All eigenvalues. Not converged only where a residual of the pairs is too large.

    Raises:
        TooLargeError: If nothing fits the memory budget.
        UnsupportedModelError: If "gram" was asked for and the tail is not piecewise linear.
        NonFiniteError: If the block has NaN or infinite entries.

    Examples:
        The block of a linear model under ½·mean ‖z − y‖² is I ⊗ mean(a aᵀ); with one sample it has
        one eigenvalue, ‖a‖², for each output.

        >>> from eigenscape.risk.losses import SquaredError
        >>> a = torch.tensor([[3.0, 4.0, 0.0]])
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False))
        >>> risk = EmpiricalRisk(model, SquaredError(), (a, torch.zeros(1, 2)))
        >>> found = layer_spectrum(risk, "0")
        >>> [round(value, 4) for value in found.values.tolist()], found.method, found.rank
        ([25.0, 25.0, 0.0, 0.0, 0.0, 0.0], 'gram', 2)
    """
    started = time.monotonic()
    require_choice(method, METHODS, "layer_spectrum(method=...)")
    H = _layer(risk, layer, memory_budget, "auto")
    q = H.space.size
    require_count(num_vectors, "layer_spectrum(num_vectors=...)", at_least=0, at_most=q)
    budget = min(risk.ranks.gather(H.memory_budget))  # one choice for all processes
    way, reason = _chosen(_ways(H, num_vectors > 0), method, layer, budget)
    if way.method == "gram":
        H = _layer(risk, layer, memory_budget, "factors")
        values, vectors = _by_gram(H, num_vectors)
        products = 0
    else:
        if H.plan.candidate("dense").obstacle is None:
            H = _layer(risk, layer, memory_budget, "dense")
        values, vectors = _by_block(H, num_vectors, way.dtype)
        products = 0 if H.representation == "dense" else q
    top = float(values.abs().max())
    rank = int((values.abs() > q * torch.finfo(H.dtype).eps * top).sum())
    pairs, used = None, ""
    if vectors is not None:
        certifier = _certifier(risk, layer, memory_budget, H)
        pairs, used = certify(certifier, vectors, rotate=False, norm=top), certifier.representation
        products += pairs.num_products
    text = f"All {q} eigenvalues, from the {way.method} matrix in {_name(way.dtype)}."
    if pairs is not None:
        text += f" {pairs.status}"
    return LayerSpectrum(
        status=Status(pairs is None or bool(pairs.status), text),
        num_products=products,
        seed=0,
        layer=layer,
        values=values.cpu(),
        rank=rank,
        trace=float(values.sum()),
        frobenius=float(values.norm()),
        method=way.method,
        reason=reason,
        precision=_name(way.dtype),
        pairs=pairs,
        certified_by=used,
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True)
class _Way:
    """What one method would cost, and in which dtype it would work."""

    method: str
    flops: float = 0.0
    nbytes: float = 0.0
    dtype: torch.dtype = torch.float64
    obstacle: str | None = None

    def __str__(self) -> str:
        if self.obstacle is not None:
            return f"{self.method}: no, {self.obstacle}"
        size = f"{self.flops / 1e9:.3g} Gflop, {self.nbytes:.3g} bytes"
        return f"{self.method} in {_name(self.dtype)}: {size}"


def _ways(H: LayerHessian, with_vectors: bool) -> tuple[_Way, ...]:
    """Count what each method costs, forming its matrix included."""
    q, rows, size = H.space.size, H.num_rows, H.dtype.itemsize
    flops, copies = _FLOPS[with_vectors], _COPIES[with_vectors]
    narrow = H.dtype if size >= 4 else torch.float32  # there is no solver for less
    formed = H.plan.candidate("dense")
    build, forming = formed.build_flops, formed.nbytes
    if formed.obstacle is not None:  # then by products
        build, forming = q * H.plan.candidate(H.representation).product_flops, 0.0

    def dense(dtype: torch.dtype) -> _Way:
        needs = float(q * q * (size + dtype.itemsize * copies))
        return _Way("dense", build + flops * q**3, max(needs, forming), dtype)

    ways = [dense(torch.float64)] + [dense(narrow)] * (narrow != torch.float64)
    factors = H.plan.candidate("factors")
    if rows is None:
        spread = "the samples are spread over several processes"
        return (*ways, _Way("gram", obstacle=factors.obstacle or spread))
    # The same rows are formed, then inner products of rows instead of columns.
    build = formed.build_flops + 2.0 * rows * q * (rows - q)
    nbytes = factors.nbytes + 8.0 * rows**2 * max(3, copies)
    return (_Way("gram", build + flops * rows**3, nbytes), *ways)


def _chosen(ways: tuple[_Way, ...], method: str, layer: str, budget: int) -> tuple[_Way, str]:
    """Return the cheapest way that can be had and fits, and the costs in words."""
    asked = [way for way in ways if method in ("auto", way.method)]
    open_ = [way for way in asked if way.obstacle is None]
    if not open_:
        raise UnsupportedModelError(
            f"`layer_spectrum(risk, {layer!r}, method={method!r})` cannot be had: "
            f"{asked[0].obstacle}. Use `method='dense'`."
        )
    fitting = [way for way in open_ if way.nbytes <= budget]
    if not fitting:
        needs = " or ".join(
            f"{way.nbytes:.3g} bytes ({way.method}, {_name(way.dtype)})" for way in open_
        )
        raise TooLargeError(
            f"`layer_spectrum(risk, {layer!r})` needs {needs}; the memory budget is {budget:.3g}. "
            f"Pass a larger `memory_budget=`, use fewer samples, or take a part of the spectrum: "
            f"`eigsh(LayerHessian(risk, {layer!r}), num_pairs=20)`, `spectral_density`."
        )
    # Of two that cost the same the first is the more precise.
    best = min(fitting, key=lambda way: way.flops)
    why = "the cheapest that fits" if method == "auto" else "asked for"
    return best, f"{best.method} is {why}. {'; '.join(str(way) for way in ways)}."


def _layer(risk: EmpiricalRisk, name: str, budget: int | None, representation: str) -> LayerHessian:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubstitutionWarning)  # slower, and exact all the same
        return LayerHessian(risk, name, representation=representation, memory_budget=budget)


def _certifier(
    risk: EmpiricalRisk, name: str, budget: int | None, used: LayerHessian
) -> LayerHessian:
    """Return the block in another representation than the values come from, if there is one."""
    if used.representation == "full":
        return used
    other = "full" if used.representation == "tail" else "tail"
    return _layer(risk, name, budget, other)


def _by_block(
    H: LayerHessian, num_vectors: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    block = H.to_dense(max_bytes=H.memory_budget).to(dtype)
    return _solved((block + block.T) / 2, num_vectors)


def _by_gram(H: LayerHessian, num_vectors: int) -> tuple[Tensor, Tensor | None]:
    """Find the eigenvalues of RRᵀ, add zeros, and turn its vectors u into Rᵀu/√λ."""
    q, K = H.space.size, H.row_gram()
    row_values, U = _solved(K, min(num_vectors, len(K)))
    count = min(q, len(row_values))
    values = row_values.new_zeros(q)
    values[:count] = row_values[:count].clamp_min(0.0)  # K is a sum of squares
    if num_vectors == 0:
        return values, None
    V = row_values.new_zeros(q, 0)
    known = int((values[:num_vectors] > q * torch.finfo(K.dtype).eps * values[0]).sum())
    if U is not None and known > 0:
        V = H.combined_rows(U[:, :known]) / values[:known].sqrt()
    if known < num_vectors:  # any direction outside the rows has eigenvalue zero
        generator = torch.Generator().manual_seed(0)
        random = torch.randn(q, num_vectors - known, generator=generator, dtype=torch.float64)
        V = torch.linalg.qr(torch.cat([V, random.to(V.device)], dim=1)).Q
    return values, V


def _solved(matrix: Tensor, num_vectors: int) -> tuple[Tensor, Tensor | None]:
    """Return all eigenvalues, descending, in float64, and the first vectors."""
    if not bool(torch.isfinite(matrix).all()):
        raise NonFiniteError(
            "`layer_spectrum`: the block has NaN or infinite entries. Check the parameters and the "
            "data; second derivatives can overflow where the loss does not."
        )
    if num_vectors == 0:
        return torch.linalg.eigvalsh(matrix).flip(0).double(), None
    values, vectors = eigh(matrix)
    return values.flip(0).double(), vectors[:, -num_vectors:].flip(1)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
