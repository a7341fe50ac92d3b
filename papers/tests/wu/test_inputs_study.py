"""Which pixels the networks of the paper saw."""

from collections.abc import Callable

import numpy as np
import pytest

from eigenscape_papers.datasets import load
from eigenscape_papers.runner import StudyResult


def test_the_ratio_is_that_of_plain_numpy(ran: Callable[[str], StudyResult]) -> None:
    """A first layer's input is the image: mean and covariance need no network."""
    columns = ran("wu-inputs").sheets[0].columns
    x = load("digits", normalise="unit").inputs.double().flatten(1).numpy()
    for place, how in enumerate(columns["normalised"]):
        seen = x if how == "unit" else (x - 0.5) / 0.5
        mean = seen.mean(0)
        spread = np.linalg.eigvalsh(np.cov(seen.T, bias=True))[-1]
        assert columns["‖E[x]E[x]ᵀ‖/‖Σ‖"][place] == pytest.approx(mean @ mean / spread, rel=1e-5)


def test_numbers_for_three_channels_are_left_out_for_one(ran: Callable[[str], StudyResult]) -> None:
    assert ran("wu-inputs").sheets[0].columns["normalised"] == ("unit", "half")
