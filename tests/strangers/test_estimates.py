"""Errors of estimates are honest at any scale, for few samples, few steps and repeated eigenvalues.

What strangers found to be stated too small, or as 0, in the words of the functions themselves.
"""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import eigenscape as es
from eigenscape.errors import CheckpointError, ConvergenceWarning
from eigenscape.linalg import (
    Hutchinson,
    HutchPlusPlus,
    XTrace,
    block_norms,
    block_traces,
    certify,
    diagonal,
    eigsh,
    frobenius_norm,
    lanczos,
    noise_floor,
    power_iteration,
    solve,
    spectral_density,
    spectral_norm,
    subspace_iteration,
    trace,
)
from eigenscape.operator import Dense, LinearOperator
from eigenscape.records import Record
from eigenscape.space import ParamSpace, Partition
from eigenscape.testing import matrix_with_spectrum

N = 40
SPACE = ParamSpace({"a": (25,), "b": (15,)})
PARTS = Partition.by_tensor(SPACE)
VALUES = torch.cat([torch.tensor([9.0, 7.0, 5.0]), torch.linspace(-1.0, 2.0, N - 3)]).double()
MATRIX = matrix_with_spectrum(VALUES, seed=1)

# What each function says about A, with a power of the scale that each part has.
Answer = list[tuple[Tensor | float, int]]
ANSWERS: dict[str, Callable[[LinearOperator, float], Answer]] = {
    "eigsh": lambda A, s: of(eigsh(A, num_pairs=3), values=1, residuals=1),
    "eigsh, both ends": lambda A, s: of(eigsh(A, num_pairs=3, which="both"), values=1, residuals=1),
    "power_iteration": lambda A, s: of(power_iteration(A), values=1, residuals=1),
    "subspace_iteration": lambda A, s: of(
        subspace_iteration(A, num_pairs=3, num_extra=3), values=1, residuals=1
    ),
    "filter": lambda A, s: of(subspace_iteration(A, num_pairs=3, degree=8), values=1),
    "certify": lambda A, s: of(certify(A, torch.eye(N, 3).double()), values=1, residuals=1),
    "trace": lambda A, s: of(trace(A, num_products=8), value=1, stderr=1),
    "trace, sphere": lambda A, s: of(
        trace(A, num_products=8, method=Hutchinson("sphere")), value=1, stderr=1
    ),
    "XTrace": lambda A, s: of(trace(A, num_products=12, method=XTrace()), value=1, stderr=1),
    "Hutch++": lambda A, s: of(
        trace(A, num_products=12, method=HutchPlusPlus()), value=1, stderr=1
    ),
    "block_traces": lambda A, s: of(block_traces(A, PARTS, num_products=8), values=1, stderr=1),
    "diagonal": lambda A, s: of(diagonal(A, num_products=8), values=1, stderr=1),
    "frobenius_norm": lambda A, s: of(frobenius_norm(A, num_products=8), value=1, stderr=1),
    "block_norms": lambda A, s: of(block_norms(A, PARTS, num_probes=8), values=1, stderr=1),
    "spectral_norm": lambda A, s: of(spectral_norm(A), value=1, residual=1),
    "noise_floor": lambda A, s: of(noise_floor(A), relative=0, absolute=1),
    "lanczos": lambda A, s: of(lanczos(A, num_steps=10), alphas=1, betas=1),
    "density": lambda A, s: of(
        spectral_density(A, num_steps=10, num_probes=3), grid=1, density=-1, stderr=-1
    ),
    "count": lambda A, s: [
        (number, 0)
        for number in spectral_density(A, num_steps=10, num_probes=3).count(0.0, 1.0 * s)
    ],
    "solve": lambda A, s: of(
        solve(A, torch.ones(N, dtype=torch.float64), damping=3.0 * s), x=-1, residuals=0
    ),
    "minres": lambda A, s: of(
        solve(A, torch.ones(N, dtype=torch.float64), method="minres", max_products=200), x=-1
    ),
}


