"""The truth about a user's function, by plain double backward, and what the library says of it.

Nothing here is taken from the library but what is compared: the loss is the user's own line of code
on the user's own objects, differentiated twice by `torch.autograd.grad`. `torch.func.hessian` would
not do: it is silently wrong for some layers.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import eigenscape as es
from eigenscape.errors import EigenscapeError

# Two exact computations of one product in float64 differ by rounding, some thousand roundings of
# the largest intermediate numbers at most; what is wrong in kind is wrong by 1e-6 and more.
RTOL = 1e-9
# Differences of gradients stand in where PyTorch has no second derivative.
DIFFERENCES_RTOL = 1e-6
MOST_ROWS = 200


@dataclass
class Case:
    """What a user brings, and the same in plain torch.

    Attributes:
        model: The model.
        loss: What the user would pass as the loss.
        data: What the user would pass as the data.
        value: The loss over all data, in plain torch, on the user's own objects.
        output: The model's output for all data, where there is one tensor; for Gauss-Newton.
        of_output: The loss of that output.
        options: Further arguments of `EmpiricalRisk`.
        batch_sizes: Batch sizes to try beside the default.
        layers: Layers to look at; found by default.
        params: The parameters where the model is a function.
        rtol: How far an answer may be off; more than rounding where parts are not float64.
    """

    model: Any
    loss: Any
    data: Any
    value: Callable[[], Tensor] | None = None
    output: Callable[[], Tensor] | None = None
    of_output: Callable[[Tensor], Tensor] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    batch_sizes: tuple[int, ...] = (4,)
    layers: tuple[str, ...] | None = None
    params: Mapping[str, Tensor] | None = None
    rtol: float = RTOL

    def loss_now(self) -> Tensor:
        """Evaluate the user's own line of code."""
        with sdpa_kernel([SDPBackend.MATH]):
            if self.value is not None:
                return self.value()
            assert self.output is not None
            assert self.of_output is not None
            return self.of_output(self.output())

    def named(self) -> dict[str, Tensor]:
        """Return the parameters that are differentiated by default."""
        if self.params is not None:
            return dict(self.params)
        named = dict(self.model.named_parameters())
        return {name: p for name, p in named.items() if p.requires_grad}

    def risk(self, **options: Any) -> es.EmpiricalRisk:
        """Make the risk as the user would."""
        if self.params is not None:
            options = {"params": self.params, **options}
        return es.EmpiricalRisk(self.model, self.loss, self.data, **{**self.options, **options})


# --- the truth ------------------------------------------------------------------------------------


def slopes(of: Tensor, by: Sequence[Tensor], along: Tensor | None = None, **options: Any) -> Tensor:
    """Return a flat vector-Jacobian product; what is not used gives zeros."""
    if not of.requires_grad:
        return torch.cat([torch.zeros_like(p).flatten() for p in by])
    found = torch.autograd.grad(of, list(by), along, materialize_grads=True, **options)
    return torch.cat([part.flatten() for part in found])


def hessian_product(case: Case, params: Sequence[Tensor], v: Tensor) -> Tensor:
    """Return Hv by plain double backward; by differences where PyTorch has none."""
    gradient = slopes(case.loss_now(), params, create_graph=True)
    try:
        return slopes(gradient @ v, params).detach()
    except RuntimeError as error:  # NotImplementedError is one
        if "derivative for" not in str(error):
            raise
        case.rtol = max(case.rtol, DIFFERENCES_RTOL)
        return differenced(case, params, v)


def gauss_newton_product(case: Case, params: Sequence[Tensor], v: Tensor) -> Tensor:
    """Return Jᵀ (∇²_z ℓ) J v, with J formed row by row: no second derivative of the model.

    Of large outputs Jv is the derivative of Jᵀu by u.
    """
    assert case.output is not None
    assert case.of_output is not None
    with sdpa_kernel([SDPBackend.MATH]):
        z = case.output()
        if z.numel() > MOST_ROWS:
            u = torch.zeros_like(z).requires_grad_()
            pulled = slopes(z, params, u, create_graph=True)
            tangent = slopes(pulled @ v, [u])
        else:
            rows = [slopes(entry, params, retain_graph=True) for entry in z.flatten()]
            tangent = torch.stack(rows) @ v
        leaf = z.detach().requires_grad_()
        r = slopes(case.of_output(leaf), [leaf], create_graph=True)
        bent = slopes(r @ tangent, [leaf]).reshape(z.shape)
        return slopes(z, params, bent).detach()


def differenced(case: Case, params: Sequence[Tensor], v: Tensor, step: float = 1e-5) -> Tensor:
    """Return Hv by differences of gradients: where double backward itself is wrong."""
    kept = [p.detach().clone() for p in params]
    ends = []
    for sign in (1.0, -1.0):
        for p, start, piece in zip(params, kept, pieces(v, params), strict=True):
            p.data.copy_(start + sign * step * piece)
        ends.append(slopes(case.loss_now(), params).detach())
    for p, start in zip(params, kept, strict=True):
        p.data.copy_(start)
    return (ends[0] - ends[1]) / (2 * step)


