"""Products from a model that is linearised once: forward over reverse, traced and cut into stages.

    values   z = f(θ)                 parameters θ, constants, data
    slopes   what Jᵀr leaves behind   r = ∂L/∂z
    push     ż = J v                  v
    pull     d(Jᵀr)[v] + Jᵀu          u = (∇²_z L) ż

The last is the Hessian product. Without the first term it is the Gauss-Newton product, without the
second the residual's. The loss itself is never traced: r and ∇²_z L are its closed forms. The first
two stages run once per batch and the values that they leave are kept; a product is the last two,
with no forward or backward pass of autograd.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from eigenscape.curvature.products.graphs import Curvature, require_tensor_output
from eigenscape.curvature.products.representation import BatchProduct, join_rows, split_rows
from eigenscape.risk import Batch, EmpiricalRisk
from eigenscape.tracing import Staged

_VALUES, _SLOPES, _PUSH, _PULL = range(4)


class Program:
    """The stages for one kind of product, and for all batches of one shape."""

    def __init__(
        self, risk: EmpiricalRisk, batch: Batch, kind: str, name: str, *, compiled: bool = False
    ) -> None:
        """Trace the model on a batch; call it inside `evaluating()`.

        Args:
            risk: The risk.
            batch: An example.
            kind: "hessian", "gauss-newton" or "residual".
            name: The operator's name, for refusals.
            compiled: Compile the stages that each product runs.
        """
        self._kind = kind
        theta, others = _inputs(risk, batch)
        with torch.no_grad():
            z = risk.output(risk.parameters(), batch)
        require_tensor_output(z, name)

        names = list(risk.constants())

        def function(base: Any, r: Any, v: Any, u: Any) -> list[Tensor]:
            parameters, constants = base[: len(theta)], base[len(theta) :]

            def f(*values: Tensor) -> Tensor:
                return _evaluate(risk, batch, names, values, constants)

            return _traced(f, kind, tuple(parameters), r, tuple(v), u)

        # Different tensors: a trace tells inputs apart by their identity.
        r, u = torch.zeros_like(z), torch.zeros_like(z)
        self._staged = Staged(
            function,
            [
                # Copies: forward derivatives need tensors that share no memory, and those that
                # `vector_to_parameters` wrote do.
                [*(t.clone() for t in theta), *others],
                [] if kind == "gauss-newton" else [r],
                [torch.zeros_like(t) for t in theta],
                [] if kind == "residual" else [u],
            ],
            num_fixed=_PUSH,
            num_early=2,  # z and ż
            compiled=compiled,
        )
        self._z, self._dz, *self._results = self._staged.outputs
        self._lasting = self._staged.needs(_PUSH) | self._staged.needs(_PULL)

    def prepare(self, risk: EmpiricalRisk, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Run what does not depend on the vector.

        Args:
            risk: The risk.
            batch: A batch of the shape that was traced.

        Returns:
            The output z, and the values to keep.
        """
        theta, others = _inputs(risk, batch)
        values = self._staged.run(_VALUES, [*theta, *others], {})
        z = values[self._z]
        with risk.inside({}):
            r = [] if self._kind == "gauss-newton" else [risk.loss.output_gradient(z, batch.target)]
        known = {name: values.pop(name) for name in list(values) if name in self._lasting}
        known |= self._staged.run(_SLOPES, r, known, spent=values)
        return z, {name: value for name, value in known.items() if name in self._lasting}

    def push(
        self, columns: Sequence[Tensor], known: dict[str, Tensor], *, batched: bool
    ) -> dict[str, Tensor]:
        """Return what v leads to: J v, see `moved`, and values for `pull`."""
        stacks: frozenset[str] | None = frozenset() if batched else None
        return self._staged.run(_PUSH, columns, known, columns=stacks)

    def moved(self, pushed: dict[str, Tensor]) -> Tensor | None:
        """Take J v, and drop it unless `pull` needs it; None if z depends on no parameter."""
        take = pushed.get if self._dz in self._staged.needs(_PULL) else pushed.pop
        return take(self._dz, None)

    def pull(
        self,
        bent: Sequence[Tensor],
        known: dict[str, Tensor],
        pushed: dict[str, Tensor],
        *,
        batched: bool,
    ) -> list[Tensor | None]:
        """Return the product, one tensor per parameter; None where it is a constant, zero.

        What was pushed is freed on the way.
        """
        stacks = frozenset(pushed) if batched else None
        ready = {name: pushed[name] for name in self._results if name in pushed}
        values = self._staged.run(_PULL, bent, known, columns=stacks, spent=pushed) | ready
        return [values.get(name) for name in self._results]


