"""All Dockerfiles that a plan needs. Needs no engine."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined
from markupsafe import Markup

from builder.errors import Code, UsageError
from builder.images.base_image_choice import ImageChooser
from builder.images.specs import BuildImage, RuntimeImage
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix
from builder.matrix.plan import Plan

#: Start of every rendered file. Files that begin with this line may be overwritten or deleted.
MARK = "# Rendered by buildfarm from "

_FROM = re.compile(r"^FROM (\S+)", re.MULTILINE)
#: Characters with which a value could leave its place: quotes, expansions, separators, line ends.
_UNSAFE = re.compile(r"[^\w .+:/@=<>!~,\[\]()*-]|\s\s")


@dataclass(frozen=True)
class Dockerfile:
    """One rendered file."""

    name: str  # readable and unique among the files of a plan; the file is `<name>.Dockerfile`
    text: str  # contents of the file

    @property
    def file(self) -> str:
        """The file name."""
        return f"{self.name}.Dockerfile"

    @property
    def base(self) -> str:
        """The base image of the last stage, as the file names it."""
        return str(_FROM.findall(self.text)[-1])

    @property
    def bases(self) -> tuple[str, ...]:
        """All images that the file copies from or builds on, as the file names them."""
        return tuple(dict.fromkeys(_FROM.findall(self.text)))


def dockerfiles(plan: Plan, matrix: Matrix, lock: Mapping[str, str]) -> list[Dockerfile]:
    """The Dockerfiles of a plan: the build images, then the runtime images. Same input, same bytes.

    Raises UsageError when no known base image fits.
    """
    chooser = ImageChooser(matrix, Compat.load(), lock)
    cells = sorted({cell for build in plan.builds for cell in build.serves})
    found = [_file(image) for image in {chooser.build_image(build) for build in plan.builds}]
    names = [file.name for file in found]
    return [
        # Files that share a name, because their bases differ only by digest, get the digest of the text.
        *(
            file if names.count(file.name) == 1 else replace(file, name=f"{file.name}-{digest(file.text)}")
            for file in sorted(found, key=lambda file: (file.name, file.text))
        ),
        *(_file(chooser.runtime_image(cell)) for cell in cells),
    ]


def unpinned(files: Iterable[Dockerfile]) -> tuple[str, ...]:
    """The base images that have a tag but no digest, sorted."""
    return tuple(sorted({base for file in files for base in file.bases if "@" not in base}))


def write_dockerfiles(folder: Path, files: Sequence[Dockerfile]) -> None:
    """Write these files and delete other rendered files in the folder; all other files stay. Raises UsageError."""
    wanted = {file.file: file.text for file in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.Dockerfile"):
            if path.name not in wanted and path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
                path.unlink()
        for name, text in wanted.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        sentence, hint = f"cannot write Dockerfiles: {error.strerror}", "name a different folder with `--out DIR`"
        raise UsageError(sentence, Code.PATH_NOT_USABLE, where=str(folder), hints=[hint]) from None


def _file(image: BuildImage | RuntimeImage) -> Dockerfile:
    return Dockerfile(image.name, render_template(image.template, image))


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
