"""What a warm Hessian product takes by four ways that keep something: ours and three of PyTorch's.

    OMP_NUM_THREADS=1 python benchmarks/traces.py             # counts and bytes, in a minute
    OMP_NUM_THREADS=1 python benchmarks/traces.py --inductor  # code of `torch.compile` besides

Nothing is timed: the table counts matrix products (a convolution and each half of its derivative
count as one), their multiplications, operations and bytes kept, so a busy machine gives the same
numbers. Errors are relative, in float64, against double backward. "columns" is the error of three
vectors multiplied at once, "moved" that of a product after the parameters have changed, with the
same trace.
"""

import argparse
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from problems import CLASSES, GPT, MLP, TOKENS, LeNet5
from torch import Tensor, nn
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch.func import functional_call, grad, jvp, linearize, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import eigenscape as es
from eigenscape.tracing.passes import simplify

_FACTORS = {"mm": 2, "bmm": 2, "addmm": 3, "addmm_": 3, "baddbmm": 3}  # the last two are factors
Product = Callable[[Tensor], Tensor]


class Work(TorchDispatchMode):
    """Counts operations, matrix products among them, and their multiplications."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.products, self.multiplications = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        self.operations += 1
        if name in _FACTORS:
            left, right = args[_FACTORS[name] - 2 : _FACTORS[name]]
            self.products += 1
            self.multiplications += left.numel() * right.shape[-1]
        elif name == "convolution":
            self.products += 1
            self.multiplications += result.numel() * args[1][0].numel()
        elif name == "convolution_backward":
            halves = sum(args[-1][:2])
            self.products += halves
            self.multiplications += halves * args[0].numel() * args[2][0].numel()
        return result


class Problem:
    """A network at initialisation, its data and its loss; the truth by double backward."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        if name == "mlp":
            self.model, self.x = MLP(50, 40), torch.randn(64, 50)
            self.y = torch.arange(64) % CLASSES
        elif name == "flat":  # what is flattened is stacked, not contiguous, with several columns
            self.model = nn.Sequential(
                nn.Embedding(20, 6), nn.Flatten(), nn.Linear(30, 12), nn.GELU(), nn.Linear(12, 4)
            )
            self.x, self.y = torch.randint(20, (9, 5)), torch.randint(4, (9,))
        elif name == "conv":
            self.model, self.x = LeNet5(), torch.randn(8, 3, 32, 32)
            self.y = torch.arange(8) % CLASSES
        else:
            self.model = GPT(1, 32, 4, 16)
            self.x, self.y = torch.randint(TOKENS, (2, 4, 16))
        self.model.eval()
        self.names = [name for name, _ in self.model.named_parameters()]
        self.V = torch.randn(sum(p.numel() for p in self.model.parameters()), 3)

    def theta(self) -> tuple[Tensor, ...]:
        """Return the parameters as they are now."""
        return tuple(p.detach() for p in self.model.parameters())

    def split(self, v: Tensor) -> tuple[Tensor, ...]:
        """Cut a flat vector into tensors like the parameters."""
        theta = self.theta()
        pieces = v.split([p.numel() for p in theta])
        return tuple(piece.view_as(p) for piece, p in zip(pieces, theta, strict=True))

    def gradient(self, x: Tensor, y: Tensor) -> Callable[..., Any]:
        """Return the gradient as a function of the parameters."""

        def loss(*theta: Tensor) -> Tensor:
            state = dict(zip(self.names, theta, strict=True))
            return F.cross_entropy(functional_call(self.model, state, (x,)), y)

        return grad(loss, argnums=tuple(range(len(self.names))))

    def truth(self) -> Tensor:
        """Return the products with all columns by double backward."""
        leaves = list(self.model.parameters())
        loss = F.cross_entropy(self.model(self.x), self.y)
        slopes = torch.autograd.grad(loss, leaves, create_graph=True)
        columns = [
            torch.autograd.grad(slopes, leaves, self.split(v), retain_graph=True) for v in self.V.T
        ]
        return torch.stack([flat(column) for column in columns], 1)

    def kept_bytes(self, tensors: Iterable[Any]) -> int:
        """Add up the memory that some tensors share with neither parameters nor data."""
        shared = {t.untyped_storage().data_ptr() for t in (*self.theta(), self.x, self.y)}
        kept = [t.untyped_storage() for t in tensors if isinstance(t, Tensor)]
        return sum({s.data_ptr(): s.nbytes() for s in kept if s.data_ptr() not in shared}.values())


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


class Ours:
    """A product of this package; kept graphs are double backward."""

    def __init__(self, problem: Problem, representation: str) -> None:
        risk = es.EmpiricalRisk(problem.model, es.CrossEntropy(), (problem.x, problem.y))
        self.one = self.many = es.Hessian(risk, representation=representation).__matmul__
        self.one(problem.V[:, 0])
        self.nbytes = self.one.__self__.kept_bytes

    def move(self) -> None:
        """Nothing is to be done: it sees that parameters have changed."""


class Linearize:
    """`torch.func.linearize` of the gradient: the trace holds its values as constants."""

    def __init__(self, problem: Problem, *, inductor: bool = False) -> None:
        gradient = problem.gradient(problem.x, problem.y)
        _, tangents = linearize(gradient, *problem.theta())
        call = torch.compile(tangents) if inductor else tangents
        call(*problem.split(problem.V[:, 0]))  # folds constants
        cells = [cell.cell_contents for cell in tangents.__closure__]
        (module,) = (value for value in cells if isinstance(value, nn.Module))
        held = [vars(m).values() for m in module.modules()]
        self.nbytes = problem.kept_bytes([*module.parameters(), *(t for ts in held for t in ts)])
        self.one = lambda v: flat(call(*problem.split(v)))
        self.many = lambda V: vmap(self.one, 1, 1)(V)

    def move(self) -> None:
        """Nothing can be done but to trace again."""


