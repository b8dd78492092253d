"""matrix.yaml and extension.yaml, read and checked: the only place that reads YAML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.errors import UsageError
from builder.matrix.axes import AbiClass, Arch, Cuda, Platform, Python, Torch
from builder.matrix.document import Document, Key, read_document
from builder.matrix.faults import checked, key_path
from builder.matrix.models import MatrixModel, RecipeModel, SourceModel

RECIPE = "extension.yaml"
CASES = "cases.py"


@dataclass(frozen=True)
class AbiRule:
    """Which ABI class holds for which torch releases (`specifier` is PEP 440 text such as ">=2.10")."""

    abi: AbiClass
    specifier: str


@dataclass(frozen=True)
class PathSource:
    """A source tree on this machine, inside the recipe's folder."""

    path: Path  # absolute, checked to lie inside the recipe's folder


@dataclass(frozen=True)
class SdistSource:
    """A source distribution on the package index, by exact version and sha256."""

    project: str
    version: str
    sha256: str


@dataclass(frozen=True)
class GitSource:
    """A git repository at a full commit hash."""

    url: str
    revision: str
    subdirectory: str = ""


@dataclass(frozen=True)
class WheelSource:
    """An official wheel on the package index: there is nothing to build, only something to prove."""

    project: str
    version: str


Source = PathSource | SdistSource | GitSource | WheelSource


@dataclass(frozen=True)
class Recipe:
    """One extension as its extension.yaml declares it.

    Attributes:
        name, version, summary: who it is.
        folder: absolute path of the folder that holds extension.yaml.
        source: where the source is.
        patches: absolute paths, applied in order with `patch -p1`.
        abi: rules in order; the first whose specifier takes the torch release decides.
        cuda: whether the wheel must hold device code (`required`) or may be CPU only (`optional`).
        env: environment of the build, added to the farm's own.
        build_requires: PEP 508 requirements installed before the build (torch, ninja, toolkit come anyway).
        requires: PEP 508 run-time requirements the wheel's METADATA must carry beyond its own (may be empty).
        assume_cuda: answer True to torch.cuda.is_available() while building.
        archs: GPU architectures, or empty for the matrix's.
        python: PEP 440 specifier of the Pythons it supports, or empty.
        imports: modules that must import from the installed wheel.
        companions: distributions whose import order is tested with it.
        libraries: library file stem to the dispatch keys it must register, e.g. {"_C": ("CPU",)}.
        memory_per_job: bytes one compile job may take at its peak.
        cibuildwheel_skip: parts of the source's own [tool.cibuildwheel] left aside (`test`), or `all`.

    """

    name: str
    version: str
    summary: str
    folder: Path
    source: Source
    patches: tuple[Path, ...]
    abi: tuple[AbiRule, ...]
    cuda: str
    env: dict[str, str]
    build_requires: tuple[str, ...]
    requires: tuple[str, ...]
    assume_cuda: bool
    archs: tuple[Arch, ...]
    python: str
    imports: tuple[str, ...]
    companions: tuple[str, ...]
    libraries: dict[str, tuple[str, ...]]
    memory_per_job: int
    cibuildwheel_skip: tuple[str, ...] = ()

    @property
    def cases(self) -> Path | None:
        """What the op gate runs: `cases.py` beside the recipe; it may import from `references/` there. None without."""
        path = self.folder / CASES
        return path if path.is_file() else None


@dataclass(frozen=True)
class Matrix:
    """matrix.yaml: the axes, the extensions and the settings of a farm.

    Attributes:
        path: the file it was read from.
        torch, cuda, python, archs, platforms: the axes, sorted. No `archs`: torch's own list of each cell.
        extensions: folders of the recipes, absolute.
        exclude: cells left out on purpose, each a partial selection with its reason.
        images: base images for cells, first match wins.
        torch_index: URL of PyTorch's own wheel index, `{variant}` stands for cu130 and the like.

    """

    path: Path
    torch: tuple[Torch, ...]
    cuda: tuple[Cuda, ...]
    python: tuple[Python, ...]
    archs: tuple[Arch, ...]
    platforms: tuple[Platform, ...]
    extensions: tuple[Path, ...]
    exclude: tuple[Exclude, ...]
    images: tuple[ImageRule, ...]
    torch_index: str


@dataclass(frozen=True)
class ImageRule:
    """An entry of `images:`: what stands in for the images the farm would choose.

    Attributes:
        cells: pattern of cell names (fnmatch).
        image: the base image to build in.
        pythons: the image whose /opt/python is copied, or empty for pypa's.
        runtime: the base image to run cells in, or empty for `image`.
        toolkit: the CUDA of the image's nvcc where it is declared; None: that of the cells.

    """

    cells: str
    image: str
    pythons: str = ""
    runtime: str = ""
    toolkit: Cuda | None = None


@dataclass(frozen=True)
class Exclude:
    """Cells left out on purpose: those that match every axis given, with the reason as data."""

    reason: str
    torch: str = ""  # release or series
    cuda: Cuda | None = None
    python: Python | None = None
    extension: str = ""


@dataclass(frozen=True)
class Select:
    """What the command line asks for; an empty axis means all of the matrix."""

    torch: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    extensions: tuple[str, ...] = field(default=())


