"""All eigenvalues of a layer's block against dense double backward."""

import copy
import dataclasses

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.analyses import LayerSpectrum, layer_spectrum
from eigenscape.curvature import LayerHessian
from eigenscape.curvature.layers import factors as factors
from eigenscape.errors import (
    InvalidArgumentError,
    TooLargeError,
    UnknownNameError,
    UnsupportedModelError,
)
from eigenscape.records import pack, unpack
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.testing import dense_hessian
from tests.cases import case

N = 11


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0)), nn.BatchNorm2d(3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(3, 4, 2, padding=1), nn.ReLU(), nn.AvgPool2d((1, 2)),
        nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3),
    )  # fmt: skip


class Tokens(nn.Module):
    """A linear layer at two positions, cheap enough to contract without forming rows."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(5, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(x)).flatten(1))


def risk_of(model: nn.Module, *shape: int, **settings: object) -> EmpiricalRisk:
    return EmpiricalRisk(
        model, CrossEntropy(), (torch.randn(N, *shape), torch.arange(N) % 3), **settings
    )


def image_risk(batch_size: int | None = 4) -> EmpiricalRisk:
    return risk_of(conv_net(), 2, 5, 7, batch_size=batch_size)


def oracle(risk: EmpiricalRisk, layer: str) -> Tensor:
    """The layer's block by double backward over all data at once, in plain PyTorch."""
    model = risk.module.eval()
    x = torch.cat([batch.args[0] for batch in risk.batches])
    y = torch.cat([batch.target for batch in risk.batches])
    theta = {n: p.detach() for n, p in model.named_parameters()}
    call = torch.func.functional_call
    H = dense_hessian(lambda p: F.cross_entropy(call(model, p, (x,)), y), theta)
    index = risk.space.block(layer).index()
    return H[index][:, index]


def check(found: LayerSpectrum, H: Tensor) -> None:
    values = torch.linalg.eigvalsh(H).flip(0)
    size = float(values.abs().max())
    assert found.values.shape == values.shape
    assert found.values.dtype == torch.float64
    torch.testing.assert_close(found.values, values, rtol=0.0, atol=1e-13 * size)
    assert found.trace == pytest.approx(float(H.trace()), rel=1e-12)
    assert found.frobenius == pytest.approx(float(H.norm()), rel=1e-12)
    assert found.rank == int((values.abs() > len(H) * 2.3e-16 * size).sum())
    if found.pairs is not None:
        k = len(found.pairs)
        V, theta = found.pairs.vectors, found.pairs.values
        torch.testing.assert_close(V.T @ V, torch.eye(k), rtol=0.0, atol=1e-10)
        torch.testing.assert_close(theta, values[:k], rtol=0.0, atol=1e-12 * size)
        residuals = (H @ V - V * theta).norm(dim=0)
        torch.testing.assert_close(found.pairs.residuals, residuals, rtol=0.0, atol=1e-12 * size)
        assert float(residuals.max()) < 1e-10 * size
        assert found.status
        assert found.pairs.status


# --- both methods are the block's spectrum ---


@pytest.mark.parametrize("method", ["dense", "gram"])
@pytest.mark.parametrize("layer", ["0", "0.weight", "4", "8", "10"])
def test_methods_agree_with_double_backward(layer: str, method: str) -> None:
    """Layer 10 has fewer parameters than rows (21 and 33); 0, 4 and 8 have more."""
    risk = image_risk()
    found = layer_spectrum(risk, layer, method=method, num_vectors=7)
    assert (found.method, found.certified_by, found.num_products) == (method, "tail", 7)
    check(found, oracle(risk, layer))


def test_batches_change_nothing() -> None:
    torch.manual_seed(3)
    model, x, y = conv_net(), torch.randn(N, 2, 5, 7), torch.arange(N) % 3
    for method in ("dense", "gram"):
        ways = [
            layer_spectrum(EmpiricalRisk(model, CrossEntropy(), (x, y), batch_size=b), "4",
                           method=method).values
            for b in (1, 4, None)
        ]  # fmt: skip
        torch.testing.assert_close(ways[0], ways[2])
        torch.testing.assert_close(ways[1], ways[2])


