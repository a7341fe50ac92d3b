"""Stored records: bit by bit, found by room and name; a file chooses no module to run."""

import json
import math
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from importlib.resources import files
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from eigenscape.errors import FileError, InvalidArgumentError
from eigenscape.linalg import SpectralDensity
from eigenscape.operator import Dense
from eigenscape.records import Record, Status, pack, unpack
from eigenscape.records import stored as module
from eigenscape.records.stored import key_of, storable


@storable
@dataclass(frozen=True)
class Weighed:
    """A part of a record."""

    weight: float
    curve: Tensor
    inner: "Weighed | None" = None


@dataclass(frozen=True, eq=False)
class Kept(Record):
    """A record with everything that can be kept."""

    RENAMED: ClassVar = {"grosse": "size"}

    matrix: Tensor
    size: float = 0.0
    table: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Weighed, ...] = ()


def kept(**fields: Any) -> Kept:
    return Kept(Status(True, "Fine."), 3, 1, **{"matrix": torch.zeros(2), **fields})


def through_json(record: Any) -> Any:
    """Pack, write the plain part as JSON and read it, and unpack."""
    plain, tensors = pack(record)
    return unpack(json.loads(json.dumps(plain, allow_nan=False)), tensors)


def same_bits(a: Tensor, b: Tensor) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.contiguous().view(torch.uint8).tolist() == b.contiguous().view(torch.uint8).tolist()


ODD = torch.tensor([[0.1, -0.0, math.inf], [math.nan, 5e-324, 1 / 3]], dtype=torch.float64)


# --- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_tensors_come_back_bit_by_bit(dtype: torch.dtype) -> None:
    matrix = ODD.nan_to_num(7.0, 8.0).to(dtype) if dtype == torch.int64 else ODD.to(dtype)
    parts = (Weighed(1.0, ODD[1], Weighed(2.0, ODD.T)), Weighed(3.0, ODD[:, :0]))
    after = through_json(kept(matrix=matrix, parts=parts, table={"a": (1, {"b": ODD[0]})}))
    same_bits(after.matrix, matrix)
    same_bits(after.parts[0].inner.curve, ODD.T)
    same_bits(after.parts[1].curve, ODD[:, :0])
    same_bits(after.table["a"][1]["b"], ODD[0])
    with pytest.raises(AssertionError):
        same_bits(after.matrix, torch.zeros(2, 3, dtype=dtype))


NUMBERS = [0.1, -0.0, 1e-308, 5e-324, math.pi * 1e300, math.inf, -math.inf, math.nan, 2**70, -3]


@pytest.mark.parametrize("value", NUMBERS)
def test_numbers_come_back_digit_by_digit(value: float) -> None:
    after = through_json(kept(size=value))
    assert repr(after.size) == repr(value)
    assert type(after.size) is type(value)


def test_classes_and_plain_values_come_back() -> None:
    table = {"flag": True, "none": None, "text": "λ\n", "many": (1, (2.5, "x")), "empty": {}}
    after = through_json(kept(table=table, parts=(Weighed(1.0, ODD),)))
    assert after.table == table
    assert type(after) is Kept
    assert type(after.parts[0]) is Weighed
    assert after.status == Status(True, "Fine.")
    assert type(after.table["flag"]) is bool


def test_names_of_tensors_say_where_they_are() -> None:
    record = kept(matrix=ODD, parts=(Weighed(1.0, ODD, Weighed(2.0, ODD)),))
    plain, tensors = pack(record)
    assert set(tensors) == {"matrix", "parts.0.curve", "parts.0.inner.curve"}
    assert plain["fields"]["matrix"] == {"$tensor": "matrix"}
    assert pack(ODD)[1].keys() == {"value"}


# --- names ---------------------------------------------------------------------------------------


def test_a_class_is_named_by_its_room() -> None:
    assert key_of(SpectralDensity) == "eigenscape.linalg:SpectralDensity"
    assert key_of(Status) == "eigenscape.records:Status"
    assert pack(Status(True, ""))[0]["$record"] == "eigenscape.records:Status"


def test_bare_names_of_old_files_are_read() -> None:
    old = {"$record": "Status", "fields": {"converged": False, "text": "More."}}
    assert unpack(old, {}) == Status(False, "More.")


def test_fields_that_were_renamed_are_read() -> None:
    plain, tensors = pack(kept(size=2.5))
    plain["fields"]["grosse"] = plain["fields"].pop("size")
    assert unpack(plain, tensors).size == 2.5


def test_a_second_class_of_that_room_and_name_is_refused() -> None:
    def another(module_name: str) -> type:
        cls = make_dataclass("Weighed", ["weight"], frozen=True)
        cls.__module__ = module_name
        return cls

    room = ".".join(Weighed.__module__.split(".")[:2])
    with pytest.raises(InvalidArgumentError, match=rf"Two storable.*'{room}:Weighed'.*elsewhere"):
        storable(another(f"{room}.elsewhere"))
    # The same module run again, as in a notebook, and another room are no trouble.
    before = dict(module._classes)
    try:
        storable(another(Weighed.__module__))
        storable(another("other.room"))
    finally:
        module._classes.clear()
        module._classes.update(before)


