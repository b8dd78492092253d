"""The first error in the output of a failed build, with the line of the source that it is about."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from builder.untrusted import visible, without_escapes

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
#: Characters of a line that are read. Command lines are longer, messages are not.
_LONGEST_LINE = 4000
_WORDS = r"(?:fatal |catastrophic |internal compiler )?"
#: `a.cpp:3:1: error: …` (gcc, clang), `a.cu(12): error: …` and `a.cu(12): error #20: …` (nvcc). Group 4 is the message.
_PLACED = re.compile(
    r"\s*(?P<file>[^\s:(|'\"<>][^:(|'\"<>]*)(?::(?P<line>\d+)(?::\d+)?|\((?P<number>\d+)\)) ?: "
    rf"{_WORDS}error(?: #[\w-]+)?: \S"
)
#: An error, a warning or a note at a place: the text of the message before it ends here.
NEXT_MESSAGE = re.compile(
    rf"[^:(|]+(?::\d+(?::\d+)?|\(\d+\)) ?: {_WORDS}(?:error|warning|note|remark)(?: #[\w-]+)?:"
    r"|.* In (?:member )?function "
)
#: A line of the source, or the mark below it.
_SHOWN = re.compile(r"\s*\d+ \| |\s+\| ")
#: A compiler, linker or build tool that names itself: `nvcc fatal   : …`, `ptxas x.ptx, line 2; error   : …`.
_TOOL = re.compile(
    r"(?:\S*/)?(?:nvcc|ptxas|nvlink|fatbinary|cicc|cudafe\+\+|cc1(?:plus|obj)?|collect2|ninja|meson|sccache|lto1"
    r"|(?:[\w.-]*-)?(?:g\+\+|gcc|c\+\+|cc|clang(?:\+\+)?)(?:-[\d.]+)?|ld(?:\.\w+)?|mold)"
    rf"(?:\s[^:]*?)?:?\s*{_WORDS}(?:error|fatal)\s*:"
)
_LINKER = re.compile(
    r"(?!.*\bwarning: )(?:"
    r".*(?:undefined reference to|cannot find -l|: multiple definition of|: relocation R_\w+ against|final link failed"
    r"|file format not recognized|file not recognized|relocation truncated to fit|relocation overflow)"
    # GNU ld writes no "error".
    r"|(?:\S*/)?(?:[\w.-]*-)?ld(?:\.\w+)?: ?.*(?:error adding symbols|in wrong format|is incompatible with|ELFCLASS"
    r"|VERSION script|version tag|linker script file|unrecognized option|cannot find \S+: No such|TLS definition in"
    r"|plugin needed))"
)
_OTHER = re.compile(
    r"\s*CMake Error(?: at |: | in )|fatal: |make(?:\[\d+\])?: \*\*\* No rule to make target"
    r"|\S*python[\d.]*: No module named \S|\S+\.p(?:yx|xd|xi):\d+:\d+: \S"
    r"|(?:/\S*/)?(?:ba|da)?sh: (?:line )?\d+: .*(?:not found|Permission denied|No such file or directory)$"
)
#: A program that names an error at the start of a line, and the last line of Python's traceback.
_ANY = re.compile(r"(?:[^\s:]+: )?(?i:fatal )?(?i:error)(?:\[\w+\])?: |(?:\w+\.)*\w*(?:Error|Exception)(?::|$)")
#: What is printed about a program that failed: the program's own message says more.
_WRAPPED = re.compile(
    r"CalledProcessError|Error compiling objects for extension|error: command .* failed with exit |Failed to build"
    r"|(?:Compile|Link)Error: command|collect2: error: ld returned|linker command failed with exit"
    r"|ninja: build stopped|ptxas fatal   : Ptx assembly aborted|nvcc fatal   : Could not open output file"
    r"|subprocess-exited-with-error"
)
#: Characters of a line that are shown: around the mark, or from the beginning.
WIDTH = 110
#: Lines of one message that are read, and lines before it that say how the compiler came to the place.
_MESSAGE, _BEFORE = 60, 80
#: Bytes of a source file that are read to find a line.
_FILE_BYTES = 8 << 20
_GUTTER = re.compile(r"\s*(?:\d+ |)\| ?(?P<text>.*)")
_MARK = re.compile(r"[\s~^|]*\^[\s~^|]*")
_INCLUDED = re.compile(r"(?:In file included| +) ?from (?P<file>[^\s:]+):(?P<line>\d+)")
_REQUIRED = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+)(?::\d+)?:\s+required from here")
_ON_THE_WAY = re.compile(r"[^\s:]+: In |[^\s:]+:\d+(?::\d+)?:\s+(?:required|recursively) |\s*(?:\d+ )?\|")
#: What gcc and nvcc print after the message.
_BELOW = (
    re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):\d+: note: in expansion of macro"),
    re.compile(r"detected during .*at line (?P<line>\d+) of (?P<file>\S+)"),
    re.compile(r"^\s+instantiation of .*at line (?P<line>\d+) of (?P<file>\S+)"),
)


@dataclass(frozen=True)
class Place:
    """Where an error is: the file as the compiler printed it, and the line, from 1."""

    file: str
    line: int


@dataclass(frozen=True)
class FirstError:
    """The first error of a build."""

    text: str  # the message with its place, one line of at most LONGEST characters
    message: str  # the complete message, for what is known about it; several lines
    excerpt: tuple[str, ...] = ()  # the line of the source with its number, and a mark below the column; or empty
    count: int = 1  # how many errors the compilers and the linker named
    place: Place | None = None  # where it is, in a file of the source, as a path relative to it

    @property
    def sentence(self) -> str:
        """The text, with the number of errors if there are several."""
        return f"{self.text} ({self.count} errors in all)" if self.count > 1 else self.text


def first_error(output: Sequence[str], source: str, tree: Path | None = None) -> FirstError | None:
    """The first error in the output of a build, or None if no line names one.

    `source` is the folder in which the compilers ran; the result has paths relative to it. `tree` is where the source
    is now, if it can be read.
    """
    return next(every_error(output, source, tree), None)


def every_error(output: Sequence[str], source: str, tree: Path | None = None) -> Iterator[FirstError]:
    """What may be the first error, the most certain one first, and so all others; some come twice."""
    lines = [clean(line) for line in output]
    ninja = next((n for n, line in enumerate(lines) if line.startswith(_NINJA_FAILED)), 0)
    for start in dict.fromkeys((ninja, 0)):
        # nvcc repeats an error for each architecture.
        named = {line.strip() for line in lines[start:] if place_of(line) or "undefined reference to" in line}
        for n in range(start, len(lines)):
            if _from_compiler(lines[n]):
                message = _message_lines(lines, n)
                text = " ".join(line.strip() for line in message) if "CMake Error" in lines[n] else lines[n]
                place = place_of(lines[n])
                excerpt: list[str] = []
                if place:
                    code, mark = _printed(lines, n)
                    real = source_line(place, source, tree)
                    if real is not None and real != code:  # nvcc prints the line without macros and tabs
                        code, mark = real, ""
                    excerpt = _numbered(place, code, mark)
                    excerpt += _way(lines, n, source, tree) if _foreign(place.file, source) else []
                yield FirstError(
                    _one_line(text, source),
                    "\n".join([*message, *_advice(lines, n)]),
                    tuple(visible(_ENVIRONMENT.sub("", line.replace(f"{source}/", ""))) for line in excerpt),
                    len(named),
                    place and Place(place.file.removeprefix(f"{source}/"), place.line),
                )
    yield from _python_errors(lines, source, tree)
    for n, line in enumerate(lines):
        if _ANY.match(line) and not _WRAPPED.search(line):
            # What the error is about may be on a line of its own, after an empty one.
            about = next((each for each in lines[n + 1 : n + 3] if each.strip()), "") if line.endswith(":") else ""
            text = f"{line} {about.strip()}".rstrip()
            yield FirstError(_one_line(text, source), text)


def last_words(output: Sequence[str]) -> str:
    """The last line before the programs that report the failure of others, or "": `sys.exit("no CUDA")` prints it."""
    lines = [clean(line).strip() for line in output]
    end = next((n for n, line in enumerate(lines) if _WRAPPED.search(line)), 0)
    return visible(next((line for line in reversed(lines[:end]) if line and not line.startswith("+ ")), ""))[:LONGEST]


def last_lines(output: Sequence[str]) -> tuple[str, ...]:
    """The last lines of the output, for an error without a known cause and without a line of the source."""
    lines = [visible(clean(line))[:LONGEST] for line in output]
    return tuple([line for line in lines if line.strip()][-LAST_LINES:])


def clean(line: str) -> str:
    """A line as a person sees it: without colours, without its end, only what carriage returns left of it."""
    return without_escapes(line[:_LONGEST_LINE]).rstrip().rpartition("\r")[2]


def place_of(line: str) -> Place | None:
    """The place of the error in a line of a compiler, or None."""
    found = _PLACED.match(line)
    return Place(found["file"], int(found["line"] or found["number"])) if found else None


def is_message(line: str) -> bool:
    """Whether the line is a compiler's message about a line of a source, or shows this line."""
    return NEXT_MESSAGE.match(line) is not None or _SHOWN.match(line) is not None


