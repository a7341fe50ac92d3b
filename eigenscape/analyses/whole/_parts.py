"""How each part of an analysis is computed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from eigenscape.analyses.layers.layer_curvature import LayerCurvature, layer_curvature
from eigenscape.analyses.whole._budget import Budget, num_pairs, spectrum_products
from eigenscape.analyses.whole._stages import Compute
from eigenscape.analyses.whole._subsample import OtherSamples, subsample
from eigenscape.analyses.whole.matrix_spectrum import MatrixSpectrum, matrix_spectrum
from eigenscape.curvature import GaussNewton, Hessian, Residual
from eigenscape.errors import EmptySelectionError
from eigenscape.linalg import BlockNorms, block_norms
from eigenscape.operator import LinearOperator
from eigenscape.records import EigenPairs, Key, ProgressCallback, crc
from eigenscape.risk import EmpiricalRisk
from eigenscape.space import Partition

_MATRICES: dict[str, Callable[..., LinearOperator]] = {
    "Hessian": Hessian,
    "Gauss-Newton": GaussNewton,
    "residual": Residual,
}


def spectrum(
    risk: EmpiricalRisk, name: str, budget: Budget, num_classes: int | None, seed: int
) -> Compute[MatrixSpectrum]:
    """Return what computes the spectrum of a matrix."""
    largest, smallest = num_pairs(name, budget, num_classes)
    expected = spectrum_products(name, budget, (largest, smallest), risk.space.size)

    def compute(steps: Path | None, progress: ProgressCallback | None) -> MatrixSpectrum:
        return matrix_spectrum(
            _MATRICES[name](risk, num_products=expected),
            name,
            num_pairs=largest,
            num_smallest=smallest,
            num_steps=budget.num_steps,
            num_probes=budget.num_probes,
            tolerance=budget.tolerance,
            max_products=budget.max_products,
            seed=seed,
            checkpoint=steps,
            progress=progress,
        )

    return compute


def layers(risk: EmpiricalRisk, budget: Budget, seed: int) -> Compute[LayerCurvature]:
    """Return what computes the layers' blocks."""

    def compute(steps: Path | None, progress: ProgressCallback | None) -> LayerCurvature:
        return layer_curvature(
            risk,
            num_pairs=budget.num_layer_pairs,
            num_probes=budget.num_layer_probes,
            tolerance=budget.tolerance,
            seed=seed,
            progress=progress,
        )

    return compute


def blocks(risk: EmpiricalRisk, budget: Budget, seed: int) -> Compute[BlockNorms]:
    """Return what computes the norms between layers."""

    def compute(steps: Path | None, progress: ProgressCallback | None) -> BlockNorms:
        return block_norms(
            Hessian(risk),
            Partition.by_layer(risk.space),
            num_probes=budget.num_block_probes,
            seed=seed,
            progress=progress,
        )

    return compute


def others(
    risk: EmpiricalRisk, budget: Budget, num_samples: int, seed: int
) -> Compute[OtherSamples]:
    """Return what looks at other samples than the first ones."""

    def compute(steps: Path | None, progress: ProgressCallback | None) -> OtherSamples:
        if num_samples >= risk.num_samples:
            raise EmptySelectionError("There are no other samples.")
        other, chosen = subsample(risk, num_samples, seed=seed, skip=num_samples)
        expected = spectrum_products("Hessian", budget, (1, 0), risk.space.size)
        result = matrix_spectrum(
            Hessian(other, num_products=expected),
            "Hessian of other samples",
            num_pairs=1,
            num_smallest=0,
            num_steps=budget.num_steps,
            num_probes=budget.num_probes,
            tolerance=budget.tolerance,
            max_products=budget.max_products,
            seed=seed,
            checkpoint=steps,
            progress=progress,
        )
        return OtherSamples(
            status=result.status,
            num_products=result.num_products,
            seed=seed,
            subsample=chosen,
            loss=other.value(),
            gradient_norm=other.gradient().double().norm().item(),
            largest=float(result.largest.values[0]),
            residual=float(result.largest.residuals[0]),
            trace=result.trace,
            trace_stderr=result.trace_stderr,
            self_test=result.largest.self_test,
        )

    return compute


def slim(result: MatrixSpectrum | None, most_bytes: int) -> MatrixSpectrum | None:
    """Leave out eigenvectors that are too large to keep."""

    def slimmed(pairs: EigenPairs) -> EigenPairs:
        vectors = pairs.vectors
        fits = vectors.numel() * vectors.element_size() <= most_bytes
        return dataclasses.replace(pairs, vectors=vectors if fits else vectors[:, :0])

    if result is None:
        return None
    return dataclasses.replace(
        result, largest=slimmed(result.largest), smallest=slimmed(result.smallest)
    )


def key_of(risk: EmpiricalRisk, budget: Budget, seed: int) -> Key:
    """Tell this analysis from others: where it looks, at what, and how closely."""
    flat = torch.cat([tensor.reshape(-1) for tensor in risk.parameters().values()])
    return {
        "what": "analyze",
        "parameters": crc(flat),
        "size": risk.space.size,
        "samples": risk.num_samples,
        "loss": repr(risk.value()),
        "budget": dataclasses.asdict(budget),
        "seed": seed,
    }
