"""The truth of a case: plain double backward in float64, and how far rounding may take an answer.

Columns of the dense matrices are formed only as far as they are asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.fuzz.networks import Case, Problem

# Two exact computations in float64 differ by rounding of the largest intermediate numbers, some
# thousand times 2⁻⁵³ relative to them; what is wrong in kind is wrong by 1e-6 and more. The second
# is for answers that are zero, relative to the gradient and the loss.
RTOL, ATOL = 1e-9, 1e-13
# In float32 the same products by plain double backward say what rounding does here; a second exact
# way to compute them may meet it a few times over.
ROUNDINGS, EPS = 64, 2.0**-23


class Truth:
    """Products of the matrices of a case, without the library.

    Attributes:
        problem: What is differentiated.
    """

    def __init__(self, case: Case, problem: Problem) -> None:
        self.problem, self._case = problem, case
        self._mode = case.options.get("mode", "eval")
        for p in problem.named().values():
            p.requires_grad_(True)

    def _params(self, names: Sequence[str]) -> list[Tensor]:
        named = self.problem.named()
        return [named[name] for name in names]

    def _sums(self) -> tuple[Tensor, float]:
        total, count = torch.zeros(()), 0.0
        for call in self.problem.calls:
            part, number = self.problem.terms(self.problem.outputs(call), call.target)
            total, count = total + part, count + number
        return total, count

    def _loss(self) -> Tensor:
        with safe_kernels(), self.problem.in_mode(self._mode):
            total, count = self._sums()
        return total if self._case.options.get("reduction") == "sum" else total / count

    def value(self) -> Tensor:
        with torch.enable_grad():
            return self._loss().detach()

    def gradient(self, names: Sequence[str]) -> Tensor:
        params = self._params(names)
        return slopes(self._loss(), params).detach()

    def hessian(self, names: Sequence[str], X: Tensor) -> Tensor:
        """Return HX, by double backward, column by column."""
        params = self._params(names)
        gradient = slopes(self._loss(), params, create_graph=True)
        columns = [slopes(gradient @ x.to(gradient), params, retain_graph=True) for x in X.T]
        return torch.stack(columns, 1).detach()

    def gauss_newton(self, names: Sequence[str], X: Tensor) -> Tensor:
        """Return Jᵀ (∇²_z ℓ) J X; J by double backward too: Jv is the derivative of Jᵀu by u."""
        params = self._params(names)
        total, count = torch.zeros(sum(p.numel() for p in params), X.shape[1]).to(X), 0.0
        for call in self.problem.calls:
            with safe_kernels(), self.problem.in_mode(self._mode):
                out = self.problem.outputs(call)
            z = (
                out
                if isinstance(out, Tensor)
                else out["logits"]
                if isinstance(out, dict)
                else out.logits
            )
            leaf = z.detach().requires_grad_()
            part, number = self.problem.terms(self._wrapped(leaf), call.target)
            r = slopes(part, [leaf], create_graph=True)
            u = torch.zeros_like(z).requires_grad_()
            pulled = slopes(z, params, u, create_graph=True)
            for k, x in enumerate(X.T):
                tangent = slopes(pulled @ x.to(pulled), [u], retain_graph=True)
                bent = slopes(r @ tangent, [leaf], retain_graph=True)
                total[:, k] += slopes(z, params, bent.reshape(z.shape), retain_graph=True)
            count += number
        return (total if self._case.options.get("reduction") == "sum" else total / count).detach()

    def _wrapped(self, z: Tensor) -> object:
        return {"logits": z} if self._case.objective.output in ("logits", "object") else z


@contextmanager
def safe_kernels() -> Iterator[None]:
    """Avoid kernels of PyTorch 2.13 without a second derivative, or that crash the process."""
    plain = F.group_norm
    F.group_norm = group_norm
    try:
        with sdpa_kernel([SDPBackend.MATH]):
            yield
    finally:
        F.group_norm = plain


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise by the formula.

    PyTorch's own crashes in its backward pass on a CPU where channels lie beside each other, and
    refuses a single sample with one value per group, though samples do not meet in it.
    """
    h = x.reshape(len(x), num_groups, -1)
    h = h - h.mean(-1, keepdim=True)
    h = (h / (h.square().mean(-1, keepdim=True) + eps).sqrt()).view(x.shape)
    shape = (1, -1, *[1] * (x.ndim - 2))
    h = h if weight is None else h * weight.view(shape)
    return h if bias is None else h + bias.view(shape)


def slopes(
    of: Tensor, by: Sequence[Tensor], along: Tensor | None = None, **settings: bool
) -> Tensor:
    """Return a flat vector-Jacobian product; what is not used gives zeros."""
    if not of.requires_grad:
        return torch.cat([torch.zeros_like(p).flatten() for p in by])
    found = torch.autograd.grad(of, list(by), along, materialize_grads=True, **settings)
    return torch.cat([part.flatten() for part in found])
