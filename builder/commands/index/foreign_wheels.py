"""The wheels of a command line: files, folders, URLs and NAME==VERSION. Nothing in them is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.errors import BuildfarmError, Code, UsageError
from builder.log import print_line
from builder.masking import mask_credentials
from builder.matrix.axes import Python
from builder.matrix.compat import Compat, and_list
from builder.store import local_path
from builder.untrusted import split_url

if TYPE_CHECKING:
    from builder.wheels.sources.index import FetchedWheel

_SDIST = re.compile(r"\.(?:tar(?:\.\w+)?|tgz|zip)$")


@dataclass(frozen=True)
class ForeignWheel:
    """A wheel that others built, and where it came from: a URL without secrets, or `a file`."""

    path: Path
    origin: str


def foreign_wheels(what: Sequence[str], cache: Path, index: str, pythons: Sequence[Python]) -> list[ForeignWheel]:
    """The wheels of the command line, each once. Those of URLs and NAME==VERSION are downloaded into `cache`.

    `index` is the URL of a package index to ask before the default one, or empty. Wheels of NAME==VERSION are
    downloaded for `pythons`; empty: for every Python with a wheel.

    Raises UsageError for an argument that names no wheel, MissingToolError when a download fails.
    """
    return list(dict.fromkeys(wheel for text in what for wheel in _named(text, cache, index, pythons)))


def names_project(text: str) -> bool:
    """Whether an argument is NAME==VERSION, and no file, folder or URL."""
    return not (text.endswith(".whl") or "/" in text or Path(text).is_dir())


def _named(text: str, cache: Path, index: str, pythons: Sequence[Python]) -> Iterator[ForeignWheel]:
    """The wheels of one argument; of NAME==VERSION one for each Python, and one wheel may serve several."""
    from builder.wheels.sources.index import (  # noqa: PLC0415 - takes long
        NoFittingWheelError,
        download_wheel,
        exact_version,
        fetch_wheel,
    )

    if _SDIST.search(split_url(text).path):
        sentence = "this is a source distribution, and this command builds nothing"
        hint = "`buildfarm build SOURCE` builds a wheel of a source distribution"
        raise UsageError(sentence, Code.NOT_A_WHEEL, where=text, hints=[hint])
    path = local_path(text) or Path(text)
    if re.match(r"https?://", text):
        yield _fetched(download_wheel(text, cache=cache))
    elif path.is_dir():
        wheels = sorted(path.glob("*.whl"))
        if not wheels:
            hint = "the wheels of an index in a folder are files/*/*/*.whl"
            raise UsageError("this folder contains no wheel", Code.NO_WHEEL, where=text, hints=[hint])
        yield from (ForeignWheel(wheel, "a file") for wheel in wheels)
    elif not names_project(text):
        if not path.is_file():
            raise UsageError("there is no such file", Code.NO_SUCH_FILE, where=text)
        yield ForeignWheel(path, "a file")
    else:
        project, version = exact_version(text)
        lacking: dict[Python, BuildfarmError] = {}
        wanted = pythons or Compat.load().pythons
        for python in wanted:
            try:
                yield _fetched(fetch_wheel(project, version, python, cache=cache, index=[index] if index else []))
            except (NoFittingWheelError, UsageError) as error:  # UsageError: Requires-Python excludes this Python
                lacking[python] = error
        if len(lacking) == len(wanted):
            raise lacking[max(lacking)]
        if lacking:
            print_line(f"the index has no wheel of {project} {version} for Python {and_list(lacking)}")


def _fetched(wheel: FetchedWheel) -> ForeignWheel:
    """The wheel with its URL, without what may be secret: user, password, query, and a token in the path."""
    parts = urlsplit(wheel.url)
    if parts.scheme not in ("http", "https"):
        return ForeignWheel(wheel.path, "a file")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    return ForeignWheel(wheel.path, mask_credentials(bare.geturl()))
