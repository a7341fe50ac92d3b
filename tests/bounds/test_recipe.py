"""The schedules of Wu's methods, and settings that mean nothing."""

from typing import Any

import pytest

from eigenscape.bounds import BoundRecipe, bound_recipe
from eigenscape.errors import InvalidArgumentError, UnknownNameError, WrongTypeError


def test_the_defaults_are_those_of_the_paper() -> None:
    recipe = BoundRecipe()
    rates = recipe.learning_rates()
    assert len(rates) == 2000
    assert rates[399] == 0.001
    assert rates[400] == pytest.approx(1e-4)
    assert rates[1999] == pytest.approx(1e-7)
    assert recipe.refresh_epochs() == tuple(range(0, 2000, 10))


def test_methods_differ_in_basis_and_schedule() -> None:
    recipes = {name: bound_recipe(name) for name in ("base", "appr", "iter", "iter-d", "iter-m")}
    bases = [recipe.basis for recipe in recipes.values()]
    assert bases == ["standard", "kronecker", "kronecker", "kronecker", "approximate"]
    assert recipes["base"].refresh_epochs() == recipes["appr"].refresh_epochs() == (0,)
    assert recipes["iter-m"].refresh_epochs() == recipes["iter"].refresh_epochs()
    # η = 10, 100 from epoch 400, 1000 from 800, and from 1200 on more than the epochs left.
    assert recipes["iter-d"].refresh_epochs() == (*range(0, 400, 10), 490, 590, 690, 790)
    assert bound_recipe("base", refresh_every=3, epochs=9).refresh_epochs() == (0,)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"basis": "fourier"}, UnknownNameError),
        ({"carry": "drop"}, UnknownNameError),
        ({"optimizer": "adam"}, UnknownNameError),
        ({"initial": "zero"}, UnknownNameError),
        ({"refresh_every": 0}, InvalidArgumentError),
        ({"num_samples": 1.5}, WrongTypeError),
        ({"num_samples": 0}, InvalidArgumentError),
        ({"learning_rate": -1.0}, InvalidArgumentError),
        ({"delta": 1.0}, InvalidArgumentError),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"BoundRecipe\({next(iter(settings))}=...\)"):
        BoundRecipe(**settings)


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="'iter-m'"):
        bound_recipe("itr")


def test_networks_share_the_batch_out() -> None:
    with pytest.raises(InvalidArgumentError, match=r"num_samples=3\)` must divide.*batch_size=128"):
        BoundRecipe(num_samples=3)
    assert BoundRecipe(num_samples=4, batch_size=12).num_samples == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"num_samples": 4},
        {"covariance": "full", "refresh_every": None},
        {"basis": "exact"},
    ],
)
def test_noise_at_outputs_is_for_diagonal_covariances(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"noise='outputs'\)` draws for every example"):
        BoundRecipe(noise="outputs", **settings)
    assert BoundRecipe(noise="weights", **settings).noise == "weights"
