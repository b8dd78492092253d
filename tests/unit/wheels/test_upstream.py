from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from builder.errors import BuildError
from builder.matrix.models import RecipeModel
from builder.wheels.upstream import PARTS, OwnTests, Upstream, read_upstream

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


def test_a_source_that_says_nothing_asks_for_nothing(tmp_path: Path, read: Callable[..., Upstream]) -> None:
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
    assert got.tests == OwnTests(
        command="pytest {project}/tests && true",
        before="echo before",
        sources=("tests", "a b/data"),
        requires=("pytest<9", "pytest-xdist", "numpy"),
        extras="more,most",
        environment=(("QUIET", '"1"'),),
    )
    assert got.words == ()


def test_an_override_holds_for_the_builds_it_selects(read: Callable[..., Upstream]) -> None:
    other = read(FULL, "cp39-manylinux_x86_64")
    assert other.before_all == "of another build"
    assert ("WITH_X", '"3"') not in other.environment
    assert ("WITH_X", '"2"') in other.environment


@pytest.mark.parametrize("part", PARTS)
def test_each_part_can_be_left_out(read: Callable[..., Upstream], part: str) -> None:
    whole, less = read(FULL), read(FULL, skip=(part,))
    name = {"build-frontend": "frontend_args", "test": "tests"}.get(part, part.replace("-", "_"))
    differing = {field for field in Upstream.__dataclass_fields__ if getattr(whole, field) != getattr(less, field)}
    assert differing == {name}
    assert not getattr(less, name)
    assert read(FULL, skip=("all",)) == Upstream()


def test_the_recipes_key_names_the_same_parts() -> None:
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
def test_who_needs_to_be_root(read: Callable[..., Upstream], lines: str, *, root: bool) -> None:
    assert read(table(lines)).needs_root is root


def test_test_skip_is_the_authors_word(read: Callable[..., Upstream]) -> None:
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
def test_a_build_the_source_would_not_make_is_made_with_a_word(
    read: Callable[..., Upstream], lines: str, named: str
) -> None:
    (word,) = read(table(lines)).words
    assert f"the source's own {named} in" in word
    assert CP311 in word
    assert read(table('skip = "pp* *-musllinux*"\narchs = ["auto", "aarch64"]')).words == ()


def test_what_the_farm_decides_is_left_aside_with_a_word(read: Callable[..., Upstream]) -> None:
    text = table(
        'manylinux-x86_64-image = "quay.io/x"\nmanylinux-i686-image = "y"\n'
        'environment-pass = ["HOME"]\n'
        'build-frontend = {name = "pip", args = ["--no-cache-dir", "--no-build-isolation"]}\n'
        '[tool.cibuildwheel.linux]\nrepair-wheel-command = ""\n'
        '[[tool.cibuildwheel.overrides]]\nselect = "cp3*"\naudit-command = "x"\n'
        '[[tool.cibuildwheel.overrides]]\nselect = "cp39-*"\ncontainer-engine = "podman"\n'
    )
    got = read(text)
    (word,) = got.words
    assert word == (
        "the source's own `manylinux-x86_64-image`, `environment-pass`, `repair-wheel-command`, `audit-command`,"
        " `build-frontend (--no-cache-dir)` in [tool.cibuildwheel] are left aside:"
        " the farm decides the image, the environment, the repair, the audit, the front end"
    )
    assert got.environment == ()
    assert got.frontend_args == ()


def test_options_of_uv_are_passed_on(read: Callable[..., Upstream]) -> None:
    words = '["--config-setting", "a=1", "-C", "b=2", "--config-settings=c=3", "--offline"]'
    got = read(table(f'build-frontend = {{name = "uv", args = {words}}}'))
    assert got.frontend_args == (
        "--config-setting=a=1",
        "--config-setting=b=2",
        "--config-setting=c=3",
        "--offline",
    )
    assert got.words == ()


def test_the_hosts_variables_say_nothing(read: Callable[..., Upstream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIBW_BEFORE_ALL", "of the host")
    monkeypatch.setenv("CIBW_TEST_COMMAND", "of the host")
    monkeypatch.setenv("HOST_SECRET", "hush")
    assert read(table('environment-pass = ["HOST_SECRET"]')).environment == ()
    assert read(table("")) == Upstream()


def test_what_is_left_aside_cannot_stop_the_build(read: Callable[..., Upstream]) -> None:
    """Images and groups of older releases, files that are not there: cibuildwheel itself would refuse each."""
    got = read(
        table(
            'manylinux-x86_64-image = "manylinux2010"\nmusllinux-x86_64-image = "musllinux_1_1"\n'
            'enable = ["cpython-freethreading"]\ndependency-versions = "nowhere.txt"\ncontainer-engine = "udocker"\n'
            'before-build = "echo all the same"'
        )
    )
    assert got.before_build == "echo all the same"


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_what_cannot_be_read_says_where_and_what_to_do(read: Callable[..., Upstream], text: str, said: str) -> None:
    with pytest.raises(BuildError) as caught:
        read(text)
    assert said in caught.value.sentence
    assert caught.value.stage == "environment"
    assert caught.value.where == "pyproject.toml"
    assert "`cibuildwheel_skip: [all]`" in caught.value.hints[0]
