"""Products with curvature matrices from autograd graphs that are built once per batch and kept.

For one batch with parameters θ, output z, sum of loss terms L and r = ∂L/∂z, three graphs serve all
matrices of this room, each by reverse mode twice (exact for every layer that PyTorch can
differentiate twice; several compositions with forward mode are not, see
`docs/concepts/products.md`):

    Hessian    g(θ) = ∂L/∂θ              Hv = ∂⟨g, v⟩/∂θ
    H − G      g(θ) = Jᵀr with r fixed    (H − G)v = ∂⟨g, v⟩/∂θ
    Jacobian   q(u) = Jᵀu                Jv = ∂⟨q, v⟩/∂u, then Jᵀ(B Jv) for any B at the output

A kept graph costs the memory of its activations and saves the forward and first backward pass of
every later product. Letters: K rows at a time, n parameters.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eigenscape.curvature.products.representation import BatchProduct, join_rows, split_rows
from eigenscape.errors import UnsupportedModelError, WrongTypeError
from eigenscape.risk import Batch, EmpiricalRisk, OutputProduct

Curvature = Callable[[Tensor, Batch], OutputProduct]


class HessianGraph(BatchProduct):
    """The graph of a batch's gradient; with `fixed_output_gradient`, of Jᵀr with r held fixed."""

    def __init__(
        self, risk: EmpiricalRisk, batch: Batch, *, fixed_output_gradient: bool = False
    ) -> None:
        with torch.enable_grad(), risk.evaluating():
            params = risk.leaves()
            self._leaves = list(params.values())
            if fixed_output_gradient:
                head = output_of(risk, params, batch, "Residual")
                with risk.inside({}):
                    seed = risk.loss.output_gradient(head, batch.target)
            else:
                head, seed = risk.total(params, batch)[0], None
            self._gradients = gradients(head, self._leaves, seed, create_graph=True)
        self.num_nodes = count_nodes(self._gradients)

    def product(self, rows: Tensor, *, batched: bool) -> Tensor:
        """Multiply rows (k, n)."""
        columns = split_rows(rows, self._leaves)
        return join_rows(
            gradients(self._gradients, self._leaves, columns, batched=batched), rows, self._leaves
        )


class JacobianGraph(BatchProduct):
    """The graphs of z and of u ↦ Jᵀu, with a matrix B at the output: products with JᵀBJ."""

    def __init__(self, risk: EmpiricalRisk, batch: Batch, curvature: Curvature, name: str) -> None:
        with torch.enable_grad(), risk.evaluating():
            params = risk.leaves()
            self._leaves = list(params.values())
            self._output = output_of(risk, params, batch, name)
            self._u = _random_like(self._output)
            self._pullback = gradients(self._output, self._leaves, self._u, create_graph=True)
        self.num_nodes = count_nodes(self._pullback)
        with torch.no_grad():
            self._at_output = curvature(self._output.detach(), batch)

    def product(self, rows: Tensor, *, batched: bool) -> Tensor:
        """Multiply rows (k, n)."""
        columns = split_rows(rows, self._leaves)
        (pushed,) = gradients(self._pullback, [self._u], columns, batched=batched)
        if pushed is None:
            return torch.zeros_like(rows)
        bent = [self._at_output(t) for t in (pushed if batched else [pushed])]
        pulled = torch.stack(bent) if batched else bent[0]
        return join_rows(
            gradients(self._output, self._leaves, pulled, batched=batched), rows, self._leaves
        )


def _random_like(tensor: Tensor) -> Tensor:
    """Return a leaf to differentiate linear functions by, always the same.

    Its value does not matter in exact arithmetic, but it must not be zero: the backward pass of
    `torch.logcumsumexp` takes logarithms of what comes to it, and has no derivative there.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(tensor.shape, generator=generator)
    return drawn.to(tensor.device, tensor.dtype).requires_grad_()


def gradients(
    heads: Tensor | Sequence[Tensor | None],
    leaves: Sequence[Tensor],
    seeds: Tensor | Sequence[Tensor] | None,
    *,
    create_graph: bool = False,
    batched: bool = False,
) -> list[Tensor | None]:
    """Call `autograd.grad` on the heads that have a graph; None where nothing depends on a leaf."""
    many = [heads] if isinstance(heads, Tensor) else heads
    each = [seeds] * len(many) if seeds is None or isinstance(seeds, Tensor) else seeds
    live = [(h, s) for h, s in zip(many, each, strict=True) if h is not None and h.requires_grad]
    if not live:
        return [None] * len(leaves)
    slopes = torch.autograd.grad(
        [head for head, _ in live],
        leaves,
        [seed for _, seed in live],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
        is_grads_batched=batched,
    )
    return list(slopes)


def require_tensor_output(output: object, name: str) -> None:
    """Refuse a model whose output is not one tensor."""
    if not isinstance(output, Tensor):
        raise WrongTypeError(
            f"`{name}` needs a model that returns one tensor (or an object with `.logits`); got "
            f"{type(output).__name__}. Wrap the model, or use `Hessian`."
        )


def reached_by_loss(total: Tensor, params: dict[str, Tensor]) -> str | None:
    """Name a parameter that the loss of a detached output depends on; None where there is none."""
    if not total.requires_grad:
        return None
    slopes = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    return next((key for key, s in zip(params, slopes, strict=True) if s is not None), None)


def output_of(risk: EmpiricalRisk, params: dict[str, Tensor], batch: Batch, name: str) -> Tensor:
    """Evaluate a model; refuse a loss that depends on the parameters beside its output.

    Args:
        risk: The risk.
        params: The parameters to differentiate by.
        batch: The batch.
        name: The operator's name.

    Returns:
        The model's output, one tensor.

    Raises:
        UnsupportedModelError: If the loss does: then the Hessian is no sum of J^T (d2l/dz2) J and a
            rest.
    """
    output: Tensor
    output, total, _ = risk.output_and_total(params, batch, detached=True)
    require_tensor_output(output, name)
    if (reached := reached_by_loss(total, params)) is not None:
        raise UnsupportedModelError(
            f"`{name}` needs a loss that depends on the parameters through the model's output "
            f"alone; yours also reaches '{reached}' directly (a penalty inside the loss?). Use "
            "`Hessian`, which differentiates it all, or add the penalty's matrix yourself, e.g. "
            f"`{name}(risk).shift(weight_decay)`."
        )
    return output


def count_nodes(heads: Sequence[Tensor | None]) -> int:
    """Count the operations in the autograd graph that leads to some tensors.

    Args:
        heads: The tensors.

    Returns:
        The number of nodes, leaves included.
    """
    nodes = {h.grad_fn for h in heads if h is not None and h.grad_fn is not None}
    waiting = list(nodes)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in nodes:
                nodes.add(node)
                waiting.append(node)
    return len(nodes)