def source_line(place: Place, source: str, tree: Path | None) -> str | None:
    """A line of a file of the source; None if the file is not below `tree`, is large, or has no such line."""
    if tree is None or _foreign(place.file, source):
        return None
    try:
        path = (tree / place.file.removeprefix(f"{source}/")).resolve()
        if not path.is_relative_to(tree.resolve()) or not path.is_file() or path.stat().st_size > _FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # ValueError: a name with a null byte
        return None
    return next((line.expandtabs() for line in islice(text.split("\n"), place.line - 1, place.line)), None)


def _from_compiler(line: str) -> bool:
    """Whether a compiler, a linker, CMake, make, git or a shell names an error in this line."""
    return any(form.match(line) for form in (_PLACED, _TOOL, _LINKER, _OTHER)) and not _WRAPPED.search(line)


def _message_lines(lines: Sequence[str], n: int) -> list[str]:
    """The lines of the message that begins at line `n`: up to an empty line, the next message, or the shown source.

    CMake's message begins after an empty line or none, and is indented. A list follows a colon and an empty line.
    """
    found = [lines[n]]
    cmake = "CMake Error" in lines[n]
    for line in islice(lines, n + 1, n + _MESSAGE):
        if cmake and not line.strip() and (len(found) == 1 or found[-1].endswith(":")):
            continue
        ended = not line.startswith("  ") if cmake else NEXT_MESSAGE.match(line) or _GUTTER.fullmatch(line)
        if ended or not line.strip() or _MARK.fullmatch(line):
            break
        found.append(line)
    return found


