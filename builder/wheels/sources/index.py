"""Files of the package index: uv finds their addresses, buildfarm downloads them."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from builder.diagnosis.known_errors import reports
from builder.errors import Code, MissingToolError, UsageError
from builder.masking import mask_credentials
from builder.store import local_path
from builder.untrusted import split_url
from builder.wheels.toolchain.uv import cause_of, compile_captured, index_setting, network_hints, uv_variables

_ATTEMPTS = 3
TIMEOUT = 60.0  # seconds without a byte
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Location:
    """The address and name of a file on the index. `sha256` is what the index lists, or empty."""

    url: str
    name: str
    sha256: str


def locate(requirement: str, kind: str, *arguments: str, index: Sequence[str] = ()) -> list[Location]:
    """The addresses of the files of an exact version. uv knows the user's index, mirrors, proxies and credentials.

    `kind` is `source distribution` or `wheel`; `index` are indexes that uv asks before the default index, by their URLs
    or folders.
    `uv pip compile --no-deps` reads only the index page of an exact version. `pip download` and `uv lock` would run
    the archive's setup.py for its metadata before the archive's digest is checked.

    Raises UsageError when the index has no such file or its folder does not exist, MissingToolError when it cannot be
    reached.
    """
    where = requirement.replace("==", " ")
    index = [_index_url(one) for one in index]
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        raise UsageError(
            "this is not a project name with a version, such as torch-scatter 2.1.2", Code.VALUE_INVALID, where=where
        ) from error
    with tempfile.TemporaryDirectory() as empty:
        options = ["--no-deps", "--format=pylock.toml", *arguments]
        done = compile_captured(str(wanted), options, folder=Path(empty), index=index)
        if done.returncode:
            raise _explain(kind, where, done.stderr, index_setting(index))
        listed = tomllib.loads(done.stdout)["packages"][0]
        entries = listed.get("wheels") if kind == "wheel" else [listed.get("sdist")]
        entries = [entry for entry in entries or () if entry] or [listed.get("archive") or {}]
        found = [location for entry in entries if (location := _location(entry, empty)).url]
    if not found:
        sentence, hint = f"uv found the {kind} but returned no address", index_setting(index)
        raise MissingToolError(sentence, Code.PACKAGE_NOT_FOUND, where=where, hints=[hint])
    return found


def _index_url(place: str) -> str:
    """The URL of an index for uv; of a folder as `buildfarm publish` makes it, that of its pages.

    Raises UsageError for a folder that does not exist: uv would ask the next index without a word.
    """
    if re.match(r"https?://", place):
        return place
    folder = local_path(place)
    if not folder or not folder.is_dir():
        raise UsageError("there is no such folder", Code.NO_INDEX, where=f"--index {mask_credentials(place)}")
    return (folder / "simple" if (folder / "simple").is_dir() else folder).absolute().as_uri()


def _location(entry: dict[str, Any], empty: str) -> Location:
    # A file of a folder (UV_FIND_LINKS) has a `path`, relative to uv's working directory; of an index, a `url`.
    url = entry.get("url") or (Path(empty, entry["path"]).resolve().as_uri() if "path" in entry else "")
    name = entry.get("name") or unquote(split_url(url).path).rpartition("/")[2]
    return Location(url, Path(name).name, str(entry.get("hashes", {}).get("sha256", "")).lower())


def _explain(kind: str, where: str, output: str, index: str) -> UsageError | MissingToolError:
    detail = cause_of(output) or (output.strip().splitlines() or ["uv printed no reason"])[-1]
    if reports("conflict", output) and "network was disabled" not in output:
        requirement, hint = where.replace(" ", "=="), "correct the project or the version"
        if kind == "wheel" and "has no usable wheels" in detail:
            detail = "it has none for this Python and platform"
            hint = f"if the index has its source, `buildfarm build {requirement}` builds a wheel"
        elif "no source distribution" in detail:
            detail = "it has only wheels of this project"
            exact = requirement if "==" in requirement else f"{requirement}==VERSION"
            hint = f"`buildfarm verify {exact}` judges a wheel, and `buildfarm adopt` runs its ops"
        elif "was not found in the package registry" in detail:
            detail = "it has no project of this name"
        elif re.search(r"there (?:is|are) no versions? of", detail):
            detail = "it has no such version"
        sentence, hints = f"the index has no such {kind}: {detail}", (hint, f"the index is {index}")
        return UsageError(sentence, Code.PACKAGE_NOT_FOUND, where=where, hints=hints)
    return _unreachable(kind, where, detail, index)


def _unreachable(kind: str, where: str, detail: str, index: str) -> MissingToolError:
    return MissingToolError(
        f"the {kind} could not be fetched: {detail}",
        Code.NETWORK_UNREACHABLE,
        where=where,
        hints=(
            f"the index is {index}",
            *(network_hints() or ["behind a proxy, set HTTPS_PROXY"]),
            "if a proxy intercepts TLS, set SSL_CERT_FILE",
            "the network is needed only once: after a successful download, later runs use the stored file",
        ),
    )


def download(location: Location, aside: Path, *, kind: str, where: str) -> str:
    """Download a file to `aside`, synced to disk; returns its sha256. Raises MissingToolError when that fails."""
    if split_url(location.url).scheme not in ("http", "https", "file"):
        scheme = location.url.split(":")[0]
        raise _unreachable(kind, where, f"{scheme!r} is not a supported URL scheme", index_setting())
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _stream(location.url, aside)
        except (OSError, http.client.HTTPException) as error:
            # The server would refuse again; a broken connection may work the next time.
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if attempt == _ATTEMPTS or refused:
                detail = f"{mask_credentials(location.url)}: {error}"
                raise _unreachable(kind, where, detail, index_setting()) from None
            time.sleep(attempt)
    raise AssertionError("unreachable")


def fetch(
    location: Location, folder: Path, *, kind: str, where: str, mismatch: Callable[[str], UsageError | MissingToolError]
) -> Path:
    """Download a file to `<folder>/<its sha256>/<its name>`.

    Raises MissingToolError when that fails, and what `mismatch` makes of the sha256 if it is not that of `location`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        aside = Path(scratch, location.name)
        found = download(location, aside, kind=kind, where=where)
        if location.sha256 and found != location.sha256:
            raise mismatch(found)
        (folder / found).mkdir(exist_ok=True)
        return aside.rename(folder / found / location.name)


