import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from eigenscape.errors import (
    EigenscapeError,
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
    masked_losses,
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
    assert (model.n_features_in_, model.n_iter_) == (11, 2)


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
    explained = GridSearchCV(
        small(),
        {"sparsity": [1, 3]},
        cv=2,
        scoring=lambda m, Y: -np.square(Y - m.inverse_transform(m.transform(Y))).mean(),
    ).fit(samples.numpy())
    assert explained.best_params_ == {"sparsity": 3}


# NaN is a `NonFiniteError` here as everywhere in this library, and that is no `ValueError`.
OTHERWISE = {"check_estimators_nan_inf": "NaN is refused by another exception"}


@pytest.mark.filterwarnings("ignore:Estimator MaskedSparseCoding does not inherit:UserWarning")
@pytest.mark.parametrize("masked", [True, False])
def test_scikit_learns_own_checks(masked: bool) -> None:
    found = check_estimator(
        MaskedSparseCoding(4, 1, masked=masked, epochs=2),
        expected_failed_checks=OTHERWISE,
        on_skip=None,
        on_fail=None,
    )
    assert {one["check_name"] for one in found if one["status"] == "xfail"} == set(OTHERWISE)
    assert [one["check_name"] for one in found if one["status"] == "failed"] == []
    assert sum(one["status"] == "passed" for one in found) > 40


def test_data_frames_come_out_where_asked(samples: torch.Tensor) -> None:
    pipeline = make_pipeline(StandardScaler(), small()).set_output(transform="pandas")
    frame = pipeline.fit_transform(samples.numpy())
    assert list(frame.columns) == [f"maskedsparsecoding{i}" for i in range(9)]
    plain = make_pipeline(StandardScaler(), small()).fit_transform(samples.numpy())
    np.testing.assert_array_equal(frame.to_numpy(), plain)
    model = clone(small().set_output(transform="pandas")).fit(frame)
    some = frame.iloc[3:7]
    assert list(model.transform(some).index) == list(some.index)
    assert isinstance(model.set_output().transform(some), type(frame))
    assert isinstance(model.set_output(transform="default").transform(some), np.ndarray)
    with pytest.raises(UnknownNameError, match="'default' or 'pandas'"):
        model.set_output(transform="polar")


@pytest.mark.parametrize(("mask_size", "hidden"), [(None, 1), (8, 3), (4, 7)])
def test_score_is_the_loss_of_hidden_features(
    samples: torch.Tensor, mask_size: int | None, hidden: int
) -> None:
    model = small(mask_size=mask_size, seed=3).fit(samples)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3)).tolist() * 2
    losses, counts = torch.zeros(()), torch.zeros(11)
    for start in range(0, 11, hidden):
        gone = order[start : start + hidden]
        counts[gone] += 1
        seen = torch.tensor([i for i in range(11) if i not in gone])
        losses += masked_losses(samples, model.components_, seen, sparsity=2).sum()
    assert bool((counts >= 1).all())
    expected = -float(losses / (len(samples) * counts.sum()))
    assert model.score(samples) == pytest.approx(expected, rel=1e-10)
    assert small(mask_size=mask_size, seed=3).fit(samples.numpy()).score(
        samples.numpy()
    ) == pytest.approx(expected, rel=1e-10)


def test_score_finds_the_sparsity_of_the_data() -> None:
    Y = sparse_samples(random_dictionary(8, 20), 300, sparsity=1, noise=0.3)[0].numpy()
    model = MaskedSparseCoding(8, 1, epochs=30, learning_rate=0.01)
    search = GridSearchCV(model, {"sparsity": [1, 4]}, cv=2).fit(Y)
    assert search.best_params_ == {"sparsity": 1}  # four atoms explain more, of the noise
    assert -0.3 < search.best_score_ < -(0.3**2) * 0.8
    usual = MaskedSparseCoding(8, 1, masked=False, epochs=30, learning_rate=0.01).fit(Y)
    assert np.isfinite(usual.score(Y))  # masked all the same, so that the two compare


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
    with pytest.raises(WrongTypeError, match="needs numbers"):
        small().fit([["a", "b"]])
    with pytest.raises(WrongTypeError, match="needs numbers"):
        small().fit(np.array([["a", 1.0]], dtype=object))
    with pytest.raises(InvalidArgumentError, match="Complex data"):
        small().fit(samples + 1j)
    with pytest.raises(InvalidArgumentError, match=r"got 1 feature\(s\). Pass `masked=False`"):
        small(sparsity=1).fit(samples[:, :1])
    one = small(sparsity=1, masked=False).fit(samples[:, :1])
    with pytest.raises(InvalidArgumentError, match="one to hide"):
        one.score(samples[:, :1])
    all_seen = small(sparsity=9, masked=False).fit(samples[:, :9])
    with pytest.raises(
        InvalidArgumentError, match=r"`MaskedSparseCoding\(sparsity=...\)`.* 8; got"
    ):
        all_seen.score(samples[:, :9])
    with pytest.raises(ShapeError, match=r"must be \(n, 9\)"):
        small().fit(samples).inverse_transform(samples)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("num_atoms", 0),
        ("sparsity", 10),
        ("sparsity", 0),
        ("mask_size", 11),
        ("mask_size", 0),
        ("mask_size", 99),
        ("epochs", 0),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", "fast"),
        ("seed", 1.5),
    ],
)
def test_settings_are_refused_by_the_name_of_the_estimator(
    samples: torch.Tensor, name: str, wrong: object
) -> None:
    with pytest.raises(EigenscapeError, match=rf"^`MaskedSparseCoding\({name}=...\)`"):
        small(**{name: wrong}).fit(samples)


@pytest.mark.parametrize("method", ["fit", "transform", "score"])
def test_samples_are_refused_by_the_name_of_the_call(samples: torch.Tensor, method: str) -> None:
    call = getattr(small().fit(samples), method)
    name = rf"^`MaskedSparseCoding.{method}\(Y\)`"
    with pytest.raises(NonFiniteError, match=f"{name} .*NaN"):
        call(samples.numpy() * np.nan)
    with pytest.raises(ShapeError, match=f"{name} .*Reshape your data"):
        call(samples[0])
    with pytest.raises(ShapeError, match=rf"{name} .*\(0, 11\)"):
        call(samples[:0])
    if method != "fit":
        with pytest.raises(ShapeError, match=f"{name}.* 10 features.*expecting 11 features"):
            call(samples[:, :10])
