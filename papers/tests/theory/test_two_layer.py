"""Wide two-layer networks: against enumeration and autograd, else simulation with its error."""

import itertools
import math
from functools import partial

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, ShapeError, UnknownNameError
from eigenscape.records import pack, unpack
from eigenscape.testing import check_operator
from eigenscape_papers.theory import (
    HiddenLaw,
    decoupling,
    estimate_output_hessian,
    expected_softmax_hessian,
    finite_width_curve,
    hidden_law,
    limit_output_eigenvalue,
    limit_output_hessian,
)
from eigenscape_papers.theory._two_layer_samples import FirstLayerHessian, draw_inputs, draw_network

F64 = torch.float64


def network(
    n: int, c: int, d: int, inputs: str = "gaussian", seed: int = 0
) -> tuple[Tensor, Tensor]:
    first, second = draw_network(n, c, d, inputs, seed)
    assert isinstance(first, Tensor)
    return first, second


def law_and_weights(n: int, c: int, inputs: str, seed: int = 0) -> tuple[HiddenLaw, Tensor]:
    law, second = draw_network(n, c, None, inputs, seed)
    assert isinstance(law, HiddenLaw)
    return law, second


# --- closed forms --------------------------------------------------------------------------------


def test_moments_of_an_activation_are_those_of_its_integral() -> None:
    means = torch.tensor([0.0, 0.7, -1.3], dtype=F64)
    deviations = torch.tensor([1.0, 0.4, 2.0], dtype=F64)
    law = HiddenLaw(means, deviations)
    mean, variance = law.activations()
    for j, (m, s) in enumerate(zip(means.tolist(), deviations.tolist(), strict=True)):

        def moment(power: int, m: float = m, s: float = s) -> float:
            def density(g: float) -> float:
                return (m + s * g) ** power * math.exp(-0.5 * g * g) / math.sqrt(2 * math.pi)

            return float(quad(density, -m / s, 14.0, epsabs=1e-13)[0])

        assert float(law.firing()[j]) == pytest.approx(moment(0), abs=1e-10)
        assert float(mean[j]) == pytest.approx(moment(1), abs=1e-10)
        assert float(variance[j]) == pytest.approx(moment(2) - moment(1) ** 2, abs=1e-10)


def test_rectified_inputs_fire_units_by_the_sums_of_their_weights() -> None:
    W1, _ = network(30, 3, 500)
    active = torch.zeros(30, dtype=F64)
    for x in draw_inputs(500, 20_000, "rectified", seed=1):
        active += (x @ W1.T > 0).sum(0)
    pi = hidden_law(W1, inputs="rectified").firing()
    error = (pi * (1 - pi) / 20_000).sqrt()  # up to 0.0035
    assert float(((active / 20_000 - pi) / error).abs().max()) < 5
    # ½, as Thesis Lemma C.2.11 has it, is 0.2 off.
    assert float((pi - 0.5).std()) > 0.15


def test_the_limit_is_the_mean_over_independent_activations() -> None:
    law, W2 = law_and_weights(6, 3, "rectified")
    A = expected_softmax_hessian(torch.arange(3.0), torch.ones(3))
    pi = law.firing()
    mean = torch.zeros(6, 6, dtype=F64)
    for bits in itertools.product((0.0, 1.0), repeat=6):
        D = torch.tensor(bits, dtype=F64)
        chance = torch.where(D > 0, pi, 1 - pi).prod()
        mean += chance * torch.diag(D) @ W2.T @ A @ W2 @ torch.diag(D)
    found = limit_output_hessian(W2, softmax_hessian=A, law=law)
    torch.testing.assert_close(found.matrix, mean)
    # Wu (72) and Thesis (4.8) are the case π = ½.
    T = W2.T @ A @ W2
    printed = limit_output_hessian(W2, softmax_hessian=A).matrix
    torch.testing.assert_close(printed, (T + torch.diag(T.diagonal())) / 4)
    assert float((printed - mean).norm()) > 0.01


