"""Where a user's world meets ours: what is left alone, what is routed around, what is refused.

Many of these are defects that other tools for the same purpose have or had.
"""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.curvature import GaussNewton, Hessian, LayerHessian
from eigenscape.errors import ShapeError, SubstitutionWarning, UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.testing import dense_hessian
from tests.cases import Attention, case
from tests.small_net import LOADER, X, Y, close, flat_gradient, net, oracle


def test_the_helper_sees_a_difference() -> None:
    with pytest.raises(AssertionError):
        close(torch.ones(3) * (1 + 1e-9), torch.ones(3))


# --- batches never change an answer ---


@pytest.mark.parametrize("options", [{}, {"batch_size": 9}, {"keep_data_bytes": 0}])
def test_ragged_batches_are_weighted_by_what_they_hold(options: dict[str, Any]) -> None:
    model = net()
    risk = EmpiricalRisk(model, CrossEntropy(), LOADER, **options)
    assert [batch.size for batch in risk.batches][-1] in (5, 6)
    assert risk.value() == pytest.approx(F.cross_entropy(model(X), Y).item(), rel=1e-13)
    close(Hessian(risk).to_dense(), oracle(model))


def test_more_batches_are_not_a_larger_hessian() -> None:
    model = net()
    norms = [
        Hessian(EmpiricalRisk(model, CrossEntropy(), (X, Y), batch_size=b)).to_dense().norm()
        for b in (70, 35, 1)
    ]
    torch.testing.assert_close(torch.stack(norms), norms[0].expand(3), rtol=1e-13, atol=0)


def test_ignored_tokens_do_not_count() -> None:
    c = case("attention-fused")
    counts = [float((batch.target != -100).sum()) for batch in c.risk(3).batches]
    assert len(set(counts)) > 1  # else the test would show nothing
    for batch_size in (1, 3, 11):
        risk = c.risk(batch_size)
        assert risk.num_terms == c.count != risk.num_samples
        close(Hessian(risk).to_dense(), c.hessian())


# --- the model is left as it was ---


def test_modes_gradients_and_parameters_are_left_alone() -> None:
    model = net(nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout())
    model[3].eval()
    model[0].weight.grad = torch.ones(5, 4)
    frozen = model[4].bias.requires_grad_(False)
    state = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    risk = EmpiricalRisk(model, CrossEntropy(), LOADER, params="*")
    for made in (Hessian(risk), GaussNewton(risk), LayerHessian(risk, "0")):
        made @ torch.ones(made.shape[1], 3)
    risk.gradient()
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(model[0].weight.grad, torch.ones(5, 4))
    assert all(p.grad is None for p in model.parameters() if p is not model[0].weight)
    assert [p.requires_grad for p in model.parameters()] == [
        p is not frozen for p in model.parameters()
    ]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_everything_is_restored_after_an_error() -> None:
    class Fails(nn.Module):
        fail = False

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.fail:
                raise ValueError("the user's own error")
            return self.fc(x)

    model = Fails().train()
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y), params="fc.weight")
    model.fail = True
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(UnsupportedModelError, match="ValueError: the user's own error"):
        Hessian(risk) @ torch.ones(12)
    assert model.training
    assert model.fc.bias.requires_grad
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_buffers_are_not_written_in_keep_mode() -> None:
    model = net(nn.BatchNorm1d(5), nn.Tanh()).train()
    before = copy.deepcopy(dict(model.named_buffers()))
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y), mode="keep")
    expected = oracle(model)
    close(Hessian(risk).to_dense(), expected)
    for layer, block in (("1", slice(25, 35)), ("0", slice(0, 25))):
        close(LayerHessian(risk, layer).to_dense(), expected[block, block])
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])


# --- exact for every layer ---


NORMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "layer": (lambda: nn.LayerNorm(5), "eval"),
    "rms": (lambda: nn.RMSNorm(5), "eval"),
    "group": (lambda: nn.GroupNorm(1, 5), "eval"),
    "batch, frozen": (lambda: nn.BatchNorm1d(5), "eval"),
    "batch, training": (lambda: nn.BatchNorm1d(5), "keep"),
    "batch, without statistics": (lambda: nn.BatchNorm1d(5, track_running_stats=False), "eval"),
    "instance": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1), nn.Flatten()),
        "keep",
    ),
}


