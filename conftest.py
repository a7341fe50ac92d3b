"""Settings that every test shares: float64, one seed, determinism, few threads."""

import os
import random
import sys
from collections.abc import Iterator

# cuBLAS is deterministic only with a fixed workspace, and reads this before its first call.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("MPLBACKEND", "Agg")
# Without a GPU, Triton's kernels are interpreted; it asks when it is imported.
if not os.path.exists("/dev/nvidia0"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

SEED = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    torch.use_deterministic_algorithms(True)
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)  # the workers already fill the cores


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    no_gpu = pytest.mark.skip(reason="no CUDA device on this machine")
    too_slow = pytest.mark.skip(reason="slow; pass --slow to run it")
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(too_slow)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    """Close what a test drew: matplotlib keeps figures, and warns of many."""
    yield
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """Make float64 the default dtype, and put back what was there."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Start every test from the same seeds, whatever ran before it."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
