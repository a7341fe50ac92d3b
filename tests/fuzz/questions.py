"""All that is asked about one network, and the truth of each answer."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.records import BEYOND
from tests.fuzz.networks import Case, Problem
from tests.fuzz.outcomes import Answer, attempted, difference, number, state
from tests.fuzz.truth import ATOL, EPS, ROUNDINGS, RTOL, Truth

LINEAR = (
    nn.Linear, nn.Bilinear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm,
    nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase,
)  # fmt: skip


FALSE_FOR_AUTOGRAD = {"hidden", "custom Function", "false gradient in PyTorch"}


@dataclass(frozen=True)
class Question:
    """A number or a product that is asked for.

    Attributes:
        name: What is asked.
        make: Gives the operator, or the answer itself.
        columns: What the operator is multiplied with; None where there is none.
        truth: The answer.
        must: Whether it must be answered for a healthy network.
    """

    name: str
    make: Callable[[], Any]
    columns: Tensor | None
    truth: Callable[[Truth], Tensor]
    must: bool = True


@dataclass
class Examination:
    """All questions about one case.

    Attributes:
        case: The case.
        num_questions: How many to ask beside value, gradient and Hessian.
        answers: What came.
    """

    case: Case
    num_questions: int = 3
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.truth: Truth | None = None
        self.rounded: Truth | None = None
        self.names: list[str] = []
        self._kept: tuple[Any, Tensor] | None = None
        self._random = random.Random(self.case.seed)
        self._generator = torch.Generator().manual_seed(self.case.seed)

    def run(self) -> list[Answer]:
        """Ask; what the library is given comes back as it was."""
        before = state(self.case.user)
        if self.case.draws_numbers:
            del before["random state"]
        risk = self._asked_for_risk()
        if risk is not None:
            self._ask(risk)
        if (changed := difference(before, state(self.case.user))) is not None:
            self.answers.append(Answer("state", "wrong", changed))
        if risk is not None and self._kept is not None:
            self._ask_again(risk, *self._kept)
        return self.answers

    def _asked_for_risk(self) -> Any:
        case = self.case
        risk, refusal = attempted(lambda: self._risk())
        if refusal is not None:
            self._note("risk", refusal, must=True)
            return None
        self.names = list(risk.space.names)
        if set(self.names) != case.names:
            self.answers.append(Answer("names", "wrong", f"{self.names} for {case.names}"))
            return None
        if case.has_truth or self._is_constant():
            self.truth = Truth(case, case.truth)
            self.rounded = Truth(case, case.rounded) if case.dtype == torch.float32 else None
        return risk

    def _risk(self, **changes: Any) -> es.EmpiricalRisk:
        user, options = self.case.user, {**self.case.options, **changes}
        if user.params is not None:
            options["params"] = user.params
        return es.EmpiricalRisk(user.model, user.loss, user.data, **options)

    def _is_constant(self) -> bool:
        """Tell whether random numbers never reach the loss: a pool may leave them out."""
        values = set()
        for seed in range(8):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                values.add(float(Truth(self.case, self.case.truth).value()))
        return len(values) == 1

    def _note(self, question: str, refusal: tuple[str, str], *, must: bool) -> None:
        verdict, words = refusal
        alarm = verdict == "refused" and must and self.case.is_healthy
        self.answers.append(Answer(question, verdict, words, alarm))

    def _ask(self, risk: Any) -> None:
        X = self._columns(risk.space.size)
        self._compare(Question("value", lambda: number(risk.value()), None, Truth.value))
        # A gradient is what autograd says, by definition; matrices are tested against differences.
        if not FALSE_FOR_AUTOGRAD & set(self.case.defect.split(", ")):
            slope = lambda t: t.gradient(self.names)
            self._compare(Question("gradient", risk.gradient, None, slope))
        H, refusal = attempted(lambda: es.Hessian(risk))
        if refusal is not None:
            self._note("Hessian", refusal, must=True)
            return
        self._compare(Question("Hessian", lambda: H, X, lambda t: t.hessian(self.names, X)))
        if self.answers[-1].verdict == "right":
            self._kept = H, X
        others = [*self._whole(risk, X), *self._parts(risk, H)]
        for question in self._random.sample(others, min(self.num_questions, len(others))):
            self._compare(question)

    def _columns(self, size: int) -> Tensor:
        number = self._random.choice((1, 1, 2, 3, 4))
        X = torch.randn(size, number, generator=self._generator, dtype=torch.float32)
        return X.to(self.case.dtype)

    def _whole(self, risk: Any, X: Tensor) -> Iterator[Question]:
        """Other ways to the same matrix, and other matrices of the whole network."""
        names, objective = self.names, self.case.objective
        hessian = lambda t: t.hessian(names, X)
        for way in ("graph", "linearised"):
            make = lambda way=way: es.Hessian(risk, representation=way)
            yield Question(f"Hessian {way}", make, X, hessian, must=way == "graph")
        for budget in (0, 500):
            make = lambda budget=budget: es.Hessian(risk, memory_budget=budget)
            yield Question(f"Hessian memory_budget={budget}", make, X, hessian)
        yield Question("symmetry", lambda: es.Hessian(risk).T, X, hessian)
        if objective.output not in ("tensor", "logits", "object"):
            return
        must = objective.is_of_output
        gauss_newton = lambda t: t.gauss_newton(names, X)
        yield Question("GaussNewton", lambda: es.GaussNewton(risk), X, gauss_newton, must)
        for way in ("graph", "linearised"):
            make = lambda way=way: es.GaussNewton(risk, representation=way)
            yield Question(f"GaussNewton {way}", make, X, gauss_newton, must and way == "graph")
        rest = lambda t: t.hessian(names, X) - t.gauss_newton(names, X)
        yield Question("Residual", lambda: es.Residual(risk), X, rest, must)
        if objective.has_likelihood:
            yield Question("Fisher", lambda: es.Fisher(risk), X, gauss_newton)

    def _parts(self, risk: Any, H: Any) -> Iterator[Question]:
        """Blocks, some of the parameters, and layers."""
        names, chance = self.names, self._random
        sizes = {name: risk.space.block(name).size for name in names}
        name = chance.choice(names)
        x = self._columns(sizes[name])
        yield Question(f"H[{name}]", lambda: H[name], x, lambda t: t.hessian([name], x))
        if len(names) > 1 and self.case.user.params is None:
            drawn = set(chance.sample(names, len(names) // 2))
            some = [n for n in names if n in drawn]
            y = self._columns(sum(sizes[n] for n in some))

            def chosen() -> Any:
                other = self._risk(params=some)
                assert list(other.space.names) == some, (list(other.space.names), some)
                return es.Hessian(other)

            yield Question(f"params={some}", chosen, y, lambda t: t.hessian(some, y))
        if not isinstance(self.case.user.model, nn.Module):
            return
        modules = dict(self.case.user.model.named_modules())
        layers = [
            layer
            for layer, module in modules.items()
            if isinstance(module, LINEAR)
            and {f"{layer}.{n}" for n, _ in module.named_parameters()} & set(names)
        ]
        for layer in chance.sample(layers, min(2, len(layers))):
            own = [n for n in names if n.rpartition(".")[0] == layer]
            fields = {n.rpartition(".")[2] for n in own}
            if {n for n, _ in modules[layer].named_parameters()} != fields:
                continue
            z = self._columns(sum(sizes[n] for n in own))
            truth = lambda t, own=own, z=z: t.hessian(own, z)
            make = lambda layer=layer: es.LayerHessian(risk, layer)
            yield Question(f"LayerHessian {layer}", make, z, truth)
            way = chance.choice(("factors", "dense", "tail", "full", "streamed"))
            make = lambda layer=layer, way=way: es.LayerHessian(risk, layer, representation=way)
            yield Question(f"LayerHessian {layer} {way}", make, z, truth, must=False)

    def _compare(self, question: Question) -> None:
        made: list[Any] = []

        def ask() -> Tensor:
            made.append(question.make())
            return made[0] if question.columns is None else made[0] @ question.columns

        found, refusal = attempted(ask)
        expected = None if self.truth is None else question.truth(self.truth).double()
        if expected is not None and not bool(expected.isfinite().all()):
            return  # plain double backward has no answer either
        if refusal is not None:
            self._note(question.name, refusal, must=question.must)
        elif expected is None:
            self.answers.append(Answer(question.name, "wrong", "the function is random"))
        else:
            size, error = float(expected.norm()), float((found.double() - expected).norm())
            limit = self._limit(expected, question.truth)
            verdict = "right" if error <= limit else self._excuse(made[0], error, size)
            words = f"{error / max(size, 1e-300):.2g} of {size:.2g}, allowed {limit:.2g}"
            self.answers.append(Answer(question.name, verdict, words))

    def _excuse(self, operator: Any, error: float, size: float) -> str:
        """Say whether a matrix that is off says so itself: no silent error.

        Only of what a user hid from autograd: to how many digits that can be seen is stated.
        """
        test = getattr(operator, "self_test", None)
        if self.case.is_healthy or test is None or "mixes" in self.case.defect:
            return "wrong"
        if test.verdict != "passed":
            return "unresolved"
        stated = max(max(c.deviation, c.resolution) for c in test.checks if c.is_resolved)
        return "within what is stated" if error <= BEYOND * stated * size else "wrong"

    def _limit(self, expected: Tensor, truth: Callable[[Truth], Tensor]) -> float:
        """Say how far rounding may take an answer; see `truth`."""
        assert self.truth is not None
        size = float(expected.norm())
        usual = 1 + float(self.truth.gradient(self.names).norm()) + abs(float(self.truth.value()))
        if self.rounded is None:
            return RTOL * size + ATOL * usual
        off = float((truth(self.rounded).double() - expected).norm())
        return ROUNDINGS * (off + EPS * (size + usual))

    def _ask_again(self, risk: Any, H: Any, X: Tensor) -> None:
        """Change what the user may change between two products, and ask the same operator."""
        if self.truth is None:
            return
        name = self._random.choice(sorted(CHANGES))
        if name in OF_DATA and not self.case.is_by_reference:
            return
        if name in OF_MODULES and not isinstance(self.case.user.model, nn.Module):
            return
        problems = [self.case.user, self.truth.problem]
        problems += [self.rounded.problem] if self.rounded is not None else []
        for problem in problems:
            CHANGES[name](problem, self.names)
        hessian = lambda t: t.hessian(self.names, X)
        self._compare(Question(f"Hessian after a change of {name}", lambda: H, X, hessian))
        value = lambda: number(risk.value())
        self._compare(Question(f"value after a change of {name}", value, None, Truth.value))


# --- what users change ---


def _negated(problem: Problem, names: list[str]) -> None:
    problem.named()[names[0]].data.neg_()


def _halved(problem: Problem, names: list[str]) -> None:
    with torch.no_grad():
        problem.named()[names[-1]].mul_(0.5)


def _flipped(problem: Problem, names: list[str]) -> None:
    for call in problem.calls:
        for x in (*call.inputs, *call.named.values()):
            if x.is_floating_point():
                x.mul_(-0.5)


def _reordered(problem: Problem, names: list[str]) -> None:
    for call in problem.calls:
        if call.target is not None:
            call.target.copy_(call.target.flip(0))


def _swapped(problem: Problem, names: list[str]) -> None:
    for name in names:
        problem.named()[name].data = problem.named()[name].data * 0.75


def _scaled(problem: Problem, names: list[str]) -> None:
    problem.model.scale = 0.5


def _hooked(problem: Problem, names: list[str]) -> None:
    problem.model.head.register_forward_hook(lambda module, args, out: out * 1.25)


CHANGES: dict[str, Callable[[Problem, list[str]], None]] = {
    "data of a parameter": _negated,
    "a parameter": _halved,
    "inputs": _flipped,
    "targets": _reordered,
    "all storage": _swapped,
    "an attribute": _scaled,
    "hooks": _hooked,
}
OF_DATA, OF_MODULES = ("inputs", "targets"), ("an attribute", "hooks")
