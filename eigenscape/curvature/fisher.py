"""The Fisher information matrix, exact, sampled or empirical."""

from functools import partial

import torch
from torch import Tensor

from eigenscape.curvature.drawn_targets import sample_noise
from eigenscape.curvature.network_matrix import NetworkMatrix
from eigenscape.curvature.products.network import (
    AtOutput,
    NetworkChoice,
    jacobian_definition,
    loss_curvature,
)
from eigenscape.errors import UnsupportedModelError, require_choice, require_count
from eigenscape.risk import Batch, CallableLoss, EmpiricalRisk, OutputProduct


class Fisher(NetworkMatrix):
    """F = mean E[g gᵀ], the second moment of the gradients g of single loss terms.

    kind="exact" takes the expectation over labels drawn from the model; for the losses of this
    package it equals the Gauss-Newton matrix. kind="sampled" averages over a few such draws and is
    unbiased for it. kind="empirical" uses the labels of the data: it is another matrix, which does
    not approach the Hessian unless the model fits the label distribution.

    A term is a position for `CrossEntropy` and a sample for other losses. All three are Jᵀ B J with
    B at the output, so no gradient of a single sample is ever stored. Cost: as `GaussNewton`.

    Examples:
        With the data's labels and ½(w x)² the gradient of a sample is w x², so F = mean w² x⁴.

        >>> import torch
        >>> from eigenscape.risk.losses import SquaredError
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> with torch.no_grad(): _ = model.weight.fill_(2.0)
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> risk = EmpiricalRisk(model, SquaredError(), (x, 0 * x))
        >>> Fisher(risk, kind="empirical") @ torch.ones(1)
        tensor([164.])
    """

    def __init__(
        self,
        risk: EmpiricalRisk,
        *,
        kind: str = "exact",
        num_samples: int = 1,
        seed: int = 0,
        representation: str = "auto",
        num_products: int = 100,
        memory_budget: int | None = None,
    ) -> None:
        """Define the operator; nothing is computed before the first product.

        Args:
            risk: The function to differentiate; its model must return one tensor.
            kind: "exact", "sampled" or "empirical".
            num_samples: Labels drawn per term, for "sampled".
            seed: Fixes the drawn labels, whatever the batches and the device.
            representation: As for `Hessian`.
            num_products: As for `Hessian`.
            memory_budget: As for `Hessian`.

        Raises:
            UnsupportedModelError: If labels must be drawn and the loss has no likelihood.
        """
        require_choice(kind, ("exact", "sampled", "empirical"), "Fisher(kind=...)")
        require_count(num_samples, "Fisher(num_samples=...)")
        require_count(seed, "Fisher(seed=...)", at_least=0)
        at_output: dict[str, AtOutput] = {
            "exact": loss_curvature,
            "sampled": partial(_of_draws, num_samples=num_samples, seed=seed),
            "empirical": _of_labels,
        }
        super().__init__(
            NetworkChoice(
                risk,
                jacobian_definition("Fisher", at_output[kind], kind, num_samples, seed),
                representation=representation,
                num_products=num_products,
                memory_budget=memory_budget,
            )
        )
        if kind == "sampled" and not risk.batches.is_fixed:
            raise UnsupportedModelError(
                "`Fisher(kind='sampled')` fixes a label per sample, so every pass must see the "
                "samples in one order; this loader is read anew each time. Raise "
                "`EmpiricalRisk(keep_data_bytes=...)` or use kind='exact'."
            )
        if isinstance(risk.loss, CallableLoss) and kind != "empirical":
            raise UnsupportedModelError(
                f"`Fisher(kind='{kind}')` draws labels from the model and needs a loss with a "
                "likelihood: CrossEntropy, SquaredError or BinaryCrossEntropy; got a plain "
                "function. Use `Fisher(risk, kind='empirical')` or `GaussNewton(risk)`."
            )


def _of_labels(risk: EmpiricalRisk, output: Tensor, batch: Batch) -> OutputProduct:
    """Return the product with r rᵀ, r the output gradients of the data's labels."""
    return _squares(risk, output, batch, risk.loss.output_gradient(output, batch.target)[None])


def _of_draws(
    risk: EmpiricalRisk, output: Tensor, batch: Batch, *, num_samples: int, seed: int
) -> OutputProduct:
    """Return the mean product with r rᵀ over labels drawn from the model."""
    noises = (sample_noise(batch, draw, seed, risk.device) for draw in range(num_samples))
    r = torch.stack(
        [risk.loss.drawn_output_gradient(output, batch.target, noise) for noise in noises]
    )
    return _squares(risk, output, batch, r)


def _squares(risk: EmpiricalRisk, output: Tensor, batch: Batch, r: Tensor) -> OutputProduct:
    dims = [1 + dim for dim in risk.loss.term_dims(output, batch.target)]

    def product(tangent: Tensor) -> Tensor:
        rt = r * tangent
        # A term without other dimensions (one number per sample) has nothing to sum over.
        return (r * (rt.sum(dims, keepdim=True) if dims else rt)).mean(0)

    return product
