import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eigenscape.errors import DataError, UnknownNameError
from eigenscape_papers.datasets import from_pixels, load, load_idx, parse_idx, pixel_statistics
from eigenscape_papers.datasets._catalogue import FASHION_MNIST, MNIST

GOOD = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])


def test_array_is_parsed() -> None:
    assert parse_idx(GOOD, "f").tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "got nothing"),
        (b"\x1f\x8b\x08\x00" + GOOD, "begin with 00 00 08 .* got 1f 8b 08 00"),
        (b"\0\0\x0d\x02" + GOOD[4:], "got 00 00 0d 02"),
        (b"\0\0\x08\x00", "got 00 00 08 00"),
        (GOOD[:-1], r"expected 6 bytes for shape \(2, 3\), got 5"),
        (GOOD + b"\0", "got 7"),
        (GOOD[:9], "expected 2 dimensions in 12 bytes, got 9"),
    ],
)
def test_wrong_content_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(DataError, match=f"^file .*{words}"):
        parse_idx(content, "file")


@pytest.mark.parametrize("packing", ["gz", "none"])
def test_images_are_loaded(tiny_idx: Any, packing: str) -> None:
    tiny_idx.write(packing, "Tiny/raw")
    data = load_idx(tiny_idx.spec, folder=tiny_idx.folder, normalise="unit")
    expected = torch.from_numpy(tiny_idx.images["train"]).float()[:, None] / 255
    torch.testing.assert_close(data.inputs, expected, rtol=0, atol=0)
    assert data.inputs.dtype == torch.float32
    assert data.targets.tolist() == tiny_idx.labels["train"]
    assert data.class_names == ("a", "b", "c")
    assert len(data.history) == 3
    assert data.history[0].startswith("read train-images")


def test_test_split_uses_the_statistics_of_the_training_split(tiny_idx: Any) -> None:
    tiny_idx.write("gz", "")
    data = load_idx(tiny_idx.spec, split="test", folder=tiny_idx.folder)
    train = torch.from_numpy(tiny_idx.images["train"])[:, None]
    test = torch.from_numpy(tiny_idx.images["test"])[:, None]
    scale = pixel_statistics(train).named("standard", "f")
    assert torch.equal(data.inputs, from_pixels(test, scale))
    assert not torch.equal(data.inputs, from_pixels(test, pixel_statistics(test)))
    assert data.targets.tolist() == tiny_idx.labels["test"]


def test_images_of_another_shape_are_refused(tiny_idx: Any) -> None:
    content = bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 3, 0, 0, 0, 4]) + bytes(72)
    tiny = tiny_idx.with_content("train-images", content)
    tiny.write("gz", "")
    with pytest.raises(DataError, match=r"images \(6, 1, 4, 3\).*got \(6, 1, 3, 4\)"):
        load_idx(tiny.spec, folder=tiny.folder)


def test_labels_out_of_range_are_refused(tiny_idx: Any) -> None:
    tiny = tiny_idx.with_content("train-labels", bytes([0, 0, 8, 1, 0, 0, 0, 6, 0, 1, 2, 3, 0, 1]))
    tiny.write("gz", "")
    with pytest.raises(DataError, match="3 classes with labels from 0; got labels from 0 to 3"):
        load_idx(tiny.spec, folder=tiny.folder)


def test_files_that_changed_places_are_refused(tiny_idx: Any) -> None:
    tiny = tiny_idx.with_content("train-images", tiny_idx.contents["train-labels"])
    tiny.write("gz", "")
    with pytest.raises(DataError, match="must have 3 dimensions and 1; got 1 and 1"):
        load_idx(tiny.spec, folder=tiny.folder)


def test_normalisation_is_refused_before_anything_is_read(tiny_idx: Any) -> None:
    with pytest.raises(UnknownNameError, match="got 'whitened'"):
        load_idx(tiny_idx.spec, folder=tiny_idx.folder, normalise="whitened")


@pytest.mark.parametrize("spec", [MNIST, FASHION_MNIST], ids=["mnist", "fashion-mnist"])
def test_real_images(spec: Any, real_folder: str) -> None:
    data = load(spec.files.name, folder=real_folder, normalise="unit")
    pixels = (data.inputs * 255).round().to(torch.uint8)
    measured = pixel_statistics(pixels)
    np.testing.assert_allclose(measured.mean, spec.statistics.mean, rtol=1e-14)
    np.testing.assert_allclose(measured.std, spec.statistics.std, rtol=1e-14)
    counts = torch.bincount(data.targets)
    expected = (5421, 6742) if spec is MNIST else (6000, 6000)
    assert (int(counts.min()), int(counts.max())) == expected
    test = load(spec.files.name, split="test", folder=real_folder)
    assert test.num_samples == 10_000


def test_real_unpacked_images(real_folder: str, tmp_path: Path) -> None:
    """The checksums of unpacked files were computed here, so hold them against the packed ones."""
    for spec, sub in ((MNIST, "MNIST"), (FASHION_MNIST, "FashionMNIST")):
        for name in spec.split_files["test"]:
            packed = Path(real_folder) / sub / "raw" / f"{name}.gz"
            target = tmp_path / sub / "raw" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(gzip.decompress(packed.read_bytes()))
        data = load(spec.files.name, split="test", folder=tmp_path)
        packed_data = load(spec.files.name, split="test", folder=real_folder)
        assert torch.equal(data.inputs, packed_data.inputs)
        assert "computed from the published .gz" in data.history[0]
