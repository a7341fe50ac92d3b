"""A text as windows of characters and what follows each: Tiny Shakespeare or your own."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from eigenscape.errors import DataError, InvalidArgumentError, require_choice, require_count
from eigenscape_papers.datasets._catalogue import SHAKESPEARE
from eigenscape_papers.datasets._images import Folder
from eigenscape_papers.datasets._specs import FileSet
from eigenscape_papers.datasets.data_set import DataSet
from eigenscape_papers.datasets.files import read_files

# The first nine tenths of the text train, the rest tests: neighbouring windows are alike, so a
# random split would test on what was almost seen.
_TRAIN_TENTHS = 9


def load_characters(
    files: FileSet = SHAKESPEARE,
    *,
    split: str = "train",
    folder: Folder = None,
    path: str | os.PathLike[str] | None = None,
    context: int = 64,
) -> DataSet:
    """Cut a text into windows that do not overlap.

    Inputs are (samples, context) characters as numbers, targets the same windows one character
    later. The vocabulary is that of the whole text, both splits, in the order of Unicode.

    Args:
        files: Where the built-in text stands.
        split: "train" (the first 90 % of the text) or "test" (the rest).
        folder: Where the built-in text is.
        path: A text file of your own in UTF-8, instead of the built-in one.
        context: Characters in a window.

    Returns:
        The data set; `class_names` are the characters.

    Raises:
        DataError: If the file is missing, damaged or not UTF-8.
        InvalidArgumentError: If the split is shorter than one window and its next character.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("ab.txt").write_text("abab" * 10)
        >>> windows = load_characters(path="ab.txt", context=5)
        >>> windows.inputs[0].tolist(), windows.targets[0].tolist(), windows.class_names
        ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1], ('a', 'b'))
    """
    require_choice(split, ("train", "test"), "load('characters', split=...)")
    require_count(context, "load('characters', context=...)")
    text, source = _text(files, folder, path)
    codes, numbers = np.unique(
        np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True
    )
    stream = torch.from_numpy(numbers.astype(np.int64))
    border = len(stream) * _TRAIN_TENTHS // 10
    tokens = stream[:border] if split == "train" else stream[border:]
    count = (len(tokens) - 1) // context
    if count < 1:
        raise InvalidArgumentError(
            f"`load('characters', context={context})` needs at least {context + 1} characters; "
            f"the {split} split has {len(tokens)} of {len(text)}. Use a smaller `context` or a "
            "longer text."
        )
    return DataSet(
        name="characters",
        inputs=tokens[: count * context].reshape(count, context),
        targets=tokens[1 : count * context + 1].reshape(count, context),
        num_classes=len(codes),
        class_names=tuple(chr(code) for code in codes),
        split=split,
        history=(
            source,
            f"{split} split: {len(tokens)} of {len(text)} characters, the border at {border}",
            f"{count} windows of {context} characters that do not overlap",
        ),
    )


def _text(files: FileSet, folder: Folder, path: str | os.PathLike[str] | None) -> tuple[str, str]:
    if path is None:
        content = next(read_files(files, [files.files[0].name], folder))
        data, source, name = content.data, content.source, content.name
    else:
        name = str(path)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(
                f"`load('characters', path=...)` needs a text file; {name} cannot be read: {error}."
            ) from error
        source = f"read {Path(path).name} (sha256:{hashlib.sha256(data).hexdigest()})"
    try:
        return data.decode("utf-8"), source
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} must be a text in UTF-8; got other bytes at {error.start}. Convert it first."
        ) from error
