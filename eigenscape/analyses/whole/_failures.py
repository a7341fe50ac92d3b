"""What happens to one part of an analysis and need not end the others."""

import torch

from eigenscape.errors import FileError

# Errors that concern all parts: damaged files, a lost process, a full disk, warnings as errors.
_OF_ALL = (FileError, OSError, Warning)


def can_do_without(error: Exception) -> bool:
    """Say whether the other parts of an analysis may go on after this."""
    return not isinstance(error, _OF_ALL)


def reason_of(error: Exception) -> str:
    """Return what happened, in a sentence or two."""
    said = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in said:
        return f"The memory was not enough ({said[:200] or type(error).__name__})."
    if type(error).__module__.startswith("eigenscape."):
        return said
    return f"{type(error).__name__}: {said[:500]}"
