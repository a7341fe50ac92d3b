import pytest
import torch
from torch import nn

from eigenscape.errors import UnsupportedModelError
from eigenscape.losses import CrossEntropy
from eigenscape.operators import Hessian
from eigenscape.risk import EmpiricalRisk
from eigenscape.studies import Networks, portrait
from eigenscape.studies.portrait import matrix_layers, take_portrait
from tests.studies.conftest import block, inputs_of


def dense_block(risk: EmpiricalRisk, name: str) -> torch.Tensor:
    H, space = Hessian(risk).to_dense(), risk.space
    start = 0
    for other, shape in space.shapes.items():
        if other == name:
            break
        start += torch.Size(shape).numel()
    size = torch.Size(space.shapes[name]).numel()
    return H[start : start + size, start : start + size]


@pytest.mark.parametrize("most", [0, 1000], ids=["eigsh", "dense"])
@pytest.mark.parametrize("layer", ["fc2", "fc3"])
def test_pairs_are_those_of_the_dense_block(
    tiny: Networks, monkeypatch: pytest.MonkeyPatch, most: int, layer: str
) -> None:
    monkeypatch.setattr(portrait, "_DENSE", most)
    seen = take_portrait(tiny.risk(1), layer, 9)
    H = dense_block(tiny.risk(1), f"{layer}.weight")
    values = torch.linalg.eigvalsh(H).flip(0)
    torch.testing.assert_close(seen.values, values[:9], rtol=1e-8, atol=1e-10)
    V = seen.pairs.vectors
    torch.testing.assert_close(H @ V, V * seen.values, rtol=0, atol=1e-6 * float(values[0]))
    assert seen.pairs.status
    assert seen.pairs.tolerance == portrait.TOLERANCE
    torch.testing.assert_close(H, block(tiny, 1, f"{layer}.weight"))


def test_factors_are_the_means(tiny: Networks) -> None:
    seen = take_portrait(tiny.risk(0), "fc3", 4)
    assert (seen.num_outputs, seen.num_inputs, seen.num_parameters) == (10, 12, 120)
    x = inputs_of(tiny, 0, "fc3")
    A, M = x.T @ x / len(x), block(tiny, 0, "fc3.bias")
    torch.testing.assert_close(seen.kronecker.input_factor, A)
    torch.testing.assert_close(seen.kronecker.output_factor, M)
    torch.testing.assert_close(seen.inputs.matrix, A)
    vector = seen.pairs.vectors[:, 2]
    torch.testing.assert_close(seen.matrices()[2], vector.reshape(10, 12))
    K = torch.linalg.eigvalsh(torch.kron(M, A)).flip(0)
    torch.testing.assert_close(seen.kronecker_pairs(7).values, K[:7])
    assert len(seen.kronecker_pairs(1000)) == 120


def test_layers_that_are_no_matrix_are_left_out(tiny: Networks) -> None:
    assert matrix_layers(tiny.risk(0)) == ("fc1", "fc2", "fc3")
    shared = nn.Linear(3, 3)
    model = nn.Sequential(nn.Linear(2, 3), shared, nn.Tanh(), shared, nn.LayerNorm(3))
    data = (torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1]))
    assert matrix_layers(EmpiricalRisk(model, CrossEntropy(), data)) == ("0",)
    bare = nn.Sequential(nn.LayerNorm(2))
    data = (torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1]))
    with pytest.raises(UnsupportedModelError, match="eigenscape analyze"):
        matrix_layers(EmpiricalRisk(bare, CrossEntropy(), data))
