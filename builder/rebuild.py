"""The story of `rebuild`: a wheel's own record, the same build again in a scratch place, and where the two differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import FarmError, MissingToolError, UsageError
from builder.farm import Options, choose_executor, open_store, with_base
from builder.log import Progress, say
from builder.matrix.config import Matrix, Recipe, load_matrix, load_recipes
from builder.matrix.plan import Plan
from builder.preflight import preflight
from builder.proofs.difference import Difference, differences
from builder.publish.statement import farm_code
from builder.store import Store, write_whole
from builder.wheels.build import Executor, Job, Toolchain, code_version
from builder.wheels.environment import Environments
from builder.wheels.make import make_wheel
from builder.wheels.place import clear_abandoned
from builder.wheels.record import Record, read_record
from builder.wheels.source import source_digest

#: The farm's own scripts: what is another there is the farm's code, which may still make the same wheel.
_OWN = frozenset({"scripts"})

#: What to do about a part of the toolchain that is another here; for the rest a release of a Python package decides.
_CURES = {
    "base": "`images:` in matrix.yaml, or `--image`, names the base image",
    "base digest": "pull the base image that had this digest; buildfarm.lock of that time pins it",
    "base id": "make the base image that had this id, or pull it by the digest that buildfarm.lock of that time pins",
    "c++": "set CC and CXX to such a compiler",
    "cc": "set CC and CXX to such a compiler",
    "image": "the Dockerfile that the farm renders, or a base image, is another; the farm's code of that time made it",
    "nvcc": "CUDA_HOME names a toolkit",
    "python": "install that very patch release of Python (`uv python install`)",
    "stands in for": "CUDA_HOME names a toolkit",
    "zlib": "run buildfarm under a Python whose zlib is this one",
}


@dataclass(frozen=True)
class RebuildOptions:
    """What a person asked of one run.

    Attributes:
        wheel: what to make again.
        matrix: the declaration whose recipe of that name gives the source.
        image: a base image in place of the matrix's, as for `build`.
        jobs: compilers at once, or None.
        store: its root, or None for the usual one.
        out: where the wheel that was made again goes, or None.

    """

    wheel: Path
    matrix: Path = Path("matrix.yaml")
    image: str | None = None
    jobs: int | None = None
    store: Path | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Rebuilt:
    """How it went.

    Attributes:
        wheel: the wheel's file name.
        sha256: of the wheel that was there, hex.
        again: of the wheel that was made, hex.
        differences: where the second differs from the first; empty when they are equal bit for bit.

    """

    wheel: str
    sha256: str
    again: str
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether both are the same, bit for bit."""
        return self.sha256 == self.again and not self.differences


def run_rebuild(options: RebuildOptions) -> Rebuilt:
    """Build a wheel again from what it says of itself and compare; the wheel and the store's builds stay as they are.

    Raises:
        UsageError: the wheel has no record, or the matrix no recipe for it.
        MissingToolError: the source, the packages or a part of the toolchain is not the same here, or not to be had.
        BuildError: it was built before, and now it fails.

    """
    record = read_record(options.wheel)
    if options.out and options.out.resolve() == options.wheel.resolve().parent:
        raise UsageError("the wheel itself would be overwritten", where="--out", hints=["name another folder"])
    matrix = with_base(load_matrix(options.matrix), options.image)
    recipe = _recipe(record, matrix)
    store = open_store(options.store)
    store.clear_abandoned()
    clear_abandoned()
    cache = store.root / "sources"
    _same_source(record, recipe, cache)
    _say_farm(options.wheel)
    executor = _executor(options, record, matrix, recipe, store)
    share = preflight([record.build], {recipe.name: recipe}, executor, store, options.jobs)
    name = f"rebuild-{record.build}"
    log, progress = store.log(name), Progress()
    log.write_bytes(b"")
    sha256 = _sha256(options.wheel)
    with progress.shown(), store.work(f"rebuild-{sha256[:16]}") as work:
        progress.start(name, log)
        try:
            toolchain = executor.toolchain(record.build, recipe, log=log)
            _same_toolchain(record.toolchain, toolchain)
            mark = store.mark(work.name)
            # Objects of the wheel's own build would make it equal to itself.
            job = Job(
                record.build, recipe, toolchain, work / "src", work, log, share.jobs, work.name, mark, reuse=False
            )
            wheel, _ = make_wheel(
                job, executor, lambda text: progress.stage(name, text), cache=cache, stand_in=record.stand_in
            )
        except FarmError as error:
            progress.finish(name, f"failed: {error}")
            raise
        progress.finish(name, "built")
        found = differences(options.wheel, wheel)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            write_whole(options.out.absolute() / wheel.name, wheel.read_bytes())
        return Rebuilt(options.wheel.name, sha256, _sha256(wheel), tuple(found))


