"""The wheels that a command takes: files, folders, URLs, NAME==VERSION; where they are tested with recipe and cells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.commands.folders import read_dist
from builder.errors import BuildfarmError, Code, NothingSelectedError, UsageError, mask_credentials
from builder.log import print_line, print_warning
from builder.matrix.axes import Cell, Python
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import Matrix, PathSource, Recipe, Selection, WheelSource
from builder.matrix.plan import selected_recipes, served_cells
from builder.proofs.claimed_cells import CellClaims
from builder.proofs.static.contents import startup_remarks, stray_names
from builder.store import local_path
from builder.untrusted import split_url
from builder.wheelfile.compatibility import is_compatible
from builder.wheelfile.facts import WheelFacts, read_facts

_SDIST = re.compile(r"\.(?:tar(?:\.\w+)?|tgz|zip)$")


@dataclass(frozen=True)
class ForeignWheel:
    """A wheel that others built, and where it came from: a URL without secrets, or `a file`."""

    path: Path
    origin: str


def foreign_wheels(what: Sequence[str], cache: Path, index: str, pythons: Sequence[Python]) -> list[ForeignWheel]:
    """The wheels of the command line, each once. Those of URLs and NAME==VERSION are downloaded into `cache`.

    `index` is the URL of a package index to ask before the default one, or empty. Wheels of NAME==VERSION are
    downloaded for `pythons`; empty: for every Python with a wheel.

    Raises UsageError for an argument that names no wheel, MissingToolError when a download fails.
    """
    return list(dict.fromkeys(wheel for text in what for wheel in _named(text, cache, index, pythons)))


def names_project(text: str) -> bool:
    """Whether an argument is NAME==VERSION, and no file, folder or URL."""
    return not (text.endswith(".whl") or "/" in text or Path(text).is_dir())


def _named(text: str, cache: Path, index: str, pythons: Sequence[Python]) -> Iterator[ForeignWheel]:
    """The wheels of one argument; of NAME==VERSION one for each Python, and one wheel may serve several."""
    from builder.wheels.sources.index import (  # noqa: PLC0415 - takes long
        NoFittingWheelError,
        download_wheel,
        exact_version,
        fetch_wheel,
    )

    if _SDIST.search(split_url(text).path):
        sentence = "this is a source distribution, and this command builds nothing"
        hint = "`buildfarm build SOURCE` builds a wheel of a source distribution"
        raise UsageError(sentence, Code.NOT_A_WHEEL, where=text, hints=[hint])
    path = local_path(text) or Path(text)
    if re.match(r"https?://", text):
        yield _fetched(*download_wheel(text, cache=cache))
    elif path.is_dir():
        wheels = sorted(path.glob("*.whl"))
        if not wheels:
            hint = "the wheels of an index in a folder are files/*/*/*.whl"
            raise UsageError("this folder contains no wheel", Code.NO_WHEEL, where=text, hints=[hint])
        yield from (ForeignWheel(wheel, "a file") for wheel in wheels)
    elif not names_project(text):
        if not path.is_file():
            raise UsageError("there is no such file", Code.NO_SUCH_FILE, where=text)
        yield ForeignWheel(path, "a file")
    else:
        project, version = exact_version(text)
        lacking: dict[Python, BuildfarmError] = {}
        wanted = pythons or Compat.load().pythons
        for python in wanted:
            try:
                yield _fetched(*fetch_wheel(project, version, python, cache=cache, index=[index] if index else []))
            except (NoFittingWheelError, UsageError) as error:  # UsageError: Requires-Python excludes this Python
                lacking[python] = error
        if len(lacking) == len(wanted):
            raise lacking[max(lacking)]
        if lacking:
            print_line(f"the index has no wheel of {project} {version} for Python {and_list(lacking)}")


def _fetched(wheel: Path, url: str) -> ForeignWheel:
    """A downloaded wheel with its URL, without what may be secret: user, password, query, and a token in the path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return ForeignWheel(wheel, "a file")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    return ForeignWheel(wheel, mask_credentials(bare.geturl()))


