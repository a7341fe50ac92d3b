"""Plans beyond this machine are refused, with advice."""

from pathlib import Path

import pytest
import torch

from eigenscape.analyses.whole import _machine
from eigenscape.analyses.whole._machine import available_disk, available_memory, require_room
from eigenscape.errors import TooLargeError

CPU = torch.device("cpu")


def test_what_the_machine_has_is_enough_for_little_and_not_for_all(tmp_path: Path) -> None:
    memory, disk = available_memory(CPU), available_disk(tmp_path)
    assert memory > 10**6
    assert disk > 10**6
    require_room(10**6, 10**6, CPU, tmp_path)
    with pytest.raises(TooLargeError, match=r"about 1e\+09 GB of memory.*--ignore-limits"):
        require_room(10**18, 0, CPU, tmp_path)
    with pytest.raises(TooLargeError, match=r"disk in .*num_pairs="):
        require_room(0, 10**18, CPU, tmp_path)
    require_room(0, 10**18, CPU, None)  # nothing is written


def test_a_folder_that_is_not_there_lies_on_the_disk_of_the_one_above(tmp_path: Path) -> None:
    assert available_disk(tmp_path / "a" / "b") == pytest.approx(available_disk(tmp_path), rel=0.1)


def test_a_container_has_less_than_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_machine, "_CONTAINER", tmp_path)
    files = {"memory.max": "5000000", "memory.current": "4000000"}
    files["memory.stat"] = "anon 1\ninactive_file 500000\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert available_memory(CPU) == 1_500_000
    (tmp_path / "memory.max").write_text("max")
    assert available_memory(CPU) > 1_500_000


def test_a_machine_that_does_not_say_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_machine, "_CONTAINER", tmp_path)
    monkeypatch.setattr(_machine, "_host_memory", lambda: None)
    assert available_memory(CPU) is None
    require_room(10**18, 0, CPU, None)
