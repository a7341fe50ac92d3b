"""The Wasserstein distance between spectra whose atoms are known."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from eigenscape.analyses import spectral_distance
from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape.linalg import eigsh, spectral_density
from eigenscape.operator import Dense


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


def test_eigenvalues_stand_for_their_density() -> None:
    values = torch.tensor([5.0, 3.0, -2.0, 1.0])
    rho = spectral_density(Dense(torch.diag(values)), num_steps=4, num_probes=1, epsilon=1e-12)
    # A random probe weighs them otherwise than alike.
    rho = dataclasses.replace(rho, nodes=values[None], weights=torch.full((1, 4), 0.25))
    assert spectral_distance(values, rho) == 0.0
    moved = spectral_distance(rho, math.e * values)
    assert moved == pytest.approx(1.0, abs=1e-9)
    assert spectral_distance(values, math.e * values) == pytest.approx(1.0, abs=1e-9)
    assert spectral_distance is spectral_distance


def test_eigenvalues_of_matrices_of_other_sizes_by_hand() -> None:
    # Half of the mass goes from 1 to e, a sixth of it back: quantiles 0, 0 | 1 and 0 | 1, 1.
    first = torch.tensor([1.0, 1.0, math.e])
    second = torch.tensor([-1.0, math.e])
    assert spectral_distance(first, second, epsilon=1e-15) == pytest.approx(1 / 6, abs=1e-12)


def test_sizes_below_epsilon_do_not_count() -> None:
    first, second = torch.tensor([1.0, 1e-30]), torch.tensor([1.0, -1e-20])
    assert spectral_distance(first, second) < 1e-3  # ε = 2e-16
    assert spectral_distance(first, second, epsilon=1e-60) == pytest.approx(5 * math.log(10))
    single = spectral_distance(first.float(), torch.tensor([1.0, 1e-12], dtype=torch.float32))
    assert single < 1e-4  # ε = 1e-7
    assert spectral_distance(torch.zeros(3), torch.zeros(2)) == 0.0


def test_refusals() -> None:
    values = torch.ones(3)
    operator: Any = Dense(torch.eye(3))
    numbers: Any = [1.0, 2.0]
    with pytest.raises(WrongTypeError, match=r"got Dense. .*spectral_density\(operator\)"):
        spectral_distance(values, operator)
    with pytest.raises(WrongTypeError, match="got list"):
        spectral_distance(numbers, values)
    with pytest.raises(WrongTypeError, match="int64"):
        spectral_distance(torch.arange(3), values)
    for wrong in (torch.eye(3), torch.zeros(0)):
        with pytest.raises(ShapeError, match="eigvalsh"):
            spectral_distance(values, wrong)
    with pytest.raises(NonFiniteError, match="finite"):
        spectral_distance(values, torch.tensor([1.0, math.nan]))
    with pytest.raises(InvalidArgumentError, match="above 0"):
        spectral_distance(values, values, epsilon=0.0)
