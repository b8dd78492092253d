"""What text files of a wheel name: headers that CUDA sources include, libraries that Python files import or load."""

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from builder.gate.amounts import grouped
from builder.gate.imports.packages import is_startup_file, startup_code
from builder.wheelfile.archive import WheelFile, installed_path
from builder.wheelfile.limits import MAX_NAME

#: Bytes of a source that are searched, and number of sources.
_MAX_SOURCE, _MAX_SOURCES = 2**20, 2000
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(include|if|ifdef|ifndef|endif|define)\b[ \t]*([^\n]*)", re.MULTILINE)
#: Headers of torch, pybind11, CUDA's toolkit and C++ libraries, and Python.
_OUTSIDE = re.compile(
    r"(?:ATen|c10|torch|caffe2|THC?|pybind11|cub|thrust|cuda|nv|cooperative_groups)(?:/.*|\w*\.\w+)"
    r"|cu[a-zA-Z]\w*\.(?:h|hpp|cuh)|(?:Python|math_constants|mma|nccl|driver_types|vector_types|vector_functions"
    r"|device_\w+|sm_\d+_\w+|builtin_types|host_defines|surface_\w+|texture_\w+|library_types|crt/\w+|omp|fatbinary\w*)"
    r"(?:\.h|\.hpp)?"
)
#: Files that no source includes; a wheel may have thousands.
_NO_HEADERS = (".py", ".pyi", ".json")
#: Folders of the system's own headers.
_SYSTEM = re.compile(r"(?:sys|linux|asm|arpa|net|netinet|bits|ext|experimental|numpy)/")
#: Bytes of a Python file, and of all, that are searched for names.
_MAX_PYTHON, _MAX_PYTHONS = 2**20, 2**28
_IMPORT = re.compile(
    r"from[ \t]{1,9}(\.*)((?:\w[\w.]*)?)[ \t]{1,9}import[ \t]{0,9}\(?([^;)]+)|import[ \t]{1,9}([^#;]+)"
)
#: What loads a library by its path, and what finds paths.
_LOADS = re.compile(r"(?i)cdll|load_?lib|dlopen")
_FINDS = re.compile(r"glob|listdir|scandir|iterdir|\bwalk\b")


def missing_headers(wheel: WheelFile) -> dict[str, tuple[str, ...]]:
    """The missing headers of each .cu file and of the headers that it includes; empty for a wheel without .cu files.

    A quoted include is searched beside the source and below every folder of the wheel, as some `-I` may name it. So is
    an include in angle brackets that names a folder, such as `<glm/glm.hpp>`. The headers of torch, CUDA and the system
    are not. Comments are skipped, and so are includes below an `#if`. Raises DamagedWheelError.
    """
    todo = sorted(name for name in wheel.names if name.endswith(".cu"))
    names = (name for name in (wheel.names if todo else ()) if not name.endswith(_NO_HEADERS))
    headers = grouped((name.rpartition("/")[2], name) for name in names)
    found, seen = dict[str, tuple[str, ...]](), set(todo)
    while todo and len(seen) < _MAX_SOURCES:
        source = todo.pop(0)
        with wheel.open(source) as stream:
            text = stream.read(_MAX_SOURCE).decode(errors="replace")
        lacking = []
        for path in dict.fromkeys(_included(text)):
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
            below = re.sub(r"^(?:\.\./)+", "", posixpath.normpath(path))
            same_name = headers.get(posixpath.basename(path), [])
            held = [name for end in (below, beside) for name in same_name if f"/{name}".endswith(f"/{end}")]
            if not held:
                lacking.append(path)
            elif held[-1] not in seen:
                seen.add(held[-1])
                todo.append(held[-1])
        if lacking:
            found[source] = tuple(lacking)
    return found


