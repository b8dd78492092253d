"""Whether the cures of a source left its code as it was.

The compilers of the build compile the original and the cured files, with the headers of the newest torch that takes the
original. They need no library of torch, and nothing is linked or executed. GPU code must be the same, as PTX. Functions
for the CPU that differ, as assembly, are named: many right cures change them.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from builder.confinement import confined
from builder.diagnosis.known_errors import knowledge
from builder.diagnosis.rewrite import matches
from builder.diagnosis.target_version import NATIVE, source_files
from builder.errors import MissingToolError, UsageError
from builder.gate.amounts import counted, join_names
from builder.gate.system.process_end import demangle
from builder.matrix.axes import Torch
from builder.process import in_threads, run
from builder.proof import Check, Proof, Verdict, now
from builder.recipes.cures import PATCH, changed_files
from builder.wheels.build_scripts.job_file import read_job
from builder.wheels.job import CompileJob
from builder.wheels.sccache.launchers.server import CacheSettings
from builder.wheels.sources.prepare import prepare_source, project_folder
from builder.wheels.toolchain.machine import find_python
from builder.wheels.upstream import torch_headers
from builder.wheels.variables import shell_variables

#: Options that choose what is made, or write line numbers into it: those with a value, and the others.
_VALUE = re.compile(
    r"-(?:o|MF|MT|MQ|ccbin|std|arch|code|gencode)|--(?:compiler-bindir|output-file|std|gpu-architecture|gpu-code"
    r"|generate-code|dependency-output|dependency-target-name)"
)
_FLAG = re.compile(
    r"-(?:c|dc|dw|MD|MMD|MP|g|G|lineinfo)|--(?:compile|device-c|device-w|debug|device-debug|generate-line-info"
    r"|generate-(?:nonsystem-)?dependencies-with-compile|generate-dependency-targets)"
)
_TORCH, _PYTHON = re.compile(r"/\S*/torch/include(?=/|$)"), re.compile(r"/\S*/include/python3\.\d+t?(?=/|$)")
#: The code of a kernel or a function in PTX, and its name.
_IN_PTX = re.compile(r"(?ms)^[^\n/]*\.(?:entry|func)\b(?:\s*\([^()]*\))?\s*([\w$]+)[^;{]*\{.*?^\}")
#: In the text of an assembler: a function and its name; the file of a line; a label of this text; what stands at one.
_IN_ASSEMBLY = re.compile(r"(?ms)^([\w.$]+):\n(.*?)^\t\.size\t\1, ")
_FILE, _LINE = re.compile(r'(?m)^\t\.file (\d+) "(?:[^"]*" ")?([^"]*)"'), re.compile(r"(?m)^\t\.loc (\d+) .*\n")
_LABEL, _DATA = re.compile(r"\.L\w*\d+"), re.compile(r"(?m)^(\.LC\d+):\n((?:\t\.(?:string|ascii|long|quad)\t.*\n)+)")
#: What nvcc may choose anew for each call, in the names of what only one file sees.
_OWN = re.compile(r"(?<=_GLOBAL__N__)[0-9a-f]{8}|(?<=_INTERNAL_)[0-9a-f]{8}")
_INCLUDE = re.compile(rb'(?m)^\s*#\s*include\s*["<](?:[^">]*/)?([^">/]+)')
_ERROR = re.compile(rb"(?:error|fatal)\s*:\s*(.+)")
#: If no release removed what is cured, as if an `#include` is missing: headers of torch 1 include more of the others.
_NO_RELEASE = Torch(2, 0, 0)


@dataclass
class Compared:
    """What a comparison found, by file."""

    kernels: dict[str, int] = field(default_factory=dict)  # the number of its kernels, which are the same
    functions: dict[str, int] = field(default_factory=dict)  # the number of its functions for the CPU that are
    differ: dict[str, list[str]] = field(default_factory=dict)  # GPU functions with other code; "": other data
    review: dict[str, list[str]] = field(default_factory=dict)  # functions for the CPU with other code
    unknown: dict[str, str] = field(default_factory=dict)  # why it was not compared
    headers: dict[str, str] = field(default_factory=dict)  # the torch whose headers were used

    def verdict(self) -> tuple[Verdict, str]:
        """The verdict of the check `cures`, and its reason."""
        torch = join_names([*dict.fromkeys(self.headers.values())])
        if self.differ:
            where = f"{_names(self.differ)} in {join_names([*self.differ])} (headers of torch {torch}): review {PATCH}"
            return Verdict.FAILED, f"the cures change the GPU code of {where}, and write a patch of your own"
        kinds = (("kernel", sum(self.kernels.values())), ("CPU function", sum(self.functions.values())))
        same = " and ".join(counted(number, what) for what, number in kinds if number)
        files = join_names([*self.functions])
        found = [f"{same} in {files} have the same code as before (headers of torch {torch})"] if same else []
        if self.review:
            found.append(f"review what {PATCH} changes in {_names(self.review)}")
        if self.unknown:
            why = next(iter(self.unknown.values()))
            found.insert(0, f"{join_names([*self.unknown])} cannot be compared with the original: {why}")
        text = "; ".join(found) or "the cures change no file that a compiler reads"
        return Verdict.NOT_RUN if self.unknown else Verdict.PASSED, text


def _names(functions: Mapping[str, Sequence[str]]) -> str:
    return join_names([demangle(name) or "data" for each in functions.values() for name in each])


@dataclass(frozen=True)
class _Call:
    """A call of a compiler in the build."""

    compiler: str  # `nvcc` or the name of a C++ compiler
    root: Path  # the top of the source, as it was then
    folder: Path  # the working directory
    argv: Sequence[str]


class _Headers(NamedTuple):
    """The headers of a torch that takes what newer ones refuse."""

    torch: Torch
    include: Path
    python: Path | None  # the headers of a Python that this torch has wheels for
    names: Sequence[str]  # options that give the macros of this torch their new names


class _Code(NamedTuple):
    """The code of a file, by function."""

    gpu: dict[str, str]
    cpu: dict[str, str]


def prove_cures(job: CompileJob, sources: Path, stage: Callable[[str], None]) -> Proof | None:
    """The proof of the check `cures` after a compile on this machine; None for a recipe without a patch of cures.

    It names no wheel yet. `sources` is the cache of downloaded sources.
    """
    patch = job.recipe.folder / PATCH
    if patch not in job.recipe.patches or job.toolchain.executor != "local":
        return None
    stage("compare")
    found, changed = Compared(), changed_files(patch.read_bytes())
    with TemporaryDirectory(dir=job.work) as folder:
        try:
            _compare(job, changed, sources, Path(folder), found)
        except (MissingToolError, UsageError, OSError) as problem:
            found.unknown = dict.fromkeys(changed, str(problem))
    evidence = {key: value for key, value in vars(found).items() if value}
    return Proof("", None, Check.CURES, *found.verdict(), evidence=evidence, when=now())


def _compare(job: CompileJob, changed: Sequence[str], sources: Path, folder: Path, found: Compared) -> None:
    patch, trees = job.recipe.folder / PATCH, (folder / "before", folder / "after")
    before = replace(job.recipe, patches=tuple(one for one in job.recipe.patches if one != patch))
    for tree, recipe in zip(trees, (before, job.recipe), strict=True):
        tree.mkdir()
        prepare_source(recipe, tree, cache=sources)
    old, new = (project_folder(job.recipe, tree) for tree in trees)
    for name in changed:
        _align(old / name, new / name)
    calls = dict(_calls(job, new))
    if not calls:
        found.unknown = dict.fromkeys((name for name in changed if name.endswith(NATIVE)), "its compile was not seen")
    inside = {*_INCLUDE.findall(b"".join(path.read_bytes() for path, _ in source_files(old, NATIVE)))}
    included = [name for name in changed if name not in calls and name.rpartition("/")[2].encode() in inside]
    if not included:
        calls = {name: call for name, call in calls.items() if name in changed}
    rows = [(known.torch, known.cure.rewrite) for known in knowledge().errors if known.cure and known.torch]
    headers, of = dict[Torch, _Headers](), dict[str, _Headers]()
    for name in calls:
        codes = [(old / each).read_bytes() for each in changed if each in (name, *included)]
        since = [torch for torch, forms in rows if any(matches(code, form) for form in forms for code in codes)]
        first = min(since, default=_NO_RELEASE)
        of[name] = headers.get(first) or headers.setdefault(first, _headers_before(first, folder / str(first), rows))
        found.headers[name] = str(of[name].torch)
    made: list[dict[str, _Code | str]] = []
    for tree in trees:  # at the same path: names in GPU code depend on it
        tree.rename(place := folder / "src")
        tasks = [partial(_code, job, project_folder(job.recipe, place), *one, of[one[0]]) for one in calls.items()]
        made.append(dict(zip(calls, in_threads(tasks, job.jobs), strict=True)))
        place.rename(tree)
    for name in calls:
        was, is_now = made[0][name], made[1][name]
        if isinstance(was, str) or isinstance(is_now, str):
            found.unknown[name] = f"{was if isinstance(was, str) else is_now} (headers of torch {of[name].torch})"
            continue
        if differ := _different(was.gpu, is_now.gpu):
            found.differ[name] = differ
        if review := _different(was.cpu, is_now.cpu):
            found.review[name] = review
        found.kernels[name] = sum(".entry" in code for code in was.gpu.values()) if not differ else 0
        found.functions[name] = len(was.cpu.keys() - {*review})


def _headers_before(release: Torch, folder: Path, rows: Sequence[tuple[Torch, Mapping[str, str]]]) -> _Headers:
    torch, pythons = torch_headers(f"<{release}", folder)
    python = next((one for each in pythons if (one := find_python(each)) and one.headers), None)
    pairs = [pair for gone, forms in rows if gone > torch for pair in forms.items()]
    names = [f"-D{new}={old}" for old, new in pairs if old.isidentifier() and new.isidentifier()]
    return _Headers(torch, folder / "torch/include", _include(python.path) if python else None, names)


def _different(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _align(old: Path, new: Path) -> None:
    """Give the lines of two files the same numbers, which `__LINE__` writes into code, by empty lines."""
    before, after = (path.read_bytes().splitlines(keepends=True) for path in (old, new))
    filled: tuple[list[bytes], list[bytes]] = ([], [])
    for _, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for lines, part in zip(filled, (before[i:j], after[k:m]), strict=True):
            lines += [*part, *[b"\n"] * (max(j - i, m - k) - len(part))]
    for path, lines in zip((old, new), filled, strict=True):
        path.write_bytes(b"".join(lines))


def _calls(job: CompileJob, tree: Path) -> Iterator[tuple[str, _Call]]:
    """The calls of compilers that `launch.sh` has kept, by the file of the source that they compiled."""
    for kept in sorted(job.statistics.glob("call.*")):
        compiler, folder, source, *argv = kept.read_bytes().decode(errors="surrogateescape")[:-1].split("\0")
        path = Path(os.path.normpath(Path(folder, source)))
        for root in reversed(path.parents):
            if (tree / path.relative_to(root)).is_file():
                yield path.relative_to(root).as_posix(), _Call(compiler, root, Path(folder), argv)
                break


def _code(job: CompileJob, tree: Path, name: str, call: _Call, headers: _Headers) -> _Code | str:
    """The code that a compiler makes of a file; or its first error."""
    settings = read_job(job.file, CacheSettings)
    # The links to the toolkit and the packages in the build's place, where another build may be now.
    places = {
        str(call.root): str(tree),
        str(settings.layout.cuda): str(settings.toolkit),
        str(settings.layout.site): str(settings.site),
    }
    words, argv = iter(call.argv), list[str]()
    for word in words:
        if _VALUE.fullmatch(word):
            next(words, None)
        elif not _FLAG.fullmatch(word) and not _VALUE.fullmatch(word.partition("=")[0]):
            moved = _TORCH.sub(str(headers.include), word)
            moved = _PYTHON.sub(str(headers.python), moved) if headers.python else moved
            argv.append(reduce(lambda text, place: text.replace(*place), places.items(), moved))
    (out := tree.parent / f"{name.replace('/', '_')}.out").mkdir(exist_ok=True)
    # Enough optimization for what a macro adds and nothing uses to leave no code; -g1 names the file of each function.
    # A cure may include a header that only a newer torch has.
    compiler, host = settings.cxx, ["-S", "-O1", "-g1", f"-idirafter{settings.site}/torch/include"]
    if call.compiler == "nvcc":
        arch = max(job.build.archs, key=lambda one: one.capability).sm.replace("sm", "compute")
        compiler = str(settings.toolkit / "bin/nvcc")
        host = ["-ccbin", settings.cxx, "-Xcompiler", ",".join(host), "-c", f"-gencode=arch={arch},code={arch}"]
        host += ["-keep", "-keep-dir", str(out)]
    argv += [f"-I{headers.include}/TH", f"-I{headers.include}/THC", *headers.names]
    argv += ["-std=c++17", *host, "-o", str(out / "made.s")]
    folder = tree / call.folder.relative_to(call.root) if call.folder.is_relative_to(call.root) else tree
    folder.mkdir(parents=True, exist_ok=True)
    (log := out / "log").write_bytes(b"")
    variables = {**shell_variables(os.environ), **job.recipe.env, "TMPDIR": str(out)}
    status = run(confined([compiler, *argv], [out]), log=log, owner=job.owner, cwd=folder, env=variables)
    if status:
        error = _ERROR.search(log.read_bytes())
        return error[1].decode(errors="replace").strip() if error else f"{compiler} failed (exit status {status})"
    ptx = re.sub(r"(?m)^//.*\n", "", "".join(_text(path) for path in out.glob("*.ptx")))
    gpu = {each[1]: each[0] for each in _IN_PTX.finditer(ptx)} | {"": _IN_PTX.sub("", ptx)}
    return _Code(gpu, dict(_functions(_text(out / "made.s"), tree)))


def _text(path: Path) -> str:
    return _OWN.sub("", path.read_text(encoding="utf-8", errors="replace"))


def _functions(assembly: str, tree: Path) -> Iterator[tuple[str, str]]:
    """The functions whose code begins in a file of the source, with the data and without the numbers of labels."""
    files = {number: Path(file) for number, file in _FILE.findall(assembly)}
    own = {number for number, file in files.items() if not file.is_absolute() or file.is_relative_to(tree)}
    data = dict(_DATA.findall(assembly))
    for name, code in _IN_ASSEMBLY.findall(assembly):
        line = _LINE.search(code)
        if line and line[1] in own:
            yield name, _without_numbers(_LINE.sub("", code), data)


def _without_numbers(code: str, data: Mapping[str, str]) -> str:
    """The code with the data of its labels, and its own numbers for other labels."""
    labels: dict[str, str] = {}
    return _LABEL.sub(lambda one: data.get(one[0]) or labels.setdefault(one[0], f".L{len(labels)}"), code)


def _include(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    return Path(subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False).stdout.strip())
