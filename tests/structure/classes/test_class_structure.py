"""Second moments by class and candidate label, against sums written out sample by sample."""

import dataclasses
import importlib
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape.records import pack, unpack
from eigenscape.structure import ClassStructure, class_structure

CLASSES = torch.tensor([2, 0, 0, 3, 0, 2, 1, 0, 2, 2, 0])  # 5, 1, 4, 1 of them
N, C = len(CLASSES), 4


def close(found: Tensor, expected: Tensor, rtol: float = 1e-12) -> None:
    assert float((found - expected).norm()) <= rtol * max(1.0, float(expected.norm()))


def extended(d: int = 6) -> tuple[Tensor, Tensor]:
    """Vectors (N, C, d) with a mean of their own in every cell, and weights p/N."""
    cells = 2 * torch.randn(C, C, d)
    v = torch.randn(N, C, d) + cells[CLASSES] + 1
    return v, (2 * torch.randn(N, C)).softmax(1) / N


def dense_parts(v: Tensor, w: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """All parts of Papyan (6.4) by loops, with g_c subtracted in the cross part."""
    L = v.shape[1]
    W = {(c, k): w[classes == c, k].sum() for c, k in itertools.product(range(L), repeat=2)}
    mean = {(c, k): (w[classes == c, k, None] * v[classes == c, k]).sum(0) / W[c, k] for c, k in W}
    others = {c: [k for k in range(L) if k != c] for c in range(L)}
    w_c = {c: sum(W[c, k] for k in others[c]) for c in others}
    v_c = {c: sum(W[c, k] * mean[c, k] for k in others[c]) / w_c[c] for c in others}
    whole = sum(w_c.values())
    v_G = sum(w_c[c] * v_c[c] for c in others) / whole
    square = lambda x: torch.outer(x, x)
    pairs = list(itertools.product(range(len(v)), range(L)))
    return {
        "global": whole * square(v_G),
        "centred": sum(w_c[c] * square(v_c[c] - v_G) for c in others),
        "class": sum(w_c[c] * square(v_c[c]) for c in others),
        "cross": sum(W[c, k] * square(mean[c, k] - v_c[c]) for c in others for k in others[c]),
        "same": sum(W[c, c] * square(mean[c, c]) for c in others),
        "within": sum(w[i, k] * square(v[i, k] - mean[int(classes[i]), k]) for i, k in pairs),
        "total": sum(w[i, k] * square(v[i, k]) for i, k in pairs),
    }


def within(found: ClassStructure, v: Tensor, w: Tensor) -> Tensor:
    deviations = found.deviations(v, CLASSES)
    return torch.einsum("...,...a,...b->ab", w, deviations, deviations)


@pytest.mark.parametrize("d", [3, 6, 40])  # fewer and more dimensions than cells
@pytest.mark.parametrize("chunk", [7, 2**22])
def test_parts_with_candidate_labels(d: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("eigenscape.structure.classes.class_structure")
    monkeypatch.setattr(module, "_CHUNK", chunk)
    v, w = extended(d)
    dense = dense_parts(v, w, CLASSES)
    found = class_structure(v, classes=CLASSES, weights=w)
    for part in ("global", "centred", "class", "cross", "same"):
        close(found.factor(part) @ found.factor(part).T, dense[part])
        values = torch.linalg.eigvalsh(dense[part]).flip(0)
        n = min(len(values), len(found.eigenvalues[part]))
        assert float(values[n:].abs().sum()) < 1e-10  # none is left out
        close(found.eigenvalues[part][:n], values[:n], 1e-10)
        assert float(found.eigenvalues[part][n:].sum()) < 1e-10
    close(within(found, v, w), dense["within"])
    for part, matrix in dense.items():
        assert found.traces[part] == pytest.approx(float(matrix.trace()), rel=1e-12)
    assert found.weights.shape == found.within_traces.shape == (C, C)
    assert float((found.weights * found.within_traces).sum()) == pytest.approx(
        found.traces["within"], rel=1e-12
    )


def test_the_identity() -> None:
    v, w = extended()
    found = class_structure(v, classes=CLASSES, weights=w)
    total = torch.einsum("ik,ika,ikb->ab", w, v, v)
    parts = [found.factor(part) @ found.factor(part).T for part in ("class", "cross", "same")]
    close(sum(parts) + within(found, v, w), total, 1e-13)
    both = [found.factor(part) @ found.factor(part).T for part in ("global", "centred")]
    close(sum(both), parts[0], 1e-13)
    t = found.traces
    assert t["class"] + t["cross"] + t["same"] + t["within"] == pytest.approx(t["total"], rel=1e-13)
    assert t["global"] + t["centred"] == pytest.approx(t["class"], rel=1e-13)


def test_the_printed_cross_part_does_not_add_up() -> None:
    """Papyan §6 and §7.7 print v_{c'} where v_c is meant."""
    v, w = extended()
    found = class_structure(v, classes=CLASSES, weights=w)
    z = found.means - found.class_means[None]
    other = found.weights.clone().fill_diagonal_(0.0)
    printed = torch.einsum("ck,cka,ckb->ab", other, z, z)
    dense = dense_parts(v, w, CLASSES)
    rest = dense["total"] - dense["class"] - dense["same"] - dense["within"]
    assert float((printed - rest).norm()) > 0.1 * float(rest.norm())


@pytest.mark.parametrize("weighted", [True, False])
def test_parts_without_candidate_labels(weighted: bool) -> None:
    y = CLASSES
    v = torch.randn(N, 7) + 3 * torch.randn(C, 7)[CLASSES]
    w = torch.rand(N) if weighted else torch.full((N,), 1 / N)
    found = class_structure(v, classes=CLASSES, weights=w if weighted else None)
    means = torch.stack([(w @ (v * (y == c)[:, None])) / w[y == c].sum() for c in range(C)])
    W = torch.stack([w[y == c].sum() for c in range(C)])
    close(found.weights, W)
    close(found.means, means)
    close(found.class_means, means)
    close(found.global_mean, w @ v / w.sum())
    between = torch.einsum("c,ca,cb->ab", W, means, means)
    close(found.factor("class") @ found.factor("class").T, between)
    close(between + within(found, v, w), torch.einsum("i,ia,ib->ab", w, v, v), 1e-13)
    close(found.eigenvalues["class"], torch.linalg.eigvalsh(between).flip(0)[:C], 1e-11)
    assert set(found.eigenvalues) == {"global", "centred", "class"}
    for c in range(C):
        deviations = (v - means[c])[y == c].square().sum(1)
        mean = float((w[y == c] * deviations).sum() / W[c])
        assert float(found.within_traces[c]) == pytest.approx(mean, rel=1e-12, abs=1e-14)


def test_classes_without_samples_or_weight() -> None:
    v, w = extended()
    classes = CLASSES.where(CLASSES != 3, 1)  # nobody has class 3
    w[classes == 1] = 0.0  # and class 1 does not count
    found = class_structure(v, classes=classes, weights=w)
    assert bool(found.means[3].eq(0).all())
    assert bool(found.means[1].eq(0).all())
    deviations = found.deviations(v, classes)
    inside = torch.einsum("ik,ika,ikb->ab", w, deviations, deviations)
    parts = [found.factor(part) @ found.factor(part).T for part in ("class", "cross", "same")]
    close(sum(parts) + inside, torch.einsum("ik,ika,ikb->ab", w, v, v), 1e-13)


def test_weights_of_a_layer() -> None:
    """Papyan §7.13: Σ w δ hᵀ is the product of class means and the moment of the deviations."""
    errors, features, w = torch.randn(N, 3), torch.randn(N, 5) + 1, torch.rand(N)
    a, b = (class_structure(v, classes=CLASSES, weights=w) for v in (errors, features))
    left, right = a.deviations(errors, CLASSES), b.deviations(features, CLASSES)
    inside = torch.einsum("i,ia,ib->ab", w, left, right)
    close(a.product_with(b) + inside, torch.einsum("i,ia,ib->ab", w, errors, features), 1e-13)
    close(a.product_with(b, "global"), w.sum() * torch.outer(a.global_mean, b.global_mean))
    close(a.product_with(b, "global") + a.product_with(b, "centred"), a.product_with(b), 1e-13)
    with pytest.raises(InvalidArgumentError, match="same weights in both"):
        a.product_with(class_structure(features, classes=CLASSES))


def test_float32_and_storage() -> None:
    v, w = extended()
    found = class_structure(v.float(), classes=CLASSES.int(), weights=w.float())
    again = class_structure(v.float().double(), classes=CLASSES, weights=w.float().double())
    assert found.traces == again.traces
    assert found.means.dtype == torch.float64
    stored = unpack(*pack(found))
    for field in dataclasses.fields(found):
        if isinstance(getattr(found, field.name), Tensor):
            assert torch.equal(getattr(stored, field.name), getattr(found, field.name))
    rows = found.columns()
    assert list(rows["part"])[-1] == "total"
    assert list(rows["share"])[-1] == 1.0
    assert "cross" in str(found)


def test_one_class_has_a_table_without_cross_means() -> None:
    v = torch.tensor([[[3.0, 4.0]]])
    rows = class_structure(v, classes=torch.zeros(1, dtype=torch.long)).columns()
    tops = dict(zip(rows["part"], rows["largest eigenvalue"], strict=True))
    assert tops["same"] == pytest.approx(25.0)
    assert tops["cross"] == 0.0


def test_refusals() -> None:
    v, w = extended()
    with pytest.raises(ShapeError, match=r"vectors \(N, d\)"):
        class_structure(v[..., None], classes=CLASSES)
    with pytest.raises(ShapeError, match=r"shape \(11,\)"):
        class_structure(v, classes=CLASSES[:-1])
    with pytest.raises(ShapeError, match=r"needs shape \(11, 4\)"):
        class_structure(v, classes=CLASSES, weights=w[:, 0])
    with pytest.raises(ShapeError, match="must be the same"):
        class_structure(v, classes=CLASSES, num_classes=5)
    with pytest.raises(InvalidArgumentError, match="from 0 to 2"):
        class_structure(v[:, :3], classes=CLASSES)
    with pytest.raises(InvalidArgumentError, match="none below 0"):
        class_structure(v, classes=CLASSES, weights=-w)
    wrong: Any
    for wrong, words in (
        (CLASSES.double(), r"torch.float64. Pass `classes.long\(\)`"),
        (CLASSES.tolist(), r"list. Pass `torch.as_tensor\(classes\)`"),
        (CLASSES.numpy(), r"ndarray. Pass `torch.as_tensor\(classes\)`"),
    ):
        for values in (v, v[:, 0]):
            with pytest.raises(WrongTypeError, match=f"tensor of integers.*got {words}"):
                class_structure(values, classes=wrong)
    for wrong, words in (
        (v.long(), r"torch.int64. Pass `values.double\(\)`"),
        (v.numpy(), r"ndarray. Pass `torch.as_tensor\(values\)`"),
        (v.tolist(), r"list. Pass `torch.as_tensor\(values\)`"),
    ):
        with pytest.raises(WrongTypeError, match=f"floating-point tensor; got {words}"):
            class_structure(wrong, classes=CLASSES)
    wrong = w.numpy()
    with pytest.raises(WrongTypeError, match=r"\(11, 4\); got ndarray. Pass `torch.as_tensor\(w"):
        class_structure(v, classes=CLASSES, weights=wrong)
    with pytest.raises(NonFiniteError, match="finite values"):
        class_structure(v / 0, classes=CLASSES)
    found = class_structure(v, classes=CLASSES)
    with pytest.raises(ShapeError, match=r"values \(N, 4, 6\)"):
        found.deviations(v[..., :5], CLASSES)
    with pytest.raises(InvalidArgumentError, match="factor"):
        found.factor("within")
