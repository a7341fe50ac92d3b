"""What the fuzzer found: seen by no test on the first few samples, or taken for an error."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import eigenscape as es
from eigenscape.errors import InvalidArgumentError, SelfTestError


class StraightThrough(nn.Module):
    """Its value is rounded, and its gradient is not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x + (x.round() - x).detach(), torch.zeros_like(x))


def test_reentrant_checkpoints_without_inputs_to_differentiate_have_gradients() -> None:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
            self.reentrant = True

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.inner, x, use_reentrant=self.reentrant))

    model, data = Recomputed(), (torch.randn(6, 3), torch.randint(2, (6,)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")
        gradient = es.EmpiricalRisk(model, es.CrossEntropy(), data).gradient()
    model.reentrant = False
    torch.testing.assert_close(
        gradient, es.EmpiricalRisk(model, es.CrossEntropy(), data).gradient()
    )


def hidden_for_most() -> tuple[nn.Module, Tensor, Tensor]:
    """Make a model whose first layer is hidden from autograd, and reached by few samples."""
    model = nn.Sequential(nn.Linear(2, 3), StraightThrough(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, 0.2], [2.0, -0.3], [4.0, 0.1]]))
        model[0].bias.zero_()
    X = torch.rand(40, 2) + 0.5
    X[:, 0] *= -1
    X[33:38, 0] *= -1
    return model, X, torch.randint(2, (40,))


def test_samples_are_looked_for_that_add_something_to_a_block() -> None:
    model, X, y = hidden_for_most()
    H = es.Hessian(es.EmpiricalRisk(model, es.CrossEntropy(), (X, y)))
    with pytest.raises(SelfTestError):
        H["0.weight"] @ torch.ones(6)


def test_a_block_to_which_no_asked_sample_adds_is_unresolved() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    X, y = torch.randn(40_000, 2), torch.randint(2, (40_000,))
    block = es.Hessian(es.EmpiricalRisk(model, es.CrossEntropy(), (X, y)))["0.weight"]
    assert float((block @ torch.ones(6)).norm()) == 0.0
    assert block.self_test.verdict == "unresolved"
    assert "add nothing" in block.self_test.text


@pytest.mark.parametrize("as_dicts", [False, True])
def test_batches_that_add_up_two_by_two_only_are_refused(as_dicts: bool) -> None:
    class OnTheWhole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if bool(x.sum() > 12) else self.b(x)

    X, y = torch.rand(8, 2) + 1.0, torch.randint(3, (8,))
    data = [(X[:1], y[:1]), (X, y)] if as_dicts else (X, y)
    with pytest.raises(InvalidArgumentError, match="cannot be cut"):
        es.EmpiricalRisk(OnTheWhole(), es.CrossEntropy(), data, batch_size=1)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_time_first_inputs_and_samples_first_targets_of_a_shape_that_fits_both(
    batch_size: int,
) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRU(2, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(x)[0][-1]

    model, X, y = Last(), torch.randn(3, 5, 2), torch.randn(5, 5)
    options = {"sample_dim": 1, "batch_size": batch_size}
    risk = es.EmpiricalRisk(model, nn.MSELoss(), (X, y), **options)
    assert risk.value() == pytest.approx((model(X) - y).square().mean().item())


def test_saturated_units_in_float32_are_no_error() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).float()
    with torch.no_grad():
        model[0].bias.fill_(8.0)
    X, y = torch.randn(20, 3).float(), torch.randn(20, 2).float()
    H = es.Hessian(es.EmpiricalRisk(model, es.SquaredError(), (X, y)))
    assert bool((H @ torch.ones(H.shape[0]).float()).isfinite().all())


def test_a_penalty_on_padding_is_no_error() -> None:
    class Loss(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            penalty = sum(p.square().sum() for p in self.model.parameters())
            return nn.functional.cross_entropy(output, target) + penalty

    model = nn.Sequential(nn.Embedding(9, 3, padding_idx=0), nn.Flatten(), nn.Linear(12, 3))
    with torch.no_grad():
        model[0].weight[0] = 1.0  # padding that reaches the loss
    X, y = torch.randint(9, (16, 4)), torch.randint(3, (16,))
    risk = es.EmpiricalRisk(model, Loss(model), (X, y), sample_dim=None)
    assert es.Hessian(risk).self_test.verdict == "passed"


class WithPenalty(nn.Module):
    """A small penalty on the weights inside the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        penalty = sum(p.square().sum() for p in self.model.parameters())
        return nn.functional.mse_loss(output, target) + 1e-4 * penalty


@pytest.mark.filterwarnings("ignore::eigenscape.errors.SubstitutionWarning")
def test_the_block_of_a_layer_holds_a_penalty_that_float32_would_hide() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).float()
    X, y = 30 * torch.randn(20, 3).float(), torch.randn(20, 2).float()
    risk = es.EmpiricalRisk(model, WithPenalty(model), (X, y), sample_dim=None)
    layer = es.LayerHessian(risk, "2")
    v = torch.ones(layer.shape[0]).float()
    expected = es.Hessian(risk)[risk.space.block("2")] @ v
    torch.testing.assert_close(layer @ v, expected, rtol=1e-5, atol=1e-7)


def test_samples_that_hardly_matter_and_see_each_other_are_noticed_in_float32() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return 10.0 + 0.1 * (h - h.mean(0))

    X, y = torch.randn(8, 2).float(), torch.zeros(8, 3).float()
    with pytest.raises(InvalidArgumentError, match="cannot be cut"):
        es.EmpiricalRisk(Centred().float(), es.SquaredError(), (X, y), batch_size=2)