def test_a_wide_limit_has_c_minus_1_large_eigenvalues_on_the_row_space() -> None:
    _, W2 = law_and_weights(2000, 4, "gaussian")
    found = limit_output_hessian(W2)
    assert found.ratio < 0.02
    assert found.row_overlap > 0.999
    assert found.num_samples == 0
    assert found.standard_error == 0.0
    # Rows of W2 are nearly orthonormal: the eigenvalues are those of E[A]/4, up to 1/√n.
    values = torch.linalg.eigvalsh(found.softmax_hessian).flip(0)[:3] / 4
    torch.testing.assert_close(found.pairs.values[:3], values, rtol=0.06, atol=0.0)


def test_the_mean_eigenvalue_over_networks() -> None:
    c, n, networks, N = 5, 300, 200, 300
    generator = torch.Generator().manual_seed(0)
    found = torch.empty(networks, dtype=F64)
    for i in range(networks):
        W2 = torch.randn(c, n, generator=generator, dtype=F64) / math.sqrt(n)
        p = (torch.randn(N, n, generator=generator, dtype=F64).relu() @ W2.T).softmax(1)
        found[i] = (1 - p.square().sum(1)).mean() / (4 * (c - 1))
    error = float(found.std()) / math.sqrt(networks)  # 0.8e-4
    assert float(found.mean()) == pytest.approx(limit_output_eigenvalue(c), abs=4 * error)
    # Wu Lemma 12 has logits N(0, (π − 1)/2π), without the means that each network keeps.
    v = torch.full((c,), (math.pi - 1) / (2 * math.pi), dtype=F64)
    printed = float(expected_softmax_hessian(torch.zeros(c), v).trace()) / (4 * (c - 1))
    assert abs(printed - float(found.mean())) > 6 * error


def test_scales_of_both_layers_enter_the_mean_eigenvalue() -> None:
    a = limit_output_eigenvalue(3, first_variance=6.0)
    b = limit_output_eigenvalue(3, first_variance=2.0, second_variance=3.0)
    assert b == pytest.approx(3 * a, rel=1e-12)


