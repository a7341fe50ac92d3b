"""What each way of multiplying with a matrix costs, and which one is taken.

What is counted depends on shapes alone, so that the same program always takes the same way, and a
run that was killed and started again gives the same bits.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eigenscape.errors import require_count
from eigenscape.parallel import Machine
from eigenscape.risk import EmpiricalRisk

_CPU_BUDGET = 4 * 2**30


@dataclass(frozen=True)
class Candidate:
    """One way of multiplying with a matrix.

    Attributes:
        representation: Its name.
        build_flops: Multiplications and additions before the first product.
        product_flops: The same for each product.
        traffic: Bytes read from memory for each product.
        moved: Bytes brought from the host's memory for each product.
        nbytes: Memory it holds between products.
        peak: The most memory it takes at any time: what it holds, and the working memory of
            building it or of multiplying one vector. 0 where it was not counted.
        passes: Passes of autograd for each product.
        build_passes: The same before the first product.
        calls: Operations started one by one for each product.
        build_seconds: What is done before the first product beside arithmetic: tracing, compiling.
        obstacle: Why it cannot be used here, or None.
    """

    representation: str
    build_flops: float = 0.0
    product_flops: float = 0.0
    traffic: float = 0.0
    moved: float = 0.0
    nbytes: float = 0.0
    peak: float = 0.0
    passes: int = 0
    build_passes: int = 0
    calls: float = 0.0
    build_seconds: float = 0.0
    obstacle: str | None = None

    def seconds(self, num_products: float, machine: Machine) -> float:
        """Return the cost of so many products."""
        each = self.product_flops / machine.flops + self.traffic / machine.bandwidth
        each += self.moved / machine.transfer + self.passes * machine.pass_seconds
        each += self.calls * machine.call_seconds
        before = self.build_flops / machine.flops + self.build_passes * machine.pass_seconds
        return before + self.build_seconds + num_products * each


@dataclass(frozen=True)
class Plan:
    """The candidates for one matrix, and the one that is used.

    Attributes:
        subject: What is multiplied: "Hessian", or a layer's name.
        candidates: All representations, those that cannot be used too.
        chosen: The one in use.
        num_products: Products for which the cost was compared.
        reason: Why the chosen one.
        seconds: Predicted time of all products, by representation.
        note: What was measured of it; empty where nothing was.
    """

    subject: str
    candidates: tuple[Candidate, ...]
    chosen: str
    num_products: int
    reason: str
    seconds: dict[str, float]
    note: str = ""

    def candidate(self, representation: str) -> Candidate:
        """Return the candidate of that name."""
        return next(c for c in self.candidates if c.representation == representation)

    def explain(self) -> str:
        """Return a table of the candidates and the reason for the choice."""
        lines = [f"{self.subject}: {self.chosen} ({self.reason})"]
        width = max(len(candidate.representation) for candidate in self.candidates)
        for candidate in self.candidates:
            mark = "→" if candidate.representation == self.chosen else " "
            name = f"{mark} {candidate.representation:<{width}}"
            if candidate.obstacle is not None:
                lines.append(f"{name} no: {candidate.obstacle}")
                continue
            seconds = self.seconds[candidate.representation]
            peak = f", at most {candidate.peak / 2**20:.3g}" if candidate.peak else ""
            lines.append(
                f"{name} about {seconds:.2g} s for {self.num_products} products: build "
                f"{candidate.build_flops / 1e9:.3g} Gflop; a product "
                f"{candidate.product_flops / 1e9:.3g} Gflop and {candidate.traffic / 2**20:.3g} "
                f"MiB; holds {candidate.nbytes / 2**20:.3g} MiB{peak}"
            )
        lines += [self.note] * bool(self.note)
        return "\n".join(lines)


def choose(
    subject: str,
    candidates: Sequence[Candidate],
    *,
    num_products: int,
    memory_budget: int,
    machine: Machine,
) -> Plan:
    """Take the quickest candidate that can be used and fits.

    Args:
        subject: What is multiplied.
        candidates: All of them. The last is used where nothing else can be; it may exceed the
            budget, since it is made anew where it is not kept.
        num_products: Products to expect.
        memory_budget: Bytes that a representation may take at any time.
        machine: What it runs on.

    Returns:
        The plan.
    """
    checked = (*(_fitting(c, memory_budget) for c in candidates[:-1]), candidates[-1])
    usable = [candidate for candidate in checked if candidate.obstacle is None]
    seconds = {c.representation: c.seconds(num_products, machine) for c in usable}
    best = min(seconds, key=lambda name: seconds[name])
    if len(usable) == 1:
        reason = "nothing else can be used"
    else:
        reason = f"about {seconds[best]:.2g} s for {num_products} products"
    return Plan(subject, checked, best, num_products, reason, seconds)


def strictest(plans: list[dict[str, Any]]) -> Plan:
    """Return the plan with most obstacles: what one rank cannot do, none does.

    Args:
        plans: The fields of each rank's plan, candidates among them.

    Returns:
        One plan for all; the first rank's where they are alike.
    """
    plan = max(plans, key=lambda p: sum(c["obstacle"] is not None for c in p["candidates"]))
    return Plan(**{**plan, "candidates": tuple(Candidate(**c) for c in plan["candidates"])})


def budget_of(risk: EmpiricalRisk, memory_budget: int | None, name: str) -> int:
    """Return the bytes that products may keep, the same on all ranks: it decides how they are cut.

    Args:
        risk: The risk.
        memory_budget: What the user said; by default 4 GiB on a CPU and half of the free memory of
            a GPU.
        name: The matrix's name, for refusals.

    Returns:
        The bytes.
    """
    if memory_budget is not None:
        nbytes = require_count(memory_budget, f"{name}(memory_budget=...)", at_least=0)
    elif risk.device.type == "cuda":
        nbytes = int(torch.cuda.mem_get_info(risk.device)[0]) // 2
    else:
        nbytes = _CPU_BUDGET
    return int(min(risk.ranks.gather(nbytes)))


def _fitting(candidate: Candidate, memory_budget: int) -> Candidate:
    needs = max(candidate.nbytes, candidate.peak)
    if candidate.obstacle is not None or needs <= memory_budget:
        return candidate
    text = f"{needs / 2**20:.3g} MiB exceed the memory budget of {memory_budget / 2**20:.3g}"
    return dataclasses.replace(candidate, obstacle=text)
