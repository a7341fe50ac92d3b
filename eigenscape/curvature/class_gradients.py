"""The Gauss-Newton matrix of a classifier taken apart by class and candidate label (Papyan §6)."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eigenscape.curvature.classes.loss import require_class_loss
from eigenscape.curvature.classes.means import WEIGHTINGS, ClassMeans, pieces
from eigenscape.curvature.classes.parts import (
    LOW_RANK,
    SMALL,
    WIDE,
    ClassParts,
    diagonal_means,
    gram_matrix,
    top_eigenvalues,
)
from eigenscape.curvature.gauss_newton import GaussNewton
from eigenscape.curvature.products.graphs import require_tensor_output
from eigenscape.device import eigh, full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    TooLargeError,
    WrongTypeError,
    require_choice,
    require_count,
)
from eigenscape.operator import LinearOperator
from eigenscape.records import EigenPairs, SelfTest, Status
from eigenscape.risk import EmpiricalRisk
from eigenscape.space import ParamSpace

# With more classes than this, the user has to choose some: all C² cells are held.
_MOST_CLASSES = 1024


class ClassGradients:
    """The parts of G = Σ w g gᵀ, with the extended gradients g_{i,c,c'} of Papyan §6.

    g_{i,c,c'} is the gradient of sample i of class c as if its label were c', with the weight
    w = p_{i,c,c'}/N. The parts are operators, `part(name)`:

    - "class" = "global" + "centred": the second moment of the class means g_c (which leave out
      c' = c), split into that of their mean and their covariance;
    - "cross": between the cross-class means g_{c,c'}, c' ≠ c, of each class;
    - "same": the second moment of the means g_{c,c}, the gradients of the classes;
    - "between" = "class" + "cross" + "same": the second moment of all means g_{c,c'};
    - "within": what is left of G: the covariance inside the cells (c, c').

    G = class + cross + within + same (6.4) whatever the sizes of the classes; class weights and
    ignored targets of the loss count as they do in G. A term is a position for models with many
    outputs per sample, such as language models.

    Cost: one forward pass and C backward passes over the data, and C²·n numbers of memory, with
    C·n more in float64 while they are formed. Where the C²·n take more than `max_bytes`, only the
    C² weights are kept, and the means are recomputed whenever they are needed, in O(C·n) memory:

    - a product with a part costs about two Gauss-Newton products for each column;
    - eigenvalues of "global", "class", "centred" and "same" take two backward passes over the data,
      traces C more;
    - eigenvalues of "cross" and "between" take C backward passes for every group of parameters
      whose means fit, at most C groups, and a matrix of C² × C². Where parameters are fewer than
      cells, n < C², the matrix is n × n, stored or not, and there is one group.

    Backward passes are C times as many where a sample has several terms, or where the model sees
    the other samples of a batch.

    The weights and means belong to the parameters at construction.

    Attributes:
        weights: w_{c,c'} (C, C), float64.
        classes: Indices of the classes (C,).
        total: G itself.
        self_test: Whether G is that of the user's own function.

    Examples:
        With all logits equal, one sample x = 1 of each of two classes and no bias, g_{c,c'} = ±½ by
        c' alone and all weights are ¼. So g_0 = ½ for c' = 1 and g_1 = −½ for c' = 0.

        >>> from eigenscape.risk.losses import CrossEntropy
        >>> model = torch.nn.Linear(1, 2, bias=False)
        >>> with torch.no_grad(): _ = model.weight.zero_()
        >>> data = (torch.ones(2, 1), torch.tensor([0, 1]))
        >>> gradients = ClassGradients(EmpiricalRisk(model, CrossEntropy(), data))
        >>> gradients.part("class").to_dense()
        tensor([[ 0.1250, -0.1250],
                [-0.1250,  0.1250]])
        >>> gradients.eigenvalues("global"), gradients.eigenvalues("centred")[0].item()
        (tensor([0.], dtype=torch.float64), 0.25)

    References:
        Papyan §6 and App. A, with g_c for g_{c'} in `G_cross,c`. Papyan, "Measurements of
        three-level hierarchical structure in the outliers in the spectrum of deepnet Hessians",
        2019, for the variant with roots.
    """

    @full_precision()
    def __init__(
        self,
        risk: EmpiricalRisk,
        params: str | Sequence[str] | None = None,
        *,
        classes: Sequence[int] | Tensor | None = None,
        weighting: str = "probabilities",
        max_bytes: int = 4 * 2**30,
        memory_budget: int | None = None,
    ) -> None:
        """Pass over the data and form the means.

        Args:
            risk: The function to differentiate; its loss must be `CrossEntropy` with class indices
                as targets.
            params: Layers, tensors or patterns, for the parts of their block G^l of G; all by
                default.
            classes: The classes to tell apart, for example frequent tokens. Terms of other classes
                and other candidate labels stay in "within" as they are. All by default.
            weighting: "probabilities" has gradients g with weights p/N. "roots" has √p·g with equal
                weights 1/N, as in Papyan 2019: the same G, other means.
            max_bytes: Most memory for the means; also for the matrix that gives the eigenvalues of
                "cross" and "between", which are refused where it takes more.
            memory_budget: As for `GaussNewton`, for products with `total` and "within".

        Raises:
            WrongTypeError: If it is no risk, or classes are no integers.
            ShapeError: If classes are not in one list.
            UnsupportedModelError: If the loss or its targets do not fit.
            InvalidArgumentError: If classes repeat, are none, or are too many.
        """
        if not isinstance(risk, EmpiricalRisk):
            raise WrongTypeError(
                f"`ClassGradients(risk)` needs an EmpiricalRisk; got {type(risk).__name__}. Build "
                "one: `EmpiricalRisk(model, loss, data)`."
            )
        require_class_loss(risk.loss, "ClassGradients(risk)")
        require_choice(weighting, WEIGHTINGS, "ClassGradients(weighting=...)")
        require_count(max_bytes, "ClassGradients(max_bytes=...)", at_least=0)
        if params is not None:
            risk = risk.restricted([params] if isinstance(params, str) else list(params))
        self.risk = risk
        self.classes = _labels(risk, classes)
        self.total = GaussNewton(risk, memory_budget=memory_budget)
        self.self_test = self.total.self_test
        self._means = ClassMeans(risk, self.classes, weighting, max_bytes=max_bytes)
        self.weights = self._means.weights
        self._parts = ClassParts(self.weights, extended=True)
        self._grams: dict[str, Tensor] = {}
        self._traces: dict[str, float] = {}

    @property
    def is_stored(self) -> bool:
        """Whether the means are in memory; else products stream over the data."""
        return self._means.is_stored

    def part(self, name: str) -> LinearOperator:
        """Return one of the matrices that add up to G.

        Args:
            name: "class", "cross", "within" or "same"; or "global" and "centred", which add up to
                "class"; or "between", all but "within".

        Returns:
            The operator. "within" is G minus the others, so its rounding is that of G.
        """
        require_choice(name, (*LOW_RANK, "within"), "ClassGradients.part(name)")
        if name != "within":
            return _Part(self._means, self._parts, name, self.self_test)
        return self.total - self.part("between")

    def mean(self, row: int | None = None, label: int | None = None) -> Tensor:
        """Return a mean of the extended gradients (n,).

        Args:
            row: Number of a class in `classes`; the global mean g_G if None.
            label: Number of a candidate label; the class mean g_c if None.

        Returns:
            g_{c,c'}, g_c or g_G, zero where nothing has this class.

        Raises:
            InvalidArgumentError: If a label comes without a class.
        """
        C = len(self.classes)
        for value, name in ((row, "row"), (label, "label")):
            if value is not None:
                require_count(value, f"mean({name})", at_least=0, at_most=C - 1)
        if row is None and label is not None:
            raise InvalidArgumentError("`mean(label=...)` needs a `row` too: the class.")
        amounts = torch.zeros_like(self.weights)
        if row is None:
            amounts = self._parts.class_shares[:, None] * self._parts.shares
        elif label is None:
            amounts[row] = self._parts.shares[row]
        else:
            amounts[row, label] = 1.0
        Y = amounts.to(self.risk.dtype).reshape(C, C, 1)
        return self._means.pull(Y)[:, 0]

    @full_precision()
    def eigenvalues(self, name: str) -> Tensor:
        """Return all eigenvalues of a part that may differ from zero, from its Gram matrix.

        Cost: nothing over the data where the means are stored.

        Args:
            name: Any part but "within".

        Returns:
            1 of them for "global", C(C−1) for "cross", C² for "between", else C, but never more
            than parameters; descending, float64.

        Raises:
            TooLargeError: If the matrix for "cross" or "between" takes more than `max_bytes`.
        """
        most = min(self._parts.most_pairs(name), self.risk.space.size)
        return top_eigenvalues(self._gram(name), most)

    @full_precision()
    def traces(self) -> dict[str, float]:
        """Return the trace of every part but "within"."""
        if not self._traces:
            totals = {name: float(self._gram(name).trace()) for name in SMALL}
            totals |= dict.fromkeys(WIDE, 0.0)
            for classes, tile in self._means.tiles():
                for name in WIDE:
                    F = self._parts.wide_columns(name, tile, classes)
                    totals[name] += float(F.norm()) ** 2
            self._traces = {name: totals[name] for name in LOW_RANK}
        return dict(self._traces)

    @full_precision()
    def top_pairs(self, name: str, num_pairs: int | None = None) -> EigenPairs:
        """Return the largest eigenpairs of a part, from its Gram matrix.

        Args:
            name: Any part but "within".
            num_pairs: How many; as many as the part has rank by default.

        Returns:
            The pairs, with residuals from real products.
        """
        values, small = (tensor.flip(-1) for tensor in eigh(self._gram(name)))
        # The Gram matrix squares what the means have lost to rounding.
        floor = len(values) * torch.finfo(self.risk.dtype).eps * float(values[0])
        rank = max(1, int((values > floor).sum()))
        call = f"top_pairs({name!r}, num_pairs)"
        k = rank if num_pairs is None else require_count(num_pairs, call, at_most=rank)
        values = values[:k].clamp_min(0.0)
        V = small[:, :k]
        if not self._has_few_parameters(name):
            Y = self._parts.spread(name, V).to(self.risk.dtype)
            V, _ = torch.linalg.qr(self._means.pull(Y))
        V = V.to(self.risk.dtype)
        products = self.part(name) @ V
        residuals = (products.double() - V.double() * values).norm(dim=0)
        return EigenPairs(
            status=Status(True, f"{k} pairs from the eigendecomposition of {len(small)}²."),
            num_products=k,
            seed=0,
            values=values,
            vectors=V,
            residuals=residuals,
            which="largest",
            tolerance=1e-6,
            shapes=dict(self.risk.space.shapes),
        )

    def _gram(self, name: str) -> Tensor:
        """Return FᵀF of a part, float64; F Fᵀ if it `_has_few_parameters`."""
        require_choice(name, LOW_RANK, "ClassGradients eigenvalues(name)")
        if name not in self._grams:
            grams = self._small_grams() if name in SMALL else {name: self._wide_gram(name)}
            self._grams |= grams
        return self._grams[name]

    def _has_few_parameters(self, name: str) -> bool:
        """Say whether a part is smaller than the Gram matrix of its C² columns."""
        return name in WIDE and self.risk.space.size < len(self.classes) ** 2

    def _small_grams(self) -> dict[str, Tensor]:
        """Sum the Gram matrices of the parts that need only averages of each class."""
        grams: dict[str, Tensor] = {}
        for averages, diagonal in self._averages():
            for name in SMALL:
                F = self._parts.small_columns(name, diagonal if name == "same" else averages)
                grams[name] = grams[name].addmm_(F, F.T) if name in grams else F @ F.T
        return grams

    def _averages(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield g_c and g_{c,c} of all classes (C, some parameters), float64."""
        if self.is_stored:
            for block in self._means.blocks():
                yield self._parts.class_means(block), diagonal_means(block)
            return
        # Two backward passes for each sample and 2C·n numbers, instead of C passes and C²·n.
        shares = self._parts.shares
        amounts = torch.stack([shares, torch.eye(len(shares)).to(shares)], dim=2)
        for piece in pieces(self._means.combined(amounts)):
            yield piece[:, 0], piece[:, 1]

    def _wide_gram(self, name: str) -> Tensor:
        """Sum a Gram matrix: C² × C² over blocks of parameters, or n × n over classes."""
        means, few = self._means, self._has_few_parameters(name)
        side = self.risk.space.size if few else len(self.classes) ** 2
        if (needed := 8 * side**2) > means.max_bytes:
            raise TooLargeError(
                f"`ClassGradients.eigenvalues({name!r})` needs a matrix of "
                f"{'n × n' if few else 'C² × C²'}: {needed:.2g} bytes; `max_bytes` is "
                f"{means.max_bytes:.2g}. Raise it, take fewer `classes` or parameters "
                f"(`params=`), or use `eigsh(gradients.part({name!r}))`, which needs no matrix."
            )
        if few:
            rows = (
                self._parts.wide_columns(name, class_rows, c) for c, class_rows in means.by_class()
            )
        else:
            rows = (self._parts.wide_columns(name, block) for block in means.blocks())
        return gram_matrix(rows, of_rows=not few)

    def __repr__(self) -> str:
        """Say how many classes and parameters, and whether the means are stored."""
        how = "stored" if self.is_stored else "streamed"
        return f"ClassGradients({len(self.classes)} classes, {self.risk.space.size} params, {how})"


class _Part(LinearOperator):
    """A low-rank part, Mᵀ A Aᵀ M with a map of `ClassParts`."""

    def __init__(
        self, means: ClassMeans, class_parts: ClassParts, name: str, self_test: SelfTest | None
    ) -> None:
        self._means, self._parts, self._name, self._self_test = means, class_parts, name, self_test

    @property
    def space(self) -> ParamSpace:
        """The risk's parameters."""
        return self._means.risk.space

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' dtype."""
        return self._means.risk.dtype

    @property
    def device(self) -> torch.device:
        """The parameters' device."""
        return self._means.risk.device

    @property
    def is_symmetric(self) -> bool:
        """Always."""
        return True

    @property
    def self_test(self) -> SelfTest | None:
        """Whether G, whose part it is, is that of the user's own function."""
        return self._self_test

    @full_precision()
    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns (n, k)."""
        rows = self._parts.columns(self._name, self._means.push(X))
        return self._means.pull(self._parts.spread(self._name, rows))


def _labels(risk: EmpiricalRisk, classes: Sequence[int] | Tensor | None) -> Tensor:
    """Return the indices of the classes."""
    if classes is None:
        with torch.no_grad(), risk.evaluating(), risk.ranks.together():
            batch = next(iter(risk.batches))
            output = risk.output(risk.parameters(), batch)
            require_tensor_output(output, "ClassGradients")
            dim = risk.loss.term_dims(output, batch.target)[0]
        indices = torch.arange(output.shape[dim], device=risk.device)
    else:
        indices = _integers(classes).to(risk.device, torch.long)
    if indices.ndim != 1:
        raise ShapeError(
            "`ClassGradients(classes=...)` needs class indices in one list; got shape "
            f"{tuple(indices.shape)}. Of pairs (class, count) pass `[c for c, _ in pairs]`."
        )
    if not 2 <= len(indices) <= _MOST_CLASSES:
        raise InvalidArgumentError(
            f"`ClassGradients(classes=...)` needs from 2 to {_MOST_CLASSES} classes; got "
            f"{indices.numel()}. Name some of them, e.g. the most frequent tokens."
        )
    if len(indices.unique()) < len(indices) or int(indices.min()) < 0:
        raise InvalidArgumentError(
            "`ClassGradients(classes=...)` needs different class indices, none below 0."
        )
    return indices


def _integers(classes: Sequence[int] | Tensor) -> Tensor:
    """Return classes as a tensor of integers; refuse other numbers instead of rounding them."""
    try:
        indices = torch.as_tensor(classes)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        kinds = {type(c).__name__ for c in classes} if isinstance(classes, list | tuple) else ()
        got = " of ".join([type(classes).__name__, *sorted(kinds)[:1]])
    else:
        is_integer = not (indices.is_floating_point() or indices.is_complex())
        if indices.numel() == 0 or (is_integer and indices.dtype != torch.bool):
            return indices
        got = f"numbers of {indices.dtype}"
    raise WrongTypeError(
        "`ClassGradients(classes=...)` needs class indices, a list or a tensor of integers; got "
        f"{got}. Of a mask pass `mask.nonzero()[:, 0]`."
    )