def _included(text: str) -> Iterator[str]:
    """The includes that no condition skips; a guard against a second inclusion is no condition."""
    depth, guard = 0, ""
    for word, rest in _DIRECTIVE.findall(_COMMENT.sub("", text)):
        if word == "define" and guard and rest.split()[:1] == [guard]:
            depth -= 1
        guard = rest.strip() if word == "ifndef" and not depth else ""
        depth += word.startswith("if")
        depth = max(0, depth - (word == "endif"))
        path = re.match(r'"([^"]+)"|<([^>]+/[^>]+)>', rest) if word == "include" and not depth else None
        if path and not _OUTSIDE.fullmatch(path[1] or path[2]) and (path[1] or not _SYSTEM.match(path[2])):
            yield path[1] or path[2]


@dataclass(frozen=True)
class PythonUses:
    """The names of libraries that the Python files of a wheel use, of those that were asked for."""

    #: Full names of modules that unindented statements import, such as `ops._C`: no condition skips these.
    imported: frozenset[str]
    #: Names without a suffix, such as `_C`, in unindented statements.
    named: frozenset[str]
    #: File names of libraries that Python code may load before another library needs them.
    loaded: frozenset[str]


def python_uses(
    wheel: WheelFile, *, modules: Collection[str] = (), stems: Collection[str] = (), files: Collection[str] = ()
) -> PythonUses:
    """Search the Python files for full names of modules, for names, and for file names of libraries.

    If the Python files are larger than any real package, every name and every file name counts as used. Raises
    DamagedWheelError.
    """
    imported, named, loaded = set[str](), set[str](), set[str]()
    ends, left = {module.rpartition(".")[2] for module in modules}, _MAX_PYTHONS
    for name in wheel.names if modules or stems or files else ():
        if not name.endswith(".py"):
            continue
        with wheel.open(name) as stream:
            source = stream.read(_MAX_PYTHON)
        left -= len(source)
        if left < 0:
            return PythonUses(frozenset(imported), frozenset(stems), frozenset(files))
        text = source.decode(errors="replace")
        loaded |= {file for file in files if _may_load(file, text)}
        words = [re.compile(rf"(?<!\w){re.escape(stem)}(?!\w)") for stem in {*stems} - named if stem in text]
        if words or any(end in text for end in ends):
            statements = list(_statements(text))
            named |= {match[0] for word in words for line in statements if (match := word.search(line))}
            package = installed_path(name).split("/")[:-1]
            imported |= {module for line in statements for module in _imports(line, package) if module in modules}
    return PythonUses(frozenset(imported), frozenset(named), frozenset(loaded))


def _statements(text: str) -> Iterator[str]:
    """The first line of each unindented statement; of `from x import (`, all lines."""
    lines = iter(text.splitlines())
    for line in lines:
        if line[:1].strip() and not line.startswith("#"):
            names = [line.partition("#")[0] if line.startswith("from ") else line]
            while "(" in names[0] and ")" not in names[-1] and line.startswith("from "):
                names.append(next(lines, ")").partition("#")[0])
            yield " ".join(names)


def _imports(statement: str, package: Sequence[str]) -> Iterator[str]:
    """The full names that an import statement of a module of this package may import; none of another statement."""
    if match := _IMPORT.match(statement):
        dots, module, names, plain = match.groups()
        base = [*(package[: len(package) + 1 - len(dots)] if dots else ()), *filter(None, [module])]
        yield ".".join(base)
        for each in (plain or names).split(","):
            if words := each.split():
                yield ".".join([*base, words[0]])


def _may_load(name: str, text: str) -> bool:
    """Whether Python code may load a library of this file name before another one needs it.

    The number at the end may be filled in: torchaudio loads `libtorio_ffmpeg{version}`.
    """
    stem = name.partition(".so")[0].removeprefix("lib").rstrip("0123456789.")
    return _LOADS.search(text) is not None and (stem in text or _FINDS.search(text) is not None)


def startup_lines(wheel: WheelFile) -> dict[str, str]:
    """The first line that Python executes of each file that it reads when it starts, by path."""
    found = {}
    for name in wheel.names:
        place = installed_path(name)
        top = place.removesuffix("/__init__.py")
        if place and "/" not in top and is_startup_file(top):
            with wheel.open(name) as stream:
                code = startup_code(place, stream.read(_MAX_PYTHON).decode(errors="replace"))
            if code:
                found[name] = code[:MAX_NAME]
    return found
