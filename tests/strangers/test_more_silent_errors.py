"""Functions of the kinds that were once answered wrongly, which nobody has reported."""

import pytest

from tests.strangers import border_cases, more_cases, new_cases
from tests.strangers.oracle import unexpected

CASES = new_cases.CASES | more_cases.CASES | border_cases.CASES


# What a user's own thread says of a trace that cannot be made there; graphs are used then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", CASES)
def test_no_silent_error(name: str) -> None:
    maker, refused = CASES[name]
    assert unexpected(maker, refused) == {}