def load_matrix(path: Path) -> Matrix:
    """Read matrix.yaml; the extensions' own files are read by `load_recipes`.

    Raises:
        UsageError: the first thing that is wrong, with its place; the hints tell the other things that are.

    """
    document = read_document(path)
    model = checked(document, MatrixModel)
    return Matrix(
        path=path,
        torch=tuple(sorted(set(model.torch))),
        cuda=tuple(sorted(set(model.cuda))),
        python=tuple(sorted(set(model.python))),
        archs=tuple(sorted(set(model.archs))),
        platforms=tuple(sorted(set(model.platforms))),
        extensions=_extension_folders(document, model.extensions),
        exclude=tuple(
            Exclude(
                reason=e.reason,
                torch=e.torch or "",
                cuda=e.cuda,
                python=e.python,
                extension=e.extension or "",
            )
            for e in model.exclude
        ),
        images=tuple(
            ImageRule(rule.cells, rule.image, rule.pythons or "", rule.runtime or "", rule.toolkit)
            for rule in model.images
        ),
        torch_index=model.torch_index,
    )


def load_recipe(folder: Path) -> Recipe:
    """Read the extension.yaml of a folder.

    Raises:
        UsageError: the first thing that is wrong, with its place; the hints tell the other things that are.

    """
    document = read_document(folder / RECIPE)
    model = checked(document, RecipeModel)
    home = folder.resolve()
    return Recipe(
        name=model.name,
        version=model.version,
        summary=model.summary,
        folder=home,
        source=_source(document, home, model.source),
        patches=tuple(_within(document, home, text, ("patches", i), file=True) for i, text in enumerate(model.patches)),
        abi=tuple(AbiRule(rule.abi, rule.torch) for rule in model.abi),
        cuda=model.cuda,
        env=dict(model.env),
        build_requires=tuple(model.build_requires),
        requires=tuple(model.requires),
        assume_cuda=model.assume_cuda,
        archs=tuple(sorted(set(model.archs))),
        python=model.python,
        imports=tuple(model.imports),
        companions=tuple(model.companions),
        libraries={stem: tuple(keys) for stem, keys in model.libraries.items()},
        memory_per_job=model.memory_per_job,
        cibuildwheel_skip=tuple(sorted(set(model.cibuildwheel_skip))),
    )


def load_recipes(matrix: Matrix) -> tuple[Recipe, ...]:
    """Read the recipe of every extension of a matrix, sorted by name.

    Raises:
        UsageError: as `load_recipe`; two extensions whose wheels share a name; an exclude of no extension.

    """
    recipes = sorted((load_recipe(folder) for folder in matrix.extensions), key=lambda r: (r.name, r.folder))
    homes: dict[str, Recipe] = {}
    for recipe in recipes:
        first = homes.setdefault(canonicalize_name(recipe.name), recipe)
        if first is not recipe:
            raise UsageError(
                f"two extensions are named {recipe.name}: {first.folder.name} and {recipe.folder.name}",
                where=str(matrix.path),
                hints=[f"give one another `name` in its {RECIPE}"],
            )
    names = [recipe.name for recipe in recipes]
    for i, exclude in enumerate(matrix.exclude):
        if exclude.extension and exclude.extension not in names:
            raise UsageError(
                f"`exclude[{i}].extension`: no extension is named {exclude.extension!r}"
                + nearest(exclude.extension, names),
                where=str(matrix.path),
            )
    return tuple(recipes)


def nearest(word: str, words: Sequence[str]) -> str:
    """`; did you mean `python`?` when one of the words is near, else nothing."""
    near = get_close_matches(word, words, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _extension_folders(document: Document, texts: Sequence[str]) -> tuple[Path, ...]:
    home = document.path.parent.resolve()
    folders: dict[Path, int] = {}
    for i, text in enumerate(texts):
        folder, key = (home / text).resolve(), ("extensions", i)
        if not (folder / RECIPE).is_file():
            lacks = f"there is no {RECIPE} in {text}" if folder.is_dir() else f"there is no folder {text}"
            beside = [
                str(p.parent.relative_to(home))
                for p in sorted(folder.parent.glob(f"*/{RECIPE}"))
                if p.is_relative_to(home)
            ]
            raise _fault(document, key, lacks + nearest(text, beside))
        if folder in folders:
            raise _fault(document, key, f"the folder {text} is listed twice")
        folders[folder] = i
    return tuple(folders)


def _source(document: Document, home: Path, model: SourceModel) -> Source:
    if model.sdist and model.version and model.sha256:
        return SdistSource(model.sdist, model.version, model.sha256)
    if model.git and model.revision:
        return GitSource(model.git, model.revision, model.subdirectory or "")
    if model.wheel and model.version:
        return WheelSource(model.wheel, model.version)
    return PathSource(_within(document, home, model.path or ".", ("source", "path"), file=False))


def _within(document: Document, home: Path, text: str, key: Key, *, file: bool) -> Path:
    """A path of the recipe that exists and, links followed, does not leave the recipe's folder."""
    path = (home / text).resolve()
    if not path.is_relative_to(home):
        raise _fault(document, key, f"{text!r} leaves the recipe's folder; copy what it names into {home.name}")
    if not (path.is_file() if file else path.is_dir()):
        raise _fault(document, key, f"there is no {'file' if file else 'folder'} {text!r} in {home.name}")
    return path


def _fault(document: Document, key: Key, sentence: str) -> UsageError:
    return UsageError(f"`{key_path(key)}`: {sentence}", where=document.where(key))
