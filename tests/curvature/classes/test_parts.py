"""Parts of a second moment against their formulas, cell by cell."""

import pytest
import torch
from torch import Tensor

from eigenscape.curvature.classes.parts import (
    LOW_RANK,
    PLAIN,
    ClassParts,
    diagonal_means,
    gram_matrix,
    top_eigenvalues,
)
from eigenscape.errors import UnknownNameError

C, SIZE = 5, 7


def cells(candidates: int, empty: tuple[tuple[int, int], ...] = ()) -> tuple[Tensor, Tensor]:
    """Weights (C, L) and vectors (C, L, n) of the cells."""
    weights = torch.rand(C, candidates) + 0.1
    for cell in empty:
        weights[cell] = 0.0
    return weights, torch.randn(C, candidates, SIZE)


def outer(w: float, v: Tensor) -> Tensor:
    return w * torch.outer(v, v)


def truth(name: str, weights: Tensor, V: Tensor, *, extended: bool) -> Tensor:
    """Σ w v vᵀ over the columns of a part, by loops over the formulas."""
    L = weights.shape[1]
    others = [[d for d in range(L) if d != c or not extended] for c in range(C)]
    w = [sum(float(weights[c, d]) for d in others[c]) for c in range(C)]
    means = [
        sum((weights[c, d] / w[c] * V[c, d] for d in others[c]), torch.zeros(SIZE))
        if w[c] > 0
        else torch.zeros(SIZE)
        for c in range(C)
    ]
    middle = sum((w[c] / sum(w) * means[c] for c in range(C)), torch.zeros(SIZE))
    columns = {
        "global": [(sum(w), middle)],
        "class": [(w[c], means[c]) for c in range(C)],
        "centred": [(w[c], means[c] - middle) for c in range(C)],
    }
    if extended:
        columns |= {
            "cross": [(weights[c, d], V[c, d] - means[c]) for c in range(C) for d in others[c]],
            "same": [(weights[c, c], V[c, c]) for c in range(C)],
            "between": [(weights[c, d], V[c, d]) for c in range(C) for d in range(L)],
        }
    return sum((outer(float(a), v) for a, v in columns[name]), torch.zeros(SIZE, SIZE))


CASES = [
    *((name, True, empty) for name in LOW_RANK for empty in ((), ((1, 3), (2, 2)))),
    *((name, False, ()) for name in PLAIN),
    *((name, True, tuple((4, d) for d in range(C))) for name in LOW_RANK),  # an empty class
]


def check(matrix: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(matrix, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "extended", "empty"), CASES)
def test_columns_make_the_part(name: str, extended: bool, empty: tuple[tuple[int, int]]) -> None:
    weights, V = cells(C if extended else 1, empty)
    columns = ClassParts(weights, extended=extended).columns(name, V)
    check(columns.T @ columns, truth(name, weights, V, extended=extended))


def test_the_comparison_tells_the_parts_apart() -> None:
    weights, V = cells(C)
    columns = ClassParts(weights, extended=True).columns("cross", V)
    for name in LOW_RANK:
        if name != "cross":
            with pytest.raises(AssertionError):
                check(columns.T @ columns, truth(name, weights, V, extended=True))


@pytest.mark.parametrize(("name", "extended", "empty"), CASES)
def test_spreading_is_the_transpose(
    name: str, extended: bool, empty: tuple[tuple[int, int]]
) -> None:
    weights, V = cells(C if extended else 1, empty)
    parts = ClassParts(weights, extended=extended)
    columns = parts.columns(name, V)
    Y = torch.randn(columns.shape)
    torch.testing.assert_close((parts.spread(name, Y) * V).sum(), (Y * columns).sum())


def test_parts_add_up_as_they_should() -> None:
    weights, V = cells(C, ((0, 4), (3, 3)))
    parts = ClassParts(weights, extended=True)
    F = {name: parts.columns(name, V) for name in LOW_RANK}
    matrices = {name: columns.T @ columns for name, columns in F.items()}
    check(matrices["global"] + matrices["centred"], matrices["class"])
    check(matrices["class"] + matrices["cross"] + matrices["same"], matrices["between"])


@pytest.mark.parametrize("name", ["cross", "between"])
def test_some_classes_at_a_time_make_the_same_rows(name: str) -> None:
    weights, V = cells(C)
    parts = ClassParts(weights, extended=True)
    pieces = [slice(0, 2), slice(2, 3), slice(3, 5)]
    rows = [parts.wide_columns(name, V[piece], piece) for piece in pieces]
    check(torch.cat(rows), parts.columns(name, V))


def test_means_leave_the_own_class_out_where_cells_have_labels() -> None:
    weights, V = cells(C)
    parts = ClassParts(weights, extended=True)
    off = weights.clone().fill_diagonal_(0)
    check(parts.class_means(V), torch.einsum("cd,cdk->ck", off, V) / off.sum(1)[:, None])
    check(parts.class_means(V[1:3], slice(1, 3)), parts.class_means(V)[1:3])
    check(parts.global_mean(V), torch.einsum("cd,cdk->k", off, V) / off.sum())
    check(diagonal_means(V), torch.stack([V[c, c] for c in range(C)]))


@pytest.mark.parametrize("name", LOW_RANK)
def test_the_rank_is_at_most_the_number_of_pairs(name: str) -> None:
    weights = torch.rand(3, 3) + 0.1
    parts = ClassParts(weights, extended=True)
    columns = parts.columns(name, torch.randn(3, 3, 13))
    assert int((columns.abs().amax(1) > 0).sum()) == parts.most_pairs(name)


def test_plain_cells_have_no_cross_part() -> None:
    weights, V = cells(1)
    with pytest.raises(UnknownNameError, match="'global', 'centred', 'class'"):
        ClassParts(weights, extended=False).columns("cross", V)


@pytest.mark.parametrize("of_rows", [True, False])
def test_gram_matrices_come_from_pieces(of_rows: bool) -> None:
    R = torch.randn(6, 11)
    pieces = R.split(4, dim=1) if of_rows else R.split(4, dim=0)
    check(gram_matrix(pieces, of_rows=of_rows), R @ R.T if of_rows else R.T @ R)
    top = top_eigenvalues(gram_matrix(pieces, of_rows=of_rows), 3)
    check(top, torch.linalg.svdvals(R)[:3].square())


def test_eigenvalues_below_zero_are_rounding() -> None:
    values = top_eigenvalues(torch.diag(torch.tensor([-1e-17, 2.0, 0.5])), 3)
    check(values, torch.tensor([2.0, 0.5, 0.0]))
    assert bool((values >= 0).all())
