"""Proofs of a wheel in its cells: passed, failed, not run, and taken from an earlier run."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BuildError, Code, MissingToolError
from builder.gate.outcome import Answer
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import Matrix
from builder.matrix.plan import Build
from builder.process import run
from builder.progress.display import Progress
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells import import_check, op_gate, prover
from builder.proofs.cells.container import READ_SYMBOLS, write_reader
from builder.proofs.cells.prover import Part, WheelProver, cell_basis
from builder.proofs.cells.turns import Turns
from builder.proofs.static.stable_abi import check_abi3
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.proofs.static.tags import best_platform
from builder.resources import Resources
from builder.store import Store
from builder.wheelfile.facts import read_facts
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.machine import Interpreter, find_python
from builder.wheels.toolchain.uv import MachineFaultError, UvRun
from tests.conftest import PATIENCE, wait_until
from tests.fixtures.compiled import compiled
from tests.unit import loopback
from tests.unit.canned_gate import VERDICTS, answer, can_gate
from tests.unit.loopback import PYTHON
from tests.unit.matrix import make
from tests.unit.proofs.make import claim, make_wheel
from tests.unit.wheels import make_record

HERE = Cell(Torch(2, 11, 0), Cuda(13, 0), PYTHON)
NO_PYTHON = Cell(Torch(2, 11, 0), Cuda(13, 0), Python(3, 99))
BUILD = Build("ops", "1.0", AbiClass.ABI3, HERE.torch, HERE.cuda, (PYTHON,), (Arch(9, 0),), Platform.LINUX_X86_64, ())

GATED = {str(check): str(verdict) for check, verdict in VERDICTS.items()}
NOTHING = dict.fromkeys(GATED, "not run")

Prove = Callable[..., dict[tuple[Cell | None, Check], Proof]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def prove(
    store: Store, index: loopback.PackageIndex, libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Prove:
    """Prove a wheel of these contents in these cells; the index has their torch."""
    index.add_torch("2.11.0", "13.0", libraries=libraries)
    index.add("numpy", "2.0")
    environments = Environments(store, index.torch_index)
    can_gate(monkeypatch)

    def prove(
        *cells: Cell,
        module: str = "",
        requires: tuple[str, ...] = ("torch==2.11.*",),
        again: bool = False,
        tag: str = "py3-none-any",
        images: Matrix | None = None,
        part: Part | None = None,
    ) -> dict[tuple[Cell | None, Check], Proof]:
        files: dict[str, str | bytes] = {"ops/__init__.py": module}
        wheel = loopback.pure_wheel(tmp_path, "ops", "1.0+cu130.torch2.11", files, requires=requires, tag=tag)
        stored = store.find("d" * 64) or store.add("d" * 64, wheel, make_record.build_record())
        prover = WheelProver(store, environments, images, again=again)
        subject = prover.subject(stored, replace(BUILD, serves=cells), make.recipe("ops"))
        proofs = prover.prove(subject, log=tmp_path / "log", stage=lambda _: None, part=part)
        return {(proof.cell, proof.check): proof for proof in proofs}

    return prove


def verdicts(proofs: dict[tuple[Cell | None, Check], Proof], cell: Cell) -> dict[str, str]:
    return {str(check): str(proof.verdict) for (where, check), proof in proofs.items() if where == cell}


def test_wheel_is_proven_once_in_the_cell_it_serves(
    prove: Prove, store: Store, index: loopback.PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs = prove(HERE)
    assert verdicts(proofs, HERE) == {"linkage": "passed", "import": "passed", **GATED}
    evidence = proofs[HERE, Check.IMPORT].evidence
    assert (evidence["torch"], evidence["cuda"]) == ("2.11.0", "13.0")
    assert {check for cell, check in proofs if cell is None} >= {Check.PAYLOAD, Check.TAGS, Check.METADATA}
    assert {(p.cell, p.check): p for p in store.proofs(proofs[HERE, Check.GPU_VALUES].wheel)} == proofs
    assert list((store.root / "work").glob("prove-*")) == []
    monkeypatch.setattr(prover, "read_facts", lambda _: pytest.fail("the wheel was read again"))
    index.requested.clear()
    log = (tmp_path / "log").read_bytes()
    assert prove(HERE) == proofs
    assert (index.requested, (tmp_path / "log").read_bytes()) == ([], log)


def test_a_time_limit_is_tried_again_and_other_failures_only_on_request(
    prove: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_check, "IMPORT_SECONDS", 3)
    slow, broken = tmp_path / "slow", tmp_path / "broken"
    module = (
        "import os, time\n"
        f"if os.path.exists({str(slow)!r}): time.sleep(600)\n"
        f"assert not os.path.exists({str(broken)!r})\n"
    )
    slow.touch()
    late = prove(HERE, module=module)[HERE, Check.IMPORT]
    assert (late.verdict, late.evidence["limit"]) == (Verdict.FAILED, "time")
    monkeypatch.setattr(import_check, "IMPORT_SECONDS", 60)
    slow.unlink()
    broken.touch()
    assert "AssertionError" in prove(HERE)[HERE, Check.IMPORT].reason, "the time limit was not tried again"
    broken.unlink()
    assert prove(HERE)[HERE, Check.IMPORT].verdict is Verdict.FAILED
    assert prove(HERE, again=True)[HERE, Check.IMPORT].verdict is Verdict.PASSED


#: Tags for a glibc that no system has yet; two of them, as auditwheel writes when a wheel earns a better one.
NEWER = f"cp{PYTHON.major}{PYTHON.minor}-none-manylinux_2_98_x86_64.manylinux_2_99_x86_64"


def test_wheel_for_a_newer_glibc_is_not_run(prove: Prove) -> None:
    imported = prove(HERE, tag=NEWER)[HERE, Check.IMPORT]
    assert imported.verdict is Verdict.NOT_RUN
    assert "newer glibc than this machine has" in imported.reason


@pytest.mark.parametrize("cell", [HERE, NO_PYTHON], ids=["", "and this machine has no such Python"])
def test_wheel_for_a_newer_glibc_is_proven_in_its_runtime_image(
    prove: Prove, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make.matrix(["2.11"], ["13.0"], [str(PYTHON)])
    asked: list[Cell] = []

    class Containers:
        def open(self, cell: Cell, *_: object, **__: object) -> None:
            asked.append(cell)
            raise MissingToolError("as far as a unit test goes", Code.TOOLKIT_MISSING)

    def no_engine(*_: object, **__: object) -> None:
        raise MissingToolError("the Docker engine does not answer", Code.ENGINE_NOT_ANSWERING)

    monkeypatch.setattr("builder.proofs.cells.container.container_environments", no_engine)
    imported = prove(cell, tag=NEWER, images=images)[cell, Check.IMPORT]
    assert (imported.verdict, imported.reason) == (Verdict.NOT_RUN, "the Docker engine does not answer")
    monkeypatch.setattr("builder.proofs.cells.container.container_environments", lambda *_, **__: Containers())
    imported = prove(cell, tag=NEWER, images=images)[cell, Check.IMPORT]
    assert (imported.verdict, imported.reason) == (Verdict.NOT_RUN, "as far as a unit test goes")
    assert asked == [cell]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"module": "raise ImportError('undefined symbol: foo')"}, "undefined symbol: foo"),
        ({"requires": ("torch==2.10.*",)}, "the wheel cannot be installed: the packages conflict: "),
    ],
)
def test_failed_import_does_not_decide_linkage(prove: Prove, facts: dict[str, Any], reason: str) -> None:
    proofs = prove(HERE, **facts)
    assert verdicts(proofs, HERE) == {"linkage": "passed", "import": "failed", **NOTHING}
    assert reason in proofs[HERE, Check.IMPORT].reason


@pytest.mark.parametrize("gone", ["index", "dependency"])
def test_missing_package_means_not_run_and_is_tried_again(
    gone: str, prove: Prove, index: loopback.PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    requires = ("torch==2.11.*", "einops")
    with monkeypatch.context() as patched:
        if gone == "index":
            patched.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
        proofs = prove(HERE, requires=requires)
    assert verdicts(proofs, HERE) == {"linkage": "not run", "import": "not run", **NOTHING}
    assert ("cannot be reached" if gone == "index" else "einops") in proofs[HERE, Check.IMPORT].reason
    index.add("einops", "0.8")
    assert verdicts(prove(HERE, requires=requires), HERE)["import"] == "passed"


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    """Cells side by side, on a machine with two cores and much memory; their build has the log `log`."""
    machine = Turns(lambda: Resources(2, 64 << 30), lambda: False)
    monkeypatch.setattr("builder.proofs.cells.cell_run.TURNS", machine)
    monkeypatch.setattr("builder.proofs.cells.turns.TURNS", machine)
    progress = Progress()
    progress.start("build", tmp_path / "log")
    return partial(progress.part, "build")


#: Cells that fail and pass the import below, which names its torch in its output.
NEWER_TORCH = Cell(Torch(2, 12, 0), Cuda(13, 0), PYTHON)
MODULE = """\
import os, sys, time, torch
for number in range(20):
    print(f"<{torch.__version__} {number}>", file=sys.stderr, flush=True)
    time.sleep(0.01)
