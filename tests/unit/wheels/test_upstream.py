from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from builder.errors import BuildError
from builder.matrix.models import RecipeModel
from builder.wheels.cibuildwheel.upstream import PARTS, Upstream, UpstreamTests, read_upstream

CP311 = "cp311-manylinux_x86_64"

FULL = """
[project]
name = "toy"
version = "1"

[dependency-groups]
test = ["pytest-xdist", {include-group = "base"}]
base = ["numpy"]

[tool.cibuildwheel]
before-all = ["echo one", "echo two {project}"]
before-build = "pip install cmake"
environment = {WITH_X = "1", PATH = "$HOME/bin:$PATH"}
config-settings = {"cmake.define.X" = "a b", y = ["1", "2"]}
build-frontend = {name = "build", args = ["-Cq=1", "--no-isolation"]}
test-command = ["pytest {project}/tests", "true"]
before-test = "echo before"
test-sources = ["tests", "a b/data"]
test-requires = ["pytest<9"]
test-groups = ["test"]
test-extras = ["more", "most"]
test-environment = {QUIET = "1"}

[tool.cibuildwheel.linux]
environment = {WITH_X = "2"}
inherit = {environment = "append"}

[tool.cibuildwheel.macos]
environment = {WITH_X = "mac"}
before-all = "brew install x"

[[tool.cibuildwheel.overrides]]
select = "cp31{0,1}-*"
inherit = {environment = "append"}
environment = {WITH_X = "3"}

[[tool.cibuildwheel.overrides]]
select = "cp39-*"
before-all = "of another build"
"""


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Upstream]:
    def read(text: str, identifier: str = CP311, skip: tuple[str, ...] = ()) -> Upstream:
        (tmp_path / "pyproject.toml").write_text(text)
        return read_upstream(tmp_path, identifier, skip)

    return read


def table(lines: str) -> str:
    return f"[tool.cibuildwheel]\n{lines}\n"


def test_a_source_without_settings(tmp_path: Path, read: Callable[..., Upstream]) -> None:
    assert read_upstream(tmp_path, CP311) == Upstream()
    assert read("[tool.ruff]\n") == Upstream()
    assert read(table("")) == Upstream()


def test_everything_is_resolved_for_the_build(read: Callable[..., Upstream]) -> None:
    got = read(FULL)
    assert got.before_all == "echo one && echo two {project}"
    assert got.before_build == "pip install cmake"
    assert got.environment == (
        ("WITH_X", '"1"'),
        ("PATH", '"$HOME/bin:$PATH"'),
        ("WITH_X", '"2"'),
        ("WITH_X", '"3"'),
    )
    assert got.config_settings == "cmake.define.X='a b' y=1 y=2"
    assert got.frontend_args == ("--config-setting=q=1",)
    assert got.tests == UpstreamTests(
        command="pytest {project}/tests && true",
        before="echo before",
        sources=("tests", "a b/data"),
        requires=("pytest<9", "pytest-xdist", "numpy"),
        extras="more,most",
        environment=(("QUIET", '"1"'),),
    )
    assert got.notes == ()


def test_an_override_applies_to_the_builds_it_selects(read: Callable[..., Upstream]) -> None:
    other = read(FULL, "cp39-manylinux_x86_64")
    assert other.before_all == "of another build"
    assert ("WITH_X", '"3"') not in other.environment
    assert ("WITH_X", '"2"') in other.environment


@pytest.mark.parametrize("part", PARTS)
def test_each_part_can_be_skipped(read: Callable[..., Upstream], part: str) -> None:
    complete, reduced = read(FULL), read(FULL, skip=(part,))
    name = {"build-frontend": "frontend_args", "test": "tests"}.get(part, part.replace("-", "_"))
    differing = {
        field for field in Upstream.__dataclass_fields__ if getattr(complete, field) != getattr(reduced, field)
    }
    assert differing == {name}
    assert not getattr(reduced, name)
    assert read(FULL, skip=("all",)) == Upstream()


def test_the_recipes_key_allows_the_same_parts() -> None:
    (item,) = get_args(RecipeModel.model_fields["cibuildwheel_skip"].annotation)
    assert set(get_args(item)) == {"all", *PARTS}


@pytest.mark.parametrize(
    ("lines", "root"),
    [
        ('before-all = "true"', True),
        ('before-build = "yum install -y zlib-devel"', True),
        ('test-command = "true"\nbefore-test = "apt-get install x"', True),
        ('before-test = "apt-get install x"', False),
        ('before-build = "pip install yumex"', False),
    ],
)
def test_which_commands_need_root(read: Callable[..., Upstream], lines: str, *, root: bool) -> None:
    assert read(table(lines)).needs_root is root


