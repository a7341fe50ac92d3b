"""Every operator against an oracle in plain PyTorch, on every case of the table.

Tolerances: 1e-10 of the matrix's Frobenius norm, about a million roundings of float64.
"""

import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from eigenscape import curvature as operators
from eigenscape.curvature import (
    ClassGradients,
    ClassKronecker,
    Fisher,
    GaussNewton,
    Hessian,
    KroneckerHessian,
    LayerHessian,
    OutputHessian,
    Residual,
)
from eigenscape.errors import SubstitutionWarning, UnsupportedModelError, WrongTypeError
from eigenscape.operator import Dense
from eigenscape.risk import (
    BinaryCrossEntropy,
    CallableLoss,
    CrossEntropy,
    EmpiricalRisk,
    SquaredError,
)
from eigenscape.testing import check_operator, matrix_with_spectrum
from tests.cases import BATCH_SIZES, TABLE, Case, N, case, rows_of

RTOL = 1e-10
CUSTOM = [name for name in TABLE if name.startswith("custom")]
LIKELIHOOD = [name for name in TABLE if name not in CUSTOM]


def close(found: Tensor, expected: Tensor, scale: Tensor | None = None, rtol: float = RTOL) -> None:
    """Compare relative to the Frobenius norm of `scale`, by default that of the expected matrix."""
    limit = rtol * float((expected if scale is None else scale).norm())
    error = float((found - expected).norm())
    assert error <= limit, f"error {error:.2g}, allowed {limit:.2g}"


def test_the_helper_sees_a_difference() -> None:
    with pytest.raises(AssertionError, match=r"error 3\.5e-09, allowed"):
        close(torch.eye(3), torch.eye(3) * (1 + 2e-9))


# --- the table itself ---


def test_every_operator_has_its_contract_here() -> None:
    checked = {Fisher, GaussNewton, Hessian, KroneckerHessian, LayerHessian, Residual}
    checked |= {ClassKronecker}
    # One is of outputs, not of parameters, the other several matrices at once: their contracts are
    # in tests/curvature.
    elsewhere = {OutputHessian, ClassGradients}
    assert {getattr(operators, name) for name in operators.__all__} == checked | elsewhere


@pytest.mark.parametrize("name", TABLE)
def test_the_oracle_is_consistent(name: str) -> None:
    c = case(name)
    z = c.forward(c.theta())
    torch.testing.assert_close(c.terms(z).sum() / c.count, c.mean_loss(z), rtol=1e-13, atol=0)
    H = c.hessian()
    close(H, H.T)
    assert H.norm() > 0.01
    sizes = {p.numel() for p in c.theta().values()}
    assert len(sizes) > 1


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_value_and_gradient(name: str, batch_size: int | None) -> None:
    c = case(name)
    risk = c.risk(batch_size)
    oracle = lambda p: c.mean_loss(c.forward(p))
    assert risk.value() == pytest.approx(oracle(c.theta()).item(), rel=1e-12)
    close(risk.gradient(), rows_of(oracle, c.theta())[0], rtol=1e-12)
    assert risk.num_samples == N
    assert risk.num_terms == pytest.approx(c.count, rel=1e-14)
    total = c.risk(batch_size, reduction="sum")
    assert total.value() == pytest.approx(oracle(c.theta()).item() * c.count, rel=1e-12)


# --- Dense ---


def test_dense() -> None:
    for matrix in (matrix_with_spectrum(range(9), seed=0), torch.randn(7, 5), torch.randn(3, 11)):
        check_operator(Dense(matrix.clone()), matrix, rtol=1e-13)


# --- Hessian, Gauss-Newton, residual ---


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_hessian(name: str, batch_size: int | None) -> None:
    c = case(name)
    check_operator(Hessian(c.risk(batch_size)), c.hessian(), rtol=RTOL)


@pytest.mark.parametrize("name", TABLE)
def test_gauss_newton(name: str) -> None:
    c = case(name)
    check_operator(GaussNewton(c.risk(7)), c.gauss_newton(), rtol=RTOL)
    for batch_size in (1, None):
        close(GaussNewton(c.risk(batch_size)).to_dense(), c.gauss_newton())


@pytest.mark.parametrize("name", TABLE)
def test_residual(name: str) -> None:
    c = case(name)
    H, G = c.hessian(), c.gauss_newton()
    check_operator(Residual(c.risk(7)), H - G, rtol=RTOL, atol=1e-12 * float(H.norm()))
    for batch_size in (1, None):
        close(Residual(c.risk(batch_size)).to_dense(), H - G, scale=H)