assert torch.__version__ == "2.11.0", "of a newer torch"
"""
CLASHES = ("torch>=2.11",)


def test_cells_side_by_side_have_the_proofs_of_cells_one_after_the_other(
    prove: Prove, part: Part, store: Store, index: loopback.PackageIndex, libraries: Path, tmp_path: Path
) -> None:
    index.add_torch("2.12.0", "13.0", libraries=libraries)
    cells = (NEWER_TORCH, HERE, NO_PYTHON)
    proofs = prove(*cells, module=MODULE, requires=CLASHES, part=part)
    assert verdicts(proofs, HERE) == {"linkage": "passed", "import": "passed", **GATED}
    assert verdicts(proofs, NEWER_TORCH) == {"linkage": "passed", "import": "failed", **NOTHING}
    assert verdicts(proofs, NO_PYTHON) == {"linkage": "not run", "import": "not run", **NOTHING}
    text = (tmp_path / "log").read_text()
    printed = [line for line in text.splitlines() if line.startswith("<2.12.0 ")]
    assert printed == [f"<2.12.0 {number}>" for number in range(20)] * 2, "it is tried again as with a GPU"
    assert text.index("<2.12.0 0>") < text.index("of a newer torch")
    assert [path.name for path in tmp_path.glob("*log*")] == ["log"]
    assert list((store.root / "work").glob("prove-*")) == []
    one_by_one = prove(*cells, again=True)

    def plain(found: dict[tuple[Cell | None, Check], Proof]) -> dict[tuple[Cell | None, Check], object]:
        return {key: (proof.verdict, proof.reason, proof.basis) for key, proof in found.items()}

    assert plain(one_by_one) == plain(proofs)


def test_a_full_disk_says_nothing_about_the_wheel_and_a_cell_that_ended_before_is_kept(
    prove: Prove,
    part: Part,
    store: Store,
    index: loopback.PackageIndex,
    libraries: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index.add_torch("2.12.0", "13.0", libraries=libraries)
    install = UvRun.install
    ended = threading.Event()
    save = Store.save_proofs

    def saved(self: Store, *words: Any, **more: Any) -> list[Proof]:
        found = save(self, *words, **more)
        ended.set()
        return found

    def full(self: UvRun, folder: Path, requirements: Sequence[str], *options: Any) -> None:
        if "2.12.0" in str(folder) and any(requirement.endswith(".whl") for requirement in requirements):
            assert ended.wait(PATIENCE)
            raise MachineFaultError("the disk is full", stage="environment")
        install(self, folder, requirements, *options)

    with monkeypatch.context() as patched:
        patched.setattr(UvRun, "install", full)
        patched.setattr(Store, "save_proofs", saved)
        with pytest.raises(BuildError, match="the disk is full"):
            prove(HERE, NEWER_TORCH, requires=CLASHES, part=part)
    (path,) = (store.root / "proofs").iterdir()
    kept = {(proof.cell, proof.check): proof for proof in store.proofs(path.stem)}
    assert {cell for cell, _ in kept} == {HERE}
    interpreters = can_gate(monkeypatch)
    proofs = prove(HERE, NEWER_TORCH, part=part)
    assert verdicts(proofs, NEWER_TORCH)["import"] == "passed"
    assert kept[HERE, Check.IMPORT] in proofs.values()
    assert len(interpreters) == 1, "the gate of the first cell ran again"


def test_a_gate_that_is_killed_fails_its_cell_only(
    prove: Prove,
    part: Part,
    index: loopback.PackageIndex,
    libraries: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index.add_torch("2.12.0", "13.0", libraries=libraries)

    def run_gate(interpreter: Path, *_: object, log: Path, owner: str, **__: object) -> Answer | str:
        if "2.12.0" not in str(interpreter):
            return answer()
        status = run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], log=log, owner=owner)
        return op_gate.read_answer(b"", Answer.from_json, status, log)

    monkeypatch.setattr("builder.proofs.cells.cell_run.run_gate", run_gate)
    proofs = prove(NEWER_TORCH, HERE, requires=CLASHES, part=part)
    assert verdicts(proofs, HERE) == {"linkage": "passed", "import": "passed", **GATED}
    killed = proofs[NEWER_TORCH, Check.VALUES]
    assert (killed.verdict, proofs[NEWER_TORCH, Check.IMPORT].verdict) == (Verdict.FAILED, Verdict.PASSED)
    assert "ended by SIGKILL" in killed.reason
    assert killed.reason.endswith(f"the full output is in {tmp_path / 'log'}"), "the log of the cell is gone"


@pytest.fixture
def ahead(store: Store, index: loopback.PackageIndex, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> WheelProver:
    """A prover whose index has the torch of one cell."""
    index.add_torch("2.11.0", "13.0", libraries=libraries)
    index.add("numpy", "2.0")
    can_gate(monkeypatch)
    return WheelProver(store, Environments(store, index.torch_index))


SERVES_HERE = replace(BUILD, serves=(HERE,))


def test_an_environment_that_was_made_during_the_compile_is_used(
    ahead: WheelProver, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ahead.environments_ahead(SERVES_HERE, make.recipe("ops"), "d" * 64):
        wait_until(lambda: [*(store.root / "envs").glob("bytecode-*")], "an environment without a wheel")
        wheel = loopback.pure_wheel(tmp_path, "ops", "1.0+cu130.torch2.11", {"ops/__init__.py": ""})
        stored = store.add("d" * 64, wheel, make_record.build_record())
    monkeypatch.setattr(UvRun, "create", lambda *_: pytest.fail("it was made again"))
    subject = ahead.subject(stored, SERVES_HERE, make.recipe("ops"))
    proofs = ahead.prove(subject, log=tmp_path / "log", stage=lambda _: None)
    found = {(proof.cell, proof.check): proof for proof in proofs}
    assert verdicts(found, HERE) == {"linkage": "passed", "import": "passed", **GATED}
    assert " venv " in (tmp_path / "log").read_text(), "the output of the programs that made the environment"
    assert list((store.root / "work").glob("prove-*")) == []


def test_a_compile_that_fails_does_not_wait_for_an_environment(
    ahead: WheelProver, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def create(self: UvRun, *_: object) -> None:
        begun.set()
        if run(["sleep", "600"], log=self.log, owner=self.owner) != 0:
            raise MachineFaultError("it was killed", stage="environment")

    monkeypatch.setattr(UvRun, "create", create)

    def fail() -> None:
        with ahead.environments_ahead(SERVES_HERE, make.recipe("ops"), "d" * 64):
            assert begun.wait(PATIENCE)
            raise BuildError("no compiler", stage="compile")

    with pytest.raises(BuildError, match="no compiler"):
        fail()
    assert list((store.root / "work").iterdir()) == []
    assert ahead._ahead == {}


def test_missing_python_means_not_run_until_it_is_there(
    prove: Prove, index: loopback.PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell that is proven stays proven."""
    before = prove(HERE, NO_PYTHON)
    assert verdicts(before, NO_PYTHON) == {"linkage": "not run", "import": "not run", **NOTHING}
    for check in (Check.LINKAGE, Check.IMPORT):
        assert before[NO_PYTHON, check].reason.startswith("no Python 3.99 on this machine")
    assert verdicts(before, HERE)["import"] == "passed"
    index.requested.clear()
    assert prove(HERE, NO_PYTHON) == before
    assert index.requested == []

    def find(python: Python) -> Interpreter | None:
        return find_python(PYTHON) if python == NO_PYTHON.python else find_python(python)

    monkeypatch.setattr("builder.wheels.toolchain.machine.find_python", find)
    # The site-packages of 3.99 are not where this Python has them; this test does not check linkage.
    monkeypatch.setattr("builder.proofs.cells.cell_run.collect_symbols", lambda _: None)
    after = prove(HERE, NO_PYTHON)
    assert after[NO_PYTHON, Check.IMPORT].verdict is Verdict.PASSED
    for check in (Check.LINKAGE, Check.IMPORT, Check.GPU_VALUES):
        assert after[HERE, check].verdict is before[HERE, check].verdict


