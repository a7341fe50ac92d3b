"""Data in every form that a user may have it, and what is refused."""

import itertools
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import eigenscape as es
from eigenscape.errors import EmptySelectionError, InvalidArgumentError, ShapeError, WrongTypeError
from eigenscape.risk import Batch, BatchSource
from eigenscape.risk.batches import DEFAULT_BATCH_SIZE

X = torch.arange(22.0, dtype=torch.float64).view(11, 2)
Y = torch.arange(11)
Pair = namedtuple("Pair", ["image", "label"])


def source(
    data: Any, batch_size: int | None = None, *, keep: int = 10**9, **kinds: Any
) -> BatchSource:
    settings = {"device": torch.device("cpu"), "dtype": torch.float64} | kinds
    made = BatchSource(data, batch_size=batch_size, keep_bytes=keep, **settings)
    made.keep()
    return made


def inputs(batch: Batch) -> Tensor:
    return next(iter((*batch.args, *batch.kwargs.values())))


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


FORMS: dict[str, Any] = {
    "tuple": (X, Y),
    "list": [X, Y],
    "dict": {"x": X, "labels": Y},
    "dict, other word": {"x": X, "target": Y},
    "dataset": TensorDataset(X, Y),
    "stream": Stream(),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=4),
    "list of pairs": [(X[:7], Y[:7]), (X[7:], Y[7:])],
    "list of dicts": [{"x": X[:7], "labels": Y[:7]}, {"x": X[7:], "labels": Y[7:]}],
    "mapping and target": [({"x": X}, Y)],
    "inputs in a tuple": [((X,), Y)],
    "named tuple": [Pair(X, Y)],
    "several inputs": (X, 2 * X, Y),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [1, 3, 7, 100, None])
def test_forms_hold_the_same_samples(form: str, batch_size: int | None) -> None:
    batches = list(source(FORMS[form], batch_size))
    torch.testing.assert_close(torch.cat([inputs(batch) for batch in batches]), X)
    assert torch.equal(torch.cat([batch.target for batch in batches]), Y)
    assert sum(batch.size for batch in batches) == 11
    assert all(batch.size <= (batch_size or 11) for batch in batches)
    assert [b.first for b in batches] == [
        sum(a.size for a in batches[:i]) for i in range(len(batches))
    ]
    if form in ("tuple", "list", "dict", "several inputs") and batch_size == 7:
        assert [batch.size for batch in batches] == [7, 4]


def test_inputs_alone_have_no_target() -> None:
    for data in (X, (X,), [(X,)], {"x": X}):
        (batch,) = source(data)
        assert batch.target is None
        assert torch.equal(inputs(batch), X)


def test_mappings_go_by_keyword_and_nested_tensors_are_moved() -> None:
    data = {"x": X.float(), "extra": {"mask": Y > 3, "more": [X.float(), "text"]}, "labels": Y}
    first, second = source(data, 7)
    assert first.kwargs["x"].dtype == torch.float64
    assert first.kwargs["extra"]["mask"].dtype == torch.bool
    assert second.kwargs["extra"]["more"][0].shape == (4, 2)
    assert second.kwargs["extra"]["more"][1] == "text"
    assert first.nbytes == 7 * (2 * 8 + 1 + 2 * 8 + 8)


def test_floats_become_the_parameters_dtype_and_lose_their_graph() -> None:
    (batch,) = source((X.float().requires_grad_(), Y), dtype=torch.bfloat16)
    assert batch.args[0].dtype == torch.bfloat16
    # A model may differentiate by this input itself.
    assert batch.args[0].requires_grad
    assert batch.args[0].is_leaf
    assert batch.target.dtype == torch.int64


def test_what_fits_is_kept_and_what_does_not_is_read_again() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    kept, streamed = source(loader), source(loader, keep=10)
    assert kept.is_fixed
    assert not streamed.is_fixed
    assert not kept.is_whole
    orders = [torch.cat([b.target for b in made]).tolist() for made in (kept, kept)]
    assert orders[0] == orders[1]
    seen = {tuple(torch.cat([b.target for b in streamed]).tolist()) for _ in range(4)}
    assert len(seen) > 1
    assert source((X, Y), 4, keep=10).is_fixed  # tensors at hand are never in another order


