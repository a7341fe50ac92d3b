"""The diagonal by which Adam divides, read from an optimiser's state."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, ShapeError, WrongTypeError
from eigenscape.space import ParamSpace


def adam_diagonal(
    state: Mapping[str, Any], space: ParamSpace, *, names: Sequence[str] | None = None
) -> Tensor:
    """Return √v̂ + ε for each parameter, v̂ the mean of squared gradients without its start's bias.

    Adam divides its step by it, so it stands where Newton's method has the Hessian. It serves Adam,
    AdamW, NAdam and RAdam; with AMSGrad the largest v̂ so far is taken.

    Args:
        state: The optimiser's `state_dict()`, after one step or more.
        space: The parameters wanted, such as `operator.space`.
        names: Names of the optimiser's parameters in the order it was given them. By default those
            that it stored itself (if made from `named_parameters()`), else those of `space`.

    Returns:
        The diagonal (n,), float64, in host memory.

    Raises:
        WrongTypeError: If `state` is no state of an optimiser.
        InvalidArgumentError: If parameters are missing, or were never stepped.
        ShapeError: If a parameter has another shape.

    Examples:
        After one step v̂ is the squared gradient, so the diagonal is its size.

        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> optimiser = torch.optim.Adam(model.parameters(), eps=0.0)
        >>> model(torch.tensor([3.0, -4.0])).backward()
        >>> _ = optimiser.step()
        >>> space = ParamSpace.of(dict(model.named_parameters()))
        >>> adam_diagonal(optimiser.state_dict(), space).round(decimals=5).tolist()
        [3.0, 4.0]

    References:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015.
    """
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= state.keys():
        raise WrongTypeError(
            "`adam_diagonal(state)` needs the `state_dict()` of a PyTorch optimiser, with "
            f"'state' and 'param_groups'; got {type(state).__name__}."
        )
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    order = _names(state, space, names, len(numbers))
    states = {
        name: (state["state"].get(number, {}), group)
        for group in state["param_groups"]
        for number, name in zip(group["params"], _take(order, numbers, group), strict=True)
    }
    diagonals = []
    for name, shape in space.shapes.items():
        if name not in states:
            raise InvalidArgumentError(
                f"`adam_diagonal(state, space)` found no parameter {name!r} in the optimiser; it "
                f"has {', '.join(map(repr, order[:3]))}, …. Pass the optimiser's parameters in its "
                "order as `names=`, or restrict the space."
            )
        diagonals.append(_diagonal(name, tuple(shape), *states[name]))
    return torch.cat(diagonals)


def _names(
    state: Mapping[str, Any], space: ParamSpace, names: Sequence[str] | None, count: int
) -> list[str]:
    stored = [name for group in state["param_groups"] for name in group.get("param_names") or ()]
    order = list(names) if names is not None else stored or list(space.names)
    if len(order) != count:
        raise InvalidArgumentError(
            f"`adam_diagonal(names=...)` needs a name for each of the optimiser's {count} "
            f"parameters; got {len(order)}. Pass `names=[n for n, _ in model.named_parameters()]` "
            "if it was made from `model.parameters()`."
        )
    return order


def _take(order: list[str], numbers: list[int], group: Mapping[str, Any]) -> list[str]:
    index = {number: i for i, number in enumerate(numbers)}
    return [order[index[number]] for number in group["params"]]


def _diagonal(
    name: str, shape: tuple[int, ...], entry: Mapping[str, Any], group: Mapping[str, Any]
) -> Tensor:
    if "exp_avg_sq" not in entry or "betas" not in group:
        raise InvalidArgumentError(
            f"`adam_diagonal(state)` needs squared gradients for {name!r}; the optimiser has none. "
            "Take the state of Adam or one of its kin, after a step."
        )
    average = entry["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
    if tuple(average.shape) != shape:
        raise ShapeError(
            f"`adam_diagonal(state, space)` needs {name!r} of shape {shape}; the optimiser's is "
            f"{tuple(average.shape)}. Pass the optimiser's parameters in its order as `names=`."
        )
    start = 1.0 - float(group["betas"][1]) ** float(entry["step"])
    root: Tensor = (average.detach().cpu().double().flatten() / start).sqrt()
    return root + float(group["eps"])
