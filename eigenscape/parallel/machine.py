"""Rough rates of the machines that a plan weighs its candidates on: one table for all plans."""

import os
from dataclasses import dataclass

# What is kept in host memory where the machine does not say how much it has.
_UNKNOWN_HOST_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Machine:
    """Rough rates of a kind of device. They decide between ways, and predict no clock.

    Attributes:
        flops: Multiplications and additions a second, in matrix products.
        bandwidth: Bytes a second from memory.
        transfer: Bytes a second from the host's memory to the device's.
        call_seconds: What starting one operation costs.
        pass_seconds: What a pass of autograd through a few layers costs beside its arithmetic.
    """

    flops: float
    bandwidth: float
    transfer: float = 2e10
    call_seconds: float = 1e-5
    pass_seconds: float = 1e-3


# On a processor the host's memory is the device's.
_MACHINES = {
    "cpu": Machine(flops=1e11, bandwidth=1e10, transfer=1e10, pass_seconds=3e-4),
    "cuda": Machine(flops=4e13, bandwidth=3e12),
}


def machine_of(device_type: str) -> Machine:
    """Return the rates of a kind of device; a processor's for one that is not in the table.

    Args:
        device_type: "cpu" or "cuda".

    Returns:
        The rates.

    Examples:
        >>> machine_of("cuda").flops > machine_of("cpu").flops
        True
        >>> machine_of("abacus") is machine_of("cpu")
        True
    """
    return _MACHINES.get(device_type, _MACHINES["cpu"])


def host_budget() -> int:
    """Return the bytes that may be kept in host memory: half of what the machine has.

    Not half of what is free: a run that is started again has to choose as it did before.
    """
    try:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) // 2
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN_HOST_BYTES
