"""Budgets and the parts of an analysis, by name."""

import pytest

from eigenscape.analyses.whole._budget import (
    BUDGETS,
    POINT,
    STAGES,
    as_budget,
    as_stages,
    capped_pairs,
    num_pairs,
)
from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    UnknownNameError,
    WrongTypeError,
)

QUICK, FIRST = BUDGETS["quick"], BUDGETS["first-look"]


def test_pairs_reach_beyond_the_classes_up_to_a_limit() -> None:
    assert num_pairs("Hessian", QUICK, 10)[0] == 14
    assert capped_pairs(QUICK, 10) is None
    for classes in (1000, 50_000):
        assert num_pairs("Hessian", QUICK, classes)[0] == QUICK.most_pairs
        assert f"not {classes + 4}" in str(capped_pairs(QUICK, classes))


def test_a_number_of_pairs_that_is_asked_for_is_taken_whatever_the_classes() -> None:
    for classes in (None, 3, 1000):
        assert num_pairs("Hessian", as_budget("quick", num_pairs=5), classes)[0] == 5
    assert num_pairs("Hessian", as_budget("first-look", num_pairs=50), None)[0] == 50
    assert as_budget("first-look", num_pairs=50).max_products >= 10 * 50


def test_a_budget_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="num_pairs"):
        as_budget("quick", num_pairs=0)
    with pytest.raises(UnknownNameError, match="first-look"):
        as_budget("firstlook")
    with pytest.raises(WrongTypeError, match="Budget"):
        as_budget(None)


@pytest.mark.parametrize("name", ["Gauss-Newton", "gauss-newton", "gauss_newton", " Gauss-newton"])
def test_parts_are_known_however_they_are_written(name: str) -> None:
    assert as_stages(name, QUICK) == (POINT, "Gauss-Newton")


def test_parts_run_in_their_own_order() -> None:
    assert as_stages(["block norms", "layers", "hessian"], QUICK) == (
        POINT,
        "Hessian",
        "layers",
        "block norms",
    )


def test_a_first_look_leaves_out_what_takes_long_unless_asked() -> None:
    assert as_stages(None, QUICK) == STAGES
    assert as_stages(None, FIRST) == (POINT, "Hessian")
    assert as_stages("other-samples", FIRST) == (POINT, "other samples")
    assert as_stages("layers", FIRST) == (POINT, "layers")


def test_parts_that_are_none_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="'block-norms'"):
        as_stages("blocknorms", QUICK)
    with pytest.raises(UnknownNameError, match="other"):
        as_stages("other-samples", QUICK)
    with pytest.raises(EmptySelectionError, match="at least one"):
        as_stages([], QUICK)
    with pytest.raises(WrongTypeError, match="int"):
        as_stages([3], QUICK)
