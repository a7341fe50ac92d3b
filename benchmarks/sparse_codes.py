"""(o) Matching pursuit of many samples, beside scikit-learn's."""

import warnings
from collections.abc import Callable
from typing import Any

import bars
import numpy as np
import torch
from bars import ASIDE, OURS, RIVAL
from plan import ROUNDING, Plan
from timing import Row, timed

from eigenscape_papers.representations import (
    orthogonal_matching_pursuit,
    random_dictionary,
    sparse_samples,
)

Array = np.ndarray[Any, Any]


def sparse_codes(plan: Plan) -> tuple[list[Row], list[str]]:
    """Code 1000 samples of 100 features by 5 of 1000 atoms, in both precisions."""
    n, d, p, k = (30, 10, 40, 3) if plan.quick else (1000, 100, 1000, 5)
    samples, _ = sparse_samples(random_dictionary(d // 2, d), n, sparsity=k, noise=0.1)
    atoms = random_dictionary(p, d, seed=1)
    threads, rows = torch.get_num_threads(), []
    torch.set_num_threads(1)  # numpy has one too
    try:
        for dtype in (torch.float64, torch.float32):
            rows += _rows(samples.to(dtype), atoms.to(dtype), k, plan)
    finally:
        torch.set_num_threads(threads)
    return rows, [f"{n} samples of {d} features, {k} of {p} atoms; one thread. Unit: YBᵀ."]


def _rows(Y: torch.Tensor, B: torch.Tensor, k: int, plan: Plan) -> list[Row]:
    from sklearn.linear_model import orthogonal_mp

    # As scikit-learn likes them: columns, in Fortran's order.
    y, b = (np.asfortranarray(part.numpy().T) for part in (Y, B))
    held, atoms = Y.to(plan.device), B.to(plan.device)

    def each() -> Array:
        return np.stack([orthogonal_mp(b, one, n_nonzero_coefs=k) for one in y.T])

    def at_once(gram: bool) -> Array:
        codes: Array = orthogonal_mp(b, y, n_nonzero_coefs=k, precompute=gram).T
        return codes

    methods: dict[str, tuple[str, Callable[[], Any]]] = {
        "eigenscape": (OURS, lambda: orthogonal_matching_pursuit(held, atoms, sparsity=k)),
        "scikit-learn, a call a sample": (RIVAL, each),
        "scikit-learn, one call": (ASIDE, lambda: at_once(False)),
        "scikit-learn, one call, Gram matrix": (ASIDE, lambda: at_once(True)),
    }
    job = f"{bars.CODES}, {str(Y.dtype).removeprefix('torch.')}"
    jobs = {
        label: (Row("o", "atoms", job, label, role), run) for label, (role, run) in methods.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it notes samples that need fewer atoms
        found = timed(jobs, lambda: held @ atoms.T, plan.rounds)
        exact = np.asfortranarray(b.astype(np.float64))
        wanted = orthogonal_mp(exact, y.astype(np.float64), n_nonzero_coefs=k).T
    for label, codes in found.items():
        dense = codes.dense().cpu().numpy() if label == "eigenscape" else codes
        _look(jobs[label][0], dense, wanted, y.T, b.T)
    return [row for row, _ in jobs.values()]


def _look(row: Row, codes: Array, wanted: Array, y: Array, b: Array) -> None:
    """Compare what is left of the samples: where two atoms are as good, supports may differ."""
    rest, least = (np.square(y - z.astype(np.float64) @ b).sum() for z in (codes, wanted))
    row.error = float(abs(rest - least) / least)
    row.wrong = row.error > ROUNDING
