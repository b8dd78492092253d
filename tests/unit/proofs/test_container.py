"""A cell in a container: requests for a GPU, steps, failures. No container engine."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from builder.errors import BuildError, Code, MissingToolError
from builder.gate.outcome import NOT_RUN, PASSED, Answer, Outcome
from builder.images.container import GPU_REQUESTS, OWNER_LABEL, ContainerSpec, NoGpuError, RunResult
from builder.images.specs import ImageChooser
from builder.matrix.axes import Cell, Cuda, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule
from builder.matrix.load import load_matrix
from builder.proof import Check, Verdict
from builder.proofs.cells import container as container_module
from builder.proofs.cells import driver
from builder.proofs.cells.cell_run import CellRun, CellRunner
from builder.proofs.cells.container import ContainerEnvironment, ContainerEnvironments, in_container
from builder.proofs.cells.driver import gpu_for
from builder.store import Store
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.uv import MachineFaultError, UnsatisfiableError
from tests.conftest import ROOT
from tests.refused import refused
from tests.unit.canned_gate import answer, signed
from tests.unit.matrix import make

NO_VARIABLES: Mapping[str, str] = {}
CELL = Cell.parse("torch2.11.0-cu130-cp312")
SYMBOLS = json.dumps({"libraries": [["libtorch_cpu.so", [], "at_foo"]], "cxx11": True}).encode()
SECRET = "5ec2e7"
IMPORTED = SECRET + ' imported {"torch": "2.11.0", "gpus": 0}\n'
GONE = MissingToolError(
    "the Docker engine stopped answering while a program ran in a container: refused", Code.ENGINE_NOT_ANSWERING
)


Opened = tuple[ContainerEnvironment, "FakeEngine"]
Cells = Callable[["FakeEngine"], ContainerEnvironments]
#: Runs a wheel in CELL, or in another cell, in the containers of an engine.
Run = Callable[..., CellRun]


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.proofs.cells.import_check.secrets.token_hex", lambda _: SECRET)


@dataclass
class FakeContainer:
    """A scripted container: result by the name of a program or by part of an argument."""

    spec: ContainerSpec
    script: dict[str, RunResult | MissingToolError] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    ran: list[list[str]] = field(default_factory=list)
    variables: list[dict[str, str]] = field(default_factory=list)

    def put(self, source: Path, target: str) -> None:
        assert source.exists()
        self.did.append(f"put {target}")

    def get(self, name: str, most: int) -> bytes | None:
        content = self.files.get(name)
        return None if content is None else content[: most + 1]

    def go_offline(self) -> None:
        self.did.append("offline")

    def run(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        timeout: float | None = None,
        variables: Mapping[str, str] = NO_VARIABLES,
    ) -> RunResult:
        del timeout
        self.variables.append(dict(variables))
        self.ran.append(list(argv))
        self.did.append("gate" if "--answer" in argv else Path(argv[0]).name)
        with log.open("a") as stream:
            stream.write("+ step\n")
        ended = next(
            (end for part, end in self.script.items() if any(part in one for one in argv)), RunResult(0, "", "")
        )
        if isinstance(ended, MissingToolError):
            raise ended
        with log.open("a") as stream:
            stream.write(ended.stderr)
        return ended


@dataclass
class FakeEngine:
    """Creates fake containers; `refuses` is its error for a request for a GPU."""

    script: dict[str, RunResult | MissingToolError] = field(default_factory=dict)
    refuses: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    made: list[FakeContainer] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    removed: int = 0

    def remove_containers(self, owner: str) -> list[str]:
        assert not self.made, "containers of a killed run are removed first"
        self.owners.append(owner)
        return []

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[FakeContainer]:
        script = dict(self.script)
        if spec.gpus and self.refuses:
            script["true"] = NoGpuError(self.refuses, Code.NO_GPU)
        self.made.append(FakeContainer(spec, script, {"symbols.json": SYMBOLS, **self.files}))
        try:
            yield self.made[-1]
        finally:
            self.removed += 1


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Every runtime image exists at once; returns the requested ones with their indexes."""
    asked: list[tuple[str, list[str]]] = []

    def ensure(engine: object, store: object, image: object, *, log: Path, index: Sequence[str]) -> str:
        del engine, store, log
        asked.append((image.name, list(index)))  # type: ignore[attr-defined]
        return "buildfarm/run:1"

    monkeypatch.setattr(container_module, "ensure_image", ensure)
    monkeypatch.setattr(driver, "gpu_here", lambda: False)
    return asked


