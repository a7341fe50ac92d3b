"""Each layer's own block of the Hessian: size, top eigenpairs, and how Kronecker-like it is.

Letters: H_l the layer's block, m outputs, n inputs (with a 1 for the bias), P positions (1 for a
fully connected layer), x the layer's input, M the Hessian of the loss at its output.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eigenscape.analyses.layers._pictures import factors_picture, kronecker_picture, layers_picture
from eigenscape.analyses.layers.eigenspace_overlap import eigenspace_overlap
from eigenscape.analyses.layers.eigenvector_rank import rank_one_share
from eigenscape.analyses.whole._stages import can_do_without, reason_of
from eigenscape.curvature import KroneckerHessian, LayerHessian
from eigenscape.device import eigh
from eigenscape.errors import (
    EigenscapeError,
    EmptySelectionError,
    InvalidArgumentError,
    SubstitutionWarning,
    require_count,
)
from eigenscape.linalg import certify, draw_probes, eigsh
from eigenscape.operator import LinearOperator
from eigenscape.records import (
    Columns,
    EigenPairs,
    Picture,
    ProgressCallback,
    Record,
    SelfTest,
    Status,
    Ticker,
    storable,
)
from eigenscape.risk import EmpiricalRisk

# Kronecker factors that are larger are not formed: E[M] of a vocabulary of 50 000 takes 20 GB.
_MOST_FACTOR = 5000
# Fields of a layer that is one matrix applied to vectors.
_KRONECKER = (
    "rank_one",
    "input_values",
    "output_values",
    "kronecker_error",
    "kronecker_error_stderr",
    "kronecker_overlap",
)


@storable
@dataclass(frozen=True, eq=False)
class LayerBlock:
    """What one layer's block looks like.

    Attributes:
        name: The layer's name.
        kind: Its class, e.g. "Linear".
        num_parameters: Its parameters.
        num_positions: P, or None where the layer has no Kronecker form here, or one whose factors
            have more than 5000 rows.
        trace: Trace of H_l.
        trace_stderr: Its standard error.
        frobenius: Frobenius norm of H_l.
        frobenius_stderr: Its standard error.
        values: The largest eigenvalues (k,), descending.
        residuals: Their residuals (k,).
        converged: Whether all of them reached their tolerance.
        stable_rank: ‖H_l‖_F²/λ₁²: about how many eigenvalues as large as the first it takes.
        rank_one: ‖Mat(h_i)‖₂/‖Mat(h_i)‖_F (k,) of the top eigenvectors as m × n matrices (Wu
            Def. 4.2): 1 means h_i = u ⊗ v. None without a Kronecker form.
        input_values: Eigenvalues of E[xxᵀ] (n,), descending; None without a Kronecker form.
        output_values: Eigenvalues of E[M] (m,), descending; None without a Kronecker form.
        kronecker_error: ‖H_l − E[M] ⊗ E[xxᵀ]‖_F/‖H_l‖_F, 0 for a perfect fit; None without.
        kronecker_error_stderr: Its standard error.
        kronecker_overlap: Overlap (k,) of the top j eigenspaces of H_l and of the Kronecker product
            (Wu Def. 4.1), from 0 to 1; None without.
    """

    name: str
    kind: str
    num_parameters: int
    num_positions: int | None
    trace: float
    trace_stderr: float
    frobenius: float
    frobenius_stderr: float
    values: Tensor
    residuals: Tensor
    converged: bool
    stable_rank: float
    rank_one: Tensor | None
    input_values: Tensor | None
    output_values: Tensor | None
    kronecker_error: float | None
    kronecker_error_stderr: float | None
    kronecker_overlap: Tensor | None


@dataclass(frozen=True, eq=False)
class LayerCurvature(Record):
    """The blocks of all layers.

    Attributes:
        layers: One entry for each layer, in the model's order.
        seconds: Wall time it took.
        failures: Layers whose block could not be computed, name to reason.
    """

    layers: tuple[LayerBlock, ...]
    seconds: float
    failures: dict[str, str] = field(default_factory=dict)

    def columns(self) -> Columns:
        """Return one row for each layer."""
        rows = self.layers
        return {
            "layer": [r.name for r in rows],
            "kind": [r.kind for r in rows],
            "parameters": [r.num_parameters for r in rows],
            "trace": [r.trace for r in rows],
            "s.e. of trace": [r.trace_stderr for r in rows],
            "top eigenvalue": [float(r.values[0]) for r in rows],
            "residual": [float(r.residuals[0]) for r in rows],
            "stable rank": [r.stable_rank for r in rows],
            "rank-one": [None if r.rank_one is None else float(r.rank_one[0]) for r in rows],
            "Kronecker error": [r.kronecker_error for r in rows],
            "Kronecker overlap": [
                None if r.kronecker_overlap is None else float(r.kronecker_overlap[-1])
                for r in rows
            ],
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return sizes, how Kronecker-like layers are, and their factors, as far as known."""
        pictures = (layers_picture(self), kronecker_picture(self), factors_picture(self))
        return tuple(picture for picture in pictures if picture is not None)


