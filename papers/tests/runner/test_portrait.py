import pytest
import torch
from torch import nn

from eigenscape.curvature import Hessian
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.runner import (
    Networks,
    last_layer,
    layer_obstacles,
    left_out,
    matrix_layers,
    pairs_around_outputs,
    portrait,
    take_portrait,
)
from papers.tests.conftest import block, inputs_of


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


class Twice(nn.Module):
    """Runs one layer twice, one never, and one not as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.spare = nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shared(self.shared(self.first(x)).tanh())[:, None]  # sequences of one
        return self.scale * self.last(self.attention(x, x, x, need_weights=False)[0][:, 0])


def risk_of(model: nn.Module) -> EmpiricalRisk:
    return EmpiricalRisk(model, CrossEntropy(), (torch.randn(20, 2), torch.arange(20) % 3))


@pytest.mark.filterwarnings("ignore::eigenscape.errors.SubstitutionWarning")
def test_layers_that_do_not_run_once_are_left_out_and_named() -> None:
    model = Twice()
    model.spare.weight.requires_grad_(False)
    risk = risk_of(model)
    assert layer_obstacles(risk) == {
        "first": None,
        "shared": "it runs 2 times in a forward pass",
        "spare": "its weight is held fixed",
        "attention.out_proj": "it does not run by itself",
        "last": None,
    }
    assert matrix_layers(risk) == ("first", "last")
    assert left_out(risk) == (
        "Left out where layers are looked at one by one: shared (it runs 2 times in a forward "
        "pass); spare (its weight is held fixed); attention.out_proj (it does not run by itself)."
    )
    for layer in matrix_layers(risk):
        assert take_portrait(risk, layer, 3).pairs.status
    assert not any(module._forward_hooks for module in model.modules())


class HeadFirst(nn.Module):
    """Names its layers in another order than they run, and has one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body, self.spare = nn.Linear(4, 3), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).tanh())


def test_the_last_layer_is_that_which_runs_last(tiny: Networks) -> None:
    assert last_layer(risk_of(HeadFirst())) == "head"
    assert matrix_layers(risk_of(HeadFirst())) == ("head", "body")
    assert last_layer(tiny.risk(0)) == "fc3"


def test_nothing_is_said_where_nothing_is_missed(tiny: Networks) -> None:
    assert left_out(tiny.risk(0)) == ""
    normed = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    assert left_out(risk_of(normed)) == ""  # a user expects no such layer


def test_a_network_without_such_layers_is_told_why() -> None:
    with pytest.raises(UnsupportedModelError, match=r"is a Linear and no more.*Sequential"):
        matrix_layers(risk_of(nn.Linear(2, 3)))
    shared = nn.Linear(2, 2)
    both = nn.Sequential(shared, nn.Tanh(), shared)
    data = (torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1]))
    with pytest.raises(UnsupportedModelError, match=r"none will do: 0 \('0.weight' is tied"):
        matrix_layers(EmpiricalRisk(both, CrossEntropy(), data))


def test_as_many_pairs_as_show_what_becomes_at_m(
    tiny: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    risk = tiny.risk(0)  # fc2 is (12, 12), fc3 (10, 12)
    assert pairs_around_outputs(risk, "fc2", 5) == 15  # 14.4
    assert pairs_around_outputs(risk, "fc3", 5) == 12
    assert pairs_around_outputs(risk, "fc3", 60) == 60
    flat = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 9))
    assert pairs_around_outputs(risk_of(flat), "1", 1) == 9  # there are no more
    monkeypatch.setattr(portrait, "_MOST_NUMBERS", 15 * 144)
    assert pairs_around_outputs(risk, "fc2", 5) == 15
    monkeypatch.setattr(portrait, "_MOST_NUMBERS", 15 * 144 - 1)
    assert pairs_around_outputs(risk, "fc2", 5) == 5