def pieces(v: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat vector into the shapes of parameters."""
    parts = v.split([p.numel() for p in params])
    return [part.reshape(p.shape) for part, p in zip(parts, params, strict=True)]


# --- what the library says ------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What came: a product and how far it is off, or a refusal and its words."""

    error: float | None
    refusal: str = ""


def asked(question: Callable[[], Tensor], truth: Tensor) -> Answer:
    """Ask for a product; raw exceptions pass through."""
    try:
        found = question().detach().double()
    except EigenscapeError as refusal:
        return Answer(None, f"{type(refusal).__name__}: {refusal}")
    size = float(truth.norm())
    error = float((found - truth.double()).norm())
    return Answer(error / size if size > 0 else error)


def direction(size: int, seed: int = 5) -> Tensor:
    """Return a random vector."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def examined(case: Case) -> dict[str, Answer]:
    """Ask for the Hessian, Gauss-Newton, Fisher, layers, blocks and parts, in several batchings."""
    named = case.named()
    params = list(named.values())
    v = direction(sum(p.numel() for p in params)).to(params[0].dtype)
    Hv = hessian_product(case, params, v)
    answers = {"Hessian": asked(lambda: es.Hessian(case.risk()) @ v, Hv)}
    answers["gradient"] = asked(
        lambda: case.risk().gradient(), slopes(case.loss_now(), params).detach()
    )
    answers["linearised"] = asked(
        lambda: es.Hessian(case.risk(), representation="linearised") @ v, Hv
    )
    for size in case.batch_sizes:
        key = f"batch_size={size}"
        answers[key] = asked(lambda s=size: es.Hessian(case.risk(batch_size=s)) @ v, Hv)
    if case.output is not None:
        Gv = gauss_newton_product(case, params, v)
        answers["GaussNewton"] = asked(lambda: es.GaussNewton(case.risk()) @ v, Gv)
        own = isinstance(case.loss, es.CrossEntropy | es.SquaredError | es.BinaryCrossEntropy)
        if own:
            answers["Fisher"] = asked(lambda: es.Fisher(case.risk()) @ v, Gv)
    return answers | parts(case, named)


def parts(case: Case, named: Mapping[str, Tensor]) -> dict[str, Answer]:
    """Ask for blocks: of the first parameter, of each layer, and of half of the parameters."""
    answers: dict[str, Answer] = {}
    names = list(named)
    if len(names) > 1 and case.params is None and "params" not in case.options:
        half = names[::2]
        own = [named[name] for name in half]
        w = direction(sum(p.numel() for p in own)).to(own[0].dtype)
        Bw = hessian_product(case, own, w)
        answers["params="] = asked(lambda: es.Hessian(case.risk(params=half)) @ w, Bw)
    for name in [name for name in names if named[name].numel()][:1]:
        w = direction(named[name].numel()).to(named[name].dtype)
        Bw = hessian_product(case, [named[name]], w)

        def block(name: str = name, w: Tensor = w) -> Tensor:
            H = es.Hessian(case.risk())
            return H[H.space.block(name)] @ w

        answers[f"H[{name}]"] = asked(block, Bw)
    if isinstance(case.model, nn.Module):
        for layer in case.layers if case.layers is not None else layers_of(case.model, named):
            own = [p for name, p in named.items() if name.rpartition(".")[0] == layer]
            w = direction(sum(p.numel() for p in own)).to(own[0].dtype)
            Bw = hessian_product(case, own, w)
            answers[f"LayerHessian({layer})"] = asked(
                lambda layer=layer, w=w: es.LayerHessian(case.risk(), layer) @ w, Bw
            )
    return answers


def layers_of(model: nn.Module, named: Mapping[str, Tensor]) -> list[str]:
    """Name the first and the last layer that have parameters of their own."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding)
    found = [
        name
        for name, part in model.named_modules()
        if name and isinstance(part, kinds) and any(k.rpartition(".")[0] == name for k in named)
    ]
    return list(dict.fromkeys([*found[:1], *found[-1:]]))


# --- what is expected -----------------------------------------------------------------------------

Maker = Callable[[], Case]
Named = tuple[str, ...]


def case_list() -> tuple[dict[str, tuple[Maker, Named]], Callable[..., Callable[[Maker], Maker]]]:
    """Return a list of cases and the decorator that adds to it.

    The decorator takes the names, or the beginnings of names, of the answers that are refused, of
    `examined`; all others are given. "all" are the matrices of all parameters: some layers and
    blocks may lie where they can be told.
    """
    listed: dict[str, tuple[Maker, Named]] = {}

    def case(*refused: str) -> Callable[[Maker], Maker]:
        def add(maker: Maker) -> Maker:
            listed[maker.__name__] = maker, refused
            return maker

        return add

    return listed, case


def unexpected(maker: Maker, refused: Named) -> dict[str, str]:
    """Return what is wrong, answered although it cannot be told, or refused without need."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ours, and of PyTorch where it is called alone
        case = maker()
        answers = examined(case)
    for name, answer in answers.items():
        is_part = name == "gradient" or name.startswith(("H[", "LayerHessian"))
        must = name.startswith(refused) if refused else False
        must |= "all" in refused and not is_part
        may = must or ("all" in refused and name != "gradient")
        if answer.error is not None and not answer.error <= case.rtol:
            found[name] = f"off by {answer.error:.2g}"
        elif must and not answer.refusal:
            found[name] = "answered"
        elif answer.refusal and not may:
            found[name] = answer.refusal
    return found
