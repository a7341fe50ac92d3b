"""From a posterior and the data to a certificate, and back: fresh draws check what it says."""

import math
import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from eigenscape.bounds._prior import Prior, prior_vector
from eigenscape.bounds._task import Task
from eigenscape.bounds.kl import kl_inverse
from eigenscape.bounds.pac_bayes import Certificate, pac_bayes_certificate
from eigenscape.bounds.posterior import Posterior
from eigenscape.device import full_precision
from eigenscape.errors import EigenscapeError, InvalidArgumentError, ShapeError, require_count
from eigenscape.parallel import mixed_seed
from eigenscape.records import Checkpoint, Columns, ProgressCallback, Record, Ticker, crc
from eigenscape.risk import EmpiricalRisk

# Rotations further than this from orthonormal are no rotations, and KL is not what was computed.
_ORTHONORMAL = 1e-10
# Chance that fresh draws refute a certificate which is right.
_MISTAKEN = 1e-3


@dataclass(frozen=True, eq=False, repr=False)
class NetworkCertificate(Record):
    """A certificate with everything that is needed to check it but the data and the code.

    Attributes:
        certificate: The bound and its arithmetic.
        posterior: The distribution that networks are drawn from, and the prior.
        data_checksum: Of the examples, as the model gets them.
        constants_checksum: Of what all networks drawn share: buffers and frozen parameters.
        dtype: In which the networks are evaluated; products are never rounded to TF32.
        examples_per_draw: B, examples that each network was judged on, drawn for it alone; None if
            each was judged on all.
    """

    certificate: Certificate
    posterior: Posterior
    data_checksum: int
    constants_checksum: int
    dtype: str
    examples_per_draw: int | None = None

    @property
    def bound(self) -> float:
        """The error on new data is at most this, with probability 1 − δ − δ'."""
        return self.certificate.bound

    def columns(self) -> Columns:
        """Return the certificate as one row."""
        per_draw = self.examples_per_draw or self.certificate.num_examples
        return {**self.certificate.columns(), "examples_per_draw": [per_draw]}

    def verify(
        self,
        risk: EmpiricalRisk,
        *,
        prior: Prior | None = None,
        num_samples: int | None = None,
        networks_at_once: int = 8,
        seed: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Certificate:
        """Check the certificate against the data, with fresh draws from the posterior.

        Checked are: the examples and the constants by their checksums, n, the rotations, KL by
        another formula in the basis, all arithmetic, the prior as far as it can be seen, and that
        fresh draws do not refute the bound on the posterior's error (a right certificate is refuted
        with probability 10⁻³). The model's own weights do not matter: networks come from the
        posterior.

        Whoever made the certificate may have moved w₀ and its SHA-256 together. Only weights
        from before training that you trust, or make again from their seed, show that: give them as
        `prior`.

        Args:
            risk: The same model, loss and data.
            prior: The model's `state_dict` from before training, or the file that holds it; w₀ must
                be equal to it.
            num_samples: Fresh draws; by default as many as the certificate had. Each is judged on
                as many examples as the certificate's were.
            networks_at_once: Networks evaluated together.
            seed: Of the fresh draws, another than the certificate's; the next one by default.
            progress: Called after every few networks.

        Returns:
            The certificate from the fresh draws.

        Raises:
            EigenscapeError: If something is not as the certificate says.
            InvalidArgumentError: If the seed is the certificate's own, or the prior was made from
                the data.
        """
        old, again = self.certificate, self.seed + 1 if seed is None else seed
        if again == self.seed:
            raise InvalidArgumentError(
                f"`verify(seed={again})` would draw the certificate's own networks. Give another."
            )
        task = Task(risk)
        old.verify_arithmetic()
        facts = {
            "parameters": (self.posterior.names, tuple(risk.space.names)),
            "dtype": (self.dtype, str(risk.dtype)),
            "number of examples": (old.num_examples, task.num_examples),
            "examples' checksum": (self.data_checksum, task.checksum()),
            "constants' checksum": (self.constants_checksum, task.constants_checksum()),
        }
        for name, (said, actual) in facts.items():
            if said != actual:
                raise EigenscapeError(
                    f"The certificate's {name} is {said}, here it is {actual}. Verify it with the "
                    "model and the data that it was made with."
                )
        if prior is not None:
            self._require_prior(risk, prior)
        _require_rotations(self.posterior)
        divergence = _kl_again(self.posterior, old.prior_variance)
        if not math.isclose(old.kl, divergence, rel_tol=1e-8):
            raise EigenscapeError(
                f"The certificate's KL is {old.kl!r}, but its posterior and prior give "
                f"{divergence!r}. It was changed after it was computed; compute it again."
            )
        fresh = certify(
            risk,
            self.posterior,
            num_samples=old.num_samples if num_samples is None else num_samples,
            examples_per_draw=self.examples_per_draw,
            networks_at_once=networks_at_once,
            delta=old.delta,
            delta_samples=old.delta_samples,
            precision=old.precision,
            ceiling=old.ceiling,
            method=old.method,
            seed=again,
            progress=progress,
        ).certificate
        room = math.log(2.0 / _MISTAKEN) / fresh.num_samples
        least = float(kl_inverse(fresh.error, room, side="lower"))
        if least > old.error_bound:
            raise EigenscapeError(
                f"{fresh.num_samples} fresh networks have a mean error of {fresh.error:.4g}, and "
                f"the posterior one of at least {least:.4g}; the certificate says at most "
                f"{old.error_bound:.4g}. It does not hold."
            )
        return fresh

    def _require_prior(self, risk: EmpiricalRisk, prior: Prior) -> None:
        """Refuse a certificate whose w₀ is not these weights."""
        independent = self.posterior.prior_source == "other data"
        trusted = prior_vector(risk, prior, independent=independent)
        gap = float((self.posterior.prior_means.to(trusted) - trusted).abs().max())
        if gap != 0.0:
            raise InvalidArgumentError(
                "`verify(prior=...)` must be the weights that the certificate's prior is centred "
                f"at; they differ by up to {gap:.3g}. Give the weights from before this training; "
                "if these are they, the prior was moved and the certificate is void."
            )


@full_precision()
def certify(
    risk: EmpiricalRisk,
    posterior: Posterior,
    *,
    num_samples: int = 1000,
    examples_per_draw: int | None = None,
    networks_at_once: int = 8,
    delta: float = 0.025,
    delta_samples: float = 0.01,
    precision: float = 100.0,
    ceiling: float = 0.1,
    method: str = "langford-seeger",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> NetworkCertificate:
    """Return the certificate of a posterior: networks are drawn, and examples classified by them.

    Draws are made in float64 and then rounded to the model's dtype; the rounding is part of the
    classifier, so KL in float64 is the right one. TF32 is off meanwhile, whatever the optimisation
    had. Cost: `num_samples` passes over the data, or over `examples_per_draw` of them.

    With `examples_per_draw` the pairs of a network and its examples are independent and alike, each
    error is in [0, 1], and its mean is ê(Q). The step for the draws needs nothing else, so the
    certificate says the same with the same δ'; its error is a little noisier.

    Args:
        risk: Model, classification loss, and data. n is the number of examples that they gave.
        posterior: From `optimise_posterior` or `make_posterior`, for the same parameters.
        num_samples: m, networks to draw. Wu have 50 000; 1000 cost about 0.02 in the bound.
        examples_per_draw: B, examples that a network is judged on, drawn uniformly and with
            replacement, anew for each network; at most n. All n by default.
        networks_at_once: Networks evaluated together, under `vmap`; no answer depends on it.
        delta: δ, the chance that the examples mislead.
        delta_samples: δ', the chance that the draws mislead.
        precision: b, chosen before the data were seen.
        ceiling: c, chosen before the data were seen.
        method: "langford-seeger" or "mcallester".
        checkpoint: Folder in which to save the errors so far; called again with the same
            arguments, a run that was killed continues with the draws that are left.
        checkpoint_every: Networks between two savings, at least.
        seed: Fixes the draws.
        progress: Called after every few networks.

    Returns:
        The certificate, which holds with probability at least 1 − δ − δ'.

    Raises:
        InvalidArgumentError: If a count or a probability is out of range, or the prior was made
            from the data.
        ShapeError: If the posterior is one of other parameters.
        EigenscapeError: If its rotations are not orthonormal.
        UnsupportedModelError: If the risk is no classification.
        CheckpointError: If the checkpoint is of other draws.
    """
    m = require_count(num_samples, "certify(num_samples=...)")
    at_once = require_count(networks_at_once, "certify(networks_at_once=...)")
    every = require_count(checkpoint_every, "certify(checkpoint_every=...)")
    if posterior.names != tuple(risk.space.names) or posterior.basis.size != risk.space.size:
        raise ShapeError(
            f"`certify(risk, posterior)`: the posterior has {posterior.basis.size} parameters, "
            f"'{posterior.names[0]}' first; the risk {risk.space.size}, '{risk.space.names[0]}' "
            "first. Give the posterior of this model."
        )
    _require_rotations(posterior)
    task, home = Task(risk), _moved(posterior, risk.device)
    home.require_blind_prior(task)
    B = examples_per_draw
    if B is not None:
        require_count(B, "certify(examples_per_draw=...)", at_most=task.num_examples)
    draws = _Draws(home, task, risk, B, seed)
    if checkpoint is not None:
        draws.save_in(checkpoint, m, every)
    errors = draws.run(m, at_once, progress)
    certificate = pac_bayes_certificate(
        errors,
        home.kl,
        prior_variance=posterior.prior_variance,
        num_examples=task.num_examples,
        delta=delta,
        delta_samples=delta_samples,
        precision=precision,
        ceiling=ceiling,
        method=method,
        seed=seed,
    )
    return NetworkCertificate(
        status=certificate.status,
        num_products=0,
        seed=seed,
        certificate=certificate,
        posterior=posterior,
        data_checksum=task.checksum(),
        constants_checksum=task.constants_checksum(),
        dtype=str(risk.dtype),
        examples_per_draw=B,
    )


class _Draws:
    """Networks drawn from a posterior, and their errors."""

    def __init__(
        self, home: Posterior, task: Task, risk: EmpiricalRisk, per_draw: int | None, seed: int
    ) -> None:
        self._home, self._task, self._risk, self._seed = home, task, risk, seed
        self._per_draw = per_draw
        # Weights may have begun as the first numbers of the plain seed; draws must not follow them.
        self._generator = torch.Generator(risk.device).manual_seed(mixed_seed("draws", seed))
        self._errors: list[Tensor] = []
        self._checkpoint: Checkpoint | None = None
        self._every = 1

    def save_in(self, folder: str | os.PathLike[str], count: int, every: int) -> None:
        """Say where errors are saved, and continue after those that are there."""
        home = self._home
        rotations = [R for layer in home.basis.layers for R in layer.rotations]
        key = {
            "draws": count,
            "examples per draw": self._per_draw or "all",
            "seed": self._seed,
            "data": self._task.checksum(),
            "constants": self._task.constants_checksum(),
            "posterior": [crc(t) for t in (home.means, home.variances, *rotations)],
            "place": f"{self._risk.dtype}, {self._risk.device.type}",
        }
        self._every, self._checkpoint = every, Checkpoint(folder, key)
        if pieces := self._checkpoint.load():
            self._errors = [pieces[-1]["errors"].to(self._risk.device)]
            self._generator.set_state(pieces[-1]["generator"])

    def run(self, count: int, at_once: int, progress: ProgressCallback | None) -> Tensor:
        """Return the errors of all networks (count,)."""
        done = saved = sum(len(errors) for errors in self._errors)
        ticker = Ticker(progress, "drawing networks", count, first=done)
        while done < count:
            # One by one, so that another `networks_at_once` draws the same networks.
            noise, index = [], []
            for _ in range(min(at_once, count - done)):
                noise.append(self._noise())
                if self._per_draw is not None:
                    index.append(self._examples(self._per_draw))
            # Columns, but a network's numbers side by side in memory.
            rows = self._home.draw(torch.stack(noise).T).T.to(self._risk.dtype)
            self._errors.append(self._task.errors(rows, torch.stack(index) if index else None))
            done += len(noise)
            if self._checkpoint is not None and (done - saved >= self._every or done == count):
                self._checkpoint.replace(
                    {"errors": torch.cat(self._errors), "generator": self._generator.get_state()}
                )
                saved = done
            ticker.tick(done)
        return torch.cat(self._errors)

    def _noise(self) -> Tensor:
        return torch.randn(
            self._home.basis.size,
            generator=self._generator,
            dtype=torch.float64,
            device=self._risk.device,
        )

    def _examples(self, count: int) -> Tensor:
        """Return the numbers (B,) of examples for one network alone."""
        n, device = self._task.num_examples, self._risk.device
        return torch.randint(n, (count,), generator=self._generator, device=device)


def _moved(posterior: Posterior, device: torch.device) -> Posterior:
    target = torch.zeros((), dtype=torch.float64, device=device)
    names = ("means", "variances", "basis", "prior_means")
    return replace(posterior, **{name: getattr(posterior, name).to(target) for name in names})


def _require_rotations(posterior: Posterior) -> None:
    if (gap := posterior.basis.orthonormality()) > _ORTHONORMAL:
        raise EigenscapeError(
            f"The posterior's rotations are {gap:.2g} away from orthonormal, so its divergence is "
            "not what the variances give. Compute the basis in float64 with `layer_basis`."
        )


def _kl_again(posterior: Posterior, prior_variance: float) -> float:
    """Return KL(Q‖P) by another way: in the basis, coordinate by coordinate."""
    home = _moved(posterior, torch.device("cpu"))
    mean, origin = (home.basis.to_basis(v) for v in (home.means, home.prior_means))
    prior = Normal(origin, torch.full_like(origin, prior_variance).sqrt())
    divergences: Tensor = kl_divergence(Normal(mean, home.variances.sqrt()), prior)
    return float(divergences.sum())
