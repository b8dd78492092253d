"""What a worker says of its machine, which checks it runs again, what it keeps from `store prune`, what it gets."""

import contextlib
import io
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from builder.commands.building.preflight import RunSettings
from builder.commands.distributed import protocol
from builder.commands.distributed.client import RemoteRun, is_open
from builder.commands.distributed.cluster import missing
from builder.commands.distributed.options import WorkersOptions
from builder.commands.distributed.protocol import (
    BUILDS,
    GPU,
    LOCK,
    LOCKS,
    MEMORY,
    PLUGIN,
    PROOF_MEMORY,
    PROOFS,
    WorkerAnswer,
    moved,
    packed,
    unpack,
    version_resource,
)
from builder.commands.distributed.worker import child, start
from builder.commands.distributed.worker.start import WorkerFacts, measure
from builder.errors import BuildError, BuildfarmError, Code, MissingToolError, UsageError
from builder.images.engine import Engine
from builder.matrix.compat import Compat
from builder.matrix.config import PathSource, Recipe
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.prover import WheelProver, cell_basis
from builder.publish.proof_lines import gpu_lines, model_of, proven_on
from builder.store import Store
from tests.unit.commands.distributed.made_up import BUILD_TASK, CELL, PROOF_TASK, RECIPE, SETTINGS, SHA, WHEEL, proofs
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    monkeypatch.setattr(Engine, "problem", lambda _: "there is no engine")
    monkeypatch.setattr(start, "_compiles", lambda _: False)
    return folder


def nvidia_smi(folder: Path, text: str) -> None:
    (folder / "nvidia-smi").write_text(text)
    (folder / "nvidia-smi").chmod(0o755)


def test_a_machine_without_docker_and_gpu(tools: Path, tmp_path: Path) -> None:
    nvidia_smi(tools, "#!/bin/sh\nexit 9\n")
    store = Store(tmp_path / "store")
    found = measure("plain", builds=3)
    assert (found.gpus, found.docker, found.builds) == ((), "", 3)
    assert found.cores >= 1
    builds, proofs = found.offers().values()
    assert (set(builds), set(proofs)) == ({version_resource(), BUILDS, MEMORY}, {version_resource(), PROOFS, MEMORY})
    assert (builds[BUILDS], proofs[PROOFS]) == (3, 1)
    text = "\n".join(found.lines(store.root))
    assert "no GPU" in text
    assert "no Docker" in text


def test_a_machine_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("CUDA_HOME", "")
    monkeypatch.setattr(Engine, "problem", lambda _: "there is no engine")
    found = measure("bare")
    assert found.toolkits == ()
    (line,) = [line for line in found.lines(tmp_path) if "CUDA toolkits" in line]
    assert line.endswith(": none with a C++ compiler")


def test_gpus_come_from_the_driver(tools: Path) -> None:
    nvidia_smi(tools, "#!/bin/sh\nprintf 'NVIDIA A100, 8.0, 570.1\\n'" + "'NVIDIA H200, 9.0, 570.1\\n'" * 2)
    found = measure("gpus")
    assert [model for model, _ in found.gpus] == ["sm_80", "sm_90", "sm_90"]
    builds, proofs = found.offers().values()
    assert (GPU in builds, proofs[GPU]) == (False, 3)


def test_what_a_compiler_and_docker_offer() -> None:
    some = WorkerFacts("w", 8, 1 << 30, 2, 4, docker="29.0", toolkits=("13.0",))
    builds, proofs = some.offers().values()
    assert {"docker", "local-cu130", "any-cu130", "any-cu128"} <= set(builds)
    assert "local-cu128" not in builds
    assert set(proofs) == {version_resource(), PROOFS, MEMORY, "docker"}


@pytest.mark.parametrize(("gib", "for_builds"), [(24, 22), (4, 2), (3, 3)])
def test_builds_leave_memory_for_a_proof_where_there_is_enough(gib: int, for_builds: int) -> None:
    assert PROOF_MEMORY == 2 << 30
    builds, proofs = WorkerFacts("w", 8, gib << 30, 2, 4).offers().values()
    assert (builds[MEMORY], proofs[MEMORY]) == (for_builds << 30, gib << 30)


