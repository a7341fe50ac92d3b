"""What every rank of `test_distributed.py` runs: `python -m tests.distributed_jobs FOLDER`."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from eigenscape import (
    CrossEntropy,
    EmpiricalRisk,
    Fisher,
    GaussNewton,
    Hessian,
    KroneckerHessian,
    LayerHessian,
    Residual,
    eigsh,
    trace,
)
from eigenscape.analyses import point
from eigenscape.errors import EigenscapeError
from eigenscape.parallel import Ranks, join
from eigenscape.records import write_tensors

TIMEOUT = 60.0


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# 23 samples do not divide by 2 or 3; the ignored targets are nearly all in the first third.
X = draw(23, 4, seed=0)
Y = (draw(23, seed=1) * 2).round().long().clamp(0, 2)
Y[torch.tensor([0, 1, 2, 4, 5, 15])] = -100


def net(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), *(middle or (nn.Tanh(),)), nn.Linear(5, 3)).double()


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Samples by number."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return X[number], Y[number]


class Picky(nn.Module):
    """Cannot evaluate a batch that holds the last sample."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.refuses = net(), False

    def forward(self, x: Tensor) -> Tensor:
        if self.refuses and bool((x == X[-1]).all(1).any()):
            raise ValueError("the last sample is not to my taste")
        out: Tensor = self.inner(x)
        return out


class Moody(nn.Module):
    """Has a curved tail only for the last sample, and does it only where a batch holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner[0](x)
        is_last = (x == X[-1]).all(1, keepdim=True)
        h = torch.where(is_last, h.tanh(), h.relu()) if bool(is_last.any()) else torch.relu(h)
        out: Tensor = self.inner[2](h)
        return out


def risk(ranks: Ranks, data: Any = (X, Y), model: nn.Module | None = None, **options: Any) -> Any:
    return EmpiricalRisk(model or net(), CrossEntropy(), data, ranks=ranks, **options)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Five batches of unequal sizes."""
    return list(zip(X.split([3, 7, 1, 8, 4]), Y.split([3, 7, 1, 8, 4]), strict=True))


def answers(ranks: Ranks) -> dict[str, Tensor]:
    """Compute what must not depend on the number of ranks."""
    found = dict(_matrices(ranks))
    found |= dict(_layers(ranks))
    forms: dict[str, tuple[Any, dict[str, Any]]] = {
        "tensors in batches": ((X, Y), {"batch_size": 4}),
        "dict": ({"input": X, "labels": Y}, {}),
        "list": (batches(), {}),
        "list, cut": (batches(), {"batch_size": 2}),
        "data set": (Rows(), {}),
        "loader": (DataLoader(Rows(), batch_size=5), {}),
        "loader, read anew": (DataLoader(Rows(), batch_size=5), {"keep_data_bytes": 0}),
        "shuffled, kept": (_shuffled(), {}),
        "sum": ((X, Y), {"reduction": "sum"}),
    }
    for name, (data, options) in forms.items():
        here = risk(ranks, data, **options)
        vector = draw(here.space.size, 1, seed=4)
        found[f"{name}: loss, terms, samples"] = torch.tensor(
            [here.value(), here.num_terms, float(here.num_samples)], dtype=torch.float64
        )
        found[f"{name}: gradient"] = here.gradient()
        found[f"{name}: product"] = Hessian(here) @ vector
        if here.batches.is_fixed and name != "shuffled, kept":
            found[f"{name}: sampled"] = Fisher(here, kind="sampled", seed=3) @ vector
    return found


def _shuffled() -> DataLoader[Any]:
    data = TensorDataset(X, Y)
    return DataLoader(data, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(7))