@pytest.mark.parametrize("name", TABLE)
def test_hessian_is_gauss_newton_plus_residual(name: str) -> None:
    risk = case(name).risk(7)
    H = Hessian(risk).to_dense()
    close((GaussNewton(risk) + Residual(risk)).to_dense(), H, rtol=1e-13)


def test_summed_risks_have_summed_curvature() -> None:
    c = case("attention-fused")
    risk = c.risk(7, reduction="sum")
    close(Hessian(risk).to_dense(), c.hessian() * c.count)
    close(GaussNewton(risk).to_dense(), c.gauss_newton() * c.count)
    grams = c.term_gradients().T @ c.term_gradients()
    close(Fisher(risk, kind="empirical").to_dense(), grams)


# --- Fisher ---


@pytest.mark.parametrize("name", LIKELIHOOD)
def test_exact_fisher_is_gauss_newton(name: str) -> None:
    c = case(name)
    close(Fisher(c.risk(7)).to_dense(), c.gauss_newton())


@pytest.mark.parametrize("name", ["mlp-tanh", "weights-smoothing", "soft-targets", "huggingface"])
def test_exact_fisher_is_the_expectation_over_classes(name: str) -> None:
    """F = Σ s Σ_c p_c g_c g_cᵀ / count with g_c the gradient if the label were c."""
    c = case(name)
    theta = c.theta()
    flat = lambda p: c.forward(p).reshape(-1, classes)
    classes = c.forward(theta).shape[-1]
    p = flat(theta).softmax(-1).detach()
    # −log p_c for every position and class, and the weight of each position's term.
    gradients = rows_of(lambda q: -flat(q).log_softmax(-1), theta).view(*p.shape, -1)
    s = position_weights(c).view(-1, 1)
    weighted = (s * p).unsqueeze(-1) * gradients
    expected = torch.einsum("tcn,tcm->nm", weighted, gradients) / c.count
    check_operator(Fisher(c.risk(7)), expected, rtol=RTOL)


def position_weights(c: Case) -> Tensor:
    """Σ_c w_c q_c of every position, written out for the cases above."""
    loss, target = c.loss, c.data["labels"] if isinstance(c.data, dict) else c.data[-1]
    classes = c.forward(c.theta()).shape[-1]
    w = torch.ones(classes) if loss.class_weights is None else loss.class_weights
    if target.is_floating_point():
        q = target
    else:
        q = nn.functional.one_hot(target.clamp(min=0), classes).double()
    q = (1 - loss.label_smoothing) * q + loss.label_smoothing / classes
    kept = 1.0 if target.is_floating_point() else (target != -100).double()
    return (q @ w) * kept


@pytest.mark.parametrize("name", ["binary", "binary-weighted"])
def test_exact_fisher_is_the_expectation_over_binary_labels(name: str) -> None:
    """All 2³ label vectors of a sample, each element weighted by √s as the data's label has it."""
    c = case(name)
    J, z = c.jacobian().view(N, 3, -1), c.forward(c.theta()).detach()
    y, p = c.data[-1], z.sigmoid()
    w = torch.ones(3) if c.loss.positive_weight is None else c.loss.positive_weight
    root = (w * y + 1 - y).sqrt()
    expected = torch.zeros(J.shape[-1], J.shape[-1])
    for labels in itertools.product([0.0, 1.0], repeat=3):
        drawn = torch.tensor(labels)
        probability = (p * drawn + (1 - p) * (1 - drawn)).prod(1)
        g = torch.einsum("nc,ncm->nm", root * (p - drawn), J)
        expected += (probability[:, None] * g).T @ g
    close(Fisher(c.risk(7)).to_dense(), expected / c.count)


@pytest.mark.parametrize("name", ["squared-samples", "squared-elements", "squared-positions"])
def test_exact_fisher_is_the_expectation_over_gaussian_labels(name: str) -> None:
    """Labels z ± σ√d e_i have the mean and covariance of N(z, σ²I), σ² = 1/(2·factor)."""
    c = case(name)
    J = c.jacobian().view(N, -1, c.jacobian().shape[1])
    d, factor = J.shape[1], c.loss.factor
    step = math.sqrt(d / (2 * factor))
    expected = torch.zeros(J.shape[-1], J.shape[-1])
    for i, sign in itertools.product(range(d), (-1.0, 1.0)):
        g = 2 * factor * sign * step * J[:, i]
        expected += g.T @ g / (2 * d)
    close(Fisher(c.risk(7)).to_dense(), expected / c.count)


