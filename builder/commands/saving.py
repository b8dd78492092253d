"""`buildfarm store save` and `store check`: keep what a plan takes from the network, for machines without one."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.cli.options import SelectOptions, StoreOptions, architectures
from builder.commands.building.preflight import RunSettings, choose_executor
from builder.commands.folders import new_output, open_store
from builder.errors import BuildfarmError, Code, Exit, UsageError, mask_credentials, raise_problems
from builder.formats import digest_of, sha256_of
from builder.gate.amounts import counted, grouped, size_text
from builder.images.network import saved_index
from builder.images.saved import ARCHIVE, LIST, NAMESPACE, OWN, SIGNATURE, Image, Saved, keygen, save_images
from builder.log import print_data, print_line, print_warning
from builder.matrix.axes import Cell, Python
from builder.matrix.compat import Compat
from builder.matrix.config import MATRIX, GitSource, Recipe, SdistSource
from builder.matrix.load import read_plan
from builder.matrix.plan import Build
from builder.option import argument, option
from builder.store import Store, write_atomic, write_if_changed
from builder.untrusted import remove_tree
from builder.wheels.job import Executor, Resolver, build_digest
from builder.wheels.sources.git import checkout
from builder.wheels.sources.index import Location, download, fetch, locate_all
from builder.wheels.sources.prepare import fetch_sdist, source_digest
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.uv import find_uv, uv_variables

#: What a save that was killed leaves.
_UNFINISHED = ("files/.fetch-*", "images/.new.*", "pythons/*/.new-*", "store/sources/git/.new-*", "index/*/*/.index.*")


@dataclass(frozen=True, kw_only=True)
class SaveOptions(SelectOptions, StoreOptions):
    """The options of `buildfarm store save`."""

    folder: Path = argument("The folder. A later save adds to it.", "DIR")
    arch: list[str] | None = None
    matrix: Path = MATRIX
    executor: Literal["auto", "local", "docker"] = option("The executor, as for `buildfarm build`.", default="auto")
    minor_mismatch: bool = False
    sign: Path | None = option("Sign the list of the files with this private key of SSH.", "KEY")


def save(options: SaveOptions) -> None:
    """Keep all that the selected builds and cells take from the network in a folder, for `buildfarm build --from DIR`.

    Examples:
        buildfarm store save saved --torch 2.11 --cuda 13.0
        buildfarm store save saved --executor docker --sign ~/.ssh/id_ed25519
    """
    matrix, recipes, plan = read_plan(options.matrix, options.select, architectures(options.arch))
    store = open_store(options.store)
    environments = Environments(store, matrix.torch_index)
    settings = RunSettings(matrix, options.executor, options.minor_mismatch)
    executor = choose_executor(settings, plan.builds, environments)
    raise_problems(executor.problems(plan.builds, recipes))
    folder = options.folder.absolute()
    new_output(folder, "buildfarm store save")
    try:
        with store.lock(f"{folder}/saved", on_wait=lambda who: print_line(f"waiting for {who}")):
            for left in (path for pattern in _UNFINISHED for path in [*folder.glob(pattern)]):
                remove_tree(left) if left.is_dir() else left.unlink()
            saver = Saver(folder, Saved.read(folder) if (folder / LIST).exists() else Saved(), environments, executor)
            for build in plan.builds:
                saver.build(build, recipes[build.extension].of(build.torch, build.cuda))
            saver.write(options.sign)
    except OSError as error:  # an error of a write has no name: it says which disk is full
        raise OSError(error.errno, error.strerror, error.filename or str(folder)) from None
    files = saver.saved.files
    total, new = sum(size for _, size in files.values()), sum(files[name][1] for name in saver.new)
    print_data(f"{folder} has {counted(len(files), 'file')}, {size_text(total)}; {size_text(new)} of them are new.\n")
    print_data(f"On a machine without a network: `buildfarm build --from {folder}`\n")


@dataclass(frozen=True, kw_only=True)
class CheckSavedOptions:
    """The options of `buildfarm store check`."""

    folder: Path = argument("A folder that `buildfarm store save` wrote.", "DIR")


def check(options: CheckSavedOptions) -> Exit:
    """Compare each file of a saved folder with the list of the folder, and check the signature of the list.

    Examples:
        buildfarm store check saved
    """
    folder = options.folder.absolute()
    saved = Saved.read(folder)
    damaged = [f"{error}\n" for error in saved.damage(folder)]
    print_data("".join(damaged) or f"all {counted(len(saved.files), 'file')} are as listed\n")
    return Exit.FAILED if damaged else Exit.OK


@dataclass
class Saver:
    """Adds what builds need to a saved folder."""

    folder: Path
    saved: Saved
    environments: Environments
    executor: Executor
    new: set[str] = field(default_factory=set)  # the files that this save added
    notes: list[str] = field(default_factory=list)  # what is not saved
    _kept: dict[Location, Path] = field(default_factory=dict)

    def build(self, build: Build, recipe: Recipe) -> None:
        """Save what a build takes from the network, and the test of its wheel in each of its cells."""
        print_line(f"saving {build}")
        store, executor = self.environments.store, self.executor
        log = store.log("saved")
        toolchain = executor.prepare(build, recipe, log=log).toolchain
        record, resolver = executor.record(build, recipe), executor.resolver(build, toolchain.python)
        index = self.environments.torch_index(build.torch, build.cuda)
        # The record of an environment has versions only; the files are those of the recipe.
        urls = {canonicalize_name(one.name): str(one) for one in map(Requirement, recipe.build_requires) if one.url}
        packages = [urls.get(canonicalize_name(one.partition("==")[0]), one) for one in toolchain.packages]
        self._packages(packages, resolver, index, "--no-deps")
        others = [url for url in urls.values() if " @ http" not in url]  # repositories and files
        for one in (*toolchain.packages, *recipe.requires, *recipe.companions, *others):
            if "://" in one:
                self._note(f"{one} is not saved: the other machine can install it only if it reaches the URL")
        self._write(f"store/envs/{record.name}", mask_credentials(record.read_text()).encode())
        self._source(recipe, store)
        stored = store.take(build_digest(build, recipe, toolchain, source_digest(recipe)))
        if not stored:
            self._note(f"{build} is not built yet: of its wheel's requirements, only those of the recipe are saved")
        own = [str(stored.wheel)] if stored else list(recipe.requires)
        for cell in build.serves:
            try:
                self._cell(build, cell, own, recipe.companions)
            except BuildfarmError as error:
                self._note(f"{cell} is not saved: {error.sentence}")
        self._images(executor.images(build, log))

    def _cell(self, build: Build, cell: Cell, own: Sequence[str], companions: Sequence[str]) -> None:
        resolver = self.executor.resolver(build, cell.python)
        if self.executor.name == "local":
            self.python(cell.python)
        index = self.environments.torch_index(cell.torch, cell.cuda)
        wanted = [*Compat.load().cell_requirements(cell.torch, cell.cuda), *own]
        self._packages(wanted, resolver, index)
        for companion in [*companions, "numpy"]:  # as a test, which goes on without one that cannot be installed
            with suppress(BuildfarmError):
                self._packages([*wanted, companion], resolver, index)
                wanted.append(companion)
        cells = self.saved.cells.setdefault(self.executor.name, [])
        cells += [str(cell)] if str(cell) not in cells else []

    def _packages(self, requirements: Sequence[str], resolver: Resolver, index: Sequence[str], *options: str) -> None:
        """Save the files of these requirements, which are resolved as a build or a test resolves them."""
        listed = self.saved.packages.setdefault(saved_index(index), {})
        log, options = self.environments.store.log("saved"), (*resolver.options, *options)
        for found in locate_all(requirements, *options, index=index, python=resolver.python, log=log):
            if found not in self._kept:
                where = found.name.split("-")[0]
                kept = fetch(found, self.folder / "files", kind="package", where=where, who="the index lists")
                self._kept[found] = kept
                self._list(kept, kept.parent.name)
                if kept.suffix != ".whl":
                    self._note(f"{kept.name} is a source: the packages that its own build needs are not saved")
            listed[found.name] = self._kept[found].parent.name

    def _list(self, path: Path, sha256: str = "") -> None:
        """Add a file in the folder to the list."""
        name, entry = path.relative_to(self.folder).as_posix(), (sha256 or sha256_of(path), path.stat().st_size)
        if self.saved.files.get(name) != entry:
            self.saved.files[name] = entry
            self.new.add(name)

    def _write(self, name: str, content: bytes) -> None:
        write_if_changed(self.folder / name, content)
        self._list(self.folder / name)

    def _make(self, path: Path, write: Callable[[Path], object]) -> None:
        """Let a function write a file which the folder lacks, or which is not as listed."""
        with suppress(UsageError):
            self.saved.verified(self.folder, path.relative_to(self.folder).as_posix())
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as aside:
            write(Path(aside, path.name))
            Path(aside, path.name).rename(path)
        self._list(path)

    def python(self, python: Python) -> None:
        """Save the archive of a Python that uv would download, for a machine that lacks it."""
        options = ["--only-downloads", "--show-urls", "--output-format=json"]
        argv = [str(find_uv()), "python", "list", str(python), *options]
        answer = subprocess.run(argv, env=uv_variables(), capture_output=True, text=True, check=False)
        offered = [one["url"] for one in json.loads(answer.stdout or "[]") if one["implementation"] == "cpython"]
        try:
            release, name = unquote(offered[0]).split("/")[-2:]
            found, path = Location(offered[0], name, ""), self.folder / "pythons" / release / name
            self._make(path, lambda aside: download(found, aside, kind="Python", where=str(python)))
        except (BuildfarmError, IndexError) as error:
            self._note(f"the other machine must have Python {python}: {getattr(error, 'sentence', 'uv offers none')}")

    def _source(self, recipe: Recipe, store: Store) -> None:
        cache = store.root / "sources"
        if isinstance(recipe.source, SdistSource):
            path = fetch_sdist(recipe.source, cache=cache)
            self._write(f"store/{path.relative_to(store.root)}", path.read_bytes())
        elif isinstance(recipe.source, GitSource):
            tree = checkout(recipe.source, cache=cache)
            path = self.folder / f"store/{tree.relative_to(store.root)}{ARCHIVE}"
            self._make(path, lambda aside: shutil.make_archive(str(aside.with_suffix("")), "tar", tree))

    def _images(self, images: Mapping[str, str]) -> None:
        """Save images, given as `Executor.images` returns them."""
        saved = self.saved
        if images.items() <= {name: one.id for name, one in saved.images.items()}.items():
            with suppress(UsageError):  # a damaged archive is saved again
                for entry in (entry for name in images for entry in saved.archives[saved.images[name].archive]):
                    _ = entry.content and saved.verified(self.folder, entry.content)
                return
        # Base images are saved without their names, which may be those of other images on the other machine.
        names = [name if name.startswith(OWN) else found for name, found in images.items()]
        members = save_images(names, self.folder)
        archive = digest_of(sorted(images.values()))[:16]
        saved.archives[archive] = members
        saved.images |= {name: Image(found, archive) for name, found in images.items()}
        for name in filter(None, (member.content for member in members)):
            self._list(self.folder / name, name.rpartition("/")[2])

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
            print_warning(mask_credentials(sentence))

    def write(self, key: Path | None) -> None:
        """Write the pages of the indexes and the list, and sign the list."""
        for place, packages in self.saved.packages.items():
            pages = grouped((_project(name), (name, sha256)) for name, sha256 in packages.items())
            for project, files in pages.items():
                links = (
                    f'<a href="../../../files/{sha256}/{quote(name)}#sha256={sha256}">{html.escape(name)}</a><br>\n'
                    for name, sha256 in sorted(files)
                )
                self._write(f"{place}/{project}/index.html", f"<!DOCTYPE html>\n{''.join(links)}".encode())
        for path in sorted((self.environments.store.root / "inventories").glob("*.json.gz")):
            self._write(f"store/inventories/{path.name}", path.read_bytes())
        (self.folder / SIGNATURE).unlink(missing_ok=True)  # it was of the earlier list
        write_atomic(self.folder / LIST, self.saved.to_json())
        if key:
            done = keygen("sign", "-q", "-f", key.expanduser(), "-n", NAMESPACE, self.folder / LIST)
            if done.returncode:
                why = done.stderr.strip().decode(errors="replace") or f"ssh-keygen ended with status {done.returncode}"
                raise UsageError(f"the list cannot be signed: {why}", Code.PATH_NOT_USABLE, where=f"--sign {key}")


def _project(file: str) -> str:
    """The project of a wheel or of a source distribution."""
    return canonicalize_name(file.partition("-")[0] if file.endswith(".whl") else file.rpartition("-")[0])
