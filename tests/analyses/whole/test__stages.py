"""Stages: what was finished is kept, what failed is named, what is damaged ends everything."""

from pathlib import Path
from typing import Any

import pytest
import torch

import eigenscape as es
from eigenscape.analyses import Plan, Point, Stage, point
from eigenscape.analyses.whole._budget import BUDGETS, STAGES
from eigenscape.analyses.whole._stages import StageStore, can_do_without, reason_of
from eigenscape.errors import CheckpointError, UnsupportedModelError
from eigenscape.records import Progress, Status
from tests.small_net import X, Y, net

RISK = es.EmpiricalRisk(net().double(), es.CrossEntropy(), (X, Y))


def plan_of(*names: str) -> Plan:
    stages = tuple(Stage(name, 10, 1.0) for name in names)
    good = Status(True, "Predicted.")
    return Plan(good, 0, 0, BUDGETS["quick"], stages, 0, 0, RISK.space.size, "cpu")


PLAN = plan_of(*STAGES)


def work(steps: Path | None, progress: Any) -> Point:
    return point(RISK)


def refuse(steps: Path | None, progress: Any) -> Point:
    raise UnsupportedModelError("This layer has no second derivative.")


def test_a_finished_stage_is_not_computed_again(tmp_path: Path) -> None:
    first = StageStore(tmp_path, PLAN).run("Hessian", work)
    again = StageStore(tmp_path, PLAN).run("Hessian", refuse)
    assert again.loss == first.loss


def test_a_failed_stage_is_named_and_tried_again(tmp_path: Path) -> None:
    store = StageStore(tmp_path, PLAN)
    assert store.run("Hessian", refuse) is None
    assert store.failures == {"Hessian": "This layer has no second derivative."}
    assert store.seconds["Hessian"] >= 0
    again = StageStore(tmp_path, PLAN)
    assert again.run("Hessian", work) is not None
    assert again.failures == {}


def test_what_is_not_planned_is_not_run() -> None:
    store = StageStore(None, plan_of("layers"))
    assert store.run("Hessian", refuse) is None
    assert store.failures == {}


def test_only_where_nothing_stands_is_the_first_refusal_raised() -> None:
    store = StageStore(None, PLAN)
    part = store.run("loss and gradient", work)
    store.run("Hessian", refuse)
    store.require_any(part, None)
    with pytest.raises(UnsupportedModelError, match="no second derivative"):
        store.require_any(None, None)
    StageStore(None, PLAN).require_any(None)  # nothing failed: nothing was asked for


@pytest.mark.parametrize(
    "error", [CheckpointError("damaged"), OSError("full"), KeyboardInterrupt()]
)
def test_what_is_not_about_one_part_ends_all(error: BaseException) -> None:
    def fail(steps: Path | None, progress: Any) -> Point:
        raise error

    with pytest.raises(type(error)):
        StageStore(None, PLAN).run("Hessian", fail)


def test_progress_goes_on_past_a_failed_stage() -> None:
    seen: list[Progress] = []
    store = StageStore(None, PLAN, seen.append)
    for name in PLAN.names:
        store.run(name, refuse if name == "Gauss-Newton" else work)
    done = [step.done for step in seen]
    assert done == sorted(done)
    assert done[-1] == 1000


def test_only_damaged_files_and_the_like_end_everything() -> None:
    for error in (UnsupportedModelError("no"), RuntimeError("no"), MemoryError()):
        assert can_do_without(error)
    for error in (CheckpointError("damaged"), OSError(28, "No space left"), UserWarning("w")):
        assert not can_do_without(error)


def test_reasons_are_our_own_words_or_the_name_of_the_error() -> None:
    assert reason_of(UnsupportedModelError("Two\n lines.")) == "Two lines."
    assert reason_of(ZeroDivisionError("division")) == "ZeroDivisionError: division"
    assert reason_of(torch.OutOfMemoryError("CUDA")).startswith("The memory was not enough")
    assert "MemoryError" in reason_of(MemoryError())
