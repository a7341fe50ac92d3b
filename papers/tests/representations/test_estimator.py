import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import orthogonal_mp
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_estimator,
)

from eigenscape.errors import (
    EigenscapeError,
    EigenscapeWarning,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape_papers.representations import (
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


@pytest.mark.parametrize(("features", "hidden"), [(11, 1), (27, 2)])  # 27 = 13 · 2 + 1
def test_score_is_the_loss_of_every_feature_once(features: int, hidden: int) -> None:
    Y = sparse_samples(random_dictionary(8, features), 30, sparsity=2, noise=0.05)[0]
    model = small(seed=3).fit(Y)
    order = torch.randperm(features, generator=torch.Generator().manual_seed(0)).tolist()
    atoms, given, guess = model.components_.T.numpy(), Y.T.numpy(), np.full(Y.T.shape, np.nan)
    for start in range(0, features, hidden):
        gone = order[start : start + hidden]
        seen = [i for i in range(features) if i not in gone]
        lengths = np.linalg.norm(atoms[seen], axis=0)
        codes = orthogonal_mp(atoms[seen] / lengths, given[seen], n_nonzero_coefs=2)
        guess[gone] = atoms[gone] @ (codes / lengths[:, None])
    expected = -np.square(given - guess).mean()
    assert model.score(Y) == pytest.approx(expected, rel=1e-10)
    assert small(seed=3).fit(Y.numpy()).score(Y.numpy()) == pytest.approx(expected, rel=1e-10)


def test_the_same_atoms_score_the_same_whatever_they_were_learned_with() -> None:
    Y = sparse_samples(random_dictionary(8, 30), 40, sparsity=2, noise=0.05)[0]
    atoms = random_dictionary(9, 30)
    found = []
    for settings in ({"mask_size": 5}, {"mask_size": 27}, {"masked": False}, {"seed": 7}, {}):
        model = small(**settings).fit(Y)
        model.components_ = atoms
        found.append(model.score(Y))
    assert len(set(found)) == 1


def test_score_finds_the_sparsity_of_the_data() -> None:
    Y = sparse_samples(random_dictionary(8, 20), 300, sparsity=1, noise=0.3)[0].numpy()
    model = MaskedSparseCoding(8, 1, epochs=30, learning_rate=0.01)
    search = GridSearchCV(model, {"sparsity": [1, 4]}, cv=2).fit(Y)
    assert search.best_params_ == {"sparsity": 1}  # four atoms explain more, of the noise
    assert -0.3 < search.best_score_ < -(0.3**2) * 0.8
    usual = MaskedSparseCoding(8, 1, masked=False, epochs=30, learning_rate=0.01).fit(Y)
    assert np.isfinite(usual.score(Y))  # masked all the same, so that the two compare


def test_settings_may_be_numbers_of_numpy(samples: torch.Tensor) -> None:
    grid = {"num_atoms": np.arange(3, 6), "sparsity": np.array([1, 2], dtype=np.uint8)}
    search = GridSearchCV(small(), grid, cv=2).fit(samples.numpy())
    assert search.best_estimator_.components_.shape[0] in (3, 4, 5)
    plain = small(seed=3, learning_rate=0.25).fit(samples)
    theirs = small(
        num_atoms=np.int64(9),
        sparsity=np.int32(2),
        epochs=np.uint8(2),
        batch_size=np.int64(200),
        seed=np.int64(3),
        learning_rate=np.float32(0.25),
    ).fit(samples)
    assert torch.equal(theirs.components_, plain.components_)
    assert type(theirs.n_iter_) is int
    with pytest.raises(WrongTypeError, match=r"sparsity=...\)` must be an integer; got bool"):
        small(sparsity=np.True_).fit(samples)


class Frame:
    """What is read of a data frame: its columns and its numbers."""

    def __init__(self, numbers: np.ndarray, columns: list[object]) -> None:
        self.numbers, self.columns = numbers, columns

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.numbers


@pytest.mark.parametrize("method", ["transform", "score"])
def test_columns_are_those_of_fit(samples: torch.Tensor, method: str) -> None:
    Y, names = samples.numpy(), [f"c{i}" for i in range(11)]
    model = small().fit(Frame(Y, names))
    assert model.feature_names_in_.tolist() == names
    call = getattr(model, method)
    np.testing.assert_array_equal(call(Frame(Y, names)), getattr(small().fit(Y), method)(Y))
    name = rf"^`MaskedSparseCoding.{method}\(Y\)`: "
    with pytest.raises(InvalidArgumentError, match=f"{name}.*should match(.|\n)*the same order"):
        call(Frame(Y[:, ::-1], names[::-1]))
    with pytest.raises(
        InvalidArgumentError, match=f"{name}(.|\n)*unseen at fit time:\n- d(.|\n)*missing:\n- c0"
    ):
        call(Frame(Y, ["d", *names[1:]]))
    with pytest.raises(InvalidArgumentError, match=f"{name}(.|\n)*missing:\n- c10\n- c9"):
        call(Frame(Y[:, :9], names[:9]))
    with pytest.warns(EigenscapeWarning, match="does not have valid feature names"):
        call(Y)
    model.fit(Y)
    assert not hasattr(model, "feature_names_in_")
    with pytest.warns(EigenscapeWarning, match="fitted without feature names"):
        getattr(model, method)(Frame(Y, names))
    model.fit(Frame(Y, list(range(11))))  # numbers are no names
    assert not hasattr(model, "feature_names_in_")
    call(Y)


def test_scikit_learns_check_of_column_names() -> None:
    check_dataframe_column_names_consistency("coding", MaskedSparseCoding(4, 1, epochs=2))


@pytest.mark.parametrize("kind", [">f8", ">f4", ">i2", np.longdouble, np.uint64, np.float16, bool])
def test_every_kind_of_number(samples: torch.Tensor, kind: object) -> None:
    given = (4 * samples.numpy()).round().clip(0).astype(kind)
    plain = np.array(given.tolist(), dtype=np.float32 if kind == ">f4" else np.float64)
    model, expected = small().fit(given), small().fit(plain)
    assert model.components_.dtype == plain.dtype
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(model.transform(given), expected.transform(plain))


def test_masked_entries_are_refused(samples: torch.Tensor) -> None:
    Y = np.ma.masked_array(samples.numpy())
    model = small().fit(Y)  # nothing is masked
    codes = np.ma.masked_array(model.transform(Y))
    Y[1, 2] = codes[0, 0] = np.ma.masked
    for call, given in (
        (model.fit, Y),
        (model.transform, Y),
        (model.score, Y),
        (model.inverse_transform, codes),
    ):
        with pytest.raises(InvalidArgumentError, match=r"has masked entries.*filled"):
            call(given)


def test_names_of_codes_follow_the_fitted_atoms(samples: torch.Tensor) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Call `fit\(Y\)` first"):
        small().get_feature_names_out()
    model = small().fit(samples).set_params(num_atoms=4)
    assert len(model.get_feature_names_out()) == 9
    model.set_output(transform="pandas")
    for given in (samples, samples.tolist(), Frame(samples.numpy(), list(range(11)))):
        assert model.transform(given).shape == (30, 9)  # none of them has an index of rows


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
