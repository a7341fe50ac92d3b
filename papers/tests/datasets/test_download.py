"""Downloads from a server on this machine that can misbehave in each way a real one does."""

import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from eigenscape.errors import DataError, InvalidArgumentError
from eigenscape.records import Progress
from eigenscape_papers.datasets import fetch_files, load_idx, locate_files


@dataclass
class Server:
    """What the server has and how it behaves.

    Attributes:
        files: Contents by name.
        break_after: Bytes after which a connection is cut, for as many requests as listed.
        refuse_with: Codes of errors, for as many requests as listed.
        redirect: Where it sends those who ask for something in the folder `moved`.
        requests: (name, range) of what was asked for.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    break_after: list[int] = field(default_factory=list)
    refuse_with: list[int] = field(default_factory=list)
    redirect: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/")
            asked = self.headers.get("Range", "")
            state.requests.append((name, asked))
            if name.startswith("moved/"):
                self.send_response(302)
                self.send_header("Location", state.redirect + name.removeprefix("moved/"))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if name not in state.files or state.refuse_with:
                self.send_error(state.refuse_with.pop(0) if state.refuse_with else 404)
                return
            body = state.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.break_after.pop(0) if state.break_after else None])

        def log_message(self, *_: Any) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{listener.server_port}/"
    yield state
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture
def source(tiny_idx: Any, server: Server, tmp_path: Path) -> Any:
    """The packed files on the server, and an empty folder to bring them to."""
    tiny_idx.write("gz", "")
    server.files = {path.name: path.read_bytes() for path in tiny_idx.folder.iterdir()}
    tiny_idx.folder = tmp_path / "target"
    return tiny_idx


def fetch(tiny: Any, *mirrors: str, **more: Any) -> Path:
    return fetch_files(tiny.spec.files, tiny.folder, mirrors=mirrors, **more)


def present(tiny: Any) -> list[str]:
    return sorted(path.name for path in tiny.folder.rglob("*") if path.is_file())


def test_files_are_fetched_and_can_be_loaded(source: Any, server: Server) -> None:
    assert fetch(source, server.url.rstrip("/")) == source.folder
    assert present(source) == sorted(server.files)
    assert (source.folder / "Tiny/raw/train-images.gz").exists()
    assert load_idx(source.spec, folder=source.folder).num_samples == 6


def test_sound_files_are_left_alone_and_damaged_ones_replaced(source: Any, server: Server) -> None:
    fetch(source, server.url)
    server.requests.clear()
    fetch(source, server.url)
    assert server.requests == []
    source.put("Tiny/raw/test-labels.gz", b"damaged")
    fetch(source, server.url)
    assert server.requests == [("test-labels.gz", "")]
    assert {s.state for s in locate_files(source.spec.files, source.folder)} == {"ok"}


def test_archive_is_fetched_in_one(tiny_cifar: Any, server: Server) -> None:
    server.files = {"tiny-python.tar.gz": tiny_cifar.tar}
    fetch(tiny_cifar, server.url)
    assert present(tiny_cifar) == ["tiny-python.tar.gz"]
    assert {s.state for s in locate_files(tiny_cifar.spec.files, tiny_cifar.folder)} == {"ok"}


def test_wrong_checksum_never_gets_the_name(source: Any, server: Server) -> None:
    good = server.files["train-images.gz"]
    server.files["train-images.gz"] = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(
        DataError, match=r"train-images\.gz .*: expected md5:\w+ but got \w+"
    ) as caught:
        fetch(source, server.url)
    assert server.url in str(caught.value)
    assert present(source) == []


def test_file_that_is_too_long_is_not_read_to_its_end(source: Any, server: Server) -> None:
    server.files["train-images.gz"] = bytes(5_000_000)
    steps: list[Progress] = []
    with pytest.raises(DataError, match=r"expected .* bytes, got"):
        fetch(source, server.url, progress=steps.append)
    assert max(step.done for step in steps) <= 1 << 16
    assert present(source) == []


def test_broken_connection_is_tried_again(source: Any, server: Server) -> None:
    server.break_after = [10, 0]
    fetch(source, server.url)
    asked = [name for name, _ in server.requests if name == "train-images.gz"]
    assert len(asked) == 3
    assert present(source) == sorted(server.files)
    assert load_idx(source.spec, folder=source.folder).num_samples == 6


def test_a_beginning_is_never_taken_for_the_file(source: Any, server: Server) -> None:
    whole = server.files["train-images.gz"]
    server.break_after = [10, len(whole) - 1, 5]
    with pytest.raises(DataError, match="connection broke"):
        fetch(source, server.url)
    assert present(source) == []
    server.files["train-images.gz"] = whole[:-1]  # a server that says that this is all
    with pytest.raises(DataError, match=r": expected md5:\w+ but got \w+"):
        fetch(source, server.url)
    assert present(source) == []
    server.files["train-images.gz"] = whole
    fetch(source, server.url)
    assert present(source) == sorted(server.files)


@pytest.mark.parametrize("code", [404, 503])
def test_a_server_that_is_busy_is_asked_again(source: Any, server: Server, code: int) -> None:
    server.refuse_with = [code] * 2
    if code == 503:
        fetch(source, server.url)
        assert present(source) == sorted(server.files)
    else:
        with pytest.raises(DataError, match="the server answered 404"):
            fetch(source, server.url)
        assert len(server.requests) == 1


def test_next_mirror_is_tried(source: Any, server: Server) -> None:
    fetch(source, f"{server.url}absent/", server.url)
    assert server.requests[:2] == [("absent/train-images.gz", ""), ("train-images.gz", "")]
    assert present(source) == sorted(server.files)


def test_failure_names_every_mirror(source: Any, server: Server) -> None:
    with pytest.raises(DataError) as caught:
        fetch(source, f"{server.url}a/", f"{server.url}b/")
    text = str(caught.value)
    assert "a/train-images.gz: the server answered 404" in text
    assert "b/train-images.gz: the server answered 404" in text
    assert str(source.folder / "Tiny/raw/train-images.gz") in text


def test_nobody_there(source: Any, server: Server) -> None:
    with pytest.raises(DataError, match="the connection broke"):
        fetch(source, "http://127.0.0.1:9/")
    with pytest.raises(DataError, match="there is no mirror"):
        fetch(source)


@pytest.mark.parametrize(
    "address",
    [
        "http://example.com/",
        "ftp://127.0.0.1/",
        "file:///etc/",
        "http://127.0.0.1.example.com/",
        "http://localhost@example.com/",
        "data",
    ],
)
def test_other_addresses_are_refused(source: Any, server: Server, address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="needs addresses that begin with https"):
        fetch(source, address)
    server.redirect = address
    if ":" in address:
        with pytest.raises(DataError, match=r"needs addresses that begin with https|answered 302"):
            fetch(source, f"{server.url}moved/")
        assert server.requests == [("moved/train-images.gz", "")]
    assert present(source) == []


def test_redirection_on_this_machine_is_followed(source: Any, server: Server) -> None:
    server.redirect = server.url
    fetch(source, f"{server.url}moved/")
    assert server.requests[:2] == [("moved/train-images.gz", ""), ("train-images.gz", "")]
    assert present(source) == sorted(server.files)


def test_progress_counts_bytes(source: Any, server: Server) -> None:
    steps: list[Progress] = []
    fetch(source, server.url, progress=steps.append)
    last = {step.task: step for step in steps}
    assert set(last) == {f"tiny: {name}" for name in server.files}
    for name, content in server.files.items():
        assert last[f"tiny: {name}"].done == last[f"tiny: {name}"].total == len(content)


def test_folder_that_cannot_be_written_is_refused(source: Any, server: Server) -> None:
    source.folder.write_bytes(b"a file, not a folder")
    with pytest.raises(DataError, match=r"cannot write .*Name another folder"):
        fetch(source, server.url)
