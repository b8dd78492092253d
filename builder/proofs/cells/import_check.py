"""The import check: import the modules of a wheel in a fresh process, and say what to change if that fails."""

import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar
from zipfile import BadZipFile, ZipFile

from builder import wheels
from builder.confinement import confined
from builder.diagnosis.known_errors import hint_of, reports
from builder.diagnosis.setup_script import SetupFacts, read_setup_script
from builder.errors import BuildfarmError
from builder.gate.system.process_end import signal_name
from builder.matrix.config import PathSource, Recipe
from builder.process import WHEEL_LIMITS, describe_limit, run_contained, wheel_variables
from builder.proof import Verdict
from builder.untrusted import JsonError, parse_json
from builder.wheelfile.compatibility import is_driver_library
from builder.wheels.sources.folder import source_files

T = TypeVar("T")

#: Time limit. A normal import of torch takes seconds.
IMPORT_SECONDS = 300

#: How much of the end of an import's output is read, in bytes.
_KEPT_OUTPUT = 1 << 20

#: Words after the secret at the start of the line that holds the result.
_MARK, _RAISED = " imported ", " raised "

#: Reads the secret and deletes its file before any code of the wheel runs: Python starts with -S, so that `.pth` files
#: and `sitecustomize` run in `site.main`. What modules print goes to stderr.
_PROGRAM = """
def main(path, names):
    import faulthandler, importlib, json, os, platform, sys, traceback
    with open(path) as file:
        secret = file.read()
    os.unlink(path)
    answers = os.dup(1)
    os.dup2(2, 1)
    def answer(word, data):
        os.write(answers, (secret + word + json.dumps(data) + "\\n").encode())
    faulthandler.enable()
    import site
    site.main()
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            traceback.print_exc()
            chain = []
            while error and len(chain) < 20:
                chain.append([type(error).__name__, str(error)])
                error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
            answer("{raised}", {"module": name, "chain": chain})
            sys.exit(1)
    import torch
    answer("{mark}", {
        "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
        "glibc": platform.libc_ver()[1], "gpus": torch.cuda.device_count(),
    })
import sys
main(sys.argv.pop(1), sys.argv[1:])
""".replace("{mark}", _MARK).replace("{raised}", _RAISED)
#: Runs before the program above: torch.cuda answers as with an H100, if there is no GPU.
_ANSWERS = Path(wheels.__file__).with_name("assume_cuda") / "sitecustomize.py"
_AS_WITH_GPU = f"""
import os
os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0"
answers = {{}}
exec({_ANSWERS.read_text("utf-8")!r}, answers)
answer = answers["_answer_as_with_gpus"]
answers["_answer_as_with_gpus"] = lambda module: module.device_count() or answer(module)
"""
#: What names the cause, wherever it is in a long message.
CAUSES = ("no-library", "undefined-symbol", "no-module", "no-module-function", "bad-library")
#: Libraries that importing torch loads: torch's own, and those of CUDA that torch depends on. The driver's is not one.
_LOADED_BY_TORCH = re.compile(r"lib(?:c10|torch|shm|cu|nv|nccl)[\w-]*\.so[.\d]*")
_MOST = 300  # characters of one message
_NO_FILE = re.compile(r"No such file or directory: '[^'\n]*?/site-packages/([^'\n]+)'")


@dataclass(frozen=True)
class ImportOutcome:
    """Verdict of an import, the reason, and the versions it ran with."""

    verdict: Verdict
    reason: str
    evidence: dict[str, Any]


def try_import(
    interpreter: Path,
    modules: Sequence[str],
    *,
    owner: str,
    log: Path | None = None,
    as_with_gpu: bool = False,
    stubs: Path | None = None,
) -> ImportOutcome:
    """Import the modules, in order, in a fresh process of the cell's Python; a crash does not affect this process.

    With `as_with_gpu`, torch.cuda answers as on a machine with a GPU. `stubs` is a folder with libraries that stand for
    those of the driver.

    The process can change no file but those below a temporary folder, which is its HOME. The output of a failed import
    is appended to the log. `owner` is that of the process, as in `process.run`. Raises Interrupted.

    LD_LIBRARY_PATH, LD_PRELOAD and other loader variables of the user's shell are not passed on: a wheel that needs
    them does not import for anybody else.
    """
    limits = replace(WHEEL_LIMITS, seconds=IMPORT_SECONDS)
    environment = {name: value for name, value in wheel_variables().items() if not name.startswith("LD_")}
    with (
        tempfile.TemporaryDirectory(prefix="buildfarm-import-") as scratch,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        path, secret = write_secret(Path(scratch))
        argv = confined([str(interpreter), *import_arguments(str(path), modules, as_with_gpu)], [Path(scratch)])
        environment |= {"HOME": scratch, "TMPDIR": scratch} | ({"LD_LIBRARY_PATH": str(stubs)} if stubs else {})
        ended = run_contained(argv, out, err, owner=owner, env=environment, limits=limits)
        stdout, stderr = _tail(out), _tail(err)
    if ended.limit == "time":
        return hanging_import(modules)
    if ended.limit:
        reason = f"import of {', '.join(modules)} {describe_limit(ended.limit, limits)}"
        return ImportOutcome(Verdict.FAILED, reason, {"stderr": stderr[-4000:], "limit": ended.limit})
    outcome = judge_import(modules, secret, ended.status, stdout, stderr)
    if log and outcome.verdict is Verdict.FAILED:
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"+ import {', '.join(modules)}\n{stderr}")
    return outcome