class Whole:
    """The trace of v ↦ (g, Hv) in one piece, as `torch.compile` has it: it keeps nothing."""

    nbytes = 0

    def __init__(self, problem: Problem, *, simplified: bool = False) -> None:
        count, self.problem = len(problem.names), problem

        def joint(*inputs: Tensor) -> list[Tensor]:
            theta, (x, y), v = inputs[:count], inputs[count : count + 2], inputs[count + 2 :]
            slopes, product = jvp(problem.gradient(x, y), theta, v)
            return [*slopes, *product]

        self.traced = make_fx(torch.func.functionalize(joint), tracing_mode="fake")(
            *self.known(), *problem.split(problem.V[:, 0])
        )
        if simplified:
            simplify(self.traced.graph)
        joint_graph_passes(self.traced)
        self.traced.graph = fx_graph_cse(self.traced.graph)
        self.traced.graph.eliminate_dead_code()
        self.traced.recompile()

    def known(self) -> tuple[Tensor, ...]:
        """Return what is known before the vector."""
        return (*self.problem.theta(), self.problem.x, self.problem.y)

    def move(self) -> None:
        """Nothing is kept."""

    def one(self, v: Tensor) -> Tensor:
        """Multiply one vector."""
        outputs = self.traced(*self.known(), *self.problem.split(v))
        return flat(outputs[len(self.problem.names) :])

    def many(self, V: Tensor) -> Tensor:
        """Multiply columns at once."""
        return vmap(self.one, 1, 1)(V)


class Partitioned(Whole):
    """The same trace, cut in two by AOTAutograd's partitioner: before v is known, and after."""

    def __init__(self, problem: Problem, *, simplified: bool = False) -> None:
        super().__init__(problem, simplified=simplified)
        inputs = [node for node in self.traced.graph.nodes if node.op == "placeholder"]
        num_known = len(self.known())
        for i, node in enumerate(inputs):  # the partitioner tells its inputs apart by their names
            name = f"primals_{i + 1}" if i < num_known else f"tangents_{i - num_known + 1}"
            node.name = node.target = name
        self._first, self._second = min_cut_rematerialization_partition(
            self.traced, None, num_fwd_outputs=len(problem.names)
        )
        self.move()
        self.nbytes = problem.kept_bytes(self._saved)

    def move(self) -> None:
        """Run the first graph again."""
        self._saved = self._first(*self.known())[len(self.problem.names) :]

    def one(self, v: Tensor) -> Tensor:
        """Multiply one vector."""
        return flat(self._second(*self._saved, *self.problem.split(v)))


WAYS: dict[str, Callable[[Problem], Any]] = {
    "double backward, graph kept": lambda problem: Ours(problem, "graph"),
    "ours, linearised": lambda problem: Ours(problem, "linearised"),
    "linearize(grad(f))": Linearize,
    "jvp(grad(f)), cut by AOTAutograd": Partitioned,
    "the same after our `simplify`": lambda problem: Partitioned(problem, simplified=True),
    "jvp(grad(f)), one trace": Whole,
}
BY_INDUCTOR: dict[str, Callable[[Problem], Any]] = {
    "ours, compiled": lambda problem: Ours(problem, "compiled"),
    "linearize(grad(f)), compiled": lambda problem: Linearize(problem, inductor=True),
}


def row(problem: Problem, way: Callable[[Problem], Any], *, is_compiled: bool = False) -> str:
    """Measure one way; the parameters are moved and put back."""
    truth, job = problem.truth(), way(problem)
    first = error(lambda: job.one(problem.V[:, 0]), truth[:, 0])
    counts = f"{'':24s}"
    if not is_compiled:  # PyTorch sees nothing of what compiled code does
        with Work() as work:
            job.one(problem.V[:, 0])
        counts = f"{work.products:8d} {work.multiplications / 1e6:8.2f} {work.operations:6d}"
    many = error(lambda: job.many(problem.V), truth)
    before = tuple(t.clone() for t in problem.theta())
    with torch.no_grad():
        for p in problem.model.parameters():
            p.mul_(1.1)
    job.move()
    moved = error(lambda: job.one(problem.V[:, 0]), problem.truth()[:, 0])
    with torch.no_grad():
        for p, old in zip(problem.model.parameters(), before, strict=True):
            p.copy_(old)
    return f"{counts} {job.nbytes / 1e3:8.1f} {first:>8s} {many:>8s} {moved:>8s}"


def error(product: Callable[[], Tensor], truth: Tensor) -> str:
    try:
        value = product()
    except RuntimeError as problem:
        return type(problem).__name__.removesuffix("Error").lower()
    return f"{float((value - truth).norm() / truth.norm()):.0e}"


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=["mlp", "conv", "gpt", "flat"])
    parser.add_argument(
        "--inductor", action="store_true", help="also compiled code, which takes a C++ compiler"
    )
    options = parser.parse_args(arguments)
    torch.set_default_dtype(torch.float64)
    warnings.filterwarnings("ignore")
    head = "products million    ops  kept kB    error  columns    moved"
    ways = WAYS | (BY_INDUCTOR if options.inductor else {})
    for name in options.networks:
        problem = Problem(name)
        print(f"{name + f', {len(problem.V)} parameters':32s} {head}")
        for title, way in ways.items():
            measured = row(problem, way, is_compiled=title in BY_INDUCTOR)
            print(f"{title:32s} {measured}", flush=True)


if __name__ == "__main__":
    main()
