"""How each part of an analysis is computed."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from eigenscape.analyses.layers.layer_curvature import LayerCurvature, layer_curvature
from eigenscape.analyses.whole._budget import Budget, num_pairs, spectrum_products
from eigenscape.analyses.whole._subsample import OtherSamples, subsample
from eigenscape.analyses.whole.matrix_spectrum import MatrixSpectrum, matrix_spectrum
from eigenscape.curvature import GaussNewton, Hessian, Residual
from eigenscape.errors import EmptySelectionError
from eigenscape.linalg import BlockNorms, block_norms
from eigenscape.operator import LinearOperator
from eigenscape.records import EigenPairs, Key, ProgressCallback, crc
from eigenscape.risk import EmpiricalRisk
from eigenscape.space import Partition

_Callback: TypeAlias = ProgressCallback | None
_MATRICES: dict[str, Callable[..., LinearOperator]] = {
    "Hessian": Hessian,
    "Gauss-Newton": GaussNewton,
    "residual": Residual,
}


@dataclass(frozen=True)
class Measure:
    """Computes each part of an analysis; `steps` is the folder for a part's own checkpoints."""

    risk: EmpiricalRisk
    budget: Budget
    seed: int

    def spectrum(
        self, name: str, num_classes: int | None, steps: Path | None, progress: _Callback
    ) -> MatrixSpectrum:
        """Find the spectrum of a matrix."""
        pairs = num_pairs(name, self.budget, num_classes)
        return self._spectrum(name, name, pairs, steps, progress)

    def layers(self, steps: Path | None, progress: _Callback) -> LayerCurvature:
        """Look at the layers' blocks."""
        return layer_curvature(
            self.risk,
            num_pairs=self.budget.num_layer_pairs,
            num_probes=self.budget.num_layer_probes,
            tolerance=self.budget.tolerance,
            seed=self.seed,
            progress=progress,
        )

    def blocks(self, steps: Path | None, progress: _Callback) -> BlockNorms:
        """Estimate the norms between layers."""
        return block_norms(
            Hessian(self.risk),
            Partition.by_layer(self.risk.space),
            num_probes=self.budget.num_block_probes,
            seed=self.seed,
            progress=progress,
        )

    def others(self, num_samples: int, steps: Path | None, progress: _Callback) -> OtherSamples:
        """Look at so many other samples than the first ones."""
        if num_samples >= self.risk.num_samples:
            raise EmptySelectionError("There are no other samples.")
        other, chosen = subsample(self.risk, num_samples, seed=self.seed, skip=num_samples)
        there = dataclasses.replace(self, risk=other)
        label = "Hessian of other samples"
        result = there._spectrum("Hessian", label, (1, 0), steps, progress)
        return OtherSamples(
            status=result.status,
            num_products=result.num_products,
            seed=self.seed,
            subsample=chosen,
            loss=other.value(),
            gradient_norm=other.gradient().double().norm().item(),
            largest=float(result.largest.values[0]),
            residual=float(result.largest.residuals[0]),
            trace=result.trace,
            trace_stderr=result.trace_stderr,
            self_test=result.largest.self_test,
        )

    def _spectrum(
        self, name: str, label: str, pairs: tuple[int, int], steps: Path | None, progress: _Callback
    ) -> MatrixSpectrum:
        """Find so many largest and smallest pairs of a matrix, and its density."""
        risk, budget = self.risk, self.budget
        expected = spectrum_products(name, budget, pairs, risk.space.size)
        return matrix_spectrum(
            _MATRICES[name](risk, num_products=expected),
            label,
            num_pairs=pairs[0],
            num_smallest=pairs[1],
            num_steps=budget.num_steps,
            num_probes=budget.num_probes,
            tolerance=budget.tolerance,
            max_products=budget.max_products,
            seed=self.seed,
            checkpoint=steps,
            progress=progress,
        )


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
