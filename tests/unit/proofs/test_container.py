"""A cell in a container: the GPU asked for or not and why, what runs in it and how its ends are told. No engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from builder.errors import BuildError, MissingToolError
from builder.gate.outcome import NOT_RUN, PASSED, Answer, Outcome
from builder.images.container import ALL_GPUS, LABEL, ContainerSpec, Ended, NoGpuError
from builder.images.specs import Choice
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule, load_matrix
from builder.proof import Check, Verdict
from builder.proofs import container as room
from builder.proofs.container import ContainerCell, ContainerCells, Gpu, gpu_for, in_container
from builder.proofs.providers import SymbolTable, collect_symbols
from builder.proofs.visit import Visitor
from builder.store import Store
from builder.wheels.environment import Environments, KilledError, UnsatisfiableError
from tests.conftest import ROOT
from tests.unit.canned_gate import answer
from tests.unit.matrix import make
from tests.unit.proofs.test_symbols import environment

CELL = Cell.parse("torch2.11.0-cu130-cp312")
OTHER = Cell.parse("torch2.2.2-cu118-cp312")
TOLD = json.dumps({"providers": [["libtorch_cpu.so", [], ["at_foo"]]], "cxx11": True}).encode()
IMPORTED = 'buildfarm imported {"torch": "2.11.0", "gpus": 0}\n'
GONE = MissingToolError("the Docker engine went away in the middle of a step: refused")


@dataclass
class FakeContainer:
    """A container by its script: a program's name, or a word of its arguments, to how it ends."""

    spec: ContainerSpec
    script: dict[str, Ended | MissingToolError] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    ran: list[list[str]] = field(default_factory=list)

    def put(self, source: Path, target: str) -> None:
        assert source.exists()
        self.did.append(f"put {target}")

    def get(self, name: str) -> bytes | None:
        return self.files.get(name)

    def go_offline(self) -> None:
        self.did.append("offline")

    def step(self, argv: Sequence[str], *, log: Path, seconds: float | None = None) -> Ended:
        del seconds
        self.ran.append(list(argv))
        self.did.append("gate" if "--answer" in argv[-1] else Path(argv[0]).name)
        with log.open("a") as stream:
            stream.write("+ step\n")
        ended = next((end for word, end in self.script.items() if any(word in one for one in argv)), Ended(0, "", ""))
        if isinstance(ended, MissingToolError):
            raise ended
        with log.open("a") as stream:
            stream.write(ended.stderr)
        return ended