@pytest.mark.parametrize("name", TABLE)
def test_empirical_fisher_is_the_sum_over_terms(name: str) -> None:
    c = case(name)
    g = c.term_gradients()
    expected = g.T @ g / c.count
    check_operator(Fisher(c.risk(7), kind="empirical"), expected, rtol=RTOL)
    for batch_size in (1, None):
        close(Fisher(c.risk(batch_size), kind="empirical").to_dense(), expected)


SAMPLED = ["mlp-tanh", "weights-smoothing", "soft-targets", "squared-elements", "binary-weighted"]


@pytest.mark.parametrize("name", [*SAMPLED, "huggingface", "dense-prediction", "next-token"])
def test_sampled_fisher_does_not_depend_on_batches(name: str) -> None:
    c = case(name)
    whole = Fisher(c.risk(), kind="sampled", num_samples=2, seed=5).to_dense()
    for batch_size in (1, 7):
        found = Fisher(c.risk(batch_size), kind="sampled", num_samples=2, seed=5).to_dense()
        close(found, whole, rtol=1e-12)
    other = Fisher(c.risk(), kind="sampled", num_samples=2, seed=6).to_dense()
    assert (other - whole).norm() > 0.01 * whole.norm()
    check_operator(Fisher(c.risk(7), kind="sampled", num_samples=2, seed=5), whole)


@pytest.mark.parametrize("name", [*SAMPLED, "dense-prediction"])
def test_sampled_fisher_is_unbiased(name: str) -> None:
    """Over K = 200 seeds the mean of ⟨v, Fv⟩ is within 4 standard errors of the exact value.

    Five directions v per case, so a correct operator fails in about 5 · 6e-5 of the runs; the seeds
    are fixed, so it passes always or never.
    """
    c, K = case(name), 200
    V = torch.randn(c.hessian().shape[0], 5)
    exact = (V * (c.gauss_newton() @ V)).sum(0)
    risk = c.risk()
    drawn = torch.stack([(V * (Fisher(risk, kind="sampled", seed=s) @ V)).sum(0) for s in range(K)])
    error = (drawn.mean(0) - exact).abs()
    assert (drawn.std(0) > 0).all()
    assert (error <= 4 * drawn.std(0) / math.sqrt(K)).all()


def test_more_samples_are_the_mean_of_more_draws() -> None:
    c = case("mlp-tanh")
    exact = c.gauss_newton()
    errors = [
        torch.stack(
            [
                (Fisher(c.risk(), kind="sampled", num_samples=k, seed=s).to_dense() - exact).norm()
                for s in range(12)
            ]
        )
        .square()
        .mean()
        for k in (1, 16)
    ]
    assert 8 < errors[0] / errors[1] < 32  # 16 but for chance


@pytest.mark.parametrize("name", CUSTOM)
def test_fisher_needs_a_likelihood(name: str) -> None:
    for kind in ("exact", "sampled"):
        with pytest.raises(UnsupportedModelError, match="plain function"):
            Fisher(case(name).risk(), kind=kind)


# --- LayerHessian ---


def layers_of(risk: EmpiricalRisk) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in risk.space.names:
        found.setdefault(name.rpartition(".")[0], []).append(name)
    return found


# Where the tail is not all that matters, and why the operator must fall back.
FULL = {"emb": "tied", "attn": "not known", "attn.out_proj": "ran 0 times", "rnn": "not known"}
FULL |= {"body.emb": "tied", "never": "ran 0 times", "twice": "ran 2 times"}


@pytest.mark.parametrize("name", [name for name in TABLE if name != "pure-function"])
def test_layer_hessian_of_every_layer_and_tensor(name: str) -> None:
    c = case(name)
    risk, H = c.risk(7), c.hessian()
    for layer, members in layers_of(risk).items():
        expects_full = layer in FULL and name != "embedding-padding"
        for chosen, names in [(layer, members), *((member, [member]) for member in members)]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                operator = LayerHessian(risk, chosen)
            index = torch.cat([risk.space.block(member).index() for member in names])
            close(operator.to_dense(), H[index][:, index], scale=H)
            assert (operator.representation == "full") == expects_full
            assert [w.category for w in caught] == [SubstitutionWarning] * expects_full
            assert all(FULL[layer] in str(w.message) for w in caught)


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("mlp-tanh", "2"),
        ("cnn-batchnorm", "0"),
        ("cnn-batchnorm", "1"),
        ("embedding-padding", "emb"),
        ("huggingface", "body.qkv"),
        ("layernorm", "1"),
        ("two-inputs", "pair"),
    ],
)
def test_layer_hessian_keeps_the_contract(name: str, layer: str, batch_size: int | None) -> None:
    c = case(name)
    risk = c.risk(batch_size)
    operator = LayerHessian(risk, layer, check=False)
    index = risk.space.block(layer).index()
    check_operator(operator, c.hessian()[index][:, index], rtol=RTOL)


