"""All Dockerfiles that a plan needs. Needs no engine."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined
from markupsafe import Markup

from builder.errors import Code, UsageError
from builder.images.specs import ImageChooser
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix
from builder.matrix.plan import Plan

#: Start of every rendered file. Files that begin with this line may be overwritten or deleted.
MARK = "# Rendered by buildfarm from "

_FROM = re.compile(r"^FROM (\S+)", re.MULTILINE)
#: Characters with which a value could leave its place: quotes, expansions, separators, line ends.
_UNSAFE = re.compile(r"[^\w .+:/@=<>!~,\[\]()*-]|\s\s")


def dockerfiles(plan: Plan, matrix: Matrix, lock: Mapping[str, str]) -> dict[str, str]:
    """The Dockerfiles of a plan, by file name: the build images, then the runtime images. Same input, same bytes.

    Raises UsageError when no known base image fits.
    """
    chooser = ImageChooser(matrix, Compat.load(), lock)
    cells = sorted({cell for build in plan.builds for cell in build.serves})
    images = {chooser.build_image(build) for build in plan.builds}
    built = sorted((image.name, render_template(image.template, image)) for image in images)
    names = [name for name, _ in built]
    # Images that share a name, because their bases differ only by digest, get the digest of the text.
    found = {name if names.count(name) == 1 else f"{name}-{digest(text)}": text for name, text in built}
    for image in map(chooser.runtime_image, cells):
        found[image.name] = render_template(image.template, image)
    return {f"{name}.Dockerfile": text for name, text in found.items()}


def bases_of(text: str) -> list[str]:
    """All images that a Dockerfile copies from or builds on; the last one is that of its last stage."""
    return _FROM.findall(text)


def unpinned(texts: Iterable[str]) -> list[str]:
    """The base images of Dockerfiles that have a tag but no digest, sorted."""
    return sorted({base for text in texts for base in bases_of(text) if "@" not in base})


def write_dockerfiles(folder: Path, files: Mapping[str, str]) -> None:
    """Write these files and delete other rendered files in the folder; all other files stay. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.Dockerfile"):
        if path.name not in files and path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def render_template(name: str, spec: object) -> str:
    """The text of a template with the values of a spec. Raises jinja2.UndefinedError for a missing value."""
    return _environment().get_template(name).render(spec=spec)


def digest(text: str) -> str:
    """The 12 hexadecimal digits that name a Dockerfile's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _environment() -> Environment:
    # With autoescape, the text of a macro is Markup and a value of the spec is not, so `_printed` knows the values.
    loader, undefined = FileSystemLoader(template_dir()), StrictUndefined
    return Environment(
        loader=loader, undefined=undefined, keep_trailing_newline=True, autoescape=True, finalize=_printed
    )


def _printed(value: object) -> object:
    """Refuse a value that could end its line or its quotes in a Dockerfile. Every printed value passes here."""
    if isinstance(value, Markup | Undefined):
        return value
    if _UNSAFE.search(str(value)):
        raise UsageError(
            f"{str(value)[:200]!r} cannot be written into a Dockerfile", Code.VALUE_INVALID, hints=["use plain text"]
        )
    return Markup(str(value))  # noqa: S704 - the output is a Dockerfile: `>` stays `>`


def template_dir() -> Path:
    """The directory of the templates: in the installed package, otherwise `dockerfiles/` of the source tree."""
    installed = Path(__file__).parent / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "dockerfiles"