def of(record: Record, **powers: int) -> Answer:
    """Pick fields of a record, each with its power of the scale."""
    return [(getattr(record, name), power) for name, power in powers.items()]


@pytest.mark.parametrize("exponent", [-920, -550, -200, 200, 550, 960])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_scales_with_its_matrix(name: str, exponent: int) -> None:
    scale = 2.0**exponent  # from 1e-277 to 1e289
    plain = ANSWERS[name](Dense(MATRIX, space=SPACE), 1.0)
    scaled = ANSWERS[name](Dense(scale * MATRIX, space=SPACE), scale)
    for (expected, power), (found, _) in zip(plain, scaled, strict=True):
        expected, found = (torch.as_tensor(x, dtype=torch.float64) for x in (expected, found))
        back = found * 2.0 ** (-power * exponent)
        size = float(expected.abs().max())
        torch.testing.assert_close(back, expected, rtol=1e-9, atol=1e-12 * size)


def trained() -> Tensor:
    """The Hessian of a small network after some training."""
    torch.manual_seed(0)
    X = torch.randn(60, 4, dtype=torch.float64)
    y = (X[:, 0] > X[:, 1]).long() + (X[:, 2] > 1).long()
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    net = net.double()
    optimiser = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(40):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(X), y).backward()
        optimiser.step()
    H = es.Hessian(es.EmpiricalRisk(net, es.CrossEntropy(), (X, y))).to_dense()
    return (H + H.T) / 2


def spike() -> Tensor:
    """One large entry on the diagonal, which Rademacher probes alone see exactly."""
    return torch.diag(torch.cat([torch.tensor([30.0]), torch.linspace(0.0, 1.0, 39)]).double())


