import pytest
import torch

from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape_papers.stepsize import (
    descend,
    draw_samples,
    draw_tasks,
    learn_step_size,
    search,
    squared_distances,
    task_losses,
    usual_grid,
)

SETTING = {"num_samples": 9, "dimension": 13, "noise": 1.2, "num_steps": 8, "num_tasks": 6}


@pytest.mark.parametrize("objective", ["training", "validation"])
@pytest.mark.parametrize("stochastic", [False, True])
def test_it_is_the_mean_over_tasks(objective: str, stochastic: bool) -> None:
    grid = torch.logspace(-3, 0.3, 9)
    found = learn_step_size(
        objective,
        **SETTING,
        num_test_tasks=3,
        num_training=4,
        step_sizes=grid,
        stochastic=stochastic,
        seed=5,
    )
    tasks = draw_tasks(9, 9, 13, noise=1.2, seed=5)
    fit, judge = (tasks, tasks) if objective == "training" else tasks.split(4)
    samples = None
    if stochastic:
        n = fit.inputs.shape[1]
        first = 2**31 + 1_000_003 * 5
        samples = torch.cat([draw_samples(1, n, 8, seed=first + i) for i in range(9)])
    weights = descend(fit, grid, num_steps=8, samples=samples)
    losses = task_losses(judge, weights)[:6]
    torch.testing.assert_close(found.meta_losses, losses.mean(0))
    torch.testing.assert_close(found.stderr, losses.std(0) / 6**0.5)
    best = int(losses.mean(0).argmin())
    assert found.step_size == float(grid[best])
    torch.testing.assert_close(found.train_rmse, (2 * task_losses(fit, weights)[6:, best]).sqrt())
    distances = squared_distances(tasks, weights)[6:, best]
    torch.testing.assert_close(found.test_distances, distances)
    torch.testing.assert_close(found.test_rmse, (distances + 1.44).sqrt())


def test_portions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learn_step_size("validation", **SETTING, stochastic=True)
    monkeypatch.setattr(search, "_CPU_BYTES", 2 * 9 * 13 * 8)
    parts = learn_step_size("validation", **SETTING, stochastic=True)
    torch.testing.assert_close(whole.meta_losses, parts.meta_losses)
    torch.testing.assert_close(whole.test_rmse, parts.test_rmse)


def test_seeds_and_tasks_have_their_own_order_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def noted(*args: int, seed: int) -> torch.Tensor:
        seeds.append(seed)
        return draw_samples(*args, seed=seed)

    monkeypatch.setattr(search, "draw_samples", noted)
    for seed in range(4):
        learn_step_size("training", **SETTING, num_test_tasks=3, stochastic=True, seed=seed)
    data = [1_000_003 * seed + task for seed in range(4) for task in range(9)]
    # By what they draw: a generator may take few of a seed's digits.
    streams = [
        int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))
        for seed in (*seeds, *data)
    ]
    assert len(seeds) == len(data) == 36
    assert len(set(streams)) == 72


def test_validation_wins_under_noise() -> None:
    setting = {"num_samples": 30, "dimension": 60, "noise": 2.0, "num_steps": 40, "num_tasks": 30}
    one, two = (learn_step_size(name, **setting) for name in ("training", "validation"))
    assert one.step_size > 20 * two.step_size
    assert float(one.test_rmse.mean()) > 1.15 * float(two.test_rmse.mean())
    assert float(one.train_rmse.mean()) < 0.2 * float(two.train_rmse.mean())


def test_the_grid_and_its_ends() -> None:
    assert usual_grid().shape == (25,)
    assert usual_grid()[[0, -1]].tolist() == pytest.approx([1e-6, 1.0])
    with pytest.warns(ConvergenceWarning, match="end of the grid"):
        learn_step_size("training", **SETTING, step_sizes=torch.tensor([1e-5, 1e-4]))


def test_the_table_has_a_row_for_each_step_size() -> None:
    found = learn_step_size("training", **SETTING)
    assert len(found.to_frame()) == 25


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="objective"):
        learn_step_size("test", **SETTING)
    with pytest.raises(InvalidArgumentError, match="num_training"):
        learn_step_size("validation", **SETTING, num_training=9)
    with pytest.raises(InvalidArgumentError, match="num_tasks"):
        learn_step_size("training", **{**SETTING, "num_tasks": 1})
    for name, wrong in (("noise", -1.0), ("dimension", 0), ("num_steps", 0)):
        with pytest.raises(InvalidArgumentError, match=rf"`learn_step_size\({name}=...\)`"):
            learn_step_size("training", **{**SETTING, name: wrong})
    with pytest.raises(WrongTypeError, match=r"`learn_step_size\(seed=...\)`"):
        learn_step_size("training", **SETTING, seed=1.5)
