"""Reads sccache's log: which source file of a build was compiled, and which was found in the cache."""

from __future__ import annotations

import itertools
import json
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import PurePosixPath

#: The release of sccache whose log these patterns fit (level debug); a test shows its lines.
KNOWN_RELEASE = "0.16"

#: The language of a source file by its suffix; files with other suffixes are not sources.
LANGUAGES = {
    ".c": "C",
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".C", ".cp"), "C++"),
    ".cu": "CUDA",
    **dict.fromkeys((".s", ".S", ".sx"), "assembly"),
}

_LINE = re.compile(r"^\[\S+ DEBUG sccache::[\w:]+\] (.*)$")
_BEGIN = re.compile(r"^\[(.+?)\]: get_cached_or_compile: (\[.*\])$")
_RESULT = re.compile(r"^\[(.+?)\]: compile result: (.+)$")
_REFUSAL = re.compile(r"^parse_arguments: CannotCache\((.*?)\): (\[.*\])$")
_ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass
class Compile:
    """One compile of a source file, as the log tells it.

    Attributes:
        source: the source file, as the compiler got it.
        object: the object file, as the compiler got it.
        steps: for nvcc, whether the result of each of its steps was in the cache.
        result: sccache's result (`cache hit`, `cache miss`, ...), or empty; for nvcc, that of the call itself.
        refusal: why sccache did not try to cache it, or empty.

    """

    source: str
    object: str
    steps: list[bool] = field(default_factory=list)
    result: str = ""
    refusal: str = ""


@dataclass
class ServerLog:
    """What was read from a log.

    Attributes:
        compiles: in the order in which they began.
        begins, results, refusals: how many lines of each kind were read.

    """

    compiles: list[Compile] = field(default_factory=list)
    begins: int = 0
    results: int = 0
    refusals: int = 0


def read_server_log(text: str) -> ServerLog:
    """Each compile that the server was asked for, with its results. Lines in any other form are skipped.

    The log names objects by their file names alone. A step of nvcc belongs to the source whose path cudafe++ and cicc
    get as an argument, or to the object that the step writes; a result belongs to the first compile that waits for one
    under its name.
    """
    log = ServerLog()
    waiting: dict[str, deque[tuple[Compile, bool]]] = {}
    for line in text.splitlines():
        if not (message := _LINE.match(line)):
            continue
        if begin := _BEGIN.match(message[1]):
            log.begins += 1
            waiting.setdefault(begin[1], deque()).append(_compile_of(begin[1], _arguments(begin[2]), log.compiles))
        elif result := _RESULT.match(message[1]):
            log.results += 1
            _add_result(result[2], waiting.get(result[1], deque()))
        elif refusal := _REFUSAL.match(message[1]):
            log.refusals += 1
            if source := _source(_arguments(refusal[2])):
                log.compiles.append(Compile(source, "", refusal=f"sccache: {refusal[1]}"))
    return log


def _add_result(result: str, queue: deque[tuple[Compile, bool]]) -> None:
    """Give a result to the compile, or to the step of nvcc, that waits for it; `queue` holds those of its name."""
    # The call of nvcc itself is never cached. Its last step has the same name, and its result comes first.
    of_nvcc = result == "not cacheable"
    fitting = (entry for entry in queue if (not entry[1] and entry[0].source.endswith(".cu")) == of_nvcc)
    found = next(fitting, None) or next(iter(queue), None)
    if found is None:
        return
    queue.remove(found)
    compile_, is_step = found
    if is_step:
        compile_.steps.append(result == "cache hit")
    else:
        compile_.result = result


def _compile_of(name: str, arguments: list[str], compiles: list[Compile]) -> tuple[Compile, bool]:
    """The compile that a line belongs to, a new one where it begins, and whether the line is a step of nvcc."""
    kernels = [each for each in reversed(compiles) if each.source.endswith(".cu") and not each.result]
    if source := _after("--orig_src_path_name", arguments):
        for kernel in kernels:
            if source.endswith(kernel.source.removeprefix("./")):
                return kernel, True
    if any(argument.endswith(".cudafe1.cpp") for argument in arguments):
        for kernel in kernels:
            if kernel.object == _after("-o", arguments):
                return kernel, True
    if name.endswith((".cubin", ".ptx")):
        for kernel in kernels:
            # nvcc names them after the source; with -objtemp, after the object.
            if name.startswith(tuple(f"{PurePosixPath(path).stem}." for path in (kernel.source, kernel.object))):
                return kernel, True
    new = Compile(_source(arguments) or name, _after("-o", arguments))
    compiles.append(new)
    return new, False


def _source(arguments: list[str]) -> str:
    previous = ["", *arguments]
    with_value = ("-o", "-MF", "-MT", "-MQ", "-include", "--dependency-output")
    files = (a for b, a in zip(previous, arguments, strict=False) if b not in with_value and not a.startswith("-"))
    return next((argument for argument in files if PurePosixPath(argument).suffix in LANGUAGES), "")


def _after(option: str, arguments: list[str]) -> str:
    return next((value for name, value in itertools.pairwise(arguments) if name == option), "")


def _arguments(text: str) -> list[str]:
    return [_unescape(argument) for argument in _ARGUMENT.findall(text)]


def _unescape(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:  # escapes of Rust that JSON does not know, such as \u{e9}
        return text
