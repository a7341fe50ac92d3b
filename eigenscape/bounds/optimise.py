"""Optimise a posterior for a small bound: Wu's Algorithm 1.

Letters: w (P) posterior mean, ς = ½ log s with s the variances in the basis, ϱ = ½ log λ; w₀ prior
mean, n examples, ξ noise, w' = w + Q(e^ς ∘ ξ) a network drawn. What falls is L(w') + R,

    R = √(B/2),  B = (KL + 2 log j + log(π² n/6δ))/(n − 1),  j = b log(c/λ),

L the surrogate loss of a batch. ϱ is kept where j ≥ 1: below, 2 log j has no bound, and there is no
λ on the grid. R has its derivatives written out; those of L come from autograd.
"""

import dataclasses
import json
import math
import os
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eigenscape.bounds._bases import InputAxes
from eigenscape.bounds._prior import Prior
from eigenscape.bounds._steps import Steps
from eigenscape.bounds._task import Task, working_risk
from eigenscape.bounds.pac_bayes import pac_bayes_bound
from eigenscape.bounds.posterior import (
    Basis,
    Posterior,
    basis_again,
    basis_curvature,
    make_posterior,
    weight_variances,
)
from eigenscape.bounds.recipe import BoundRecipe
from eigenscape.device import full_precision
from eigenscape.errors import require_count
from eigenscape.parallel import epoch_order, mixed_seed
from eigenscape.records import (
    Checkpoint,
    Columns,
    Progress,
    ProgressCallback,
    Record,
    Status,
    Ticker,
    crc,
    pack,
    tensor_text,
    text_tensor,
    unpack,
)
from eigenscape.risk import EmpiricalRisk

_HISTORY = ("bound", "kl", "error", "loss", "prior_variance")


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorFit(Record):
    """An optimised posterior and the course of its optimisation.

    Attributes:
        posterior: The posterior; `certify` makes a certificate of it.
        recipe: How it was optimised.
        bound: (E,) float64, the bound after each epoch with the running error in place of a
            certified one: an indication, no certificate.
        kl: (E,) KL(Q‖P) at the end of the epoch.
        error: (E,) mean error of the networks drawn in the epoch, on their batches.
        loss: (E,) their mean surrogate loss.
        prior_variance: (E,) λ at the end of the epoch.
        seconds: Wall time, that of interrupted earlier runs included.
    """

    posterior: Posterior
    recipe: BoundRecipe
    bound: Tensor
    kl: Tensor
    error: Tensor
    loss: Tensor
    prior_variance: Tensor
    seconds: float

    def columns(self) -> Columns:
        """Return one row per epoch, counted from 1."""
        epochs = range(1, len(self.bound) + 1)
        return {"epoch": epochs, **{name: getattr(self, name).tolist() for name in _HISTORY}}


