"""Every Dockerfile a plan needs, once each: what it stands on, and who uses it. Starts no engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import UsageError
from builder.images.render import digest, render_template
from builder.images.specs import BuildImage, Choice, RuntimeImage
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix
from builder.matrix.plan import Build, Plan

#: The first line of every rendered file; a folder's files that carry it may be replaced.
MARK = "# Rendered by buildfarm from "

_FROM = re.compile(r"^FROM (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Dockerfile:
    """One rendered file.

    Attributes:
        name: readable, unique among the files of a plan; the file is `<name>.Dockerfile`.
        kind: `build` or `runtime`, the target stage's name.
        text: what it says.
        builds: the builds made in it, in the plan's order; none for a runtime image.
        cells: the cells those builds serve, or the cell it runs; sorted.

    """

    name: str
    kind: str
    text: str
    builds: tuple[Build, ...]
    cells: tuple[Cell, ...]

    @property
    def tag(self) -> str:
        """What the image is called: `buildfarm/<name>:<digest of the text>`."""
        return f"buildfarm/{self.name}:{digest(self.text)}"

    @property
    def file(self) -> str:
        """Its file name."""
        return f"{self.name}.Dockerfile"

    @property
    def base(self) -> str:
        """The image it stands on, as it names it."""
        return str(_FROM.findall(self.text)[-1])

    @property
    def bases(self) -> tuple[str, ...]:
        """All the images it is made from, as it names them."""
        return tuple(dict.fromkeys(_FROM.findall(self.text)))


def dockerfiles(plan: Plan, matrix: Matrix, lock: Mapping[str, str]) -> list[Dockerfile]:
    """The images of a plan: those to build in, then those to run its cells in. Same input, same bytes.

    Raises UsageError where no base image is known that fits.
    """
    choice = Choice(matrix, Compat.load(), lock)
    users: dict[BuildImage, list[Build]] = {}
    for build in plan.builds:
        users.setdefault(choice.build_image(build), []).append(build)
    cells = sorted({cell for build in plan.builds for cell in build.serves})
    return [
        *_uniquely_named(_build_file(image, builds) for image, builds in users.items()),
        *(_runtime_file(choice.runtime_image(cell)) for cell in cells),
    ]


def unpinned(files: Iterable[Dockerfile]) -> tuple[str, ...]:
    """The base images that are named by tag alone, sorted."""
    return tuple(sorted({base for file in files for base in file.bases if "@" not in base}))


def write_dockerfiles(folder: Path, files: Sequence[Dockerfile]) -> None:
    """Make the folder hold exactly these rendered files; whatever else lies in it stays. Raises UsageError."""
    wanted = {file.file: file.text for file in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.Dockerfile"):
            if path.name not in wanted and path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
                path.unlink()
        for name, text in wanted.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"Dockerfiles cannot be put there: {error.strerror}",
            where=str(folder),
            hints=["`--out DIR` names another folder"],
        ) from None


def _build_file(image: BuildImage, builds: Sequence[Build]) -> Dockerfile:
    cells = tuple(sorted({cell for build in builds for cell in build.serves}))
    return Dockerfile(image.name, "build", render_template(image.template, image), tuple(builds), cells)


def _runtime_file(image: RuntimeImage) -> Dockerfile:
    return Dockerfile(image.name, "runtime", render_template(image.template, image), (), (image.cell,))


def _uniquely_named(files: Iterable[Dockerfile]) -> list[Dockerfile]:
    """Files of one name but another text (bases that differ by digest alone) get their digest behind it."""
    found = sorted(files, key=lambda file: (file.name, file.text))
    names = [file.name for file in found]
    return [
        file
        if names.count(file.name) == 1
        else Dockerfile(f"{file.name}-{digest(file.text)}", file.kind, file.text, file.builds, file.cells)
        for file in found
    ]
