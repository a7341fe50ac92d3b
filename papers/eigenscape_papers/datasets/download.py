"""Get missing data files: https only, and checked before they get their names."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from eigenscape.errors import DataError, InvalidArgumentError
from eigenscape.records import ProgressCallback, Ticker
from eigenscape_papers.datasets._specs import FileSet, Form
from eigenscape_papers.datasets.files import data_folders, locate_files

if TYPE_CHECKING:
    pass

_ATTEMPTS = 3  # so often one address is asked, where the connection breaks
_TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 16
_HEADERS = {"User-Agent": "eigenscape", "Accept-Encoding": "identity"}
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def fetch_files(
    file_set: FileSet,
    folder: str | os.PathLike[str] | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Path:
    """Download what a folder lacks; what is damaged is replaced, what is sound is left alone.

    A file is written under another name, compared with its checksum, and only then renamed, so
    that a download that breaks or is killed never looks like a file.

    Args:
        file_set: The files.
        folder: Where they go; by default the first of `data_folders`.
        mirrors: Base addresses to try instead of the set's own.
        progress: Called with a `Progress` as bytes arrive; its steps are bytes.

    Returns:
        The folder, for `load(..., folder=...)`.

    Raises:
        InvalidArgumentError: If an address is not https (http is for this machine itself only).
        DataError: If no mirror gives a file with the right checksum, or it cannot be written.
    """
    root = data_folders(folder)[0]
    bases = [
        _secure(base if base.endswith("/") else f"{base}/")
        for base in (file_set.mirrors if mirrors is None else mirrors)
    ]
    states = {status.name: status.state for status in locate_files(file_set, root)}
    wanted: list[tuple[Form, Path]]
    if all(state == "ok" for state in states.values()):
        wanted = []
    elif file_set.archive is not None:
        wanted = [(file_set.archive.form, root)]
    else:
        target = root / file_set.folders[0]
        wanted = [(f.forms[0], target) for f in file_set.files if states[f.name] != "ok"]
    for form, target in wanted:
        try:
            target.mkdir(parents=True, exist_ok=True)
            _fetch_one(file_set.name, form, target, bases, progress)
        except OSError as error:  # the disk's; those of the network are dealt with below
            raise DataError(
                f"`fetch({file_set.name!r})` cannot write {target / form.name}: {error}. Name "
                "another folder with `folder=...`."
            ) from error
    return root


def _fetch_one(
    set_name: str,
    form: Form,
    folder: Path,
    bases: Sequence[str],
    progress: ProgressCallback | None,
) -> None:
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")  # what it does is told by `progress`
    reasons: list[str] = []
    responses: list[requests.Response] = []

    def look_at(response: requests.Response, **_: Any) -> None:
        responses.append(response)
        if response.is_redirect:  # only to where the first address could have led, too
            _secure(urljoin(response.url, response.headers["location"]))

    for base in bases:
        url = urljoin(base, form.name)
        for _ in range(_ATTEMPTS):
            download = pooch.HTTPDownloader(
                progressbar=_Bytes(
                    Ticker(progress, f"{set_name}: {form.name}", form.size or 0), form
                ),
                chunk_size=_CHUNK,
                timeout=_TIMEOUT_SECONDS,
                headers=_HEADERS,
                hooks={"response": look_at},
            )
            try:
                pooch.retrieve(url, form.checksum, form.name, folder, downloader=download)
            except requests.HTTPError:
                code, reason = responses[-1].status_code, responses[-1].reason
                problem, again = f"the server answered {code} {reason}", code in (500, 503)
            except requests.RequestException as error:
                problem, again = f"the connection broke ({error})", True
            except (ValueError, InvalidArgumentError) as error:  # the checksum's; a redirection's
                problem, again = str(error).rstrip("."), False
            else:
                return
            finally:
                for response in responses:  # pooch leaves one open whose connection broke
                    response.close()
            reasons.append(f"{url}: {problem}")
            if not again:
                break
    raise DataError(
        f"`fetch({set_name!r})` could not get {form.name} ({form.checksum}, {form.size} bytes): "
        f"{'; '.join(dict.fromkeys(reasons)) or 'there is no mirror'}. Check the network, or put "
        f"the file at {folder / form.name} yourself."
    )


class _Bytes:
    """What pooch tells of a download; it ends one that is longer than the file."""

    def __init__(self, ticker: Ticker, form: Form) -> None:
        self.total = 0  # pooch sets it
        self._done, self._ticker, self._size = 0, ticker, form.size

    def update(self, count: int) -> None:
        """Hear of some bytes more: whole chunks, also where the last one is shorter."""
        if self._size is not None and self._done >= self._size:
            raise ValueError(f"expected {self._size} bytes, got more")
        self._done += count
        self._ticker.tick(self._done if self._size is None else min(self._done, self._size))

    def reset(self) -> None:
        """Hear that all bytes came, whose number follows."""
        self._done = 0

    def close(self) -> None:
        """Hear that it is over."""


def _secure(url: str) -> str:
    address = urlsplit(url)
    if address.scheme == "https" or (address.scheme == "http" and address.hostname in _LOCAL_HOSTS):
        return url
    raise InvalidArgumentError(
        "`fetch(mirrors=...)` needs addresses that begin with https:// (http:// only for "
        f"localhost); got {url!r}."
    )
