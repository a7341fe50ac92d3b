"""Which representation of a layer's block is cheapest, and why the others are not taken."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from eigenscape.parallel import Machine

REPRESENTATIONS = ("factors", "streamed", "dense", "tail", "full")


@dataclass(frozen=True)
class Candidate:
    """One way of multiplying with a layer's block.

    Attributes:
        representation: Its name.
        build_flops: Multiplications and additions before the first product.
        product_flops: The same for each product.
        traffic: Bytes read from memory for each product.
        moved: Bytes brought from the host's memory for each product.
        nbytes: Memory it holds between products.
        peak: The most memory it takes at any time: what it holds, and the working memory of
            building it or of multiplying one vector.
        passes: Passes of autograd for each product.
        build_passes: The same before the first product.
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
    obstacle: str | None = None

    def seconds(self, num_products: int, machine: Machine) -> float:
        """Return the cost of so many products."""
        each = self.product_flops / machine.flops + self.traffic / machine.bandwidth
        each += self.moved / machine.transfer + self.passes * machine.pass_seconds
        before = self.build_flops / machine.flops + self.build_passes * machine.pass_seconds
        return before + num_products * each


@dataclass(frozen=True)
class LayerPlan:
    """The candidates for one layer, and the one that is used.

    Attributes:
        layer: The layer's name.
        candidates: All representations, those that cannot be used too.
        chosen: The one in use.
        num_products: Products for which the cost was compared.
        reason: Why the chosen one.
        note: What was measured of it; empty where nothing was.
    """

    layer: str
    candidates: tuple[Candidate, ...]
    chosen: str
    num_products: int
    reason: str
    note: str = ""

    def candidate(self, representation: str) -> Candidate:
        """Return the candidate of that name."""
        return next(c for c in self.candidates if c.representation == representation)

    def explain(self) -> str:
        """Return a table of the candidates and the reason for the choice."""
        lines = [f"{self.layer}: {self.chosen} ({self.reason})"]
        for candidate in self.candidates:
            mark = "→" if candidate.representation == self.chosen else " "
            if candidate.obstacle is not None:
                lines.append(f"{mark} {candidate.representation:<8} no: {candidate.obstacle}")
                continue
            lines.append(
                f"{mark} {candidate.representation:<8} build {candidate.build_flops / 1e9:.3g} "
                f"Gflop; a product {candidate.product_flops / 1e9:.3g} Gflop and "
                f"{candidate.traffic / 2**20:.3g} MiB; holds {candidate.nbytes / 2**20:.3g} MiB, "
                f"at most {candidate.peak / 2**20:.3g}"
            )
        lines += [self.note] * bool(self.note)
        return "\n".join(lines)


def choose(
    layer: str,
    candidates: tuple[Candidate, ...],
    *,
    num_products: int,
    memory_budget: int,
    machine: Machine,
) -> LayerPlan:
    """Take the quickest candidate that can be used and fits.

    Args:
        layer: The layer's name.
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
    best = min(usable, key=lambda candidate: candidate.seconds(num_products, machine))
    if len(usable) == 1:
        reason = "nothing else can be used"
    else:
        reason = f"about {best.seconds(num_products, machine):.2g} s for {num_products} products"
    return LayerPlan(layer, checked, best.representation, num_products, reason)


def strictest(plans: list[dict[str, Any]]) -> LayerPlan:
    """Return the plan with most obstacles: what one rank cannot do, none does.

    Args:
        plans: The fields of each rank's plan, candidates among them.

    Returns:
        One plan for all; the first rank's where they are alike.
    """
    plan = max(plans, key=lambda p: sum(c["obstacle"] is not None for c in p["candidates"]))
    return LayerPlan(**{**plan, "candidates": tuple(Candidate(**c) for c in plan["candidates"])})


def _fitting(candidate: Candidate, memory_budget: int) -> Candidate:
    needs = max(candidate.nbytes, candidate.peak)
    if candidate.obstacle is not None or needs <= memory_budget:
        return candidate
    text = f"{needs / 2**20:.3g} MiB exceed the memory budget of {memory_budget / 2**20:.3g}"
    return dataclasses.replace(candidate, obstacle=text)
