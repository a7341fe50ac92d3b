"""Exact traces against dense Gauss-Newton matrices and dense Hessians in float64."""

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eigenscape.analyses import ExactTrace, exact_trace
from eigenscape.analyses.whole import _squared_gradients
from eigenscape.curvature import GaussNewton
from eigenscape.errors import NonDeterministicRiskError, UnsupportedModelError, WrongTypeError
from eigenscape.records import pack, unpack
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk, SquaredError
from tests.cases import BATCH_SIZES, Case, N, case, classification, mlp, normal, shaken
from tests.curvature.classes.test_moments import LAYOUTS, OTHER_ROWS, Bag, bag_risk

Y = torch.arange(N) % 3


def relu_conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), padding=(1, 0), bias=False), shaken(nn.BatchNorm2d(4)),
        nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2, groups=2), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip


def conv_case() -> Case:
    return classification(relu_conv(), (normal(N, 2, 6, 5),), 3)


def layer_norm_case() -> Case:
    """Both a plain LayerNorm and one over two dimensions, with positions between."""
    net = nn.Sequential(
        nn.Linear(4, 6), shaken(nn.LayerNorm(6)), nn.ReLU(), shaken(nn.LayerNorm((3, 6))),
        nn.Flatten(), nn.Linear(18, 3),
    )  # fmt: skip
    return classification(net, (normal(N, 3, 4),), 3)


def check(found: ExactTrace, c: Case) -> None:
    G, space = c.gauss_newton(), c.risk().space
    assert found.trace == pytest.approx(float(G.trace()), rel=1e-12)
    assert found.trace == pytest.approx(float(found.traces.sum()), rel=1e-14)
    for name, value in zip(found.layers, found.traces.tolist(), strict=True):
        index = space.block(name).index()
        assert value == pytest.approx(float(G.diagonal()[index].sum()), rel=1e-11)
    assert (found.num_products, bool(found.status)) == (0, True)


# --- the trace of the Gauss-Newton matrix ---


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize(
    "name",
    [
        "mlp-tanh", "mlp-relu", "cnn-batchnorm", "conv1d", "squared-samples", "squared-elements",
        "binary", "binary-weighted", "groupnorm", "instancenorm", "rmsnorm", "layernorm",
        "embedding-padding", "weights-smoothing", "soft-targets", "unused-frozen",
        "squared-positions",
    ],
)  # fmt: skip
def test_equals_the_dense_trace(name: str, batch_size: int | None) -> None:
    c = case(name)
    found = exact_trace(c.risk(batch_size))
    check(found, c)
    assert found.num_backward_passes == c.forward(c.theta()).shape[1:].numel()
    assert found.self_test is not None
    assert found.self_test.verdict == "passed"


def transposed_case() -> Case:
    """Weights that begin with their inputs, in groups, at overlapping places; three dimensions."""
    net = nn.Sequential(
        nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, dilation=2, groups=2),
        nn.Tanh(), nn.Unflatten(2, (1, 2, 5)), nn.Conv3d(6, 4, (1, 2, 2), groups=2), nn.ReLU(),
        nn.ConvTranspose3d(4, 2, 2, padding=(0, 0, 1)), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip
    return classification(net, (normal(N, 4, 4),), 3)


@pytest.mark.parametrize("make", [conv_case, layer_norm_case, transposed_case])
def test_positions_groups_and_norms(make) -> None:
    c = make()
    check(exact_trace(c.risk(4)), c)


