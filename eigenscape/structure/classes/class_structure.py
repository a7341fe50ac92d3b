"""How much of a second moment lies between classes, between candidate labels, and within (MANOVA)?

Letters as in Papyan §1.9 and §6: v_{i,c} one vector for each sample i of class c, or v_{i,c,c'} one
for each sample and candidate label c'; w their weights; d dimensions; C classes, N samples.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.curvature import ClassParts, gram_matrix, top_eigenvalues
from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
    require_choice,
    require_count,
)
from eigenscape.records import Columns, Record, Status

# Samples are taken to float64 in pieces of so many numbers.
_CHUNK = 2**22


@dataclass(frozen=True, eq=False)
class ClassStructure(Record):
    """A second moment Σ w v vᵀ taken apart by class and candidate label.

    Its parts are "class" = "global" + "centred", "within", and for v_{i,c,c'} also "cross" and
    "same" (c = c'), with "between" = class + cross + same. They add up: total = between + within.

    Attributes:
        weights: Weights of the cells: of the classes (C,), or of (c, c') (C, C).
        means: Weighted means of the cells (C, d) or (C, C, d), float64; zero where a cell is empty.
        class_means: v_c (C, d), without c' = c.
        global_mean: v_G (d,), the mean of the v_c by their weights.
        eigenvalues: Of every part but "within", descending; all that may differ from zero.
        traces: Of every part and of the "total".
        within_traces: Mean of ‖v − mean‖² over each cell, shaped as `weights`; "within" is their
            sum by weights.
    """

    weights: Tensor
    means: Tensor
    class_means: Tensor
    global_mean: Tensor
    eigenvalues: dict[str, Tensor]
    traces: dict[str, float]
    within_traces: Tensor

    def columns(self) -> Columns:
        """Return a row for each part: its trace, its share of all, its largest eigenvalue."""
        total = self.traces["total"]
        # One class has no cross means, and no eigenvalue of them.
        tops = {
            n: float(values[0]) if len(values) else 0.0 for n, values in self.eigenvalues.items()
        }
        return {
            "part": list(self.traces),
            "trace": list(self.traces.values()),
            "share": [t / total if total > 0 else 0.0 for t in self.traces.values()],
            "largest eigenvalue": [tops.get(name) for name in self.traces],
        }

    def factor(self, part: str) -> Tensor:
        """Return F (d, r) with F Fᵀ the part.

        Args:
            part: "global", of one column, "centred" or "class", of C; where there are candidate
                labels also "same", of C, "cross" or "between", of C².

        Returns:
            The columns, float64.
        """
        class_parts = _parts(self.weights)
        require_choice(part, class_parts.names, "factor(part)")
        return class_parts.columns(part, _cells(self.means)).T

    def deviations(self, values: Tensor, classes: Tensor) -> Tensor:
        """Return v minus the mean of its cell, whose second moment is the part "within".

        Args:
            values: The vectors that the structure is of, or others of the same kind.
            classes: Their classes.

        Returns:
            Deviations in the shape of `values`, float64.

        Raises:
            ShapeError: If the values are of another kind.
        """
        index = _checked(values, classes, len(self.weights))
        if values.shape[1:] != self.means.shape[1:]:
            raise ShapeError(
                f"`deviations(values, ...)` needs values (N, {_text(self.means.shape[1:])}); got "
                f"{tuple(values.shape)}."
            )
        return values.double() - self.means[index]

    def product_with(self, other: "ClassStructure", part: str = "class") -> Tensor:
        """Return Σ_c w_c a_c b_cᵀ for the class means a of this structure and b of another.

        With the errors δ_{i,c,c} of the true labels for a and the features for b, −1/η times it is
        the between-class weight matrix of Papyan §7.13 (η the weight decay); "global" gives the
        global means' share of it, and "centred" the rest.

        Args:
            other: A structure of vectors v_{i,c} of the same samples.
            part: "class", "global" or "centred".

        Returns:
            The matrix (d, d'), float64.

        Raises:
            InvalidArgumentError: If the classes' weights are not the same.
        """
        require_choice(part, ("class", "global", "centred"), "product_with(part=...)")
        mine, theirs = (_parts(s.weights).class_weights for s in (self, other))
        if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=1e-6):
            raise InvalidArgumentError(
                "`product_with(other)` needs classes with the same weights in both structures; got "
                f"{len(mine)} and {len(theirs)} classes, or other weights. Give both the same "
                "`classes` and `weights`; for errors take those of the true label, (N, d)."
            )
        return self.factor(part) @ other.factor(part).T


@full_precision()
def class_structure(
    values: Tensor,
    *,
    classes: Tensor,
    weights: Tensor | None = None,
    num_classes: int | None = None,
) -> ClassStructure:
    """Take the second moment of vectors apart by class, and by candidate label where they have one.

    For features h_{i,c} give `values` (N, d); for backpropagated errors or gradients with every
    label as if it were the true one, (N, C, d) with the weights p_{i,c,c'}/N. Classes may be of any
    sizes. Cost: two passes over the values; C²d numbers of memory where there are candidate
    labels; an eigendecomposition of at most C² × C², or d × d where that is smaller.

    Args:
        values: v (N, d), or (N, C, d) with candidate labels in the middle.
        classes: Class of each sample (N,), integers from 0.
        weights: w ≥ 0, (N,) or (N, C). Equal by default, with the sum 1.
        num_classes: C. By default that of the candidate labels, or one more than the largest class.

    Returns:
        Means, eigenvalues and traces of all parts.

    Raises:
        WrongTypeError: If one of them is no tensor, or of another kind of numbers.
        ShapeError: If values, classes and weights do not fit.
        InvalidArgumentError: If weights are negative or all zero.
        NonFiniteError: If values are NaN or infinite.

    Examples:
        Classes (1, 3) and (−2): means 2 and −2, both of square 4; deviations ±1 in two of three.

        >>> v = torch.tensor([[1.0], [3.0], [-2.0]])
        >>> found = class_structure(v, classes=torch.tensor([0, 0, 1]))
        >>> {name: round(trace, 4) for name, trace in found.traces.items()}
        {'global': 0.4444, 'centred': 3.5556, 'class': 4.0, 'within': 0.6667, 'total': 4.6667}

    References:
        Papyan §1.8 to §1.10, §6, §7.4, §7.7.
    """
    C = _number_of_classes(values, classes, num_classes)
    index = _checked(values, classes, C)
    w = _checked_weights(values, weights)
    cells = w.new_zeros(C, *w.shape[1:]).index_add_(0, index, w)
    rates = torch.where(cells[index] > 0, w / cells[index].where(cells[index] > 0, 1.0), 0.0)
    means = cells.new_zeros(C, *values.shape[1:])
    total = 0.0
    for piece in _pieces(values):
        v = values[piece].double()
        means.index_add_(0, index[piece], rates[piece, ..., None] * v)
        total += float((w[piece] * v.square().sum(-1)).sum())
    if not bool(means.isfinite().all()):
        raise NonFiniteError("`class_structure(values)` needs finite values; got NaN or infinity.")
    spread = torch.zeros_like(cells)
    for piece in _pieces(values):
        deviations = (values[piece].double() - means[index[piece]]).square().sum(-1)
        spread.index_add_(0, index[piece], rates[piece] * deviations)
    class_parts = _parts(cells)
    factors = {name: class_parts.columns(name, _cells(means)) for name in class_parts.names}
    traces = {name: float(F.square().sum()) for name, F in factors.items()}
    return ClassStructure(
        status=Status(True, f"{len(index)} samples of {C} classes, {values.shape[-1]} dimensions."),
        num_products=0,
        seed=0,
        weights=cells,
        means=means,
        class_means=class_parts.class_means(_cells(means)),
        global_mean=class_parts.global_mean(_cells(means)),
        eigenvalues={n: _eigenvalues(F, class_parts.most_pairs(n)) for n, F in factors.items()},
        traces={**traces, "within": float((cells * spread).sum()), "total": total},
        within_traces=spread,
    )


def _parts(weights: Tensor) -> ClassParts:
    extended = weights.ndim == 2
    return ClassParts(weights if extended else weights[:, None], extended=extended)


def _cells(means: Tensor) -> Tensor:
    """Give means of classes one candidate label."""
    return means if means.ndim == 3 else means[:, None]


def _eigenvalues(rows: Tensor, most: int) -> Tensor:
    """Return the eigenvalues of rowsᵀ rows, from the smaller of its two Gram matrices."""
    r, d = rows.shape
    return top_eigenvalues(gram_matrix([rows], of_rows=r <= d), most)


def _pieces(values: Tensor) -> list[slice]:
    step = max(1, _CHUNK // values[0].numel())
    return [slice(start, start + step) for start in range(0, len(values), step)]


def _number_of_classes(values: Tensor, classes: Tensor, count: int | None) -> int:
    if not isinstance(values, Tensor) or not values.is_floating_point():
        got, cure = _kind(values, "values", "double")
        raise WrongTypeError(
            f"`class_structure(values)` needs a real floating-point tensor; got {got}. {cure}"
        )
    if values.ndim not in (2, 3) or values.numel() == 0:
        raise ShapeError(
            "`class_structure(values)` needs vectors (N, d), or (N, C, d) with candidate labels; "
            f"got {tuple(values.shape)}. Flatten what else there is."
        )
    if count is not None:
        require_count(count, "class_structure(num_classes=...)")
    if values.ndim == 2:
        largest = int(classes.max()) + 1 if isinstance(classes, Tensor) and len(classes) else 1
        return largest if count is None else count
    if count is not None and count != values.shape[1]:
        raise ShapeError(
            f"`class_structure(values, num_classes={count})` has values {tuple(values.shape)}: "
            "candidate labels and classes must be the same."
        )
    return values.shape[1]


def _checked(values: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """Return the classes as indices on the values' device."""
    is_index = isinstance(classes, Tensor) and not (
        classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool
    )
    if not is_index:
        got, cure = _kind(classes, "classes", "long")
        raise WrongTypeError(
            f"`classes=` needs a tensor of integers, one for each sample; got {got}. {cure}"
        )
    if classes.shape != values.shape[:1]:
        raise ShapeError(
            f"`classes=` needs shape ({len(values)},), one for each sample; got "
            f"{tuple(classes.shape)}."
        )
    low, high = (int(end) for end in classes.aminmax())
    if low < 0 or high >= num_classes:
        raise InvalidArgumentError(
            f"`classes=` needs classes from 0 to {num_classes - 1}; got {low} to {high}. Leave out "
            "samples of other classes."
        )
    return classes.to(values.device, torch.long)


def _checked_weights(values: Tensor, weights: Tensor | None) -> Tensor:
    shape = values.shape[:-1]
    if weights is None:
        return torch.full(shape, 1 / shape.numel(), dtype=torch.float64, device=values.device)
    if not isinstance(weights, Tensor):
        got, cure = _kind(weights, "weights", "double")
        raise WrongTypeError(f"`weights=` needs a tensor ({_text(shape)}); got {got}. {cure}")
    if weights.shape != shape:
        raise ShapeError(f"`weights=` needs shape ({_text(shape)}); got {tuple(weights.shape)}.")
    w = weights.to(values.device, torch.float64)
    if not (bool((w >= 0).all()) and 0 < float(w.sum()) < float("inf")):
        raise InvalidArgumentError("`weights=` needs finite numbers, none below 0 and one above.")
    return w


def _kind(value: object, name: str, cast: str) -> tuple[str, str]:
    """Return what came in place of a tensor of another kind, and how to make one of it."""
    if isinstance(value, Tensor):
        return str(value.dtype), f"Pass `{name}.{cast}()`."
    return type(value).__name__, f"Pass `torch.as_tensor({name})`."


def _text(shape: torch.Size) -> str:
    return ", ".join(map(str, shape))
