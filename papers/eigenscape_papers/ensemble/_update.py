"""One step of an optimiser for all parameters of all networks, and the state it keeps.

All parameters are one flat tensor θ, and so is each part of the state; an update is a few kernels
whatever the number of layers. The learning rate and the number of steps live on the device, so that
a recorded CUDA graph reads their present values. For float32 on a GPU, PyTorch's fused kernels do
the whole of SGD or Adam in one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eigenscape_papers.ensemble.recipe import SGD, Adam, Optimizer, RMSprop

Split = Callable[[Tensor], list[Tensor]]


class Update(ABC):
    """An update rule with its state.

    Attributes:
        state: What has to be kept to continue, by name.
    """

    state: dict[str, Tensor]

    def __init__(self, theta: Tensor) -> None:
        """Start from nothing.

        Args:
            theta: All parameters, flat; updated in place.
        """
        self._theta = theta
        self._rate = torch.zeros((), dtype=theta.dtype, device=theta.device)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the steps to come."""
        self._rate.fill_(rate)

    @abstractmethod
    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters, given gradients in the order of their parts of θ."""

    def _flat(self, grads: Sequence[Tensor], weight_decay: float) -> Tensor:
        gradient = torch.cat([grad.reshape(-1) for grad in grads])
        return gradient.add_(self._theta, alpha=weight_decay) if weight_decay else gradient

    def _move(self, direction: Tensor) -> None:
        self._theta.addcmul_(direction, self._rate, value=-1)


def _sgd_state(rule: SGD, theta: Tensor) -> dict[str, Tensor]:
    return {"momentum": torch.zeros_like(theta)} if rule.momentum else {}


def _adam_state(theta: Tensor) -> dict[str, Tensor]:
    return {
        "mean": torch.zeros_like(theta),
        "square": torch.zeros_like(theta),
        "steps": torch.zeros((), dtype=torch.float64, device=theta.device),
    }


class _SGD(Update):
    def __init__(self, rule: SGD, theta: Tensor) -> None:
        super().__init__(theta)
        self._rule = rule
        self.state = _sgd_state(rule, theta)

    def step(self, grads: Sequence[Tensor]) -> None:
        rule = self._rule
        g = self._flat(grads, rule.weight_decay)
        if rule.momentum:
            # PyTorch starts v as the first gradient, which is what zero becomes here too.
            v = self.state["momentum"].mul_(rule.momentum).add_(g)
            g = g.add_(v, alpha=rule.momentum) if rule.nesterov else v
        self._move(g)


class _Adam(Update):
    def __init__(self, rule: Adam, theta: Tensor) -> None:
        super().__init__(theta)
        self._rule = rule
        self.state = _adam_state(theta)

    def step(self, grads: Sequence[Tensor]) -> None:
        rule, t = self._rule, self.state["steps"].add_(1)
        g = self._flat(grads, rule.weight_decay)
        m = self.state["mean"].lerp_(g, 1 - rule.beta1)
        v = self.state["square"].mul_(rule.beta2).addcmul_(g, g, value=1 - rule.beta2)
        root = (1 - torch.pow(rule.beta2, t)).sqrt().to(g.dtype)
        debias = (1 - torch.pow(rule.beta1, t)).to(g.dtype)
        self._move(m / ((v.sqrt() / root).add_(rule.epsilon) * debias))


class _RMSprop(Update):
    def __init__(self, rule: RMSprop, theta: Tensor) -> None:
        super().__init__(theta)
        self._rule = rule
        self.state = {"square": torch.zeros_like(theta)}
        if rule.momentum:
            self.state["momentum"] = torch.zeros_like(theta)

    def step(self, grads: Sequence[Tensor]) -> None:
        rule = self._rule
        g = self._flat(grads, rule.weight_decay)
        v = self.state["square"].mul_(rule.alpha).addcmul_(g, g, value=1 - rule.alpha)
        direction = g.div_(v.sqrt().add_(rule.epsilon))
        if rule.momentum:
            direction = self.state["momentum"].mul_(rule.momentum).add_(direction)
        self._move(direction)


class _FusedSGD(Update):
    """The same in one kernel, which takes parameters one by one and a float32 learning rate."""

    def __init__(self, rule: SGD, theta: Tensor, split: Split) -> None:
        super().__init__(theta)
        self._rule, self.state = rule, _sgd_state(rule, theta)
        self._parts = split(theta)
        self._momenta = split(self.state["momentum"]) if rule.momentum else []

    def step(self, grads: Sequence[Tensor]) -> None:
        rule = self._rule
        torch._fused_sgd_(
            self._parts,
            [grad.reshape(-1) for grad in grads],  # shaped like the parts, or it is refused
            self._momenta,
            weight_decay=rule.weight_decay,
            momentum=rule.momentum,
            lr=self._rate,
            dampening=0.0,
            nesterov=rule.nesterov,
            maximize=False,
            is_first_step=False,
        )


class _FusedAdam(Update):
    """The same in one kernel; its count of steps is one float32 number per parameter."""

    def __init__(self, rule: Adam, theta: Tensor, split: Split) -> None:
        super().__init__(theta)
        self._rule, self.state = rule, _adam_state(theta)
        self._parts = split(theta)
        self._means, self._squares = split(self.state["mean"]), split(self.state["square"])
        # float32 counts exactly to 16 million, and PyTorch's own counter is one.
        self.state["steps"] = self.state["steps"].float()

    def step(self, grads: Sequence[Tensor]) -> None:
        rule = self._rule
        self.state["steps"].add_(1)
        torch._fused_adam_(
            self._parts,
            [grad.reshape(-1) for grad in grads],  # shaped like the parts, or it is refused
            self._means,
            self._squares,
            [],
            [self.state["steps"]] * len(self._parts),
            lr=self._rate,
            beta1=rule.beta1,
            beta2=rule.beta2,
            weight_decay=rule.weight_decay,
            eps=rule.epsilon,
            amsgrad=False,
            maximize=False,
        )


def make_update(rule: Optimizer, theta: Tensor, split: Split, *, fused: bool = True) -> Update:
    """Return the update of a rule.

    Args:
        rule: The optimiser of the recipe.
        theta: All parameters, flat.
        split: Cuts a flat tensor into views, one per gradient that `step` will get.
        fused: Use PyTorch's fused kernels where they fit.

    Returns:
        The update, with an empty state.
    """
    fused = fused and theta.is_cuda and theta.dtype == torch.float32
    if isinstance(rule, SGD):
        return _FusedSGD(rule, theta, split) if fused else _SGD(rule, theta)
    if isinstance(rule, Adam):
        return _FusedAdam(rule, theta, split) if fused else _Adam(rule, theta)
    return _RMSprop(rule, theta)
