"""Reads the YAML files of facts that belong to buildfarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # keeps scalars as text: 2.10 is not 2.1


def read_text_yaml(path: Path) -> Any:  # noqa: ANN401 - the caller knows the keys
    """The contents as text, lists and dicts. Raises yaml.YAMLError for a mistake in the file, which is a bug."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506  # a Base loader makes no objects
