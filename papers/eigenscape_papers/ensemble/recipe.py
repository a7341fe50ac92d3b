"""How a network is trained: epochs, batch size, optimiser, schedule, loss. Numbers only, no state.

The update rules are those of `torch.optim`, with the same names for the same things but for
`learning_rate` (`lr`), `epsilon` (`eps`) and `beta1`, `beta2` (`betas`). A schedule multiplies the
optimiser's learning rate by a factor that is constant within an epoch.
"""

import math
from dataclasses import dataclass, field, fields

from eigenscape.errors import (
    InvalidArgumentError,
    WrongTypeError,
    require_choice,
    require_count,
    require_not_negative,
    require_positive,
)
from eigenscape.risk import CrossEntropy, Loss, SquaredError, as_loss

LOSSES = ("cross-entropy", "squared-error")


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, as `torch.optim.SGD` does it.

    g ← g + weight_decay·θ;  v ← momentum·v + g;  θ ← θ − learning_rate·v, or with `nesterov`
    θ ← θ − learning_rate·(g + momentum·v).

    Attributes:
        learning_rate: Step size, above 0.
        momentum: From 0 to below 1.
        weight_decay: Factor of the parameters that is added to the gradient, 0 or more.
        nesterov: Look ahead along the momentum; needs some.
    """

    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        require_positive(self.learning_rate, "SGD(learning_rate=...)")
        _require_fraction(self.momentum, "SGD(momentum=...)")
        require_not_negative(self.weight_decay, "SGD(weight_decay=...)")
        if self.nesterov and self.momentum == 0:
            raise InvalidArgumentError(
                "`SGD(nesterov=True)` needs `momentum=` above 0; got 0. Pass e.g. `momentum=0.9`."
            )


@dataclass(frozen=True)
class Adam:
    """Adam, as `torch.optim.Adam` does it (the decay is added to the gradient, not decoupled).

    m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;  θ ← θ − learning_rate·m̂ / (√v̂ + epsilon) with
    m̂ = m/(1−β₁ᵗ) and v̂ = v/(1−β₂ᵗ) after t steps.

    Attributes:
        learning_rate: Step size, above 0.
        beta1: Memory of the gradient, from 0 to below 1.
        beta2: Memory of its square, from 0 to below 1.
        epsilon: Added to the root, above 0.
        weight_decay: Factor of the parameters that is added to the gradient, 0 or more.
    """

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        require_positive(self.learning_rate, "Adam(learning_rate=...)")
        _require_fraction(self.beta1, "Adam(beta1=...)")
        _require_fraction(self.beta2, "Adam(beta2=...)")
        require_positive(self.epsilon, "Adam(epsilon=...)")
        require_not_negative(self.weight_decay, "Adam(weight_decay=...)")


@dataclass(frozen=True)
class RMSprop:
    """RMSprop, as `torch.optim.RMSprop` does it (not centred).

    v ← alpha·v + (1−alpha)g²;  u ← momentum·u + g/(√v + epsilon);  θ ← θ − learning_rate·u.

    Attributes:
        learning_rate: Step size, above 0.
        alpha: Memory of the squared gradient, from 0 to below 1.
        epsilon: Added to the root, above 0.
        momentum: From 0 to below 1.
        weight_decay: Factor of the parameters that is added to the gradient, 0 or more.
    """

    learning_rate: float = 0.01
    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        require_positive(self.learning_rate, "RMSprop(learning_rate=...)")
        _require_fraction(self.alpha, "RMSprop(alpha=...)")
        require_positive(self.epsilon, "RMSprop(epsilon=...)")
        _require_fraction(self.momentum, "RMSprop(momentum=...)")
        require_not_negative(self.weight_decay, "RMSprop(weight_decay=...)")


Optimizer = SGD | Adam | RMSprop


@dataclass(frozen=True)
class Constant:
    """The learning rate of the optimiser, throughout."""

    def scale(self, epoch: int, epochs: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Step:
    """The learning rate times `factor` after every `every` epochs, as `StepLR` does it.

    Attributes:
        every: Epochs between two drops.
        factor: What each drop multiplies by, above 0.
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        require_count(self.every, "Step(every=...)")
        require_positive(self.factor, "Step(factor=...)")

    def scale(self, epoch: int, epochs: int) -> float:
        """Return factor^⌊epoch/every⌋, epochs counted from 0."""
        return float(self.factor ** (epoch // self.every))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the optimiser's learning rate towards 0, as `CosineAnnealingLR` does it.

    Examples:
        >>> [round(Cosine().scale(epoch, 4), 3) for epoch in range(4)]
        [1.0, 0.854, 0.5, 0.146]
    """

    def scale(self, epoch: int, epochs: int) -> float:
        """Return (1 + cos(π·epoch/epochs))/2, epochs counted from 0."""
        return (1.0 + math.cos(math.pi * epoch / epochs)) / 2.0


@dataclass(frozen=True)
class Thirds:
    """Two drops, after one third and after two thirds of the epochs.

    Attributes:
        factor: What each drop multiplies by, above 0.

    Examples:
        >>> [Thirds(factor=0.5).scale(epoch, 6) for epoch in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]

    References:
        Papyan, "Traces of class/cross-class structure pervade deep learning spectra", 2020,
        App. D.1.
    """

    factor: float = 0.1

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        require_positive(self.factor, "Thirds(factor=...)")

    def scale(self, epoch: int, epochs: int) -> float:
        """Return 1, factor, or factor², epochs counted from 0."""
        return float(self.factor ** ((3 * epoch >= epochs) + (3 * epoch >= 2 * epochs)))


Schedule = Constant | Step | Cosine | Thirds


@dataclass(frozen=True)
class Recipe:
    """All that decides how weights move, but for the data, the start and the seeds.

    The defaults are those of Wu, "Dissecting Hessian", App. D.3, but for the number of epochs
    (there 1000).

    Attributes:
        epochs: Passes over the data.
        batch_size: Samples per step; the last batch of an epoch holds what is left.
        optimizer: `SGD`, `Adam` or `RMSprop`.
        schedule: `Constant`, `Step`, `Cosine` or `Thirds`.
        loss: "cross-entropy", "squared-error" (½‖z − y‖² per sample; class indices become one-hot
            vectors), or a loss that `EmpiricalRisk` would take. A step uses the mean over the
            batch's terms.
        tf32: Allow TF32 inside float32 products on a GPU: faster, three digits.

    Examples:
        >>> recipe = Recipe(epochs=3, optimizer=SGD(learning_rate=0.5), schedule=Thirds())
        >>> [round(rate, 6) for rate in recipe.learning_rates()]
        [0.5, 0.05, 0.005]
    """

    epochs: int = 10
    batch_size: int = 128
    optimizer: Optimizer = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Constant)
    loss: str | Loss = "cross-entropy"
    tf32: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing, and bring the loss to one of ours."""
        require_count(self.epochs, "Recipe(epochs=...)")
        require_count(self.batch_size, "Recipe(batch_size=...)")
        _require_kind(self.optimizer, (SGD, Adam, RMSprop), "Recipe(optimizer=...)")
        _require_kind(self.schedule, (Constant, Step, Cosine, Thirds), "Recipe(schedule=...)")
        if isinstance(self.loss, str):
            require_choice(self.loss, LOSSES, "Recipe(loss=...)")
        else:
            object.__setattr__(self, "loss", as_loss(self.loss))

    def learning_rates(self) -> tuple[float, ...]:
        """Return the learning rate of every epoch, the first first."""
        base, epochs = self.optimizer.learning_rate, self.epochs
        return tuple(base * self.schedule.scale(epoch, epochs) for epoch in range(epochs))

    def __str__(self) -> str:
        """Return the recipe in words, without the settings that do nothing.

        Examples:
            >>> print(Recipe(epochs=3, batch_size=64, schedule=Thirds()))
            3 epochs, batches of 64, SGD (learning rate 0.01), Thirds (factor 0.1), cross-entropy
        """
        phrases = [f"{self.epochs} epochs", f"batches of {self.batch_size}", _words(self.optimizer)]
        if self.schedule != Constant():
            phrases.append(_words(self.schedule))
        phrases.append(self.loss if isinstance(self.loss, str) else type(self.loss).__name__)
        return ", ".join([*phrases, "TF32"] if self.tf32 else phrases)

    def loss_object(self) -> Loss:
        """Return the loss as an object, whichever way it was given."""
        if isinstance(self.loss, Loss):
            return self.loss
        return CrossEntropy() if self.loss == "cross-entropy" else SquaredError()


def _words(component: Optimizer | Schedule) -> str:
    """Name a part with those of its settings that are not zero."""
    settings = {f.name.replace("_", " "): getattr(component, f.name) for f in fields(component)}
    shown = [
        f"{name} {value:g}" for name, value in settings.items() if value is not False and value
    ]
    return f"{type(component).__name__} ({', '.join(shown)})" if shown else type(component).__name__


def _require_fraction(value: float, call: str) -> None:
    require_not_negative(value, call)
    if value >= 1:
        raise InvalidArgumentError(f"`{call}` must be from 0 to below 1; got {value}.")


def _require_kind(value: object, kinds: tuple[type, ...], call: str) -> None:
    if isinstance(value, kinds):
        return
    names = ", ".join(kind.__name__ for kind in kinds)
    hint = f" Write `{value.__name__}(...)`." if value in kinds and isinstance(value, type) else ""
    what = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    raise WrongTypeError(f"`{call}` must be one of {names}; got {what}.{hint}")