# --- what a file may not do ----------------------------------------------------------------------


@pytest.fixture
def unused_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module on the path that nobody has imported."""
    name = "lying_in_wait"
    (tmp_path / f"{name}.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    assert name not in sys.modules


def test_a_file_imports_no_module_of_its_choice(unused_module: str) -> None:
    plain = {"$record": f"{unused_module}:Trap", "fields": {}}
    with pytest.raises(FileError, match=rf"'Trap' of '{unused_module}', which is not imported"):
        unpack(plain, {})
    with pytest.raises(SystemExit, match="it ran"):  # it would have been noticed
        __import__(unused_module)


@pytest.mark.parametrize("kind", ["subprocess:Popen", "builtins:eval", "eigenscape.linalg:eigsh"])
def test_only_storable_classes_of_imported_modules_are_made(kind: str) -> None:
    with pytest.raises(FileError, match="unknown kind"):
        unpack({"$record": kind, "fields": {"args": "true"}}, {})


def test_a_class_of_a_users_module_that_is_imported_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = types.ModuleType("my_analysis")
    cls = make_dataclass("Mine", [("count", int)], frozen=True)
    cls.__module__ = mine.__name__
    monkeypatch.setitem(sys.modules, mine.__name__, mine)
    monkeypatch.setitem(module._classes, key_of(cls), cls)
    plain, tensors = pack(cls(4))
    assert plain["$record"] == "my_analysis:Mine"
    assert unpack(plain, tensors) == cls(4)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["eigenscape.nowhere:Status", "eigenscape.records:Statuss", "Statuss", "eigenscape"]
)
def test_an_unknown_kind_is_refused_in_words(kind: str) -> None:
    with pytest.raises(FileError, match=rf"unknown kind '{kind}'.*another version of eigenscape"):
        unpack({"$record": kind, "fields": {}}, {})


def test_a_near_name_is_offered() -> None:
    with pytest.raises(FileError, match=r"eigenscape\.records:Status\b"):
        unpack({"$record": "eigenscape.records:Statuss", "fields": {}}, {})


def test_a_missing_tensor_is_named() -> None:
    plain, tensors = pack(kept(parts=(Weighed(1.0, ODD),)))
    del tensors["parts.0.curve"]
    with pytest.raises(FileError, match=r"The array 'parts\.0\.curve' of a record is missing"):
        unpack(plain, tensors)


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_other_fields_are_refused_in_words(change: str) -> None:
    plain, tensors = pack(kept())
    if change == "more":
        plain["fields"]["surplus"] = 1
    else:
        del plain["fields"]["matrix"]
    with pytest.raises(FileError, match=r"A stored Kept has other fields.*Run the computation"):
        unpack(plain, tensors)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", 1j, object(), Dense(torch.eye(2))])
def test_what_cannot_be_stored_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(FileError, match=rf"'table\.a\.1' is a {type(value).__name__}"):
        pack(kept(table={"a": [0, value]}))


# --- every class of an old file ------------------------------------------------------------------

OPEN = """
import json, sys
from eigenscape.errors import FileError
from eigenscape.records import unpack

unknown = []
for kind in json.load(sys.stdin):
    try:
        unpack({"$record": kind, "fields": {"no such field": 0}}, {})
    except FileError as error:
        if "other fields" not in str(error):
            unknown.append(kind)
print(json.dumps(unknown))
"""


def test_every_old_name_is_found_by_a_fresh_process() -> None:
    text = files("eigenscape.records").joinpath("old_names.json").read_text(encoding="utf-8")
    names = json.loads(text)
    names.pop("Record", None)  # the base of all; no file has one
    assert len(names) > 50
    kinds = [*names, *names.values(), "Nobody", "eigenscape.records:Nobody"]
    command = [sys.executable, "-c", OPEN]
    done = subprocess.run(command, input=json.dumps(kinds), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Nobody", "eigenscape.records:Nobody"]


def test_paths_with_dots_in_their_keys_do_not_share_a_tensor() -> None:
    one, other = torch.ones(2), torch.zeros(3)
    plain, tensors = pack({"fc": {"weight": one}, "fc.weight": other})
    again = unpack(plain, tensors)
    assert torch.equal(again["fc"]["weight"], one)
    assert torch.equal(again["fc.weight"], other)


def test_keys_that_are_one_text_are_refused() -> None:
    with pytest.raises(FileError, match="keys that are one text"):
        pack({1: 0.5, "1": 0.25})


@pytest.mark.parametrize(
    "plain",
    [
        {"$record": "eigenscape.records:Status"},
        {"$record": 3, "fields": {}},
        {"$float": "abc"},
        {"$tensor": []},
        {"$record": "eigenscape.records:Status", "fields": [1]},
    ],
)
def test_what_pack_never_writes_is_a_file_error(plain: object) -> None:
    with pytest.raises(FileError):
        unpack(plain, {})