def _matrices(ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    here = risk(ranks)
    columns = draw(here.space.size, 3, seed=2)
    yield "Hessian", Hessian(here) @ columns
    yield "Hessian, column by column", Hessian(here, memory_budget=0) @ columns
    yield "Gauss-Newton", GaussNewton(here) @ columns
    yield "residual", Residual(here) @ columns
    for kind in ("exact", "sampled", "empirical"):
        yield f"Fisher, {kind}", Fisher(here, kind=kind, num_samples=2, seed=5) @ columns
    pairs = eigsh(Hessian(here), num_pairs=3, tolerance=1e-12)
    yield "eigenvalues", pairs.values
    yield "trace", torch.tensor([trace(Hessian(here), num_products=6).value])
    where = point(here)
    yield "accuracy", torch.tensor([where.accuracy or 0.0, where.gradient_norm])
    part = here.restricted(["2"])
    yield "restricted", Hessian(part) @ draw(part.space.size, 2, seed=3)


def _layers(ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    here = risk(ranks, model=net(nn.ReLU()), batch_size=6)
    for representation in ("factors", "dense", "tail", "full"):
        H = LayerHessian(here, "0", representation=representation)
        yield f"layer, {representation}", H @ draw(H.space.size, 2, seed=6)
    for num_samples in (None, 2):
        K = KroneckerHessian(here, "0", num_samples=num_samples, seed=1)
        yield f"Kronecker output, {num_samples}", K.output_factor
        yield f"Kronecker input, {num_samples}", K.input_factor


# --- what must be the same sentence on every rank ------------------------------------------------


def remarks(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Try what several ranks are refused, and how they talk to each other."""
    torch.manual_seed(0)
    said: dict[str, Any] = {
        "first": ranks.first({"rank": ranks.rank, "text": "ä" * (ranks.rank + 1)}),
        "gathered": ranks.gather("x" * ranks.rank),
        "few samples": _refusal(lambda: risk(ranks, (X[: ranks.size - 1], Y[: ranks.size - 1]))),
        "few batches": _refusal(lambda: risk(ranks, batches()[: ranks.size - 1])),
        "other model": _refusal(lambda: risk(ranks, model=_scaled(1.0 + ranks.rank))),
        "other data": _refusal(lambda: risk(ranks, (X, Y.roll(ranks.rank)))),
        "other order": _refusal(lambda: risk(ranks, _disordered(ranks))),
        "reshuffled": _refusal(lambda: risk(ranks, _shuffled(), keep_data_bytes=0)),
        "batch statistics": _refusal(lambda: risk(ranks, model=_normalised(), mode="keep")),
        "uncut": _refusal(lambda: risk(ranks, {"input": X, "other": X[:5], "labels": Y})),
        "own error": _refusal(lambda: _fails_on_last(ranks)),
        "same kind": _refusal(lambda: _refuses_on_last(ranks)),
    }
    model = Picky()
    here = risk(ranks, model=model)
    H = Hessian(here)
    model.refuses = True
    with torch.no_grad():
        model.inner[0].weight.mul_(1.5)  # kept graphs are stale
    said["in a product"] = _refusal(lambda: H @ torch.ones(H.space.size, dtype=torch.float64))
    model.refuses = False
    said["afterwards"] = float((H @ torch.ones(H.space.size, dtype=torch.float64)).norm())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said["plan"] = LayerHessian(here, "inner.0").plan.explain()
    moody = LayerHessian(risk(ranks, model=Moody()), "inner.0")
    said["moody"] = [moody.plan.chosen, moody.plan.candidate("factors").obstacle]
    said["moody product"] = float((moody @ draw(moody.space.size, 1, seed=8)).norm())
    said["alone"] = EmpiricalRisk(net(), CrossEntropy(), (X, Y)).num_own_samples
    with join(device="cpu", timeout_seconds=TIMEOUT) as inner:  # beside a group that is there
        said["inner"] = [inner.size, float(inner.sum(torch.ones(1)))]
    copy = ranks.folder(folder / "checkpoint")
    assert copy is not None
    files = sorted(p for p in copy.rglob("*") if p.is_file())
    said["files"] = {p.relative_to(copy).as_posix(): p.read_bytes().hex() for p in files}
    said["is the real one"] = copy == folder / "checkpoint"
    return said


def _refusal(attempt: Callable[[], object]) -> list[str]:
    try:
        attempt()
    except (EigenscapeError, ValueError) as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def _scaled(factor: float) -> nn.Module:
    model = net()
    with torch.no_grad():
        model[0].weight.mul_(factor)
    return model


def _normalised() -> nn.Module:
    return net(nn.BatchNorm1d(5, dtype=torch.float64)).train()


def _disordered(ranks: Ranks) -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(ranks.rank)
    return DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, generator=draw)


def _fails_on_last(ranks: Ranks) -> None:
    with ranks.together():
        if ranks.rank == ranks.size - 1:
            raise ValueError("only here")


def _refuses_on_last(ranks: Ranks) -> None:
    from eigenscape.errors import UnsupportedModelError

    with ranks.together():
        if ranks.rank == ranks.size - 1:
            raise UnsupportedModelError("not such a model")


def main(folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    with join(device="cpu", timeout_seconds=TIMEOUT) as ranks:
        write_tensors(folder / f"answers-{ranks.rank}.safetensors", answers(ranks))
        text = json.dumps(remarks(ranks, folder))
        (folder / f"remarks-{ranks.rank}.json").write_text(text)


if __name__ == "__main__":
    assert "RANK" in os.environ
    main(Path(sys.argv[1]))
