"""Other people's products, each as a function of a flat vector; imported only when asked for.

Each takes a copy of the model, so that none sees what another left in it, and the data as they are
cut: in one batch unless `Problem.cut` was called.
"""

import copy
import time
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
    """Double backward, the graphs of the gradient built once."""
    model = copy.deepcopy(problem.model)
    params = chosen(model, names)
    slopes = [
        torch.autograd.grad(_share(problem, model, batch), params, create_graph=True)
        for batch in problem.batches()
    ]

    def product(v: Tensor) -> Tensor:
        parts = _split(v, params)
        return sum(
            _flat(torch.autograd.grad(slope, params, parts, retain_graph=True)) for slope in slopes
        )

    return product


def autograd_fresh(problem: Problem) -> Product:
    """Double backward from the start each time."""
    model = copy.deepcopy(problem.model)
    params = list(model.parameters())

    def once(batch: tuple[Tensor, Tensor], parts: list[Tensor]) -> Tensor:
        slopes = torch.autograd.grad(_share(problem, model, batch), params, create_graph=True)
        return _flat(torch.autograd.grad(slopes, params, parts))

    return lambda v: sum(once(batch, _split(v, params)) for batch in problem.batches())


def masked(problem: Problem, product: Product, names: tuple[str, ...]) -> Product:
    """The block of some parameters by a product with everything, cut out of it."""
    sizes = {name: p.numel() for name, p in problem.model.named_parameters()}
    inside = torch.cat(
        [torch.full((size,), name in names, device=problem.device) for name, size in sizes.items()]
    )

    def restricted(v: Tensor) -> Tensor:
        whole = v.new_zeros(len(inside))
        whole[inside] = v
        return product(whole)[inside]

    return restricted


def _share(problem: Problem, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return what one batch adds to the mean loss."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="sum") / problem.y.numel()


def curvlinops_operator(
    problem: Problem, kind: str = "Hessian", names: tuple[str, ...] = ()
) -> Any:
    import curvlinops

    model = copy.deepcopy(problem.model)
    operator = getattr(curvlinops, f"{kind}LinearOperator")
    params = chosen(model, names)
    return operator(
        model, nn.CrossEntropyLoss(), params, problem.batches(), check_deterministic=False
    )


def curvlinops_product(problem: Problem, *options: Any) -> Product:
    operator = curvlinops_operator(problem, *options)
    return lambda v: (operator @ v).detach()


def pyhessian_object(problem: Problem, *, loader: bool = False, names: tuple[str, ...] = ()) -> Any:
    from pyhessian import hessian

    data = {"dataloader": problem.batches()} if loader else {"data": (problem.x, problem.y)}
    model = copy.deepcopy(problem.model)
    for name, param in model.named_parameters():
        param.requires_grad_(not names or name in names)  # it knows no other way to choose
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
        problem.batches(),
        he.supervised_loss(nn.CrossEntropyLoss()),
        param_filter=he.match_names(*names) if names else None,
    )


def eigenthings_product(problem: Problem, names: tuple[str, ...] = ()) -> Product:
    operator = eigenthings_operator(problem, names)
    return lambda v: operator.matvec(v).detach()


def eigenthings_ggn_operator(problem: Problem) -> Any:
    import hessian_eigenthings as he

    return he.GGNOperator(
        copy.deepcopy(problem.model),
        problem.batches(),
        he.supervised_forward,
        he.supervised_loss_of_output(nn.CrossEntropyLoss()),
    )


def eigenthings_ggn(problem: Problem) -> Product:
    operator = eigenthings_ggn_operator(problem)
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

    def __init__(self, most: int = 10**6, seconds: float = 1e9) -> None:
        self.count, self._most = 0, most
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, counting."""

        def call(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count > self._most or time.monotonic() > self._end:
                raise TimeoutError(f"stopped after {self._seconds:g} s, {self.count} products")
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