@dataclass
class FakeEngine:
    """Makes fake containers; `refuses` is what it says where one asks for a GPU."""

    script: dict[str, Ended | MissingToolError] = field(default_factory=dict)
    refuses: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    made: list[FakeContainer] = field(default_factory=list)
    reaped: list[str] = field(default_factory=list)
    removed: int = 0

    def reap(self, label: str) -> list[str]:
        assert not self.made, "what a killed run left goes first"
        self.reaped.append(label)
        return []

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[FakeContainer]:
        script = dict(self.script)
        if spec.gpus and self.refuses:
            script["true"] = NoGpuError(self.refuses)
        self.made.append(FakeContainer(spec, script, {"symbols.json": TOLD, **self.files}))
        try:
            yield self.made[-1]
        finally:
            self.removed += 1


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Every runtime image is there at once; what was asked for, with its indexes."""
    asked: list[tuple[str, list[str]]] = []

    def ensure(engine: object, store: object, image: object, *, log: Path, index: Sequence[str]) -> str:
        del engine, store, log
        asked.append((image.name, list(index)))  # type: ignore[attr-defined]
        return "buildfarm/run:1"

    monkeypatch.setattr(room, "ensure_image", ensure)
    monkeypatch.setattr(room, "gpu_here", lambda: False)
    return asked


@pytest.fixture
def cells(tmp_path: Path) -> Callable[[FakeEngine], ContainerCells]:
    matrix = load_matrix(ROOT / "matrix.yaml")
    matrix = replace(matrix, images=(ImageRule("*", "base:1", "pythons:1"),))
    store = Store(tmp_path / "store")

    def make_cells(engine: FakeEngine) -> ContainerCells:
        environments = Environments(store, "https://torch.invalid/{variant}")
        return ContainerCells(engine, store, Choice(matrix, Compat.load(), {}), environments)  # type: ignore[arg-type]

    return make_cells


@pytest.fixture
def opened(cells: Callable[[FakeEngine], ContainerCells], tmp_path: Path) -> Iterator[tuple[ContainerCell, FakeEngine]]:
    engine = FakeEngine()
    with cells(engine).open(CELL, tmp_path, job="store/job", log=tmp_path / "log") as cell:
        yield cell, engine


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "ops-1.0-py3-none-any.whl"
    path.write_bytes(b"")
    return path


def with_driver(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(room, "gpu_here", lambda: True)
    monkeypatch.setattr(room, "driver_version", lambda: version)


@pytest.mark.parametrize(("driver", "wanted"), [("580.95.05", True), ("", True), ("535.183.01", False)])
def test_a_gpu_is_asked_for_where_its_driver_will_do(
    monkeypatch: pytest.MonkeyPatch, driver: str, wanted: bool
) -> None:
    assert gpu_for(CELL) == Gpu(wanted=False)
    with_driver(monkeypatch, driver)
    gpu = gpu_for(CELL)
    assert gpu.wanted is wanted
    assert bool(gpu.why_not) is not wanted
    if not wanted:
        assert gpu.why_not.startswith(f"NVIDIA's driver {driver} here is too old for CUDA 13.0")


def requests_of(engine: FakeEngine) -> list[object]:
    return [made.spec.gpus for made in engine.made]


def test_without_a_gpu_none_is_asked_for(opened: tuple[ContainerCell, FakeEngine]) -> None:
    _, engine = opened
    assert requests_of(engine) == [None]
    assert engine.reaped == [f"{LABEL}=store/job"]
    spec = engine.made[0].spec
    assert (spec.image, spec.labels) == ("buildfarm/run:1", {LABEL: "store/job"})
    assert spec.memory > 0


def test_with_a_gpu_the_first_container_that_starts_is_taken(
    cells: Callable[[FakeEngine], ContainerCells], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver(monkeypatch, "580.95.05")
    engine = FakeEngine()
    with cells(engine).open(CELL, tmp_path, job="j", log=tmp_path / "log"):
        assert requests_of(engine) == [ALL_GPUS[0]]
        assert engine.removed == 0
    assert engine.removed == 1


def test_an_engine_that_gives_no_gpu_runs_the_rest_and_says_why(
    cells: Callable[[FakeEngine], ContainerCells], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver(monkeypatch, "580.95.05")
    engine = FakeEngine(refuses="the Docker engine cannot hand this machine's GPU to a container: install")
    recipe = make.recipe()
    with cells(engine).open(CELL, tmp_path, job="j", log=tmp_path / "log") as cell:
        assert requests_of(engine) == [*ALL_GPUS, None]
        assert engine.removed == 2
        told = replace(answer(), where={**answer().where, "no_gpu": "no GPU on this machine"})
        engine.made[-1].files["gate/answer.json"] = json.dumps(told.to_json()).encode()
        found = cell.run_gate(recipe)
    assert isinstance(found, Answer)
    on_gpu = [one for one in found.outcomes if Check(one.check).on_gpu]
    assert on_gpu
    assert {(one.verdict, one.reason) for one in on_gpu} == {(NOT_RUN, engine.refuses)}
    assert {one.verdict for one in found.outcomes if one not in on_gpu} == {PASSED}
    assert found.where["image"] == "buildfarm/run:1"


def test_a_reason_of_the_gates_own_is_left_alone() -> None:
    where = {"no_gpu": "no GPU on this machine"}
    own = Outcome("gpu-values", "op", "plain", NOT_RUN, "the recipe says so")
    cpu = Outcome("fake", "op", "plain", NOT_RUN, "no GPU on this machine")
    found = in_container(Answer(where, [], [own, cpu]), "run:1", "the driver is too old")
    assert found.outcomes == [own, cpu]
    assert found.where == {"no_gpu": "the driver is too old", "image": "run:1"}


def test_where_a_gpu_was_there_nothing_is_rewritten() -> None:
    ran = Answer({"gpus": [{"name": "H100", "driver": "580.95.05"}]}, [], [Outcome("gpu-values", "o", "p", PASSED)])
    found = in_container(ran, "run:1", "")
    assert (found.outcomes, found.where) == (ran.outcomes, {**ran.where, "image": "run:1"})


def test_packages_are_reached_as_from_here_and_no_value_is_an_argument(
    cells: Callable[[FakeEngine], ContainerCells],
    tmp_path: Path,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    images: list[tuple[str, list[str]]],
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:hush@index.invalid/simple")
    monkeypatch.setenv("UV_INDEX", "https://team.invalid/simple")
    engine = FakeEngine()
    with cells(engine).open(OTHER, tmp_path, job="j", log=tmp_path / "log") as cell:
        cell.install(wheel, ["numpy"])
    made = engine.made[0]
    assert made.spec.environment["UV_DEFAULT_INDEX"] == "https://me:hush@index.invalid/simple"
    assert made.spec.environment["UV_INDEX"] == "https://torch.invalid/cu118 https://team.invalid/simple"
    assert made.spec.environment["SSL_CERT_FILE"] in made.spec.lent.values()
    (argv,) = made.ran
    assert argv[-4:] == ["torch==2.2.2+cu118", "numpy<2", f"/buildfarm/wheels/{wheel.name}", "numpy"]
    assert "hush" not in " ".join(argv)
    assert images == [("run-torch2.2.2-cu118-cp312", ["https://torch.invalid/cu118"])]


@pytest.mark.parametrize(
    ("ended", "error", "words"),
    [
        (Ended(-9, "", ""), KilledError, "signal 9"),
        (Ended(-9, "", "", out_of_memory=True), MissingToolError, "ran out of memory: it may take"),
        (Ended(1, "", "x No solution found when resolving dependencies\n"), UnsatisfiableError, "do not go together"),
        (Ended(1, "", "error: failed to fetch: `https://i/simple/ops/`\n"), MissingToolError, "cannot be reached"),
        (Ended(1, "", "what\n"), BuildError, "uv could not make the environment"),
    ],
    ids=["killed", "no memory", "unsatisfiable", "no network", "else"],
)
def test_how_an_installation_fails(
    opened: tuple[ContainerCell, FakeEngine], wheel: Path, ended: Ended, error: type[Exception], words: str
) -> None:
    cell, engine = opened
    engine.made[0].script["/run/buildfarm/uv"] = ended
    with pytest.raises(error, match=words):
        cell.install(wheel)


def test_an_import(opened: tuple[ContainerCell, FakeEngine]) -> None:
    cell, engine = opened
    script = engine.made[0].script
    script["importlib"] = Ended(0, IMPORTED, "")
    passed = cell.try_import(["ops"])
    assert (passed.verdict, passed.evidence["image"]) == (Verdict.PASSED, "buildfarm/run:1")
    for ended, words in (
        (Ended(-11, "", ""), "crashed with SIGSEGV"),
        (Ended(1, "", "ImportError: no\n"), "failed: ImportError: no"),
        (Ended(-9, "", "", timed_out=True), "did not end in"),
    ):
        script["importlib"] = ended
        failed = cell.try_import(["ops"])
        assert failed.verdict is Verdict.FAILED
        assert words in failed.reason
    script["importlib"] = Ended(-9, "", "", out_of_memory=True)
    with pytest.raises(MissingToolError, match="ran out of memory"):
        cell.try_import(["ops"])


def test_the_gate_runs_without_a_network(opened: tuple[ContainerCell, FakeEngine]) -> None:
    cell, engine = opened
    container = engine.made[0]
    assert cell.run_gate(make.recipe()) == "the gate ended with status 0 and left no answer; its output is in " + str(
        cell._log
    )
    assert container.did.index("offline") < container.did.index("gate")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (Ended(-9, "", "", out_of_memory=True), "ran out of memory"),
        (GONE, "went away"),
        (Ended(2, "", ""), "status 2 and left no answer"),
    ],
    ids=["no memory", "engine gone", "no answer"],
)
def test_a_gate_that_could_not_finish_proves_nothing(
    opened: tuple[ContainerCell, FakeEngine], end: Ended | MissingToolError, words: str
) -> None:
    cell, engine = opened
    engine.made[0].script["--answer"] = end
    said = cell.run_gate(make.recipe())
    assert isinstance(said, str)
    assert words in said


def test_an_answer_of_a_gate_that_lost_a_case_for_memory_is_not_taken(
    opened: tuple[ContainerCell, FakeEngine],
) -> None:
    cell, engine = opened
    engine.made[0].files["gate/answer.json"] = json.dumps(answer().to_json()).encode()
    engine.made[0].script["--answer"] = Ended(1, "", "", out_of_memory=True)
    assert "ran out of memory" in str(cell.run_gate(make.recipe()))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"pip": GONE}, "went away"),
        ({"importlib": GONE}, "went away"),
        ({"importlib": Ended(-9, "", "", out_of_memory=True)}, "ran out of memory"),
        ({"collect_symbols": Ended(1, "", "KeyError: 'libc10.so'\n")}, "cannot be read"),
    ],
    ids=["at the installation", "at the import", "no memory", "unreadable"],
)
def test_a_lost_cell_says_nothing_about_the_wheel(
    cells: Callable[[FakeEngine], ContainerCells],
    tmp_path: Path,
    wheel: Path,
    script: dict[str, Ended | MissingToolError],
    reason: str,
) -> None:
    engine = FakeEngine(script)
    visitor = Visitor(Store(tmp_path / "store"), cells(engine), tmp_path / "log")
    seen = visitor.visit(CELL, wheel, "0" * 64, make.recipe())
    assert {proof.verdict for proof in seen.proofs} == {Verdict.NOT_RUN}
    assert all(reason in proof.reason for proof in seen.proofs)
    assert engine.removed == 1


def test_an_image_that_cannot_be_made_leaves_its_cell_not_run(
    cells: Callable[[FakeEngine], ContainerCells], tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise BuildError("the image could not be made: No matching distribution", stage="environment")

    monkeypatch.setattr(room, "ensure_image", fail)
    visitor = Visitor(Store(tmp_path / "store"), cells(FakeEngine()), tmp_path / "log")
    seen = visitor.visit(CELL, wheel, "0" * 64, make.recipe())
    (told,) = {(proof.verdict, proof.reason) for proof in seen.proofs}
    assert told[0] is Verdict.NOT_RUN
    words = (
        "run-torch2.11.0-cu130-cp312: the image could not be made: No matching distribution; the whole output is in "
    )
    assert told[1] == f"{words}{tmp_path / 'log'}"


def test_a_visit_in_a_container_proves_what_one_elsewhere_does(
    cells: Callable[[FakeEngine], ContainerCells], tmp_path: Path, wheel: Path
) -> None:
    told = json.dumps(answer().to_json()).encode()
    engine = FakeEngine({"importlib": Ended(0, IMPORTED, "")}, files={"gate/answer.json": told})
    visitor = Visitor(Store(tmp_path / "store"), cells(engine), tmp_path / "log")
    seen = visitor.visit(CELL, wheel, "0" * 64, make.recipe())
    assert seen.symbols is not None
    assert seen.symbols.providers["libtorch_cpu.so"].defined == {"at_foo"}
    verdicts = {proof.check: proof.verdict for proof in seen.proofs}
    assert verdicts[Check.IMPORT] is verdicts[Check.VALUES] is Verdict.PASSED
    assert verdicts[Check.GPU_VALUES] is Verdict.NOT_RUN
    assert engine.made[0].did.count("offline") == 1
    assert seen.answer is not None
    assert seen.answer.where["image"] == "buildfarm/run:1"


def test_the_reader_needs_nothing_but_what_travels(tmp_path: Path) -> None:
    folder = room._reader(tmp_path / "reader")
    program = room._READ_SYMBOLS.replace("/buildfarm/reader", str(folder)).replace("/buildfarm", str(tmp_path))
    site = environment(tmp_path)
    program = program.replace('sysconfig.get_path("purelib")', repr(str(site)))
    # -S: no site-packages, so neither buildfarm nor pyelftools but those of the folder.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = SymbolTable.from_json(json.loads((tmp_path / "symbols.json").read_bytes()))
    assert table == collect_symbols(site)
