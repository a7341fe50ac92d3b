"""Whether a network is worth linearising, or compiling, before it is multiplied.

What is counted depends on shapes alone, so that the same program always takes the same way, and a
run that was killed and started again gives the same bits.
"""

from dataclasses import dataclass

from eigenscape.parallel import machine_of

REPRESENTATIONS = ("graph", "linearised", "compiled")

# Seconds that PyTorch takes to trace one node of a gradient's graph into the stages of a product,
# and to compile it; measured on perceptrons, LeNet5, a ResNet and transformers.
_TRACE_SECONDS, _COMPILE_SECONDS = 5e-3, 5e-2
# What the comparison of a trace with double backward takes, in products.
_CHECK_PRODUCTS = 2.0


# Share of the time beside starting operations that linearising saves, and compiling.
_GAINS = {
    # Compiled code was not quicker on a processor, one vector at a time (LeNet5, a GPT).
    "cpu": (0.2, 0.2),
    "cuda": (0.35, 0.45),
}


@dataclass(frozen=True)
class Work:
    """What one pass over the data takes with kept autograd graphs.

    Attributes:
        flops: Multiplications and additions of a product.
        nbytes: What the graphs hold.
        num_nodes: Operations in the graph of one batch.
        num_batches: Batches.
        num_traces: How many kinds of batches there are; each needs a trace of its own.
    """

    flops: float
    nbytes: float
    num_nodes: int
    num_batches: int
    num_traces: int = 1


@dataclass(frozen=True)
class ProductPlan:
    """How products are computed, and why.

    Attributes:
        chosen: "graph" (kept autograd graphs), "linearised" or "compiled".
        reason: Why.
        seconds: Predicted time of all products, by representation; empty where none was predicted.
        num_products: For how many.
    """

    chosen: str
    reason: str
    seconds: dict[str, float]
    num_products: int

    def explain(self) -> str:
        """Return the choice, its reason and what the others would take."""
        lines = [f"{self.chosen} ({self.reason})"]
        for name, seconds in self.seconds.items():
            mark = "→" if name == self.chosen else " "
            lines.append(
                f"{mark} {name:<10} about {seconds:.2g} s for {self.num_products} products"
            )
        return "\n".join(lines)


def plan_products(work: Work, num_products: int, device: str) -> ProductPlan:
    """Weigh the time of preparations against what they save.

    Args:
        work: What a product takes.
        num_products: Products to expect.
        device: "cpu" or "cuda".

    Returns:
        The plan.

    Examples:
        >>> plan_products(Work(1e6, 1e5, 50, 1), 100, "cpu").chosen   # a product takes microseconds
        'graph'
        >>> plan_products(Work(1e10, 1e9, 50, 8), 100, "cpu").chosen   # a product takes 0.3 s
        'linearised'
    """
    machine = machine_of(device)
    gain, compiled_gain = _GAINS.get(device, _GAINS["cpu"])
    heavy = work.flops / machine.flops + 2 * work.nbytes / machine.bandwidth
    calls = work.num_nodes * work.num_batches * machine.call_seconds
    # A linearised product is replayed on a GPU without starting operations one by one.
    kept_calls = 0.0 if device == "cuda" else calls
    each = {
        "graph": heavy + calls,
        "linearised": (1 - gain) * heavy + kept_calls,
        "compiled": (1 - compiled_gain) * heavy + kept_calls,
    }
    # Every batch is compared with double backward once: a graph is made, and multiplies a probe.
    checks = _CHECK_PRODUCTS * each["graph"]
    nodes = work.num_nodes * work.num_traces
    before = {
        "graph": 0.0,
        "linearised": checks + nodes * _TRACE_SECONDS,
        "compiled": checks + nodes * (_TRACE_SECONDS + _COMPILE_SECONDS),
    }
    seconds = {name: before[name] + num_products * each[name] for name in each}
    chosen = min(seconds, key=lambda name: seconds[name])
    return ProductPlan(chosen, "the quickest", seconds, num_products)
