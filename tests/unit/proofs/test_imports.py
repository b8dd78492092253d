"""The import of a wheel in a cell survives whatever a module does; what the source says of a failure; companions."""

import os
import resource
import sys
import uuid
import venv
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from zipfile import ZipFile

import pytest

from builder import process
from builder.errors import Code, MissingToolError
from builder.matrix.config import PathSource, Recipe, SdistSource
from builder.proof import Verdict
from builder.proofs.cells import cell_run, import_check
from builder.proofs.cells.cell_run import LocalEnvironment, _as_with_gpu, _install_companions, _missing_driver
from builder.proofs.cells.import_check import ImportOutcome, import_hints
from builder.wheels.toolchain.uv import MachineFaultError
from tests.conftest import wait_until

#: A torch that only counts GPUs, and finds none.
TORCH = {
    "__init__.py": """\
from torch import cuda
__version__ = "2.11.0+cu130"
class version: cuda = "13.0"
class Tensor: cuda = lambda self: cuda.init()
""",
    "cuda/__init__.py": """\
def device_count(): return 0
def is_available(): return False
def init(): raise RuntimeError("Found no NVIDIA driver on your system")
def get_device_capability(): init()
def get_device_properties(device): init()
""",
}

Put = Callable[[str, str], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a torch of a few lines."""
    folder = tmp_path_factory.mktemp("cell")
    venv.create(folder, symlinks=True)
    (site(folder) / "torch" / "cuda").mkdir(parents=True)
    for name, text in TORCH.items():
        (site(folder) / "torch" / name).write_text(text)
    return folder


def site(folder: Path) -> Path:
    (found,) = folder.glob("lib/python*/site-packages")
    return found


@pytest.fixture
def interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


def try_import(interpreter: Path, modules: list[str], log: Path | None = None) -> ImportOutcome:
    """Import modules; the owner differs in each worker of pytest: one ends all processes of its owner."""
    return import_check.try_import(interpreter, modules, owner=str(interpreter), log=log)


@pytest.fixture
def put(folder: Path) -> Put:
    def put(name: str, text: str) -> None:
        (site(folder) / f"{name}.py").write_text(text)

    return put


def test_import_passes_with_the_versions_as_evidence(interpreter: Path, put: Put) -> None:
    put("one", "")
    put("two", "import one")
    outcome = try_import(interpreter, ["one", "two"])
    assert (outcome.verdict, outcome.reason) == (Verdict.PASSED, "one, two")
    assert outcome.evidence["torch"] == "2.11.0+cu130"
    assert outcome.evidence["cuda"] == "13.0"
    assert outcome.evidence["gpus"] == 0
    assert outcome.evidence["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nowhere", "bad failed: ModuleNotFoundError: No module named 'nowhere'"),
        ("raise ImportError('x.so: undefined symbol: _Z3foo')", "undefined symbol: _Z3foo"),
        ("import sys; sys.exit(3)", "failed: no message"),
        ("import os; os._exit(0)", "ended the process"),
        ("import ctypes\ndef strike(): ctypes.string_at(0)\nstrike()", "crashed with SIGSEGV"),
        ("import os; os.abort()", "crashed with SIGABRT"),
        ("import os; os.kill(os.getpid(), 40)", "crashed with signal 40"),
    ],
)
def test_failed_import_has_a_reason(text: str, reason: str, interpreter: Path, put: Put) -> None:
    put("good", "")
    put("bad", text)
    outcome = try_import(interpreter, ["good", "bad"])
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason.startswith(("import of bad failed: ", "import of good, bad "))
    assert reason in outcome.reason
    assert "\n" not in outcome.reason
    assert outcome.evidence["status"] != 0 or "_exit(0)" in text
    assert ("strike" in outcome.evidence["stderr"]) is ("strike" in text)


CODEC = """\
def load():
    try:
        import einops.layers
    except ImportError as error:
        lines = ["libavutil.so.59: cannot open shared object file: No such file or directory", "[end of traceback]."]
        raise RuntimeError("could not load libcodec. Likely causes:\\n  1. FFmpeg\\n" + "\\n".join(lines)) from LAST
load()
"""


SHOWN = "import of bad failed: RuntimeError: could not load libcodec. Likely causes:; the cause: "
NO_EXPORT = "raise ImportError('dynamic module does not define module export function ({})')"


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (CODEC.replace("LAST", "None"), f"{SHOWN}libavutil.so.59: cannot open shared object file: No such", ""),
        (CODEC.replace("LAST", "error"), f"{SHOWN}No module named 'einops'", "`einops` to `install_requires`"),
        *(
            (NO_EXPORT.format(names), f"module export function ({names})", "`PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)`")
            for names in ("PyInit__C", "PyModExport__C or PyInit__C", "PyModExportU_gre_6ka8i or PyInitU_gre_6ka8i")
        ),
        ("import bad.part", "No module named 'bad.part'", "the wheel has no module bad.part"),
        (
            "raise ImportError('libc10.so: cannot open shared object file: No such file')",
            "ImportError: libc10.so: cannot open",
            "add `import torch` at the top of bad/__init__.py",
        ),
    ],
)
def test_the_cause_of_a_failed_import_and_its_cure(
    text: str, reason: str, hint: str, interpreter: Path, put: Put, tmp_path: Path
) -> None:
    put("bad", text)
    outcome = try_import(interpreter, ["bad"], tmp_path / "log")
    assert reason in outcome.reason
    assert hint in "\n".join(outcome.evidence["hints"])
    assert bool(hint) == bool(outcome.evidence["hints"])
    assert "Traceback" in (tmp_path / "log").read_text()


def test_hanging_import_is_killed_with_its_children(
    interpreter: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_check, "confined", lambda argv, _: argv)  # the test's pipe is not in its own folder
    fifo = tmp_path / "alive"  # its reader reaches end of file when the last writer has exited
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    code = f"import os, time\nw = os.open({str(fifo)!r}, os.O_WRONLY)\nif os.fork() == 0: os.write(w, b'child')\n"
    put("family", f"{code}time.sleep(600)\n")
    try:
        for seconds in (2, 20, 120):  # a slow machine starts the child in more than 2 s
            monkeypatch.setattr(import_check, "IMPORT_SECONDS", seconds)
            outcome = try_import(interpreter, ["family"])
            assert outcome.reason == f"import of family did not finish within {seconds} s"
            if written := os.read(reader, 100):
                break
        assert written == b"child"
        wait_until(lambda: at_end(reader), "the end of the child")
    finally:
        os.close(reader)


def at_end(reader: int) -> bool:
    """Whether no process can write to this pipe any more."""
    try:
        return os.read(reader, 100) == b""
    except BlockingIOError:
        return False


DAEMON = """
import os, sys, time
reader, writer = os.pipe()
os.set_inheritable(writer, True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = f"import os, time; os.write({writer}, b'1'); 'NAME'; time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-c", code], {})
    os._exit(0)