def write_secret(folder: Path) -> tuple[Path, str]:
    """Write a new secret into a file; return both. The program of the check begins its answer with the secret."""
    path, secret = folder / "secret", secrets.token_hex(32)
    path.write_text(secret)
    return path, secret


def import_arguments(secret: str, modules: Sequence[str], as_with_gpu: bool = False) -> list[str]:
    """Arguments of the cell's Python that import the modules; `secret` is the path of the file from `write_secret`."""
    program = _AS_WITH_GPU + _PROGRAM if as_with_gpu else _PROGRAM
    return ["-I", "-S", "-X", "faulthandler", "-c", program, secret, *modules]


def hanging_import(modules: Sequence[str]) -> ImportOutcome:
    """The outcome of an import that was killed after IMPORT_SECONDS."""
    return ImportOutcome(
        Verdict.FAILED, f"import of {', '.join(modules)} did not finish within {IMPORT_SECONDS} s", {"limit": "time"}
    )


def judge_import(modules: Sequence[str], secret: str, status: int, stdout: str, stderr: str) -> ImportOutcome:
    """The outcome by exit status (negative: a signal) and output; only a line that begins with the secret counts."""
    names = ", ".join(modules)
    evidence: dict[str, Any] = {"stderr": stderr[-4000:], "status": status}
    if status == 0:
        if imported := _printed(secret + _MARK, stdout, dict[str, Any]):
            return ImportOutcome(Verdict.PASSED, names, imported)
        return ImportOutcome(Verdict.FAILED, f"import of {names} ended the process", evidence)
    if status < 0:
        what = re.search(r"(?m)^ *what\(\): .+$", stderr)  # the exception of C++ that ended the process
        why = f": {what[0].strip()[:_MOST]}" if what else ""
        return ImportOutcome(Verdict.FAILED, f"import of {names} crashed with {signal_name(-status)}{why}", evidence)
    if raised := _printed(secret + _RAISED, stdout, _raised):
        module, chain = raised
        shown, cause = _headline(*chain[0]), _cause(chain, stderr)
        # The sentence has the line that names the cause if the exception does not.
        sentence = f"import of {module} failed: {shown}" + (f"; the cause: {cause}" if cause not in shown else "")
        return ImportOutcome(Verdict.FAILED, sentence, evidence | {"hints": _hints(module, cause, modules)})
    lines = stderr.strip().splitlines()
    return ImportOutcome(Verdict.FAILED, f"import of {names} failed: {lines[-1] if lines else 'no message'}", evidence)


def _printed(mark: str, stdout: str, parse: Callable[[Any], T]) -> T | None:
    """The data of the last line with this prefix, or None."""
    found = [line.removeprefix(mark) for line in stdout.splitlines() if line.startswith(mark)]
    try:
        return parse_json(found[-1], parse) if found else None
    except JsonError:  # the wheel printed it
        return None


def _raised(data: Any) -> tuple[str, list[tuple[str, str]]]:  # noqa: ANN401
    """The module whose import failed; type and message of the exception, then of its cause, and so on."""
    first, *more = ((str(kind), str(text)) for kind, text in data["chain"])
    return str(data["module"]), [first, *more]


