"""Records carry their operator's verdict on itself."""

import pytest
import torch

from eigenscape.linalg.eigsh import eigsh
from eigenscape.linalg.trace import trace
from eigenscape.operators import Dense
from eigenscape.records import SelfTest
from tests.linalg.matrices import Counting

VERDICT = SelfTest("passed", "Compared with the user's own function.")


class Compared(Counting):
    """A matrix that was compared with something."""

    @property
    def self_test(self) -> SelfTest:
        return VERDICT


@pytest.mark.parametrize("make", [lambda A: trace(A, num_products=2), lambda A: eigsh(A)])
def test_the_record_has_it(make) -> None:
    assert make(Compared(torch.eye(70))).self_test is VERDICT
    assert make(Dense(torch.eye(70))).self_test is None


def test_by_name_too_and_through_what_is_made_of_the_operator() -> None:
    assert trace(operator=Compared(torch.eye(9)), num_products=2).self_test is VERDICT
    assert trace(2.0 * Compared(torch.eye(9)), num_products=2).self_test is VERDICT


def test_functions_keep_their_names() -> None:
    assert trace.__name__ == "trace"
    assert "Estimate the trace" in (trace.__doc__ or "")
