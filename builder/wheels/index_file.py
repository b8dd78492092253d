"""A file of the package index: where it is, and its bytes, checked. uv knows the index, we take the file."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from builder.errors import MissingToolError, UsageError
from builder.process import masked
from builder.wheels.environment import index_setting, uv_variables
from builder.wheels.pythons import find_uv

_ATTEMPTS = 3
_TIMEOUT = 60.0  # seconds without a byte
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Location:
    """Where the index says a file is. `sha256` is its claim, or empty."""

    url: str
    name: str
    sha256: str


def locate(requirement: str, kind: str, *arguments: str, index: Sequence[str] = ()) -> list[Location]:
    """Where the files of an exact version are, by uv: it knows the user's index, mirrors, proxies and credentials.

    `kind` is `source distribution` or `wheel`; `index` are URLs that are asked before the default one.

    `uv pip compile --no-deps` on an exact version reads the index page
    only; `pip download` and `uv lock` would run an archive's setup.py to learn its metadata, before anybody has looked
    at its digest.

    Raises UsageError when the index has no such file, MissingToolError when it cannot be reached.
    """
    where = requirement.replace("==", " ")
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        raise UsageError("is no project and version of a package index", where=where) from error
    command = [
        str(find_uv()), "pip", "compile", "--quiet", "--color=never", "--no-header", "--no-deps",
        "--format=pylock.toml", f"--python={sys.executable}", *arguments, "-",
    ]  # fmt: skip
    # uv runs in an empty folder: a pyproject.toml where the person stands is not about this.
    with tempfile.TemporaryDirectory() as nowhere:
        done = subprocess.run(
            command,
            cwd=nowhere,
            env=uv_variables(index),
            input=str(wanted),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise _explain(kind, where, done.stderr)
        listed = tomllib.loads(done.stdout)["packages"][0]
        entries = listed.get("wheels") if kind == "wheel" else [listed.get("sdist")]
        locations = [_location(entry, nowhere) for entry in entries or () if entry] or [
            _location(listed.get("archive") or {}, nowhere)
        ]
    found = [location for location in locations if location.url]
    if not found:
        raise MissingToolError(f"uv found the {kind} but gave no address for it", where=where, hints=(index_setting(),))
    return found


def _location(entry: dict[str, Any], nowhere: str) -> Location:
    # A folder of files (UV_FIND_LINKS) is named by `path`, relative to where uv ran; an index by `url`.
    url = entry.get("url") or (Path(nowhere, entry["path"]).resolve().as_uri() if "path" in entry else "")
    name = entry.get("name") or unquote(urlsplit(url).path).rpartition("/")[2]
    return Location(url, Path(name).name, str(entry.get("hashes", {}).get("sha256", "")).lower())


def _explain(kind: str, where: str, talk: str) -> UsageError | MissingToolError:
    # The last cause to its end: uv breaks long lines where a terminal would.
    cause = " ".join(talk.rpartition("cause: ")[2].split()) if "cause: " in talk else ""
    detail = cause or (talk.strip().splitlines() or ["uv gave no reason"])[-1]
    if "No solution found" in talk and "network was disabled" not in talk:
        return UsageError(
            f"the index has no such {kind}: {detail}",
            where=where,
            hints=(
                "correct the project and its version",
                f"where it was looked for: {index_setting()}",
            ),
        )
    return _unreachable(kind, where, detail)


def _unreachable(kind: str, where: str, detail: str) -> MissingToolError:
    return MissingToolError(
        f"the {kind} could not be fetched: {detail}",
        where=where,
        hints=(
            f"where it was looked for: {index_setting()}",
            "behind a proxy set HTTPS_PROXY; behind one that intercepts TLS also SSL_CERT_FILE",
            "once fetched it is kept, and no network is needed for it again",
        ),
    )


def download(location: Location, aside: Path, *, kind: str, where: str) -> str:
    """Write the whole file, synced to disk, and return its sha256; raises MissingToolError when it cannot be had."""
    if urlsplit(location.url).scheme not in ("http", "https", "file"):
        raise _unreachable(kind, where, f"{location.url.split(':')[0]!r} is no address to fetch from")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _stream(location.url, aside)
        except (OSError, http.client.HTTPException) as error:
            # A refusal will be repeated; a broken line may not.
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if attempt == _ATTEMPTS or refused:
                raise _unreachable(kind, where, f"{masked(location.url)}: {error}") from None
            time.sleep(attempt)
    raise AssertionError("unreachable")


def _stream(url: str, aside: Path) -> str:
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(bare)  # noqa: S310 - the schemes are checked by the caller
    if secret := _credentials(url):
        # Not sent on when the index redirects to somebody else's file server.
        token = base64.b64encode(secret.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    digest, size = hashlib.sha256(), 0
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer, aside.open("wb") as out:  # noqa: S310
        while chunk := answer.read(_CHUNK):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        promised = answer.headers.get("Content-Length")
        out.flush()
        os.fsync(out.fileno())
    if promised is not None and int(promised) != size:
        raise ConnectionError(f"it broke off after {size} of {promised} bytes")
    return digest.hexdigest()


def _credentials(url: str) -> str:
    """`user:password` from the address, or from the index setting when the file is on the index's host."""
    variables = uv_variables()
    parts = urlsplit(url)
    for candidate in (url, variables.get("UV_DEFAULT_INDEX", ""), variables.get("UV_INDEX_URL", "")):
        known = urlsplit(candidate)
        same_host = (known.scheme, known.hostname, known.port) == (parts.scheme, parts.hostname, parts.port)
        if known.username and same_host:
            return f"{unquote(known.username)}:{unquote(known.password or '')}"
    return ""


def sha256_of(file: Path) -> str:
    """sha256 of a file, hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