def layer_names(risk: EmpiricalRisk) -> tuple[str, ...]:
    """Return the layers that own differentiated parameters, in the model's order.

    Args:
        risk: Its model must be an `nn.Module`; a pure function has no layers.

    Returns:
        Names for `LayerHessian(risk, name)`.
    """
    if risk.module is None:
        return ()
    owners = dict.fromkeys(name.rpartition(".")[0] for name in risk.space.names)
    loose = {name for name in risk.space.names if "." not in name}
    return (*(owner for owner in owners if owner), *sorted(loose))


def layer_curvature(
    risk: EmpiricalRisk,
    layers: Sequence[str] | None = None,
    *,
    num_pairs: int = 8,
    num_probes: int = 8,
    tolerance: float = 1e-3,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> LayerCurvature:
    """Look at the Hessian block of each layer on its own.

    Cost per layer: about 4 products with its block per eigenpair, and `num_probes` more that serve
    trace, norm and Kronecker error together. Blocks with fewer parameters than that are formed
    whole, and everything about them is exact.

    Args:
        risk: Its model must be an `nn.Module`.
        layers: Names of layers; all by default.
        num_pairs: Largest eigenpairs of each block.
        num_probes: Random probes, 2 or more.
        tolerance: Bound on residuals, as a fraction of the eigenvalue.
        seed: Fixes starting vectors and probes.
        progress: Called after each layer.

    Returns:
        One entry for each layer. Where one cannot be computed, the others are still there, and
        `failures` and the status say which one and why.

    Raises:
        EmptySelectionError: If there is no layer.
        InvalidArgumentError: If a layer that was named is not there.
        EigenscapeError: That of the last layer, if none can be computed.
    """
    started = time.monotonic()
    names = layer_names(risk) if layers is None else tuple(layers)
    if not names:
        raise EmptySelectionError(
            "`layer_curvature(risk)` found no layer: the model is a pure function, or no layers "
            "were named. Use an `nn.Module`."
        )
    require_count(num_pairs, "layer_curvature(num_pairs=...)")
    require_count(num_probes, "layer_curvature(num_probes=...)", at_least=2)
    ticker = Ticker(progress, "layers", len(names))
    blocks: list[LayerBlock] = []
    failures: dict[str, str] = {}
    verdict, cost = None, 0
    for done, name in enumerate(names, 1):
        try:
            block, products, self_test = _layer(risk, name, num_pairs, num_probes, tolerance, seed)
        except Exception as error:
            is_wish = layers is not None and isinstance(error, InvalidArgumentError)
            is_last = done == len(names) and not blocks
            if is_wish or is_last or not can_do_without(error):
                raise
            failures[name] = reason_of(error)
        else:
            blocks.append(block)
            cost += products
            verdict = SelfTest.weaker(verdict, self_test)
        ticker.tick(done)
    return LayerCurvature(
        status=_status(blocks, failures),
        num_products=cost,
        seed=seed,
        layers=tuple(blocks),
        seconds=time.monotonic() - started,
        failures=failures,
        self_test=verdict,
    )


def _status(blocks: Sequence[LayerBlock], failures: Mapping[str, str]) -> Status:
    slow = [block.name for block in blocks if not block.converged]
    sentences = [f"Eigenvalues of {', '.join(slow)} did not converge."] if slow else []
    sentences += [f"{name} could not be had: {reason}" for name, reason in failures.items()]
    return Status(not sentences, " ".join(sentences) or "All certified.")


def _layer(
    risk: EmpiricalRisk, name: str, num_pairs: int, num_probes: int, tolerance: float, seed: int
) -> tuple[LayerBlock, int, SelfTest | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubstitutionWarning)  # slower, and exact all the same
        H = LayerHessian(risk, name, num_products=4 * num_pairs + num_probes)
    n, k = H.space.size, min(num_pairs, H.space.size)
    K: KroneckerHessian | None = None
    if _factor_size(risk, name) <= _MOST_FACTOR:
        with contextlib.suppress(EigenscapeError):  # the block does not need it
            K = KroneckerHessian(risk, name, seed=seed)
    if n <= 4 * k + num_probes:
        pairs, outside, products = _whole(H, k, tolerance)
    else:
        pairs = eigsh(H, num_pairs=k, tolerance=tolerance, seed=seed)
        outside = _outside(pairs, draw_probes(H, num_probes, seed=seed + 1))
        products = pairs.num_products + num_probes
    # E[w wᵀ] is the projection on what the pairs leave, so each sum below is one over the pairs,
    # exactly, plus the mean over w: unbiased, and the large eigenvalues add no noise.
    w, is_exact = outside
    Hw = (H @ w).double()
    values = pairs.values.to(H.device)
    trace = _total(values.sum(), (w.double() * Hw).sum(0), is_exact)
    square = _total(values.square().sum(), Hw.square().sum(0), is_exact)
    kronecker = _kronecker(K, pairs, w, Hw, is_exact, square[0])
    frobenius = square[0] ** 0.5
    first = float(pairs.values[0])
    module = dict(risk.module.named_modules()).get(name) if risk.module is not None else None
    return (
        LayerBlock(
            name=name,
            kind=type(module).__name__ if module is not None else "parameter",
            num_parameters=n,
            num_positions=None if K is None else K.num_positions,
            trace=trace[0],
            trace_stderr=trace[1],
            frobenius=frobenius,
            frobenius_stderr=square[1] / (2 * frobenius) if frobenius > 0 else 0.0,
            values=pairs.values,
            residuals=pairs.residuals,
            converged=bool(pairs.status),
            stable_rank=square[0] / first**2 if first != 0 else 0.0,
            **kronecker,
        ),
        products,
        H.self_test,
    )


def _factor_size(risk: EmpiricalRisk, name: str) -> int:
    """Return the size of the larger Kronecker factor that the layer's weight would have."""
    shape = risk.space.shapes.get(f"{name}.weight", torch.Size((1,)))
    return max(shape[0], math.prod(shape[1:]))


def _whole(
    H: LinearOperator, k: int, tolerance: float
) -> tuple[EigenPairs, tuple[Tensor, bool], int]:
    """Take a small block apart completely: every direction is a pair or an exact probe."""
    n = H.space.size
    vectors = eigh(H.to_dense().double())[1].flip(1).to(H.dtype)
    pairs = certify(H, vectors[:, :k], tolerance=tolerance)
    return pairs, (vectors[:, k:], True), 2 * n


def _outside(pairs: EigenPairs, probes: Tensor) -> tuple[Tensor, bool]:
    """Project probes on the complement of the pairs."""
    V = pairs.vectors.to(probes)
    for _ in range(2):  # the second pass removes the rounding of the first
        probes = probes - V @ (V.T @ probes)
    return probes, False


def _total(known: Tensor, samples: Tensor, is_exact: bool) -> tuple[float, float]:
    """Add what the pairs hold to the sum (exact) or the mean (estimated) over the probes."""
    if is_exact:
        return float(known + samples.sum()), 0.0
    stderr = samples.std() / samples.numel() ** 0.5
    return float(known + samples.mean()), float(stderr)


def _kronecker(
    K: KroneckerHessian | None,
    pairs: EigenPairs,
    w: Tensor,
    Hw: Tensor,
    is_exact: bool,
    square: float,
) -> dict[str, Any]:
    """Compare the block with its Kronecker approximation, from products already made."""
    if K is None:
        return dict.fromkeys(_KRONECKER)
    values = pairs.values.to(pairs.vectors.device)
    top = (pairs.vectors.double() * values - (K @ pairs.vectors).double()).square().sum()
    gap, stderr = _total(top, (Hw - (K @ w).double()).square().sum(0), is_exact)
    error = (gap / square) ** 0.5 if square > 0 else 0.0
    return {
        "rank_one": rank_one_share(K.to_matrices(pairs.vectors)),
        "input_values": torch.linalg.eigvalsh(K.input_factor).flip(0).cpu(),
        "output_values": torch.linalg.eigvalsh(K.output_factor).flip(0).cpu(),
        "kronecker_error": error,
        "kronecker_error_stderr": stderr / (2 * error * square) if error > 0 else 0.0,
        "kronecker_overlap": eigenspace_overlap(pairs, K.top_pairs(len(pairs))).overlaps,
    }
