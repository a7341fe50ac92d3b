import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape.representations import (
    MaskedSparseCoding,
    initial_dictionary,
    learn_dictionary,
    random_dictionary,
    sparse_samples,
)


@pytest.fixture
def samples() -> torch.Tensor:
    return sparse_samples(random_dictionary(8, 11), 30, sparsity=2, noise=0.05)[0]


def small(**changes: object) -> MaskedSparseCoding:
    return MaskedSparseCoding(**({"num_atoms": 9, "sparsity": 2, "epochs": 2} | changes))


@pytest.mark.parametrize("masked", [True, False])
def test_fit_is_learning_from_samples(samples: torch.Tensor, masked: bool) -> None:
    model = small(masked=masked, seed=4).fit(samples)
    start = initial_dictionary(samples, 9, seed=4)
    learned = learn_dictionary(samples, start, sparsity=2, epochs=2, masked=masked, seed=4)
    assert torch.equal(model.components_, learned.dictionary)
    assert torch.equal(model.losses_, learned.losses)
    assert (model.n_features_in_, model.n_iter_, model.n_components) == (11, 2, 9)


def test_arrays_give_arrays_and_the_same_numbers(samples: torch.Tensor) -> None:
    ours, theirs = small().fit(samples), small().fit(samples.numpy())
    assert isinstance(theirs.components_, np.ndarray)
    np.testing.assert_array_equal(theirs.components_, ours.components_.numpy())
    np.testing.assert_array_equal(
        theirs.transform(samples.numpy()), ours.transform(samples).numpy()
    )
    assert small().fit(samples.float().numpy()).components_.dtype == np.float32
    assert small().fit((9 * samples).round().int().numpy()).components_.dtype == np.float64
    np.testing.assert_array_equal(small().fit(samples.tolist()).components_, theirs.components_)


def test_codes_are_sparse_and_come_back(samples: torch.Tensor) -> None:
    model = small(num_atoms=12)
    codes = model.fit_transform(samples)
    assert codes.shape == (30, 12)
    assert int((codes != 0).sum(1).max()) == 2
    torch.testing.assert_close(model.inverse_transform(codes), codes @ model.components_)
    rest = (samples - model.inverse_transform(codes)).square().sum()
    assert rest < 0.7 * samples.square().sum()
    assert list(model.get_feature_names_out()[:2]) == ["maskedsparsecoding0", "maskedsparsecoding1"]


def test_scikit_learn_takes_it(samples: torch.Tensor) -> None:
    model = small(mask_size=7)
    copy = clone(model.fit(samples))
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "components_")
    pipeline = make_pipeline(StandardScaler(), small())
    codes = pipeline.fit_transform(samples.numpy())
    assert codes.shape == (30, 9)
    assert "MaskedSparseCoding" in repr(pipeline)
    search = GridSearchCV(
        small(),
        {"sparsity": [1, 3]},
        cv=2,
        scoring=lambda m, Y: -np.square(Y - m.inverse_transform(m.transform(Y))).mean(),
    ).fit(samples.numpy())
    assert search.best_params_ == {"sparsity": 3}


def test_settings() -> None:
    model = small().set_params(sparsity=3, masked=False)
    assert (model.sparsity, model.masked) == (3, False)
    assert eval(repr(model)).get_params() == model.get_params()
    with pytest.raises(UnknownNameError, match="Nearest: 'sparsity'"):
        model.set_params(sparsty=1)


def test_refusals(samples: torch.Tensor) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Call `fit\(Y\)` first"):
        small().transform(samples)
    with pytest.raises(InvalidArgumentError, match=r"Call `fit\(Y\)` first"):
        small().inverse_transform(samples)
    with pytest.raises(InvalidArgumentError, match="number of atoms, 9; got 10"):
        small(sparsity=10).fit(samples)
    with pytest.raises(InvalidArgumentError, match="hides everything"):
        small(mask_size=0).fit(samples)
    with pytest.raises(NonFiniteError):
        small().fit(samples.numpy() * np.nan)
    with pytest.raises(WrongTypeError, match="needs numbers"):
        small().fit([["a", "b"]])
    model = small().fit(samples)
    with pytest.raises(ShapeError, match="11 columns"):
        model.transform(samples[:, :10])
    with pytest.raises(ShapeError, match=r"must be \(n, 9\)"):
        model.inverse_transform(samples)
