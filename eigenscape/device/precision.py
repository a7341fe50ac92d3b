"""How precise products are: float32 in full, and noise that is measured where less was asked for.

Training scripts often allow TF32 or bfloat16 inside float32 products (on a GPU, convolutions allow
TF32 by default). That rounds to three digits: Lanczos bases lose their orthogonality and residuals
certify nothing. PyTorch has an old and a new set of switches, and refuses to compute where the two
disagree; so the old setter is used, which keeps them in step, and the new values are put back
after it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@contextmanager
def full_precision(*, tf32: bool = False) -> Iterator[None]:
    """Switch reduced-precision products off, and back to what they were afterwards.

    Usable as a decorator too. It changes process-wide switches, so do not train in another thread
    meanwhile.

    Args:
        tf32: Switch TF32 on instead, for what is noisy by itself and certifies nothing.

    Examples:
        >>> torch.set_float32_matmul_precision("high")
        >>> with full_precision():
        ...     torch.get_float32_matmul_precision()
        'highest'
        >>> torch.get_float32_matmul_precision()
        'high'
        >>> torch.set_float32_matmul_precision("highest")
    """
    old_matmul = _old(torch.get_float32_matmul_precision, "highest")
    old_cudnn = _old(lambda: torch.backends.cudnn.allow_tf32, False)
    new = [(switch, switch.fp32_precision) for switch in _switches()]
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(old_matmul)
        torch.backends.cudnn.allow_tf32 = old_cudnn
        for switch, value in new:
            if switch.fp32_precision != value:
                switch.fp32_precision = value


@dataclass(frozen=True)
class Defects:
    """How far products are from those of one symmetric matrix A; see `product_defects`.

    Attributes:
        linearity: ‖A(v + w) − Av − Aw‖ / (‖Av‖ + ‖Aw‖), the largest.
        asymmetry: |vᵀAw − wᵀAv| / (‖Av‖ ‖w‖), the largest.
        absolute: ‖A(v + w) − Av − Aw‖ / (‖v‖ + ‖w‖), the largest.
        num_products: Products spent.
    """

    linearity: float
    asymmetry: float
    absolute: float
    num_products: int

    @property
    def relative(self) -> float:
        """Twice the larger of both: a residual has its own noise and that of its vector."""
        return 2 * max(self.linearity, self.asymmetry)


def product_defects(
    multiply: Callable[[Tensor], Tensor],
    size: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    num_probes: int,
    seed: int,
) -> Defects:
    """Measure what exact products with a symmetric matrix would not have.

    Vectors are far apart, not close: a change that is small beside them may round to nothing where
    a model rounds to bfloat16, and would show no noise at all. Cost: three products per probe.

    Args:
        multiply: From columns (n, k) to their products.
        size: n.
        dtype: Of the columns.
        device: Of the columns.
        num_probes: Pairs of random vectors v, w.
        seed: Fixes them.

    Returns:
        The defects.
    """
    tiny = torch.finfo(torch.float64).tiny
    generator = torch.Generator().manual_seed(seed)
    defects = []
    for _ in range(num_probes):
        v, w = torch.randn(2, size, generator=generator, dtype=torch.float64)
        X = torch.stack([v, w, v + w], dim=1).to(device, dtype)
        v, w, _ = X.double().T
        Av, Aw, As = multiply(X).double().T
        defect, crossed = (As - Av - Aw).norm(), (v @ Aw - w @ Av).abs()
        ratios = [
            defect / (Av.norm() + Aw.norm()).clamp_min(tiny),
            crossed / (Av.norm() * w.norm()).clamp_min(tiny),
            defect / (v.norm() + w.norm()),
        ]
        defects.append(torch.stack(ratios))
    linearity, asymmetry, absolute = torch.stack(defects).amax(0).tolist()
    return Defects(linearity, asymmetry, absolute, 3 * num_probes)


def _old(read: Callable[[], T], unset: T) -> T:
    try:
        return read()
    except RuntimeError:  # set through the new switches alone, so that the old one has no value
        return unset


def _switches() -> list[Any]:
    """Return the new switches, where this PyTorch has them."""
    backends = torch.backends
    owners = (
        (backends.cuda, "matmul"),
        (backends.cudnn, "conv"),
        (backends.cudnn, "rnn"),
        (backends.mkldnn, "matmul"),
        (backends.mkldnn, "conv"),
        (backends.mkldnn, "rnn"),
    )
    switches = [getattr(owner, name, None) for owner, name in owners]
    return [switch for switch in switches if hasattr(switch, "fp32_precision")]