@pytest.mark.parametrize(("norm", "mode"), NORMS.values(), ids=NORMS.keys())
def test_normalisation_is_exact(norm: Callable[[], nn.Module], mode: str) -> None:
    model = net(norm(), nn.Tanh()).train(mode == "keep")
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y), mode=mode)
    close(Hessian(risk).to_dense(), oracle(model))


@pytest.mark.parametrize(
    "attention",
    [
        lambda: Attention(fused=True),
        lambda: Attention(fused=False),
        lambda: nn.Sequential(
            nn.Embedding(7, 6),
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(6, 2, 5, batch_first=True), 1, enable_nested_tensor=False
            ),
            nn.Linear(6, 7),
        ),
    ],
    ids=["function", "module", "encoder"],
)
def test_fused_attention_is_routed_around_and_said_so_once(
    attention: Callable[[], nn.Module],
) -> None:
    ids = torch.randint(0, 7, (5, 4))
    with pytest.warns(SubstitutionWarning, match="fused attention") as caught:
        risk = EmpiricalRisk(attention(), CrossEntropy(), (ids, ids), batch_size=2)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        H = Hessian(risk).to_dense()
    close(H, H.T)


def test_attention_that_asks_for_weights_is_not_fused() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x[:, None]
            return self.head(self.attn(x, x, x)[0][:, 0])

    risk = EmpiricalRisk(Plain(), CrossEntropy(), (X, Y))  # warnings are errors here
    assert (Hessian(risk) @ torch.ones(risk.space.size)).isfinite().all()


def test_compiled_models_are_unwrapped_and_said_so() -> None:
    model = net()
    with pytest.warns(SubstitutionWarning, match="compiled model has no second derivative"):
        risk = EmpiricalRisk(torch.compile(model, backend="aot_eager"), CrossEntropy(), (X, Y))
    assert risk.space.names[0] == "0.weight"
    assert risk.module is model
    close(Hessian(risk).to_dense(), oracle(model))


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_compiled_parts_run_as_they_are(how: str) -> None:
    model = net()
    expected = oracle(model)
    if how == "wrapped":
        model[0] = torch.compile(model[0], backend="aot_eager")
    else:
        model[0].compile(backend="aot_eager")
    with pytest.warns(SubstitutionWarning, match="compiled model has no second derivative"):
        risk = EmpiricalRisk(model, CrossEntropy(), (X, Y))
    close(Hessian(risk).to_dense(), expected)
    close(GaussNewton(risk).to_dense(), oracle_of_gauss_newton(net_like(model), Y))


def net_like(model: nn.Sequential) -> nn.Sequential:
    """The same weights without compilation."""
    plain = net()
    state = {name.replace("_orig_mod.", ""): p for name, p in model.state_dict().items()}
    plain.load_state_dict(state)
    return plain


def test_tied_weights_are_one_tensor() -> None:
    c = case("attention-fused")
    names = c.risk().space.names
    assert "emb.weight" in names
    assert "head.weight" not in names


def test_unused_parameters_have_zero_rows() -> None:
    c = case("unused-frozen")
    risk = c.risk(7)
    block = risk.space.block("never")
    assert not block.take(Hessian(risk).to_dense()).any()
    assert not block.take(risk.gradient()).any()


def test_forbidden_classes_may_have_logits_of_minus_infinity() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).masked_fill(torch.tensor([False, True, False]), -math.inf)

    model, y = Masked(), Y.where(Y != 1, 0 * Y)
    risk = EmpiricalRisk(model, CrossEntropy(), (X, y))
    close(Hessian(risk).to_dense(), oracle(model, y=y))
    close(GaussNewton(risk).to_dense(), oracle_of_gauss_newton(model, y))


def oracle_of_gauss_newton(model: nn.Module, y: Tensor) -> Tensor:
    """For a network that ends in a linear layer: the Hessian less what the residual adds."""
    twin, theta = copy.deepcopy(model), dict(model.named_parameters())
    r = (model(X).softmax(1) - F.one_hot(y, 3)).detach() / len(X)

    def fixed(p: dict[str, Tensor]) -> Tensor:
        z = torch.func.functional_call(twin, p, (X,))
        return (r * z.masked_fill(z.isinf(), 0.0)).sum()

    return oracle(model, y=y) - dense_hessian(fixed, {n: p.detach() for n, p in theta.items()})