class LinearisedGraph(BatchProduct):
    """What one batch keeps of the stages that do not depend on the vector."""

    evaluates_model = False

    def __init__(
        self, program: Program, risk: EmpiricalRisk, batch: Batch, curvature: Curvature
    ) -> None:
        """Run those stages; call it inside `evaluating()`."""
        self.program = self._program = program
        self._kind = program._kind
        parameters = risk.parameters()
        self._shapes = list(parameters.values())
        # Forward mode does not know that padding rows of embeddings count as constants.
        every = torch.ones(1, risk.space.size, dtype=torch.bool, device=risk.device)
        free = risk.without_padding(every)
        self._padding = None if free is every else ~free
        with torch.no_grad():
            z, self._known = program.prepare(risk, batch)
            self._at_output = None if self._kind == "residual" else curvature(z, batch)
        theta, others = _inputs(risk, batch)
        shared = {t.untyped_storage().data_ptr() for t in (*theta, *others)}
        kept = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in self._known.values()}
        self.nbytes = sum(s.nbytes() for address, s in kept.items() if address not in shared)
        if self._at_output is not None:  # it holds numbers like the output's
            self.nbytes += z.numel() * z.element_size()

    @torch.no_grad()
    def product(self, rows: Tensor, *, batched: bool) -> Tensor:
        """Multiply the rows."""
        if self._padding is not None:
            rows = rows.masked_fill(self._padding, 0.0)
        columns = split_rows(rows, self._shapes)
        pushed = self._program.push(columns, self._known, batched=batched)
        bent: list[Tensor] = []
        if self._at_output is not None:
            moved = self._program.moved(pushed)
            if moved is None:
                return torch.zeros_like(rows)
            bent = [
                torch.stack([self._at_output(t) for t in moved])
                if batched
                else self._at_output(moved)
            ]
            del moved
        pulled = self._program.pull(bent, self._known, pushed, batched=batched)
        return join_rows(pulled, rows, self._shapes)


_SETTINGS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)


def signature(batch: Batch) -> tuple[object, ...]:
    """Return what a program depends on: the shapes of a batch's tensors, the values of the rest.

    Other objects are told apart by identity: what they hold cannot be compared.
    """
    leaves, structure = pytree.tree_flatten((batch.args, batch.kwargs))
    return (*map(_kind_of, leaves), str(structure))


def has_only_tensors(batch: Batch) -> bool:
    """Tell whether inputs are tensors and plain settings, which a trace can tell apart."""
    leaves, _ = pytree.tree_flatten((batch.args, batch.kwargs))
    return all(
        isinstance(leaf, _SETTINGS) or (isinstance(leaf, Tensor) and leaf.layout is torch.strided)
        for leaf in leaves
    )


def _kind_of(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.layout
    return repr(leaf) if isinstance(leaf, _SETTINGS) else id(leaf)


def _inputs(risk: EmpiricalRisk, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters, and all other tensors that the model is given."""
    constants = list(risk.constants().values())
    leaves = [t for t in pytree.tree_leaves((batch.args, batch.kwargs)) if isinstance(t, Tensor)]
    return list(risk.parameters().values()), [*constants, *leaves]


def _evaluate(
    risk: EmpiricalRisk,
    batch: Batch,
    names: Sequence[str],
    parameters: Sequence[Tensor],
    others: Sequence[Tensor],
) -> Tensor:
    """Call the model with traced tensors in place of its own; `names` are those of constants."""
    state = dict(zip(names, others, strict=False))
    state |= dict(zip(risk.space.names, parameters, strict=True))
    tensors = iter(others[len(names) :])
    leaves, structure = pytree.tree_flatten((batch.args, batch.kwargs))
    inputs = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(inputs, structure)
    output: Tensor = risk.call(state, args, kwargs)
    return output


def _traced(
    f: Any, kind: str, theta: tuple[Tensor, ...], r: Any, v: tuple[Tensor, ...], u: Any
) -> list[Tensor]:
    """Return z, ż and the product."""
    z, dz = torch.func.jvp(f, theta, v)[:2]

    def pullback(slope: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        pulled: tuple[Tensor, ...] = torch.func.vjp(f, *values)[1](slope)
        return pulled

    if kind == "gauss-newton":
        return [z, dz, *pullback(u[0], *theta)]
    if kind == "residual":
        # ż itself is not needed, so it is not traced.
        return [z, z, *torch.func.jvp(lambda *w: pullback(r[0], *w), theta, v)[1]]
    return [z, dz, *torch.func.jvp(pullback, (r[0], *theta), (u[0], *v))[1]]
