import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as bundled

from eigenscape.errors import MissingPackageError, UnknownNameError
from eigenscape_papers.datasets import load


def test_splits_are_the_whole_set_once() -> None:
    images, labels = bundled(return_X_y=True)
    parts = [load("digits", split=s, normalise="unit") for s in ("train", "test")]
    assert [part.num_samples for part in parts] == [1437, 360]
    rows = np.concatenate([(part.flattened().inputs.numpy() * 16).round() for part in parts])
    targets = np.concatenate([part.targets.numpy() for part in parts])
    both = np.column_stack([rows, targets])
    expected = np.column_stack([images, labels])
    order = lambda array: array[np.lexsort(array.T)]
    np.testing.assert_array_equal(order(both), order(expected))


def test_test_split_is_balanced() -> None:
    assert torch.bincount(load("digits", split="test").targets).tolist() == [36] * 10


def test_split_never_changes() -> None:
    # Which samples are the test is a promise, so here are their first numbers and their sum.
    test = load("digits", split="test", normalise="unit")
    images, _ = bundled(return_X_y=True)
    number = {row.astype(np.uint8).tobytes(): i for i, row in enumerate(images)}
    rows = (test.flattened().inputs * 16).round().to(torch.uint8).numpy()
    numbers = [number[row.tobytes()] for row in rows]
    assert numbers == sorted(numbers)
    assert (numbers[:3], sum(numbers)) == ([10, 14, 21], 331_826)


def test_inputs_are_normalised_with_the_training_split() -> None:
    train, test = load("digits"), load("digits", split="test")
    assert train.input_shape == (1, 8, 8)
    assert train.inputs.dtype == torch.float32
    assert abs(float(train.inputs.double().mean())) < 1e-6
    assert abs(float(train.inputs.double().std(correction=0)) - 1) < 1e-6
    assert 1e-4 < abs(float(test.inputs.double().mean())) < 0.1
    assert test.pixels == train.pixels
    unit = load("digits", normalise="unit")
    assert (float(unit.inputs.min()), float(unit.inputs.max())) == (0.0, 1.0)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="normalise"):
        load("digits", normalise="none")


def test_missing_scikit_learn_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'eigenscape\[digits\]'"):
        load("digits")