# --- the parameters are read live ---


def changes() -> dict[str, Callable[[nn.Sequential], None]]:
    def step(model: nn.Sequential) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()

    def data(model: nn.Sequential) -> None:
        model[3].weight.data.mul_(1.5)

    def vector(model: nn.Sequential) -> None:
        flat = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(flat * 1.3, model.parameters())

    def replace(model: nn.Sequential) -> None:
        model[0].weight.data = torch.randn(5, 4)

    def load(model: nn.Sequential) -> None:
        model.load_state_dict(net(nn.BatchNorm1d(5), nn.Tanh()).state_dict())

    def buffers(model: nn.Sequential) -> None:
        model[1].running_var.mul_(3.0)

    return {f.__name__: f for f in (step, data, vector, replace, load, buffers)}


@pytest.mark.parametrize("change", changes().values(), ids=changes().keys())
def test_changed_parameters_are_seen_by_the_next_product(change: Callable[..., None]) -> None:
    model = net(nn.BatchNorm1d(5), nn.Tanh()).eval()
    risk = EmpiricalRisk(model, CrossEntropy(), LOADER)
    full, layer = Hessian(risk), LayerHessian(risk, "0")
    before = full.to_dense()
    layer.to_dense()
    change(model)
    after = oracle(model)
    assert (after - before).norm() > 0.01 * before.norm()
    close(full.to_dense(), after)
    close(layer.to_dense(), after[:25, :25])
    close(risk.gradient(), flat_gradient(model))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (((X, X), (X, X)), r"called with \(\d+, \d+\) torch.float64, .*TypeError"),
        ((X.to(torch.uint8), Y), r"torch.uint8 and said: RuntimeError"),
    ],
)
def test_a_model_that_cannot_run_is_explained(data: Any, words: str) -> None:
    if isinstance(data[0], tuple):
        data = [(*pair, Y) for pair in data]  # one tensor more than the model takes
    with pytest.raises(UnsupportedModelError, match=words) as raised:
        EmpiricalRisk(net(), CrossEntropy(), data)
    assert raised.value.__cause__ is not None


def test_restricted_risks_hold_the_rest_fixed() -> None:
    model = net()
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y))
    part = risk.restricted(["2"])
    assert part.space.names == ("2.weight", "2.bias")
    close(Hessian(part).to_dense(), oracle(model)[25:, 25:])
    assert part.value() == risk.value()
    chosen = EmpiricalRisk(model, CrossEntropy(), (X, Y), params=["*.bias"])
    assert chosen.space.names == ("0.bias", "2.bias")
    index = risk.space.block("*.bias").index()
    close(Hessian(chosen).to_dense(), oracle(model)[index][:, index])


def test_frozen_parameters_can_be_named() -> None:
    model = net()
    model[0].weight.requires_grad_(False)
    assert EmpiricalRisk(model, CrossEntropy(), (X, Y)).space.names[0] == "0.bias"
    named = EmpiricalRisk(model, CrossEntropy(), (X, Y), params="*")
    close(Hessian(named).to_dense(), oracle(model))
    assert not model[0].weight.requires_grad


# --- where products are taken ---


def test_products_inside_no_grad_and_inference_mode() -> None:
    model = net()
    expected = oracle(model)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            risk = EmpiricalRisk(model, CrossEntropy(), (X, Y))
            H = Hessian(risk)
            close(H.to_dense(), expected)
            close(risk.gradient(), flat_gradient_outside(model))
            close(LayerHessian(risk, "0").to_dense(), expected[:25, :25])
        close(H.to_dense(), expected)