def test_layer_hessian_needs_a_module() -> None:
    with pytest.raises(WrongTypeError, match="pure function"):
        LayerHessian(case("pure-function").risk(), "W")


# --- KroneckerHessian (its factors against second derivatives: tests/operators) ---


def kronecker_of(c: Case, layer: str, batch_size: int | None) -> KroneckerHessian | None:
    try:
        return KroneckerHessian(c.risk(batch_size), layer)
    except (UnsupportedModelError, WrongTypeError):
        return None


@pytest.mark.parametrize("name", [name for name in TABLE if name != "pure-function"])
def test_kronecker_hessian_of_every_layer(name: str) -> None:
    c = case(name)
    for layer in layers_of(c.risk()):
        first, *others = (kronecker_of(c, layer, batch_size) for batch_size in BATCH_SIZES)
        if first is None:
            assert others == [None] * len(others)
            continue
        m, n = len(first.output_factor), len(first.input_factor)
        assert first.space.size == m * n
        order = first.from_matrices(torch.arange(float(m * n)).reshape(1, m, n))[:, 0].long()
        dense = torch.kron(first.output_factor, first.input_factor)[order][:, order]
        check_operator(first, dense, rtol=RTOL)
        assert torch.linalg.eigvalsh(dense)[0] > -1e-12 * dense.norm()
        for other in others:
            close(other.to_dense(), dense, scale=dense)


def test_plain_layers_have_a_kronecker_hessian() -> None:
    for name, layer in [("mlp-tanh", "2"), ("cnn-batchnorm", "0"), ("huggingface", "body.qkv")]:
        assert kronecker_of(case(name), layer, 7) is not None


# --- ClassKronecker (against errors with every label: tests/operators) ---


def classes_of(c: Case, layer: str, batch_size: int | None) -> ClassKronecker | None:
    try:
        return ClassKronecker(c.risk(batch_size), layer)
    except (UnsupportedModelError, WrongTypeError):
        return None


def in_order(dense: Tensor, matrices: KroneckerHessian) -> Tensor:
    """Bring a matrix of (output, input) pairs into the order of the parameters."""
    m, n = len(matrices.output_factor), len(matrices.input_factor)
    order = matrices.from_matrices(torch.arange(float(m * n)).reshape(1, m, n))[:, 0].long()
    return dense[order][:, order]


@pytest.mark.parametrize("name", [name for name in TABLE if name != "pure-function"])
def test_class_kronecker_of_every_layer(name: str) -> None:
    c = case(name)
    for layer in layers_of(c.risk()):
        first, *others = (classes_of(c, layer, batch_size) for batch_size in BATCH_SIZES)
        if first is None:
            assert others == [None] * len(others)
            continue
        factors = zip(first.weights, first.output_factors, first.input_factors, strict=True)
        dense = torch.stack([w * torch.kron(left, right) for w, left, right in factors]).sum(0)
        kronecker = KroneckerHessian(c.risk(), layer)
        check_operator(first, in_order(dense, kronecker), rtol=RTOL)
        assert torch.linalg.eigvalsh(dense)[0] > -1e-12 * dense.norm()
        for other in others:
            close(other.to_dense(), first.to_dense())
        left = torch.einsum("c,cab->ab", first.weights, first.output_factors)
        close(left, kronecker.output_factor)


def test_plain_layers_of_classifiers_have_a_class_kronecker() -> None:
    for name, layer in [("mlp-tanh", "2"), ("cnn-batchnorm", "0"), ("weights-smoothing", "0")]:
        assert classes_of(case(name), layer, 7) is not None


def test_the_losses_of_the_table_are_all_there_are() -> None:
    kinds = {type(case(name).risk().loss) for name in TABLE}
    assert kinds == {CrossEntropy, SquaredError, BinaryCrossEntropy, CallableLoss}
