"""Files of the package index: uv finds their addresses; buildfarm downloads them.

Wheels of others are kept by their sha256. Nothing in a file is executed.
"""

import base64
import errno
import hashlib
import http.client
import os
import re
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

from builder.diagnosis.known_errors import reports
from builder.errors import Code, MissingToolError, UsageError, mask_credentials
from builder.formats import sha256_of
from builder.matrix.axes import Python
from builder.store import local_path
from builder.untrusted import split_url, without_credentials
from builder.wheelfile.compatibility import is_compatible
from builder.wheelfile.limits import MAX_NAME
from builder.wheels.toolchain.uv import (
    cause_of,
    compile_captured,
    index_setting,
    is_offline,
    network_hints,
    uv_error,
    uv_variables,
)

_ATTEMPTS = 3
_TIMEOUT = 60.0  # seconds without a byte
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Location:
    """The address and name of a file on the index; `sha256` and `version` are what the index lists, or empty."""

    url: str
    name: str
    sha256: str
    version: str = ""


class NoFittingWheelError(MissingToolError):
    """The index has this version, but no wheel for this Python on this machine."""


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
        version = str(listed.get("version", ""))
        found = [location for entry in entries if (location := _location(entry, empty, version)).url]
    if not found:
        sentence, hint = f"uv found the {kind} but returned no address", index_setting(index)
        raise MissingToolError(sentence, Code.PACKAGE_NOT_FOUND, where=where, hints=[hint])
    return found


def locate_all(
    requirements: Sequence[str], *arguments: str, index: Sequence[str], log: Path, python: str = sys.executable
) -> list[Location]:
    """The files of an index that uv would install for these requirements: of each package its wheel, or its source.

    `arguments`, `index` and `python` are as in `compile_captured`. Raises the errors of `uv_error`, with `log`.
    """
    with tempfile.TemporaryDirectory() as empty:
        options = ["--format=pylock.toml", *arguments]
        done = compile_captured("\n".join(requirements), options, folder=Path(empty), index=index, python=python)
        if done.returncode:
            log.write_text(mask_credentials(done.stderr))
            raise uv_error(done.returncode, log, 0, requirements, index)
        found = list[Location]()
        for one in tomllib.loads(done.stdout).get("packages", ()):
            entry = next(iter(one.get("wheels", ())), None) or one.get("sdist") or one.get("archive", {})
            # A file that the requirements name needs no download; a repository and a folder have no file.
            if "url" in entry or ("path" in entry and "archive" not in one):
                found.append(_location(entry, empty, str(one.get("version", ""))))
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


def _location(entry: dict[str, Any], empty: str, version: str) -> Location:
    # A file of a folder (UV_FIND_LINKS) has a `path`, relative to uv's working directory; of an index, a `url`.
    url = entry.get("url") or (Path(empty, entry["path"]).resolve().as_uri() if "path" in entry else "")
    name = entry.get("name") or unquote(split_url(url).path).rpartition("/")[2]
    return Location(url, Path(name).name, str(entry.get("hashes", {}).get("sha256", "")).lower(), version)


def how_to_call_ops(name: str, version: str) -> str:
    """What the ops of a wheel that others built need: a recipe, and its cases."""
    source = f"`source: {{wheel: {name}, version: {version}}}`"
    return (
        f"to call its ops, write a recipe with {source} (docs/how-to/adopt.md), and run `buildfarm cases --ext {name}`"
    )


def _explain(kind: str, where: str, output: str, index: str) -> UsageError | MissingToolError:
    detail = cause_of(output) or (output.strip().splitlines() or ["uv printed no reason"])[-1]
    if not reports("conflict", output) or "network was disabled" in output:
        return _unreachable(kind, where, detail, index)
    requirement, hint = where.replace(" ", "=="), "correct the project or the version"
    if kind == "wheel" and "has no usable wheels" in detail:
        detail = "it has none for this Python and platform"
        hint = f"if the index has its source, `buildfarm build {requirement}` builds a wheel"
    elif "no source distribution" in detail:
        detail = "it has only wheels of this project"
        exact = requirement if "==" in requirement else f"{requirement}==VERSION"
        hint = f"`buildfarm verify {exact}` judges a wheel; {how_to_call_ops(*exact.split('=='))}"
    elif "was not found in the package registry" in detail:
        detail = "it has no project of this name"
    elif re.search(r"there (?:is|are) no versions? of", detail):
        detail = "it has no such version"
    sentence, hints = f"the index has no such {kind}: {detail}", (hint, f"the index is {index}")
    return UsageError(sentence, Code.PACKAGE_NOT_FOUND, where=where, hints=hints)


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
    if is_offline() and not location.url.startswith("file:"):
        raise _unreachable(kind, where, "UV_OFFLINE is set", index_setting())
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _stream(location.url, aside)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(error.errno, "the disk is full", str(aside.parents[1])) from None
            # The server would refuse again. After a broken connection, the next attempt may succeed.
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if attempt == _ATTEMPTS or refused:
                detail = f"{mask_credentials(location.url)}: {error}"
                raise _unreachable(kind, where, detail, index_setting()) from None
            time.sleep(attempt)
    raise AssertionError("unreachable")


