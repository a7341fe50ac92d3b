"""Many networks at once against each of them alone, and what is no task."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.bounds._task import Task, working_risk
from eigenscape.errors import EigenscapeWarning, InvalidArgumentError, UnsupportedModelError
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk, SquaredError

COUNT, CLASSES = 37, 3
X = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(COUNT) * 5 % CLASSES


def risk(classes: int = CLASSES, **options: Any) -> EmpiricalRisk:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, classes))
    if classes == 1:
        target = (X[:, :1] > 0).double()
        return EmpiricalRisk(net, BinaryCrossEntropy(), (X, target), **options)
    return EmpiricalRisk(net, CrossEntropy(), (X, Y % classes), **options)


def networks(of: EmpiricalRisk, count: int) -> Tensor:
    return torch.randn(count, of.space.size)


def logits(of: EmpiricalRisk, row: Tensor, x: Tensor = X) -> Tensor:
    with torch.no_grad():
        return torch.func.functional_call(of.module, of.space.unflatten(row), (x,))


def check(outputs: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("classes", [CLASSES, 1])
def test_outputs_are_those_of_each_network(count: int, classes: int) -> None:
    of = risk(classes, batch_size=10)
    task, rows = Task(of), networks(of, count)
    inputs = torch.randn(count, 9, 4)
    with of.evaluating(), torch.no_grad():
        check(task.outputs(rows, X), torch.stack([logits(of, row) for row in rows]))
        each = [logits(of, row, x) for row, x in zip(rows, inputs, strict=True)]
        check(task.outputs(rows, inputs), torch.stack(each))
    if count > 1:
        with pytest.raises(AssertionError):
            check(torch.stack(each), torch.stack(each).roll(1, 0))


@pytest.mark.parametrize("classes", [CLASSES, 2, 1])
def test_errors_and_losses_are_those_of_each_network(classes: int) -> None:
    of = risk(classes)
    task, rows = Task(of), networks(of, 5)
    y = (X[:, 0] > 0).long() if classes == 1 else Y % classes
    z = torch.stack([logits(of, row) for row in rows])
    if classes == 1:
        wrong = (z[..., 0] > 0).long() != y
        loss = torch.stack([F.binary_cross_entropy_with_logits(one[:, 0], y.double()) for one in z])
    else:
        wrong = z.argmax(2) != y
        loss = torch.stack([F.cross_entropy(one, y) for one in z])
    check(task.errors(rows), wrong.double().mean(1))
    check(task.loss(z, y), loss / (math.log(2) if classes < 3 else 1.0))
    index = torch.randint(0, COUNT, (5, 11))
    check(task.errors(rows, index), wrong.gather(1, index).double().mean(1))
    assert 0 < float(task.errors(rows).mean()) < 1


def test_in_bits_the_loss_bounds_the_error_of_two_classes() -> None:
    of = risk(2)
    task, rows = Task(of), networks(of, 50)
    losses = task.loss(torch.stack([logits(of, row) for row in rows]), task.targets)
    assert bool((task.errors(rows) <= losses).all())


def test_the_largest_class_is_a_network_too() -> None:
    assert Task(risk()).constant_error() == pytest.approx(1 - 13 / 37)


def test_sums_tell_other_examples_and_other_constants_apart() -> None:
    of = risk()
    net = of.module
    frozen = EmpiricalRisk(net, CrossEntropy(), (X, Y), params=["2.weight"])
    before = Task(frozen).constants_checksum()
    assert Task(frozen).constants_checksum() == before
    assert Task(of).checksum() == Task(frozen).checksum()
    other = EmpiricalRisk(net, CrossEntropy(), (X, (Y + 1) % CLASSES))
    assert Task(other).checksum() != Task(of).checksum()
    with torch.no_grad():
        net[0].bias[2] += 1e-12
    assert Task(frozen).constants_checksum() != before


@pytest.mark.parametrize("is_function", [False, True])
def test_a_working_copy_has_parameters_of_its_own(is_function: bool) -> None:
    of = risk(batch_size=10)
    if is_function:
        call = lambda params, x: x @ params["W"]
        of = EmpiricalRisk(call, CrossEntropy(), (X, Y), params={"W": torch.randn(4, CLASSES)})
    copy = working_risk(of)
    assert copy.space == of.space
    assert float(copy.value()) == pytest.approx(float(of.value()), rel=1e-12)
    before = {name: tensor.clone() for name, tensor in of.parameters().items()}
    for tensor in copy.parameters().values():
        tensor.mul_(2.0)
    assert float(copy.value()) != pytest.approx(float(of.value()), rel=1e-3)
    for name, tensor in of.parameters().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("loss", "y", "words"),
    [
        (SquaredError(), torch.randn(COUNT, CLASSES).double(), "got SquaredError"),
        (CrossEntropy(label_smoothing=0.1), Y, "without weights or smoothing"),
        (CrossEntropy(torch.ones(CLASSES).double()), Y, "without weights or smoothing"),
        (CrossEntropy(), torch.full((COUNT, CLASSES), 1 / 3).double(), "one class for each"),
        (CrossEntropy(), Y.where(Y > 0, torch.tensor(-100)), "class numbers from 0 on"),
    ],
)
def test_other_problems_are_refused(loss: Any, y: Tensor, words: str) -> None:
    net = nn.Sequential(nn.Linear(4, CLASSES))
    with pytest.raises(UnsupportedModelError, match=words):
        Task(EmpiricalRisk(net, loss, (X, y)))


def test_labels_between_the_classes_are_refused() -> None:
    net = nn.Linear(4, 1)
    of = EmpiricalRisk(net, BinaryCrossEntropy(), (X, torch.full((COUNT, 1), 0.5)))
    with pytest.raises(UnsupportedModelError, match="labels between 0 and 1"):
        Task(of)


def test_one_example_is_too_few() -> None:
    of = EmpiricalRisk(nn.Linear(4, CLASSES), CrossEntropy(), (X[:1], Y[:1]))
    with pytest.raises(InvalidArgumentError, match="number of examples"):
        Task(of)


def test_copies_of_examples_are_warned_of() -> None:
    twice = (torch.cat([X, X[:7]]), torch.cat([Y, Y[:7]]))
    with pytest.warns(EigenscapeWarning, match="Only 37 of 44 examples are distinct"):
        Task(EmpiricalRisk(nn.Linear(4, CLASSES), CrossEntropy(), twice))
    other = (torch.cat([X, X[:7]]), torch.cat([Y, (Y[:7] + 1) % CLASSES]))
    Task(EmpiricalRisk(nn.Linear(4, CLASSES), CrossEntropy(), other))  # they differ by their class
