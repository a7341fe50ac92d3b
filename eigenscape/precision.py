"""Full float32 precision inside our computations, whatever the user's training script asked for.

Training scripts often allow TF32 or bfloat16 inside float32 products (on a GPU, convolutions allow
TF32 by default). That rounds to three digits: Lanczos bases lose their orthogonality and residuals
certify nothing. PyTorch has an old and a new set of switches, and refuses to compute where the two
disagree; so the old setter is used, which keeps them in step, and the new values are put back
after it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch reduced-precision products off, and back to what they were afterwards.

    Usable as a decorator too. It changes process-wide switches, so do not train in another thread
    meanwhile.

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
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(old_matmul)
        torch.backends.cudnn.allow_tf32 = old_cudnn
        for switch, value in new:
            if switch.fp32_precision != value:
                switch.fp32_precision = value


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
    found = [getattr(owner, name, None) for owner, name in owners]
    return [switch for switch in found if hasattr(switch, "fp32_precision")]