def test_test_skip_is_respected(read: Callable[..., Upstream]) -> None:
    lines = 'test-command = "pytest"\ntest-skip = "cp311-* *-musllinux*"'
    assert read(table(lines)).tests is None
    assert read(table(lines), "cp312-manylinux_x86_64").tests is not None


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ('skip = "cp311-* pp*"', "`skip`"),
        ('build = "cp312-*"', "`build`"),
        ('archs = ["aarch64"]', "`archs`"),
        ('build = "cp312-*"\nskip = "*_x86_64"', "`skip` and `build`"),
    ],
)
def test_a_build_that_the_source_excludes_gets_a_note(read: Callable[..., Upstream], lines: str, named: str) -> None:
    (note,) = read(table(lines)).notes
    assert f"ignored {named} in the source's" in note
    assert CP311 in note
    assert read(table('skip = "pp* *-musllinux*"\narchs = ["auto", "aarch64"]')).notes == ()


def test_settings_that_buildfarm_decides_get_a_note(read: Callable[..., Upstream]) -> None:
    text = table(
        'manylinux-x86_64-image = "quay.io/x"\nmanylinux-i686-image = "y"\n'
        'environment-pass = ["HOME"]\n'
        'build-frontend = {name = "pip", args = ["--no-cache-dir", "--no-build-isolation"]}\n'
        '[tool.cibuildwheel.linux]\nrepair-wheel-command = ""\n'
        '[[tool.cibuildwheel.overrides]]\nselect = "cp3*"\naudit-command = "x"\n'
        '[[tool.cibuildwheel.overrides]]\nselect = "cp39-*"\ncontainer-engine = "podman"\n'
    )
    got = read(text)
    (note,) = got.notes
    assert note == (
        "ignored `manylinux-x86_64-image`, `environment-pass`, `repair-wheel-command`, `audit-command`,"
        " `build-frontend (--no-cache-dir)` in the source's [tool.cibuildwheel]:"
        " buildfarm decides the image, the environment, the repair, the audit, the front end"
    )
    assert got.environment == ()
    assert got.frontend_args == ()


def test_options_of_uv_are_passed_on(read: Callable[..., Upstream]) -> None:
    options = '["--config-setting", "a=1", "-C", "b=2", "--config-settings=c=3", "--offline"]'
    got = read(table(f'build-frontend = {{name = "uv", args = {options}}}'))
    assert got.frontend_args == (
        "--config-setting=a=1",
        "--config-setting=b=2",
        "--config-setting=c=3",
        "--offline",
    )
    assert got.notes == ()


def test_variables_of_the_host_are_ignored(read: Callable[..., Upstream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIBW_BEFORE_ALL", "of the host")
    monkeypatch.setenv("CIBW_TEST_COMMAND", "of the host")
    monkeypatch.setenv("HOST_SECRET", "hush")
    assert read(table('environment-pass = ["HOST_SECRET"]')).environment == ()
    assert read(table("")) == Upstream()


def test_ignored_settings_cannot_fail_the_build(read: Callable[..., Upstream]) -> None:
    """Images and groups of older releases, missing files: cibuildwheel itself would refuse each of them."""
    got = read(
        table(
            'manylinux-x86_64-image = "manylinux2010"\nmusllinux-x86_64-image = "musllinux_1_1"\n'
            'enable = ["cpython-freethreading"]\ndependency-versions = "nowhere.txt"\ncontainer-engine = "udocker"\n'
            'before-build = "echo all the same"'
        )
    )
    assert got.before_build == "echo all the same"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (table('before-al = "x"'), "'before-al' not supported in a config file. Perhaps you meant 'before-all'"),
        (table('environment = "A=$("'), "Malformed environment"),
        (table("environment = 3"), "environment"),
        (table('test-groups = ["no"]\ntest-command = "x"'), "dependency-groups"),
        (table('archs = ["vax"]'), "Invalid architecture 'vax'"),
        ("tool.cibuildwheel = 3", "cannot read"),
        ("tool = 3", "cannot read"),
        ("[tool.cibuildwheel", "cannot read"),
    ],
)
def test_unreadable_settings_are_reported_with_place_and_hint(
    read: Callable[..., Upstream], text: str, message: str
) -> None:
    with pytest.raises(BuildError) as caught:
        read(text)
    assert message in caught.value.sentence
    assert caught.value.stage == "environment"
    assert caught.value.where == "pyproject.toml"
    assert "`cibuildwheel_skip: [all]`" in caught.value.hints[0]
