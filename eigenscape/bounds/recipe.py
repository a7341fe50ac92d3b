"""How a posterior is optimised: the settings of Wu's Algorithm 1 and of its variants."""

from dataclasses import dataclass, replace
from typing import Any

from eigenscape.bounds.posterior import KINDS
from eigenscape.errors import InvalidArgumentError, require_choice, require_count, require_positive
from eigenscape.records import storable

_CHOICES = {
    "basis": KINDS,
    "carry": ("project", "index"),
    "covariance": ("diagonal", "full"),
    "initial": ("weights", "curvature"),
    "noise": ("weights", "outputs"),
    "optimizer": ("rmsprop", "sgd"),
}


@storable
@dataclass(frozen=True)
class BoundRecipe:
    """Settings of the optimisation; the defaults are Wu's for ITER (App. G).

    Attributes:
        basis: "standard", "kronecker", "approximate" or "exact"; see `layer_basis`.
        refresh_every: η, epochs between two computations of the basis; None for once.
        refresh_growth: What η is multiplied by whenever the learning rate drops; 1 for never.
        carry: What becomes of the variances when the basis changes: "project" takes the diagonal
            that the covariance has in the new basis, and does the same for the optimiser's mean
            squares; "index" leaves each number at its index, as the authors' code does.
        covariance: "diagonal" in the basis, or "full" within each layer, for tiny ones; the basis
            is then computed once, and is only where the optimisation begins.
        initial: First variances: "weights", the squares of the coordinates of w; or "curvature",
            1/(1/λ + n h) for the Gauss-Newton diagonal h in the basis (EKFAC).
        epochs: Passes over the data.
        batch_size: Examples per step; the last, shorter batch is used.
        num_samples: K, networks drawn from the posterior in each step. They share the batch out
            among them, so K divides its size, and the noise of draws and that of examples fall
            alike: K times the batch with K networks is an average of K steps. A last batch of B
            examples has gcd(K, B) networks, so that all examples count alike.
        noise: What a step draws: "weights", whole networks, as in the paper; or "outputs", for
            networks of linear layers those of every layer and example, which is a network of its
            own for each example. What is expected is the same; slopes have far less noise, and a
            step of a large batch is cheaper.
        optimizer: "rmsprop" (decay 0.9, the authors' code) or "sgd" (the text).
        learning_rate: τ.
        drop: Factor of a drop of τ.
        drop_every: Epochs between drops.
        prior_log_std: ϱ at the start, λ = exp(2ϱ).
        delta: δ of the bound that is optimised.
        precision: b, how fine the grid of prior variances is.
        ceiling: c, which all of them are below.
        tf32: Allow TF32 inside float32 products of the steps on a GPU: faster, three digits. Bases
            and certificates are computed without it.
    """

    basis: str = "kronecker"
    refresh_every: int | None = 10
    refresh_growth: int = 1
    carry: str = "project"
    covariance: str = "diagonal"
    initial: str = "weights"
    epochs: int = 2000
    batch_size: int = 128
    num_samples: int = 1
    noise: str = "weights"
    optimizer: str = "rmsprop"
    learning_rate: float = 1e-3
    drop: float = 0.1
    drop_every: int = 400
    prior_log_std: float = -3.0
    delta: float = 0.025
    precision: float = 100.0
    ceiling: float = 0.1
    tf32: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that are out of range or contradict each other."""
        call = "BoundRecipe({}=...)"
        for name, allowed in _CHOICES.items():
            require_choice(getattr(self, name), allowed, call.format(name))
        for name in ("refresh_growth", "epochs", "batch_size", "num_samples", "drop_every"):
            require_count(getattr(self, name), call.format(name))
        if self.refresh_every is not None:
            require_count(self.refresh_every, call.format("refresh_every"))
        if self.covariance == "full" and self.refresh_every is not None:
            raise InvalidArgumentError(
                "`BoundRecipe(covariance='full')` has no use for another basis: set "
                f"refresh_every=None; got {self.refresh_every}."
            )
        if self.batch_size % self.num_samples:
            raise InvalidArgumentError(
                f"`BoundRecipe(num_samples={self.num_samples})` must divide the batch, for each "
                f"network has examples of its own; got batch_size={self.batch_size}."
            )
        needs_whole_networks = (
            self.num_samples > 1 or self.covariance == "full" or self.basis == "exact"
        )
        if self.noise == "outputs" and needs_whole_networks:
            raise InvalidArgumentError(
                "`BoundRecipe(noise='outputs')` draws for every example, with variances that are "
                "diagonal in the standard or in a Kronecker basis; got "
                f"num_samples={self.num_samples}, covariance='{self.covariance}', "
                f"basis='{self.basis}'. Change that, or use noise='weights'."
            )
        for name in ("learning_rate", "drop", "precision", "ceiling"):
            require_positive(getattr(self, name), call.format(name))
        if not 0.0 < self.delta < 1.0:
            raise InvalidArgumentError(
                f"`BoundRecipe(delta=...)` must be above 0 and below 1; got {self.delta}."
            )

    def learning_rates(self) -> tuple[float, ...]:
        """Return τ of every epoch."""
        drops = (epoch // self.drop_every for epoch in range(self.epochs))
        return tuple(self.learning_rate * self.drop**count for count in drops)

    def refresh_epochs(self) -> tuple[int, ...]:
        """Return the epochs, counted from 0, before which the basis is computed.

        Examples:
            >>> settings = dict(epochs=12, drop_every=4, refresh_every=2)
            >>> BoundRecipe(**settings).refresh_epochs()
            (0, 2, 4, 6, 8, 10)
            >>> BoundRecipe(**settings, refresh_growth=2).refresh_epochs()
            (0, 2, 6)
        """
        if self.refresh_every is None or self.basis == "standard":
            return (0,)
        epochs = [0]
        for epoch in range(1, self.epochs):
            every = self.refresh_every * self.refresh_growth ** (epoch // self.drop_every)
            if epoch - epochs[-1] >= every:
                epochs.append(epoch)
        return tuple(epochs)


PAPER_METHODS: dict[str, dict[str, Any]] = {
    "base": {"basis": "standard", "refresh_every": None},
    "appr": {"refresh_every": None},
    "iter": {},
    "iter-d": {"refresh_growth": 10},
    "iter-m": {"basis": "approximate"},
}


def bound_recipe(method: str, **settings: Any) -> BoundRecipe:
    """Return the recipe of one of Wu's methods, with settings of your own.

    Args:
        method: "base" (standard basis), "appr" (Kronecker basis, once), "iter" (every 10 epochs),
            "iter-d" (with η growing as the learning rate drops) or "iter-m" (with the approximate
            output Hessian of Wu (56)).
        **settings: Fields of `BoundRecipe` to change.

    Returns:
        The recipe.

    Raises:
        UnknownNameError: If there is no such method.

    Examples:
        >>> bound_recipe("appr", epochs=10).refresh_epochs()
        (0,)
    """
    require_choice(method, PAPER_METHODS, "bound_recipe(method)")
    return replace(BoundRecipe(), **{**PAPER_METHODS[method], **settings})
