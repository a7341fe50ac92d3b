"""What is switched off around a model's evaluation, put back, and said in our words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import eigenscape as es
from eigenscape.errors import ShapeError, UnsupportedModelError
from eigenscape.risk import derivatives_explained
from eigenscape.risk.evaluation import evaluation

CPU = torch.device("cpu")


@contextmanager
def evaluating(model: nn.Module, *live: str, mode: str = "eval") -> Iterator[None]:
    named = dict(model.named_parameters())
    chosen = {id(p) for name, p in named.items() if name in live}
    with evaluation(model, list(named.values()), chosen, mode=mode, device=CPU):
        yield


def test_modes_are_set_and_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2).eval())
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model] == [True, True, False]
    with evaluating(model, mode="keep"):
        assert [part.training for part in model] == [True, True, False]


def test_only_live_parameters_require_gradients_meanwhile() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad = False
    with evaluating(model, "bias"):
        assert (model.weight.requires_grad, model.bias.requires_grad) == (False, True)
    assert (model.weight.requires_grad, model.bias.requires_grad) == (True, False)


def test_all_is_put_back_after_an_error() -> None:
    model = nn.Linear(2, 2).train()
    functions = F.hardsigmoid, F.group_norm
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert model.training
    assert model.weight.requires_grad
    assert functions == (F.hardsigmoid, F.group_norm)
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_gradients_of_the_user_are_kept_from_a_model_that_adds_to_them() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad = held = torch.ones(2, 2)
    with evaluating(model, "weight", "bias"):
        assert model.weight.grad is None
        model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is held
    assert torch.equal(held, torch.ones(2, 2))
    assert model.bias.grad is None


def test_settings_around_the_call_do_not_reach_the_model() -> None:
    model, x = nn.Linear(2, 2).float(), torch.ones(1, 2, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), evaluating(model):
        assert model(x).dtype == torch.float32
    with torch.inference_mode(), evaluating(model):
        assert not torch.is_inference_mode_enabled()
    with parametrize.cached(), evaluating(model):
        assert not parametrize._cache_enabled


# --- functions of PyTorch that fail in or after a backward pass ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inplace", [False, True])
def test_hardsigmoid_is_the_same_function_and_has_two_derivatives(
    dtype: torch.dtype, inplace: bool
) -> None:
    x = torch.linspace(-5.0, 5.0, 1001, dtype=dtype)
    expected = F.hardsigmoid(x)
    with evaluating(nn.Linear(1, 1)):
        given = x.clone()
        found = nn.Hardsigmoid(inplace)(given)
        assert (found is given) == inplace
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.hardsigmoid(leaf).sum(), leaf, create_graph=True)
        (bend,) = torch.autograd.grad((slope * leaf).sum(), leaf)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    inside = (x.abs() < 3).to(dtype) / 6
    torch.testing.assert_close(slope, inside)
    torch.testing.assert_close(bend, inside)


def test_group_normalisation_gives_the_same_numbers_whatever_the_layout() -> None:
    norm, x = nn.GroupNorm(2, 4), torch.randn(3, 4, 2, 2)
    last = x.to(memory_format=torch.channels_last)
    with evaluating(norm, "weight", "bias"):
        found = norm(last)
        slopes = torch.autograd.grad(found.square().sum(), list(norm.parameters()))
        expected = norm(x)
        plain = torch.autograd.grad(expected.square().sum(), list(norm.parameters()))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(slopes, plain)


def test_one_sample_with_one_value_per_group_is_normalised() -> None:
    """`F.group_norm` takes five such samples and refuses one."""
    norm, X = nn.GroupNorm(3, 3), torch.randn(5, 3, 1)
    nn.init.normal_(norm.bias)
    with evaluating(norm, "weight", "bias"):
        torch.testing.assert_close(norm(X[:1]), norm(X)[:1])
    torch.testing.assert_close(norm(X), norm.bias[:, None].expand(5, 3, 1))
    model = nn.Sequential(nn.Conv1d(2, 3, 4), norm, nn.Flatten(), nn.Linear(3, 2))
    data = torch.randn(5, 2, 4), torch.randint(0, 2, (5,))
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), data, batch_size=2)
    expected = F.cross_entropy(model(data[0]), data[1]).item()
    assert risk.value() == pytest.approx(expected, rel=1e-12)


def test_evaluations_may_stand_in_each_other() -> None:
    outside = F.hardsigmoid
    with evaluating(nn.Linear(1, 1)):
        within = F.hardsigmoid
        with evaluating(nn.Linear(1, 1)):
            assert F.hardsigmoid is within
        assert F.hardsigmoid is within
    assert F.hardsigmoid is outside


# --- in our words ---


def test_a_missing_derivative_is_named() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.cdist(x, x.detach() + 1).sum(), x, create_graph=True)
    with (
        pytest.raises(UnsupportedModelError, match=r"This cannot.*second derivative of `cdist"),
        derivatives_explained("This"),
    ):
        slope.square().sum().backward()


def test_reentrant_checkpoints_are_named() -> None:
    x = torch.randn(3, requires_grad=True)
    y = checkpoint(torch.tanh, x, use_reentrant=True)
    with (
        pytest.raises(UnsupportedModelError, match="use_reentrant=False"),
        derivatives_explained("This"),
    ):
        torch.autograd.grad(y.sum(), x)


def test_other_errors_are_quoted_with_their_kind() -> None:
    with (
        pytest.raises(UnsupportedModelError, match="raised KeyError: 'state'") as caught,
        derivatives_explained("This"),
    ):
        raise KeyError("state")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "error", [ShapeError("ours"), MemoryError(), torch.OutOfMemoryError(), UserWarning("theirs")]
)
def test_refusals_warnings_and_lack_of_memory_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, derivatives_explained("This"):
        raise error
    assert caught.value is error


def test_interrupts_pass() -> None:
    with pytest.raises(KeyboardInterrupt), derivatives_explained("This"):
        raise KeyboardInterrupt


def test_tensors_are_not_needed() -> None:
    """A pure function has no module."""
    x: Tensor = torch.ones(2, requires_grad=True)
    with evaluation(None, [x], set(), mode="eval", device=CPU):
        assert not x.requires_grad
    assert x.requires_grad


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True)])
def test_norms_of_one_image_are_differentiated_rightly(norm: nn.Module) -> None:
    # PyTorch 2.13 is off by 1 to 2, relative, where the gradient that comes in has channels last.
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.out = nn.Conv2d(2, 3, 2), norm, nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
            return self.out(torch.tanh(tokens)).mean(1)

    torch.manual_seed(0)
    model = Tokens().double()
    data = torch.randn(5, 2, 3, 4), torch.randint(0, 4, (5,))
    together, one_by_one = (
        es.EmpiricalRisk(model, es.CrossEntropy(), data, batch_size=size) for size in (5, 1)
    )
    torch.testing.assert_close(one_by_one.gradient(), together.gradient())
    v = torch.randn(together.space.size, dtype=torch.float64)
    torch.testing.assert_close(es.Hessian(one_by_one) @ v, es.Hessian(together) @ v)