def request_for(url: str) -> urllib.request.Request:
    """A request with the credentials of the URL or of the index setting. The caller checks the scheme."""
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(bare)  # noqa: S310 - the schemes are checked by the caller
    if secret := _credentials(url):
        # urllib does not pass this header on when the index redirects to another server.
        token = base64.b64encode(secret.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


def _stream(url: str, aside: Path) -> str:
    request = request_for(url)
    digest, size = hashlib.sha256(), 0
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, aside.open("wb") as out:  # noqa: S310
        while chunk := answer.read(_CHUNK):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        promised = answer.headers.get("Content-Length")
        out.flush()
        os.fsync(out.fileno())
    if promised is not None and int(promised) != size:
        raise ConnectionError(f"the connection broke after {size} of {promised} bytes")
    return digest.hexdigest()


def _credentials(url: str) -> str:
    """`user:password` from the URL, or from the index setting if the file is on the index's host; else empty."""
    variables = uv_variables()
    parts = urlsplit(url)
    for candidate in (url, variables.get("UV_DEFAULT_INDEX", ""), variables.get("UV_INDEX_URL", "")):
        known = urlsplit(candidate)
        same_host = (known.scheme, known.hostname, known.port) == (parts.scheme, parts.hostname, parts.port)
        if known.username and same_host:
            return f"{unquote(known.username)}:{unquote(known.password or '')}"
    return ""
