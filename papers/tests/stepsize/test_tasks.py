import math

import pytest
import torch

from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape_papers.stepsize import (
    Tasks,
    descend,
    draw_samples,
    draw_tasks,
    expected_distance,
    limit_distance,
    squared_distances,
    task_losses,
)


def spectra(tasks: Tasks) -> torch.Tensor:
    n = tasks.inputs.shape[1]
    return torch.linalg.eigvalsh(tasks.inputs @ tasks.inputs.mT / n)


def test_tasks_do_not_depend_on_portions() -> None:
    all_of = draw_tasks(5, 4, 3, noise=0.5, seed=2)
    part = draw_tasks(2, 4, 3, noise=0.5, seed=2, first=3)
    assert torch.equal(all_of.inputs[3:], part.inputs)
    assert torch.equal(all_of.truths[3:], part.truths)
    torch.testing.assert_close(all_of.targets[3:], part.targets)
    assert not torch.equal(all_of.inputs[0], all_of.inputs[1])
    assert not torch.equal(draw_tasks(1, 4, 3, noise=0.5, seed=3).inputs, all_of.inputs[:1])
    torch.testing.assert_close(all_of.truths.norm(dim=1), torch.ones(5))


def test_noise_has_its_size() -> None:
    tasks = draw_tasks(3, 4000, 2, noise=2.0)
    errors = tasks.targets - (tasks.inputs @ tasks.truths[..., None])[..., 0]
    assert float(errors.std()) == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("n", [3, 11])
def test_descent_is_the_closed_form(n: int) -> None:
    tasks = draw_tasks(2, n, 6, noise=0.3)
    eta = torch.tensor([0.05, 0.2])
    found = descend(tasks, eta, num_steps=9, limit=1e9)
    for task in range(2):
        X, y = tasks.inputs[task], tasks.targets[task]
        H, fit = X.T @ X / n, torch.linalg.pinv(X) @ y
        for k, step in enumerate(eta):
            left = torch.linalg.matrix_power(torch.eye(6) - step * H, 9)
            torch.testing.assert_close(found[task, :, k], fit - left @ fit)
    loss = 0.5 * (tasks.targets[1] - tasks.inputs[1] @ found[1, :, 0]).square().mean()
    assert float(task_losses(tasks, found)[1, 0]) == pytest.approx(float(loss))


def test_what_grows_is_frozen_and_leaves_the_others_alone() -> None:
    tasks = draw_tasks(3, 8, 5, noise=0.2)
    eta = torch.tensor([0.1, 30.0])
    found = descend(tasks, eta, num_steps=50)
    assert found[:, :, 1].norm(dim=1).tolist() == pytest.approx([8.0] * 3)
    torch.testing.assert_close(found[:, :, :1], descend(tasks, 0.1, num_steps=50))
    assert float(found[:, :, 0].norm(dim=1).max()) < 8.0


def test_stochastic_steps_use_one_sample_each() -> None:
    tasks = draw_tasks(2, 5, 3, noise=0.5)
    samples = draw_samples(2, 5, 4, seed=1)
    found = descend(tasks, torch.tensor([0.1, 0.3]), num_steps=4, samples=samples)
    for task in range(2):
        w = torch.zeros(3)
        for i in samples[task]:
            x, y = tasks.inputs[task, i], tasks.targets[task, i]
            w = w - 0.3 * (x @ w - y) * x
        torch.testing.assert_close(found[task, :, 1], w)


def test_samples_are_uniform() -> None:
    counts = torch.bincount(draw_samples(3, 7, 7000).flatten(), minlength=7)
    assert len(counts) == 7
    assert bool((counts - 3000).abs().max() < 250)


@pytest.mark.parametrize("n", [6, 30])
def test_the_expected_distance_is_the_mean_over_runs(n: int) -> None:
    tasks = draw_tasks(4000, n, 12, noise=1.5)
    found = squared_distances(tasks, descend(tasks, 0.15, num_steps=7, limit=1e9))[:, 0]
    expected = expected_distance(
        spectra(tasks), dimension=12, noise=1.5, step_size=0.15, num_steps=7
    )
    assert abs(float(found.mean()) - expected) < 4 * float(found.std()) / math.sqrt(4000)
    wrong = expected_distance(spectra(tasks), dimension=12, noise=1.4, step_size=0.15, num_steps=7)
    assert abs(float(found.mean()) - wrong) > 4 * float(found.std()) / math.sqrt(4000)


@pytest.mark.parametrize("n", [4, 30])
def test_the_limit_is_reached(n: int) -> None:
    tasks = draw_tasks(3000, n, 14, noise=0.8)
    values = []
    for start in range(0, 3000, 1000):
        X, y = tasks.inputs[start : start + 1000], tasks.targets[start : start + 1000]
        fit = (torch.linalg.pinv(X) @ y[..., None])[..., 0]
        values.append((fit - tasks.truths[start : start + 1000]).square().sum(1))
    found = torch.cat(values)
    limit = limit_distance(n, 14, noise=0.8)
    assert abs(float(found.mean()) - limit) < 4 * float(found.std()) / math.sqrt(3000)


