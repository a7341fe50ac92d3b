"""Records: plain values out, advice where something did not converge."""

import json
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from torch import Tensor

from eigenscape.errors import ConvergenceWarning, EigenscapeError
from eigenscape.linalg.records import Record, Status


@dataclass(frozen=True)
class Sample(Record):
    values: Tensor
    nested: tuple[int, dict[str, Tensor]]


def sample(*, converged: bool) -> Sample:
    return Sample(
        status=Status(converged, "Try more."),
        num_products=3,
        seed=1,
        values=torch.tensor([1.0, 2.0]),
        nested=(4, {"a": torch.tensor(5)}),
    )


def test_to_dict_is_json() -> None:
    plain = json.loads(json.dumps(sample(converged=True).to_dict()))
    assert plain == {
        "status": {"converged": True, "text": "Try more."},
        "num_products": 3,
        "seed": 1,
        "values": [1.0, 2.0],
        "nested": [4, {"a": 5}],
    }


def test_status_is_a_truth_value_with_a_text() -> None:
    assert Status(True, "yes")
    assert not Status(False, "no")
    assert str(Status(False, "no")) == "no"


def test_warn_only_where_not_converged() -> None:
    Status(True, "fine").warn()
    with pytest.warns(ConvergenceWarning, match="Try more"):
        Status(False, "Try more.").warn()


def test_require_converged() -> None:
    sample(converged=True).require_converged()
    with pytest.raises(EigenscapeError, match="Try more"):
        sample(converged=False).require_converged()


def test_records_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        sample(converged=True).seed = 2