def test_data_at_once_are_split_by_default() -> None:
    many = torch.zeros(2 * DEFAULT_BATCH_SIZE + 5, 1)
    assert [b.size for b in source((many, many))] == [DEFAULT_BATCH_SIZE] * 2 + [5]
    # What cannot be split stays whole, since splitting was not the user's wish.
    assert [b.size for b in source((torch.zeros(3, 2), many))] == [len(many)]
    with pytest.raises(InvalidArgumentError, match=r"one of its tensors has shape \(3, 2\)"):
        source((torch.zeros(3, 2), many), 100)


def test_user_batches_are_only_split_on_demand() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=6)
    assert [b.size for b in source(loader)] == [6, 5]
    assert [b.size for b in source(loader, 4)] == [4, 2, 4, 1]


def test_tensors_of_inference_mode_can_be_differentiated() -> None:
    with torch.inference_mode():
        made = X * 1
        (batch,) = source((made, Y))
    (later,) = source((made, Y))
    for x in (batch.args[0], later.args[0]):
        w = torch.ones(2, requires_grad=True)
        torch.autograd.grad((x @ w).square().sum(), w)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ((x for x in [(X, Y)]), WrongTypeError, "a generator can be walked only once. Pass `list"),
        (iter([(X, Y)]), WrongTypeError, "walked only once"),
        (3, WrongTypeError, "got int"),
        (None, WrongTypeError, "got NoneType"),
        ("data", WrongTypeError, "got str"),
        ([], EmptySelectionError, "gave no batch"),
        ({}, EmptySelectionError, "gave no batch"),
        ((X[:0], Y[:0]), EmptySelectionError, "gave no batch"),
        ([(X[:0], Y[:0])], EmptySelectionError, "gave no batch"),
        (TensorDataset(X[:0], Y[:0]), EmptySelectionError, "gave no batch"),
        (
            DataLoader(TensorDataset(X, Y), batch_size=20, drop_last=True),
            EmptySelectionError,
            "drop_l",
        ),
        ([3], WrongTypeError, r"A batch must be \(inputs…, target\)"),
        ((X.numpy(), Y.numpy()), WrongTypeError, "got ndarray"),
        ((X[0, 0], Y[0]), ShapeError, "sample dimension"),
        ([("text", 3)], ShapeError, "sample dimension"),
    ],
)
def test_refusals(data: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        source(data)


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, "7"])
def test_batch_size_is_a_count(wrong: Any) -> None:
    with pytest.raises((InvalidArgumentError, WrongTypeError), match=r"EmpiricalRisk\(batch_size="):
        source((X, Y), wrong)


def test_a_tensor_dataset_is_its_tensors_unless_it_does_something_of_its_own() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            x, y = super().__getitem__(index)
            return 2 * x, y

    def first(data: TensorDataset) -> tuple[torch.Tensor, bool]:
        found = source(data)
        return next(iter(found)).args[0], found.is_whole

    inputs, is_whole = first(TensorDataset(X, Y))
    assert is_whole
    torch.testing.assert_close(inputs[: len(X)], X[: len(inputs)])
    inputs, is_whole = first(Doubled(X, Y))
    assert not is_whole
    torch.testing.assert_close(inputs, 2 * X[: len(inputs)])


def test_a_sample_is_the_head_of_data_that_we_cut() -> None:
    assert inputs(source((X, Y)).sample(4)).tolist() == X[:4].tolist()
    assert source((X, Y)).sample(40).size == 11
    assert source([(X, Y)]).sample(4).size == 11  # a batch of the user's own stays whole
    assert source((X, Y), batch_size=7).sample(4).size == 7


def test_a_pair_of_named_inputs_and_a_target_is_one_batch() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x)

    data = {"x": torch.randn(9, 3)}, torch.arange(9) % 4
    assert es.EmpiricalRisk(Named(), es.CrossEntropy(), data).num_samples == 9


def test_a_stream_without_an_end_is_refused() -> None:
    class Endless(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return itertools.repeat(
                (torch.zeros(200_000, 3), torch.zeros(200_000, dtype=torch.long))
            )

    loader = DataLoader(Endless(), batch_size=None)
    with pytest.raises(InvalidArgumentError, match="no end so far"):
        es.EmpiricalRisk(nn.Linear(3, 4), es.CrossEntropy(), loader)


def test_a_branch_on_the_number_of_samples_is_seen() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.fc(x)) if len(x) > 5 else torch.sin(self.fc(x))

    data = torch.randn(10, 3), torch.arange(10) % 4
    with pytest.raises(InvalidArgumentError, match="cannot be cut into batches"):
        es.EmpiricalRisk(Branch(), es.CrossEntropy(), data, batch_size=4)
