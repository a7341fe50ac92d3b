"""What a risk finds out when it is made: is this a function, and a sum over samples?"""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from eigenscape.errors import (
    EigenscapeError,
    EmptySelectionError,
    GroupingWarning,
    InvalidArgumentError,
    NonDeterministicRiskError,
    SubstitutionWarning,
    UnsupportedModelError,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk

X = torch.linspace(-1, 1, 36, dtype=torch.float64).view(9, 4).sin()
Y = torch.arange(9) % 3
LOADER = DataLoader(TensorDataset(X, Y), batch_size=4)  # 4, 4 and 1


def net() -> nn.Module:
    return nn.Linear(4, 3)


# --- how a model is called ---


class Whole(nn.Module):
    """It takes the mapping as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.inner(batch["x"])


class Named(Whole):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return self.inner(x) * scale


@pytest.mark.parametrize("kind", [Whole, Named])
def test_a_mapping_is_handed_over_as_the_model_takes_it(kind: type[Whole]) -> None:
    model = kind()
    data = {"x": X, "scale": torch.ones(9, 1), "labels": Y}
    value = EmpiricalRisk(model, CrossEntropy(), data).value()
    assert value == pytest.approx(F.cross_entropy(model.inner(X), Y).item(), rel=1e-12)


def test_a_model_that_differentiates_within_itself_runs() -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            (slope,) = torch.autograd.grad(self.inner(x).tanh().sum(), x, create_graph=True)
            return slope

    model, x = Slope(), X.clone().requires_grad_()
    risk = EmpiricalRisk(model, lambda z, y: z.square().sum(1), (x, Y))
    assert risk.value() == pytest.approx(model(x).square().sum(1).mean().item(), rel=1e-12)


# --- the same at a second look ---


def test_a_random_model_is_refused_by_its_name() -> None:
    model = nn.Sequential(net(), nn.Dropout())
    EmpiricalRisk(model.train(), CrossEntropy(), (X, Y))  # evaluated with dropout off
    with pytest.raises(NonDeterministicRiskError, match="The model gave two results"):
        EmpiricalRisk(model, CrossEntropy(), (X, Y), mode="keep")
    EmpiricalRisk(model, CrossEntropy(), (X, Y), mode="keep", check_deterministic=False)


def test_a_random_loss_is_refused_by_its_name() -> None:
    with pytest.raises(NonDeterministicRiskError, match="The loss gave two results"):
        EmpiricalRisk(net(), lambda z, y: z.sum(1) * torch.rand(()), (X, Y))


def test_logits_that_are_infinite_or_nan_alike_are_the_same() -> None:
    model = nn.Linear(4, 3)
    never = torch.tensor([0.0, 0.0, -torch.inf])
    loss = lambda z, y: F.cross_entropy(z + never, y % 2, reduction="none")
    assert EmpiricalRisk(model, loss, (X, Y)).value() > 0


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i] + torch.rand(4), Y[i]


def test_a_loader_that_gives_other_data_each_time_is_refused() -> None:
    with pytest.raises(NonDeterministicRiskError, match="Two passes over the data"):
        EmpiricalRisk(net(), CrossEntropy(), DataLoader(Augmented(), 4), keep_data_bytes=0)


def test_a_shuffled_loader_gives_the_same_data_in_another_order() -> None:
    loader = DataLoader(TensorDataset(X, Y), 9, shuffle=True)
    EmpiricalRisk(net(), CrossEntropy(), loader, keep_data_bytes=0)


def test_nothing_to_add_up_is_refused() -> None:
    with pytest.raises(EmptySelectionError, match="no loss term"):
        EmpiricalRisk(net(), CrossEntropy(), (X, torch.full((9,), -100)))


# --- a sum over samples ---


def centred(z: Tensor, y: Tensor) -> Tensor:
    return (z - z.mean(0)).square().sum(1)


def of_valid(z: Tensor, y: Tensor) -> Tensor:
    """An average over the targets that count, and so not over samples."""
    return F.cross_entropy(z, y.masked_fill(torch.arange(len(y)) % 3 == 1, -100))


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - x.mean(0))


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNN(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0])


MIXING: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "loss": (net, centred),
    "average": (net, of_valid),
    "model": (Centred, CrossEntropy()),
    "contrastive": (net, lambda z, y: ((z @ z.T).logsumexp(1) - (z * z).sum(1)).mean()),
}


@pytest.mark.parametrize("batch_size", [1, 2, 4, 8])
@pytest.mark.parametrize("name", MIXING)
def test_batches_that_change_the_loss_are_refused(name: str, batch_size: int) -> None:
    model, loss = MIXING[name]
    with pytest.raises(InvalidArgumentError, match="cannot be cut into batches"):
        EmpiricalRisk(model(), loss, (X, Y), batch_size=batch_size)


@pytest.mark.parametrize("name", MIXING)
def test_one_batch_is_always_what_was_meant(name: str) -> None:
    made, loss = MIXING[name]
    model = made()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        risk = EmpiricalRisk(model, loss, (X, Y), sample_dim=None)
    own = loss if callable(loss) else F.cross_entropy
    assert risk.value() == pytest.approx(own(model(X), Y).mean().item(), rel=1e-12)


def test_data_that_we_would_cut_stay_whole_where_samples_see_each_other() -> None:
    big, y = X.repeat(1200, 1), Y.repeat(1200)
    model = net()
    with pytest.warns(SubstitutionWarning, match="one batch"):
        risk = EmpiricalRisk(model, centred, (big, y))
    assert risk.value() == pytest.approx(centred(model(big), y).mean().item(), rel=1e-10)


@pytest.mark.parametrize("name", MIXING)
def test_the_users_own_batches_are_taken_and_the_dependence_is_said(name: str) -> None:
    model, loss = MIXING[name]
    with pytest.warns(GroupingWarning, match="depends on how samples are grouped"):
        EmpiricalRisk(model(), loss, LOADER)


def test_losses_that_are_sums_are_cut_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in (CrossEntropy(), lambda z, y: (z.square().sum(), z.numel())):
            for data, size in (((X, Y), 1), ((X, Y), 2), (LOADER, None)):
                EmpiricalRisk(net(), loss, data, batch_size=size)


def test_time_first_is_refused_until_it_is_said() -> None:
    x, model = torch.randn(9, 9, 4), TimeFirst()  # as many places as samples: no shape tells
    y, loss = torch.randint(0, 3, (9, 9)), CrossEntropy(class_dim=-1)
    with pytest.raises(InvalidArgumentError, match="sample_dim=1"):
        EmpiricalRisk(model, loss, (x, y), batch_size=4)
    risk = EmpiricalRisk(model, loss, (x, y), batch_size=4, sample_dim=1)
    expected = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    assert risk.value() == pytest.approx(expected.item(), rel=1e-12)


def test_statistics_of_a_batch_allow_one_batch_only() -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(3)).train()
    EmpiricalRisk(model, CrossEntropy(), LOADER)  # with running statistics
    EmpiricalRisk(model, CrossEntropy(), (X, Y), mode="keep")
    threes = DataLoader(TensorDataset(X, Y), batch_size=3)
    with pytest.raises(UnsupportedModelError, match="`1` normalises by the statistics"):
        EmpiricalRisk(model, CrossEntropy(), threes, mode="keep")


def test_fused_attention_is_replaced_and_said() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.inner(x)[:, None]
            return F.scaled_dot_product_attention(h, h, h)[:, 0]

    with pytest.warns(SubstitutionWarning, match="math kernel"):
        EmpiricalRisk(Attention(), CrossEntropy(), (X, Y))


# --- and nothing of it stays ---


class Fragile(nn.Module):
    """It fails at its third call, with an error or an interrupt."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.inner, self.error, self.calls = nn.Linear(4, 3), error, itertools.count()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        if next(self.calls) == 2:
            raise self.error
        return self.inner(x)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_model_that_fails_in_the_first_look_is_given_back(error: type[BaseException]) -> None:
    model = Fragile(error).train()
    model.inner.weight.grad = torch.ones(3, 4)
    before = [id(t) for t in (*model.parameters(), *model.buffers())]
    raised = EigenscapeError if error is ValueError else error
    with pytest.raises(raised):
        EmpiricalRisk(model, CrossEntropy(), LOADER)
    assert [id(t) for t in (*model.parameters(), *model.buffers())] == before
    assert model.seen.item() == 0
    assert model.training
    assert model.inner.training
    assert torch.equal(model.inner.weight.grad, torch.ones(3, 4))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("name", MIXING)
def test_a_data_set_is_cut_as_tensors_are(name: str, batch_size: int) -> None:
    class Rows(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
            return X[number], Y[number]

    model, loss = MIXING[name]
    with pytest.raises(InvalidArgumentError, match="cannot be cut into batches"):
        EmpiricalRisk(model(), loss, Rows(), batch_size=batch_size)
