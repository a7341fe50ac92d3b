"""Get missing data files: https only, checked before they get their names, resumed where broken."""

import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from eigenscape.errors import DataError, InvalidArgumentError
from eigenscape.records import ProgressCallback, Ticker
from eigenscape_papers.datasets._specs import FileSet, Form
from eigenscape_papers.datasets.files import checksum_problem, data_folders, locate_files

# How often one address is asked; each new attempt goes on where the last one broke off.
_ATTEMPTS = 3
_TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 16
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def fetch_files(
    file_set: FileSet,
    folder: str | os.PathLike[str] | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Path:
    """Download what a folder lacks; what is damaged is replaced, what is sound is left alone.

    A file is written as `….part`, compared with its checksum, and only then renamed, so that a
    killed download never looks like a file. Called again, it continues.

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
            _fetch_one(file_set.name, form, target / form.name, bases, progress)
        except OSError as error:  # the disk's; those of the network are dealt with below
            raise DataError(
                f"`fetch({file_set.name!r})` cannot write {target / form.name}: {error}. Name "
                "another folder with `folder=...`."
            ) from error
    return root


def _fetch_one(
    set_name: str,
    form: Form,
    path: Path,
    bases: Sequence[str],
    progress: ProgressCallback | None,
) -> None:
    partial_file = path.with_name(f"{path.name}.part")
    reasons = []
    for base in bases:
        url = urllib.parse.urljoin(base, form.name)
        for _ in range(_ATTEMPTS):
            problem, again = _pull(url, partial_file, form, f"{set_name}: {form.name}", progress)
            if not problem:
                problem = checksum_problem(partial_file, form)
                if not problem:
                    os.replace(partial_file, path)
                    return
                partial_file.unlink()  # wrong bytes are no beginning to continue from
            reasons.append(f"{url}: {problem}")
            if not again:
                break
    raise DataError(
        f"`fetch({set_name!r})` could not get {form.name} ({form.checksum}, {form.size} bytes): "
        f"{'; '.join(dict.fromkeys(reasons)) or 'there is no mirror'}. Check the network, or put "
        f"the file at {path} yourself."
    )


def _pull(
    url: str, partial_file: Path, form: Form, task: str, progress: ProgressCallback | None
) -> tuple[str, bool]:
    """Bring `partial_file` to its full size; return what went wrong and whether to try again."""
    have = partial_file.stat().st_size if partial_file.exists() else 0
    if form.size is not None and have >= form.size:
        if not checksum_problem(partial_file, form):
            return "", False  # an earlier call was killed just before the renaming
        partial_file.unlink()
        have = 0
    headers = {"User-Agent": "eigenscape", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    opener = urllib.request.build_opener(_SecureRedirects)
    try:
        request = urllib.request.Request(url, headers=headers)
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            # A server that ignores the range sends everything: then it is written from the start.
            resumed = response.status == 206 and have > 0
            ticker = Ticker(progress, task, form.size or 0, first=have if resumed else 0)
            done = _copied(response, partial_file, have if resumed else 0, form.size, ticker)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the range is beyond the file, so the part was not of this file
            partial_file.unlink(missing_ok=True)
        return f"the server answered {error.code} {error.reason}", error.code in (416, 500, 503)
    except InvalidArgumentError as error:  # a redirection to somewhere else than https
        return str(error), False
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as e:
        return f"the connection broke ({e})", True
    if form.size is not None and done < form.size:
        return f"the connection broke after {done} of {form.size} bytes", True
    # A part of something else, resumed, has the wrong checksum: worth one clean start.
    return "", resumed


def _copied(
    response: IO[bytes], partial_file: Path, first: int, size: int | None, ticker: Ticker
) -> int:
    """Append what arrives to the first bytes of `partial_file`; return its length."""
    done = first
    with partial_file.open("ab" if first else "wb") as stream:
        while chunk := response.read(_CHUNK):
            stream.write(chunk)
            done += len(chunk)
            ticker.tick(done)
            if size is not None and done > size:
                break
        stream.flush()
        os.fsync(stream.fileno())
    return done


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirection only where the first address could have gone."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _secure(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _secure(url: str) -> str:
    address = urllib.parse.urlsplit(url)
    if address.scheme == "https" or (address.scheme == "http" and address.hostname in _LOCAL_HOSTS):
        return url
    raise InvalidArgumentError(
        "`fetch(mirrors=...)` needs addresses that begin with https:// (http:// only for "
        f"localhost); got {url!r}."
    )