def test_earlier_gpu_run_is_kept(prove: Prove, store: Store) -> None:
    before = prove(HERE)
    ran = replace(before[HERE, Check.GPU_VALUES], verdict=Verdict.PASSED, reason="H100")
    store.save_proofs([ran])
    assert prove(HERE, NO_PYTHON)[HERE, Check.GPU_VALUES] == ran


def test_changed_static_checks_do_not_repeat_the_op_gate(
    prove: Prove, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prove(HERE)
    gate_runs = can_gate(monkeypatch)
    monkeypatch.setattr(prover, "STATIC_FORMAT", 0)
    monkeypatch.setattr(prover, "LINKAGE_FORMAT", 0)
    after = prove(HERE)
    assert gate_runs == []
    assert verdicts(after, HERE) == verdicts(before, HERE)
    assert after[HERE, Check.LINKAGE].basis != before[HERE, Check.LINKAGE].basis
    assert after[None, Check.TAGS].basis != before[None, Check.TAGS].basis
    assert after[HERE, Check.OPS] == before[HERE, Check.OPS]
    assert {(p.cell, p.check): p for p in store.proofs(after[HERE, Check.OPS].wheel)} == after


def test_linkage_without_the_index_keeps_the_other_proofs(prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prove(HERE)

    def unreachable(*_: object, **__: object) -> None:
        raise MissingToolError("the package index cannot be reached", Code.NETWORK_UNREACHABLE)

    monkeypatch.setattr(prover, "_table_versions", lambda: ["auditwheel 99"])
    monkeypatch.setattr(UvRun, "create", unreachable)
    after = prove(HERE)
    assert after[HERE, Check.LINKAGE].verdict is Verdict.NOT_RUN
    assert after[HERE, Check.IMPORT] == before[HERE, Check.IMPORT]
    assert after[HERE, Check.GPU_VALUES] == before[HERE, Check.GPU_VALUES]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("STATIC_FORMAT", (False, False, False)),
        ("LINKAGE_FORMAT", (True, False, False)),
        ("CELL_FORMAT", (False, True, True)),  # the gate needs an import that passed
        ("OPS_FORMAT", (False, False, True)),
    ],
)
def test_a_raised_number_changes_the_basis_of_its_checks(
    number: str, expected: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, before = (Check.LINKAGE, Check.IMPORT, Check.GPU_VALUES), cell_basis(make.recipe())
    for module in (prover, op_gate):
        if hasattr(module, number):
            monkeypatch.setattr(module, number, 0)
    after = cell_basis(make.recipe())
    assert tuple(before[check] != after[check] for check in checks) == expected


def test_proofs_with_an_unknown_basis_are_made_again(prove: Prove, store: Store) -> None:
    """A buildfarm without formats made them."""
    before = prove(HERE)
    store.save_proofs([replace(proof, basis="f" * 16, verdict=Verdict.FAILED) for proof in before.values()])
    after = prove(HERE)
    assert {key: (proof.basis, proof.verdict) for key, proof in after.items()} == {
        key: (proof.basis, proof.verdict) for key, proof in before.items()
    }


def test_a_python_without_a_working_pyelftools_is_named(tmp_path: Path) -> None:
    folder = write_reader(tmp_path / "reader")
    (folder / "elftools" / "elf" / "elffile.py").write_text("match = (")  # as `match` is for Python 3.9
    program = READ_SYMBOLS.replace("/buildfarm/reader", str(folder))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (done.returncode, done.stderr) == (
        1,
        f"pyelftools {version('pyelftools')} does not run under Python {here}\n",
    )


def test_symbol_reader_needs_only_the_copied_modules_and_an_old_python(tmp_path: Path) -> None:
    folder = write_reader(tmp_path / "reader")
    program = READ_SYMBOLS.replace("/buildfarm/reader", str(folder))
    program = program.replace("/buildfarm", str(tmp_path))
    site = environment(tmp_path)
    program = program.replace('sysconfig.get_path("purelib")', repr(str(site)))
    old = find_python(Python(3, 10))  # the oldest Python of cells that pyelftools supports
    # -S: without site-packages, so buildfarm and pyelftools are only found in the folder.
    argv = [old.path if old else sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = SymbolTable.from_json(json.loads((tmp_path / "symbols.json").read_bytes()))
    assert table == collect_symbols(site)


C10 = """
#include <string>
namespace c10 {{ struct Error {{ {constructor} }}; Error::Error({type} text) {{}} }}
"""


def environment(folder: Path, string: str = "std::string") -> Path:
    """A site-packages folder with one function in torch and one in the CUDA runtime."""
    site = folder / "site-packages"
    lib, nvidia = site / "torch" / "lib", site / "nvidia" / "cu13" / "lib"
    for one in (lib, nvidia):
        one.mkdir(parents=True)
    compiled(lib, C10.format(constructor=f"Error({string} text);", type=string), name="libc10.so")
    compiled(
        lib,
        "namespace at { int foo() { return 1; } }",
        "-Wl,--no-as-needed",
        str(lib / "libc10.so"),
        name="libtorch_cpu.so",
    )
    compiled(nvidia, 'extern "C" int cudaMalloc() { return 1; }', name="libcudart.so.13")
    return site


def test_libraries_of_an_environment(tmp_path: Path) -> None:
    symbols = collect_symbols(environment(tmp_path))
    assert set(symbols.libraries) == {"libc10.so", "libtorch_cpu.so", "libcudart.so.13"}
    assert "_ZN2at3fooEv" in symbols.libraries["libtorch_cpu.so"].defined
    assert "cudaMalloc" in symbols.libraries["libcudart.so.13"].defined
    assert any("libc10.so" in name for name in symbols.libraries["libtorch_cpu.so"].needed)
    assert symbols.cxx11
    assert not collect_symbols(environment(tmp_path / "old", "const char*")).cxx11


@pytest.mark.parametrize(
    "source",
    [
        '#include <stdlib.h>\nchar* f() { return getenv("X"); }',
        "#include <iostream>\nvoid f() { std::cout << 1.5 << std::endl; }",
    ],
)
def test_platform_equals_that_of_auditwheel(tmp_path: Path, source: str) -> None:
    extension = compiled(tmp_path, source + '\nextern "C" void* PyInit__C() { return 0; }', name="_C.so")
    wheel = make_wheel(tmp_path, {"ops/_C.so": extension})
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)], capture_output=True, text=True, check=True
    )
    assert best_platform(read_facts(wheel), frozenset()) == json.loads(shown.stdout)["overall_tag"]


@pytest.mark.parametrize("call", ["PyModule_Create2", "PyBuffer_Release", "_PyThreadState_UncheckedGet"])
def test_verdict_equals_that_of_abi3audit(tmp_path: Path, call: str) -> None:
    source = f'extern "C" {{ int {call}(); int PyInit__C() {{ return {call}(); }} }}'
    extension = compiled(tmp_path, source, name="_C.abi3.so")
    wheel = make_wheel(tmp_path, {"ops/_C.abi3.so": extension}, tag="cp310-abi3-linux_x86_64")
    report = tmp_path / "report.json"
    subprocess.run(
        [sys.executable, "-m", "abi3audit", "--report", "--output", str(report), str(wheel)],
        capture_output=True,
        check=False,
    )
    (specs,) = json.loads(report.read_text())["specs"].values()
    theirs = specs["wheel"][0]["result"]
    proof = check_abi3(read_facts(wheel), claim())
    assert proof is not None
    assert (proof.verdict == "passed") is (theirs["is_abi3"] and theirs["is_abi3_baseline_compatible"])
