"""The first error in the output of a failed build, with the line of the source that it is about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.diagnosis.excerpt import excerpt_of, message_lines, source_excerpt
from builder.diagnosis.messages import Place, clean, count_errors, from_any_program, from_compiler, is_wrapper, place_of
from builder.untrusted.plain_text import visible

#: Characters of the sentence.
LONGEST = 300
#: Lines of the output that are shown if nothing better is known.
LAST_LINES = 20
#: ninja prints this line before the command that failed and its output.
_NINJA_FAILED = "FAILED: "
#: The path of the environment, which says nothing about the source.
_ENVIRONMENT = re.compile(r"/\S*/(?:site-packages|objects/site)/")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)')
#: The frame in which setuptools executes setup.py, whose own frames have no file name.
_RUNS_SETUP = "exec(code, locals())"


@dataclass(frozen=True)
class FirstError:
    """The first error of a build."""

    #: The message with its place, one line of at most LONGEST characters.
    text: str
    #: The complete message, for what is known about it; several lines.
    message: str
    #: The line of the source with its number, and a mark below the column; empty if it is not known.
    excerpt: tuple[str, ...] = ()
    #: How many errors the compilers and the linker named.
    count: int = 1

    @property
    def sentence(self) -> str:
        """The text, with the number of errors if there are several."""
        return f"{self.text} ({self.count} errors in all)" if self.count > 1 else self.text


def first_error(output: Sequence[str], source: str, tree: Path | None = None) -> FirstError | None:
    """The first error in the output of a build, or None if no line names one.

    `source` is the folder in which the compilers ran; the result has paths relative to it. `tree` is where the source
    is now, if it can be read.
    """
    lines = [clean(line) for line in output]
    for error in _found(lines, source, tree):
        return error
    return None


def last_words(output: Sequence[str]) -> str:
    """The last line before the programs that report the failure of others, or "": `sys.exit("no CUDA")` prints it."""
    lines = [clean(line).strip() for line in output]
    end = next((n for n, line in enumerate(lines) if is_wrapper(line)), 0)
    return visible(next((line for line in reversed(lines[:end]) if line and not line.startswith("+ ")), ""))[:LONGEST]


def last_lines(output: Sequence[str]) -> tuple[str, ...]:
    """The last lines of the output, for an error without a known cause and without a line of the source."""
    lines = [visible(clean(line))[:LONGEST] for line in output]
    return tuple([line for line in lines if line.strip()][-LAST_LINES:])


def _found(lines: Sequence[str], source: str, tree: Path | None) -> Iterator[FirstError]:
    """What may be the first error, the most certain one first."""
    ninja = next((n for n, line in enumerate(lines) if line.startswith(_NINJA_FAILED)), 0)
    for start in dict.fromkeys((ninja, 0)):
        for n in range(start, len(lines)):
            if from_compiler(lines[n]):
                yield _compiler_error(lines, n, start, source, tree)
    yield from _python_errors(lines, source, tree)
    for n, line in enumerate(lines):
        if from_any_program(line):
            # What the error is about may be on a line of its own, after an empty one.
            about = next((each for each in lines[n + 1 : n + 3] if each.strip()), "") if line.endswith(":") else ""
            message = f"{line} {about.strip()}".rstrip()
            yield FirstError(_one_line(message, source), message)


def _compiler_error(lines: Sequence[str], n: int, start: int, source: str, tree: Path | None) -> FirstError:
    message = message_lines(lines, n)
    text = " ".join(line.strip() for line in message) if "CMake Error" in lines[n] else lines[n]
    place = place_of(lines[n])
    excerpt = excerpt_of(lines, n, place, source, tree) if place else ()
    count = count_errors(lines[start:])
    return FirstError(_one_line(text, source), "\n".join(message), _shortened(excerpt, source), count)


def _python_errors(lines: Sequence[str], source: str, tree: Path | None) -> Iterator[FirstError]:
    """The exceptions of Python, the last one first: it is the one that ended the build."""
    starts = [n for n, line in enumerate(lines) if line.strip() == "Traceback (most recent call last):"]
    for start in reversed(starts):
        indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
        end = start + 1
        while end < len(lines) and lines[end].startswith(f"{indent}  "):
            end += 1
        if end == len(lines) or not lines[end].strip() or is_wrapper(lines[end]):
            continue
        frames = [line.removeprefix(indent) for line in lines[start + 1 : end]]
        place = _own_frame(frames, source)
        text = lines[end].strip()
        where = f"{place.file}:{place.line}: " if place else ""
        yield FirstError(_one_line(where + text, source), text, source_excerpt(place, source, tree) if place else ())


def _own_frame(frames: Sequence[str], source: str) -> Place | None:
    """The innermost frame in a file of the source."""
    own = None
    for n, line in enumerate(frames):
        if not (found := _FRAME.match(line)):
            continue
        file = found["file"]
        if file == "<string>" and n and frames[n - 1].strip() == _RUNS_SETUP:
            file = "setup.py"
        if file.startswith(f"{source}/") or not file.startswith(("/", "<")):
            own = Place(file.removeprefix(f"{source}/"), int(found["line"]))
    return own


def _one_line(text: str, source: str) -> str:
    """The text with short paths, cut at its end."""
    short = _ENVIRONMENT.sub("", text.strip().replace(f"{source}/", ""))
    safe = visible(" ".join(short.split()))
    return safe if len(safe) <= LONGEST else f"{safe[: LONGEST - 1]}…"


def _shortened(lines: Sequence[str], source: str) -> tuple[str, ...]:
    return tuple(visible(_ENVIRONMENT.sub("", line.replace(f"{source}/", ""))) for line in lines)