def wishart() -> Tensor:
    """ZZᵀ/80."""
    Z = torch.randn(40, 80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    W = Z @ Z.T / 80
    return (W + W.T) / 2


MATRICES = {"spike": spike, "Wishart": wishart, "network": trained}
SEEDS = 150
# 95.4 %, less 4 binomial deviations of 150 seeds.
LEAST = 0.954 - 4 * math.sqrt(0.954 * 0.046 / SEEDS)

ESTIMATES: dict[str, Callable[[Dense, int], tuple[float, float]]] = {
    "Hutchinson, 2": lambda A, s: pair(trace(A, num_products=2, seed=s)),
    "Hutchinson, 5": lambda A, s: pair(trace(A, num_products=5, seed=s)),
    "XTrace, 6": lambda A, s: pair(trace(A, num_products=6, method=XTrace(), seed=s)),
    "XTrace, 10": lambda A, s: pair(trace(A, num_products=10, method=XTrace(), seed=s)),
    "Hutch++, 6": lambda A, s: pair(trace(A, num_products=6, method=HutchPlusPlus(), seed=s)),
    "density, 2": lambda A, s: scaled_pair(
        spectral_density(A, num_steps=6, num_probes=2, seed=s, num_points=2).moment(1), A.shape[0]
    ),
}


def pair(record: Record) -> tuple[float, float]:
    """Return value and standard error."""
    return record.value, record.stderr


def scaled_pair(found: tuple[float, float], factor: float) -> tuple[float, float]:
    """Multiply both."""
    return factor * found[0], factor * found[1]


@pytest.mark.parametrize("name", ESTIMATES)
@pytest.mark.parametrize("matrix", MATRICES)
def test_two_standard_errors_hold_the_trace(matrix: str, name: str) -> None:
    dense = MATRICES[matrix]()
    A, true = Dense(dense), float(dense.trace())
    inside = 0
    for seed in range(SEEDS):
        value, stderr = ESTIMATES[name](A, seed)
        inside += abs(value - true) <= 2 * stderr + 1e-12 * abs(true)
    assert inside / SEEDS >= LEAST


class Copies(LinearOperator):
    """I ⊗ C: every eigenvalue of C `copies` times, as in the Gauss-Newton matrix of a layer."""

    def __init__(self, C: Tensor, copies: int) -> None:
        self._C, self._copies = C, copies
        self._space = ParamSpace.flat(copies * len(C))

    space = property(lambda self: self._space)
    dtype = property(lambda self: self._C.dtype)
    device = property(lambda self: self._C.device)
    is_symmetric = property(lambda self: True)

    def matmat(self, X: Tensor) -> Tensor:
        stacked = X.reshape(self._copies, len(self._C), -1)
        return (self._C @ stacked).reshape(X.shape)


@pytest.mark.parametrize("seed", range(3))
def test_ten_copies_inside_a_bulk_are_ten(seed: int) -> None:
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(1200, 120, generator=draw, dtype=torch.float64)
    C = X.T @ X / 1200
    top = float(torch.linalg.eigvalsh(C)[-1])
    pairs = eigsh(Copies(C, 10), num_pairs=10, seed=seed)
    assert pairs.status
    torch.testing.assert_close(pairs.values, torch.full((10,), top).double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("value", [5.0, 1.02])
def test_three_equal_eigenvalues_are_not_one(value: float, seed: int) -> None:
    diagonal_ = torch.rand(500, generator=torch.Generator().manual_seed(1)).double()
    diagonal_[:3] = value
    pairs = eigsh(Dense(torch.diag(diagonal_)), num_pairs=3, seed=seed)
    torch.testing.assert_close(pairs.values, torch.full((3,), value).double(), rtol=1e-5, atol=0)


def test_the_status_says_which_copies_were_not_looked_for() -> None:
    A = Dense(torch.diag(torch.linspace(0.0, 1.0, 400, dtype=torch.float64)))
    near = eigsh(A, num_pairs=3, num_check=4)
    assert "excludes copies of 0 of the 3 pairs" in near.status.text
    assert "num_check" in near.status.text
    assert "not looked for" in eigsh(A, num_pairs=3, num_check=0).status.text
    far = torch.linspace(0.0, 1.0, 400, dtype=torch.float64)
    far[-3:] = torch.tensor([8.0, 9.0, 10.0])
    assert "chance of 1% at most" in eigsh(Dense(torch.diag(far)), num_pairs=3).status.text


def test_what_only_the_operator_has_is_not_missed_by_a_search() -> None:
    values = torch.linspace(0.0, 7.0, 200, dtype=torch.float64)
    values[:3] = torch.tensor([10.0, 9.0, 8.0])
    lacking = values.clone()
    lacking[0] = 0.0
    A, B = Dense(torch.diag(values)), Dense(torch.diag(lacking))
    with pytest.warns(ConvergenceWarning, match="that `search` lacks"):
        found = eigsh(A, search=B, num_pairs=2)
    assert not found.status
    assert eigsh(A, search=Dense(torch.diag(0.5 * values)), num_pairs=2).status


def test_a_network_trained_on_is_not_resumed_from_its_old_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    data = torch.randn(50, 6), torch.randint(0, 3, (50,))
    options = {"num_steps": 6, "num_probes": 2}
    H = es.Hessian(es.EmpiricalRisk(net, es.CrossEntropy(), data))
    old = spectral_density(H, **options, checkpoint=tmp_path / "rho")
    eigsh(H, num_pairs=2, max_basis=8, checkpoint=tmp_path / "pairs")
    again = es.Hessian(es.EmpiricalRisk(net, es.CrossEntropy(), data))
    resumed = spectral_density(again, **options, checkpoint=tmp_path / "rho")
    assert torch.equal(resumed.nodes, old.nodes)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.001)
    H = es.Hessian(es.EmpiricalRisk(net, es.CrossEntropy(), data))
    with pytest.raises(CheckpointError, match="another operator"):
        spectral_density(H, **options, checkpoint=tmp_path / "rho")
    with pytest.raises(CheckpointError, match="another operator"):
        eigsh(H, num_pairs=2, max_basis=8, checkpoint=tmp_path / "pairs")