def _advice(lines: Sequence[str], n: int) -> list[str]:
    """The `#include` that gcc proposes for the error at line `n`, if any: a note behind the source that it shows."""
    for line in islice(lines, n + 1, n + _MESSAGE):
        if _from_compiler(line):
            break
        if "did you forget to" in line:
            return [line]
    return []


def _python_errors(lines: Sequence[str], source: str, tree: Path | None) -> Iterator[FirstError]:
    """The exceptions of Python, the last one first: it is the one that ended the build."""
    starts = [n for n, line in enumerate(lines) if line.strip() == "Traceback (most recent call last):"]
    for start in reversed(starts):
        indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
        end = start + 1
        while end < len(lines) and lines[end].startswith(f"{indent}  "):
            end += 1
        if end == len(lines) or not lines[end].strip() or _WRAPPED.search(lines[end]):
            continue
        place: Place | None = None  # the innermost frame in a file of the source
        frames = [line.removeprefix(indent) for line in lines[start + 1 : end]]
        for n, line in enumerate(frames):
            if found := _FRAME.match(line):
                by_setuptools = found["file"] == "<string>" and n and frames[n - 1].strip() == _RUNS_SETUP
                file = "setup.py" if by_setuptools else found["file"]
                if file.startswith(f"{source}/") or not file.startswith(("/", "<")):
                    place = Place(file.removeprefix(f"{source}/"), int(found["line"]))
        text = lines[end].strip()
        if place is None:
            yield FirstError(_one_line(text, source), text)
        else:
            shown = tuple(map(visible, _numbered(place, source_line(place, source, tree))))
            yield FirstError(_one_line(f"{place.file}:{place.line}: {text}", source), text, shown, place=place)


def _one_line(text: str, source: str) -> str:
    short = _ENVIRONMENT.sub("", text.strip().replace(f"{source}/", ""))
    safe = visible(" ".join(short.split()))
    return safe if len(safe) <= LONGEST else f"{safe[: LONGEST - 1]}…"


def _foreign(file: str, source: str) -> bool:
    return file.startswith("/") and not file.startswith(f"{source}/")


def _printed(lines: Sequence[str], n: int) -> tuple[str, str]:
    """The source line that the compiler printed below its message, and the line with the mark; empty if it did not."""
    for k in range(n + 2, min(n + _MESSAGE, len(lines))):
        code, mark = (found["text"] if (found := _GUTTER.fullmatch(line)) else line for line in lines[k - 1 : k + 1])
        if _MARK.fullmatch(mark):
            return code.expandtabs(), mark
        if not code.strip() or NEXT_MESSAGE.match(lines[k - 1]):
            break
    return "", ""


def _numbered(place: Place, code: str | None, mark: str = "") -> list[str]:
    """The line of a place, cut to WIDTH characters around the mark, with its number; nothing for an empty line."""
    if not code or not code.strip():
        return []
    at = min((mark.find(sign) for sign in "^~" if sign in mark), default=0)
    start = max(0, at - WIDTH // 2) if len(code) > WIDTH else 0
    shown = [f"{place.line:>5} | {code[start : start + WIDTH].rstrip()}"]
    if mark.strip():
        shown.append(f"      | {mark[start : start + WIDTH].rstrip()}")
    return shown


def _way(lines: Sequence[str], n: int, source: str, tree: Path | None) -> list[str]:
    """The line of the source that includes or uses the code of others at line `n`; empty if it is not known."""
    below = list(islice(lines, n + 1, n + _MESSAGE))
    end = next((k for k, line in enumerate(below) if not line.strip() or place_of(line)), len(below))
    steps = [found for line in below[:end] for form in _BELOW if (found := form.search(line))]
    for line in reversed(lines[max(0, n - _BEFORE) : n]):
        if found := _REQUIRED.match(line) or _INCLUDED.match(line):
            steps.insert(0, found)
        elif not _ON_THE_WAY.match(line):
            break
    for found in reversed(steps):
        place = Place(found["file"], int(found["line"]))
        if not _foreign(place.file, source):
            verb = "included" if found.re is _INCLUDED else "used"
            return [f"{verb} in {place.file}:{place.line}", *_numbered(place, source_line(place, source, tree))]
    return []
