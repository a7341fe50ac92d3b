"""Checkpoints: whole or not at all, of this computation or refused."""

from pathlib import Path

import pytest
import torch

from eigenscape.errors import CheckpointError
from eigenscape.records import Checkpoint


def test_pieces_come_back_in_order(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "run", {"what": "test", "seed": 3})
    assert checkpoint.load() == []
    pieces = [{"a": torch.randn(3), "n": torch.tensor([i])} for i in range(3)]
    for piece in pieces:
        checkpoint.append(piece)
    again = Checkpoint(tmp_path / "run", {"seed": 3, "what": "test"}).load()
    assert [int(piece["n"]) for piece in again] == [0, 1, 2]
    torch.testing.assert_close(again[1]["a"], pieces[1]["a"], rtol=0, atol=0)


def test_replace_leaves_one_piece(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, {})
    for i in range(3):
        checkpoint.replace({"n": torch.tensor([i])})
    assert [int(piece["n"]) for piece in checkpoint.load()] == [2]


def test_another_computation_is_refused_with_the_difference(tmp_path: Path) -> None:
    Checkpoint(tmp_path, {"seed": 1, "num_steps": 10})
    with pytest.raises(CheckpointError, match="seed: 1, now 2"):
        Checkpoint(tmp_path, {"seed": 2, "num_steps": 10})


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CheckpointError, match="other files"):
        Checkpoint(tmp_path, {})


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_piece_is_refused(tmp_path: Path, damage: str) -> None:
    checkpoint = Checkpoint(tmp_path, {})
    checkpoint.append({"a": torch.randn(100)})
    file = next(tmp_path.glob("piece-*"))
    content = bytearray(file.read_bytes())
    if damage == "truncate":
        content = content[:-50]
    elif damage == "flip":
        content[-8] ^= 1  # one bit of one number
    else:
        content = bytearray()
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged.*Delete the folder"):
        checkpoint.load()


def test_a_missing_piece_is_noticed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, {})
    for i in range(3):
        checkpoint.append({"n": torch.tensor([i])})
    (tmp_path / "piece-000001.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks pieces"):
        checkpoint.load()


def test_an_unfinished_write_is_ignored(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, {})
    checkpoint.append({"n": torch.tensor([7])})
    (tmp_path / ".piece-000001.safetensors.unfinished").write_bytes(b"half of a piece")
    assert [int(piece["n"]) for piece in Checkpoint(tmp_path, {}).load()] == [7]


def test_an_unreadable_key_is_refused(tmp_path: Path) -> None:
    Checkpoint(tmp_path, {})
    (tmp_path / "key.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint(tmp_path, {})