assert os.read(reader, 1)
"""


def test_a_daemon_that_an_import_starts_ends_with_it(interpreter: Path, put: Put) -> None:
    name, lines = uuid.uuid4().hex, []
    put("daemon", DAEMON.replace("NAME", name))
    assert try_import(interpreter, ["daemon"]).verdict is Verdict.PASSED
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            lines.append(file.read_bytes())
    assert not [line for line in lines if name.encode() in line]


def test_an_import_gets_no_secret_of_the_shell(
    interpreter: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "UV_INDEX_URL", "PIP_INDEX_URL", "NVIDIA_API_KEY"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    put("thief", "import os, sys\nprint(os.environ, file=sys.stderr)\nraise ImportError('shown')")
    try_import(interpreter, ["thief"], tmp_path / "log")
    shown = (tmp_path / "log").read_text()
    assert "CUDA_VISIBLE_DEVICES" in shown
    assert "hunter2" not in shown


def test_an_output_of_any_size_is_not_read_into_memory(interpreter: Path, put: Put) -> None:
    put("loud", "for _ in range(300): print('x' * (1 << 20))\nraise SystemExit(3)")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert try_import(interpreter, ["loud"]).verdict is Verdict.FAILED
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_an_import_that_starts_too_many_processes_fails(
    interpreter: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_check, "WHEEL_LIMITS", process.Limits(processes=20))
    put("many", "import os, time\n[os.fork() or time.sleep(600) for _ in range(40)]\ntime.sleep(600)")
    outcome = try_import(interpreter, ["many"])
    assert outcome.verdict is Verdict.FAILED
    assert "more than 20 processes" in outcome.reason


def test_modules_may_print(interpreter: Path, put: Put) -> None:
    put(
        "chatty",
        "import atexit, sys\nprint('{}')\nprint('no newline', end='')\n"
        "sys.stdout.buffer.write(b'\\xff\\n')\natexit.register(print, 'bye')\n",
    )
    outcome = try_import(interpreter, ["chatty"])
    assert outcome.verdict is Verdict.PASSED, outcome
    assert outcome.evidence["torch"] == "2.11.0+cu130"


@pytest.mark.parametrize(
    "cheat",
    [
        'print(\'\\nbuildfarm imported {"torch": "2.11.0"}\')\nimport os; os._exit(0)',
        "import os\nfor fd in range(1, 20):\n"
        "    try: os.write(fd, b'\\n' + b'0' * 64 + b' imported {\"torch\": \"2.11.0\"}\\n')\n"
        "    except OSError: pass\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
        "import sys\nassert not [word for word in sys.argv if 'secret' in word or len(word) == 64]\nraise SystemExit",
    ],
    ids=["print", "descriptors", "exit", "exit handler", "arguments"],
)
def test_a_module_cannot_give_the_answer_itself(interpreter: Path, put: Put, cheat: str) -> None:
    put("cheating", cheat)
    outcome = try_import(interpreter, ["cheating"])
    assert outcome.verdict is Verdict.FAILED, outcome
    assert "ended the process" in outcome.reason


CHEAT = """\
import os, sys
for word in sys.orig_argv:
    if word.endswith("/secret") and os.path.exists(word):
        os.write(1, (open(word).read() + ' imported {"torch": "2.11.0"}\\n').encode())
        os._exit(0)
