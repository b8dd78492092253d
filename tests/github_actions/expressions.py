"""The expressions of GitHub Actions, `${{ }}`: literals, contexts, `==`, `!=`, `!`, `&&`, `||` and a few functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any


class NotEmulated(Exception):  # noqa: N818 - it reads as what happened
    """A workflow uses something that these tests do not emulate."""


class Unset(dict[str, str]):
    """Outputs of a step, or variables of the repository: one that was not set is empty, as for GitHub."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return ""


#: What an expression may call, besides the functions of the status of a job.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fromJSON": json.loads,
    "toJSON": lambda value: json.dumps(value, indent=2),
    "contains": lambda text, part: as_text(part).lower() in as_text(text).lower(),
}

#: A part of an expression; a part behind `&&` or `||` is evaluated only if it decides.
_Thunk = Callable[[], Any]
_TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(-?\d+(?:\.\d+)?)|([A-Za-z_][\w-]*)|(==|!=|&&|\|\||[!().,\[\]]))")
_HOLE = re.compile(r"\$\{\{(.+?)\}\}", re.S)
_WORDS = {"true": True, "false": False, "null": None}


def value_of(text: str, contexts: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """The value of an expression without `${{ }}`.

    Raises NotEmulated for a context or a function that is not given.
    """
    parser = _Parser(text, contexts, {**FUNCTIONS, **(functions or {})})
    value = parser.either()
    if parser.tokens:
        raise NotEmulated(f"the rest of the expression {text!r}")
    return value()


def filled(text: str, contexts: Mapping[str, Any]) -> Any:
    """A value of a workflow with its expressions replaced; one expression alone keeps the type of its value."""
    if whole := re.fullmatch(r"\s*\$\{\{((?:(?!\}\}).)+)\}\}\s*", text, re.S):
        return value_of(whole[1], contexts)
    return _HOLE.sub(lambda hole: as_text(value_of(hole[1], contexts)), text)


def text_of(value: Any, contexts: Mapping[str, Any]) -> str:
    """A value of a workflow as text, with its expressions replaced."""
    return as_text(filled(value, contexts) if isinstance(value, str) else value)


def as_text(value: Any) -> str:
    """A value as GitHub writes it into a text."""
    if isinstance(value, dict | list):
        raise NotEmulated("an object as text")
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def holds(condition: str | bool, contexts: Mapping[str, Any], status: Mapping[str, Callable[[], bool]]) -> bool:
    """Whether an `if` holds; without a function of the status, it needs `success()` too."""
    text = str(condition).strip()
    text = _HOLE.fullmatch(text)[1] if text.startswith("${{") else text  # type: ignore[index]

    value = value_of(text, contexts, status)
    names_status = any(re.search(rf"\b{name}\(", text) for name in status)
    return bool(value) and (names_status or status["success"]())


class _Parser:
    def __init__(self, text: str, contexts: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> None:
        self.tokens: list[str] = []
        self.contexts, self.functions = contexts, functions
        position, text = 0, text.strip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if not found:
                raise NotEmulated(f"{text[position:]!r} in an expression")
            self.tokens.append(found[0].strip())
            position = found.end()

    def _take(self, *wanted: str) -> str:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else ""

    def either(self) -> _Thunk:
        value = self._both()
        while self._take("||"):
            value = _or(value, self._both())
        return value

    def _both(self) -> _Thunk:
        value = self._compared()
        while self._take("&&"):
            value = _and(value, self._compared())
        return value

    def _compared(self) -> _Thunk:
        value = self._single()
        while sign := self._take("==", "!="):
            value = _compare(value, self._single(), equal=sign == "==")
        return value

    def _single(self) -> _Thunk:
        if self._take("!"):
            inner = self._single()
            return lambda: not inner()
        if self._take("("):
            value = self.either()
            self._expect(")")
            return value
        token = self.tokens.pop(0)
        if token.startswith("'"):
            return lambda: token[1:-1].replace("''", "'")
        if token[0].isdigit() or token[0] == "-":
            return lambda: json.loads(token)
        if token in _WORDS:
            return lambda: _WORDS[token]
        return self._call(token) if self._take("(") else self._path(token)

    def _call(self, name: str) -> _Thunk:
        if name not in self.functions:
            raise NotEmulated(f"the function {name}()")
        arguments: list[_Thunk] = []
        while not self._take(")"):
            arguments.append(self.either())
            self._take(",")
        return lambda: self.functions[name](*(argument() for argument in arguments))

    def _path(self, name: str) -> _Thunk:
        keys = [name]
        while self._take("."):
            keys.append(self.tokens.pop(0))
        return lambda: _member(self.contexts, keys)

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise NotEmulated(f"an expression without {sign!r}")


def _or(one: _Thunk, other: _Thunk) -> _Thunk:
    return lambda: one() or other()


def _and(one: _Thunk, other: _Thunk) -> _Thunk:
    return lambda: one() and other()


def _compare(one: _Thunk, other: _Thunk, *, equal: bool) -> _Thunk:
    return lambda: _equal(one(), other()) == equal


def _member(contexts: Mapping[str, Any], keys: list[str]) -> Any:
    """The value at a path. GitHub takes null for an unknown key; a test that does not give a value shall notice it."""
    value: Any = contexts
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            raise NotEmulated(f"{'.'.join(keys)}: this value is not given")
        value = value[key]
    return value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one.lower() == other.lower()
    if type(one) is not type(other):
        raise NotEmulated(f"a comparison of {one!r} and {other!r}")
    return bool(one == other)