@pytest.fixture
def cells(tmp_path: Path) -> Cells:
    matrix = load_matrix(ROOT / "matrix.yaml")
    matrix = replace(matrix, images=(ImageRule("*", "base:1", "pythons:1"),))
    store = Store(tmp_path / "store")

    def make_cells(engine: FakeEngine) -> ContainerEnvironments:
        environments = Environments(store, "https://torch.invalid/{variant}")
        return ContainerEnvironments(engine, store, ImageChooser(matrix, Compat.load(), {}), environments)  # type: ignore[arg-type]

    return make_cells


@pytest.fixture
def opened(cells: Cells, tmp_path: Path) -> Iterator[Opened]:
    engine = FakeEngine()
    with cells(engine).open(CELL, tmp_path, owner="store/job", log=tmp_path / "log") as cell:
        yield cell, engine


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "ops-1.0-py3-none-any.whl"
    path.write_bytes(b"")
    return path


@pytest.fixture
def run(cells: Cells, tmp_path: Path, wheel: Path) -> Run:
    def run(engine: FakeEngine, cell: Cell = CELL, *, linkage: bool = True) -> CellRun:
        runner = CellRunner(Store(tmp_path / "store"), cells(engine), tmp_path / "log", linkage=linkage)
        return runner.run(cell, wheel, "0" * 64, make.recipe())

    return run


