"""Checks of a prior, which must not depend on the data."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigenscape.bounds._task import Task
from eigenscape.errors import FileError, InvalidArgumentError, NonFiniteError, near_matches
from eigenscape.risk import EmpiricalRisk
from eigenscape.runs import read_weights, unwrapped

Prior = Mapping[str, Any] | str | os.PathLike[str]

# Below this fraction of the error of a constant answer, weights were fitted to something.
_FITTED = 0.4


def prior_vector(risk: EmpiricalRisk, prior: Prior, *, independent: bool) -> Tensor:
    """Return w₀ (P,) float64, or refuse what is not from before a training of this model.

    Args:
        risk: Model with trained weights, loss and data.
        prior: A state dict or a file with one.
        independent: Whether it was fitted to other data, and so may be of a later epoch.

    Returns:
        The prior mean.

    Raises:
        InvalidArgumentError: If it does not fit, is of a later epoch, or the model has constants
            that training changed.
        NonFiniteError: If weights are NaN or infinite.
    """
    state = _state(prior, independent)
    wanted = risk.space.names
    missing = [name for name in wanted if name not in state]
    if missing:
        raise InvalidArgumentError(
            f"The prior lacks {len(missing)} of the model's parameters, '{missing[0]}' first. "
            f"{near_matches(missing[0], state)} Save `model.state_dict()` before training."
        )
    present = risk.parameters()
    for name in wanted:
        if state[name].shape != present[name].shape:
            raise InvalidArgumentError(
                f"The prior's '{name}' is {tuple(state[name].shape)}, the model's "
                f"{tuple(present[name].shape)}. Save it from the same model."
            )
    origin = risk.space.flatten({name: state[name].to(risk.device) for name in wanted}).double()
    if not bool(origin.isfinite().all()):
        raise NonFiniteError(
            "The prior has NaN or infinite weights. Give the weights from before training."
        )
    _require_same_constants(risk, state)
    return origin


def prior_sha256(names: Sequence[str], origin: Tensor) -> str:
    """Return the SHA-256 of an initial point, in hex.

    Args:
        names: The parameters, in their order.
        origin: w₀ (P,) float64.

    Returns:
        The digest of the names as JSON and of the numbers' bytes.
    """
    digest = hashlib.sha256(json.dumps(list(names)).encode())
    digest.update(origin.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def require_unseen(task: Task, origin: Tensor, means: Tensor, *, independent: bool) -> None:
    """Refuse a prior mean that the data visibly made.

    Args:
        task: The examples of the bound.
        origin: w₀ (P,).
        means: w (P,), the posterior's mean.
        independent: Whether w₀ was fitted to other data, and so may be good on these.

    Raises:
        InvalidArgumentError: If w₀ is w, or classifies the data far better than a constant answer.
    """
    if torch.equal(origin, means.to(origin)):
        raise InvalidArgumentError(
            "The prior equals the posterior's mean, the trained weights. A prior made from the "
            "data voids the certificate: give the weights from before training "
            "(`fit(keep_epochs=(0,))`)."
        )
    if independent:
        return
    error = float(task.errors(origin.unsqueeze(0))[0])
    constant = task.constant_error()
    if error < _FITTED * constant:
        raise InvalidArgumentError(
            f"The prior's mean has an error of {error:.3g} on the data, a constant answer "
            f"{constant:.3g}: it seems fitted to them, which voids the certificate. Give the "
            "weights from before training; if they were fitted to other, independent data, say "
            "so with prior_source='other data'."
        )


def _state(prior: Prior, independent: bool) -> dict[str, Tensor]:
    """Return named tensors; refuse a recorded epoch above 0."""
    epoch: object = None
    if isinstance(prior, str | os.PathLike):
        path = Path(prior)
        content = read_weights(path, f"The prior '{path}'")
        if not isinstance(content, Mapping):
            raise FileError(
                f"The prior '{path}' must hold a state dict; got {type(content).__name__}."
            )
        match = re.search(r"epoch[-_]?(\d+)", path.stem)
        epoch = int(match[1]) if match else None
    else:
        content = prior
    epoch = content.get("epoch", epoch)
    if isinstance(epoch, Tensor) and epoch.numel() == 1:
        epoch = int(epoch)
    if isinstance(epoch, int) and epoch > 0 and not independent:
        raise InvalidArgumentError(
            f"The prior was saved after epoch {epoch} of a training. It must be fixed before the "
            "data are seen: give the weights of epoch 0."
        )
    state, _ = unwrapped(content)
    return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}


def _require_same_constants(risk: EmpiricalRisk, state: Mapping[str, Tensor]) -> None:
    """Refuse buffers and frozen parameters that training changed: they are part of the prior."""
    if risk.module is None:
        return
    stored = risk.module.state_dict(keep_vars=True)
    for name, value in stored.items():
        # Counters, such as those of BatchNorm, change no output.
        if name in risk.space or not value.is_floating_point():
            continue
        tied = any(value is stored[other] for other in risk.space.names if other in stored)
        if tied or (name in state and torch.equal(state[name].to(value), value)):
            continue
        raise InvalidArgumentError(
            f"'{name}' is no parameter of the posterior, and differs from the prior's or is not in "
            "it. The networks drawn would share a value made from the data, which voids the "
            "certificate. Put the prior's value into the model and train without changing it "
            "(batch statistics: use another normalisation)."
        )
