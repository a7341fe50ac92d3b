"""Sparse coding with the habits of a scikit-learn estimator, for anybody's data."""

import inspect
import warnings
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from eigenscape.errors import (
    EigenscapeWarning,
    InvalidArgumentError,
    ShapeError,
    UnknownNameError,
    WrongTypeError,
    near_matches,
    require_count,
)
from eigenscape_papers.representations._checks import require_matrix
from eigenscape_papers.representations.coding_bounds import masked_losses
from eigenscape_papers.representations.dictionary_learning import (
    initial_dictionary,
    learn_dictionary,
    require_settings,
    usual_mask_size,
)
from eigenscape_papers.representations.omp import orthogonal_matching_pursuit, require_sparsity

Data = Any  # an array or a tensor: what comes in goes out


class MaskedSparseCoding:
    """Learn atoms so that every sample is a sum of a few of them.

    Masking decodes each batch from some of its features and judges the atoms by the others. So an
    over-complete dictionary cannot win by explaining noise, and finds the atoms that made the data.

    It follows scikit-learn's conventions without needing scikit-learn: `clone`, `Pipeline` and
    `GridSearchCV` take it, and it passes `check_estimator` but that NaN is a `NonFiniteError`.
    Arrays give arrays, tensors give tensors on their own device. Columns of a data frame must have
    the names, and the order, that `fit` saw. The first atoms are random samples.

    Attributes:
        components_: Atoms of length 1 (num_atoms, features), after `fit`.
        n_features_in_: Number of features, after `fit`.
        feature_names_in_: Names of the columns, after `fit` of a data frame that has names.
        n_iter_: Epochs that were run, after `fit`.
        losses_: Mean objective of each epoch, after `fit`.

    Examples:
        >>> from eigenscape_papers.representations import (
        ...     random_dictionary,
        ...     recovery_error,
        ...     sparse_samples,
        ... )
        >>> A = random_dictionary(8, 16)
        >>> Y, _ = sparse_samples(A, 400, sparsity=1, noise=0.01)
        >>> model = MaskedSparseCoding(num_atoms=24, sparsity=1, epochs=50).fit(Y)
        >>> recovery_error(A, model.components_) < 0.001
        True
        >>> codes = model.transform(Y)
        >>> codes.shape, int((codes != 0).sum(1).max())
        (torch.Size([400, 24]), 1)
    """

    def __init__(
        self,
        num_atoms: int,
        sparsity: int,
        *,
        masked: bool = True,
        mask_size: int | None = None,
        epochs: int = 500,
        batch_size: int = 200,
        learning_rate: float = 1e-3,
        rescale: bool = True,
        seed: int = 0,
    ) -> None:
        """Keep the settings; `fit` checks them.

        Args:
            num_atoms: Size of the dictionary.
            sparsity: Atoms of a sample.
            masked: Judge atoms by features that were not decoded from.
            mask_size: Features that are decoded from; all but a tenth by default.
            epochs: Passes over the samples.
            batch_size: Samples of a step.
            learning_rate: Of Adam.
            rescale: Choose atoms by angle, whatever their length on the features that are seen.
            seed: Fixes the start, the order of samples and the masks.
        """
        self.num_atoms, self.sparsity, self.masked = num_atoms, sparsity, masked
        self.mask_size, self.epochs, self.batch_size = mask_size, epochs, batch_size
        self.learning_rate, self.rescale, self.seed = learning_rate, rescale, seed

    def fit(self, Y: Data, y: object = None) -> Self:
        """Learn the dictionary.

        Args:
            Y: Samples (n, features), an array or a tensor.
            y: Not used; pipelines pass it.

        Returns:
            The estimator itself.

        Raises:
            WrongTypeError: If the samples are neither array nor tensor.
            ShapeError: If they are no matrix.
            InvalidArgumentError: If a setting is out of range, masking has a single feature, or
                entries of a masked array are masked.
            NonFiniteError: If an entry is NaN or infinite.
        """
        samples = _samples(Y, "MaskedSparseCoding.fit(Y)")
        if self.masked:
            _require_two(samples, "fit", "Pass `masked=False`.")
        settings = {name: _plain(value) for name, value in self.get_params().items()}
        owner, num_atoms = "MaskedSparseCoding", settings.pop("num_atoms")
        require_count(num_atoms, f"{owner}(num_atoms=...)")
        checked = {name: value for name, value in settings.items() if name != "rescale"}
        require_settings(owner, num_atoms, samples.shape[1], **checked)
        start = initial_dictionary(samples, num_atoms, seed=settings["seed"])
        learned = learn_dictionary(samples, start, **settings)
        self.components_ = _like(learned.dictionary, Y)
        self.losses_ = _like(learned.losses, Y)
        self.n_features_in_, self.n_iter_ = samples.shape[1], settings["epochs"]
        vars(self).pop("feature_names_in_", None)
        if (names := _column_names(Y)) is not None:
            self.feature_names_in_ = names
        return self

    def transform(self, Y: Data) -> Data:
        """Code samples by the atoms, from all their features.

        Args:
            Y: Samples (n, features).

        Returns:
            Codes (n, num_atoms), at most `sparsity` of them not 0 in a row; a data frame after
            `set_output(transform="pandas")`.

        Raises:
            InvalidArgumentError: If `fit` was not called, or columns have other names than there.
            ShapeError: If the samples have other features than those that were learned from.
            NonFiniteError: If an entry is NaN or infinite.
        """
        samples, atoms = self._fitted(Y, "transform")
        codes = orthogonal_matching_pursuit(
            samples, atoms, sparsity=_plain(self.sparsity), rescale=self.rescale
        ).dense()
        if self._output() == "pandas":
            import pandas

            # Lists and tensors have an `index` too, but it is a method.
            index = getattr(Y, "index", None) if hasattr(Y, "columns") else None
            return pandas.DataFrame(codes.cpu(), index, self.get_feature_names_out())
        return _like(codes, Y)

    def score(self, Y: Data, y: object = None) -> float:
        """Return minus the mean squared error of features that were not decoded from.

        The features, in a random order that is always the same, are cut into parts of a tenth.
        Each part is hidden once and told from all others, whatever `mask_size`, `masked` and `seed`
        are. So dictionaries of any size, sparsity and mask can be compared, and more atoms win
        nothing by explaining noise.

        Cost: `transform` once a part.

        Args:
            Y: Samples (n, features).
            y: Not used.

        Returns:
            A number that is 0 at best; the noise's variance keeps it below.

        Raises:
            InvalidArgumentError: If `fit` was not called, columns have other names than there, or
                `sparsity` exceeds the features seen.
            ShapeError: If the samples have other features than those that were learned from.
            NonFiniteError: If an entry is NaN or infinite.

        Examples:
            >>> Y = torch.eye(3).repeat(4, 1) + 1.0  # 2 in one place, 1 in two
            >>> model = MaskedSparseCoding(1, 1, epochs=1, learning_rate=1e-12).fit(Y)
            >>> model.components_ = torch.ones(1, 3)  # codes are means of two features
            >>> round(model.score(Y), 6)  # 2 from 1; 1 from 1.5, twice
            -0.5
        """
        samples, atoms = self._fitted(Y, "score")
        d = _require_two(samples, "score", "Score by a function of your own.")
        num_visible, owner = usual_mask_size(d), "MaskedSparseCoding(sparsity=...)"
        k = require_sparsity(_plain(self.sparsity), len(atoms), num_visible, owner)
        order = torch.randperm(d, generator=torch.Generator().manual_seed(0)).to(samples.device)
        total = 0.0
        for hidden in order.split(d - num_visible):
            losses = masked_losses(
                samples, atoms, order[~torch.isin(order, hidden)], sparsity=k, rescale=self.rescale
            )
            total += float(losses.double().sum())
        return -total / samples.numel()

    def fit_transform(self, Y: Data, y: object = None) -> Data:
        """Learn the dictionary, and code the samples it was learned from.

        Args:
            Y: Samples (n, features).
            y: Not used.

        Returns:
            Their codes.
        """
        return self.fit(Y, y).transform(Y)

    def inverse_transform(self, codes: Data) -> Data:
        """Return the sums of atoms that codes stand for.

        Args:
            codes: (n, num_atoms).

        Returns:
            Samples without what the codes do not explain (n, features).

        Raises:
            InvalidArgumentError: If `fit` was not called.
            ShapeError: If there are not `num_atoms` codes in a row.
        """
        self._require_fit()
        Z = _as_tensor(codes, "MaskedSparseCoding.inverse_transform(codes)")
        atoms = torch.as_tensor(self.components_).to(Z)
        if Z.ndim != 2 or Z.shape[1] != len(atoms):
            raise ShapeError(
                f"`MaskedSparseCoding.inverse_transform(codes)` must be (n, {len(atoms)}); got "
                f"{tuple(Z.shape)}."
            )
        return _like(Z @ atoms, codes)

    def get_feature_names_out(self, input_features: object = None) -> Any:
        """Return the names of the codes, for data frames.

        Args:
            input_features: Not used.

        Returns:
            An array of text, one for each atom: "maskedsparsecoding0", and so on.

        Raises:
            InvalidArgumentError: If `fit` was not called.
        """
        self._require_fit()
        count = len(self.components_)
        return np.array([f"maskedsparsecoding{i}" for i in range(count)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what `transform` returns; pipelines pass it on.

        Args:
            transform: "default", like what it was given, or "pandas", a data frame. None changes
                nothing.

        Returns:
            The estimator itself.

        Raises:
            UnknownNameError: If it is neither.
        """
        if transform not in (None, "default", "pandas"):
            raise UnknownNameError(
                f"`MaskedSparseCoding.set_output(transform={transform!r})` must be 'default' or "
                "'pandas'."
            )
        if transform is not None:
            # Under this name `clone` takes it along.
            self._sklearn_output_config = {"transform": transform}
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings.

        Args:
            deep: Not used: no setting is an estimator.

        Returns:
            Them by name.
        """
        return {name: getattr(self, name) for name in _settings()}

    def set_params(self, **params: Any) -> Self:
        """Change settings.

        Args:
            **params: New values by name.

        Returns:
            The estimator itself.

        Raises:
            UnknownNameError: If there is no such setting.
        """
        for name, value in params.items():
            if name not in _settings():
                raise UnknownNameError(
                    f"`MaskedSparseCoding` has no setting {name!r}. "
                    f"{near_matches(name, _settings())}"
                )
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what this is; called by scikit-learn alone."""
        from sklearn.base import BaseEstimator, TransformerMixin

        mixed = type("_Transformer", (TransformerMixin, BaseEstimator), {})
        return mixed().__sklearn_tags__()

    def __sklearn_is_fitted__(self) -> bool:
        """Say whether `fit` was called."""
        return hasattr(self, "components_")

    def __repr__(self) -> str:
        """Return the call that makes it."""
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"MaskedSparseCoding({settings})"

    def _require_fit(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise InvalidArgumentError(
                "`MaskedSparseCoding` has no dictionary yet. Call `fit(Y)` first."
            )

    def _fitted(self, Y: Data, method: str) -> tuple[Tensor, Tensor]:
        """Return samples that fit the atoms, and the atoms beside them."""
        self._require_fit()
        call = f"MaskedSparseCoding.{method}(Y)"
        _require_names(_column_names(Y), getattr(self, "feature_names_in_", None), call)
        samples = _samples(Y, call, features=self.n_features_in_)
        return samples, torch.as_tensor(self.components_).to(samples)

    def _output(self) -> str:
        chosen: dict[str, str] = getattr(self, "_sklearn_output_config", {})
        return chosen.get("transform", "default")


def _plain(value: object) -> Any:
    """Return a number of NumPy, such as a grid of settings holds, as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _column_names(Y: Data) -> "np.ndarray[Any, Any] | None":
    """Return the names of a data frame's columns, where all of them are text."""
    names = list(getattr(Y, "columns", ()))
    is_named = bool(names) and all(isinstance(name, str) for name in names)
    return np.array(names, dtype=object) if is_named else None


def _require_names(names: Any, fitted: Any, call: str) -> None:
    """Refuse columns other than those of `fit`, in scikit-learn's words; warn of none."""
    if names is None or fitted is None:
        if names is not fitted:
            has, was = ("does not have valid", "with") if names is None else ("has", "without")
            warnings.warn(
                f"`{call}`: X {has} feature names, but MaskedSparseCoding was fitted {was} feature "
                "names. The order of the columns is trusted.",
                EigenscapeWarning,
                stacklevel=4,
            )
        return
    if list(names) == list(fitted):
        return
    text = f"`{call}`: The feature names should match those that were passed during fit.\n"
    unseen, missing = sorted({*names} - {*fitted}), sorted({*fitted} - {*names})
    for differing, what in (
        (unseen, "unseen at fit time"),
        (missing, "seen at fit time, yet now missing"),
    ):
        shown = [*differing[:5], "..."] if len(differing) > 5 else differing
        if differing:
            text += f"Feature names {what}:\n" + "".join(f"- {name}\n" for name in shown)
    if not unseen and not missing:
        text += "Feature names must be in the same order as they were in fit.\n"
    raise InvalidArgumentError(f"{text}Pass `Y[model.feature_names_in_]`.")


def _settings() -> list[str]:
    return [p for p in inspect.signature(MaskedSparseCoding).parameters if p != "self"]


def _samples(Y: Data, call: str, *, features: int | None = None) -> Tensor:
    """Return finite samples, else refuse, in words that users of scikit-learn know."""
    samples = _as_tensor(Y, call)
    if samples.ndim != 2:
        raise ShapeError(
            f"`{call}` must be (n, features); got {tuple(samples.shape)}. Reshape your data: "
            "`Y.reshape(1, -1)` is one sample."
        )
    if samples.shape[1] == 0:
        raise ShapeError(
            f"`{call}` has 0 feature(s) (shape={tuple(samples.shape)}) while a minimum of 1 is "
            "required."
        )
    if features is not None and samples.shape[1] != features:
        raise ShapeError(
            f"`{call}`: X has {samples.shape[1]} features, but MaskedSparseCoding is expecting "
            f"{features} features as input."
        )
    return require_matrix(samples, call)


def _require_two(samples: Tensor, method: str, advice: str) -> int:
    """Return the number of features if there are two or more."""
    if samples.shape[1] < 2:
        raise InvalidArgumentError(
            f"`MaskedSparseCoding.{method}(Y)` needs two features or more, one to see and one to "
            f"hide; got 1 feature(s). {advice}"
        )
    return samples.shape[1]


def _as_tensor(value: Data, call: str) -> Tensor:
    """Return data as a tensor; all but float32 becomes float64."""
    if not isinstance(value, Tensor):
        value = torch.from_numpy(_as_array(value, call))
    if value.is_complex():
        raise InvalidArgumentError(f"`{call}` must be real. Complex data not supported.")
    tensor: Tensor = value if value.dtype in (torch.float32, torch.float64) else value.double()
    return tensor


def _as_array(value: Data, call: str) -> "np.ndarray[Any, Any]":
    """Return numbers of any kind, or objects that are, as an array that PyTorch can take."""
    if np.ma.is_masked(value):
        raise InvalidArgumentError(
            f"`{call}` has masked entries, which would be read as the numbers below the mask. Pass "
            "`.filled(...)` of it, or take those rows out."
        )
    array = np.asarray(value)
    wrong = f"`{call}` needs numbers in an array or a tensor; got {array.dtype}."
    if array.dtype.kind not in "fiubcO":
        raise WrongTypeError(wrong)
    real = np.float32 if array.dtype.newbyteorder("=") == np.float32 else np.float64
    try:
        return np.array(array, dtype=np.complex128 if array.dtype.kind == "c" else real)
    except (TypeError, ValueError) as error:
        raise WrongTypeError(f"{wrong} {error}") from error


def _like(value: Tensor, model: Data) -> Data:
    return value if isinstance(model, Tensor) else value.cpu().numpy()
