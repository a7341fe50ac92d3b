"""Do logit gradients cluster, by the logit or by the class of their sample (Wu App. F.1)?

Letters: c logits, p = softmax(z), Q = diag(√p)(I − 1pᵀ) (Wu (28)), so that QᵀQ = diag(p) − ppᵀ; δ_j
row j of Q ∂z/∂v for one sample, v the layer's parameters or its output; Δ_ij and Γ_ij (d) the means
of δ_j over the samples of class i, for parameters (53) and outputs (54).
"""

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenscape.analyses import Slopes, all_slopes
from eigenscape.curvature import matrix_layers
from eigenscape.device import full_precision
from eigenscape.errors import (
    DataError,
    TooLargeError,
    UnsupportedModelError,
    require_choice,
    require_count,
)
from eigenscape.records import Columns, Picture, Record, Status
from eigenscape.risk import Batch, CrossEntropy, EmpiricalRisk, Layer
from eigenscape_papers.wu._pictures import logit_picture
from eigenscape_papers.wu.weights_above import weights_above

VARIABLES = ("parameters", "output")

# Gradients that are formed at a time, in numbers.
_CHUNK = 2**22
_PERPLEXITY = 30.0


@dataclass(frozen=True, eq=False)
class LogitGradients(Record):
    """How the logit gradients of a layer cluster.

    A share is the part of all variance that lies between the clusters' centres: 1 where the members
    of a cluster coincide, 0 where the centres do. Logits and classes together have at most 1.

    Attributes:
        layer: The layer's name.
        variable: What was differentiated by: "parameters" (Δ) or "output" (Γ).
        num_dimensions: d.
        classes: The classes that have samples (k,).
        logit_share: Share of the variance of the k·c class means between logits: high at
            initialisation (Wu Fig. 20).
        class_share: The same between classes: high at minima where the claim holds, which Wu
            Fig. 21 finds not to be everywhere.
        sample_logit_share: As `logit_share`, of all N·c gradients of single samples.
        sample_class_share: As `class_share`, of all N·c gradients of single samples.
        second_moment: mean over samples of Σ_j ‖δ_j‖², the trace of the layer's Gauss-Newton
            matrix (parameters) or of E[M] (output).
        mean_share: Share of it in the class means: what is left of (55) if Δ and Γ are means.
        center_cosines: Cosines (c,) of the logit centres with their approximations (57), row j of
            E[Q]S, for parameters ⊗ E[x̃]; None where no chain of linear layers follows.
        point_classes: Class of each point of `coordinates`; −1 for the centre of a logit.
        point_logits: Logit of each point; −1 for the centre of a class.
        coordinates: t-SNE coordinates (points, 2) of the class means, then of the centres of
            logits, then of those of classes; None if not asked for.
    """

    layer: str
    variable: str
    num_dimensions: int
    classes: Tensor
    logit_share: float
    class_share: float
    sample_logit_share: float
    sample_class_share: float
    second_moment: float
    mean_share: float
    center_cosines: Tensor | None
    point_classes: Tensor
    point_logits: Tensor
    coordinates: Tensor | None

    def columns(self) -> Columns:
        """Return one row for each point where there are coordinates, else one of the numbers."""
        if self.coordinates is None:
            return super().columns()
        return {
            "class": [None if i < 0 else i for i in self.point_classes.tolist()],
            "logit": [None if j < 0 else j for j in self.point_logits.tolist()],
            "x": self.coordinates[:, 0].tolist(),
            "y": self.coordinates[:, 1].tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (logit_picture(self),)


@full_precision()
def logit_gradients(
    risk: EmpiricalRisk,
    layer: str,
    *,
    variable: str = "parameters",
    tsne: bool = True,
    max_bytes: int = 4 * 2**30,
    seed: int = 0,
) -> LogitGradients:
    """Measure how the logit gradients of a layer cluster by logit and by class.

    Wu (53) and (54) index Δ_ij by class i and logit j: it is row j of Q ∂z/∂w, not a derivative by
    w_j. (55) holds with gradients of single samples, H = E[Σ_j δ_j δ_jᵀ], with a sum over j where a
    mean is printed; `mean_share` says how much of the trace the class means keep. In (57) "(SᵀQ)_j"
    must be row j of QS.

    Cost: c backward passes of the tail, and k·c·d numbers in memory.

    Args:
        risk: Its loss must be `CrossEntropy` without class weights, its targets class indices, its
            model an `nn.Module` with an output (samples, classes).
        layer: As for `KroneckerHessian`; "fc1.weight" leaves the bias out, as Wu does.
        variable: "parameters" or "output".
        tsne: Whether to compute coordinates, which needs scikit-learn.
        max_bytes: Most memory for the class means.
        seed: Fixes t-SNE.

    Returns:
        Shares, and coordinates if asked for.

    Raises:
        UnsupportedModelError: If layer, loss or output do not fit.
        TooLargeError: If the class means need more than `max_bytes`.
        DataError: If t-SNE is asked for and scikit-learn is not installed.

    Examples:
        A model that gives all inputs the same logits has δ_j ⊗ x̃ with one δ_j for all samples; at
        the output these are c points, one for each logit.

        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3)).double()
        >>> with torch.no_grad():
        ...     for p in model.parameters(): _ = p.zero_()
        >>> data = (torch.randn(6, 2).double(), torch.arange(6) % 3)
        >>> risk = EmpiricalRisk(model, CrossEntropy(), data)
        >>> found = logit_gradients(risk, "0", variable="output", tsne=False)
        >>> round(found.logit_share, 6), round(found.class_share, 6), round(found.second_moment, 6)
        (1.0, 0.0, 0.666667)

    References:
        Papyan, "Measurements of three-level hierarchical structure in the outliers in the spectrum
        of deepnet Hessians", 2019, for Q. Fort and Ganguli, 2019, for the clusters.
    """
    call = f"logit_gradients(risk, {layer!r})"
    require_choice(variable, VARIABLES, "logit_gradients(variable=...)")
    require_count(max_bytes, "logit_gradients(max_bytes=...)")
    loss = risk.loss
    if not isinstance(loss, CrossEntropy) or loss.class_weights is not None:
        raise UnsupportedModelError(
            f"`{call}` is for `CrossEntropy()` without class weights, whose curvature is QᵀQ; the "
            f"loss is {type(loss).__name__}{' with weights' * isinstance(loss, CrossEntropy)}."
        )
    (chosen,) = matrix_layers(risk, [layer], call)
    sums = _sums(risk, chosen, variable, loss.ignore_index, max_bytes)
    present = (sums.counts > 0).nonzero()[:, 0]
    counts = sums.counts[present]
    means = sums.totals[present] / counts[:, None, None]
    weights = counts / counts.sum()
    equal_weights = means.new_full((len(means),), 1 / len(means))
    shares = _shares(means, equal_weights, _second_moment(means, equal_weights))
    spread = sums.squares / float(counts.sum())
    of_samples = _shares(means, weights, spread)
    centers = means.mean(0)
    points, classes, logits = _points(means, present)
    coordinates = _tsne(points, seed) if tsne else None
    return LogitGradients(
        status=Status(True, f"{int(counts.sum())} samples of {len(present)} classes."),
        num_products=0,
        seed=seed,
        layer=layer,
        variable=variable,
        num_dimensions=means.shape[2],
        classes=present.cpu(),
        logit_share=shares[0],
        class_share=shares[1],
        sample_logit_share=of_samples[0],
        sample_class_share=of_samples[1],
        second_moment=spread,
        mean_share=_second_moment(means, weights) / spread if spread > 0 else 0.0,
        center_cosines=_cosines(risk, chosen, centers, sums, variable),
        point_classes=classes.cpu(),
        point_logits=logits.cpu(),
        coordinates=coordinates,
    )


@dataclass
class _Sums:
    """Sums over samples: δ (c, c, d) and their number (c,) by class; Σ‖δ‖², Q and x̃ over all."""

    totals: Tensor
    counts: Tensor
    squares: float
    roots: Tensor
    inputs: Tensor
    num_positions: int


def _softmax_roots(z: Tensor, batch: Batch) -> list[Tensor]:
    """Return the rows of Q (28), each (N, c)."""
    p = z.softmax(1)
    Q = p.sqrt()[:, :, None] * (torch.eye(z.shape[1], dtype=z.dtype, device=z.device) - p[:, None])
    return list(Q.unbind(1))


def _sums(risk: EmpiricalRisk, layer: Layer, variable: str, ignored: int, max_bytes: int) -> _Sums:
    """Pass over the data once; add over all ranks."""
    with risk.ranks.together():
        batches = all_slopes(risk, layer, _softmax_roots, f"logit_gradients(risk, {layer.name!r})")
        first = next(batches)
        target = first.batch.target
        if not isinstance(target, Tensor) or target.is_floating_point():
            raise UnsupportedModelError(
                "`logit_gradients` needs class indices as targets, one for each sample."
            )
        sums = _empty(first, variable, max_bytes)
        for slopes in itertools.chain([first], batches):
            _add(sums, slopes, variable, slopes.batch.target != ignored)
    total = risk.ranks.sum
    squares = float(total(sums.totals.new_tensor([sums.squares])))
    return _Sums(
        total(sums.totals),
        total(sums.counts),
        squares,
        total(sums.roots),
        total(sums.inputs),
        sums.num_positions,
    )


def _empty(slopes: Slopes, variable: str, max_bytes: int) -> _Sums:
    (_, P, n), (_, c, _, m) = slopes.inputs.shape, slopes.slopes.shape
    d = m * n if variable == "parameters" else P * m
    if 8 * c * c * d > max_bytes:
        raise TooLargeError(
            f"`logit_gradients` keeps {c} × {c} means of length {d}, {8.0 * c * c * d:.3g} bytes; "
            f"`max_bytes` is {max_bytes:.3g}. Raise it, or use `variable='output'`."
        )
    new = slopes.slopes.new_zeros
    return _Sums(
        totals=new(c, c, d, dtype=torch.float64),
        counts=new(c, dtype=torch.float64),
        squares=0.0,
        roots=new(c, c, dtype=torch.float64),
        inputs=new(n, dtype=torch.float64),
        num_positions=P,
    )


def _add(sums: _Sums, slopes: Slopes, variable: str, kept: Tensor) -> None:
    x, b = slopes.inputs[kept].double(), slopes.slopes[kept].double()
    y = slopes.batch.target[kept].long()
    if variable == "output":
        x = x.new_ones(*x.shape[:2], 1)
    for i in y.unique().tolist():
        xs, bs = x[y == i], b[y == i]
        if variable == "output":
            sums.totals[i] += bs.sum(0).flatten(1)
        else:
            sums.totals[i] += torch.einsum("ncpm,npi->cmi", bs, xs).flatten(1)
        sums.counts[i] += len(xs)
    sums.squares += _squares(x, b, variable)
    sums.roots += torch.stack(_softmax_roots(slopes.output[kept], slopes.batch), 1).double().sum(0)
    sums.inputs += slopes.inputs[kept].double().sum(dim=(0, 1))


def _squares(x: Tensor, b: Tensor, variable: str) -> float:
    """Return Σ ‖δ‖²; of one position the gradient b xᵀ is not formed."""
    if variable == "output":
        return float(b.square().sum())
    if x.shape[1] == 1:
        return float((b.square().sum(dim=(1, 2, 3)) * x.square().sum(dim=(1, 2))).sum())
    size = max(1, _CHUNK // (b.shape[1] * b.shape[3] * x.shape[2]))
    pieces = zip(x.split(size), b.split(size), strict=True)
    return sum(float(torch.einsum("ncpm,npi->ncmi", bs, xs).square().sum()) for xs, bs in pieces)


def _second_moment(means: Tensor, weights: Tensor) -> float:
    """Return Σ_i w_i Σ_j ‖Γ_ij‖²."""
    return float((means.square().sum(dim=(1, 2)) * weights).sum())


# The second moment is that of all members: of the means themselves, or of the samples.
def _shares(means: Tensor, weights: Tensor, second_moment: float) -> tuple[float, float]:
    """Return the shares of the variance between logits and between classes."""
    c = means.shape[1]
    logits = torch.einsum("i,ijd->jd", weights, means)
    classes = means.mean(1)
    middle = logits.mean(0)
    total = second_moment / c - float(middle.square().sum())
    if total <= 1e-12 * second_moment:
        return 0.0, 0.0
    by_logit = float((logits - middle).square().sum()) / c
    by_class = float(((classes - middle).square().sum(1) * weights).sum())
    return by_logit / total, by_class / total


def _cosines(
    risk: EmpiricalRisk, layer: Layer, centers: Tensor, sums: _Sums, variable: str
) -> Tensor | None:
    """Compare the logit centres with (57), where S is known."""
    if sums.num_positions > 1:
        return None
    try:
        S = weights_above(risk, layer)
    except UnsupportedModelError:
        return None
    count = sums.counts.sum()
    guess = (sums.roots / count) @ S
    if variable == "parameters":
        guess = (guess[:, :, None] * (sums.inputs / count)).flatten(1)
    return F.cosine_similarity(centers, guess, dim=1).cpu()


def _points(means: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means and centres as points that keep all distances, with their classes and logits."""
    k, c, _ = means.shape
    all_ = torch.cat([means.flatten(0, 1), means.mean(0), means.mean(1)])
    logits = torch.arange(c, device=means.device)
    nobody = torch.full((c,), -1, device=means.device)
    classes = torch.cat([present.repeat_interleave(c), nobody, present])
    return all_, classes, torch.cat([logits.repeat(k), logits, nobody[:1].expand(k)])


def _tsne(points: Tensor, seed: int) -> Tensor:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise DataError(
            "`logit_gradients(tsne=True)` needs scikit-learn, and it is not installed. Install it: "
            "pip install scikit-learn; or pass `tsne=False`."
        ) from error
    # Distances are all that counts: as many coordinates as points are enough, of size about 1.
    U, sizes, _ = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    small = (U * sizes / sizes[0].clamp_min(torch.finfo(sizes.dtype).tiny)).cpu()
    perplexity = min(_PERPLEXITY, (len(small) - 1) / 3)
    start = F.pad(small, (0, max(0, 2 - small.shape[1])))[:, :2] * 1e-4
    method = TSNE(perplexity=perplexity, init=start.float().numpy(), random_state=seed)
    return torch.from_numpy(method.fit_transform(small.float().numpy())).double()