def flat_gradient_outside(model: nn.Module) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        return flat_gradient(model)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)]
)
def test_low_precision(dtype: torch.dtype, rtol: float) -> None:
    """Errors of a few units in the last place of the dtype: 1e-7, 1e-3 and 8e-3."""
    model = net().to(dtype)
    risk = EmpiricalRisk(model, CrossEntropy(), LOADER)
    double = copy.deepcopy(model).double()
    expected = oracle(double, X.to(dtype).double())
    for operator, block in ((Hessian(risk), 43), (LayerHessian(risk, "0"), 25)):
        found = operator.to_dense()
        assert found.dtype == dtype
        close(found, expected[:block, :block], rtol=rtol)
    assert risk.gradient().dtype == dtype
    assert risk.value() == pytest.approx(F.cross_entropy(double(X), Y).item(), rel=rtol)


def test_a_replaced_parameter_is_seen_and_a_converted_model_is_refused() -> None:
    model = net()
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y))
    H = Hessian(risk)
    H @ torch.ones(risk.space.size)
    model[0].weight = nn.Parameter(model[0].weight.detach() * 2)
    close(H.to_dense(), oracle(model))
    model.float()
    with pytest.raises(ShapeError, match="Make a new `EmpiricalRisk`"):
        H @ torch.ones(risk.space.size)


def test_offloaded_activations_are_exact_and_autocast_is_as_good_as_its_dtype() -> None:
    class Wrapped(nn.Module):
        def __init__(self, context: Callable[[], Any]) -> None:
            super().__init__()
            self.inner, self.context = net(), context

        def forward(self, x: Tensor) -> Tensor:
            with self.context():
                return self.inner(x)

    for context, dtype, rtol in (
        (torch.autograd.graph.save_on_cpu, torch.float64, 1e-10),
        # bfloat16 keeps 8 bits, and the product passes through a handful of roundings.
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.float32, 5e-2),
    ):
        model = Wrapped(context).to(dtype)
        risk = EmpiricalRisk(model, CrossEntropy(), (X, Y))
        close(Hessian(risk).to_dense(), oracle(model.inner.double()), rtol=rtol)


# --- how data that came at once are cut ---


def first_size(model: nn.Module, data: object, **settings: object) -> int:
    risk = EmpiricalRisk(model, CrossEntropy(), data, **settings)
    return next(iter(risk.batches)).size


def test_batches_are_cut_by_the_memory_of_activations() -> None:
    many = (torch.randn(6000, 4), torch.randint(0, 3, (6000,)))
    thin = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    wide = nn.Sequential(nn.Linear(4, 2000), nn.Tanh(), nn.Linear(2000, 3))
    assert first_size(thin, many) == 6000  # 4096 would leave a short batch
    # Tanh keeps its output for the backward pass, and so does the layer after it: 16 kB a sample.
    assert 2**24 / 16_000 / 1.2 < first_size(wide, many) < 2**24 / 16_000 * 1.1
    huge = nn.Sequential(nn.Linear(4, 60_000), nn.Tanh(), nn.Linear(60_000, 3))
    assert 120 < first_size(huge, many) <= 128
    colossal = nn.Sequential(nn.Linear(4, 2_000_000), nn.Tanh(), nn.Linear(2_000_000, 3))
    assert first_size(colossal, tuple(t[:150] for t in many)) == 75  # 128 would take 2 GB
    sizes = [b.size for b in EmpiricalRisk(wide, CrossEntropy(), many).batches]
    assert max(sizes) - min(sizes) < len(sizes)  # equal, but for what cannot be shared out


def test_whoever_says_how_to_cut_is_obeyed() -> None:
    many = (torch.randn(600, 4), torch.randint(0, 3, (600,)))
    huge = nn.Sequential(nn.Linear(4, 60_000), nn.Tanh(), nn.Linear(60_000, 3))
    assert first_size(huge, many, batch_size=500) == 500
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*many), batch_size=200)
    assert first_size(huge, loader) == 200


def test_the_cut_changes_no_answer() -> None:
    many = (torch.randn(300, 4), torch.randint(0, 3, (300,)))
    wide = nn.Sequential(nn.Linear(4, 60_000), nn.Tanh(), nn.Linear(60_000, 3))
    cut, whole = (
        EmpiricalRisk(wide, CrossEntropy(), many, batch_size=size) for size in (None, 300)
    )
    assert [b.size for b in cut.batches] == [150, 150]
    assert cut.value() == pytest.approx(whole.value(), rel=1e-12)
    torch.testing.assert_close(cut.gradient(), whole.gradient())
