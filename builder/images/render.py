"""Templates to the text of Dockerfiles, and a text to its digest. Pure: no engine, no clock."""

from __future__ import annotations

import hashlib
from collections.abc import Set
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.images.files import templates


def render_template(name: str, spec: object, features: Set[str] = frozenset()) -> str:
    """A template of `dockerfiles/` with a spec's values; a value it lacks raises jinja2.UndefinedError.

    `features` are newer parts of the Dockerfile language that may be used (`Engine.features`); what is in the image
    does not depend on them.
    """
    return _environment().get_template(name).render(spec=spec, features=features)


def digest(text: str) -> str:
    """The 12 hex digits that name a Dockerfile's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _environment() -> Environment:
    # No autoescape: it escapes for HTML, and what is rendered is a Dockerfile.
    return Environment(
        loader=FileSystemLoader(templates()),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )
