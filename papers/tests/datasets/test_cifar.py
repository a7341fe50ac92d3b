import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eigenscape.errors import DataError
from eigenscape_papers.datasets import from_pixels, load, load_cifar, pixel_statistics, unpickle
from eigenscape_papers.datasets._catalogue import CIFAR10

# What Python 2 with numpy 1 wrote for {"data": np.array([[1, 2, 3], [4, 5, 6]], "u1"), "n": [7]}:
# strings without a coding, and numpy.core, which is no more.
PYTHON2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
    b"K\x00\x85q\x05U\x01bq\x06\x87q\x07Rq\x08(K\x01K\x02K\x03\x86q\x09cnumpy\ndtype\nq\x0aU\x02u1q"
    b"\x0bK\x00K\x01\x87q\x0cRq\x0d(K\x03U\x01|q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq"
    b"\x0fb\x89U\x06\x01\x02\x03\x04\x05\x06q\x10tq\x11bU\x01nq\x12]q\x13K\x07au."
)


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickle_of_python_2_is_read() -> None:
    content = unpickle(PYTHON2, "f")
    assert content[b"data"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert content[b"data"].dtype == np.uint8
    assert content[b"n"] == [7]


def test_malicious_pickle_is_not_run(tmp_path: Path) -> None:
    target = tmp_path / "made-by-a-pickle"
    content = pickle.dumps({b"data": Evil(target)})
    pickle.loads(content)
    assert target.exists()  # it does work where pickles are trusted
    target.rmdir()
    with pytest.raises(DataError, match=r"^batch: .*asks for posix\.mkdir.*Nothing was run"):
        unpickle(content, "batch")
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nfromfile\n(S'x'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.dot\x93.",
        b"(S'true'\nios\nsystem\n.",
        b"\x82\x01.",
    ],
)
def test_other_globals_are_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^f"):
        unpickle(content, "f")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "EOFError"),
        (b"no pickle", "must be a pickle"),
        (PYTHON2[:-30], "must be a pickle"),
        (pickle.dumps([1]), "must hold a dict; got list"),
        (PYTHON2.replace(b"U\x02u1", b"U\x02O8"), "uint8 arrays in C order"),
        (PYTHON2.replace(b"\x89U\x06", b"\x88U\x06"), "uint8 arrays in C order"),
        (PYTHON2.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86"), "damaged array"),
    ],
)
def test_wrong_pickles_are_refused(content: bytes, words: str) -> None:
    assert content != PYTHON2
    with pytest.raises(DataError, match=words):
        unpickle(content, "f")


def test_checksum_comes_before_the_pickle(tiny_cifar: Any, tmp_path: Path) -> None:
    tiny_cifar.write("none", "tiny-py")
    target = tmp_path / "made-by-a-pickle"
    tiny_cifar.put("tiny-py/batch_1", pickle.dumps({b"data": Evil(target)}))
    with pytest.raises(DataError, match="batch_1 is damaged or not the published file"):
        load_cifar(tiny_cifar.spec, folder=tiny_cifar.folder)
    assert not target.exists()


@pytest.mark.parametrize("layout", ["none", "xz", "archive"])
def test_images_are_loaded(tiny_cifar: Any, layout: str) -> None:
    if layout == "archive":
        tiny_cifar.put("tiny-python.tar.gz", tiny_cifar.tar)
    else:
        tiny_cifar.write(layout, "tiny-py")
    for split in ("train", "test"):
        data = load_cifar(tiny_cifar.spec, split=split, folder=tiny_cifar.folder)
        train = torch.from_numpy(tiny_cifar.images["train"])
        scale = pixel_statistics(train).named("standard", "f")
        expected = from_pixels(torch.from_numpy(tiny_cifar.images[split]), scale)
        assert torch.equal(data.inputs, expected)
        assert data.targets.tolist() == tiny_cifar.labels[split]
        assert data.class_names == ("cat", "dog", "ship")
    assert [step.split()[1].removesuffix(".xz") for step in data.history[:2]] == [
        "test_batch",
        "meta",
    ]


def altered(tiny: Any, name: str, **changes: Any) -> Any:
    """Return the set with entries of one pickle changed, written to its folder."""
    content = pickle.loads(tiny.contents[name])
    content |= {key.encode(): value for key, value in changes.items()}
    other = tiny.with_content(name, pickle.dumps(content, protocol=3))
    other.write("none", "")
    return other


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"data": np.zeros((2, 12), np.uint8)},
            r"shape \(3, 12\) under 'data'; got shape \(2, 12\)",
        ),
        ({"data": b"bytes"}, "under 'data'; got bytes"),
        ({"labels": [0, 1]}, "list of 3 labels under 'labels'; got 2"),
        ({"labels": None}, "got NoneType"),
        ({"labels": [0, 1, 3]}, "labels from 0 to 2"),
        ({"labels": [0, 1, -1]}, "labels from 0 to 2"),
        ({"labels": [0, 1, 1.0]}, "labels from 0 to 2"),
    ],
)
def test_wrong_batches_are_refused(tiny_cifar: Any, changes: Any, words: str) -> None:
    tiny = altered(tiny_cifar, "batch_2", **changes)
    with pytest.raises(DataError, match=f"batch_2 must hold .*{words}"):
        load_cifar(tiny.spec, folder=tiny.folder)


def test_wrong_names_are_refused(tiny_cifar: Any) -> None:
    tiny = altered(tiny_cifar, "meta", label_names=[1, 2, 3])
    with pytest.raises(DataError, match="meta must hold a list of class names; got list"):
        load_cifar(tiny.spec, folder=tiny.folder)
    tiny = altered(tiny_cifar, "meta", label_names=[b"cat"])
    with pytest.raises(DataError, match=r"3 classes .* and 1 names"):
        load_cifar(tiny.spec, folder=tiny.folder)


def test_other_keys_are_read_where_the_spec_says_so(tiny_cifar: Any) -> None:
    tiny = altered(tiny_cifar, "test_batch", fine_labels=[0, 0, 1, 1])
    tiny = altered(tiny, "batch_1", fine_labels=[0, 0, 0])
    tiny = altered(tiny, "batch_2", fine_labels=[0, 0, 0])
    spec = replace(tiny.spec, label_key=b"fine_labels")
    assert load_cifar(spec, split="test", folder=tiny.folder).targets.tolist() == [0, 0, 1, 1]


def test_real_images(real_folder: str) -> None:
    data = load("cifar10", folder=real_folder, normalise="unit")
    assert data.inputs.shape == (50_000, 3, 32, 32)
    measured = pixel_statistics((data.inputs * 255).round_().to(torch.uint8))
    assert CIFAR10.statistics is not None
    np.testing.assert_allclose(measured.mean, CIFAR10.statistics.mean, rtol=1e-14)
    np.testing.assert_allclose(measured.std, CIFAR10.statistics.std, rtol=1e-14)
    assert torch.bincount(data.targets).tolist() == [5000] * 10
    assert data.class_names is not None
    assert (data.class_names[0], data.class_names[9]) == ("airplane", "truck")
    # The first image of the first batch is a frog.
    assert data.class_names[int(data.targets[0])] == "frog"