def _tail(file: IO[bytes]) -> str:
    """The end of an output, which may have any size."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _KEPT_OUTPUT))
    return file.read().decode(errors="replace")


def _cause(chain: Sequence[tuple[str, str]], stderr: str) -> str:
    """The first line that names a missing library, symbol or module, from the innermost exception outwards."""
    for _, text in reversed(chain):
        for line in text.splitlines():
            if any(reports(name, line) for name in CAUSES):
                return line.strip()[:_MOST]
    # import_array() of NumPy's C API prints the exception, and raises another one without a cause.
    printed = re.findall(r"(?m)^ModuleNotFoundError: .+$", stderr)
    return str(printed[-1])[:_MOST] if printed and chain[-1][0] == "ImportError" else _headline(*chain[-1])


def _hints(module: str, cause: str, imports: Sequence[str]) -> list[str]:
    if missing := reports("no-module", cause):
        name = missing["module"].partition(".")[0]
        if name in {one.partition(".")[0] for one in imports}:
            return [
                f"the wheel has no module {missing['module']}: add it to `packages` or `ext_modules` of its setup.py,"
                " or remove it from `imports` in the recipe"
            ]
        return [
            f"add the package that provides `{name}` to `install_requires` in the extension's setup.py, or to"
            " `dependencies` in its pyproject.toml",
            f"add `{name}` to `requires` in the recipe: buildfarm then adds the requirement to the wheel",
        ]
    if reports("no-module-function", cause):
        return [hint_of("no-module-function")]
    lacking = reports("no-library", cause)
    if lacking and is_driver_library(lacking["library"]):
        return ["install NVIDIA's driver, or run the import on a machine that has it"]
    if lacking and _LOADED_BY_TORCH.fullmatch(lacking["library"]):
        package = module.partition(".")[0]
        return [
            f"importing torch loads {lacking['library']}: add `import torch` at the top of {package}/__init__.py",
            "if users must import torch before this package, add `needs_first: [torch]` to the recipe",
        ]
    return []


def _headline(kind: str, text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{kind}: {lines[0][:_MOST]}" if lines else kind


def import_hints(stderr: str, wheel: Path, recipe: Recipe) -> list[str]:
    """What to change in the source, whose folder must be on this machine; `stderr` is what the import printed."""
    if not isinstance(recipe.source, PathSource):
        return []
    try:
        files = source_files(recipe.source.path)
        with ZipFile(wheel) as archive:
            names = archive.namelist()
        script = read_setup_script(recipe.source.path)
        return [*_no_data(stderr, names, files), *_no_module(stderr, names, files, script)]
    except (BuildfarmError, OSError, BadZipFile):  # a hint is no reason for an error
        return []


def _no_data(stderr: str, names: Sequence[str], files: Sequence[tuple[str, Path]]) -> Iterator[str]:
    """A file that the wheel does not have where the import looks for it, and that the source has."""
    for file in _NO_FILE.findall(stderr)[-1:]:
        name = next((name for name, _ in files if f"/{name}".endswith(f"/{file}")), "")
        if name and file not in names:
            yield (
                f"the source has {name}, and the wheel does not: add it to `package_data` in setup.py, or to"
                " `[tool.setuptools.package-data]` in pyproject.toml"
            )


def _no_module(
    stderr: str, names: Sequence[str], files: Sequence[tuple[str, Path]], script: SetupFacts
) -> Iterator[str]:
    """A module that the wheel does not have, and that the source has or compiles."""
    found = [each for line in stderr.splitlines() if (each := reports("no-module", line) or reports("no-name", line))]
    module = ".".join(reversed(found[-1].groups())) if found else ""  # `ops` of `tiny` is tiny.ops
    path = module.replace(".", "/")
    if not found or any(name.startswith((f"{path}/", f"{path}.")) for name in names):
        return
    if any(extension.optional and extension.name == module for extension in script.extensions):
        yield (
            f"setup.py compiles {module} with `optional=True`, and the wheel does not have it: setuptools leaves out an"
            " optional extension whose compile fails; the log of the build has the error"
        )
        return
    # A copy of another project, deeper in the source, is not what the import means.
    places = [f"{home}{path}" for home in ("", "src/", "python/")]
    inside = [name for name, _ in files if name.endswith(".py") and name.startswith(tuple(f"{p}/" for p in places))]
    folder = next((place for place in places if inside and inside[0].startswith(f"{place}/")), "")
    file = next((name for name, _ in files if name in {f"{place}.py" for place in places}), "")
    if file and "." not in module:
        yield f"the source has {file}, and the wheel does not: add {module} to `py_modules` in setup.py"
    elif folder and f"{folder}/__init__.py" not in inside:
        yield (
            f"the source has {folder} without {folder}/__init__.py, so `find_packages()` leaves it out: add an empty"
            " __init__.py, or call `find_namespace_packages()`"
        )
    elif folder:
        yield f"the source has {folder}, and the wheel does not: add {module} to `packages` in setup.py"