# --- estimates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["gaussian", "rectified"])
def test_the_estimate_is_the_mean_second_derivative_of_the_loss(inputs: str) -> None:
    W1, W2 = network(5, 3, 4)
    W2 = 3 * W2
    N = 300  # two pieces, the second a short one
    found = estimate_output_hessian(W1, W2, inputs=inputs, num_samples=N, seed=2)
    u = torch.cat(list(draw_inputs(4, N, inputs, seed=2))) @ W1.T
    assert u.shape == (N, 5)

    def loss(v: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(W2 @ v.relu(), torch.tensor(1))

    each = torch.stack([torch.autograd.functional.hessian(loss, v) for v in u])
    torch.testing.assert_close(found.matrix, each.mean(0))
    error = (each - each.mean(0)).square().sum().div(N * (N - 1)).sqrt()
    assert found.standard_error == pytest.approx(float(error), rel=1e-10)
    p = (u.relu() @ W2.T).softmax(1)
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    torch.testing.assert_close(found.softmax_hessian, A.mean(0))
    torch.testing.assert_close(found.softmax_stderr, A.std(0) / math.sqrt(N))
    torch.testing.assert_close(found.firing, (u > 0).to(F64).mean(0))


def test_the_standard_error_is_the_distance_from_the_truth() -> None:
    W1, W2 = network(12, 3, 20)
    truth = estimate_output_hessian(W1, W2, num_samples=30_000, seed=99).matrix
    runs = [estimate_output_hessian(W1, W2, num_samples=100, seed=s) for s in range(60)]
    actual = sum(float((r.matrix - truth).square().sum()) for r in runs) / 60
    stated = sum(r.standard_error**2 for r in runs) / 60
    assert actual == pytest.approx(stated, rel=0.2)  # sixty draws of it spread by 5 %


def test_a_seed_fixes_each_input_whatever_their_number() -> None:
    few, many = (torch.cat(list(draw_inputs(7, N, "gaussian", 3))) for N in (300, 700))
    assert torch.equal(few, many[:300])
    assert not torch.equal(few[:256][:44], few[256:])


@pytest.mark.parametrize("inputs", ["gaussian", "rectified"])
def test_the_prediction_meets_the_estimate(inputs: str) -> None:
    W1, W2 = network(300, 4, 1200, inputs)
    estimate = estimate_output_hessian(W1, W2, inputs=inputs, num_samples=6000)
    size = float(estimate.matrix.norm())
    assert estimate.standard_error < 0.03 * size
    law = hidden_law(W1, inputs=inputs)
    limit = limit_output_hessian(W2, law=law)
    # What is left is the dependence of D and A, of order 1/√n = 0.06.
    assert float((estimate.matrix - limit.matrix).norm()) < 0.1 * size
    assert estimate.ratio == pytest.approx(limit.ratio, rel=0.06)
    printed = limit_output_hessian(W2, softmax_hessian=estimate.softmax_hessian)
    distance = float((estimate.matrix - printed.matrix).norm()) / size
    assert distance < 0.1 if inputs == "gaussian" else distance > 0.4


def test_logits_of_one_network_keep_their_means() -> None:
    law, W2 = law_and_weights(3000, 4, "gaussian", seed=1)
    mean, variance = law.activations()
    predicted = expected_softmax_hessian(W2 @ mean, W2.square() @ variance)
    pieces = draw_inputs(3000, 5000, "gaussian", seed=0)
    p = torch.cat([(u.relu() @ W2.T).softmax(1) for u in pieces])
    each = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    error = float(each.std(0).max()) / math.sqrt(5000)  # 0.8e-3
    # Logits are correlated by 1/√n, which is as much.
    assert float((each.mean(0) - predicted).abs().max()) < 6 * error
    v = torch.full((4,), (math.pi - 1) / (2 * math.pi), dtype=F64)
    printed = expected_softmax_hessian(torch.zeros(4), v)  # Wu Lemma 12
    assert float((each.mean(0) - printed).abs().max()) > 12 * error


# --- curves --------------------------------------------------------------------------------------


def test_gaussian_inputs_reach_the_row_space() -> None:
    curve = finite_width_curve((60, 240, 720), num_classes=4, num_samples=2000, seeds=(0, 1, 2))
    assert curve.row_limit == 1.0
    ratios, overlaps = curve.ratios.mean(1), curve.row_overlaps.mean(1)
    assert bool((ratios.diff() < 0).all())
    assert bool((overlaps.diff() > 0).all())
    assert float(ratios[-1]) < 0.06
    assert float(overlaps[-1]) > 0.999
    torch.testing.assert_close(curve.ratios, curve.predicted_ratios, rtol=0.15, atol=0.0)


def test_rectified_inputs_stop_at_the_plateau() -> None:
    seeds = tuple(range(4))
    curve = finite_width_curve((600,), num_samples=2000, seeds=seeds, inputs="rectified")
    error = float(curve.row_overlaps.std()) / 2  # about 0.004
    assert error < 0.01
    assert float(curve.row_overlaps.mean()) == pytest.approx(curve.row_limit, abs=4 * error)
    assert curve.row_limit == pytest.approx(0.8290, abs=5e-5)
    assert float(curve.firing_overlaps.min()) > 0.9997


def test_values_measured_elsewhere_for_400_units() -> None:
    # One network of 400 units, 2000 inputs and 5 classes, 4000 samples: gap 0.038, overlaps 0.822
    # with Thesis (4.8) and 0.9998 with the rows scaled by π. Networks differ by 0.015 and 0.01.
    curve = finite_width_curve(
        (400,), num_samples=4000, seeds=(0, 1, 2), inputs="rectified", inputs_per_unit=5
    )
    assert float(curve.ratios.mean()) == pytest.approx(0.038, abs=0.03)
    assert float(curve.row_overlaps.mean()) == pytest.approx(0.822, abs=0.03)
    assert float(curve.firing_overlaps.mean()) == pytest.approx(0.9998, abs=1e-4)


def test_a_curve_is_a_record_that_a_seed_fixes() -> None:
    follow = partial(finite_width_curve, num_classes=3, num_samples=300, inputs="rectified")
    curve = follow((20, 35), seeds=(4, 5))
    again = follow((35,), seeds=(5,))
    assert torch.equal(curve.ratios[1:, 1:], again.ratios)
    assert curve.row_overlaps.shape == (2, 2)
    table = curve.columns()
    assert list(table["width"]) == [20, 35]
    assert list(table["ratio_spread"]) == pytest.approx(curve.ratios.std(1).tolist())
    assert list(again.columns()["ratio_spread"]) == [0.0]
    kept = unpack(*pack(curve))
    assert torch.equal(kept.firing_overlaps, curve.firing_overlaps)
    assert "width" in str(curve)


# --- the layer's own Hessian ---------------------------------------------------------------------


def test_products_are_those_of_the_layer_hessian() -> None:
    W1, W2 = network(4, 3, 5)
    x = torch.cat(list(draw_inputs(5, 40, "rectified", seed=1)))

    def loss(w: Tensor) -> Tensor:
        z = (x @ w.reshape(4, 5).T).relu() @ W2.T
        return torch.nn.functional.cross_entropy(z, torch.zeros(40, dtype=torch.long))

    H = torch.autograd.functional.hessian(loss, W1.flatten())
    check_operator(FirstLayerHessian(W1, W2, 40, seed=1), H)


def test_the_layer_hessian_decouples() -> None:
    # Measured elsewhere for one network of this size: gap 0.185, overlap 0.995.
    found = [decoupling(*network(100, 5, 300, seed=s), num_samples=1500) for s in range(2)]
    for each in found:
        assert each.overlap > 0.99
        assert 0.1 < each.ratio < 0.3
        assert each.status.converged
    small = decoupling(*network(15, 5, 30), num_samples=1500)
    assert small.overlap < min(each.overlap for each in found)


def test_refusals() -> None:
    W1, W2 = network(6, 3, 4)
    with pytest.raises(ShapeError, match="non-empty"):
        hidden_law(torch.ones(3))
    with pytest.raises(UnknownNameError, match="rectified"):
        hidden_law(W1, inputs="uniform")
    with pytest.raises(ShapeError, match="2 or more classes"):
        limit_output_hessian(W2.T)
    with pytest.raises(ShapeError, match=r"\(3, 3\)"):
        limit_output_hessian(W2, softmax_hessian=torch.eye(2))
    with pytest.raises(ShapeError, match="6 units"):
        limit_output_hessian(W2, law=HiddenLaw(torch.zeros(5), torch.ones(5)))
    with pytest.raises(ShapeError, match="6 hidden units"):
        estimate_output_hessian(W1[:5], W2)
    with pytest.raises(InvalidArgumentError, match="at least 2"):
        estimate_output_hessian(W1, W2, num_samples=1)
    with pytest.raises(InvalidArgumentError, match="one width"):
        finite_width_curve(())
    with pytest.raises(InvalidArgumentError, match="at least 6"):
        finite_width_curve((5,))
    with pytest.raises(InvalidArgumentError, match="above 0"):
        limit_output_eigenvalue(3, first_variance=0.0)
    uneven = torch.diag(torch.tensor([6.0, 0.1, 0.1], dtype=F64)) @ W2
    with pytest.raises(InvalidArgumentError, match="more inputs"):
        decoupling(W1[:, :1], uneven, num_samples=50)
