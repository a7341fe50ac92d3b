"""Logistic regression on the mixture of Papyan §8, trained to the end, and its Fisher matrix.

Letters: D inputs, C classes, N samples, t the signal-to-noise ratio, p predicted probabilities.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eigenscape_papers.datasets import load

_NEWTON_STEPS = 50


@dataclass(frozen=True, eq=False)
class Regression:
    """Logistic regression without biases, trained on a mixture.

    Attributes:
        signal: t.
        uncertainty: α, one minus the mean probability of the true class on training samples.
        error: Misclassification on new samples.
        values: Eigenvalues of its Fisher matrix on the training samples (DC), descending.
        bulk: Mean of the (D − C)(C − 1) eigenvalues that the inputs without signal have.
        slope: Norm of the gradient that is left.
    """

    signal: float
    uncertainty: float
    error: float
    values: Tensor
    bulk: float
    slope: float


def fisher_matrix(x: Tensor, p: Tensor) -> Tensor:
    """Return the mean of (diag(p) − ppᵀ) ⊗ xxᵀ.

    Args:
        x: Inputs (N, D).
        p: Probabilities (N, C).

    Returns:
        The matrix (CD, CD), (class) ⊗ (input).
    """
    (N, D), C = x.shape, p.shape[1]
    G = x.new_zeros(C, D, C, D)
    for j in range(C):
        for k in range(j, C):
            weights = p[:, j] * (float(j == k) - p[:, k])
            G[j, :, k] = G[k, :, j] = (x * weights[:, None]).T @ x / N
    return G.reshape(C * D, C * D)


def train(x: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, float]:
    """Return the weights (C, D) of least cross-entropy by Newton's method, and the slope left.

    Args:
        x: Inputs (N, D), float64.
        y: Classes (N,).
        num_classes: C.

    Returns:
        Weights whose rows add up to zero, and the norm of the gradient.
    """
    D = x.shape[1]
    targets = torch.nn.functional.one_hot(y, num_classes).to(x)
    W = x.new_zeros(num_classes, D)

    def loss(at: Tensor) -> float:
        return float(torch.nn.functional.cross_entropy(x @ at.T, y))

    for _ in range(_NEWTON_STEPS):
        p = (x @ W.T).softmax(1)
        slope = (p - targets).T @ x / len(x)
        if float(slope.norm()) < 1e-10:
            break
        # Adding one row to all changes nothing: D eigenvalues are zero.
        step = torch.linalg.pinv(fisher_matrix(x, p), rtol=1e-10, hermitian=True) @ slope.flatten()
        size, now = 1.0, loss(W)
        while size > 1e-6 and loss(W - size * step.view_as(W)) > now:
            size /= 2
        W = W - size * step.view_as(W)
    return W, float(slope.norm())


def regress(
    options: Mapping[str, Any], signal: float, seed: int, device: torch.device
) -> Regression:
    """Train on one mixture and look at the Fisher matrix.

    Args:
        options: "num_inputs", "num_classes" and "per_class" of the mixture.
        signal: t.
        seed: Of its samples.
        device: Where to work.

    Returns:
        What was found.
    """
    D, C = options["num_inputs"], options["num_classes"]
    x, y = mixture(options, signal, seed, "train", device)
    new, truth = mixture(options, signal, seed, "test", device)
    W, slope = train(x, y, C)
    p = (x @ W.T).softmax(1)
    G = fisher_matrix(x, p)
    without_signal = G.view(C, D, C, D)[:, C:, :, C:].reshape(C * (D - C), C * (D - C))
    return Regression(
        signal,
        1.0 - float(p.gather(1, y[:, None]).mean()),
        float(((new @ W.T).argmax(1) != truth).double().mean()),
        torch.linalg.eigvalsh(G).flip(0).cpu(),
        float(without_signal.trace()) / ((D - C) * (C - 1)),
        slope,
    )


def mixture(
    options: Mapping[str, Any],
    signal: float,
    seed: int,
    split: str,
    device: torch.device,
    per_class: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw from the mixture of Papyan Def. 8.1.

    Args:
        options: As for `regress`.
        signal: t.
        seed: Of the samples.
        split: "train" or "test".
        device: Where they go.
        per_class: Samples of each class, if other than the options say.

    Returns:
        Inputs (N, D), float64, and classes (N,).
    """
    data = load(
        "class-mixture",
        split=split,
        dimension=options["num_inputs"],
        num_classes=options["num_classes"],
        per_class=per_class or options["per_class"],
        signal=signal,
        seed=seed,
    )
    return data.inputs.to(device).double(), data.targets.to(device)
