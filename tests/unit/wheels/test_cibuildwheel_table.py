"""The source's own [tool.cibuildwheel] is ignored, and a sentence names what a build may need of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.wheels.sources.prepare import ignored_settings


@pytest.mark.parametrize(
    ("table", "named", "cures"),
    [
        ('environment = {WITH_X = "1"}', ["environment"], ["`env` in the recipe"]),
        ('[tool.cibuildwheel.linux]\nbefore-all = "yum install zlib-devel"', ["before-all"], ["`images`"]),
        (
            '[[tool.cibuildwheel.overrides]]\nselect = "*"\nbefore-build = "pip x"\nconfig-settings = {a = "b"}',
            ["before-build", "config-settings"],
            ["`build_requires`", "`config_settings`"],
        ),
        ('skip = "cp38-*"\ntest-command = "pytest"\nbefore-all = ""', [], []),
        ("linux = 3", [], []),
        ("damaged", [], []),
    ],
)
def test_settings_that_a_build_may_need(tmp_path: Path, table: str, named: list[str], cures: list[str]) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.cibuildwheel]\n{table}\n")
    sentence = ignored_settings(tmp_path)
    assert bool(sentence) is bool(named)
    assert all(f"`{name}`" in sentence for name in named)
    assert all(cure in sentence for cure in cures)


def test_a_source_without_the_table(tmp_path: Path) -> None:
    assert ignored_settings(tmp_path) == ""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert ignored_settings(tmp_path) == ""