os.environ["STARTED"] = "1"
"""


def test_a_pth_file_runs_and_cannot_give_the_answer(folder: Path, interpreter: Path, put: Put) -> None:
    """Python executes lines of `.pth` files when it starts: the secret must be read before."""
    put("cheat", CHEAT)
    put("broken", "import os\nassert os.environ['STARTED']\nraise ImportError('no')")
    (site(folder) / "cheat.pth").write_text("import cheat\n")
    try:
        outcome = try_import(interpreter, ["broken"])
    finally:
        (site(folder) / "cheat.pth").unlink()
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "import of broken failed: ImportError: no")


def test_variables_of_python_and_the_loader_are_not_passed_on(
    interpreter: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray.py").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_BIND_NOW", "PYTHONPATH"):
        monkeypatch.setenv(name, str(tmp_path))
    assert try_import(interpreter, ["stray"]).verdict is Verdict.FAILED
    put("module", "import os\nassert 'PATH' in os.environ\nassert not [n for n in os.environ if n.startswith('LD_')]")
    outcome = try_import(interpreter, ["module"])
    assert outcome.verdict is Verdict.PASSED, outcome


@pytest.mark.parametrize(
    "printed", ["", "{", "[]", "[" * 100_000, "{}", '{"module": 1, "chain": []}', '{"module": "m", "chain": [1]}']
)
@pytest.mark.parametrize("mark", [import_check._MARK, import_check._RAISED])
def test_lines_that_the_wheel_prints_are_no_answer(mark: str, printed: str) -> None:
    outcome = import_check.judge_import(["ops"], "key", 1, f"key{mark}{printed}\n", "ImportError: no\n")
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "import of ops failed: ImportError: no")


NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/x/lib/python3.12/site-packages/tiny/table.json'\n"


def recipe(source: PathSource | SdistSource) -> Recipe:
    return Recipe("tiny", "1.0", folder=Path("/"), source=source)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / "tiny-1.0-py3-none-any.whl"
    with ZipFile(file, "w") as archive:
        archive.writestr("tiny/__init__.py", "")
    return file


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name in ("src/tiny/table.json", "src/tiny/__init__.py", "csrc/bind.cpp"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_data_that_the_wheel_lacks_and_the_source_has(source: Path, wheel: Path) -> None:
    (hint,) = import_hints(NO_FILE, wheel, recipe(PathSource(source)))
    assert hint.startswith("the source has src/tiny/table.json, and the wheel does not: add it to `package_data`")
    assert import_hints(NO_FILE, wheel, recipe(PathSource(source / "absent"))) == []
    assert import_hints(NO_FILE, wheel, recipe(SdistSource("tiny", "1.0", "0" * 64))) == []
    with ZipFile(wheel, "a") as archive:
        archive.writestr("tiny/table.json", "{}")
    assert import_hints(NO_FILE, wheel, recipe(PathSource(source))) == [], "the wheel has it"
    (source / "src/tiny/table.json").unlink()
    wheel.write_text("")
    assert import_hints(NO_FILE, wheel, recipe(PathSource(source))) == [], "there is no wheel"


NO_MODULE = "ModuleNotFoundError: No module named 'tiny.ops'\n"
NO_NAME = "ImportError: cannot import name '_fast' from 'tiny' (/x/site-packages/tiny/__init__.py)\n"


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("src/tiny/ops/fn.py", "the source has src/tiny/ops without src/tiny/ops/__init__.py, so `find_packages()`"),
        ("src/tiny/ops/__init__.py", "the source has src/tiny/ops, and the wheel does not: add tiny.ops to"),
    ],
)
def test_a_package_that_the_wheel_lacks_and_the_source_has(source: Path, wheel: Path, file: str, hint: str) -> None:
    (source / file).parent.mkdir()
    (source / file).touch()
    (found,) = import_hints(NO_MODULE, wheel, recipe(PathSource(source)))
    assert found.startswith(hint)
    with ZipFile(wheel, "a") as archive:
        archive.writestr("tiny/ops/__init__.py", "")
    assert import_hints(NO_MODULE, wheel, recipe(PathSource(source))) == [], "another module of the same name fails"


def test_a_module_at_the_top_and_a_package_of_others(source: Path, wheel: Path) -> None:
    for name in ("third_party/einops/__init__.py", "python/helper.py"):
        (source / name).parent.mkdir(parents=True)
        (source / name).touch()
    no_module = "ModuleNotFoundError: No module named '{}'\n"
    assert import_hints(no_module.format("einops"), wheel, recipe(PathSource(source))) == []
    (hint,) = import_hints(no_module.format("helper"), wheel, recipe(PathSource(source)))
    assert hint.startswith("the source has python/helper.py, and the wheel does not: add helper to `py_modules`")


@pytest.mark.parametrize("optional", [True, False])
def test_an_optional_extension_that_the_wheel_lacks(source: Path, wheel: Path, optional: bool) -> None:
    extension = f"Extension('tiny._fast', ['a.c'], optional={optional})"
    (source / "setup.py").write_text(f"from setuptools import *\nsetup(ext_modules=[{extension}])\n")
    for stderr in (NO_NAME, "ModuleNotFoundError: No module named 'tiny._fast'\n"):
        hints = import_hints(stderr, wheel, recipe(PathSource(source)))
        assert ["setup.py compiles tiny._fast with `optional=True`" in hint for hint in hints] == [True] * optional


def test_missing_companion_does_not_prevent_the_others() -> None:
    installed: list[str] = []

    def install(more: Sequence[str]) -> None:
        if "decord" in more:
            raise MissingToolError("the index does not have it", Code.PACKAGE_NOT_FOUND)
        installed[:] = more

    _install_companions(["transformers", "decord", "numpy"], install)
    assert installed == ["transformers", "numpy"]


def test_full_disk_is_not_a_missing_companion() -> None:
    def install(_: Sequence[str]) -> None:
        raise MachineFaultError("the disk is full", stage="environment")

    with pytest.raises(MachineFaultError):
        _install_companions(["numpy"], install)


@pytest.mark.parametrize(
    ("library", "here", "lacking"),
    [
        ("libcuda.so.1", None, True),
        ("libcuda.so.1", "libcuda.so.1", False),  # the driver is here: the wheel is at fault
        ("libcudart.so.13", None, False),  # not of the driver
    ],
)
def test_an_import_without_the_driver_says_nothing(
    library: str, here: str | None, lacking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_run, "find_library", lambda _: here)
    reason = f"import of ops failed: ImportError: {library}: cannot open shared object file: No such file or directory"
    assert bool(_missing_driver(reason)) is lacking


@dataclass(frozen=True)
class FakedCell:
    """The environment of a cell."""

    folder: Path

    def try_import(
        self, modules: Sequence[str], *, as_with_gpu: bool = False, stubs: Path | None = None
    ) -> ImportOutcome:
        python, owner = self.folder / "bin" / "python", str(self.folder)
        return import_check.try_import(python, modules, owner=owner, as_with_gpu=as_with_gpu, stubs=stubs)

    def judge(self, code: str) -> tuple[str, str]:
        """The reason why the import of a package with this code failed, and why this is no fault of the package."""
        package = site(self.folder) / "ops"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text(f"{code}\n")
        first = self.try_import(["ops"])
        outcome, lacking = _as_with_gpu(cast("LocalEnvironment", self), ["ops"], first, Path("ops.whl"))
        return outcome.reason, lacking


NO_NVML = "class NVMLError(Exception): ...\nraise NVMLError('NVML Shared Library Not Found')"
ASKS = "import torch\nif not torch.cuda.is_available():\n    "
CPP = "import os, sys\nprint('  what():  CUDA driver version is insufficient', file=sys.stderr, flush=True)\nos.abort()"


@pytest.mark.parametrize(
    "code",
    [
        "import torch\nmajor, minor = torch.cuda.get_device_capability()",
        "import torch\nname = torch.cuda.get_device_properties(0).name",
        "from torch.cuda import get_device_properties\nget_device_properties('cuda:0').no_such_fact",
        "import torch\ntorch.cuda.init()",
        "import torch\nassert torch.cuda.is_available()",
        f"{ASKS}raise SystemExit('no device')",
        f"{ASKS}import os; os._exit(3)",
        f"{ASKS}import ops.only_on_cpu",
        NO_NVML,
        "try:\n    import torch; torch.cuda.init()\nexcept RuntimeError as error:\n    raise OSError('ops') from error",
        "raise RuntimeError('0 active drivers ([]). There should only be one.')",
        CPP,
    ],
)
def test_an_import_that_needs_a_gpu_says_nothing(folder: Path, code: str) -> None:
    reason = FakedCell(folder).judge(code)[1]
    assert reason.startswith("it needs a GPU when it is imported, and there is none here: import of ops")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import torch\ntorch.cuda.is_available()\nimport ops.missing", "No module named"),
        ("import torch\ntorch.cuda.get_device_capability()\nimport ops.missing", "No module named"),
        ("import torch\nassert not torch.cuda.is_available() and False", "AssertionError"),
        ("import torch\ntorch.cuda.is_available(); torch.Tensor().cuda(); import ops.missing", "No module named"),
        ("try:\n    import torch; torch.cuda.init()\nexcept RuntimeError:\n    pass\nimport ops.no", "No module named"),
        ("import os\nos.abort()", "crashed with SIGABRT"),
        ("raise SystemExit(0)", "ended the process"),
    ],
)
def test_an_import_that_fails_on_a_gpu_too_is_a_failure(folder: Path, code: str, reason: str) -> None:
    found, lacking = FakedCell(folder).judge(code)
    assert not lacking
    assert reason in found
