"""Whatever comes in, a right number or a refusal of our own comes out: never anything else.

Hypothesis draws models, losses, data and settings, good and bad. Each outcome is compared with
plain PyTorch, or must be an `EigenscapeError` where something bad was drawn, and nothing but a
product where nothing was.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigenscape.curvature import Fisher, GaussNewton, Hessian, Residual
from eigenscape.errors import EigenscapeError
from eigenscape.operator import Dense, LinearOperator
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.space import Block, ParamSpace
from eigenscape.testing import dense_hessian

few = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
sizes = st.integers(1, 4)


# --- networks ---


def network(p: dict[str, Tensor], x: Tensor) -> Tensor:
    return torch.tanh(x @ p["W"].T * p["gain"]) @ p["V"].T


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """A two-layer network of any sizes, with one of the losses and data that fit."""
    n, inputs, hidden, outputs = draw(st.integers(1, 9)), draw(sizes), draw(sizes), draw(sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    normal = lambda *s: torch.randn(s, generator=generator, dtype=torch.float64)
    kind = draw(st.sampled_from(["indices", "soft", "squared", "binary", "callable"]))
    x = normal(n, inputs)
    target = {
        "indices": torch.randint(0, outputs, (n,), generator=generator),
        "soft": normal(n, outputs).softmax(1),
        "binary": (normal(n, outputs) > 0).double(),
    }.get(kind, normal(n, outputs))
    loss: Any = {
        "indices": CrossEntropy(label_smoothing=draw(st.sampled_from([0.0, 0.1, 1.0]))),
        "soft": CrossEntropy(),
        "squared": SquaredError(average=draw(st.sampled_from(["samples", "elements"]))),
        "binary": BinaryCrossEntropy(),
        "callable": lambda z, y: (z - y).abs().pow(3).sum(1),
    }[kind]
    return {
        "params": {"W": normal(hidden, inputs), "gain": normal(), "V": normal(outputs, hidden)},
        "data": (x, target),
        "loss": loss,
        "batch_size": draw(st.sampled_from([None, 1, 2, 5])),
        "reduction": draw(st.sampled_from(["mean", "sum"])),
        "columns": draw(st.integers(0, 4)),
        "budget": draw(st.sampled_from([None, 0, 500])),
    }


def plain_loss(problem: dict[str, Any]) -> Any:
    (x, y), loss = problem["data"], problem["loss"]

    def value(p: dict[str, Tensor]) -> Tensor:
        z = network(p, x)
        if isinstance(loss, CrossEntropy):
            total = F.cross_entropy(z, y, reduction="sum", label_smoothing=loss.label_smoothing)
            count = len(z)
        elif isinstance(loss, SquaredError):
            total = loss.factor * (z - y).square().sum()
            count = len(z) if loss.average == "samples" else z.numel()
        elif isinstance(loss, BinaryCrossEntropy):
            total, count = F.binary_cross_entropy_with_logits(z, y, reduction="sum"), z.numel()
        else:
            total, count = loss(z, y).sum(), len(z)
        return total / (count if problem["reduction"] == "mean" else 1)

    return value


@few
@given(problem=problems())
def test_good_problems_have_right_products(problem: dict[str, Any]) -> None:
    risk = EmpiricalRisk(
        network,
        problem["loss"],
        problem["data"],
        params=problem["params"],
        batch_size=problem["batch_size"],
        reduction=problem["reduction"],
    )
    dense = dense_hessian(plain_loss(problem), problem["params"])
    X = torch.randn(len(dense), problem["columns"])
    limit = 1e-10 * max(1.0, float(dense.norm()))
    H = Hessian(risk, memory_budget=problem["budget"])
    assert (H @ X - dense @ X).norm() <= limit * max(1.0, float(X.norm()))
    G = GaussNewton(risk, memory_budget=problem["budget"])
    total = (G + Residual(risk)).to_dense()
    assert (total - dense).norm() <= limit


# --- spoilt networks ---

BAD: dict[str, Any] = {
    "nan input": lambda q: q | {"data": (q["data"][0] * math.nan, q["data"][1])},
    "infinite parameter": lambda q: q | {"params": q["params"] | {"V": q["params"]["V"] / 0}},
    "nan parameter": lambda q: q | {"params": q["params"] | {"gain": torch.tensor(math.nan)}},
    "complex parameter": lambda q: q | {"params": q["params"] | {"gain": torch.tensor(1j)}},
    "integer parameter": lambda q: q | {"params": q["params"] | {"gain": torch.tensor(2)}},
    "boolean parameter": lambda q: q | {"params": q["params"] | {"gain": torch.tensor(True)}},
    "float32 parameter": lambda q: q | {"params": q["params"] | {"gain": torch.ones(()).float()}},
    "number as parameter": lambda q: q | {"params": q["params"] | {"gain": 2.0}},
    "meta parameter": lambda q: q | {"params": {k: v.to("meta") for k, v in q["params"].items()}},
    "parameter on meta": lambda q: q | {"params": q["params"] | {"V": q["params"]["V"].to("meta")}},
    "no parameters": lambda q: q | {"params": {}},
    "list of parameters": lambda q: q | {"params": list(q["params"].values())},
    "empty name": lambda q: q | {"params": q["params"] | {"": torch.ones(2)}},
    "no data": lambda q: q | {"data": tuple(t[:0] for t in q["data"])},
    "no batches": lambda q: q | {"data": []},
    "nothing": lambda q: q | {"data": None},
    "generator": lambda q: q | {"data": (b for b in [q["data"]])},
    "numpy": lambda q: q | {"data": tuple(t.numpy() for t in q["data"])},
    "scalars": lambda q: q | {"data": (torch.tensor(1.0), torch.tensor(1.0))},
    "complex target": lambda q: q
    | {"data": (q["data"][0], q["data"][1] * 1j), "loss": CrossEntropy()},
    "class too large": lambda q: q
    | {"data": (q["data"][0], torch.full((len(q["data"][0]),), 99)), "loss": CrossEntropy()},
    "class too small": lambda q: q
    | {"data": (q["data"][0], torch.full((len(q["data"][0]),), -1)), "loss": CrossEntropy()},
    "all ignored": lambda q: q
    | {"data": (q["data"][0], torch.full((len(q["data"][0]),), -100)), "loss": CrossEntropy()},
    "target of another shape": lambda q: q
    | {"data": (q["data"][0], torch.ones(len(q["data"][0]), 2, 3)), "loss": SquaredError()},
    "wrong class dimension": lambda q: q | {"loss": CrossEntropy(class_dim=7)},
    "text as loss": lambda q: q | {"loss": "mse"},
    "loss of text": lambda q: q | {"loss": lambda z, y: "mse"},
    "nan loss": lambda q: q | {"loss": lambda z, y: z.sum() * math.nan},
    "infinite loss": lambda q: q | {"loss": lambda z, y: z.sum() * 0 + math.inf},
    "complex loss": lambda q: q | {"loss": lambda z, y: (z * 1j).sum()},
    "integer loss": lambda q: q | {"loss": lambda z, y: z.sum().long()},
    "no terms": lambda q: q | {"loss": lambda z, y: (z.sum(), 0)},
    "fewer than no terms": lambda q: q | {"loss": lambda z, y: (z.sum(), -1)},
    "infinitely many terms": lambda q: q | {"loss": lambda z, y: (z.sum(), math.inf)},
    "loss without graph": lambda q: q | {"loss": lambda z, y: 3.0},
    "batch size 0": lambda q: q | {"batch_size": 0},
    "batch size 2.5": lambda q: q | {"batch_size": 2.5},
    "unknown reduction": lambda q: q | {"reduction": "median"},
    "negative budget": lambda q: q | {"budget": -1},
    "text as budget": lambda q: q | {"budget": "1G"},
    "random": lambda q: q | {"loss": lambda z, y: (z * torch.rand_like(z)).square().sum(1)},
}  # fmt: skip


def attempt(problem: dict[str, Any]) -> Tensor:
    risk = EmpiricalRisk(
        network,
        problem["loss"],
        problem["data"],
        params=problem["params"],
        batch_size=problem["batch_size"],
        reduction=problem["reduction"],
    )
    return Hessian(risk, memory_budget=problem["budget"]) @ torch.ones(risk.space.size)


@pytest.mark.parametrize("spoil", BAD)
@settings(few, max_examples=4)
@given(problem=problems())
def test_bad_problems_are_refused(spoil: str, problem: dict[str, Any]) -> None:
    bad = BAD[spoil](problem)
    with pytest.raises(EigenscapeError):
        attempt(bad)


@settings(few, max_examples=100)
@given(
    seed=st.integers(0, 9),
    shape=st.lists(st.integers(0, 8), max_size=3).map(tuple),
    dtype=st.sampled_from(
        [torch.float64, torch.float32, torch.int64, torch.complex128, torch.bool]
    ),
)
def test_vectors_are_multiplied_or_refused(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    A = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = torch.ones(shape, dtype=dtype)
    fits = len(shape) in (1, 2) and shape[0] == 5 and dtype == torch.float64
    try:
        y = Dense(A) @ x
    except EigenscapeError:
        assert not fits
    else:
        assert fits
        torch.testing.assert_close(y, A @ x)


# --- names ---

SPACE = ParamSpace({"fc1.weight": (2, 3), "fc1.bias": (2,), "fc2.weight": (1, 2), "scale": ()})
DENSE = torch.randn(11, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
names = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["fc1", "fc1.weight", "*", "fc*.bias", "scale", "fc", "[", "fc1.", ".", "fc?"]),
)
selections = st.one_of(
    names,
    st.builds(slice, st.none(), st.none()),
    st.integers(-3, 3),
    st.none(),
    st.builds(
        lambda a, b, c: Block("b", (range(a, a + b, c),)),
        st.integers(0, 12),
        st.integers(0, 12),
        st.integers(1, 3),
    ),
)


@settings(few, max_examples=150)
@given(rows=selections, columns=selections)
def test_blocks_are_restricted_or_refused(rows: Any, columns: Any) -> None:
    A: LinearOperator = Dense(DENSE, space=SPACE)
    try:
        part = A[rows, columns]
    except EigenscapeError:
        return
    index = [
        torch.arange(11)
        if isinstance(s, slice)
        else (s if isinstance(s, Block) else SPACE.block(s)).index()
        for s in (rows, columns)
    ]
    torch.testing.assert_close(part.to_dense(), DENSE[index[0]][:, index[1]])


@few
@given(pattern=st.one_of(names, st.lists(names, max_size=2), st.integers(), st.none()))
def test_parameters_are_chosen_or_refused(pattern: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3))
    data = (torch.ones(4, 2), torch.arange(4) % 3)
    try:
        risk = EmpiricalRisk(model, CrossEntropy(), data, params=pattern)
    except EigenscapeError:
        return
    assert set(risk.space.names) <= {name for name, _ in model.named_parameters()}
    assert (Hessian(risk) @ torch.ones(risk.space.size)).isfinite().all()


@few
@given(
    kind=st.sampled_from(["exact", "sampled", "empirical", "mc", "", 3, None]),
    num_samples=st.sampled_from([1, 3, 0, -1, 2.0, None]),
    seed=st.sampled_from([0, 7, 2**80, -1, 0.5, "0", None]),
)
def test_fisher_settings_are_used_or_refused(kind: Any, num_samples: Any, seed: Any) -> None:
    model, data = torch.nn.Linear(2, 3), (torch.ones(4, 2), torch.arange(4) % 3)
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    good = (
        kind in ("exact", "sampled", "empirical")
        and num_samples in (1, 3)
        and seed in (0, 7, 2**80)
    )
    try:
        found = Fisher(risk, kind=kind, num_samples=num_samples, seed=seed) @ torch.ones(9)
    except EigenscapeError:
        assert not good
    else:
        assert found.isfinite().all()