@pytest.mark.parametrize(
    ("known", "here", "on_gpu"),
    [
        pytest.param((), True, True, id="no proof"),
        pytest.param(proofs(Verdict.PASSED), False, False, id="passed"),
        pytest.param(proofs(Verdict.NOT_RUN), True, True, id="not run, for a reason of the machine"),
        pytest.param(proofs(Verdict.NOT_RUN, settled=True), False, True, id="not run without a GPU"),
    ],
)
def test_checks_that_another_run_could_decide(known: tuple[Proof, ...], here: bool, on_gpu: bool) -> None:
    current = [replace(proof, basis=cell_basis(RECIPE)[proof.check]) for proof in known]
    assert (is_open(PROOF_TASK, current, gpu=False), is_open(PROOF_TASK, current, gpu=True)) == (here, on_gpu)
    assert is_open(replace(PROOF_TASK, again=True), current, gpu=False)
    assert is_open(PROOF_TASK, [replace(proof, basis="old") for proof in current], gpu=False)


def test_people_see_the_gpu() -> None:
    where = {"gpus": [{"sm": "sm_90"}, {"sm": "sm_80"}]}
    assert proven_on(proofs(Verdict.PASSED, where=where)) == {str(CELL): ("sm_90",)}
    assert gpu_lines(proofs(Verdict.PASSED, where=where), 100) == ["  passed    GPU           sm_90"]
    assert gpu_lines(proofs(Verdict.FAILED, where=where), 100) == []


@pytest.mark.parametrize("where", [{"gpus": [{"sm": "sm_90 | x"}]}, {"gpus": "sm_90"}, 3])
def test_evidence_of_others_names_no_made_up_models(where: object) -> None:
    assert model_of(Proof(SHA, CELL, Check.GPU_VALUES, Verdict.PASSED, "", {"where": where})) == ""


def test_the_key_of_checks_covers_what_decides_them() -> None:
    task = PROOF_TASK
    others = [
        replace(task, basis="other"),
        replace(task, again=not task.again),
        replace(task, wheel=replace(WHEEL, sha256="b" * 64)),
        replace(task, settings=replace(SETTINGS, executor="docker")),
    ]
    assert len({task.key, *(other.key for other in others)}) == len(others) + 1


def test_keys_begin_with_what_dask_averages_over() -> None:
    assert BUILD_TASK.key.rpartition("-")[0] == "build_ops_cu130"
    assert PROOF_TASK.key.rpartition("-")[0] == f"prove_ops_{CELL}"


