"""The benchmarks' own arithmetic: a bar is met or not, and an exponent is found again."""

import random

import pytest
import torch

from benchmarks import sharpest
from benchmarks.bars import (
    ASIDE,
    BY_HAND,
    MET,
    NO_RESULT,
    NO_RIVAL,
    NOT_MET,
    NOT_RUN,
    OURS,
    RIVAL,
    Bar,
    bars_table,
    verdict,
    verdicts,
)
from benchmarks.fits import fit_exponent, upper_part
from benchmarks.timing import Row

BAR = Bar("d", "net", "job", "times", 10.0)


def row(role: str, seconds: float, **fields: object) -> Row:
    made = Row("d", "net", "job", f"{role} {seconds}", role, seconds=[seconds])
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_bar_is_met_by_the_best_rival_and_not_by_another() -> None:
    ours, slow, quick = row(OURS, 1.0), row(RIVAL, 30.0), row(RIVAL, 11.0)
    found = verdict(BAR, [slow, ours, quick])
    assert (found.status, found.rival, found.value) == (MET, quick, 11.0)
    assert verdict(BAR, [slow, ours, row(RIVAL, 9.0)]).status == NOT_MET


def test_who_is_wrong_failed_or_inexact_is_no_rival() -> None:
    rows = [
        row(OURS, 1.0),
        row(RIVAL, 2.0, wrong=True),
        row(RIVAL, 3.0, failed=True),
        row(RIVAL, 4.0, counts=False),
        row(BY_HAND, 5.0),
        row(ASIDE, 6.0),
    ]
    found = verdict(BAR, rows)
    assert (found.status, found.value) == (NO_RIVAL, None)
    assert found.by_hand is rows[4]
    assert verdict(BAR, [*rows, row(RIVAL, 20.0)]).status == MET


def test_our_own_failures_are_told_apart() -> None:
    rival = row(RIVAL, 20.0)
    assert verdict(BAR, []).status == NOT_RUN
    assert verdict(BAR, [rival, row(OURS, 1.0, failed=True)]).status == NO_RESULT
    assert verdict(BAR, [rival, row(OURS, 1.0)]).status == MET
    assert verdict(BAR, [rival, row(OURS, 1.0, wrong=True)]).status == NOT_MET
    assert verdict(BAR, [rival, row(OURS, 1.0, counts=False)]).status == NOT_MET


@pytest.mark.parametrize(
    ("measure", "fields", "value"),
    [
        ("gradients", {"gradients": [1.0, 2.0, 9.0]}, 2.0),
        ("seconds", {}, 4.0),
        ("memory", {"extra": {"memory": 2.5}}, 2.5),
        ("exponent", {"extra": {"exponent": 1.5, "stderr": 0.1}}, 1.5),
    ],
)
def test_what_is_asked_at_most(measure: str, fields: dict[str, object], value: float) -> None:
    ours = row(OURS, 4.0, **fields)
    for limit, status in ((value, MET), (value - 0.01, NOT_MET)):
        found = verdict(Bar("d", "net", "job", measure, limit), [ours])
        assert (found.value, found.status) == (value, status)


def test_accuracy_is_held_against_the_most_exact_rival_even_a_slow_one() -> None:
    bar = Bar("d", "net", "job", "accuracy", 1.0)
    rows = [row(OURS, 1.0, error=2e-6), row(RIVAL, 5.0, error=1e-5)]
    assert verdict(bar, rows).status == MET
    assert verdict(bar, [*rows, row(RIVAL, 50.0, error=1e-6)]).status == NOT_MET
    assert verdict(bar, [rows[0], row(RIVAL, 5.0, error=1e-9, wrong=True)]).status == NO_RIVAL


def test_the_best_of_several_blocks_is_ours() -> None:
    bar = Bar("d", "net", "job", "gradients", 1.5)
    rows = [row(OURS, 3.0, gradients=[2.0]), row(OURS, 2.0, gradients=[1.4])]
    assert verdict(bar, rows).status == MET


def test_bars_of_another_device_are_left_out_and_the_table_is_square() -> None:
    bars = (BAR, Bar("d", "net", "job", "times", 10.0, device="cuda"))
    found = verdicts([row(OURS, 1.0), row(RIVAL, 12.0, error=1e-7)], "cpu", bars)
    lines = bars_table(found)
    assert len(lines) == 2
    assert len(lines[0]) == len(lines[1])
    assert lines[1][-4:] == ["12", "12×", "10× faster", MET]


def test_a_wrong_rival_is_shown_as_wrong() -> None:
    rows = [row(OURS, 1.0), row(RIVAL, 2.0, wrong=True), row(RIVAL, 3.0, failed=True)]
    cell = bars_table([verdict(BAR, rows)])[1][3]
    assert cell == "- (1 WRONG, 1 failed or missing)"


def test_an_exponent_is_found_with_its_error() -> None:
    draw = random.Random(0)
    sizes = [2.0**i for i in range(3, 15)]
    costs = [5e-3 * size**1.7 * (1 + 0.02 * draw.gauss(0, 1)) for size in sizes]
    p, stderr = fit_exponent(sizes, costs)
    assert abs(p - 1.7) < 4 * stderr
    assert 0 < stderr < 0.01
    assert fit_exponent([1, 2, 4], [3, 12, 48]) == pytest.approx((2.0, 0.0), abs=1e-12)


def test_two_sizes_are_too_few() -> None:
    with pytest.raises(ValueError, match="three sizes"):
        fit_exponent([1, 2, 2], [1, 2, 2])


def test_the_upper_part_of_a_sweep_leaves_the_overhead_out() -> None:
    sizes = [float(2**i) for i in range(10)]
    costs = [100.0 + size**2 for size in sizes]
    assert fit_exponent(sizes, costs)[0] < 1.5
    assert fit_exponent(*upper_part(sizes, costs))[0] == pytest.approx(2.0, abs=0.2)
    assert upper_part([1, 2, 4], [1, 2, 3]) == ([1, 2, 4], [1, 2, 3])


def test_a_search_with_few_samples_runs(capsys: pytest.CaptureFixture[str]) -> None:
    small = "--data digits --model F-8^2 --epochs 6 --pairs 4 --share 0.05 --tolerance 0.5"
    sharpest.main([*small.split(), "--threads", str(torch.get_num_threads())])
    told = capsys.readouterr().out
    assert told.count("alone") == told.count("search") == 4  # three layers, and all
    assert "not converged" not in told
