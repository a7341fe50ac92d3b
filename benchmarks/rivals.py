"""Other people's products, each as a function of a flat vector; imported only when asked for.

Each takes a copy of the model, so that none sees what another left in it, and all of the data as
one batch.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from problems import Problem
from torch import Tensor, nn

Product = Callable[[Tensor], Tensor]


def _flat(parts: Any) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def _split(v: Tensor, params: list[Tensor]) -> list[Tensor]:
    pieces = v.split([p.numel() for p in params])
    return [piece.view_as(p) for piece, p in zip(pieces, params, strict=True)]


def chosen(model: nn.Module, names: tuple[str, ...]) -> list[nn.Parameter]:
    """Return the parameters with these names, or all."""
    named = dict(model.named_parameters())
    return [named[name] for name in (names or named)]


def autograd_kept(problem: Problem, names: tuple[str, ...] = ()) -> Product:
    """Double backward, the graph of the gradient built once."""
    model = copy.deepcopy(problem.model)
    params = chosen(model, names)
    loss = F.cross_entropy(model(problem.x), problem.y)
    slopes = torch.autograd.grad(loss, params, create_graph=True)
    return lambda v: _flat(
        torch.autograd.grad(slopes, params, _split(v, params), retain_graph=True)
    )


def autograd_fresh(problem: Problem) -> Product:
    """Double backward from the start each time."""
    model = copy.deepcopy(problem.model)
    params = list(model.parameters())

    def product(v: Tensor) -> Tensor:
        loss = F.cross_entropy(model(problem.x), problem.y)
        slopes = torch.autograd.grad(loss, params, create_graph=True)
        return _flat(torch.autograd.grad(slopes, params, _split(v, params)))

    return product


def curvlinops_operator(
    problem: Problem, kind: str = "Hessian", names: tuple[str, ...] = ()
) -> Any:
    import curvlinops

    model = copy.deepcopy(problem.model)
    operator = getattr(curvlinops, f"{kind}LinearOperator")
    data = [(problem.x, problem.y)]
    params = chosen(model, names)
    return operator(model, nn.CrossEntropyLoss(), params, data, check_deterministic=False)


def curvlinops_product(problem: Problem, *options: Any) -> Product:
    operator = curvlinops_operator(problem, *options)
    return lambda v: (operator @ v).detach()


def pyhessian_object(problem: Problem, *, loader: bool = False) -> Any:
    from pyhessian import hessian

    batch = (problem.x, problem.y)
    data = {"dataloader": [batch]} if loader else {"data": batch}
    model = copy.deepcopy(problem.model)
    on_gpu = problem.device.type == "cuda"
    return hessian(model, nn.CrossEntropyLoss(), **data, cuda=on_gpu)


def pyhessian_batch(problem: Problem) -> Product:
    from pyhessian import hessian_vector_product

    h = pyhessian_object(problem)
    return lambda v: _flat(hessian_vector_product(h.gradsH, h.params, _split(v, h.params)))


def pyhessian_loader(problem: Problem) -> Product:
    h = pyhessian_object(problem, loader=True)
    return lambda v: _flat(h.dataloader_hv_product(_split(v, h.params))[1])


def eigenthings_operator(problem: Problem, names: tuple[str, ...] = ()) -> Any:
    import hessian_eigenthings as he

    return he.HessianOperator(
        copy.deepcopy(problem.model),
        [(problem.x, problem.y)],
        he.supervised_loss(nn.CrossEntropyLoss()),
        param_filter=he.match_names(*names) if names else None,
    )


def eigenthings_product(problem: Problem, names: tuple[str, ...] = ()) -> Product:
    operator = eigenthings_operator(problem, names)
    return lambda v: operator.matvec(v).detach()


def eigenthings_ggn(problem: Problem) -> Product:
    import hessian_eigenthings as he

    operator = he.GGNOperator(
        copy.deepcopy(problem.model),
        [(problem.x, problem.y)],
        he.supervised_forward,
        he.supervised_loss_of_output(nn.CrossEntropyLoss()),
    )
    return lambda v: operator.matvec(v).detach()


def backpack_product(problem: Problem) -> Product:
    from backpack.hessianfree.hvp import hessian_vector_product

    model = copy.deepcopy(problem.model)
    params = list(model.parameters())

    def product(v: Tensor) -> Tensor:
        loss = F.cross_entropy(model(problem.x), problem.y)
        return _flat(hessian_vector_product(loss, params, _split(v, params)))

    return product


class Counter:
    """Counts calls of a function, and stops what never ends."""

    def __init__(self, most: int = 1000) -> None:
        self.count, self._most = 0, most

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, counting."""

        def call(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count > self._most:
                raise RuntimeError(f"stopped after {self._most} products")
            return function(*args, **options)

        return call

    @contextmanager
    def watching(self, owner: Any, name: str) -> Iterator[None]:
        """Count the calls of an attribute of a module or an object."""
        original = getattr(owner, name)
        setattr(owner, name, self.counted(original))
        try:
            yield
        finally:
            setattr(owner, name, original)
