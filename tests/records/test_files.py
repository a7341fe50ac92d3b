"""Files: whole or not at all, and proven on reading."""

import os
from pathlib import Path

import pytest
import torch

from eigenscape.errors import FileError
from eigenscape.records import (
    crc,
    digest,
    read_tensors,
    sha256,
    tensor_text,
    text_tensor,
    write_bytes,
    write_tensors,
    write_with,
)


def test_tensors_come_back_bit_by_bit(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    tensors = {
        "matrix": torch.randn(3, 5).T,  # not contiguous
        "half": torch.randn(4).to(torch.bfloat16),
        "count": torch.arange(7),
        "nothing": torch.zeros(0),
    }
    tensors["view"] = tensors["matrix"][1:]  # shares memory
    write_tensors(file, tensors)
    again = read_tensors(file)
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(again[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("keep", [0, 5, 200])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "a.safetensors"
    write_tensors(file, {"a": torch.randn(100)})
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(FileError, match="damaged"):
        read_tensors(file)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_tensors(file, {"a": torch.randn(100)})
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)
    with pytest.raises(FileError, match="checksum"):
        read_tensors(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nowhere"):
        read_tensors(tmp_path / "nowhere")


def test_a_failed_write_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_bytes(file, b"old")

    def fail(path: Path) -> None:
        path.write_bytes(b"half of the n")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_with(file, fail)
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_checksums_see_every_byte(tmp_path: Path) -> None:
    tensor = torch.zeros(9)
    assert crc(tensor) != crc(torch.cat([tensor[:-1], torch.ones(1) * 5e-324]))
    assert crc(torch.zeros(0)) == 0
    write_bytes(tmp_path / "abc", b"abc")
    # The test vector of FIPS 180-2, appendix B.1.
    assert sha256(tmp_path / "abc").startswith("ba7816bf8f01cfea414140de5dae2223")


def test_arrays_are_as_readable_as_other_files(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)})
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_digest_tells_values_apart_and_not_their_order() -> None:
    assert digest({"a": (1, 2), "b": None}) == digest({"b": None, "a": [1, 2]})
    assert len({digest(plain) for plain in ({"a": 1}, {"a": 2}, {"b": 1}, ["a", 1])}) == 4
    assert len(digest({})) == 10


def test_text_among_tensors(tmp_path: Path) -> None:
    for text in ("λ₁/λ₂ on a GPU", ""):
        write_tensors(tmp_path / "x.safetensors", {"text": text_tensor(text)})
        assert tensor_text(read_tensors(tmp_path / "x.safetensors")["text"]) == text
