"""Do classes separate from the bulk, and grow alike, with depth (Papyan §7.6, Fig. 8)?

Letters: n samples of C classes, n_c of class c, π_c = n_c/n; h the features of a layer (n, d), μ_c
their class means; H_class = Σ π_c μ_c μ_cᵀ with eigenvalues λ_1 ≥ … ≥ λ_C, H_within the mean of
(h − μ_c)(h − μ_c)ᵀ, and H = H_class + H_within, also for classes of unequal size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
    near_matches,
)
from eigenscape.records import Columns, Record, Status


@dataclass(frozen=True, eq=False)
class Separation(Record):
    """How far the classes stand out of each layer's features.

    Attributes:
        layers: Names, in the order given.
        class_values: λ_1 to λ_C of H_class in every layer (L, C), descending. The means are not
            centred: the first is mostly the global mean.
        bulk: The largest eigenvalue of H_within (L,); 0 where nothing but rounding varies within
            classes.
        ratios: λ_c over the bulk (L, C). Above 1 an eigenvalue of H_class is an outlier; infinite
            where the bulk is 0, and 0 where λ_c is.
        whiskers: λ_2/λ_C (L,), 1 for means that are equally long and orthogonal once the global
            mean is out; infinite where the means span fewer than C directions, so that λ_C = 0. Two
            classes have 1 or infinity.
        centre_accuracy: Share of samples whose nearest class mean is their own (L,).
        linear_accuracy: Share that the least-squares linear classifier, with biases, gets right
            (L,). Where d ≥ n − 1 it fits any labels: judge held-out samples then.
        is_held_out: Whether the accuracies are those of samples that were not fitted.
        num_classes: C.
    """

    layers: tuple[str, ...]
    class_values: Tensor
    bulk: Tensor
    ratios: Tensor
    whiskers: Tensor
    centre_accuracy: Tensor
    linear_accuracy: Tensor
    is_held_out: bool
    num_classes: int

    def columns(self) -> Columns:
        """Return one row for each layer."""
        return {
            "layer": self.layers,
            "λ₁/bulk": self.ratios[:, 0].tolist(),
            "λ₂/bulk": self.ratios[:, 1].tolist(),
            "λ_C/bulk": self.ratios[:, -1].tolist(),
            "λ₂/λ_C": self.whiskers.tolist(),
            "nearest centre": self.centre_accuracy.tolist(),
            "least squares": self.linear_accuracy.tolist(),
        }


def separation(
    features: Mapping[str, Tensor],
    labels: Tensor,
    *,
    held_out: tuple[Mapping[str, Tensor], Tensor] | None = None,
) -> Separation:
    """Measure how far classes stand out of the bulk of each layer's features.

    With depth Papyan sees λ_c over the bulk grow and λ_2/λ_C fall. Cost: for each layer the Gram
    matrix of its smaller side, nC distances and one least-squares problem (n, d + 1), in float64
    where the features are.

    Args:
        features: By layer, in order of depth, (n, d) or (n, ...), which is flattened.
        labels: Class numbers (n,), from 0 on. Classes that do not occur do not count.
        held_out: Features and labels of other samples, for the accuracies; by default they are
            those of the fitted samples.

    Returns:
        Eigenvalues, ratios and accuracies of every layer.

    Raises:
        WrongTypeError: If features are no mapping to tensors, or labels no tensor.
        EmptySelectionError: If there is no layer, or no held-out sample.
        ShapeError: If features and labels do not fit.
        NonFiniteError: If a feature is NaN or infinite.
        InvalidArgumentError: If a label is negative, there are fewer than two classes, or held-out
            layers or labels are missing.

    Examples:
        Two classes with means ±1 on one axis and a spread of ½ on the other.

        >>> h = torch.tensor([[1.0, 0.5], [1.0, -0.5], [-1.0, 0.5], [-1.0, -0.5]])
        >>> found = separation({"fc1": h}, torch.tensor([0, 0, 1, 1]))
        >>> found.ratios.round(decimals=6).tolist(), found.centre_accuracy.tolist()
        ([[4.0, 0.0]], [1.0])
    """
    _require_mapping(features, "separation(features, labels)")
    if not features:
        raise EmptySelectionError("`separation(features, labels)` needs one layer or more; got 0.")
    classes, targets = _classes(labels)
    others = None if held_out is None else _others(held_out, classes)
    rows = []
    for name, tensor in features.items():
        h = _matrix(tensor, len(targets), name)
        y = targets.to(h.device)
        judged, truth = (h, y) if others is None else _judged(*others, name, h)
        # Without the mean of all samples, a common offset costs means and distances no digits.
        mean = h.mean(0)
        h, judged = h - mean, judged - mean
        means = _class_means(h, y, len(classes))
        predictions = (_nearest(judged, means), _linear_prediction(h, y, judged))
        values, bulk = _class_values(means + mean, y), _largest_value(h - means[y])
        # What is zero but for rounding is zero: some tens of eps of the longest, or few in float32.
        floor = (1e-14 if tensor.dtype == torch.float64 else 1e-6) ** 2 * values[0]
        pairs = (
            values.where(values > floor, 0.0),
            bulk.where(bulk > floor, 0.0),
            *((prediction == truth).double().mean() for prediction in predictions),
        )
        rows.append([value.cpu() for value in pairs])
    values, bulk, centre, linear = (torch.stack(column) for column in zip(*rows, strict=True))
    return Separation(
        status=Status(True, f"{len(rows)} layers, {len(targets)} samples, {len(classes)} classes."),
        num_products=0,
        seed=0,
        layers=tuple(features),
        class_values=values,
        bulk=bulk,
        ratios=(values / bulk[:, None]).where(values > 0, 0.0),
        whiskers=(values[:, 1] / values[:, -1]).where(values[:, -1] > 0, math.inf),
        centre_accuracy=centre,
        linear_accuracy=linear,
        is_held_out=held_out is not None,
        num_classes=len(classes),
    )


def _require_mapping(features: object, call: str) -> None:
    if not isinstance(features, Mapping):
        raise WrongTypeError(
            f"`{call}` needs features as a mapping from layers to tensors; got "
            f"{type(features).__name__}. Name the layer: {{'fc1': features}}."
        )


def _numbers(labels: Tensor, call: str) -> Tensor:
    """Check class numbers, and return them on the host."""
    if not isinstance(labels, Tensor):
        raise WrongTypeError(
            f"`{call}` needs labels as a tensor of class numbers (n,); got "
            f"{type(labels).__name__}. Give `torch.as_tensor(labels)`."
        )
    if labels.ndim != 1 or labels.dtype.is_floating_point or labels.dtype.is_complex:
        raise ShapeError(
            f"`{call}` needs class numbers (n,) as integers; got {tuple(labels.shape)} "
            f"{labels.dtype}."
        )
    numbers = labels.cpu().long()
    if bool((numbers < 0).any()):
        raise InvalidArgumentError(
            f"`{call}` needs class numbers from 0 on; got {int(numbers.min())}. Leave samples "
            "without a class out."
        )
    return numbers


def _classes(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes that occur, and each sample's place among them."""
    numbers = _numbers(labels, "separation(labels=...)")
    classes, targets = numbers.unique(return_inverse=True)
    if len(classes) < 2:
        raise InvalidArgumentError(
            f"`separation(labels=...)` needs two classes or more; got {len(classes)}."
        )
    return classes, targets


