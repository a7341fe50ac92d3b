"""All eigenvalues of a classifier's Gauss-Newton matrix and of its parts by class, for few samples.

G = Σ w g gᵀ over the extended gradients g_{i,c,c'} of Papyan §6 has rank at most N(C − 1). With the
rows √w g as a matrix R, G = RᵀR has the eigenvalues of K = R Rᵀ = UΛUᵀ, which is as small as the
samples are few, whatever the number of parameters. R = UΛ^½Vᵀ with V the eigenvectors of G: so
UΛ^½ are the extended gradients in coordinates of their own span, where G is Λ and every part is a
small matrix too. Nothing is lost: outside of the span all of them are zero.

Letters: N samples, C classes, n parameters, r the rank of G; w, g and cells as in `ClassGradients`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.curvature import (
    ClassParts,
    labels_of,
    require_class_indices,
    require_class_loss,
    top_eigenvalues,
)
from eigenscape.device import eigh, full_precision
from eigenscape.errors import (
    NonFiniteError,
    TooLargeError,
    UnsupportedModelError,
    WrongTypeError,
    require_choice,
    require_count,
)
from eigenscape.operator import Dense
from eigenscape.records import Columns, ProgressCallback, Record, Status
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.structure.classes._gradient_gram import gradient_gram

_CALL = "class_span(risk)"
_ADDING_UP = ("class", "cross", "same", "within")
# Matrices of N·C × N·C that are held at once: K, its eigenvectors, and what the solver needs.
_MATRICES = 4


@dataclass(frozen=True, eq=False)
class ClassSpan(Record):
    """G of a classifier and its parts by class, in the basis of the eigenvectors of G.

    Attributes:
        values: All eigenvalues of G that are not zero (r,), descending, float64.
        weights: w_{c,c'} (C, C), float64.
        means: g_{c,c'} in that basis (C, C, r), float64; zero where a cell is empty.
        class_traces: What the samples of each class add to the trace of G (C,).
        class_sizes: How many samples that count each class has (C,).
        num_parameters: n; beside `values` G has n − r eigenvalues that are zero.
    """

    values: Tensor
    weights: Tensor
    means: Tensor
    class_traces: Tensor
    class_sizes: Tensor
    num_parameters: int

    def factor(self, name: str) -> Tensor:
        """Return F (r, columns) with F Fᵀ a part, in the basis of the eigenvectors of G.

        Args:
            name: A part of `ClassGradients` but "within".

        Returns:
            The columns, float64.
        """
        class_parts = ClassParts(self.weights, extended=True)
        require_choice(name, class_parts.names, "ClassSpan.factor(name)")
        return class_parts.columns(name, self.means).T

    def part(self, name: str) -> Dense:
        """Return G or one of the matrices that add up to it, in the basis of G's eigenvectors.

        Args:
            name: "G", or a part of `ClassGradients`: "class", "cross", "same", "within", …

        Returns:
            The matrix (r, r): its eigenvalues that are not zero are those of the part, and sums,
            products and projections of parts are those of the parts themselves.
        """
        names = ("G", "within", *ClassParts(self.weights, extended=True).names)
        require_choice(name, names, "ClassSpan.part(name)")
        if name == "G":
            return Dense(torch.diag(self.values))
        F = self.factor("between" if name == "within" else name)
        M = F @ F.T
        M = (M + M.T) / 2  # to the last bit
        return Dense(torch.diag(self.values) - M if name == "within" else M)

    def eigenvalues(self, name: str) -> Tensor:
        """Return all eigenvalues of a part that may differ from zero, descending, float64.

        Args:
            name: As for `factor`.

        Returns:
            As many as the part has columns, or as G has eigenvalues.
        """
        F = self.factor(name)
        return top_eigenvalues(F.T @ F, len(self.values))

    def traces(self) -> dict[str, float]:
        """Return the trace of every part."""
        names = ClassParts(self.weights, extended=True).names
        traces = {name: float(self.factor(name).square().sum()) for name in names}
        return traces | {"within": float(self.values.sum()) - traces["between"]}

    def mean(self, row: int) -> Tensor:
        """Return g_c of a class in that basis (r,), without c' = c."""
        return ClassParts(self.weights, extended=True).class_means(self.means)[row]

    def within_levels(self) -> Tensor:
        """Return the trace of each class's part of "within" over its samples (C,).

        Zero where a class has no samples.
        """
        between = (self.weights * self.means.square().sum(2)).sum(1)
        return (self.class_traces - between) / self.class_sizes.clamp_min(1)

    def columns(self) -> Columns:
        """Return a row for G and for each of the four parts that add up to it."""
        total, part_traces = float(self.values.sum()), self.traces()
        traces = {"G": total, **{name: part_traces[name] for name in _ADDING_UP}}
        return {
            "matrix": list(traces),
            "trace": list(traces.values()),
            "share": [trace / total if total > 0 else 0.0 for trace in traces.values()],
        }


@full_precision()
def class_span(
    risk: EmpiricalRisk,
    *,
    max_bytes: int = 16 * 2**30,
    progress: ProgressCallback | None = None,
) -> ClassSpan:
    """Find all eigenvalues of G, and its parts by class as matrices in the span of its gradients.

    Lanczos resolves the large eigenvalues of G; what is small, and its logarithm, takes all of
    them. This is exact to rounding, whatever the number of parameters, as long as samples are few:
    eigenvalues below N·C roundings of float64 times the largest count as zero.

    Cost: for each layer one forward and C backward passes; products for the Gram matrix of N·C
    rows, layer by layer and without gradients where that is cheaper; and an eigendecomposition of
    that size: 13 600 for 1360 samples of ten classes. Memory: four matrices of that size, and a
    layer's inputs and slopes for all samples.

    Args:
        risk: Its loss must be `CrossEntropy` with class indices as targets; its model an
            `nn.Module` of linear, convolution and normalisation layers, each called once
            in a forward pass, in which samples do not see each other; its output (samples, up to
            256 classes). For a language model see `token_samples`.
        max_bytes: Most memory for the matrices.
        progress: Told how many layers are done.

    Returns:
        The eigenvalues, and the means of the extended gradients in coordinates.

    Raises:
        WrongTypeError: If it is no risk, or the model is a pure function.
        UnsupportedModelError: If loss, layers or output do not fit, or data are read anew.
        TooLargeError: If the matrices take more than `max_bytes`.
        NonFiniteError: If gradients are NaN or infinite.

    Examples:
        With all logits equal and one sample x = 1 of each of two classes, G has the one eigenvalue
        ½; all of it is between cells.

        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False))
        >>> with torch.no_grad(): _ = model[0].weight.zero_()
        >>> data = (torch.ones(2, 1), torch.tensor([0, 1]))
        >>> found = class_span(EmpiricalRisk(model, CrossEntropy(), data))
        >>> found.values.round(decimals=6).tolist(), round(found.columns()["trace"][4], 6)
        ([0.5], 0.0)

    References:
        Papyan §6; the Gram matrix of the rows of a Jacobian is the neural tangent kernel.
    """
    if not isinstance(risk, EmpiricalRisk):
        raise WrongTypeError(
            f"`{_CALL}` needs an EmpiricalRisk; got {type(risk).__name__}. Build one: "
            "`EmpiricalRisk(model, loss, data)`."
        )
    require_count(max_bytes, "class_span(max_bytes=...)")
    loss = require_class_loss(risk.loss, _CALL)
    if risk.ranks.size > 1:
        raise UnsupportedModelError(
            f"`{_CALL}` looks at all samples in one process; {risk.ranks.size} share these data."
        )
    if not risk.batches.is_fixed:
        raise UnsupportedModelError(
            f"`{_CALL}` passes over the data once for each layer, and every pass must see the "
            "samples in one order; this loader is read anew each time. Raise "
            "`EmpiricalRisk(keep_data_bytes=...)`, or pass `list(loader)`."
        )
    labels, roots = _weights(risk, loss, max_bytes)
    K = gradient_gram(risk, _CALL, progress).div_(risk.divisor)
    if not bool(K.isfinite().all()):
        raise NonFiniteError(
            f"`{_CALL}`: gradients are NaN or infinite. Check the loss (`risk.value()`), the data "
            "and the parameters."
        )
    N, C = roots.shape
    traces = K.diagonal().view(N, C).sum(1)
    values, U = eigh((K + K.T).div_(2.0))
    del K
    floor = N * C * torch.finfo(torch.float64).eps * float(values[-1])
    r = max(1, min(int((values > floor).sum()), risk.space.size))
    values, U = values[-r:].flip(0).clamp_min(0.0), U[:, -r:].flip(1)
    counted = labels >= 0
    index = labels[counted]
    weights = roots.new_zeros(C, C).index_add_(0, index, roots[counted].square())
    # Cells average by weights: w_{c,c'} g_{c,c'} = Σ_i √w (√w g).
    rows = (roots[:, :, None] * U.view(N, C, r))[counted]
    means = rows.new_zeros(C, C, r).index_add_(0, index, rows) * values.sqrt()
    means = torch.where(weights[:, :, None] > 0, means / weights.clamp_min(1e-300)[:, :, None], 0.0)
    return ClassSpan(
        status=Status(True, f"{r} eigenvalues of G from the inner products of {N * C} gradients."),
        num_products=0,
        seed=0,
        values=values,
        weights=weights,
        means=means,
        class_traces=roots.new_zeros(C).index_add_(0, index, traces[counted]),
        class_sizes=index.bincount(minlength=C),
        num_parameters=risk.space.size,
    )


@torch.no_grad()
def _weights(risk: EmpiricalRisk, loss: CrossEntropy, max_bytes: int) -> tuple[Tensor, Tensor]:
    """Return the class of each sample (N,), −1 where it is ignored, and √w (N, C), float64."""
    labels: list[Tensor] = []
    roots: list[Tensor] = []
    with risk.evaluating():
        for batch in risk.batches:
            z = risk.output(risk.parameters(), batch)
            labels.append(labels_of(risk, z, batch, _CALL))
            _, y, is_index = loss.aligned(z, batch.target)
            require_class_indices(is_index, _CALL)
            s = loss.term_weights(z, y, is_index).double()
            roots.append((s * z.double().softmax(1) / risk.divisor).sqrt())
            needed = 8 * _MATRICES * (risk.num_samples * z.shape[1]) ** 2
            if needed > max_bytes:
                raise TooLargeError(
                    f"`{_CALL}` needs {_MATRICES} matrices of {risk.num_samples * z.shape[1]}², "
                    f"{needed:.2g} bytes; `max_bytes` is {max_bytes:.2g}. Take fewer samples, or "
                    "use products: `ClassGradients(risk)`."
                )
    return torch.cat(labels), torch.cat(roots)