def test_positions_are_contracted_where_that_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    risk = risk_of(Tokens(), 2, 5, batch_size=4)
    calls = []
    contracted = factors._contracted
    monkeypatch.setattr(
        factors, "_contracted", lambda *parts: calls.append(1) or contracted(*parts)
    )
    check(layer_spectrum(risk, "fc", method="gram", num_vectors=4), oracle(risk, "fc"))
    assert len(calls) == 1
    layer_spectrum(image_risk(), "0", method="gram")  # 18 positions of 13 numbers
    assert len(calls) == 1


@pytest.mark.parametrize("loss", [SquaredError(), BinaryCrossEntropy()])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_other_losses_and_reductions(loss: object, reduction: str) -> None:
    model = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2))
    data = torch.randn(5, 4), torch.rand(5, 2)
    risk = EmpiricalRisk(model, loss, data, batch_size=3, reduction=reduction)
    H = es.Hessian(risk)["0"].to_dense()
    for method in ("dense", "gram"):
        check(layer_spectrum(risk, "0", method=method, num_vectors=3), H)


@pytest.mark.parametrize(
    ("name", "layer", "certified_by"),
    [
        ("mlp-tanh", "2", "full"),  # curved tail
        ("cnn-batchnorm", "1", "full"),  # no matrix
        ("embedding-padding", "emb", "full"),
        ("two-inputs", "twice", "full"),  # called twice: only the restricted full product
        ("lstm", "rnn", "full"),
    ],
)
def test_other_layers_by_products(name: str, layer: str, certified_by: str) -> None:
    c = case(name)
    risk = c.risk(4)
    index = risk.space.block(layer).index()
    found = layer_spectrum(risk, layer, num_vectors=3)
    assert (found.method, found.certified_by) == ("dense", certified_by)
    assert found.num_products == len(index) + 3
    check(found, c.hessian()[index][:, index])


def test_negative_eigenvalues_are_kept() -> None:
    found = layer_spectrum(case("mlp-tanh").risk(), "0")
    assert float(found.values[-1]) < -1e-3


# --- vectors beyond the rank ---


def test_more_vectors_than_rows() -> None:
    """Two samples and two outputs: four rows, three of the block's thirty directions."""
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
    risk = EmpiricalRisk(model, CrossEntropy(), (torch.randn(2, 5), torch.tensor([0, 1])))
    H = es.Hessian(risk)["0"].to_dense()
    found = layer_spectrum(risk, "0", method="gram", num_vectors=9)
    check(found, H)
    assert found.rank == 2  # softmax of two classes has one direction a sample
    assert len(found.pairs) == 9
    assert not found.values[4:].any()


def test_a_block_of_zeros() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].weight.zero_()
    risk = EmpiricalRisk(model, CrossEntropy(), (torch.randn(3, 3), torch.tensor([0, 1, 0])))
    found = layer_spectrum(risk, "0", method="gram", num_vectors=2)
    assert (found.rank, found.trace, found.frobenius) == (0, 0.0, 0.0)
    assert not found.pairs.residuals.any()


# --- the choice ---


def test_the_choice_follows_rows_and_parameters() -> None:
    risk = image_risk()
    assert layer_spectrum(risk, "8").method == "gram"  # 33 rows, 102 parameters
    assert layer_spectrum(risk, "10").method == "dense"  # 33 rows, 21 parameters
    found = layer_spectrum(risk, "8")
    assert found.reason.startswith("gram is the cheapest that fits. gram in float64: ")
    assert "; dense in float64: " in found.reason
    assert layer_spectrum(risk, "8", method="dense").reason.startswith("dense is asked for")


def test_memory_decides_where_it_is_short() -> None:
    risk = image_risk()
    q = 21
    found = layer_spectrum(risk, "10", memory_budget=q * q * 24)  # the Gram matrix needs more
    assert found.method == "dense"
    check(found, oracle(risk, "10"))
    assert layer_spectrum(risk, "8", memory_budget=102 * 102 * 20).method == "gram"
    with pytest.raises(TooLargeError, match=r"bytes \(gram, float64\) or .* \(dense, float64\).*"
                       r"budget is 1e\+03.*eigsh\(LayerHessian\(risk, '8'\)"):  # fmt: skip
        layer_spectrum(risk, "8", memory_budget=1000)
    with pytest.raises(TooLargeError, match="dense") as caught:
        layer_spectrum(risk, "8", method="dense", memory_budget=102 * 102 * 20)
    assert "gram" not in str(caught.value)


