"""Renders the templates of Dockerfiles. Pure: it uses neither an engine nor the time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Set
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined
from markupsafe import Markup

from builder.errors import UsageError

#: Characters with which a value could leave its place: quotes, expansions, separators, line ends.
_UNSAFE = re.compile(r"[^\w .+:/@=<>!~,\[\]()*-]|\s\s")


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
    # With autoescape, the text of a macro is Markup and a value of the spec is not, so `_printed` knows the values.
    return Environment(
        loader=FileSystemLoader(template_dir()),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=True,
        finalize=_printed,
    )


def _printed(value: object) -> object:
    """Refuse a value that could end its line or its quotes in a Dockerfile. Every printed value passes here."""
    if isinstance(value, Markup | Undefined):
        return value
    if _UNSAFE.search(str(value)):
        raise UsageError(f"{str(value)[:200]!r} cannot be written into a Dockerfile", hints=["use plain text"])
    return Markup(str(value))  # noqa: S704 - the output is a Dockerfile: `>` stays `>`


def template_dir() -> Path:
    """The directory of the templates: in the installed package, otherwise `dockerfiles/` of the source tree."""
    installed = Path(__file__).parent / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "dockerfiles"
