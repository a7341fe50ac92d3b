"""What ends an analysis, and what ends one of its parts."""

import torch

from eigenscape.analyses.whole._failures import can_do_without, reason_of
from eigenscape.errors import CheckpointError, UnsupportedModelError


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
