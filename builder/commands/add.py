"""`buildfarm add`: pin a source, inspect it, write its extension.yaml, and add it to matrix.yaml."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.utils import canonicalize_name
from rich.markup import escape

from builder.cli.options import SOURCE, CellOptions, architectures
from builder.commands.axes import new_axes, reads_unknown
from builder.commands.folders import open_store
from builder.errors import BuildfarmError, Code, UsageError
from builder.formats import digest_of
from builder.log import print_data, print_line, print_warning
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import MATRIX, RECIPE, Matrix, PathSource, Recipe, Selection
from builder.matrix.load import load_matrix, load_recipe, load_recipes, recipe_of
from builder.matrix.plan import make_plan
from builder.matrix.yaml_document import parse_document
from builder.option import argument
from builder.publish.terminal import to_text
from builder.recipes.fetch import PinnedSource, parse_reference, pin, unpack_source
from builder.recipes.inspection.draft_recipe import inspect_source
from builder.recipes.inspection.metadata import completed
from builder.recipes.project_files import Draft, add_extension, axes_text, create_matrix
from builder.store import Store, write_atomic
from builder.wheels.job import CompileJob
from builder.wheels.local import LocalExecutor
from builder.wheels.sources.prepare import prepare_source
from builder.wheels.toolchain.environments import Environments


@dataclass(frozen=True, kw_only=True)
class AddOptions(CellOptions):
    """The options of `buildfarm add`."""

    arch: list[str] | None = None
    source: str = argument(SOURCE, "SOURCE")
    matrix: Path = MATRIX
    store: Path | None = None


@dataclass(frozen=True)
class Added:
    """What `add` did."""

    recipe: Recipe  # the recipe, as `build` reads it
    pinned: PinnedSource  # the source
    matrix: Path  # the file matrix.yaml
    axes: Matrix | None  # the versions in that file if `add` created it, else None
    draft: Draft | None  # what the inspection found, or None if there was a recipe already
    listed: bool = False  # whether matrix.yaml had that recipe already


@reads_unknown
def add(options: AddOptions) -> None:
    """Write a recipe for a source and add it to matrix.yaml.

    Runs no code of the source if its files state name and version. Otherwise it asks the build backend for them.

    A new matrix.yaml lists what --torch, --cuda, --python and --arch name. Otherwise it lists the newest torch that
    fits, the CUDA of its wheel on the package index, and a Python that the source supports, and no `archs`.

    Examples:
        buildfarm add torch-scatter==2.1.2
        buildfarm add https://github.com/rusty1s/pytorch_cluster@1.6.3 --torch 2.11 --cuda 13.0
        buildfarm add ./my_extension
    """
    given = {"--torch": options.torch, "--cuda": options.cuda, "--python": options.python, "--arch": options.arch}
    if options.matrix.exists() and (ignored := [name for name, values in given.items() if values]):
        print_warning(f"without effect, because {options.matrix} exists: {and_list(ignored)}; edit this file")
    added = run_add(options)
    print_data(added_text(added) + next_steps(added))


def run_add(options: AddOptions) -> Added:
    """Add a source to the project of a matrix.yaml.

    Raises UsageError if the source cannot be built or the project has a different extension of this name, and
    MissingToolError without network or git.
    """
    known = load_recipes(load_matrix(options.matrix)) if options.matrix.exists() else ()
    # The name of an extension of the matrix, without a version; a folder of this name comes first.
    same = None if Path(options.source).is_dir() else _named(options.source, known)
    pinned = PinnedSource(same.source, options.source, same.name) if same else pin(parse_reference(options.source))
    if same := same or next((recipe for recipe in known if recipe.source == pinned.source), None):
        return Added(same, pinned, options.matrix, axes=None, draft=None, listed=True)
    # Before anything is written: it may raise.
    archs = architectures(options.arch)
    axes = None if options.matrix.exists() else new_axes(options.select, archs)
    home = options.matrix.absolute().parent.resolve()  # its links may lead elsewhere, and the entry has `..`
    if isinstance(pinned.source, PathSource) and (pinned.source.path / RECIPE).is_file():
        folder, draft = pinned.source.path, None
        recipe = load_recipe(folder)
        axes = axes and new_axes(options.select, archs, recipe.python)
        _refuse_taken(recipe.name, None, known, options)
    else:
        with _unpacked(pinned, open_store(options.store)) as tree:
            draft = inspect_source(pinned, tree)
            axes = axes and new_axes(options.select, archs, draft.python)
            if draft.unknown:
                draft = _ask_backend(draft, pinned, tree, axes, options)
        folder = pinned.source.path if isinstance(pinned.source, PathSource) else home / "extensions" / draft.name
        _refuse_taken(draft.name, folder, known, options)
        text = draft.text(f"buildfarm add {options.source}")
        recipe = recipe_of(parse_document(text, folder / RECIPE), folder.resolve())
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / RECIPE, text.encode())
    entry = Path(os.path.relpath(folder, home)).as_posix()
    if axes:
        create_matrix(options.matrix, entry, axes)
    else:
        add_extension(options.matrix, entry)
    return Added(recipe, pinned, options.matrix, axes, draft)


def _named(name: str, known: tuple[Recipe, ...]) -> Recipe | None:
    return next((each for each in known if canonicalize_name(each.name) == canonicalize_name(name)), None)


@contextmanager
def _unpacked(pinned: PinnedSource, store: Store) -> Iterator[Path]:
    """Yield a folder with the source; a folder of the user is inspected where it is."""
    if isinstance(pinned.source, PathSource):
        yield pinned.source.path
        return
    print_line(f"inspecting {pinned.label}")
    with store.work(f"add-{digest_of(str(pinned.source))[:12]}") as scratch:
        tree = scratch / "source"
        tree.mkdir()
        yield unpack_source(pinned, tree, cache=store.root / "sources")


def _ask_backend(draft: Draft, pinned: PinnedSource, tree: Path, axes: Matrix | None, options: AddOptions) -> Draft:
    """The draft with what the build backend states in METADATA, for files that do not state name and version.

    This runs code of the source, as the build does, in the environment of the first build. If there can be no such
    environment, or the backend says nothing, the draft stays as it is.
    """
    print_line(f"asking the build backend for the {and_list(draft.unknown)}, in the environment of the build")
    store = open_store(options.store)
    matrix = axes or load_matrix(options.matrix)
    home = pinned.source.path if isinstance(pinned.source, PathSource) else tree
    try:
        with store.work(f"ask-{digest_of(str(pinned.source))[:12]}") as work:
            recipe = recipe_of(parse_document(draft.text(""), work / RECIPE), home)
            build = make_plan(matrix, (recipe,), Selection(), Compat.load()).builds[0]
            log = store.log(f"add-{draft.name}", options.matrix.parent)
            prepared = LocalExecutor(Environments(store, matrix.torch_index)).prepare(build, recipe, log=log)
            job = CompileJob(build, recipe, prepared.toolchain, work, log, jobs=1, owner=store.owner(work.name))
            job.tree.mkdir()
            prepare_source(recipe, job.tree, cache=store.root / "sources")
            metadata = prepared.metadata(job, lambda _: None)
    except (BuildfarmError, IndexError) as error:  # IndexError: the plan has no build
        print_warning(f"the build backend cannot be asked here: {error or 'there is no cell to build for'}")
        return draft
    if not metadata:
        print_warning(f"the build backend did not answer; the full output is in {log}")
        return draft
    return inspect_source(pinned, tree, partial(completed, text=metadata, torch=build.torch, cuda=build.cuda))


def _refuse_taken(name: str, folder: Path | None, known: tuple[Recipe, ...], options: AddOptions) -> None:
    """Raise UsageError if an extension has this name, or if `folder` has a recipe."""
    taken = _named(name, known)
    place = taken.folder if taken else folder
    if place and (place / RECIPE).exists():
        raise UsageError(
            f"a recipe for {name}{f' {taken.version}' if taken else ''} already exists",
            Code.ALREADY_EXISTS,
            where=str(place / RECIPE),
            hints=[
                *([f"`buildfarm build --ext {taken.name}` builds this extension"] if taken else []),
                f"to build a different source, change `source` and `version` in {place / RECIPE}, or delete this file"
                f" and its entry in {options.matrix}",
            ],
        )


def added_text(added: Added) -> str:
    """The findings, one line each with the questions last, and the written files."""
    file = escape(_short(added.recipe.folder / RECIPE))
    if added.listed:
        return to_text(f"{file} is the recipe of {escape(added.recipe.name)} already; nothing was changed")
    named = f"[bold]{escape(added.recipe.name)} {added.recipe.stated_version}[/]"
    lines = [f"{named} from {escape(added.pinned.label)}"]
    for sign, asked in (("  ", False), ("[yellow]? [/]", True)):
        found = [each for each in added.draft.findings if each.question is asked] if added.draft else []
        lines += [f"{sign}{escape(each.found)} → {escape(each.consequence)}" for each in found]
    lines.append(f"wrote {file}" if added.draft else f"used {file} unchanged")
    matrix = escape(_short(added.matrix))
    extended = (
        f"wrote {matrix}: {axes_text(added.axes)}" if added.axes else f"added the folder to `extensions` in {matrix}"
    )
    return to_text(*lines, extended)


def next_steps(added: Added) -> str:
    """The commands that the user may want to run after `add`."""
    option = "" if added.matrix == MATRIX else f" --matrix {shlex.quote(str(added.matrix))}"
    build = f"  buildfarm build --ext {added.recipe.name}{option}"
    cases = f"  buildfarm cases --ext {added.recipe.name}{option}"
    lines = ["To build the extension:", build]
    archs = added.axes.archs if added.axes else added.matrix.exists() and load_matrix(added.matrix).archs
    if not archs and added.recipe.cuda == "required":
        lines = ["To build the extension, for all GPU architectures of torch or for one:", build, f"{build} --arch 9.0"]
    return to_text("", *lines, "", "After the build, to draft a cases.py with a case for each op:", cases)


def _short(path: Path) -> str:
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)
