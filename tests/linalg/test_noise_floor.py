import copy
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature import GaussNewton, Hessian, LayerHessian
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    NotSymmetricError,
    WrongTypeError,
)
from eigenscape.linalg import NoiseFloor, certify, eigsh, noise_floor, subspace_iteration
from eigenscape.operator import Dense, LinearOperator
from eigenscape.records import pack, unpack
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from tests.linalg.matrices import Counting, nan_operator, with_spectrum

MATRIX = with_spectrum([5.0, 3.0, 1.0, 0.5, -0.5, -2.0, 0.1])


def perceptron() -> tuple[nn.Module, Tensor]:
    layers = nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 11), nn.ReLU(), nn.Linear(11, 3)
    return nn.Sequential(*layers), torch.randn(80, 6)


def convnet() -> tuple[nn.Module, Tensor]:
    layers = (
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2), nn.Tanh(), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip
    return nn.Sequential(*layers), torch.randn(30, 1, 8, 8)


def risks(make: Callable[[], tuple[nn.Module, Tensor]]) -> tuple[EmpiricalRisk, EmpiricalRisk]:
    """Return one risk evaluated in bfloat16, and the same in float64."""
    torch.manual_seed(3)
    model, x = make()
    model, y = model.float(), torch.arange(len(x)) % 3
    exact = EmpiricalRisk(copy.deepcopy(model).double(), CrossEntropy(), (x.float().double(), y))
    noisy = EmpiricalRisk(model, CrossEntropy(), (x.float(), y), autocast=torch.bfloat16)
    return noisy, exact


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


# --- the measurement ---


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-14), (torch.float32, 1e-5)])
def test_plain_products_are_off_by_rounding(dtype: torch.dtype, most: float) -> None:
    A = Counting(MATRIX.to(dtype))
    found = noise_floor(A, num_probes=3)
    assert (found.num_products, A.count, found.num_probes, A.noise) == (9, 9, 3, 0.0)
    assert found.relative == 2 * max(found.linearity, found.asymmetry) < most
    assert found.absolute < most * 5.0


def test_what_is_not_linear_and_what_is_not_symmetric_is_seen() -> None:
    shifted = noise_floor(Counting(MATRIX, spoil=lambda Y: Y + 0.01))
    assert shifted.linearity > 1e-4
    skew = torch.randn(7, 7, generator=torch.Generator().manual_seed(0)) * 0.1
    A = Counting(MATRIX, spoil=lambda Y: Y + (skew - skew.T) @ Y)
    turned = noise_floor(A)
    assert turned.linearity < 1e-14 < 1e-3 < turned.asymmetry


def test_the_absolute_number_is_the_error_of_a_unit_vector() -> None:
    c = 1e-3
    found = noise_floor(Counting(MATRIX, spoil=lambda Y: Y + c), num_probes=20)
    # ‖c·1‖ = c√7, for probes whose lengths add up to about 2√7.
    assert found.absolute == pytest.approx(c / 2, rel=1.0)


def test_seeds_fix_the_numbers() -> None:
    A = Dense(MATRIX.float())
    assert noise_floor(A, seed=4).to_dict() == noise_floor(A, seed=4).to_dict()
    assert noise_floor(A, seed=4).to_dict() != noise_floor(A, seed=5).to_dict()
    assert noise_floor(Dense(torch.zeros(4, 4))).relative == 0.0


def test_the_record_goes_to_json_and_back() -> None:
    found = noise_floor(Dense(MATRIX.float()))
    plain, tensors = pack(found)
    again = unpack(json.loads(json.dumps(plain)), tensors)
    assert isinstance(again, NoiseFloor)
    assert again.to_dict() == found.to_dict() == json.loads(json.dumps(found.to_dict()))
    assert found.status


@pytest.mark.parametrize(
    ("operator", "options", "error"),
    [
        (torch.eye(3), {}, WrongTypeError),
        (Dense(torch.ones(4, 4).triu()), {}, NotSymmetricError),
        (nan_operator(4), {}, NonFiniteError),
        (Dense(torch.eye(3)), {"num_probes": 0}, InvalidArgumentError),
        (Dense(torch.eye(3)), {"seed": -1}, InvalidArgumentError),
    ],
)
def test_refusals(operator, options, error) -> None:
    with pytest.raises(error):
        noise_floor(operator, **options)