def test_the_parameters_own_dtype_is_used_where_float64_does_not_fit() -> None:
    c = case("mlp-tanh")
    data = tuple(t.float() if t.is_floating_point() else t for t in c.data)
    risk = EmpiricalRisk(copy.deepcopy(c.model).float(), c.loss, data)
    wide = layer_spectrum(risk, "2")
    q = len(wide.values)
    narrow = layer_spectrum(risk, "2", memory_budget=q * q * 16)
    assert (wide.precision, narrow.precision) == ("float64", "float32")
    top = float(wide.values[0])
    torch.testing.assert_close(narrow.values, wide.values, rtol=0.0, atol=1e-5 * top)


def test_float32_is_as_good_as_its_factors() -> None:
    torch.manual_seed(0)
    model, x = conv_net().float(), torch.randn(N, 2, 5, 7, dtype=torch.float32)
    risk = EmpiricalRisk(model, CrossEntropy(), (x, torch.arange(N) % 3), batch_size=4)
    found = [layer_spectrum(risk, "8", method=m, num_vectors=3) for m in ("dense", "gram")]
    exact = EmpiricalRisk(conv_net(), CrossEntropy(), (x.double(), torch.arange(N) % 3))
    exact.module.load_state_dict(model.state_dict())
    values = layer_spectrum(exact, "8").values
    for spectrum in found:
        assert spectrum.precision == "float64"
        assert spectrum.pairs.status
        atol = 1e-5 * float(values[0])
        torch.testing.assert_close(spectrum.values, values, rtol=0.0, atol=atol)


# --- refusals, and what a record can do ---


def test_refusals() -> None:
    risk = case("mlp-tanh").risk()
    with pytest.raises(UnsupportedModelError, match=r"piecewise linear \(Tanh\).*method='dense'"):
        layer_spectrum(risk, "0", method="gram")
    with pytest.raises(UnknownNameError, match="'auto', 'dense', 'gram'"):
        layer_spectrum(risk, "0", method="grams")
    with pytest.raises(InvalidArgumentError, match="from 0 to 30"):
        layer_spectrum(risk, "0", num_vectors=31)
    with pytest.raises(UnknownNameError, match="no layer of that name"):
        layer_spectrum(risk, "fc9")


def test_rows_need_factors() -> None:
    operator = LayerHessian(image_risk(), "8", representation="tail")
    assert operator.num_rows == 33
    with pytest.raises(UnsupportedModelError, match="representation='factors'"):
        operator.row_gram()
    assert LayerHessian(case("mlp-tanh").risk(), "0").num_rows is None


def test_the_certificate_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are wrong give pairs whose residuals by the tail say so."""
    risk = image_risk()
    combine = LayerHessian.combined_rows
    monkeypatch.setattr(LayerHessian, "combined_rows", lambda H, u: combine(H, u).flip(0))
    found = layer_spectrum(risk, "8", method="gram", num_vectors=3)
    assert not found.status
    assert "residuals" in found.status.text


def test_records_are_stored_tabulated_and_drawn() -> None:
    found = layer_spectrum(image_risk(), "8", num_vectors=4)
    assert found.to_frame().shape == (102, 2)
    again = unpack(*pack(found))
    assert torch.equal(again.values, found.values)
    assert torch.equal(again.pairs.vectors, found.pairs.vectors)
    axes = found.plot()
    assert axes.get_yscale() == "log"
    curve = next(line for line in axes.lines if len(line.get_xdata()) == 102)
    assert list(curve.get_ydata())[: found.rank] == found.values[: found.rank].tolist()
    flat = dataclasses.replace(found, values=-torch.ones(5), rank=5, pairs=None)
    assert flat.plot().get_yscale() == "linear"
    plt.close("all")
