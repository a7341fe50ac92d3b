"""Each layer's input, as in the tables of the first version."""

from collections.abc import Callable

import numpy as np
import pytest

from eigenscape.report import StudyResult
from eigenscape.studies import Networks
from tests.studies.conftest import inputs_of


def test_the_ratio_is_that_of_the_layers_input(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    columns = ran("wu-2020-layers").sheets[0].columns
    place = columns["layer"].index("fc2")
    ratios, inner = [], []
    for seed in tiny.cast.seeds:
        x = inputs_of(tiny, seed, "fc2").numpy()
        mean = x.mean(0)
        first = np.linalg.eigh(x.T @ x)[1][:, -1]
        ratios.append(mean @ mean / np.linalg.eigvalsh(np.cov(x.T, bias=True))[-1])
        inner.append(abs(first @ mean) / np.linalg.norm(mean))
    assert columns["‖E[x]E[x]ᵀ‖/‖Σ‖"][place] == pytest.approx(np.mean(ratios), rel=1e-5)
    assert columns["|v₁ᵀÊ[x]|"][place] == pytest.approx(np.mean(inner), rel=1e-5)