def with_driver(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(driver, "gpu_here", lambda: True)
    monkeypatch.setattr(driver, "driver_version", lambda: version)


@pytest.mark.parametrize(
    ("driver", "cuda", "floor"),
    [
        ("580.65.06", "13.2", ""),
        ("570.211.01", "13.0", "580.65.06"),
        ("525.60.13", "12.8", ""),
        ("520.61.05", "12.1", "525.60.13"),
        ("440.33", "11.8", "450.80.02"),
        ("", "13.0", ""),
        ("[N/A]", "13.0", ""),
    ],
)
def test_a_gpu_is_requested_if_the_driver_runs_the_first_minor_of_the_cuda(
    monkeypatch: pytest.MonkeyPatch, driver: str, cuda: str, floor: str
) -> None:
    cell = replace(CELL, cuda=Cuda.parse(cuda))
    assert gpu_for(cell) == (False, "")
    with_driver(monkeypatch, driver)
    needs = f"CUDA {cuda}, which needs {floor} or newer: update the driver"
    assert gpu_for(cell) == (not floor, f"NVIDIA's driver {driver} here is too old for {needs}" if floor else "")


def requests_of(engine: FakeEngine) -> list[object]:
    return [made.spec.gpus for made in engine.made]


@pytest.mark.parametrize("gpu", [False, True])
def test_the_first_container_that_starts_is_used(
    gpu: bool, cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu:
        with_driver(monkeypatch, "580.95.05")
    engine = FakeEngine()
    with cells(engine).open(CELL, tmp_path, owner="store/job", log=tmp_path / "log"):
        assert requests_of(engine) == [GPU_REQUESTS[0] if gpu else None]
        assert (engine.owners, engine.removed) == (["store/job"], 0)
    assert engine.removed == 1
    spec = engine.made[0].spec
    assert (spec.image, spec.labels) == ("buildfarm/run:1", {OWNER_LABEL: "store/job"})
    assert spec.memory > 0


def test_engine_without_gpu_support_runs_the_other_checks_and_gives_the_reason(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver(monkeypatch, "580.95.05")
    engine = FakeEngine(refuses="the Docker engine cannot hand this machine's GPU to a container: install")
    recipe = make.recipe()
    with cells(engine).open(CELL, tmp_path, owner="j", log=tmp_path / "log") as cell:
        assert requests_of(engine) == [*GPU_REQUESTS, None]
        assert engine.removed == 2
        written = replace(answer(), where={**answer().where, "no_gpu": "no GPU on this machine"})
        engine.made[-1].files["gate/answer.json"] = signed(monkeypatch, written)
        found = cell.run_gate(recipe, 2)
    assert isinstance(found, Answer)
    on_gpu = [one for one in found.outcomes if Check(one.check).on_gpu]
    assert on_gpu
    assert {(one.verdict, one.reason) for one in on_gpu} == {(NOT_RUN, engine.refuses)}
    assert {one.verdict for one in found.outcomes if one not in on_gpu} == {PASSED}
    assert found.where["image"] == "buildfarm/run:1"


def test_other_reasons_of_the_gate_are_kept() -> None:
    where = {"no_gpu": "no GPU on this machine"}
    own = Outcome("gpu-values", "op", "plain", NOT_RUN, "the recipe says so")
    on_cuda = Outcome("fake", "op", "plain", NOT_RUN, "no GPU on this machine")  # the op has no CPU kernel
    found = in_container(Answer(where, [], [own, on_cuda]), "run:1", "the driver is too old")
    assert [one.reason for one in found.outcomes] == ["the recipe says so", "the driver is too old"]
    assert found.where == {"no_gpu": "the driver is too old", "image": "run:1"}
    ran = Answer({"gpus": [{"name": "H100", "driver": "580.95.05"}]}, [], [Outcome("gpu-values", "o", "p", PASSED)])
    found = in_container(ran, "run:1", "")
    assert (found.outcomes, found.where) == (ran.outcomes, {**ran.where, "image": "run:1"})


def test_installation_uses_the_indexes_of_this_machine_through_its_environment(
    cells: Cells, tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, images: list[tuple[str, list[str]]]
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:hush@index.invalid/simple")
    monkeypatch.setenv("UV_INDEX", "https://team.invalid/simple")
    engine = FakeEngine()
    with cells(engine).open(Cell.parse("torch2.2.2-cu118-cp312"), tmp_path, owner="j", log=tmp_path / "log") as cell:
        cell.install(wheel, ["numpy"])
    made = engine.made[0]
    (variables,) = made.variables
    assert variables["UV_DEFAULT_INDEX"] == "https://me:hush@index.invalid/simple"
    assert variables["UV_INDEX"] == "https://torch.invalid/cu118 https://team.invalid/simple"
    assert variables["SSL_CERT_FILE"] in made.spec.bind_mounts.values()
    (argv,) = made.ran
    assert argv[-4:] == ["torch==2.2.2+cu118", "numpy<2", f"/buildfarm/wheels/{wheel.name}", "numpy"]
    assert "hush" not in " ".join(argv)
    assert images == [("run-torch2.2.2-cu118-cp312", ["https://torch.invalid/cu118"])]


NO_WHEEL = """\
error: Failed to build `a==1`
  cause: Call to `setuptools.build_meta.build_wheel` failed (exit status: 1)

         [stderr]
         RuntimeError: no Python 3.12.

hint: `a` (v1) was included because `ops` (v1) depends on `a`
"""
DOES_NOT_BUILD = r"a==1 has no wheel for this Python, .* does not build: RuntimeError: no Python 3.12 \(a \(v1\) was"


@pytest.mark.parametrize(
    ("ended", "error", "message"),
    [
        (RunResult(-9, "", ""), MachineFaultError, "signal 9"),
        (RunResult(-9, "", "", out_of_memory=True), MissingToolError, "ran out of memory: its limit was"),
        (RunResult(1, "", "x No solution found when resolving dependencies\n"), UnsatisfiableError, "conflict"),
        (RunResult(1, "", "error: failed to fetch: `https://i/simple/ops/`\n"), MissingToolError, "cannot be reached"),
        (RunResult(1, "", NO_WHEEL), BuildError, DOES_NOT_BUILD),
        (RunResult(1, "", "what\n"), BuildError, "uv could not create the environment"),
    ],
    ids=["killed", "no memory", "unsatisfiable", "no network", "no wheel", "else"],
)
def test_failed_installation(
    opened: Opened, wheel: Path, ended: RunResult, error: type[Exception], message: str
) -> None:
    cell, engine = opened
    engine.made[0].script["/run/buildfarm/uv"] = ended
    with pytest.raises(error, match=message):
        cell.install(wheel)


def test_import(opened: Opened) -> None:
    cell, engine = opened
    script = engine.made[0].script
    script["importlib"] = RunResult(0, IMPORTED, "")
    passed = cell.try_import(["ops"])
    assert (passed.verdict, passed.evidence["image"]) == (Verdict.PASSED, "buildfarm/run:1")
    for ended, message in (
        (RunResult(-11, "", ""), "crashed with SIGSEGV"),
        (RunResult(1, "", "ImportError: no\n"), "failed: ImportError: no"),
        (RunResult(-9, "", "", timed_out=True), "did not finish within"),
    ):
        script["importlib"] = ended
        failed = cell.try_import(["ops"])
        assert failed.verdict is Verdict.FAILED
        assert message in failed.reason
    script["importlib"] = RunResult(-9, "", "", out_of_memory=True)
    with refused(Code.OUT_OF_MEMORY):
        cell.try_import(["ops"])
    stubs = cell._folder / "stubs"
    stubs.mkdir()
    script["importlib"] = RunResult(0, IMPORTED, "")
    assert cell.try_import(["ops"], stubs=stubs).verdict is Verdict.PASSED
    assert "put stubs" in engine.made[0].did
    assert engine.made[0].variables[-1] == {"LD_LIBRARY_PATH": "/buildfarm/stubs"}


def test_code_of_the_wheel_gets_neither_a_network_nor_passwords(
    cells: Cells, tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:hush@index.invalid/simple")
    engine = FakeEngine()
    with cells(engine).open(CELL, tmp_path, owner="j", log=tmp_path / "log") as cell:
        cell.install(wheel)
        cell.try_import(["ops"])
        cell.install(wheel, ["torchvision"])
        cell.run_gate(make.recipe(), 2)
    first, second = engine.made
    assert [one for one in first.did if not one.startswith("put")] == ["uv", "offline", "python", "python"]
    assert [one for one in second.did if not one.startswith("put")] == ["uv", "offline", "python", "gate"]
    for made in engine.made:
        installed, *others = made.variables
        assert "hush" in str(installed)
        assert "hush" not in str([made.spec.environment, others])
    assert engine.removed == 2


@pytest.mark.parametrize(
    ("end", "written", "message"),
    [
        (RunResult(2, "", ""), b"", "the op gate exited with status 2 and wrote no results; the full output is in "),
        (RunResult(-9, "", "", out_of_memory=True), b"", "ran out of memory"),
        (RunResult(1, "", "", out_of_memory=True), json.dumps(asdict(answer())).encode(), "ran out of memory"),
    ],
    ids=["no results", "no memory", "no memory after an answer"],
)
def test_unfinished_gate_has_no_answer(opened: Opened, end: RunResult, written: bytes, message: str) -> None:
    cell, engine = opened
    container = engine.made[0]
    container.script["--answer"] = end
    if written:
        container.files["gate/answer.json"] = written
    assert message in str(cell.run_gate(make.recipe(), 2))
    assert container.did.index("offline") < container.did.index("gate"), "the gate has no network"
    shutil.rmtree(cell._folder / "gate")
    container.script["--answer"] = GONE  # the engine, which says nothing about the wheel
    with refused(Code.ENGINE_NOT_ANSWERING):
        cell.run_gate(make.recipe(), 2)


@pytest.mark.parametrize("status", [0, 1])
def test_answer_that_the_gate_did_not_write_is_refused(
    opened: Opened, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, engine = opened
    engine.made[0].script["--answer"] = RunResult(status, "", "")
    good = signed(monkeypatch, answer())
    for written in (json.dumps(asdict(answer())).encode(), good.replace(b"tiny::op", b"tiny::on")):
        engine.made[0].files["gate/answer.json"] = written
        assert isinstance(cell.run_gate(make.recipe(), 2), str)
        shutil.rmtree(cell._folder / "gate")
    engine.made[0].files["gate/answer.json"] = good
    assert isinstance(cell.run_gate(make.recipe(), 2), Answer if status == 0 else str)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"pip": GONE}, "stopped answering"),
        ({"importlib": GONE}, "stopped answering"),
        ({"importlib": RunResult(-9, "", "", out_of_memory=True)}, "ran out of memory"),
    ],
    ids=["at the installation", "at the import", "no memory"],
)
def test_lost_environment_says_nothing_about_the_wheel(
    run: Run, script: dict[str, RunResult | MissingToolError], reason: str
) -> None:
    cell_run = run(engine := FakeEngine(script))
    assert {proof.verdict for proof in cell_run.proofs} == {Verdict.NOT_RUN}
    assert all(reason in proof.reason for proof in cell_run.proofs)
    assert engine.removed == 1


def test_a_python_that_is_too_old_for_the_symbol_reader_runs_the_other_checks(
    run: Run, cells: Cells, tmp_path: Path
) -> None:
    script = {"collect_symbols": RunResult(1, "", "pyelftools 0.33 does not run under Python 3.9")}
    reason = "the libraries of torch cannot be read in a container: pyelftools 0.33 does not run under Python 3.9"
    linkage, *others = run(FakeEngine({**script})).proofs
    assert (linkage.check, linkage.verdict, linkage.reason) == (Check.LINKAGE, Verdict.NOT_RUN, reason)
    assert Check.IMPORT in {one.check for one in others if one.has_run}
    runner = CellRunner(Store(tmp_path / "store"), cells(FakeEngine({**script})), tmp_path / "log")
    alone = runner.run(CELL, tmp_path / "ops.whl", "0" * 64, make.recipe(), symbols_only=True)
    assert [(one.check, one.reason) for one in alone.proofs] == [(Check.LINKAGE, reason)]


def test_failed_image_build_means_not_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise BuildError("the image could not be made: No matching distribution", stage="environment")

    monkeypatch.setattr(container_module, "ensure_image", fail)
    ((verdict, reason),) = {(proof.verdict, proof.reason) for proof in run(FakeEngine()).proofs}
    assert verdict is Verdict.NOT_RUN
    message = "the image could not be made: No matching distribution; the full output is in"
    assert reason == f"run-torch2.11.0-cu130-cp312: {message} {tmp_path / 'log'}"


@pytest.mark.parametrize(("torch", "numpy"), [("2.2.2", [["numpy<2"]]), ("2.5.1", [[], ["numpy"]]), ("2.11.0", [[]])])
def test_only_an_old_torch_has_numpy(run: Run, torch: str, numpy: list[list[str]]) -> None:
    """torch before 2.3 works only with NumPy 1; torch 2.3 to 2.5 compiles no op without NumPy, so the gate gets it."""
    engine = FakeEngine({"importlib": RunResult(0, IMPORTED, "")})
    run(engine, replace(CELL, torch=Torch.parse(torch)), linkage=False)
    installed = [argv for container in engine.made for argv in container.ran if "install" in argv]
    assert [[word for word in argv if "numpy" in word] for argv in installed] == numpy


def test_run_in_a_container_has_the_same_proofs_as_on_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written = signed(monkeypatch, answer())
    engine = FakeEngine({"importlib": RunResult(0, IMPORTED, "")}, files={"gate/answer.json": written})
    cell_run = run(engine)
    assert cell_run.symbols is not None
    assert cell_run.symbols.libraries["libtorch_cpu.so"].defined == {"at_foo"}
    verdicts = {proof.check: proof.verdict for proof in cell_run.proofs}
    assert verdicts[Check.IMPORT] is verdicts[Check.VALUES] is Verdict.PASSED
    assert verdicts[Check.GPU_VALUES] is Verdict.NOT_RUN
    assert engine.made[0].did.count("offline") == 1
    assert cell_run.answer is not None
    assert cell_run.answer.where["image"] == "buildfarm/run:1"
