"""Networks with their losses and data, all from one integer seed.

`draw(seed)` gives what a user brings, and the same once more in float64 with nothing hidden from
autograd, for the truth. A case without a defect must be answered, whatever it is made of.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.fuzz import objectives, stages, stems
from tests.fuzz.draws import NO_SECOND_DERIVATIVE, Draw, Stem, activation, randomise
from tests.fuzz.objectives import Objective, Terms

MOST_PARAMETERS = 130
SAMPLES = (5, 6, 7, 9, 11)


@dataclass
class Call:
    """One call of the model: positional inputs, inputs by name, and the target."""

    inputs: tuple[Tensor, ...]
    named: dict[str, Tensor]
    target: Tensor | None


@dataclass
class Problem:
    """A model, a loss and data, and what they mean in plain torch.

    Attributes:
        model: An `nn.Module` or a function of parameters and inputs.
        params: The parameters of a function, else None.
        loss: What the user passes as the loss.
        data: What the user passes as the data.
        calls: All data, as plain calls of the model.
        terms: The sum of the loss terms of a call's output, and their number.
    """

    model: Any
    params: dict[str, Tensor] | None
    loss: Any
    data: Any
    calls: list[Call]
    terms: Terms

    def named(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters()) if self.params is None else dict(self.params)

    def outputs(self, call: Call) -> Any:
        first = () if self.params is None else (self.params,)
        return self.model(*first, *call.inputs, **call.named)

    @contextmanager
    def in_mode(self, mode: str) -> Iterator[None]:
        """Evaluate as the risk does, and put the flags back."""
        modules = list(self.model.modules()) if self.params is None else []
        flags = [m.training for m in modules]
        for m in modules:
            m.training = m.training and mode == "keep"
        yield
        for m, flag in zip(modules, flags, strict=True):
            m.training = flag


@dataclass
class Case:
    """What follows from a seed.

    Attributes:
        seed: The seed.
        user: What the user brings.
        options: Further arguments of `EmpiricalRisk`.
        tags: What it is made of, in words.
        objective: The loss.
        names: Parameters that are differentiated.
        defect: Why a refusal is right; empty in a healthy case.
        has_truth: False where no answer is right, since the function is random.
        is_by_reference: Whether data are the user's own tensors, so that changes of them count.
        default_dtype: PyTorch's default while the library works.
    """

    seed: int
    user: Problem
    options: dict[str, Any]
    tags: list[str]
    objective: Objective
    names: set[str]
    defect: str
    has_truth: bool = True
    is_by_reference: bool = False
    dtype: torch.dtype = torch.float64
    default_dtype: torch.dtype = torch.float64
    draw: Draw = field(repr=False, default=None)  # type: ignore[assignment]

    @property
    def is_healthy(self) -> bool:
        return not self.defect

    @property
    def draws_numbers(self) -> bool:
        """Whether what the user brought takes numbers from PyTorch's generator by itself."""
        return not self.has_truth or isinstance(self.user.data, DataLoader)

    @cached_property
    def truth(self) -> Problem:
        return _build(self.seed, honest=True).user

    @cached_property
    def rounded(self) -> Problem:
        """The truth in the dtype of the user's model: what rounding alone does."""
        return _build(self.seed, honest=True, is_rounded=True).user

    def describe(self) -> str:
        settings = ", ".join(f"{k}={v}" for k, v in self.options.items() if k != "params")
        kind = str(self.dtype).removeprefix("torch.")
        return (
            f"{' | '.join(self.tags)} | {self.objective.name} | {settings or 'defaults'} | {kind}"
        )


def draw(seed: int) -> Case:
    """Draw what a user may bring."""
    return _build(seed, honest=False)


# --- models ---


