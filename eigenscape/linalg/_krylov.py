"""Where the basis of a Lanczos run lives: on the operator's device, in host memory, or in a file.

Letters: V (j, n) the rows so far; W (b, n) rows on the device; c (b, j) coefficients of W on V.

Rows that live elsewhere pass through the device a chunk at a time, so that the device holds no more
of them than that. One pass that removes V reads it once: each chunk gives its coefficients and is
taken out before the next one comes, which for orthonormal rows is the same.
"""

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from enum import Enum

import torch
from torch import Tensor

from eigenscape.errors import FileError, TooLargeError, WrongTypeError
from eigenscape.linalg._products import InUnits, dots, multiply
from eigenscape.operator import LinearOperator
from eigenscape.records import Ticker

Place = str | os.PathLike[str] | None

# What passes through the device at a time: enough for a full-speed copy, little beside a network.
CHUNK_BYTES = 2**28


class Basis:
    """Up to `capacity` rows: append, remove from others, combine, and turn in place."""

    def __init__(self, operator: LinearOperator, capacity: int, location: Place = None) -> None:
        """Reserve the room.

        Args:
            operator: Gives the length of a row, its dtype and the device that computes.
            capacity: How many rows.
            location: None or "device", "host", or a folder for a file.
        """
        shape = capacity, operator.space.size
        self.capacity, self._device = capacity, operator.device
        row = shape[1] * operator.dtype.itemsize
        self._chunk = capacity if on_device(location) else max(1, CHUNK_BYTES // max(1, row))
        self._count = 0
        if location is None or location == "device":
            self._rows = torch.empty(shape, dtype=operator.dtype, device=operator.device)
        elif location == "host":
            pinned = operator.device.type == "cuda"
            self._rows = _in_memory(shape, operator.dtype, pinned=pinned)
        else:
            self._rows = _in_file(location, shape, operator.dtype)

    def __enter__(self) -> "Basis":
        return self

    def __exit__(self, *error: object) -> None:
        # The file has no name any more; its room on the disk goes with the last reference.
        self._rows = self._rows.new_empty(0, 0)

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Tensor:
        """V itself, wherever it lives."""
        return self._rows[: self._count]

    def append(self, rows: Tensor) -> None:
        """Add rows, from any device."""
        end = self._count + rows.shape[0]
        self._rows[self._count : end] = rows
        self._count = end

    def project_out(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Remove V from rows W, in one pass.

        Args:
            W: Rows (b, n) on the device.

        Returns:
            What is left of W, and the coefficients (b, j) in float64, on the device.
        """
        removed = [W.new_empty(W.shape[0], 0, dtype=torch.float64)]
        for index in self._chunks(torch.arange(self._count)):
            V = self._pick(index)
            c = dots(W, V)
            W = W - c.to(W) @ V
            removed.append(c)
        return W, torch.cat(removed, dim=1)

    def combine(self, coefficients: Tensor) -> Tensor:
        """Return coefficients · V (k, n) on the device; rows that count for nothing are not read.

        Args:
            coefficients: (k, j) on the host.
        """
        k, n = coefficients.shape[0], self._rows.shape[1]
        total: Tensor | None = None
        for index in self._chunks(coefficients.any(0).nonzero()[:, 0]):
            V = self._pick(index)
            chunk_total = coefficients[:, index].to(V, non_blocking=True) @ V
            total = chunk_total if total is None else total.add_(chunk_total)
        if total is None:
            return torch.zeros(k, n, dtype=self._rows.dtype, device=self._device)
        return total

    def rotate(self, Y: Tensor) -> None:
        """Replace V by Yᵀ V, in place.

        A chunk here is a panel of columns: it depends on the same columns of V only.

        Args:
            Y: (j, k) with k ≤ j, on the host.
        """
        j, k = Y.shape
        turn = Y.T.to(self._device, self._rows.dtype)
        width = max(1, CHUNK_BYTES // max(1, j * self._rows.element_size()))
        for start in range(0, self._rows.shape[1], width):
            columns = slice(start, start + width)
            self._rows[:k, columns] = turn @ self._rows[:j, columns].to(self._device)
        self._count = k

    def _chunks(self, index: Tensor) -> Iterator[Tensor]:
        yield from index.split(self._chunk) if index.numel() else ()

    def _pick(self, index: Tensor) -> Tensor:
        """Return these rows (ascending, at least one) on the device."""
        first, last = int(index[0]), int(index[-1]) + 1
        if last - first == index.numel():  # neighbours: no copy where they live on the device
            V = self._rows[first:last]
        else:
            V = self._rows[index.to(self._rows.device, non_blocking=True)]
        return V.to(self._device, non_blocking=True)


def on_device(basis: Place) -> bool:
    """Say whether rows live where they are used; refuse what names no place."""
    if basis is not None and not isinstance(basis, str | os.PathLike):
        raise WrongTypeError(
            f'`eigsh(basis=...)` must be "device", "host" or a folder; got {type(basis).__name__}.'
        )
    return basis is None or basis == "device"


def _in_memory(shape: tuple[int, int], dtype: torch.dtype, *, pinned: bool) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)
    except RuntimeError as error:
        if pinned:  # plain memory copies more slowly, but may suffice where pinned memory does not
            return _in_memory(shape, dtype, pinned=False)
        raise TooLargeError(
            f'`eigsh(basis="host")` needs {_size(shape, dtype)} of memory for {shape[0]} vectors, '
            "which the machine does not give. Lower `max_basis=`, or give a folder: `basis=path`."
        ) from error


def _in_file(
    folder_path: str | os.PathLike[str], shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Return rows in a file that nobody else sees: it has no name, and ends with the process."""
    folder, size = os.fspath(folder_path), math.prod(shape) * dtype.itemsize
    needs = f"`eigsh(basis='{folder}')` needs {_size(shape, dtype)} for {shape[0]} vectors"
    try:
        free = shutil.disk_usage(folder).free
        if size > free:
            raise FileError(
                f"{needs}, and the folder's disk has {free / 2**30:.1f} GiB left. Lower "
                "`max_basis=`, or choose another folder."
            )
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                # Without its room set aside, a disk that fills up later would kill the process.
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            view = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise FileError(
            f"{needs} in a folder that is there and can be written; got: {error}. Make it, choose "
            'another one, or use "device" or "host".'
        ) from error
    return torch.frombuffer(view, dtype=dtype).view(shape)


def _size(shape: tuple[int, int], dtype: torch.dtype) -> str:
    return f"{math.prod(shape) * dtype.itemsize / 2**30:.1f} GiB"


# MINRES takes a column for inconsistent when its residual r has ‖Mr‖ below this part of ‖M‖‖r‖: no
# step can then shorten it. In floating point a least-squares residual gets no further than about
# √eps (measured: 1e-9 to 1e-11), after which x grows without bound. Float32 products are noisier.
_NULL = 2.0**-26
_NULL_ROUNDINGS = 256


class Ending(Enum):
    """Why the iteration of a column ended."""

    REACHED = "the recurrence's residual is small enough"
    CURVATURE = "non-positive curvature"
    OUTSIDE = "the rest lies in the null space"
    BUDGET = "the products are spent"
    STALLED = "the true residual no longer falls"


class Problem:
    """The matrix A + δI with a budget of products, which it counts."""

    def __init__(
        self, operator: InUnits, damping: float, max_products: int, ticker: Ticker
    ) -> None:
        self.operator = operator
        self.spent = 0
        self.eps = torch.finfo(operator.dtype).eps
        self._damping, self._max_products, self._ticker = damping, max_products, ticker

    @property
    def left(self) -> int:
        """Products that may still be spent."""
        return self._max_products - self.spent

    def multiply(self, X: Tensor) -> Tensor:
        """Return (A + δI) X in float64, in the operator's unit."""
        Y = multiply(self.operator, X, "solve", batch=X.shape[1])
        self.spent += X.shape[1]
        self._ticker.tick(self.spent)
        return Y.add_(X, alpha=self._damping / self.operator.unit)

    def multiply_rounded(self, X: Tensor) -> Tensor:
        """Return (A + δI) X for X as it will be handed out, in the operator's dtype."""
        return self.multiply(X.to(self.operator.dtype).to(torch.float64))


class _Columns:
    """Results of all columns, and the numbers of those that still run."""

    def __init__(self, R: Tensor) -> None:
        self.x = torch.zeros_like(R)
        self.endings = [Ending.BUDGET] * R.shape[1]
        self.running = torch.arange(R.shape[1], device=R.device)

    def end(self, which: Tensor, x: Tensor, reason: Ending) -> None:
        """Store the columns in the mask `which` with their reason, without cutting them off."""
        self.x[:, self.running[which]] = x[:, which]
        for number in self.running[which].tolist():
            self.endings[number] = reason


def run_cg(problem: Problem, R: Tensor, targets: Tensor) -> tuple[Tensor, list[Ending]]:
    """Run conjugate gradients from zero until each ‖r‖ is at most its target.

    Args:
        problem: The matrix; one product per column of its budget is left unspent, for the residual
            that certifies it.
        R: Right-hand sides, none of them zero.
        targets: Residual norm to reach, for each column.

    Returns:
        The corrections, and why each column ended.
    """
    columns, reserve = _Columns(R), R.shape[1]
    r, p, x = R.clone(), R.clone(), torch.zeros_like(R)
    rho = (r * r).sum(0)
    while len(columns.running) and problem.left >= len(columns.running) + reserve:
        Mp = problem.multiply(p)
        curvature = (p * Mp).sum(0)
        positive = curvature > problem.eps * p.norm(dim=0) * Mp.norm(dim=0)
        step = torch.where(positive, rho / torch.where(positive, curvature, 1.0), 0.0)
        x, r = x + step * p, r - step * Mp
        before, rho = rho, (r * r).sum(0)
        reached = positive & (rho.sqrt() <= targets)
        columns.end(~positive, x, Ending.CURVATURE)
        columns.end(reached, x, Ending.REACHED)
        go = positive & ~reached
        p = r + p * (rho / before)
        x, r, p, rho, targets = x[:, go], r[:, go], p[:, go], rho[go], targets[go]
        columns.running = columns.running[go]
    columns.x[:, columns.running] = x
    return columns.x, columns.endings


def run_minres(problem: Problem, R: Tensor, targets: Tensor) -> tuple[Tensor, list[Ending]]:
    """Run MINRES from zero until each ‖r‖ is at most its target. See `run_cg`."""
    columns, reserve = _Columns(R), R.shape[1]
    threshold = max(_NULL, _NULL_ROUNDINGS * problem.eps)
    length = R.norm(dim=0)
    x, v = torch.zeros_like(R), R / length
    v_before, w, w_before = (torch.zeros_like(R) for _ in range(3))
    # Rows: β of this step, the last two rotations, φ̄, the largest column norm of T so far.
    zero, one = torch.zeros_like(length), torch.ones_like(length)
    beta, c, s, c_before, s_before, phi, size = zero, one, zero, one, zero, length, zero
    while len(columns.running) and problem.left >= len(columns.running) + reserve:
        u = problem.multiply(v) - beta * v_before
        alpha = (u * v).sum(0)
        u = u - alpha * v
        beta_next = u.norm(dim=0)
        size = torch.maximum(size, (alpha**2 + beta**2 + beta_next**2).sqrt())
        # The two rotations before this one act on the new column (β, α, β_next) of T.
        epsilon, middle = s_before * beta, c_before * beta
        delta, gamma_bar = c * middle + s * alpha, c * alpha - s * middle
        # ‖M r‖ = |φ̄| ‖(γ̄, c β_next)‖ for the residual r before this step.
        null = torch.hypot(gamma_bar, c * beta_next) <= threshold * size
        gamma = torch.hypot(gamma_bar, beta_next)
        gamma = torch.where(null, 1.0, gamma)
        c_before, s_before, c, s = c, s, gamma_bar / gamma, beta_next / gamma
        w, w_before = (v - delta * w - epsilon * w_before) / gamma, w
        x = x + torch.where(null, 0.0, c * phi) * w
        phi = -s * phi
        reached = ~null & (phi.abs() <= targets)
        columns.end(null, x, Ending.OUTSIDE)
        columns.end(reached, x, Ending.REACHED)
        go = ~(null | reached)
        # β_next = 0 ends the Krylov space: then s = 0, φ̄ = 0, and the column has been reached.
        v, v_before, beta = u / torch.where(beta_next > 0, beta_next, 1.0), v, beta_next
        x, v, v_before, w, w_before = (a[:, go] for a in (x, v, v_before, w, w_before))
        beta, c, s, c_before, s_before, phi, size, targets = (
            a[go] for a in (beta, c, s, c_before, s_before, phi, size, targets)
        )
        columns.running = columns.running[go]
    columns.x[:, columns.running] = x
    return columns.x, columns.endings
