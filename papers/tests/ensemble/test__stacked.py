"""Networks that are stacked: one architecture, as it was written."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from eigenscape.errors import InvalidArgumentError
from eigenscape_papers.ensemble import SGD, Engine, Recipe, fit


def test_parametrised_layers_train_together() -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3)).double()

    x, y = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3
    recipe = Recipe(epochs=2, batch_size=4, optimizer=SGD(0.1))
    together = fit(build, (x, y), recipe, seeds=(0, 5))
    for seed in (0, 5):
        alone = fit(build, (x, y), recipe, seeds=(seed,), engine=Engine(stacking="loop"))
        expected = alone.state_dict(seed)
        for name, tensor in together.state_dict(seed).items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12)
        weight = together.load_into(build(seed), seed=seed)[0].weight
        torch.testing.assert_close(weight @ weight.T, torch.eye(4, dtype=torch.float64))


def test_classes_must_be_the_same_behind_a_parametrisation() -> None:
    def build(seed: int) -> nn.Module:
        kind = nn.Linear if seed else type("Linear", (nn.Linear,), {})
        return nn.Sequential(orthogonal(kind(4, 4)), nn.Linear(4, 3))

    data = torch.randn(9, 4), torch.arange(9) % 3
    with pytest.raises(InvalidArgumentError, match="modules of seeds 0 and 1 differ"):
        fit(build, data, Recipe(epochs=1, batch_size=4), seeds=(0, 1))