# --- models evaluated in bfloat16 ---


@pytest.mark.parametrize("make", [perceptron, convnet])
@pytest.mark.parametrize("kind", [Hessian, GaussNewton])
def test_the_noise_is_of_the_size_of_the_error(make, kind) -> None:
    noisy, exact = risks(make)
    H = kind(noisy)
    truth = kind(exact).to_dense()
    error = relative_error(H.to_dense(), truth)
    assert 1e-4 < H.noise < 0.1
    assert error / 10 < H.noise < error * 10
    assert H.noise == noise_floor(H).relative


@pytest.mark.parametrize("make", [perceptron, convnet])
@pytest.mark.parametrize(
    "of",
    [Hessian, GaussNewton, lambda risk: LayerHessian(risk, "2", representation="tail")],
    ids=["Hessian", "GaussNewton", "LayerHessian"],
)
def test_eigsh_ends_at_the_noise_floor(make, of: Callable[[EmpiricalRisk], LinearOperator]) -> None:
    noisy, exact = risks(make)
    H = of(noisy)
    pairs = eigsh(H, num_pairs=3)
    truth = eigsh(of(exact), num_pairs=3)
    assert pairs.status
    assert f"noise floor {H.noise:.1e}" in str(pairs.status)
    assert pairs.num_products <= 60  # of 812
    assert pairs.tolerance == 1e-6
    limit = 1e-6 * pairs.values + H.noise * pairs.values[0]
    assert bool((pairs.residuals <= limit).all())
    # The residuals are those of real products, far above what was asked for.
    V = pairs.vectors.double()
    real = ((H @ pairs.vectors).double() - V * pairs.values).norm(dim=0)
    torch.testing.assert_close(pairs.residuals, real, rtol=0.5, atol=0.0)
    assert float(pairs.residuals.min()) > 1e-5 * float(pairs.values[0])
    assert float((pairs.values - truth.values).abs().max()) < 0.05 * float(truth.values[0])


def test_other_solvers_end_there_too() -> None:
    noisy, _ = risks(perceptron)
    G = GaussNewton(noisy)
    found = subspace_iteration(G, num_pairs=2)
    assert found.status
    assert "noise floor" in str(found.status)


def test_the_floor_excuses_no_wrong_vector() -> None:
    noisy, exact = risks(perceptron)
    right = eigsh(Hessian(exact), num_pairs=2).vectors
    H = Hessian(noisy)
    assert certify(H, right.float()).status
    wrong = right + 0.1 * torch.randn(right.shape, generator=torch.Generator().manual_seed(0))
    assert not certify(H, wrong.float()).status


def test_operators_made_of_noisy_ones_are_noisy() -> None:
    noisy, _ = risks(perceptron)
    H, G = Hessian(noisy), GaussNewton(noisy)
    noise = H.noise
    assert (2.0 * H).noise == H.shift(1.0).noise == H["0.weight", "2.weight"].noise == noise
    assert (H - G).noise == max(H.noise, G.noise)
    assert H.deflate(torch.ones(1), torch.eye(H.space.size)[:, :1].float()).noise == noise
    plain = Hessian(EmpiricalRisk(noisy.module, CrossEntropy(), list(pairs_of(noisy))))
    assert plain.noise == plain.shift(1.0).noise == 0.0


def pairs_of(risk: EmpiricalRisk) -> list[tuple[Tensor, Tensor]]:
    return [(*batch.args, batch.target) for batch in risk.batches]


def test_stored_factors_of_a_layer_are_one_matrix() -> None:
    noisy, exact = risks(perceptron)
    block = LayerHessian(noisy, "2", representation="factors")
    assert block.noise < 1e-5
    truth = LayerHessian(exact, "2").to_dense()
    assert 1e-4 < relative_error(block.to_dense(), truth) < 0.1