def _matrix(tensor: Tensor, n: int, name: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise WrongTypeError(
            f"`separation(features, labels)` needs a tensor of features of '{name}'; got "
            f"{type(tensor).__name__}. Give `torch.as_tensor(...)` of it."
        )
    if tensor.ndim < 2 or len(tensor) != n or tensor[0].numel() == 0:
        raise ShapeError(
            f"`separation(features, labels)` needs features ({n}, d) of '{name}', one row a label; "
            f"got {tuple(tensor.shape)}."
        )
    h = tensor.detach().double().flatten(1)
    if not bool(h.isfinite().all()):
        raise NonFiniteError(
            f"`separation(features, labels)` needs finite features; those of '{name}' have NaN or "
            "infinity."
        )
    return h


def _others(
    held_out: tuple[Mapping[str, Tensor], Tensor], classes: Tensor
) -> tuple[Mapping[str, Tensor], Tensor]:
    """Return held-out features by layer, and their classes' places."""
    call = "separation(held_out=(features, labels))"
    if not isinstance(held_out, tuple | list) or len(held_out) != 2:
        kind = type(held_out).__name__
        raise WrongTypeError(f"`{call}` needs a pair; got {kind}. Give features and labels.")
    features, labels = held_out
    _require_mapping(features, call)
    numbers = _numbers(labels, call)
    if len(numbers) == 0:
        raise EmptySelectionError(f"`{call}` needs one sample or more; got 0. Give None for none.")
    if not bool(torch.isin(numbers, classes).all()):
        raise InvalidArgumentError(
            f"`{call}` needs none but the classes that were fitted; got samples of a class that is "
            "missing there."
        )
    return features, torch.searchsorted(classes, numbers)


def _judged(
    features: Mapping[str, Tensor], places: Tensor, name: str, h: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a layer's held-out features and their classes' places, where the fitted ones are."""
    if name not in features:
        raise InvalidArgumentError(
            "`separation(held_out=(features, labels))` needs the layers that were fitted; "
            f"'{name}' is missing. {near_matches(name, map(str, features))}"
        )
    other = _matrix(features[name], len(places), name).to(h.device)
    if other.shape[1] != h.shape[1]:
        raise ShapeError(
            f"`separation(held_out=...)` needs {h.shape[1]} features of '{name}'; got "
            f"{other.shape[1]}."
        )
    return other, places.to(h.device)


def _class_means(h: Tensor, targets: Tensor, C: int) -> Tensor:
    means, counts = h.new_zeros(C, h.shape[1]), targets.bincount(minlength=C)[:, None]
    for _ in range(2):  # the rounding of a long sum goes with the second pass
        means = means + torch.zeros_like(means).index_add_(0, targets, h - means[targets]) / counts
    return means


def _class_values(means: Tensor, targets: Tensor) -> Tensor:
    """Return the C eigenvalues of Σ π_c μ_c μ_cᵀ, from singular values of its factor.

    A Gram matrix would square the condition, and a long global mean would drown the rest.
    """
    C, d = means.shape
    weights = targets.bincount(minlength=C).double() / len(targets)
    values: Tensor = torch.linalg.svdvals(weights.sqrt()[:, None] * means)
    return torch.nn.functional.pad(values.square(), (0, max(0, C - d)))


def _largest_value(deviations: Tensor) -> Tensor:
    n, d = deviations.shape
    gram = deviations.T @ deviations if d <= n else deviations @ deviations.T
    largest: Tensor = torch.linalg.eigvalsh(gram / n)[-1]
    return largest.clamp_min(0.0)


def _nearest(judged: Tensor, means: Tensor) -> Tensor:
    # By differences: distances from products lose what lies near each other and far from 0.
    exactly = "donot_use_mm_for_euclid_dist"
    return torch.cdist(judged, means, compute_mode=exactly).argmin(1)


def _linear_prediction(h: Tensor, targets: Tensor, judged: Tensor) -> Tensor:
    """Fit one-hot targets by least squares with biases, least norm, and name the largest output."""
    Y = torch.nn.functional.one_hot(targets).double()
    mean = Y.mean(0)
    # For centred h a bias needs no column, and the solution is the one of least norm without it.
    A, B = h, Y - mean
    if len(A) > A.shape[1]:  # with A = QR, ‖AW − B‖ is least where ‖RW − QᵀB‖ is
        Q, A = torch.linalg.qr(A)
        B = Q.T @ B
    # Where A lacks rank only LAPACK has a solver.
    W = torch.linalg.lstsq(A.cpu(), B.cpu(), driver="gelsd").solution.to(h.device)
    outputs: Tensor = judged @ W + mean
    return outputs.argmax(1)
