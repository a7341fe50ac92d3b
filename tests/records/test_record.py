"""Records: plain values out, advice where something did not converge."""

import json
import math
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from torch import Tensor

from eigenscape.errors import ConvergenceWarning, EigenscapeError, FileError
from eigenscape.records import Record, Status, pack, text_table, unpack

# Makes each class by its name alone, with all rooms but `report` and what it needs unseen.


@dataclass(frozen=True)
class Sample(Record):
    values: Tensor
    nested: tuple[int, dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Nested(Record):
    part: Record | None
    number: float


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
        "self_test": None,
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


def test_records_go_to_json_and_tensors_and_back() -> None:
    before = sample(converged=False)
    plain, tensors = pack(before)
    again = unpack(json.loads(json.dumps(plain)), tensors)
    assert type(again) is Sample
    assert again.to_dict() == before.to_dict()
    assert again.nested[1]["a"].dtype == torch.int64
    assert isinstance(again.nested, tuple)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_survive(value: float) -> None:
    before = Nested(Status(True, ""), 0, 0, part=None, number=value)
    plain, tensors = pack(before)
    text = json.dumps(plain, allow_nan=False)
    assert repr(unpack(json.loads(text), tensors).number) == repr(value)


def test_records_inside_records_come_back() -> None:
    before = Nested(Status(True, ""), 0, 0, part=sample(converged=True), number=0.5)
    again = unpack(*pack(before))
    assert torch.equal(again.part.values, before.part.values)


def test_only_known_classes_are_made() -> None:
    with pytest.raises(FileError, match="unknown kind 'Popen'"):
        unpack({"$record": "Popen", "fields": {"args": "true"}}, {})


def test_other_fields_are_refused() -> None:
    plain, tensors = pack(sample(converged=True))
    del plain["fields"]["values"]
    with pytest.raises(FileError, match="other fields"):
        unpack(plain, tensors)


def test_a_missing_array_is_named() -> None:
    plain, _ = pack(sample(converged=True))
    with pytest.raises(FileError, match="'values'"):
        unpack(plain, {})


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(FileError, match=r"'number' is a complex"):
        pack(Nested(Status(True, ""), 0, 0, part=None, number=1j))


def test_frames_tables_and_text() -> None:
    record = Nested(Status(True, "Fine."), 0, 0, part=None, number=0.5)
    assert record.to_frame().to_dict("list") == {"number": [0.5]}
    assert str(record) == "number\n   0.5\nFine."
    many = text_table({"n": range(30)}, shown=3)
    assert many.splitlines() == ["n", "0", "1", "2", "… 27 more"]


def test_the_representation_holds_no_tensors() -> None:
    text = repr(sample(converged=True))
    assert "values=Tensor(2,)" in text
    assert "tensor(" not in text


def test_moving_to_the_host_keeps_everything() -> None:
    before = Nested(Status(True, ""), 0, 0, part=sample(converged=True), number=0.5)
    after = before.cpu()
    assert type(after) is Nested
    assert after.to_dict() == before.to_dict()