def fetch(location: Location, folder: Path, *, kind: str, where: str, who: str) -> Path:
    """Download a file to `<folder>/<its sha256>/<its name>`, or return it if it is there.

    `who` names the sha256 of `location`, such as `the index lists`. Raises MissingToolError when the download fails,
    and when the file has another sha256.
    """
    kept = folder / location.sha256 / location.name
    if location.sha256 and kept.is_file() and sha256_of(kept) == location.sha256:
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        aside = Path(scratch, location.name)
        found = download(location, aside, kind=kind, where=where)
        if location.sha256 and found != location.sha256:
            raise MissingToolError(
                f"the downloaded {location.name} has sha256 {found}, but {who} {location.sha256}; it was not opened",
                Code.SOURCE_DIFFERS,
                where=where,
                hints=["find out why the file changed before you change a sha256", f"the index is {index_setting()}"],
            )
        (folder / found).mkdir(exist_ok=True)
        return aside.rename(folder / found / location.name)


def index_login(url: str) -> tuple[str, str] | None:
    """The user and the password of a URL, or of the index setting if that is the same server."""
    parts, variables = urlsplit(url), uv_variables()
    for candidate in (url, variables.get("UV_DEFAULT_INDEX", ""), variables.get("UV_INDEX_URL", "")):
        known = urlsplit(candidate)
        same_host = (known.scheme, known.hostname, known.port) == (parts.scheme, parts.hostname, parts.port)
        if known.username and same_host:
            return unquote(known.username), unquote(known.password or "")
    return None


def _open(url: str) -> Any:  # noqa: ANN401 - an answer of urllib, which has no type
    """The answer to a request with the credentials of the URL or of the index setting. The caller checks the scheme."""
    request = urllib.request.Request(without_credentials(url))  # noqa: S310 - the schemes are checked by the caller
    if login := index_login(url):
        # urllib does not pass this header on when the index redirects to another server.
        token = base64.b64encode(":".join(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310


def _stream(url: str, aside: Path) -> str:
    digest, size = hashlib.sha256(), 0
    with _open(url) as answer, aside.open("wb") as out:
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


def fetch_wheel(
    project: str, version: str, python: Python, *, cache: Path, index: Sequence[str] = ()
) -> tuple[Path, str]:
    """The wheel of this project and version for this Python on this machine, and its URL, maybe with credentials.

    It is downloaded the first time, and kept as `<cache>/wheels/<sha256>/<file name>`. `index` are URLs of indexes that
    are asked first. Raises UsageError when the index has no such version, NoFittingWheelError when it has no wheel for
    this Python, and MissingToolError when it cannot be reached.
    """
    where = f"{project} {version}"
    asked = ("--only-binary=:all:", f"--python-version={python.series}")
    locations = locate(f"{project}=={version}", "wheel", *asked, index=index)
    for location in locations:
        if is_compatible(location.name, python):
            kept = fetch(location, cache / "wheels", kind="wheel", where=where, who="the index lists")
            return kept, location.url
    names = ", ".join(location.name for location in locations[:3])
    raise NoFittingWheelError(
        f"the index has no wheel for Python {python} on this machine; it has {names}",
        Code.PACKAGE_NOT_FOUND,
        where=where,
        hints=("select a different Python with `--python X.Y`", f"the index is {index_setting()}"),
    )


def exact_version(text: str) -> tuple[str, str]:
    """The project and the version of NAME==VERSION; raises UsageError."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        sentence = "this names no wheel; pass a file, a URL, or a project with its version, such as torchvision==0.26.0"
        raise UsageError(sentence, Code.VALUE_INVALID, where=text) from None
    if exact := re.fullmatch(r"==([^*]+)", str(requirement.specifier)):
        return requirement.name, exact[1]
    sentence = "the exact version is missing; pass NAME==VERSION, because a proof applies to one wheel"
    raise UsageError(sentence, Code.VALUE_INVALID, where=text)


def download_wheel(url: str, *, cache: Path) -> tuple[Path, str]:
    """The wheel at a URL, kept by its sha256, and the URL without that.

    Raises UsageError for a URL that is not valid, MissingToolError when the wheel cannot be downloaded, and when it
    differs from `#sha256=…` at the end of the URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"this is not a valid URL: {error}", Code.VALUE_INVALID, where=mask_credentials(url)) from None
    name = Path(unquote(parts.path)).name.replace("\0", "")[-MAX_NAME:]
    hashed = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})(?:&|$)", parts.fragment)
    sha256 = hashed[1].lower() if hashed else ""
    location = Location(parts._replace(fragment="").geturl(), name or "unnamed", sha256)
    where = mask_credentials(url)
    return fetch(location, cache / "wheels", kind="wheel", where=where, who="the URL names"), location.url
