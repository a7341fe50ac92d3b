import pytest
import torch

from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape_papers.stepsize import draw_problems

INPUTS = torch.arange(60.0).reshape(30, 2)
LABELS = torch.arange(30) % 3


def test_a_problem_does_not_depend_on_its_neighbours() -> None:
    kind = {"objective": "validation", "num_samples": 11, "label_noise": 0.4, "seed": 2}
    many = draw_problems(INPUTS, LABELS, numbers=range(4), **kind)
    one = draw_problems(INPUTS, LABELS, numbers=[3], **kind)
    for name in ("labels", "fitted", "judged", "classes"):
        assert torch.equal(getattr(many, name)[3:], getattr(one, name))
    assert not torch.equal(many.fitted[0], many.fitted[1])
    assert many.num_problems == 4


def test_halves_are_disjoint_and_training_has_all() -> None:
    kind = {"numbers": range(5), "num_samples": 11, "seed": 1}
    halves = draw_problems(INPUTS, LABELS, objective="validation", **kind)
    whole = draw_problems(INPUTS, LABELS, objective="training", **kind)
    assert halves.fitted.shape == (5, 5)
    assert halves.judged.shape == (5, 6)
    assert torch.equal(whole.fitted, whole.judged)
    assert torch.equal(torch.cat([halves.fitted, halves.judged], 1), whole.fitted)
    for rows in whole.fitted:
        assert len(set(rows.tolist())) == 11


def test_classes_are_shuffled_and_noise_is_drawn_anew() -> None:
    many = torch.arange(9000) % 3
    clean = draw_problems(torch.ones(9000, 1), many, objective="training", numbers=range(3))
    assert torch.equal(clean.labels, clean.classes[:, many])
    assert len({tuple(order) for order in clean.classes.tolist()}) > 1
    noisy = draw_problems(
        torch.ones(9000, 1), many, objective="training", numbers=range(3), label_noise=0.3
    )
    assert torch.equal(noisy.classes, clean.classes)
    # A third of those drawn anew get their own class back.
    wrong = (noisy.labels != clean.labels).double().mean(1)
    torch.testing.assert_close(wrong, torch.full((3,), 0.2), atol=0.02, rtol=0)


def test_batches_come_from_their_samples() -> None:
    found = draw_problems(INPUTS, LABELS, objective="validation", numbers=range(2), num_samples=8)
    rows = found.draw("judged", 50, 3, torch.Generator().manual_seed(0))
    assert rows.shape == (50, 2, 3)
    for i in range(2):
        assert set(rows[:, i].flatten().tolist()) == set(found.judged[i].tolist())
    x, y = found.batches(rows[0])
    assert torch.equal(x[1, 2], INPUTS[rows[0, 1, 2]])
    assert y[1, 2] == found.labels[1, rows[0, 1, 2]]


def test_refusals() -> None:
    kind = {"objective": "training", "numbers": [0]}
    with pytest.raises(InvalidArgumentError, match="objective"):
        draw_problems(INPUTS, LABELS, objective="test", numbers=[0])
    with pytest.raises(ShapeError, match="labels"):
        draw_problems(INPUTS, LABELS[1:], **kind)
    with pytest.raises(InvalidArgumentError, match="numbers"):
        draw_problems(INPUTS, LABELS, objective="training", numbers=[])
    with pytest.raises(InvalidArgumentError, match="num_samples"):
        draw_problems(INPUTS, LABELS, num_samples=31, **kind)
    with pytest.raises(InvalidArgumentError, match="label_noise"):
        draw_problems(INPUTS, LABELS, label_noise=1.5, **kind)
    with pytest.raises(NonFiniteError, match="inputs"):
        draw_problems(INPUTS / 0, LABELS, **kind)
    with pytest.raises(InvalidArgumentError, match="classes from 0; got -1 to 1"):
        draw_problems(INPUTS, LABELS - 1, **kind)
    with pytest.raises(WrongTypeError, match=r"tensor of integers.*got torch.float64"):
        draw_problems(INPUTS, LABELS.double(), **kind)
    with pytest.raises(WrongTypeError, match=r"tensor of integers.*got list"):
        draw_problems(INPUTS, LABELS.tolist(), **kind)
    with pytest.raises(WrongTypeError, match=r"`draw_problems\(seed=...\)`"):
        draw_problems(INPUTS, LABELS, seed=1.5, **kind)
