"""A source distribution from the package index, by version and sha256; nothing in it runs on the way."""

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
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from builder.errors import MissingToolError, UsageError
from builder.matrix.config import SdistSource
from builder.process import masked
from builder.wheels.environment import index_setting, uv_variables
from builder.wheels.pythons import find_uv

_ATTEMPTS = 3
_TIMEOUT = 60.0  # seconds without a byte
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Location:
    """Where the index says the file is. `sha256` is its claim, or empty."""

    url: str
    name: str
    sha256: str


def fetch_sdist(source: SdistSource, *, cache: Path) -> Path:
    """Return the verified archive `<cache>/sdists/<sha256>/<file name>`, downloading it the first time.

    Raises UsageError when the index has no such source distribution or its digest is not the recipe's, and
    MissingToolError when the index or the file cannot be reached.
    """
    wanted = source.sha256.lower()
    folder = cache / "sdists" / wanted
    for kept in sorted(folder.glob("*")) if folder.is_dir() else []:
        if _sha256(kept) == wanted:
            return kept
        kept.unlink()  # damaged on disk since; the name of its folder says what it should have been
    location = _locate(source)
    if location.sha256 and location.sha256 != wanted:
        raise _mismatch(source, location.sha256, f"the index lists {location.name} with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
        aside = Path(scratch, location.name)
        found = _download(source, location, aside)
        if found != wanted:
            raise _mismatch(source, found, f"the {location.name} that came has")
        folder.mkdir(exist_ok=True)
        return aside.rename(folder / location.name)


def _mismatch(source: SdistSource, found: str, who: str) -> UsageError:
    return UsageError(
        f"{who} sha256 {found}, the recipe asks for {source.sha256.lower()}; nothing of it was opened",
        where=f"{source.project} {source.version}",
        hints=(
            "find out why it changed before changing the recipe's `sha256`",
            f"where it was looked for: {index_setting()}",
        ),
    )


def _locate(source: SdistSource) -> _Location:
    """Ask uv where the file is: it knows the user's index, mirrors, proxies and credentials.

    `uv pip compile --no-deps` on an exact version reads the index page only. `pip download` and `uv lock`
    would run the archive's setup.py to learn its metadata, before anybody has looked at its digest.
    """
    try:
        wanted = Requirement(f"{source.project}=={source.version}")
    except InvalidRequirement as error:
        raise UsageError(
            "is no project and version of a package index", where=f"{source.project} {source.version}"
        ) from error
    command = [
        str(find_uv()), "pip", "compile", "--quiet", "--color=never", "--no-header", "--no-deps",
        "--no-binary=:all:", "--format=pylock.toml", f"--python={sys.executable}",
        # The sdist may ask for a newer Python than the farm's own; which one builds it, the plan decides.
        "--python-version=3.99", "-",
    ]  # fmt: skip
    # uv runs in an empty folder: a pyproject.toml where the person stands is not about this.
    with tempfile.TemporaryDirectory() as nowhere:
        done = subprocess.run(
            command,
            cwd=nowhere,
            env=uv_variables(),
            input=str(wanted),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise _explain(source, done.stderr)
        listed = tomllib.loads(done.stdout)["packages"][0]
        # A folder of files (UV_FIND_LINKS) is named by `path`, relative to where uv ran; an index by `url`.
        entry = listed.get("sdist") or listed.get("archive") or {}
        url = entry.get("url") or (Path(nowhere, entry["path"]).resolve().as_uri() if "path" in entry else "")
    if not url:
        raise MissingToolError(
            "uv found the source distribution but gave no address for it",
            where=str(wanted),
            hints=(index_setting(),),
        )
    name = entry.get("name") or unquote(urlsplit(url).path).rpartition("/")[2]
    return _Location(url, Path(name).name, str(entry.get("hashes", {}).get("sha256", "")).lower())


def _explain(source: SdistSource, talk: str) -> UsageError | MissingToolError:
    where = f"{source.project} {source.version}"
    # The last cause to its end: uv breaks long lines where a terminal would.
    cause = " ".join(talk.rpartition("cause: ")[2].split()) if "cause: " in talk else ""
    detail = cause or (talk.strip().splitlines() or ["uv gave no reason"])[-1]
    if "No solution found" in talk and "network was disabled" not in talk:
        return UsageError(
            f"the index has no such source distribution: {detail}",
            where=where,
            hints=(
                "correct `project` and `version` in the recipe",
                f"where it was looked for: {index_setting()}",
            ),
        )
    return _unreachable(source, detail)


def _unreachable(source: SdistSource, detail: str) -> MissingToolError:
    return MissingToolError(
        f"the source distribution could not be fetched: {detail}",
        where=f"{source.project} {source.version}",
        hints=(
            f"where it was looked for: {index_setting()}",
            "behind a proxy set HTTPS_PROXY; behind one that intercepts TLS also SSL_CERT_FILE",
            "once fetched it is kept, and no network is needed for it again",
        ),
    )


def _download(source: SdistSource, location: _Location, aside: Path) -> str:
    """Write the whole file, synced to disk, and return its sha256."""
    if urlsplit(location.url).scheme not in ("http", "https", "file"):
        raise _unreachable(source, f"{location.url.split(':')[0]!r} is no address to fetch from")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _stream(location.url, aside)
        except (OSError, http.client.HTTPException) as error:
            # A refusal will be repeated; a broken line may not.
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if attempt == _ATTEMPTS or refused:
                raise _unreachable(source, f"{masked(location.url)}: {error}") from None
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


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
