"""What others wrote: JSON of unknown shape, texts for a terminal, folders in which their programs worked."""

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from builder.errors import BuildfarmError, Code, UsageError

T = TypeVar("T")

#: Bytes of one JSON text. A list of empty lists needs about twenty times as much memory.
MAX_JSON = 32 * 2**20
#: The same for what this program itself wrote into the store; a report of many builds is large.
MAX_OWN_JSON = 256 * 2**20
#: Levels of lists and objects in one text. Python's own limit differs by version, and can be above what `json.dumps`
#: with an indentation can write.
MAX_JSON_DEPTH = 200
#: What reading plain data of an unexpected shape raises. RecursionError: deep nesting.
_WRONG_SHAPE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BuildfarmError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class JsonError(ValueError):
    """The text is no JSON, is larger or deeper than the limits, or has not the expected keys and types."""


def parse_json(data: bytes | str, parse: Callable[[Any], T], *, limit: int = MAX_JSON) -> T:
    """Return `parse` of the plain data in a JSON text. Raises JsonError, and nothing else, for any text.

    `parse` may raise what wrong types and missing keys give, such as KeyError and TypeError. `dict` accepts any object.
    Texts with a lone surrogate are refused: they cannot be printed or written.
    """
    if len(data) > limit:
        raise JsonError(f"the JSON text is larger than {limit} bytes")
    try:
        text = data if isinstance(data, str) else data.decode()
        plain = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(plain, ensure_ascii=False).encode()
        _check_depth(plain)
    except _WRONG_SHAPE as error:
        raise JsonError(_reason(error)) from error
    return parse_plain(plain, parse)


def parse_plain(data: Any, parse: Callable[[Any], T]) -> T:  # noqa: ANN401
    """Return `parse` of plain data that was read already. Raises JsonError as `parse_json`."""
    try:
        return parse(data)
    except _WRONG_SHAPE as error:
        raise JsonError(_reason(error)) from error


def read_json(path: Path, parse: Callable[[Any], T], *, limit: int = MAX_JSON) -> T:
    """Return `parse` of a JSON file. Raises JsonError as `parse_json`, and OSError."""
    with path.open("rb") as stream:
        return parse_json(stream.read(limit + 1), parse, limit=limit)


def known_json(path: Path, parse: Callable[[Any], T], *, limit: int = MAX_JSON) -> T | None:
    """What an earlier run wrote; None if there is no such file, or if it is unreadable or of a different version."""
    try:
        return read_json(path, parse, limit=limit)
    except (OSError, JsonError):
        return None


def _check_depth(plain: object) -> None:
    """Raise RecursionError for plain data with more levels than MAX_JSON_DEPTH."""
    level = [plain] if isinstance(plain, dict | list) else []
    for _ in range(MAX_JSON_DEPTH):
        values = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [value for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise RecursionError


def _reason(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"it is no JSON: {error.msg}, line {error.lineno}"
        case RecursionError():
            return "it is nested too deeply"
        case KeyError():
            return f"it has no {str(error)[:100]}"
        case UnicodeError():
            return "it is not UTF-8"
        case BuildfarmError() | ValueError():
            return str(error)[:300]
    return "it has a value of a wrong type"


def text(value: object) -> str:
    """Return a value of plain data that must be text; raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of text")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Return a value of plain data that must be a list of texts; raises TypeError."""
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} instead of a list")
    return tuple(map(text, value))


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: Escape sequences of terminals: colours and cursor movements, titles and links, and sequences of two characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])")
#: Control characters besides tab and line feed, those that end a line or change the direction of text, and what cannot
#: be encoded, such as bytes of a path that are no text (PEP 383).
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)

#: The same, and what begins a new line.
_NOT_ON_ONE_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def split_url(url: str) -> SplitResult:
    """`urlsplit`; a text that is no URL, such as `http://[x`, has no scheme, no host and no path."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def without_credentials(url: str) -> str:
    """The URL without user and password; any text that is no URL of a server stays as it is."""
    parts = split_url(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return bare.geturl() if parts.scheme in ("http", "https") else url


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name; raises UsageError for a name that leads out of the index or to a hidden file."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or any(part.startswith(".") for part in parts):
        raise UsageError("this name leads out of the index", Code.PATH_NOT_USABLE, where=repr(name))
    return parts


def control_character(text: str) -> str:
    """Return the first character of a text that has no place on one line of a terminal; empty: none."""
    found = _NOT_ON_ONE_LINE.search(text)
    return found[0] if found else ""


def without_escapes(text: str) -> str:
    """Return a text without the escape sequences of terminals; other control characters stay."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def visible(text: str) -> str:
    """Return a text without colours, and with `\\x1b` and the like in place of control characters."""
    return _escaped(_COLOUR.sub("", text)) if _CONTROL.search(text) else text


def visible_with_colours(text: str) -> str:
    """Return a text with its colours, and with `\\x1b` and the like in place of every other control character."""
    colours = _COLOUR.findall(text)
    parts = [_escaped(part) for part in _COLOUR.split(text)]
    return parts[0] + "".join(colour + part for colour, part in zip(colours, parts[1:], strict=True))


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def remove_tree(folder: Path) -> None:
    """Delete a folder, also if a program left folders in it that cannot be written. What cannot be deleted stays."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_symlink() or not folder.is_dir():
        return
    folders = [folder]
    for found in folders:
        with suppress(OSError):
            found.chmod(0o700)
            folders += [Path(entry.path) for entry in os.scandir(found) if entry.is_dir(follow_symlinks=False)]
    shutil.rmtree(folder, ignore_errors=True)
