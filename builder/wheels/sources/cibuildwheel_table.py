"""The source's own [tool.cibuildwheel], which buildfarm ignores."""

from __future__ import annotations

import tomllib
from pathlib import Path

from builder.matrix.compat import and_list

#: Settings without which a build may fail, and what buildfarm has in place of each.
_REPLACED = {
    "before-all": "`images` in matrix.yaml",
    "before-build": "`build_requires` or `patches` in the recipe",
    "environment": "`env` in the recipe",
    "config-settings": "`config_settings` in the recipe",
}


def ignored_settings(source: Path) -> str:
    """A sentence about the settings in a source tree's pyproject.toml that a build may need; empty without any."""
    try:
        table = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
        tables = [table, table.get("linux", {}), *table.get("overrides", [])]
        names = [name for name in _REPLACED if any(one.get(name) for one in tables)]
    except (AttributeError, LookupError, OSError, TypeError, ValueError):  # the build backend reports a damaged file
        return ""
    if not names:
        return ""
    ignored, cures = and_list([f"`{name}`" for name in names]), and_list([_REPLACED[name] for name in names])
    return f"buildfarm ignores {ignored} in the source's [tool.cibuildwheel]; if the build needs this, use {cures}"