def rebuild_text(rebuilt: Rebuilt) -> str:
    """The answer for a person: `equal, sha256 …`, or each place that differs on its own line."""
    if rebuilt.equal:
        return f"equal, sha256 {rebuilt.sha256}\n"
    lines = [
        f"not equal: {len(rebuilt.differences)} differences",
        f"  {rebuilt.sha256}  {rebuilt.wheel}",
        f"  {rebuilt.again}  made again",
        *(f"  {difference}" for difference in rebuilt.differences),
    ]
    return "\n".join(lines) + "\n"


def rebuild_json(rebuilt: Rebuilt) -> str:
    """The same for programs."""
    data = {
        "wheel": rebuilt.wheel,
        "sha256": rebuilt.sha256,
        "again": rebuilt.again,
        "equal": rebuilt.equal,
        "differences": [
            {"member": each.member, "section": each.section, "what": each.what} for each in rebuilt.differences
        ],
    }
    return json.dumps(data, indent=1) + "\n"


def _recipe(record: Record, matrix: Matrix) -> Recipe:
    """The recipe of that name."""
    name = record.build.extension
    recipe = next((recipe for recipe in load_recipes(matrix) if recipe.name == name), None)
    if recipe is None:
        raise UsageError(
            f"has no extension {name!r}, whose source the wheel was made of",
            where=str(matrix.path),
            hints=["`--matrix FILE` names the declaration that has it"],
        )
    return recipe


def _same_source(record: Record, recipe: Recipe, cache: Path) -> None:
    """Raises MissingToolError when the source here, or what the recipe tells the build, is another than then."""
    now = Record.of(record.build, recipe, record.toolchain, source_digest(recipe, cache=cache))
    other = [f"`{key}`" for key in now.settings if now.settings[key] != record.settings.get(key)]
    if recipe.version != record.build.version:
        other.insert(0, "`version`")
    hints = [
        f"{key} was {json.dumps(value)}" for key, value in record.settings.items() if now.settings.get(key) != value
    ]
    if now.source["digest"] != record.source["digest"]:
        other.insert(0, "source")
        source = record.source
        if source["kind"] == "sdist":
            what = f"{source['project']} {source['version']}, sha256 {source['sha256']}"
        elif source["kind"] == "git":
            what = f"{source['url']} at {source['revision']}"
        else:
            what = f"a tree whose digest is {source['digest']}"
        hints.append(f"the source was {what}")
        hints += [f"with the patch {patch['name']}, sha256 {patch['sha256']}" for patch in source["patches"]]
    if other:
        raise MissingToolError(
            f"the recipe is not the one the wheel was made of: {', '.join(other)}",
            where=str(recipe.folder),
            hints=["check out the state of that time, or name its declaration with `--matrix`", *hints],
        )


def _same_toolchain(there: Toolchain, here: Toolchain) -> None:
    """Raises MissingToolError with every part that is another here."""
    old, new = dict(there.parts), dict(here.parts)
    if there.python != here.python:
        old["python"], new["python"] = str(there.python), str(here.python)
    # Pinned or not since then, an image is the same by its id.
    aside = _OWN if {"base digest"} <= old.keys() & new.keys() else _OWN | {"base digest"}
    other = [part for part in sorted(old.keys() | new.keys()) if old.get(part) != new.get(part) and part not in aside]
    if other:
        said = "; ".join(f"{part}: {_short(old, new, part)}" for part in other)
        hints = dict.fromkeys(_cure(part, old.get(part)) for part in other)
        raise MissingToolError(f"this is not the toolchain that made the wheel: {said}", hints=list(hints))


def _cure(part: str, then: str | None) -> str:
    if part in _CURES:
        return _CURES[part]
    return f"`pip install '{part}=={then}'` beside buildfarm" if then else f"the wheel was made without {part}"


def _short(old: dict[str, str], new: dict[str, str], part: str) -> str:
    """`g++ 12.2.0 then, g++ 13.2.0 here`; of packages only those that differ."""
    then, here = old.get(part, "none"), new.get(part, "none")
    if part == "packages":
        left, right = set(then.split()), set(here.split())
        then, here = " ".join(sorted(left - right)) or "fewer", " ".join(sorted(right - left)) or "fewer"
    return f"{then} then, {here} here"


def _say_farm(wheel: Path) -> None:
    """Whether the farm's own code is the same: it need not be for an equal wheel."""
    then = farm_code(wheel)
    if not then:
        say("the farm's code that made it is not known: no statement lies beside the wheel")
    elif then != code_version():
        say("the farm's code is another than the one that made it; the wheel may be equal all the same")


def _executor(options: RebuildOptions, record: Record, matrix: Matrix, recipe: Recipe, store: Store) -> Executor:
    wanted = Options(
        matrix=options.matrix,
        executor=record.toolchain.executor,
        stand_in=record.stand_in,
        jobs=options.jobs,
        store=options.store,
    )
    packages: Sequence[str] = record.toolchain.part("packages").split()
    return choose_executor(
        wanted,
        matrix,
        Plan((record.build,), ()),
        {recipe.name: recipe},
        store,
        Environments(store, matrix.torch_index),
        packages,
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
