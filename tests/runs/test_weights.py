"""Weights from files: read, or refused before anything in them could run."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eigenscape.errors import FileError
from eigenscape.runs import read_weights, unwrapped

STATE = {"w": torch.arange(3.0)}


class Surprise:
    """What a pickle would run when it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('it ran')",)


def test_both_formats_are_read(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "net.safetensors")
    torch.save({"model": STATE, "epoch": 3}, tmp_path / "net.any")
    assert torch.equal(read_weights(tmp_path / "net.safetensors", "It")["w"], STATE["w"])
    content = read_weights(tmp_path / "net.any", "It")
    state, key = unwrapped(content)
    assert (content["epoch"], key) == (3, "model")
    assert torch.equal(state["w"], STATE["w"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("code.pt", "It holds Python objects beside tensors.*nothing was run"),
        ("broken.safetensors", "It cannot be read: it is no complete safetensors file"),
        ("broken.pt", "It holds more than tensors.*nothing was run"),
        ("brokn.pt", "It cannot be read: there is no such file.*'broken.pt'"),
    ],
)
def test_files_that_are_no_weights_are_refused(tmp_path: Path, name: str, said: str) -> None:
    torch.save({"w": Surprise()}, tmp_path / "code.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    (tmp_path / "broken.pt").write_bytes(b"nothing")
    with pytest.raises(FileError, match=said):
        read_weights(tmp_path / name, "It")