@dataclass(frozen=True)
class SmokeTarget:
    """One wheel to test."""

    wheel: Path
    #: Of the file, hex.
    sha256: str
    #: Its cases are run.
    recipe: Recipe
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class TargetFinder:
    """Finds wheels to test, with their recipes and cells."""

    matrix: Matrix
    recipes: Sequence[Recipe]
    #: Limits cells and, where no wheel is named, extensions.
    select: Selection
    cache: Path
    #: URL of a package index to ask before the default one, or empty.
    index: str = ""

    def find(self, wheels: Sequence[str], dist: Path) -> list[SmokeTarget]:
        """The named wheels, or by default the wheels of `dist` and the official wheels that recipes name.

        Raises UsageError for an argument that names no wheel, NothingSelectedError when no wheel fits a selected cell.
        """
        targets = [target for text in wheels for target in self._named(text)] if wheels else self._default(dist)
        fitting = [target for target in targets if target.cells]
        if not fitting:
            raise NothingSelectedError(
                "there is no wheel for any of the selected cells",
                Code.NO_WHEEL,
                where="" if wheels else str(dist),
                hints=[
                    "select other cells with --torch, --cuda and --python"
                    if wheels
                    else "name a wheel, or run `buildfarm build` with the same selection first"
                ],
            )
        return fitting

    def _default(self, dist: Path) -> list[SmokeTarget]:
        chosen = selected_recipes(self.recipes, self.select) if self.select.extensions else ()
        targets = [
            self._target(wheel)
            for wheel in read_dist(dist)
            if (not chosen or any(recipe.makes(wheel.name.split("-")[0]) for recipe in chosen))
            and self._is_current(wheel)
        ]
        for recipe, _ in served_cells(self.matrix, self.recipes, self.select, Compat.load()):
            if isinstance(recipe.source, WheelSource):
                targets += self._named(f"{recipe.source.project}=={recipe.source.version}", recipe)
        return targets

    def _is_current(self, wheel: Path) -> bool:
        """Whether a wheel of `dist` has the version of its recipe; the cases of a recipe are for this version."""
        try:
            project, version, _, _ = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename:
            return True  # reading the wheel explains what is wrong
        recipe = next((recipe for recipe in self.recipes if recipe.makes(project)), None)
        if recipe is None or recipe.is_version(version):
            return True
        print_warning(
            f"{wheel.name} is not tested: the recipe is for version {recipe.stated_version}; to test the wheel, name"
            " its file"
        )
        return False

    def _named(self, text: str, recipe: Recipe | None = None) -> list[SmokeTarget]:
        """The wheels of one argument; of NAME==VERSION those for the Pythons of the selected cells."""
        pythons: list[Python] = []
        if names_project(text):
            from builder.wheels.sources.index import exact_version  # noqa: PLC0415 - takes long

            name, _ = exact_version(text)
            recipe = recipe or recipe_for(name, self.recipes, self.select)
            pythons = sorted({cell.python for cell in self.selected_cells(recipe or empty_recipe(name))})
            if not pythons:
                return []
        found = foreign_wheels([text], self.cache, self.index, pythons)
        return [self._target(wheel.path, recipe) for wheel in found]

    def _target(self, wheel: Path, recipe: Recipe | None = None) -> SmokeTarget:
        """A wheel to test. Prints, before it is installed, which of its code runs whenever Python starts."""
        facts = read_facts(wheel)
        for sentence in startup_remarks(facts):
            print_warning(f"{facts.filename}: {sentence}")
        recipe = recipe or self._recipe_of(facts)
        cells = _fitting(facts, self.selected_cells(recipe))
        return SmokeTarget(wheel, facts.sha256, with_imports(recipe, facts), cells)

    def selected_cells(self, recipe: Recipe) -> list[Cell]:
        """The selected cells that the recipe supports."""
        select = Selection(self.select.torch, self.select.cuda, self.select.python)
        return [cell for _, cells in served_cells(self.matrix, [recipe], select, Compat.load()) for cell in cells]

    def _recipe_of(self, facts: WheelFacts) -> Recipe:
        """The recipe whose cases run on a wheel of this name."""
        name = facts.name
        recipe = recipe_for(name, self.recipes, self.select)
        if recipe is None:
            from builder.wheels.sources.index import how_to_call_ops  # noqa: PLC0415 - takes long

            cure = how_to_call_ops(name, facts.version.partition("+")[0])
            if self.recipes:
                cure = f"pass --ext NAME to run the cases of the recipe NAME; {cure}"
            why = f"{self.matrix.path} has no recipe for {name}" if self.recipes else f"there is no recipe for {name}"
            print_warning(f"{why}, so smoke imports the wheel and calls no op; {cure}")
        return recipe or empty_recipe(name)


def _fitting(facts: WheelFacts, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells that the wheel is for; if there is none, print why not."""
    claims, fitting, reasons = CellClaims(facts), [], []
    for cell in cells:
        if why := claims.why_not(cell):
            reasons.append(f"{why.reason}, not {why.axis} {why.value}")
        elif not is_compatible(facts.filename, cell.python, any_glibc=True):
            reasons.append(f"its file name is for another platform than {cell.platform}")
        else:
            fitting.append(cell)
    if not fitting:
        reason = "; ".join(dict.fromkeys(reasons)) or "the recipe supports none of them"
        print_warning(f"{facts.filename} fits none of the selected cells: {reason}")
    return tuple(fitting)


def recipe_for(name: str, recipes: Sequence[Recipe], select: Selection) -> Recipe | None:
    """The recipe for a wheel of this name: with `--ext` the selected recipe, otherwise the recipe of this name.

    Raises UsageError for an extension without a recipe, and for several of which none has this name.
    """
    selected = selected_recipes(recipes, select)
    if len(select.extensions) == 1:
        return selected[0]
    for recipe in selected:
        if recipe.makes(name):
            return recipe
    if select.extensions:
        raise UsageError(
            f"the wheel is of {name}, but no --ext names {name}",
            Code.COMMAND_LINE_INVALID,
            where=" ".join(f"--ext {each}" for each in select.extensions),
            hints=["pass --ext exactly once; the cases of this extension then run on every wheel"],
        )
    return None


def empty_recipe(name: str) -> Recipe:
    """A recipe without cases and without imports, which `with_imports` reads from the wheel."""
    nowhere = Path("/nonexistent")
    return Recipe(name=name, version="0", folder=nowhere, source=PathSource(nowhere), cuda="optional")


def with_imports(recipe: Recipe, facts: WheelFacts) -> Recipe:
    """The recipe; where it names no imports, they are the top-level packages and modules of the wheel.

    Without a package they are the modules, and torch is imported before them. Raises UsageError for a wheel with
    neither.
    """
    if recipe.imports:
        return recipe
    packages = {name.split("/")[0] for name in facts.files if name.endswith("/__init__.py") and name.count("/") == 1}
    modules = {name.split(".")[0] for name in facts.files if "/" not in name and name.endswith((".py", ".so"))}
    if not packages | modules:
        sentence = "the wheel contains no Python package to import"
        hint = "write a recipe with `imports`"
        raise UsageError(sentence, Code.NOT_A_WHEEL, where=facts.filename, hints=[hint])
    if packages:
        # Stray packages, such as `tests`, are no part of the extension.
        return replace(recipe, imports=tuple(sorted(packages.difference(stray_names(facts)) or packages)))
    return replace(recipe, imports=tuple(sorted(modules)), needs_first=("torch",))
