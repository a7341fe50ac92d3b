"""The Wasserstein distance between spectra whose atoms are known."""

import math

import pytest
import torch

from eigenscape.analyses import spectral_distance
from eigenscape.linalg import eigsh, spectral_density
from eigenscape.operators import Dense


def test_scaling_a_matrix_by_e_moves_its_log_spectrum_by_one() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 5.0, 8.0])
    densities = [
        spectral_density(
            Dense(torch.diag(values * factor)),
            num_steps=5,
            num_probes=1,
            epsilon=1e-12,
            scale="log",
        )
        for factor in (1.0, math.e)
    ]
    # Nodes times e and weights alike: each atom moves by exactly 1, up to ε/λ.
    assert spectral_distance(*densities) == pytest.approx(1.0, abs=1e-9)
    assert spectral_distance(densities[0], densities[0]) == 0.0


def test_spikes_count_as_one_eigenvalue_each() -> None:
    values = torch.tensor([1.0, 1.0, 1.0, 1.0])
    first = spectral_density(Dense(torch.diag(values)), num_steps=1, num_probes=1, epsilon=1e-12)
    moved = Dense(torch.diag(torch.tensor([math.e**4, 1.0, 1.0, 1.0])))
    outliers = eigsh(moved, num_pairs=1)
    second = spectral_density(moved, num_steps=1, num_probes=1, outliers=outliers, epsilon=1e-12)
    # A quarter of the mass moves by 4.
    assert spectral_distance(first, second) == pytest.approx(1.0, abs=1e-9)