def test_a_build_without_the_compiler_cache_is_another_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel that a worker made with the cache must not answer `--no-compiler-cache`."""
    monkeypatch.setattr("builder.commands.distributed.client.source_digest", lambda _: "source")

    def digest(settings: RunSettings) -> str:
        options = WorkersOptions(scheduler="tcp://127.0.0.1:1")
        run = RemoteRun(Store(tmp_path), {BUILD.extension: RECIPE}, cast("WheelProver", None), settings, options)
        return run._task(BUILD).digest

    assert digest(SETTINGS) == digest(replace(SETTINGS, compiler_cache=True))
    assert digest(SETTINGS) != digest(replace(SETTINGS, compiler_cache=False))


@pytest.mark.parametrize(
    "error",
    [
        BuildError("it failed", stage="compile", where="ops", hints=["read it"], excerpt=("error: x",)),
        MissingToolError("no nvcc", Code.TOOLKIT_MISSING, where="cu130", hints=["install it"]),
        UsageError("no such op", Code.VALUE_INVALID, where="cases.py"),
        BuildfarmError("the disk is full", Code.DISK_FULL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_as_it_was(error: BuildfarmError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.exit_code, vars(back)) == (str(error), error.exit_code, vars(error))


def worker(name: str, **resources: float) -> dict[str, object]:
    return {"resources": resources, PLUGIN: {"name": name}}


def test_a_message_names_what_workers_lack_once() -> None:
    task = replace(PROOF_TASK, settings=replace(SETTINGS, executor="docker"))
    enough = {PROOFS: 1.0, MEMORY: 1e12}
    workers = {str(at): worker(f"w{at}", **enough) for at in range(5)}
    workers["z"] = worker("only-builds", **{BUILDS: 1.0})
    workers["y"] = worker("small", **{PROOFS: 1.0, "docker": 1.0})
    error = missing(task, workers, ())
    first, _, second = error.sentence.removeprefix("no worker can run these checks: ").partition("; ")
    assert first == "w0, w1, w2 and 2 more have no Docker"
    assert second.startswith("small has ")
    assert error.exit_code == MissingToolError("", Code.TOOLKIT_MISSING).exit_code


def test_checks_need_what_they_use() -> None:
    in_docker = replace(PROOF_TASK, settings=replace(SETTINGS, executor="docker"))
    assert in_docker.needs["docker"][0] == 1
    assert "docker" not in PROOF_TASK.needs
    assert BUILD_TASK.priority < PROOF_TASK.priority < in_docker.priority


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    folder = tmp_path / "mine" / "ops"
    (folder / "src" / "a folder").mkdir(parents=True)
    (folder / "src" / "a folder" / "größe.cu").write_text("// µ\n")
    (folder / "src" / "make.sh").write_text("#!/bin/sh\n")
    (folder / "src" / "make.sh").chmod(0o755)
    (folder / "src" / "link").symlink_to("make.sh")
    (folder / "cases.py").write_text("CASES = []\n")
    (folder / "references").mkdir()
    (folder / "references" / "table.bin").write_bytes(b"\0\1")
    (folder / "fix.patch").write_text("--- a\n")
    return replace(
        make.recipe("ops"), folder=folder, source=PathSource(folder / "src"), patches=(folder / "fix.patch",)
    )


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def parts(recipe: Recipe, folder: Path) -> list[bytes]:
    """The files of a recipe, with the lock files in a folder."""
    return list(packed(recipe, folder / "matrix.yaml", Store(folder / "store")).values())


def test_the_files_arrive(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "buildfarm.lock").write_text("images: {}\n")
    (Store(tmp_path / "store").root / "envs" / "env.json").write_text("{}")
    there = tmp_path / "there"
    folder = unpack(parts(recipe, tmp_path), there)
    expected = {"src/a folder/größe.cu", "src/make.sh", "src/link", "cases.py", "references/table.bin", "fix.patch"}
    assert files(folder) == expected
    assert os.access(folder / "src" / "make.sh", os.X_OK)
    assert not os.access(folder / "cases.py", os.X_OK)
    assert (folder / "src" / "link").readlink() == Path("make.sh")
    assert ((there / LOCK).read_text(), (there / LOCKS / "env.json").read_text()) == ("images: {}\n", "{}")
    again = moved(recipe, folder)
    assert (again.patches, again.source) == ((folder / "fix.patch",), PathSource(folder / "src"))


def test_a_worker_reads_the_facts_of_the_project(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started anywhere, and knows what the client's facts.yaml says about a new torch."""
    row = "python: [3.12], variants: {cu999: {x86_64: [1.0]}}, default: cu999, cxx_standard: 20,"
    row += " gcc_max: {}, arch_list: [], companions: {}"
    (tmp_path / "facts.yaml").write_text(f"format: 1\ntorch: {{2.99.0: {{{row}}}}}\n")
    monkeypatch.setattr("builder.matrix.compat._facts", [Path("facts.yaml")])
    known = []

    def build(*_: object) -> WorkerAnswer:
        known.append(Compat.load().has_torch("2.99.0"))
        return WorkerAnswer()

    monkeypatch.setattr(child, "_build", build)
    monkeypatch.setattr(child, "set_verbosity", lambda **_: None)  # it is for the whole process
    task = replace(BUILD_TASK, recipe=recipe)
    child.run(child.Work(task, parts(recipe, tmp_path), tmp_path / "worker", 1), print)
    assert known == [True]


def test_equal_files_give_equal_parts(recipe: Recipe, tmp_path: Path) -> None:
    first = parts(recipe, tmp_path)
    os.utime(recipe.folder / "cases.py", (1, 1))
    assert parts(recipe, tmp_path) == first
    (recipe.folder / "cases.py").write_text("CASES = [1]\n")
    assert parts(recipe, tmp_path) != first


def test_a_large_source_becomes_several_parts(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PART", 1 << 16)
    data = os.urandom(300_000)
    (recipe.folder / "src" / "weights.bin").write_bytes(data)
    found = parts(recipe, tmp_path)
    assert len(found) == 5
    assert max(map(len, found)) <= 1 << 16
    assert (unpack(found, tmp_path / "there") / "src" / "weights.bin").read_bytes() == data


@pytest.mark.parametrize(
    ("name", "link"), [("../outside", ""), ("/etc/outside", ""), ("recipe/link", "/etc"), ("recipe/link", "../../x")]
)
def test_what_leads_out_is_refused(tmp_path: Path, name: str, link: str) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        member = tarfile.TarInfo(name)
        if link:
            member.type, member.linkname = tarfile.SYMTYPE, link
        archive.addfile(member, io.BytesIO())
    there = tmp_path / "there"
    with contextlib.suppress(tarfile.FilterError):
        unpack([stream.getvalue()], there)
    assert not (tmp_path / "outside").exists()
    assert not Path("/etc/outside").exists()
    assert not any(path.is_symlink() for path in there.rglob("*"))
