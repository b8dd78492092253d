"""Renders the templates of Dockerfiles. Pure: it uses neither an engine nor the time."""

from __future__ import annotations

import hashlib
from collections.abc import Set
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render_template(name: str, spec: object, features: Set[str] = frozenset()) -> str:
    """The text of a template with the values of a spec. Raises jinja2.UndefinedError for a missing value.

    `features` are newer Dockerfile features that the template may use (`Engine.features`). They do not change the
    contents of the image.
    """
    return _environment().get_template(name).render(spec=spec, features=features)


def digest(text: str) -> str:
    """The 12 hexadecimal digits that name a Dockerfile's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _environment() -> Environment:
    # No autoescape: it escapes for HTML, and the output is a Dockerfile.
    return Environment(
        loader=FileSystemLoader(template_dir()),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )


def template_dir() -> Path:
    """The directory of the templates: in the installed package, otherwise `dockerfiles/` of the source tree."""
    installed = Path(__file__).parent / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "dockerfiles"