class Net(nn.Module):
    """A stem, stages and a head. What it returns and keeps is set by the loss."""

    def __init__(self, stem: Stem, stages: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.stages, self.head = stem.module, nn.ModuleList(stages), head
        self.layout, self.returns, self.keeps = stem.layout, "tensor", False
        self.scale = 1.0

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Any:
        h = self.stem(x) if extra is None else self.stem(x, extra)
        if self.layout == "pixels":
            h = h.movedim(1, -1)
        for stage in self.stages:
            h = stage(h)
        if self.keeps:
            self.kept = h
        z = self.head(h)
        z = z if self.scale == 1.0 else z * self.scale
        if self.layout == "pixels":
            z = z.movedim(-1, 1)
        if self.returns == "dict":
            return {"prediction": z, "hidden": h}
        if self.returns == "tuple":
            return z, h
        if self.returns == "logits":
            return {"logits": z, "hidden": h}
        return Output(z, h) if self.returns == "object" else z


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


def _function(
    d: Draw,
) -> tuple[Callable[..., Tensor], dict[str, Tensor], tuple[Tensor, ...], str]:
    """Draw a pure function of a dict of parameters; also its inputs and defect."""
    i, h, c = d.random.sample((3, 5, 6, 7), 3)
    act = activation(d).to(d.dtype).eval()
    sizes = {"W": (h, i), "gain": (), "V": (c, h)}
    params = {name: (0.7 * d.normal(*size).float()).to(d.dtype) for name, size in sizes.items()}
    bends = d.chance(0.5)

    def function(p: dict[str, Tensor], x: Tensor) -> Tensor:
        hidden = act(x @ p["W"].T * p["gain"])
        hidden = hidden * torch.sigmoid(hidden @ p["W"]).sum(-1, keepdim=True) if bends else hidden
        return hidden @ p["V"].T

    for p in act.parameters():
        p.requires_grad_(False)
    defect = NO_SECOND_DERIVATIVE if isinstance(act, nn.Hardsigmoid) else ""
    return function, params, (d.normal(d.pick(SAMPLES), i),), defect


def _network(d: Draw) -> tuple[Net, Stem, list[str], list[str]]:
    """Draw a network of few parameters; also its tags and defects."""
    while True:
        stem = d.pick(stems.STEMS)(d, d.pick(SAMPLES))
        number = d.pick((0, 1, 1, 2, 2, 3))
        spoilt = d.pick(range(number + 1)) if d.chance(0.2) else None
        parts, width = [], stem.width
        for place in range(number + 1):
            if place < number:
                parts.append(d.pick(stages.HEALTHY)(d, width))
            elif spoilt is None:
                break
            if place == spoilt:
                parts[place:] = [d.pick(stages.DEFECTIVE)(d, width)]
            width = parts[-1].width
        c = d.pick((3, 5, 6))
        head: nn.Module = nn.Linear(width, c, bias=d.chance(0.8))
        ties = isinstance(stem.module, stems.Tokens) and width == stem.width and d.chance(0.5)
        if ties:
            head = nn.Linear(width, stem.module.embed.num_embeddings, bias=False)
            head.weight = stem.module.embed.weight
        net = Net(stem, [part.module for part in parts], head)
        if not _fits(stem):
            continue
        if sum(p.numel() for p in net.parameters()) <= MOST_PARAMETERS:
            break
    randomise(d, net)
    tags = [*stem.tags, *(tag for part in parts for tag in part.tags)]
    defects = [part.defect for part in (stem, *parts) if part.defect]
    if any(isinstance(module, nn.Hardsigmoid) for module in net.modules()):
        defects.append(NO_SECOND_DERIVATIVE)
    if ties and stem.module.padding is not None:
        defects.append("half a constant")  # the row of padding is one in lookups alone
    return net, stem, [*tags, "tied head"] if ties else tags, defects


def _fits(stem: Stem) -> bool:
    """Tell whether pooling leaves anything of small images."""
    inputs = [x.float() if x.is_floating_point() else x for x in stem.inputs]
    try:
        with torch.no_grad():
            copy.deepcopy(stem.module).float().eval()(*inputs)
    except (RuntimeError, ValueError):
        return False
    return True


# --- data ---


class Items(Dataset[Any]):
    """A data set of the user's own."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)


def _cut(d: Draw, n: int) -> list[tuple[int, int]]:
    """Cut samples into batches of unequal size."""
    places, start = [], 0
    while start < n:
        stop = min(n, start + d.pick((1, 2, 3, 5)))
        places.append((start, stop))
        start = stop
    return places


def _package(
    d: Draw, inputs: tuple[Tensor, ...], dims: tuple[int, ...], y: Tensor | None, flags: set[str]
) -> tuple[Any, list[Call], str]:
    """Give data a form that users give them; also the same as plain calls, and its name."""
    n = inputs[0].shape[dims[0]]
    kinds = ["tuple", "tuple", "list"]
    if not any(dims):
        kinds += ["dict", "dicts", "TensorDataset", "Dataset", "loader"]
        kinds += ["shuffled"] if "mixes" not in flags else []
    if "one target" in flags:
        kinds = ["tuple", "dict"][: 1 if any(dims) else 2]
    if y is None and len(inputs) > 1:
        kinds = ["dict"]
    if "function" in flags:
        kinds = [kind for kind in kinds if kind not in ("dict", "dicts")]
    kind = "lengths" if "ragged" in flags and kinds != ["dict"] else d.pick(kinds)
    tensors = inputs if y is None else (*inputs, y)
    whole = [Call(inputs, {}, y)]
    named = dict(zip(("x", "extra"), inputs, strict=False))
    labels = {} if y is None else {"labels": y}
    if kind == "tuple":
        return (inputs[0] if y is None and d.chance(0.5) else tensors), whole, kind
    if kind == "dict":
        return {**named, **labels}, [Call((), named, y)], kind
    if kind == "TensorDataset":
        return TensorDataset(*tensors), whole, kind
    if kind == "Dataset":
        return Items(*tensors), whole, kind
    size = d.pick((2, 3, 5))
    if kind == "shuffled":
        return DataLoader(TensorDataset(*tensors), size, shuffle=True), whole, kind
    cuts = _cut(d, n)
    if kind == "loader":
        cuts = [(a, min(n, a + size)) for a in range(0, n, size)]
    calls = []
    for a, b in cuts:
        xs = tuple(t.narrow(dim, a, b - a) for t, dim in zip(inputs, dims, strict=True))
        part = None if y is None else y[a:b]
        if kind == "lengths":
            t = d.pick(range(2, inputs[0].shape[1] + 1))
            xs = tuple(x[:, :t] for x in xs)
            part = part[:, :t] if part is not None and "positions" in flags else part
        calls.append(Call(tuple(x.clone() for x in xs), {}, None if part is None else part.clone()))
    if kind == "loader":
        return DataLoader(Items(*tensors), size), calls, kind
    if kind == "dicts":
        for call in calls:
            call.named, call.inputs = dict(zip(("x", "extra"), call.inputs, strict=False)), ()
        return (
            [{**c.named, **({} if c.target is None else {"labels": c.target})} for c in calls],
            calls,
            kind,
        )
    return [(*c.inputs, *(() if c.target is None else (c.target,))) for c in calls], calls, kind


# --- all together ---


def _random_in_training(net: nn.Module) -> bool:
    return any(
        (isinstance(m, nn.Dropout) and m.p > 0)
        or (isinstance(m, nn.MultiheadAttention) and m.dropout > 0)
        or isinstance(m, nn.RReLU | stages.Dropped)
        for m in net.modules()
    )


def _modes(d: Draw, net: nn.Module, options: dict[str, Any], defects: list[str]) -> bool:
    """Draw the flags of the modules and the mode; return whether the function is random."""
    way = d.pick(("train", "eval", "keep eval", "keep train"))
    if any(type(m).__name__ == "_SpectralNorm" for m in net.modules()):
        way = way.replace("train", "eval")  # in training it moves its buffers in each call
    net.train(way.endswith("train"))
    if way.startswith("keep"):
        options["mode"] = "keep"
    is_random = "random" in defects
    while "random in training" in defects:
        defects.remove("random in training")
    if way == "keep train":
        if _random_in_training(net):
            defects.append("random")
            is_random = True
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules()):
            defects.append("mixes")
    return is_random


def _freeze(d: Draw, net: Net, options: dict[str, Any]) -> set[str]:
    """Draw which parameters count, and give some of them a gradient of their own."""
    named = list(net.named_parameters())
    for number, (_, p) in enumerate(named):
        if d.chance(0.3):
            p.grad = torch.full_like(p, 0.25 * number)
    if d.chance(0.2) and len(named) > 1:
        for _, p in d.random.sample(named, len(named) // 2):
            p.requires_grad_(False)
    if d.chance(0.15):
        names = [name for name, _ in d.random.sample(named, max(1, len(named) // 2))]
        options["params"] = names
        return set(names)
    return {name for name, p in named if p.requires_grad}


def _objective(d: Draw, net: Net, z: Tensor, is_ragged: bool) -> Objective:
    """Draw a loss for an output; those that know the model get it."""
    if d.chance(0.1):
        return objectives.mixing(d, z, net.layout, is_ragged)
    if d.chance(0.4):
        objective = d.pick(objectives.OF_MODEL)(d, z, net.layout, is_ragged, net)
    else:
        objective = d.pick(objectives.OF_OUTPUT)(d, z, net.layout, is_ragged)
        if d.chance(0.2):
            objective.output = d.pick(("logits", "object"))
            inner = objective.terms
            objective.terms = lambda out, y: inner(
                out["logits"] if isinstance(out, dict) else out.logits, y
            )
    net.returns = objective.output
    return objective


def _build(seed: int, *, honest: bool, is_rounded: bool = False) -> Case:
    first = Draw(seed, honest=honest, dtype=torch.float64)
    dtype = torch.float32 if first.chance(0.25) else torch.float64
    d = Draw(seed, honest=honest, dtype=torch.float64 if honest and not is_rounded else dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of reentrant checkpointing without gradients
            torch.manual_seed(seed)
            case = _function_case(d) if d.chance(0.06) else _network_case(d)
    finally:
        torch.set_default_dtype(before)
    case.seed, case.dtype = seed, dtype
    case.default_dtype = torch.float32 if dtype == torch.float32 or d.chance(0.3) else torch.float64
    return case


def _function_case(d: Draw) -> Case:
    function, params, inputs, defect = _function(d)
    with torch.no_grad():
        z = function(params, *inputs)
    objective = d.pick(objectives.OF_OUTPUT)(d, z, "flat", False)
    if d.chance(0.3):
        objective = objectives.own(d, z, "flat", False)
    options = _batching(d, inputs[0].shape[0])
    data, calls, kind = _package(d, inputs, (0,), objective.target, {"function"})
    problem = Problem(function, params, objective.loss, data, calls, objective.terms)
    by_reference = kind in ("tuple", "TensorDataset", "list")
    case = Case(0, problem, options, ["function", kind], objective, set(params), defect, draw=d)
    case.is_by_reference = by_reference
    return case


def _batching(d: Draw, n: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if size := d.pick((None, None, None, 1, 2, 5, n)):
        options["batch_size"] = size
    if d.chance(0.3):
        options["reduction"] = "sum"
    return options


def _network_case(d: Draw) -> Case:
    net, stem, tags, defects = _network(d)
    inputs, dims = stem.inputs, stem.dims
    n = inputs[0].shape[dims[0]]
    options = _batching(d, n)
    if any(dims):
        if d.chance(0.8):
            options["sample_dim"] = dims[0]
        else:
            defects.append("time first")
    is_random = _modes(d, net, options, defects)
    is_sequence = isinstance(stem.module, stems.Tokens | stems.Attention | stems.Recurrent)
    # A mean over positions is another function where a batch is shorter; sums with masks are not.
    is_ragged = is_sequence and not any(dims) and "packed" not in tags and d.chance(0.3)
    with torch.no_grad():
        z = net.eval()(*inputs) if not net.training else _quietly(net, inputs)
    objective = _objective(d, net, z, is_ragged)
    if objective.defect:
        defects.append(objective.defect)
    y = objective.target
    if any(dims) and y is not None and y.shape[1:2] == (n,):
        defects.append("either dimension of the targets may count samples")
    is_constant = set(defects) <= {"hidden"} and d.chance(0.5 if defects else 0.1)
    if is_constant:
        options["detached"] = "constant"
        defects = []
        for module in net.modules():
            if isinstance(module, stages.Hiding):
                module.honest = False
    flags = {"mixes"} if {"mixes", "time first"} & set(defects) else set()
    flags |= {"ragged"} if is_ragged else set()
    flags |= {"positions"} if net.layout == "seq" and objective.target is not None else set()
    data, calls, kind = _package(d, inputs, dims, objective.target, flags)
    names = _freeze(d, net, options)
    problem = Problem(net, None, objective.loss, data, calls, objective.terms)
    case = Case(0, problem, options, [*tags, kind], objective, names, ", ".join(defects), draw=d)
    case.has_truth = not is_random
    case.is_by_reference = kind in ("tuple", "TensorDataset", "list")
    return case


def _quietly(net: Net, inputs: tuple[Tensor, ...]) -> Tensor:
    """Evaluate a network in eval mode, and put its flags back."""
    net.eval()
    with torch.no_grad():
        z: Tensor = net(*inputs)
    net.train()
    return z