@pytest.mark.parametrize("numbers", [1, 60])
def test_samples_are_cut_without_a_change(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    monkeypatch.setattr(_squared_gradients, "_MOST_NUMBERS", numbers)
    for c in (conv_case(), case("embedding-padding")):
        check(exact_trace(c.risk()), c)


def test_both_ways_of_summing_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two positions of long vectors go by pairs, twelve of short ones by the matrix."""
    pairs = []
    by_pairs = _squared_gradients._by_pairs
    monkeypatch.setattr(
        _squared_gradients, "_by_pairs", lambda *both: pairs.append(1) or by_pairs(*both)
    )
    for positions, width, expected in ((2, 9, 6), (12, 2, 0)):
        net = nn.Sequential(nn.Linear(width, 5), nn.ReLU(), nn.Flatten())
        c = classification(
            nn.Sequential(net, nn.Linear(5 * positions, 3)), (normal(N, positions, width),), 3
        )
        risk = c.risk(params=["0.*"])
        pairs.clear()
        found = exact_trace(risk)
        index = c.risk().space.block("0.*").index()
        assert found.trace == pytest.approx(float(c.gauss_newton().diagonal()[index].sum()))
        assert len(pairs) == expected  # three roots, and three samples that are checked


def test_ignored_targets_and_sums() -> None:
    model, x = mlp(4, 6, 3, act=nn.ReLU), normal(N, 4)
    y = Y.where(torch.arange(N) % 4 != 1, torch.full_like(Y, -100))
    kept = y != -100
    whole = EmpiricalRisk(model, CrossEntropy(), (x, y), batch_size=3)
    part = EmpiricalRisk(model, CrossEntropy(), (x[kept], y[kept]))
    summed = EmpiricalRisk(model, CrossEntropy(), (x, y), reduction="sum", batch_size=5)
    value = exact_trace(whole).trace
    assert value == pytest.approx(exact_trace(part).trace, rel=1e-13)
    assert exact_trace(summed).trace == pytest.approx(value * int(kept.sum()), rel=1e-13)


def test_some_parameters_only() -> None:
    c = conv_case()
    found = exact_trace(c.risk(params=["4.bias", "7.weight"]))
    index = c.risk().space.block("4.bias", "7.weight").index()
    assert found.layers == ("4", "7")
    assert found.trace == pytest.approx(float(c.gauss_newton().diagonal()[index].sum()))


def test_float32_sums_are_float64() -> None:
    torch.manual_seed(2)
    model, x = mlp(5, 7, 3, act=nn.ReLU), torch.randn(4000, 5)
    y = torch.arange(4000) % 3
    exact = exact_trace(EmpiricalRisk(model, CrossEntropy(), (x, y))).trace
    model.float()
    single = exact_trace(EmpiricalRisk(model, CrossEntropy(), (x.float(), y), batch_size=1000))
    assert single.traces.dtype == torch.float64
    assert single.trace == pytest.approx(exact, rel=1e-6)


# --- and of the Hessian? ---


def test_piecewise_linear_networks_have_the_hessians_trace() -> None:
    for c in (case("mlp-relu"), conv_case()):
        found = exact_trace(c.risk(4))
        assert (found.equals_hessian, found.curved) == (True, "")
        H, space = c.hessian(), c.risk().space
        assert found.trace == pytest.approx(float(H.trace()), rel=1e-12)
        for name, value in zip(found.layers, found.traces.tolist(), strict=True):
            index = space.block(name).index()
            assert value == pytest.approx(float(H.diagonal()[index].sum()), rel=1e-11)


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: case("mlp-tanh"), "Tanh"), (layer_norm_case, "NativeLayerNorm")],
)
def test_curved_networks_say_so(make, name: str) -> None:
    c = make()
    found = exact_trace(c.risk())
    assert (found.equals_hessian, found.curved) == (False, name)
    assert f"the model has {name}" in found.status.text
    assert abs(found.trace - float(c.hessian().trace())) > 0.01 * found.trace


def test_branches_are_followed() -> None:
    """Two first layers, a shortcut, and a product of two branches, which is not linear in both."""

    class Net(nn.Module):
        def __init__(self, *, gated: bool) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 3)
            self.gated = gated

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.a(x), self.b(x)
            return self.head(a * b if self.gated else torch.relu(a) + b.abs())

    for gated in (False, True):
        c = classification(Net(gated=gated), (normal(N, 4),), 3)
        found = exact_trace(c.risk(4))
        check(found, c)
        assert found.equals_hessian is not gated


# --- refusals ---


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc(torch.relu(self.fc(x))))


class Behind(Twice):
    """Uses a weight behind its module's back."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(torch.relu(self.fc(x)), self.fc.weight))


class Mixing(Twice):
    """Samples change each other's outputs."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return self.head(torch.relu(h - h.mean(0)))


class PositionsFirst(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(x.reshape(-1, 2, 4).transpose(0, 1))).sum(0))


class Scaled(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * self.fc(x))


class InPlace(Twice):
    def forward(self, x: Tensor) -> Tensor:
        h = x.clone()
        z = self.fc(h)
        h += 1.0
        return self.head(z + h)


class Checkpointed(Twice):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return self.head(checkpoint(lambda t: torch.relu(t).exp(), h, use_reentrant=False))


class Inside(Twice):
    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(lambda t: torch.relu(self.fc(t)).exp(), x.relu(), use_reentrant=False)
        return self.head(h)


class AllInside(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda t: self.head(torch.tanh(self.fc(t))), x, use_reentrant=False)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Twice, r"'fc' \(fc.weight, fc.bias\) ran 2 times"),
        (Behind, "another gradient of 'fc.weight'"),
        (Mixing, "do not change each other"),
        (PositionsFirst, "begin with the .* samples; 'fc'"),
        (Scaled, r"scale \(Scaled is not known to be linear"),
        (InPlace, "input of 'fc' is changed in place"),
        (Inside, "another gradient of 'fc.weight'"),
        (AllInside, "met activation checkpointing"),
    ],
)
def test_models_that_are_not_covered(model: type[nn.Module], words: str) -> None:
    x = normal(N, 8 if model is PositionsFirst else 4)
    batches = list(zip(x.split(4), Y.split(4), strict=True))  # given, not cut: samples may mix
    risk = EmpiricalRisk(model(), CrossEntropy(), batches, sample_dim=None)
    with pytest.raises(UnsupportedModelError, match=rf"(?s)({words}).*trace\(GaussNewton\(risk\)"):
        exact_trace(risk)


def test_samples_that_mix_behind_a_first_batch_of_one() -> None:
    x = normal(N, 4)
    batches = [(x[:1], Y[:1]), (x[1:], Y[1:])]
    with pytest.raises(UnsupportedModelError, match="do not change each other"):
        exact_trace(EmpiricalRisk(Mixing(), CrossEntropy(), batches, sample_dim=None))
    singles = list(zip(x.split(1), Y.split(1), strict=True))  # none sees another
    alone = EmpiricalRisk(Mixing(), CrossEntropy(), singles, sample_dim=None)
    trace = float(GaussNewton(alone).to_dense().trace())
    assert exact_trace(alone).trace == pytest.approx(trace, rel=1e-12)


@pytest.mark.parametrize(("layout", "positions"), LAYOUTS)
def test_rows_of_batches_that_cannot_be_cut(layout: str, positions: int) -> None:
    """A second input that is the same for all samples, and no sample alone to compare with."""

    class Scaled(Bag):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x * scale)

    def risk_of(model: nn.Module) -> EmpiricalRisk:
        (batch,) = bag_risk(Bag(), positions).batches
        return EmpiricalRisk(
            model, CrossEntropy(), [(*batch.args, torch.full((3,), 2.0), batch.target)]
        )

    with pytest.raises(UnsupportedModelError, match=OTHER_ROWS):
        exact_trace(risk_of(Scaled(layout)))
    plain = risk_of(Scaled())
    trace = float(GaussNewton(plain).to_dense().trace())
    assert exact_trace(plain).trace == pytest.approx(trace, rel=1e-12)


def test_checkpointing_between_layers_is_fine() -> None:
    c = classification(Checkpointed(), (normal(N, 4),), 3)
    check(exact_trace(c.risk(4)), c)


def test_tied_and_uncovered_layers_are_named() -> None:
    with pytest.raises(UnsupportedModelError, match=r"emb\.weight .*tied to 'head.weight'"):
        exact_trace(case("attention-fused").risk())
    with pytest.raises(UnsupportedModelError, match=r"rnn\.weight_ih_l0"):
        exact_trace(case("lstm").risk())
    with pytest.raises(UnsupportedModelError, match="Bilinear is not covered"):
        exact_trace(case("two-inputs").risk())


def test_own_losses_and_many_outputs_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="may not be convex"):
        exact_trace(case("custom-mean").risk())
    with pytest.raises(WrongTypeError, match="pure function"):
        exact_trace(case("pure-function").risk())
    wide = EmpiricalRisk(nn.Sequential(nn.Linear(4, 257)), CrossEntropy(), (normal(N, 4), Y))
    with pytest.raises(UnsupportedModelError, match=r"got \(11, 257\)"):
        exact_trace(wide)


def test_batch_statistics_are_refused() -> None:
    data = normal(N, 2, 6, 5), Y
    risk = EmpiricalRisk(relu_conv().train(), CrossEntropy(), data, mode="keep")
    with pytest.raises(UnsupportedModelError, match=r"1.weight, 1.bias .*statistics of its batch"):
        exact_trace(risk)


def test_a_pass_with_other_samples_is_refused() -> None:
    class Shrinking:
        length = 3

        def __iter__(self):
            return iter([(normal(4, 5), torch.arange(4) % 3)] * self.length)

    data = Shrinking()
    risk = EmpiricalRisk(mlp(5, 3), CrossEntropy(), data, keep_data_bytes=0,
                         check_deterministic=False)  # fmt: skip
    data.length = 2
    with pytest.raises(NonDeterministicRiskError, match="8 samples"):
        exact_trace(risk)


# --- what a record can do ---


def test_records_are_stored_tabulated_and_drawn() -> None:
    found = exact_trace(case("mlp-relu").risk())
    frame = found.to_frame()
    assert list(frame["layer"]) == ["0", "2", "4"]
    assert float(frame["share"].sum()) == pytest.approx(1.0)
    assert torch.equal(unpack(*pack(found)).traces, found.traces)
    axes = found.plot()
    assert list(axes.lines[0].get_xdata()) == found.traces.tolist()
    plt.close(axes.figure)


def test_other_losses_share_the_roots() -> None:
    """The trace of I ⊗ mean(a aᵀ) for ½‖z − y‖², and of a quarter of it at p = ½."""
    a = normal(N, 4)
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    squared = EmpiricalRisk(model, SquaredError(), (a, normal(N, 3)))
    norm = float(a.square().sum() / N)
    assert exact_trace(squared).trace == pytest.approx(3 * norm, rel=1e-13)
    with torch.no_grad():
        model[0].weight.zero_()
    binary = EmpiricalRisk(model, BinaryCrossEntropy(average="samples"), (a, torch.rand(N, 3)))
    assert exact_trace(binary).trace == pytest.approx(0.75 * norm, rel=1e-13)


def test_a_rounded_forward_pass_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 2)).float()
    data = (torch.randn(4, 3, dtype=torch.float32), torch.tensor([0, 1, 1, 0]))
    risk = EmpiricalRisk(model, CrossEntropy(), data, autocast=torch.bfloat16)
    with pytest.raises(UnsupportedModelError, match="without it"):
        exact_trace(risk)
