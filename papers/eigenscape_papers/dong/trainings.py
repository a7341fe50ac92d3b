"""Trainings of Dong's studies: networks of their own making, kept apart and continued."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.risk import CrossEntropy, EmpiricalRisk, Loss
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.ensemble import Recipe, Training, fit
from eigenscape_papers.runner import Workshop


def train(
    name: str,
    make: Callable[[int], nn.Module],
    data: DataSet,
    recipe: Recipe,
    workshop: Workshop,
    *,
    deciding: tuple[object, object],
    keep: bool = False,
    **more: Any,
) -> tuple[Training, Path]:
    """Train networks in float32; an interrupted training goes on.

    Args:
        name: The study.
        make: Makes the network of a seed.
        data: What they are trained on.
        recipe: How.
        workshop: Where.
        deciding: What else the result depends on: with data and recipe it names the folder.
        keep: Whether weights are kept in the folder.
        more: For `fit`.

    Returns:
        The training, and its folder.

    Raises:
        EigenscapeError: If a loss stopped being finite.
    """
    what = f"{data.history}{deciding[0]}{recipe}{deciding[1]}"
    key = hashlib.sha256(what.encode()).hexdigest()[:10]
    folder = workshop.folder / "networks" / f"{name}-{key}"
    training = fit(
        make,
        data.to(dtype=torch.float32),
        recipe,
        evaluate_every=recipe.epochs,
        keep=folder if keep else None,
        checkpoint=folder / "checkpoint",
        device=workshop.device,
        progress=workshop.progress,
        **more,
    )
    training.require_converged()
    return training, folder


def risk_of(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    device: torch.device,
    loss: Loss | None = None,
) -> EmpiricalRisk:
    """Return the risk of a network in float64 and eval mode, on a device.

    Args:
        model: The network; it is moved.
        inputs: Its data.
        targets: What it should answer.
        device: Where.
        loss: By default cross-entropy.

    Returns:
        The risk.
    """
    pair = (inputs.to(device), targets.to(device))
    return EmpiricalRisk(model.double().to(device).eval(), loss or CrossEntropy(), pair)
