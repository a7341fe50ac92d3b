"""What can be seen of a prior that must not depend on the data."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigenscape.bounds._task import Task
from eigenscape.errors import FileError, InvalidArgumentError, NonFiniteError, near_matches
from eigenscape.risk import EmpiricalRisk

Prior = Mapping[str, Any] | str | os.PathLike[str]

_WRAPPERS = ("state_dict", "model_state_dict", "model")
# Below this fraction of the error of a constant answer, weights were fitted to something.
_FITTED = 0.4


def prior_vector(risk: EmpiricalRisk, prior: Prior, *, independent: bool) -> Tensor:
    """Return w₀ (P,) float64, or refuse a prior that visibly depends on the data.

    Args:
        risk: Model with trained weights, loss and data.
        prior: A state dict or a file with one.
        independent: Whether it was fitted to other data, and so may be good on these.

    Returns:
        The prior mean.

    Raises:
        InvalidArgumentError: If it does not fit, or depends on the data.
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
    weights = risk.space.flatten(present).double()
    for what, values in (("prior", origin), ("model", weights)):
        if not bool(values.isfinite().all()):
            raise NonFiniteError(f"The {what} has NaN or infinite weights.")
    if torch.equal(origin, weights):
        raise InvalidArgumentError(
            "The prior equals the model's trained weights. A prior made from the data voids the "
            "certificate: give the weights from before training (`fit(keep_epochs=(0,))`)."
        )
    _require_same_constants(risk, state)
    if not independent:
        _require_unfitted(risk, origin)
    return origin


def _state(prior: Prior, independent: bool) -> dict[str, Tensor]:
    """Return named tensors; refuse a recorded epoch above 0."""
    epoch: object = None
    if isinstance(prior, str | os.PathLike):
        path = Path(prior)
        content = _read(path)
        found = re.search(r"epoch[-_]?(\d+)", path.stem)
        epoch = int(found[1]) if found else None
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
    for key in _WRAPPERS:
        if isinstance(content.get(key), Mapping):
            content = content[key]
            break
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise FileError(f"The prior '{path}' cannot be read ({error}).") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a missing file, another format, code that would have to run
        raise FileError(f"The prior '{path}' cannot be read as weights ({error}).") from error
    if not isinstance(content, Mapping):
        raise FileError(f"The prior '{path}' must hold a state dict; got {type(content).__name__}.")
    return content


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


def _require_unfitted(risk: EmpiricalRisk, origin: Tensor) -> None:
    """Refuse a prior mean that classifies the data far better than a constant answer."""
    task = Task(risk)
    error = float(task.errors(origin.to(risk.dtype).unsqueeze(0))[0])
    constant = task.constant_error()
    if error < _FITTED * constant:
        raise InvalidArgumentError(
            f"The prior's mean has an error of {error:.3g} on the data, a constant answer "
            f"{constant:.3g}: it seems fitted to them, which voids the certificate. Give the "
            "weights from before training; if they were fitted to other, independent data, say "
            "so with prior_source='other data'."
        )