def test_one_stochastic_step_can_shrink_by_more_than_the_printed_bound() -> None:
    """Lemma D.4.3's proof prints 1 − ηL where 1 − 2ηL is meant."""
    X = draw_tasks(1, 6, 24, noise=1.0).inputs[0]
    values, vectors = torch.linalg.eigh(X.T @ X / 6)
    L = max(float(values[-1]), 1 / float(values[-6]))
    eta, v = 1 / (2 * L**3 * 24), vectors[:, -1]
    after = torch.stack([(v - eta * (x @ v) * x).square().sum() for x in X]).mean()
    assert 1 - 2 * eta * L <= float(after) < 1 - eta * L
    assert float(after) <= 1 - eta / (2 * L)


def test_limits_at_the_edge() -> None:
    assert math.isinf(limit_distance(5, 5, noise=1.0))
    assert limit_distance(4, 5, noise=0.0) == pytest.approx(0.2)
    assert limit_distance(6, 5, noise=0.0) == 0.0


def test_parts_of_a_split() -> None:
    tasks = draw_tasks(2, 7, 3, noise=0.1)
    one, two = tasks.split(3)
    assert torch.equal(torch.cat([one.inputs, two.inputs], 1), tasks.inputs)
    assert torch.equal(torch.cat([one.targets, two.targets], 1), tasks.targets)
    assert one.inputs.shape[1] == 3


def test_refusals() -> None:
    tasks = draw_tasks(2, 7, 3, noise=0.1)
    with pytest.raises(InvalidArgumentError, match="first"):
        tasks.split(7)
    with pytest.raises(ShapeError, match="samples"):
        descend(tasks, 0.1, num_steps=3, samples=draw_samples(2, 7, 4))
    with pytest.raises(ShapeError, match="weights"):
        task_losses(tasks, torch.zeros(2, 4, 1))
    with pytest.raises(NonFiniteError):
        task_losses(tasks, torch.full((2, 3, 1), math.nan))
    for wrong in (torch.zeros(2, 1, 5), torch.zeros(1, 3, 5), torch.zeros(2, 3)):
        with pytest.raises(ShapeError, match=r"`squared_distances\(weights\)`"):
            squared_distances(tasks, wrong)
    with pytest.raises(InvalidArgumentError, match="noise"):
        draw_tasks(2, 7, 3, noise=-1.0)
    with pytest.raises(InvalidArgumentError, match="singular"):
        expected_distance(torch.zeros(1, 2), dimension=3, noise=1.0, step_size=0.1, num_steps=2)
    with pytest.raises(WrongTypeError, match=r"`draw_tasks\(seed=...\)` must be an integer"):
        draw_tasks(2, 7, 3, noise=1.0, seed=1.5)
    with pytest.raises(InvalidArgumentError, match=r"`draw_tasks\(first=...\)`"):
        draw_tasks(2, 7, 3, noise=1.0, first=-1)
    with pytest.raises(WrongTypeError, match=r"`draw_samples\(seed=...\)`"):
        draw_samples(2, 7, 3, seed="one")


def test_samples_are_numbers_of_samples() -> None:
    tasks = draw_tasks(2, 4, 3, noise=0.1)
    good = torch.tensor([[0, 3, 1], [2, 2, 0]])
    found = descend(tasks, 0.1, num_steps=3, samples=good)
    assert torch.equal(descend(tasks, 0.1, num_steps=3, samples=good.int()), found)
    for wrong in (-1, 4, 9):
        samples = good.clone()
        samples[1, 2] = wrong
        with pytest.raises(InvalidArgumentError, match=rf"from 0 to 3; got .*{wrong}"):
            descend(tasks, 0.1, num_steps=3, samples=samples)
    for other in (good.double(), good.bool(), good.tolist()):
        with pytest.raises(WrongTypeError, match=r"`descend\(samples=...\)`.*draw_samples"):
            descend(tasks, 0.1, num_steps=3, samples=other)


@pytest.mark.parametrize("noise", [math.nan, -1.0, math.inf])
def test_noise_is_finite_and_not_negative(noise: float) -> None:
    kind = {"dimension": 2, "step_size": 0.5, "num_steps": 4}
    with pytest.raises(InvalidArgumentError, match=r"`expected_distance\(noise=...\)`"):
        expected_distance(torch.tensor([[2.0]]), noise=noise, **kind)
    with pytest.raises(InvalidArgumentError, match=r"`limit_distance\(noise=...\)`"):
        limit_distance(2, 4, noise=noise)
    with pytest.raises(InvalidArgumentError, match=r"`Tasks\(noise\)`"):
        Tasks(torch.ones(1, 2, 3), torch.ones(1, 2), torch.ones(1, 3), noise)


@pytest.mark.parametrize("part", ["inputs", "targets", "truths"])
def test_tasks_are_finite_and_fit(part: str) -> None:
    parts = {"inputs": torch.ones(2, 4, 3), "targets": torch.ones(2, 4), "truths": torch.ones(2, 3)}
    assert descend(Tasks(**parts, noise=0.0), 0.1, num_steps=2).isfinite().all()
    with pytest.raises(NonFiniteError, match=rf"`Tasks\({part}\)`"):
        Tasks(**parts | {part: parts[part] * math.nan}, noise=1.0)
    with pytest.raises(ShapeError, match=r"must be \(b, n, d\), \(b, n\) and \(b, d\)"):
        Tasks(**parts | {part: parts[part][:1]}, noise=1.0)
    with pytest.raises(ShapeError, match="one dtype"):
        Tasks(**parts | {part: parts[part].float()}, noise=1.0)
    with pytest.raises(WrongTypeError, match=rf"`Tasks\({part}\)`"):
        Tasks(**parts | {part: parts[part].tolist()}, noise=1.0)
