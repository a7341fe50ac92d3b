"""A prior that saw the data is refused wherever a certificate is made or checked."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from eigenscape.bounds import (
    BoundRecipe,
    NetworkCertificate,
    Posterior,
    certify,
    make_posterior,
    optimise_posterior,
    pac_bayes_bound,
)
from eigenscape.errors import FileError, InvalidArgumentError
from eigenscape.runs import read_run
from tests.bounds.conftest import Problem


def sha256(posterior: Posterior) -> str:
    """The digest as its docstring words it: the names as JSON, then the numbers."""
    names = json.dumps(list(posterior.names)).encode()
    return hashlib.sha256(names + posterior.prior_means.numpy().tobytes()).hexdigest()


def moved(posterior: Posterior, to: Tensor, *, part: float, renamed: bool) -> Posterior:
    """Move the prior towards a point, and, if `renamed`, let it name the new place."""
    origin = torch.lerp(posterior.prior_means, to, part)
    forged = dataclasses.replace(posterior, prior_means=origin)
    return dataclasses.replace(forged, prior_sha256=sha256(forged)) if renamed else forged


@pytest.fixture
def posterior(problem: Problem) -> Posterior:
    return make_posterior(problem.risk, problem.prior, prior_variance=0.08)


def forged_record(problem: Problem, posterior: Posterior, fake: Posterior) -> NetworkCertificate:
    """A stored certificate whose numbers agree with the moved prior."""
    found = certify(problem.risk, posterior, num_samples=20)
    kl = float(fake.kl(found.certificate.prior_variance))
    old = found.certificate
    bound = pac_bayes_bound(old.error_bound, kl, index=old.index, num_examples=old.num_examples)
    lower = dataclasses.replace(old, kl=kl, bound=bound)
    lower.verify_arithmetic()
    assert lower.kl < old.kl
    return dataclasses.replace(found, certificate=lower, posterior=fake)


def test_the_digest_is_that_of_the_weights_before_training(
    problem: Problem, posterior: Posterior
) -> None:
    given = torch.cat([problem.prior[name].flatten() for name in posterior.names])
    assert torch.equal(posterior.prior_means, given)
    assert posterior.prior_sha256 == sha256(posterior)
    fit = optimise_posterior(problem.risk, problem.prior, recipe=BoundRecipe(epochs=1))
    assert fit.posterior.prior_sha256 == posterior.prior_sha256


@pytest.mark.parametrize(
    ("part", "renamed", "words"),
    [
        (1.0, False, "moved after the initial weights were named"),
        (0.5, False, "moved after the initial weights were named"),
        (1e-6, False, "moved after the initial weights were named"),
        (1.0, True, "equals the posterior's mean"),
        (0.9, True, "seems fitted"),
    ],
)
def test_a_moved_prior_is_refused(
    problem: Problem, posterior: Posterior, part: float, renamed: bool, words: str
) -> None:
    fake = moved(posterior, posterior.means, part=part, renamed=renamed)
    with pytest.raises(InvalidArgumentError, match=words):
        certify(problem.risk, fake, num_samples=3)
    record = forged_record(problem, posterior, fake)
    with pytest.raises(InvalidArgumentError, match=words):
        record.verify(problem.risk)


def test_a_prior_at_the_trained_weights_of_an_optimised_posterior_is_refused(
    problem: Problem,
) -> None:
    trained = problem.risk.space.flatten(problem.risk.parameters()).double()
    recipe = BoundRecipe(epochs=3, batch_size=30)
    fit = optimise_posterior(problem.risk, problem.prior, recipe=recipe)
    assert not torch.equal(fit.posterior.means, trained)
    fake = moved(fit.posterior, trained, part=1.0, renamed=True)
    with pytest.raises(InvalidArgumentError, match="seems fitted"):
        certify(problem.risk, fake, num_samples=3)
    fresh = dataclasses.replace(fake, prior_source="other data")  # a lie that nobody can see …
    certify(problem.risk, fresh, num_samples=3)
    record = forged_record(problem, fit.posterior, fresh)
    record.verify(problem.risk)
    with pytest.raises(InvalidArgumentError, match="must be the weights"):  # … but with the weights
        record.verify(problem.risk, prior=problem.prior)


def test_a_prior_moved_a_little_is_seen_with_the_weights_before_training(
    problem: Problem, posterior: Posterior, tmp_path: Path
) -> None:
    # Too little to classify well, and under a digest of its own: only the weights tell.
    fake = moved(posterior, posterior.means, part=0.02, renamed=True)
    record = forged_record(problem, posterior, fake)
    record.verify(problem.risk)
    save_file(problem.prior, tmp_path / "init.safetensors")
    for prior in (problem.prior, tmp_path / "init.safetensors"):
        with pytest.raises(InvalidArgumentError, match=r"differ by up to 0\.\d+"):
            record.verify(problem.risk, prior=prior)


def test_a_right_certificate_is_confirmed_with_the_weights_before_training(
    problem: Problem, posterior: Posterior, tmp_path: Path
) -> None:
    certify(problem.risk, posterior, num_samples=20).save(tmp_path / "run")
    record = read_run(tmp_path / "run").record
    assert isinstance(record, NetworkCertificate)
    record.verify(problem.risk, prior=problem.prior)
    with torch.no_grad():  # whoever checks it may have the untrained network
        for name, parameter in problem.model.named_parameters():
            parameter.copy_(problem.prior[name])
    record.verify(problem.risk, prior=problem.model.state_dict())
    with pytest.raises(FileError, match="cannot be read"):
        record.verify(problem.risk, prior=tmp_path / "gone.safetensors")
