"""Weighted means of extended gradients by class and candidate label, stored or streamed.

With p = softmax(z), s the weight of a term of the loss, D the risk's divisor and J = ∂z/∂θ, a term
of class c has the extended gradient g_{c'} = σ Jᵀ(p − e_{c'}) for every candidate label c', with
the weight ω. Papyan §6 has ω = s p_{c'}/D and σ = 1; the variant with roots has ω = s/D and
σ = √p_{c'}. Both give G = Σ ω g gᵀ. The mean of a cell (c, c') is Jᵀu, where u holds
(ω/w_{c,c'}) σ (p − e_{c'}) for the terms of class c: one backward pass, and no gradient of a single
sample. M is the matrix of the C² means as rows.

Letters: T terms, V entries of the output, C classes and as many candidate labels, n parameters.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from eigenscape.curvature.classes.loss import require_class_indices, require_class_loss
from eigenscape.curvature.products.graphs import gradients, require_tensor_output
from eigenscape.curvature.products.representation import split_rows
from eigenscape.errors import InvalidArgumentError, NonDeterministicRiskError, NonFiniteError
from eigenscape.risk import Batch, EmpiricalRisk, leaf_copies

WEIGHTINGS = ("probabilities", "roots")

# Numbers of M that are taken to float64 at a time, to multiply; and to add up, near a cache's size.
_CHUNK = 2**24
_TILE = 2**20


@dataclass(frozen=True)
class Terms:
    """The terms of one batch that belong to one of the classes.

    Attributes:
        head: Their logits (T, V), with their graph.
        leaves: The parameters that the graph starts from.
        labels: Numbers of their classes (T,), from 0 to C − 1.
        p: Their probabilities (T, V), float64.
        weights: ω (T, C), float64.
        scales: σ (T, C), float64.
    """

    head: Tensor
    leaves: list[Tensor]
    labels: Tensor
    p: Tensor
    weights: Tensor
    scales: Tensor


@dataclass(frozen=True)
class Section:
    """Some of the parameters, in their order.

    Attributes:
        risk: The risk as a function of the tensors that they are in.
        first: Number of the first of them among the risk's parameters.
        size: How many they are.
    """

    risk: EmpiricalRisk
    first: int
    size: int


class ClassMeans:
    """The matrix M of the means, by products with it and its transpose."""

    def __init__(
        self, risk: EmpiricalRisk, labels: Tensor, weighting: str, *, max_bytes: int
    ) -> None:
        """Pass over the data to weigh the cells; and C times more to store the means if they fit.

        Args:
            risk: The risk, with a `CrossEntropy` loss.
            labels: Indices of the classes (C,), which are the candidate labels too.
            weighting: "probabilities" or "roots".
            max_bytes: Most memory for M; if it takes more, nothing is stored.
        """
        self.risk, self._labels, self._weighting = risk, labels.to(risk.device), weighting
        self._snapshot = risk.snapshot()
        self.max_bytes = max_bytes
        self.weights = self._cell_weights()
        self._can_group = self._try_group()
        self._stored = self._rows(self._section()) if self.nbytes <= max_bytes else None

    @property
    def nbytes(self) -> int:
        """Memory that M takes, or would take."""
        C = len(self._labels)
        return C * C * self.risk.space.size * self.risk.dtype.itemsize

    @property
    def is_stored(self) -> bool:
        """Whether M is in memory."""
        return self._stored is not None

    def push(self, X: Tensor) -> Tensor:
        """Return M X (C, C, k) for columns (n, k)."""
        self._require_same_point()
        if self._stored is not None:
            pushed: Tensor = (self._stored @ X).reshape(*self.weights.shape, -1)
            return pushed
        risk = self.risk
        total = self.weights.new_zeros(*self.weights.shape, X.shape[1])
        with risk.ranks.together(), torch.enable_grad(), risk.evaluating():
            for terms in self._all_terms(risk, risk.batches):
                u = torch.zeros_like(terms.head, requires_grad=True)
                pullback = gradients(terms.head, terms.leaves, u, create_graph=True)
                rates = self._rates(terms)
                for k, row in enumerate(X.T):
                    columns = split_rows(row[None], terms.leaves)
                    (t,) = gradients(pullback, [u], columns)
                    if t is not None:
                        t = t.detach().double()
                        along = (terms.p * t).sum(1, keepdim=True) - t[:, self._labels]
                        total[..., k].index_add_(0, terms.labels, rates * along)
        return risk.ranks.sum(total).to(X)

    def pull(self, Y: Tensor) -> Tensor:
        """Return Mᵀ Y (n, k) for numbers (C, C, k)."""
        self._require_same_point()
        if self._stored is not None:
            return self._stored.T @ Y.flatten(0, 1)
        risk = self.risk
        total = self.weights.new_zeros(Y.shape[2], risk.space.size)
        with risk.ranks.together(), torch.enable_grad(), risk.evaluating():
            for terms in self._all_terms(risk, risk.batches):
                rates = self._rates(terms)
                for k in range(Y.shape[2]):
                    self._add_pulled(total[k], terms, rates * Y[..., k].double()[terms.labels])
        return risk.ranks.sum(total).to(Y).T

    def blocks(self) -> Iterator[Tensor]:
        """Yield M in pieces (C, C, some parameters) in float64; recomputed if not stored."""
        self._require_same_point()
        shape = self.weights.shape
        for rows in [self._stored] if self._stored is not None else self._groups():
            for piece in pieces(rows):
                yield piece.double().unflatten(0, shape)

    def by_class(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield classes that occur, and their rows of M (1, C, n) in float64: C·n numbers."""
        self._require_same_point()
        C, section = len(self._labels), self._section()
        for c in self.weights.any(1).nonzero()[:, 0].tolist() or [0]:
            if self._stored is None:
                rows = self._class_rows(section, c, self._every_label())
            else:
                rows = self._stored[c * C : (c + 1) * C].double()
            yield slice(c, c + 1), rows[None]

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield M once, in pieces of some classes and parameters, for what adds up over both."""
        if self._stored is not None:
            yield from ((slice(None), block) for block in self.blocks())
            return
        for classes, rows in self.by_class():
            yield from ((classes, piece) for piece in pieces(rows, _TILE))

    def combined(self, amounts: Tensor) -> Tensor:
        """Return k combinations of the means of each class (C, k, n), added up in float64.

        Cost: k backward passes over the data, where samples can be brought together by class.

        Args:
            amounts: Coefficient of every candidate label in each combination (C, C, k).

        Returns:
            Σ_{c'} amounts_{c,c'} times the mean of the cell (c, c').
        """
        self._require_same_point()
        section = self._section()
        total = self.weights.new_empty(len(amounts), amounts.shape[2], section.size)
        for c, label_amounts in enumerate(amounts):
            total[c] = self._class_rows(section, c, label_amounts)
        return total

    def _groups(self) -> Iterator[Tensor]:
        """Yield M for as many parameters at a time as fit, tensors cut where they are too large."""
        C, n = len(self._labels), self.risk.space.size
        # At least n/C parameters, which is C·n numbers as in `by_class`: at most C groups.
        most = max(self.max_bytes // (C * C * self.risk.dtype.itemsize), -(-n // C))
        for start in range(0, n, most):
            yield self._rows(self._section(start, min(start + most, n)))

    def _section(self, start: int = 0, stop: int | None = None) -> Section:
        """Return the parameters from `start` to `stop`; all by default."""
        space = self.risk.space
        stop = space.size if stop is None else stop
        starts = {name: space.offset(name) for name in space.names}
        ends = (starts[name] + torch.Size(shape).numel() for name, shape in space.shapes.items())
        names = [n for n, end in zip(starts, ends, strict=True) if starts[n] < stop and end > start]
        return Section(self.risk.restricted(names), start - starts[names[0]], stop - start)

    def _every_label(self) -> Tensor:
        """Return the amounts (C, C) that give the means themselves."""
        return torch.eye(len(self._labels), dtype=torch.float64, device=self.risk.device)

    def _rows(self, section: Section) -> Tensor:
        """Return M (C², some parameters) in their dtype, one class at a time."""
        C, labels, risk = len(self._labels), self._every_label(), section.risk
        rows = torch.empty(C * C, section.size, dtype=risk.dtype, device=risk.device)
        for c in range(C):  # no variable holds a class's rows while the next ones are made
            rows[c * C : (c + 1) * C] = self._class_rows(section, c, labels)
        return rows

    def _class_rows(self, section: Section, c: int, amounts: Tensor) -> Tensor:
        """Return means of one class, combined by amounts (C, k), as rows; added up in float64."""
        risk, combinations = section.risk, amounts.T
        rows = self.weights.new_zeros(len(combinations), section.size)
        if not bool(self.weights[c].any()):
            return rows  # without a pass over the data: the class does not occur
        with risk.ranks.together(), torch.enable_grad(), risk.evaluating():
            for terms in self._all_terms(risk, self._batches_of(c), only=c):
                rates = self._rates(terms)
                for row, label_amounts in zip(rows, combinations, strict=True):
                    self._add_pulled(row, terms, rates * label_amounts, first=section.first)
        total = risk.ranks.sum(rows)
        # By sums: `isfinite` of all of it would take as much memory again.
        if not bool(total.sum(1).isfinite().all()):
            raise NonFiniteError(
                "The class means of the gradients are NaN or infinite. Check the parameters and "
                "the data, e.g. with `risk.gradient()`."
            )
        return total

    def _add_pulled(self, total: Tensor, terms: Terms, amounts: Tensor, first: int = 0) -> None:
        """Add Σ a_{c'} Jᵀ(p − e_{c'}) over terms and labels to a total, for amounts (T, C).

        The total holds the parameters from number `first` on, all (n,) or some.
        """
        u = amounts.sum(1, keepdim=True) * terms.p
        u.index_add_(1, self._labels, amounts, alpha=-1)
        slopes = gradients(terms.head, terms.leaves, u.to(terms.head.dtype))
        # Tensor by tensor, without a copy of the whole gradient, flat or in float64.
        start = -first
        for leaf, slope in zip(terms.leaves, slopes, strict=True):
            low, high = max(start, 0), min(start + leaf.numel(), len(total))
            if slope is not None:
                total[low:high].add_(slope.flatten()[low - start : high - start])
            start += leaf.numel()

    def _rates(self, terms: Terms) -> Tensor:
        """Return (ω / w_{c,c'}) σ (T, C); zero for an empty cell."""
        cells = self.weights[terms.labels]
        is_empty = cells <= 0
        return terms.weights * terms.scales / cells.where(~is_empty, 1.0) * ~is_empty

    def _cell_weights(self) -> Tensor:
        """Return w_{c,c'} (C, C), float64."""
        C = len(self._labels)
        total = torch.zeros(C, C, dtype=torch.float64, device=self.risk.device)
        with self.risk.ranks.together(), torch.no_grad(), self.risk.evaluating():
            for terms in self._all_terms(self.risk, self.risk.batches):
                total.index_add_(0, terms.labels, terms.weights)
        return self.risk.ranks.sum(total)

    def _all_terms(
        self, risk: EmpiricalRisk, batches: Iterable[Batch], only: int | None = None
    ) -> Iterator[Terms]:
        """Evaluate batches; leave out those without a term of the classes."""
        for batch in batches:
            params = leaf_copies(risk.parameters())
            output = risk.output(params, batch)
            logits, labels, s = self._read(output, batch)
            kept = labels >= 0 if only is None else labels == only
            if not bool(kept.any()):
                continue
            head = logits[kept]
            p = head.detach().double().softmax(1)
            chosen = p[:, self._labels]
            weights = s[kept, None].double() / self.risk.divisor
            if self._weighting == "probabilities":
                weights, scales = weights * chosen, torch.ones_like(chosen)
            else:
                weights, scales = weights.expand_as(chosen), chosen.sqrt()
            yield Terms(head, list(params.values()), labels[kept], p, weights, scales)
        self._snapshot.settle()

    def _read(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (T, V), numbers of classes (T,), −1 for others, and weights s (T,)."""
        loss = require_class_loss(self.risk.loss, "ClassGradients(risk)")
        require_tensor_output(output, "ClassGradients")
        z, y, is_index = loss.aligned(output, batch.target)
        require_class_indices(is_index, "ClassGradients(risk)")
        V = z.shape[1]
        if int(self._labels.max()) >= V:
            raise InvalidArgumentError(
                f"`ClassGradients(classes=...)` needs classes from 0 to {V - 1}; got "
                f"{int(self._labels.max())}."
            )
        s = loss.term_weights(z, y, is_index)
        numbers = torch.full((V,), -1, device=z.device)
        numbers[self._labels] = torch.arange(len(self._labels), device=z.device)
        is_term = y != loss.ignore_index
        labels = numbers[y.where(is_term, 0)].where(is_term, -1)
        return z.movedim(1, -1).flatten(0, -2), labels.flatten(), s.flatten()

    def _require_same_point(self) -> None:
        """Refuse parameters that changed since the means were made; cost: one read of the model."""
        last = self._snapshot
        if last.is_counted_as_changed() or bool(last.differs(self.risk.device)):
            raise NonDeterministicRiskError(
                "The model changed since its `ClassGradients` were made, or the data did, and "
                "weights and means are the old ones. Make a new `ClassGradients(risk)`."
            )

    # Samples of one class are batched together, so that C backward passes over the data are enough
    # instead of C². This needs one term per sample, and samples that do not affect each other.

    def _batches_of(self, c: int) -> Iterator[Batch]:
        """Yield the samples of one class in batches about as large as the risk's."""
        if not self._can_group:
            yield from self.risk.batches
            return
        waiting: dict[object, list[Batch]] = {}
        limit = 0
        for batch in self.risk.batches:
            limit = max(limit, batch.size)
            index = (batch.target == self._labels[c]).nonzero()[:, 0]
            if len(index) == 0:
                continue
            samples = _subset(batch, index)
            alike = waiting.setdefault(_signature(samples), [])
            if sum(b.size for b in alike) + samples.size > limit and alike:
                yield _joined(alike)
                alike.clear()
            alike.append(samples)
        for alike in waiting.values():
            yield _joined(alike)

    def _try_group(self) -> bool:
        """Compare the logits of some samples with those they have in their batch."""
        with self.risk.ranks.together(), torch.no_grad(), self.risk.evaluating():
            # The largest batch: with a single sample the subset would be the whole batch. Where all
            # batches have one sample, none are joined and nothing can go wrong.
            batch = max(self.risk.batches, key=lambda batch: batch.size)
            leaves = pytree.tree_leaves((batch.args, batch.kwargs, batch.target))
            if any(not isinstance(t, Tensor) or t.shape[:1] != (batch.size,) for t in leaves):
                return False
            params = self.risk.parameters()
            full_output = self.risk.output(params, batch)
            if batch.target.shape != (batch.size,) or full_output.shape[:1] != batch.target.shape:
                return False
            index = torch.arange(0, batch.size, 2, device=self.risk.device)
            try:
                subset_output = self.risk.output(params, _subset(batch, index))
            except Exception:  # a model may raise anything on a smaller batch
                return False
            if subset_output.shape != full_output[index].shape:
                return False
            gap = (subset_output - full_output[index]).nan_to_num().norm()
            return bool(
                gap <= self.risk.slack * full_output[index].nan_to_num(posinf=0, neginf=0).norm()
            )


def pieces(rows: Tensor, most: int | None = None) -> Iterator[Tensor]:
    """Split the last dimension, the parameters, into pieces of at most `most` numbers."""
    yield from rows.split(max(1, (most or _CHUNK) // rows[..., 0].numel()), dim=-1)


def _subset(batch: Batch, index: Tensor) -> Batch:
    """Return some samples of a batch."""
    args, kwargs, target = pytree.tree_map(
        lambda t: t[index], (batch.args, batch.kwargs, batch.target)
    )
    return Batch(args, kwargs, target, len(index), batch.first)


def _signature(batch: Batch) -> object:
    """Return what must agree for batches to be joined."""
    leaves, structure = pytree.tree_flatten((batch.args, batch.kwargs, batch.target))
    return structure, tuple(t.shape[1:] for t in leaves)


def _joined(batches: list[Batch]) -> Batch:
    """Put batches of one signature together."""
    if len(batches) == 1:
        return batches[0]
    flat = [pytree.tree_flatten((b.args, b.kwargs, b.target)) for b in batches]
    joined = [torch.cat(tensors) for tensors in zip(*(leaves for leaves, _ in flat), strict=True)]
    args, kwargs, target = pytree.tree_unflatten(joined, flat[0][1])
    return Batch(args, kwargs, target, sum(b.size for b in batches), batches[0].first)
