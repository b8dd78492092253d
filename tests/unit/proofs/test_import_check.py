"""The import check: buildfarm survives whatever a module does, and reports it."""

from __future__ import annotations

import os
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.process import Interrupted
from builder.proof import Verdict
from builder.proofs.cells import import_check
from builder.proofs.cells.import_check import try_import

TORCH = """\
__version__ = "2.11.0+cu130"
class version: cuda = "13.0"
class cuda:
    @staticmethod
    def device_count(): return 2
"""

Put = Callable[[str, str], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a torch of a few lines."""
    folder = tmp_path_factory.mktemp("cell")
    venv.create(folder, symlinks=True)
    (site(folder) / "torch.py").write_text(TORCH)
    return folder


def site(folder: Path) -> Path:
    (found,) = folder.glob("lib/python*/site-packages")
    return found


@pytest.fixture
def interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


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
    assert outcome.evidence["gpus"] == 2
    assert outcome.evidence["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("import nowhere", "bad failed: ModuleNotFoundError: No module named 'nowhere'", id="missing"),
        pytest.param("raise ImportError('x.so: undefined symbol: _Z3foo')", "undefined symbol: _Z3foo", id="symbol"),
        pytest.param("import sys; sys.exit(3)", "failed: no message", id="exit"),
        pytest.param("import os; os._exit(0)", "ended the process", id="exit with status 0"),
        pytest.param("import ctypes; ctypes.string_at(0)", "crashed with SIGSEGV", id="segmentation fault"),
        pytest.param("import os; os.abort()", "crashed with SIGABRT", id="abort"),
        pytest.param("import os; os.kill(os.getpid(), 40)", "crashed with signal 40", id="a signal without a name"),
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


CODEC = """\
def load():
    try:
        import einops.layers
    except ImportError as error:
        lines = ["libavutil.so.59: cannot open shared object file: No such file or directory", "[end of traceback]."]
        raise RuntimeError("could not load libcodec. Likely causes:\\n  1. FFmpeg\\n" + "\\n".join(lines)) from LAST
load()
"""


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        pytest.param(
            CODEC.replace("LAST", "None"),
            "import of bad failed: RuntimeError: could not load libcodec. Likely causes:; the cause: libavutil.so.59:"
            " cannot open shared object file: No such file or directory",
            "",
            id="in the middle of the message",
        ),
        pytest.param(
            CODEC.replace("LAST", "error"),
            "import of bad failed: RuntimeError: could not load libcodec. Likely causes:; the cause: No module named"
            " 'einops'",
            "`einops` to `install_requires`",
            id="an exception before it",
        ),
        pytest.param("import bad.part", "No module named 'bad.part'", "the wheel has no module bad.part", id="own"),
        pytest.param(
            "raise ImportError('libc10.so: cannot open shared object file: No such file')",
            "ImportError: libc10.so: cannot open",
            "add `import torch` at the top of bad/__init__.py",
            id="torch first",
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


def test_stack_of_a_crash_is_evidence(interpreter: Path, put: Put) -> None:
    put("crash", "import ctypes\n\ndef strike():\n    ctypes.string_at(0)\n\nstrike()\n")
    outcome = try_import(interpreter, ["crash"])
    assert "strike" in outcome.evidence["stderr"]


def test_hanging_import_is_killed(interpreter: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_check, "IMPORT_SECONDS", 0.2)
    put("hang", "import time; time.sleep(600)")
    began = time.monotonic()
    outcome = try_import(interpreter, ["hang"])
    assert time.monotonic() - began < 60
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "import of hang did not finish within 0.2 s")


def test_hanging_import_is_killed_with_its_children(
    interpreter: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_check, "IMPORT_SECONDS", 2)
    fifo = tmp_path / "alive"  # its reader reaches end of file when the last writer has exited
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    code = f"import os, time\nw = os.open({str(fifo)!r}, os.O_WRONLY)\nif os.fork() == 0: os.write(w, b'child')\n"
    put("family", f"{code}time.sleep(600)\n")
    try:
        assert try_import(interpreter, ["family"]).verdict is Verdict.FAILED
        assert os.read(reader, 100) == b"child"
        end = time.monotonic() + 30
        while True:
            try:
                assert os.read(reader, 100) == b""
                break
            except BlockingIOError:
                assert time.monotonic() < end, "the child still runs"
                time.sleep(0.05)
    finally:
        os.close(reader)


def test_interrupt_kills_the_import(interpreter: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("hang", "import time; time.sleep(600)")
    asked = iter([None, Interrupted])

    def ending() -> None:
        if error := next(asked):
            raise error

    monkeypatch.setattr(import_check, "raise_if_interrupted", ending)
    with pytest.raises(Interrupted):
        try_import(interpreter, ["hang"])


def test_modules_may_print(interpreter: Path, put: Put) -> None:
    put(
        "chatty",
        "import atexit, sys\nprint('{}')\nprint('no newline', end='')\n"
        "sys.stdout.buffer.write(b'\\xff\\n')\natexit.register(print, 'bye')\n",
    )
    outcome = try_import(interpreter, ["chatty"])
    assert outcome.verdict is Verdict.PASSED, outcome
    assert outcome.evidence["torch"] == "2.11.0+cu130"


def test_pythonpath_is_not_passed_on(interpreter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stray.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert try_import(interpreter, ["stray"]).verdict is Verdict.FAILED


def test_loader_variables_are_not_passed_on(
    interpreter: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_BIND_NOW"):
        monkeypatch.setenv(name, str(tmp_path))
    put("module", "import os\nassert 'PATH' in os.environ\nassert not [n for n in os.environ if n.startswith('LD_')]")
    outcome = try_import(interpreter, ["module"])
    assert outcome.verdict is Verdict.PASSED, outcome
