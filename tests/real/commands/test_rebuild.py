"""`rebuild`: the rebuilt wheel is equal, or the differences are listed, or a changed input is an error."""

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from builder import records
from builder.commands import rebuild
from builder.commands.building.build import run_build
from builder.commands.building.preflight import RunSettings, choose_executor
from builder.commands.rebuild import RebuildOptions, check_toolchain, rebuild_text, run_rebuild
from builder.errors import BuildfarmError, Exit, MissingToolError, UsageError
from builder.records import Part, read_record
from builder.wheels.job import Prepared
from builder.wheels.local import LocalExecutor
from builder.wheels.toolchain import machine
from tests.conftest import wheel_of
from tests.fixtures.small_project import MODULE, SmallProject, small_project
from tests.unit.loopback import pure_wheel

pytestmark = pytest.mark.usefixtures("headers")


@dataclass(frozen=True)
class Built:
    """A project with two built wheels: `steady` is reproducible, `moody` contains the environment of its build."""

    project: SmallProject
    wheels: dict[str, Path]

    def options(self, name: str) -> RebuildOptions:
        """What `rebuild --verify` of that wheel is asked for, with the project's own store."""
        return RebuildOptions(
            self.wheels[name], matrix=self.project.root / "matrix.yaml", store=self.project.store, jobs=1
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    root = tmp_path_factory.mktemp("rebuilt project")  # a space in every path
    with pytest.MonkeyPatch.context() as monkeypatch, small_project(root, monkeypatch) as project:
        steady = project.recipe("steady").parent / "backend.py"
        steady.write_text(steady.read_text().replace('f"{NAME}/env.txt"', '# f"{NAME}/env.txt"'))
        project.recipe("moody")  # its wheel contains the environment variables of the build
        project.matrix("steady", "moody")
        run_build(project.options())
        wheels = {path.name.split("-")[0]: path for path in (project.root / "dist").glob("*.whl")}
        assert set(wheels) == {"steady", "moody"}
        yield Built(project, wheels)


def test_the_rebuilt_wheel_is_equal_and_nothing_else_changes(built: Built, tmp_path: Path) -> None:
    builds = {p: p.stat().st_mtime_ns for p in (built.project.store / "builds").rglob("*")}
    wheel = built.wheels["steady"].read_bytes()
    rebuilt = run_rebuild(replace(built.options("steady"), out=tmp_path / "again"))
    assert rebuilt.equal
    assert rebuild_text(rebuilt) == f"equal, sha256 {rebuilt.sha256}\n"
    assert (tmp_path / "again" / rebuilt.wheel).read_bytes() == wheel
    assert built.wheels["steady"].read_bytes() == wheel
    assert {p: p.stat().st_mtime_ns for p in (built.project.store / "builds").rglob("*")} == builds
    assert list((built.project.store / "work").iterdir()) == []


def test_an_empty_store_and_newer_packages_on_the_index_change_nothing(built: Built, tmp_path: Path) -> None:
    built.project.index.add("ninja", "81.0")
    assert run_rebuild(replace(built.options("steady"), store=tmp_path / "store")).equal


def test_differences_are_listed_by_file(built: Built) -> None:
    rebuilt = run_rebuild(built.options("moody"))
    assert not rebuilt.equal
    assert {each.rpartition("/")[2] for each in rebuilt.differences} == {"env.txt: differs", "RECORD: differs"}
    text = rebuild_text(rebuilt)
    assert text.startswith("not equal: 2 differences\n")
    assert "moody/env.txt: differs\n" in text
    assert "diffoscope" in text
    assert rebuilt.rebuilt_sha256 in text
    assert len(rebuilt.differences) == 2


def refused(options: RebuildOptions) -> BuildfarmError:
    with pytest.raises(BuildfarmError) as raised:
        run_rebuild(options)
    return raised.value


def test_a_changed_source_or_recipe_is_an_error_before_the_build(built: Built) -> None:
    source = built.project.root / "steady" / "src" / "steady" / "_C.c"
    recipe = built.project.root / "steady" / "extension.yaml"
    old_source, old_recipe = source.read_text(), recipe.read_text()
    try:
        source.write_text(MODULE.format(answer=43))
        recipe.write_text(f"{old_recipe}env: {{WITH_X: '1'}}\n")
        error = refused(built.options("steady"))
    finally:
        source.write_text(old_source)
        recipe.write_text(old_recipe)
    assert isinstance(error, MissingToolError)
    assert error.sentence.endswith(": source, `env`")
    assert "the wheel's record has env: {}" in error.hints
    assert any('"kind": "path"' in hint for hint in error.hints)


@pytest.fixture
def other_compiler(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_eyes: None
) -> Callable[[str], None]:
    del built, fresh_eyes

    def put(version: str) -> None:
        script = tmp_path / "bin" / "g++"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\ncase "$1" in -dump*) echo {version};; *) exec /usr/bin/g++ "$@";; esac\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        machine._compiler.cache_clear()

    return put


