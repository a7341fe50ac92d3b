"""A product that is asked for again passes through few files; contexts around it do not count."""

import sys
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import eigenscape
from eigenscape import CrossEntropy, EmpiricalRisk, Hessian

ROOT = Path(eigenscape.__file__).parent
MOST_FILES = 7
# What is entered around a product, and left: precision, the model's mode, other ranks.
CONTEXTS = ("device/precision.py", "risk/evaluation.py", "parallel/ranks.py")


def files_of(call: object) -> list[str]:
    """Name the package's files whose functions are called, in order, but for contexts."""
    files: dict[str, None] = {}

    def name(frame: FrameType) -> str:
        path = Path(frame.f_code.co_filename)
        return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""

    def is_context(frame: FrameType | None) -> bool:
        while frame is not None:
            if name(frame) in CONTEXTS or frame.f_code.co_name == "evaluating":
                return True
            frame = frame.f_back
        return False

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and name(frame) and not is_context(frame):
            files[name(frame)] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(files)


@pytest.mark.parametrize("representation", ["graph", "linearised"])
def test_a_warm_product_passes_through_few_files(representation: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    data = torch.randn(11, 4), torch.arange(11) % 3
    H = Hessian(EmpiricalRisk(model, CrossEntropy(), data, batch_size=7),
                representation=representation)  # fmt: skip
    v = torch.ones(H.shape[0])
    cold = files_of(lambda: H @ v)
    files = files_of(lambda: H @ v)
    assert files[:2] == ["operator/linear_operator.py", "curvature/network_matrix.py"]
    assert len(files) <= MOST_FILES, files
    assert len(cold) > MOST_FILES  # the count sees what is there
