from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eigenscape.errors import DataError, InvalidArgumentError
from eigenscape_papers.datasets import load, load_characters
from eigenscape_papers.datasets._catalogue import SHAKESPEARE

TEXT = "To be, or not to be: ünïcode — that is the question.\n" * 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT.encode("utf-8"))
    return file


def test_windows_and_their_next_characters(path: Path) -> None:
    data = load("characters", path=path, context=16)
    border = len(TEXT) * 9 // 10
    assert data.class_names == tuple(sorted(set(TEXT)))
    assert data.num_classes == len(set(TEXT))
    assert data.inputs.dtype == data.targets.dtype == torch.int64
    assert data.inputs.shape == data.targets.shape == ((border - 1) // 16, 16)
    read = lambda numbers: "".join(data.class_names[i] for i in numbers.flatten().tolist())
    covered = data.num_samples * 16
    assert read(data.inputs) == TEXT[:covered]
    assert read(data.targets) == TEXT[1 : covered + 1]


def test_test_split_is_the_end_of_the_text(path: Path) -> None:
    train, test = load("characters", path=path), load("characters", path=path, split="test")
    border = len(TEXT) * 9 // 10
    assert test.class_names == train.class_names
    read = "".join(test.class_names[i] for i in test.inputs[0].tolist())
    assert read == TEXT[border : border + 64]
    assert f"the border at {border}" in test.history[1]
    assert test.history[0].startswith("read text.txt (sha256:")


def test_vocabulary_is_that_of_both_splits(tmp_path: Path) -> None:
    file = tmp_path / "late.txt"
    file.write_text("a" * 90 + "z" * 10)
    assert load("characters", path=file, context=3).class_names == ("a", "z")


def test_a_last_character_without_a_next_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_text("abcdefghij" * 2)  # 18 characters train: 17 have a next one
    assert load("characters", path=file, context=9).num_samples == 1
    assert load("characters", path=file, context=17).num_samples == 1
    with pytest.raises(
        InvalidArgumentError, match="at least 19 characters; the train split has 18"
    ):
        load("characters", path=file, context=18)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt cannot be read"):
        load("characters", path=tmp_path / "absent.txt")
    latin = tmp_path / "latin.txt"
    latin.write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8; got other bytes at 3"):
        load("characters", path=latin)
    with pytest.raises(InvalidArgumentError, match="context"):
        load("characters", path=latin, context=0)


def test_built_in_text_is_checked(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("not Shakespeare")
    with pytest.raises(DataError, match="expected 1115394 bytes, got 15"):
        load_characters(SHAKESPEARE, folder=tmp_path)
    form = replace(SHAKESPEARE.files[0].forms[0], size=15)
    wrong = replace(SHAKESPEARE, files=(replace(SHAKESPEARE.files[0], forms=(form,)),))
    with pytest.raises(DataError, match=r"expected sha256:86c4.*, got sha256:"):
        load_characters(wrong, folder=tmp_path)


def test_real_text(real_folder: str) -> None:
    data = load("characters", folder=real_folder)
    assert data.num_classes == 65
    assert data.class_names is not None
    start = "".join(data.class_names[i] for i in data.inputs[0].tolist())
    assert start.startswith("First Citizen:\nBefore we proceed")