def optimise_posterior(
    risk: EmpiricalRisk,
    prior: Prior,
    *,
    recipe: BoundRecipe | None = None,
    prior_source: str = "initialisation",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 50,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> PosteriorFit:
    """Find mean, variances and prior variance with a small bound, from the model's weights.

    The model itself is not changed. Cost: an epoch is one of training, with two rotations of each
    network drawn. On a GPU the steps are recorded in CUDA graphs, and nothing is read back within
    an epoch.

    Args:
        risk: Model with trained weights, a classification loss, and the data of the bound.
        prior: The model's `state_dict` from before training, or the file that holds it; see
            `make_posterior`.
        recipe: How; by default Wu's ITER.
        prior_source: "initialisation" or "other data"; see `make_posterior`.
        checkpoint: Folder in which to save the state; called again with the same arguments, a run
            that was killed continues from there.
        checkpoint_every: Epochs between two savings.
        seed: Fixes the order of the data and the networks drawn.
        progress: Called after every epoch; its text has the current bound.

    Returns:
        The posterior. If numbers stop being finite, it is that of the last good epoch, and the
        status says so.

    Raises:
        InvalidArgumentError: If the prior does not fit the model or depends on the data.
        UnsupportedModelError: If the risk is no classification.
        CheckpointError: If the checkpoint is of another run.
    """
    chosen = BoundRecipe() if recipe is None else recipe
    require_count(checkpoint_every, "optimise_posterior(checkpoint_every=...)")
    start = make_posterior(
        risk,
        prior,
        prior_variance=math.exp(2.0 * chosen.prior_log_std),
        prior_source=prior_source,
    )
    session = _Session(working_risk(risk), start, chosen, seed)
    if checkpoint is not None:
        session.save_in(checkpoint, checkpoint_every)
    result = session.run(progress)
    result.status.warn()
    return result


class _Session:
    """One optimisation from start to end."""

    def __init__(
        self, risk: EmpiricalRisk, start: Posterior, recipe: BoundRecipe, seed: int
    ) -> None:
        self._risk, self._start, self._recipe, self._seed = risk, start, recipe, seed
        self._task = Task(risk)
        self._steps = Steps(risk, self._task, start, recipe)
        # In float64; the steps have a copy in the model's dtype.
        self._basis, self._axes = start.basis, InputAxes()
        # The order of an epoch that was drawn ahead of it.
        self._ahead: tuple[int, Tensor] | None = None
        self._done, self._seconds = 0, 0.0
        self._history = torch.full((recipe.epochs, len(_HISTORY)), math.nan, dtype=torch.float64)
        self._trouble: Status | None = None
        self._checkpoint: Checkpoint | None = None
        self._every = 1

    def save_in(self, folder: str | os.PathLike[str], every: int) -> None:
        """Say where the state is saved, and continue from what is there."""
        key = {
            "layout": 2,
            "recipe": dataclasses.asdict(self._recipe),
            "seed": self._seed,
            "data": self._task.checksum(),
            "weights": crc(self._start.means),
            "prior": crc(self._start.prior_means),
        }
        self._every, self._checkpoint = every, Checkpoint(folder, key)
        if pieces := self._checkpoint.load():
            self._restore(pieces[-1])

    def run(self, progress: ProgressCallback | None) -> PosteriorFit:
        """Run the epochs that are left."""
        recipe = self._recipe
        rates, refreshes = recipe.learning_rates(), frozenset(recipe.refresh_epochs())
        ticker = Ticker(self._announced(progress), "", recipe.epochs, first=self._done)
        clock = time.monotonic()
        while self._done < recipe.epochs and self._trouble is None:
            if self._done in refreshes:
                self._refresh()
            before = [tensor.clone() for tensor in self._steps.moving()]
            self._run_epoch(self._done, rates[self._done])
            self._note(before)
            now = time.monotonic()
            self._seconds, clock = self._seconds + now - clock, now
            due = self._done % self._every == 0 or self._done == recipe.epochs
            if self._checkpoint is not None and due and self._trouble is None:
                self._checkpoint.replace(self._state())
            ticker.tick(self._done)
        return self._result()

    def _refresh(self) -> None:
        """Compute the basis at the present mean, and bring everything that lives in it along."""
        steps, params = self._steps, self._risk.space.unflatten(self._steps.w)
        for name, tensor in self._risk.parameters().items():
            tensor.copy_(params[name])
        old, new = self._basis, basis_again(self._risk, self._recipe.basis, self._axes)
        if self._done == 0:
            steps.log_std.copy_(0.5 * self._first_variances(new).log())
        elif self._recipe.carry == "project":
            before = (2.0 * steps.log_std.double()).exp()
            variances = old.carry(before, new)
            steps.log_std.copy_(0.5 * variances.log())
            # A slope along ς is one along the direction, times noise of variance s. The mean square
            # of the latter is the diagonal of a second moment, as variances are.
            squares = steps.squares[0][1].double() / before
            steps.squares[0][1].copy_(old.carry(squares, new) * variances)
        self._basis = new
        steps.turn(new)

    def _first_variances(self, basis: Basis) -> Tensor:
        if self._recipe.initial == "weights":
            return weight_variances(basis.to_basis(self._steps.w.double()))
        curvature = basis_curvature(self._risk, basis)
        return 1.0 / ((-2.0 * self._steps.rho).exp() + self._task.num_examples * curvature)

    def _run_epoch(self, epoch: int, rate: float) -> None:
        order = self._order(epoch)
        # Within `evaluating`, which switches TF32 off.
        with self._risk.evaluating(), full_precision(tf32=self._recipe.tf32):
            self._steps.run_epoch(order, rate, mixed_seed("posterior", self._seed, epoch))
        # Drawing the next order now costs nothing where a device is still busy.
        self._ahead = epoch + 1, self._order(epoch + 1)

    def _order(self, epoch: int) -> Tensor:
        if self._ahead is not None and self._ahead[0] == epoch:
            return self._ahead[1]
        return epoch_order(self._seed, epoch, self._task.num_examples)

    def _note(self, before: list[Tensor]) -> None:
        """Read the epoch's numbers: the one place where the host waits for the device."""
        n, moving = self._task.num_examples, self._steps.moving()
        kl = self._steps.kl()
        finite = torch.stack([tensor.isfinite().all() for tensor in moving]).all().double()
        read = torch.stack([*(self._steps.sums / n), kl, self._steps.rho, finite]).tolist()
        error, loss, divergence, rho, is_finite = read
        if not (is_finite and all(math.isfinite(value) for value in read)):
            for tensor, value in zip(moving, before, strict=True):
                tensor.copy_(value)
            self._trouble = Status(
                False,
                f"Numbers stopped being finite in epoch {self._done + 1} of {self._recipe.epochs}, "
                "and the posterior is that of the epoch before. Lower the learning rate (it was "
                f"{self._recipe.learning_rates()[self._done]:g}).",
            )
            return
        recipe = self._recipe
        j = max(1, round(recipe.precision * (math.log(recipe.ceiling) - 2.0 * rho)))
        bound = pac_bayes_bound(
            error, max(divergence, 0.0), index=j, num_examples=n, delta=recipe.delta
        )
        row = (bound, divergence, error, loss, math.exp(2.0 * rho))
        self._history[self._done] = torch.tensor(row, dtype=torch.float64)
        self._done += 1

    def _announced(self, progress: ProgressCallback | None) -> ProgressCallback | None:
        """Put the bound into the progress text."""
        if progress is None:
            return None

        def announce(step: Progress) -> None:
            bound = float(self._history[self._done - 1, 0]) if self._done else math.nan
            progress(dataclasses.replace(step, task=f"optimising, bound about {bound:.4f}"))

        return announce

    def _result(self) -> PosteriorFit:
        history = self._history[: self._done]
        last = float(history[-1, 0]) if self._done else math.nan
        done = f"{self._done} epochs; the bound is about {last:.4f}."
        basis, variances = self._steps.diagonal(self._basis)
        columns: dict[str, Any] = {
            name: history[:, number].clone() for number, name in enumerate(_HISTORY)
        }
        return PosteriorFit(
            status=Status(True, done) if self._trouble is None else self._trouble,
            num_products=0,
            seed=self._seed,
            posterior=dataclasses.replace(
                self._start,
                means=self._steps.w.double(),
                variances=variances,
                basis=basis,
                prior_variance=float((2.0 * self._steps.rho).exp()),
            ),
            recipe=self._recipe,
            seconds=self._seconds,
            **columns,
        )

    def _state(self) -> dict[str, Tensor]:
        """Return everything that changes; what is no tensor as JSON beside the tensors."""
        state = {
            "moving": self._steps.moving(),
            "squares": self._steps.squares,
            "basis": self._basis,
            "history": self._history,
            "done": self._done,
            "seconds": self._seconds,
        }
        plain, tensors = pack(state)
        return {**tensors, "plain": text_tensor(json.dumps(plain))}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        saved = unpack(json.loads(tensor_text(tensors["plain"])), tensors)
        values = (*saved["moving"], *saved["squares"])
        for tensor, value in zip(
            (*self._steps.moving(), *self._steps.squares), values, strict=True
        ):
            tensor.copy_(value)
        # In float64, as it was, on the device of the risk.
        self._basis = saved["basis"].to(self._start.means)
        self._steps.turn(self._basis)
        self._history.copy_(saved["history"])
        self._done, self._seconds = saved["done"], saved["seconds"]
