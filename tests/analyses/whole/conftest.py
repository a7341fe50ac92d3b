"""An analysis whose numbers are known, for the pictures of it."""

import pytest
import torch

from eigenscape.analyses import Analysis, MatrixSpectrum
from tests.report import samples
from tests.report.samples import SIZE


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    record = samples.analysis(n=SIZE)
    torch.set_default_dtype(before)
    return record


@pytest.fixture(scope="module")
def zero() -> MatrixSpectrum:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    record = samples.spectrum_of(torch.zeros(SIZE, SIZE), "residual")
    torch.set_default_dtype(before)
    return record