def test_different_tools_are_an_error_that_names_them(
    built: Built, other_compiler: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    other_compiler("11.99.0")
    monkeypatch.setattr("builder.wheels.local.with_repair_tools", lambda made: made.having({Part.PATCHELF: "0.1"}))
    error = refused(built.options("steady"))
    assert error.exit_code == Exit.TOOL_MISSING
    assert "c++: g++ " in error.sentence
    assert "g++ 11.99.0 here; " in error.sentence
    assert "; patchelf: " in error.sentence
    assert "CC and CXX name the compiler" in error.hints[0]


def test_a_base_image_that_was_pinned_since_makes_the_same_wheel(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuilt wheel has what the record has."""
    original = LocalExecutor.prepare

    changed = {Part.BASE_DIGEST: "sha256:pinned since"}

    def prepare(self: LocalExecutor, *args: Any, **kwargs: Any) -> Prepared:
        found = original(self, *args, **kwargs)
        return replace(found, toolchain=found.toolchain.having(changed))

    monkeypatch.setattr(LocalExecutor, "prepare", prepare)
    assert run_rebuild(built.options("steady")).equal
    here = read_record(built.wheels["steady"]).toolchain
    check_toolchain(here.having({Part.BASE_DIGEST: "0123456789ab"}), here)


def test_records_without_the_key_cuda_make_the_same_wheel(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions before December 2026 did not write the key."""
    project = SmallProject(tmp_path, built.project.index)
    project.recipe("early")
    project.matrix("early")
    with monkeypatch.context() as early:
        write = records.recorded_settings
        early.setattr(records, "recorded_settings", lambda recipe: write(replace(recipe, cuda="required")))
        run_build(project.options())
    wheel = wheel_of(tmp_path / "dist")
    assert "cuda" not in read_record(wheel).settings
    assert read_record(built.wheels["moody"]).settings["cuda"] == "optional"
    again = run_rebuild(RebuildOptions(wheel, matrix=tmp_path / "matrix.yaml", store=project.store, jobs=1))
    assert {each.rpartition("/")[2] for each in again.differences} == {"env.txt: differs", "RECORD: differs"}


def test_a_wheel_that_was_built_without_sccache_is_rebuilt_without_it(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_cache: list[bool] = []

    def choose(settings: RunSettings, *args: Any, **kwargs: Any) -> Any:
        compiler_cache.append(settings.compiler_cache)
        return choose_executor(settings, *args, **kwargs)

    monkeypatch.setattr(rebuild, "choose_executor", choose)
    assert run_rebuild(built.options("steady")).equal
    assert compiler_cache == [False]


def with_record(built: Built, folder: Path, old: str, new: str) -> RebuildOptions:
    """The options for a copy of the wheel `steady` in whose record a text is replaced; the store is empty."""
    record = "steady-1.0+cu130.torch2.11.dist-info/buildfarm.json"
    wheel = folder / built.wheels["steady"].name
    with zipfile.ZipFile(built.wheels["steady"]) as before, zipfile.ZipFile(wheel, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            assert name != record or old.encode() in data
            after.writestr(name, data.replace(old.encode(), new.encode()) if name == record else data)
    return replace(built.options("steady"), wheel=wheel, store=folder / "store")


@pytest.fixture
def hostile_sdist(built: Built, tmp_path: Path) -> Callable[[str], Path]:
    """Puts a source distribution on the index whose build backend writes a file, and returns the path of that file."""

    def put(name: str) -> Path:
        marker = tmp_path / "backend-ran"
        backend = f"open({str(marker)!r}, 'w').close()\nraise SystemExit(1)\n"
        project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        top = name.removesuffix(".tar.gz")
        archive = built.project.index.root / "default" / name
        with tarfile.open(archive, "w:gz") as tar:
            files = {"PKG-INFO": "Metadata-Version: 2.1\n", "pyproject.toml": project, "backend.py": backend}
            for path, text in files.items():
                info = tarfile.TarInfo(f"{top}/{path}")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        return marker

    return put


def test_no_build_backend_of_a_recorded_package_runs(
    built: Built, tmp_path: Path, hostile_sdist: Callable[[str], Path]
) -> None:
    marker = hostile_sdist("ninja-79.0.tar.gz")
    error = refused(with_record(built, tmp_path, "ninja==80.0", "ninja==79.0"))
    assert error.exit_code == Exit.TOOL_MISSING
    assert "ninja" in error.sentence
    assert not marker.exists()


@pytest.mark.parametrize(
    "package",
    [
        "evil@{url}/default/evil-1.0.tar.gz",
        "ninja==80.0;python_version>'3'",
        "ninja==80.*",
        "ninja===80.0",
        "ninja[all]==80.0",
        "--index-url={url}",
        "/tmp/evil.whl",
        "==1.0",
    ],
)
def test_recorded_packages_are_exact_versions(
    built: Built, tmp_path: Path, hostile_sdist: Callable[[str], Path], package: str
) -> None:
    marker = hostile_sdist("evil-1.0.tar.gz")
    asked = list(built.project.index.requested)
    package = package.format(url=built.project.index.url)
    error = refused(with_record(built, tmp_path, "ninja==80.0", package))
    assert error.exit_code == Exit.USAGE
    assert "names a package that is not an exact version" in error.sentence
    assert not marker.exists()
    assert built.project.index.requested == asked


def test_a_package_that_the_recipe_does_not_need_is_refused(built: Built, tmp_path: Path) -> None:
    """A file *.pth in it would run in every Python of the build's environment."""
    marker = tmp_path / "ran"
    files = {"evil.pth": f"import os; open({str(marker)!r}, 'w').close()\n"}
    pure_wheel(built.project.index.root / "default", "evil", "1.0", files)
    error = refused(with_record(built, tmp_path, "ninja==80.0", "evil==1.0 ninja==80.0"))
    assert error.exit_code == Exit.TOOL_MISSING
    assert "names packages that the recipe does not need: evil==1.0" in error.sentence
    assert not marker.exists()


def test_a_different_toolchain_is_noticed_before_the_index_is_asked(
    built: Built, tmp_path: Path, other_compiler: Callable[[str], None]
) -> None:
    options = with_record(built, tmp_path, "ninja==80.0", "ninja==79.0")
    other_compiler("11.99.0")
    asked = list(built.project.index.requested)
    assert "c++: g++ " in refused(options).sentence
    assert built.project.index.requested == asked


def test_an_extension_that_is_not_in_the_matrix_is_an_error(built: Built, tmp_path: Path) -> None:
    other = SmallProject(tmp_path, built.project.index)
    other.recipe("other")
    error = refused(replace(built.options("steady"), matrix=other.matrix("other")))
    assert isinstance(error, UsageError)
    assert "'steady'" in error.sentence
