"""`buildfarm resolve`: the wheel of an index for a machine, how to install it, and why other wheels do not fit."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from builder.commands.axes import current_environment, with_selected
from builder.errors import Code, Exit, NothingSelectedError, UsageError
from builder.log import print_line, print_result
from builder.matrix.axes import Arch, Cell, Cuda, Platform
from builder.matrix.compat import Compat
from builder.matrix.config import MATRIX, PathSource, Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.local_version import current_form
from builder.matrix.plan import additions, make_plan
from builder.option import argument, option
from builder.proofs.claimed_cells import StatedTorch
from builder.proofs.static.metadata import requires_admit
from builder.publish.index.install import commands_from_index
from builder.publish.index.levels import Level
from builder.publish.index.pages import Entry
from builder.publish.index.reader import IndexReader
from builder.resources import own_gpus
from builder.wheelfile.compatibility import codes_for, glibc_of

#: Wheels that do not fit to print; `--json` has all.
_MOST = 20
#: What to do before a wheel is built, whose version is published. A recipe alone does not change that of a source.
_RAISE = "raise its version in the recipe and in the source"
_NOT_OURS = "choose another index for it, or change its version by a patch (`patches`) and in the recipe"


@dataclass(frozen=True, kw_only=True)
class ResolveOptions:
    """The options of `buildfarm resolve`."""

    name: str = argument("The name of the extension.", "NAME")
    index: str = option("The index: its folder, or its URL without `simple/`.", "DIR|URL", default=...)
    torch: str = option("PyTorch release or series.", "VERSION", default="")
    cuda: str = option("CUDA of this torch: 13.0 or cu130.", "VERSION", default="")
    python: str = option("Python version.", "VERSION", default="")
    glibc: str = option("glibc of the machine, such as 2.31.", "VERSION", default="")
    gpu: str = option("Name or compute capability of the GPU: 'RTX 4090' or 8.9.", "GPU", default="")
    as_json: bool = False


def resolve(options: ResolveOptions) -> Exit:
    """Find the wheel of an index for a machine, and print the commands that install it.

    Of the wheels that fit, a stable version comes before a pre-release, and a wheel that was tested with this torch,
    CUDA and Python before one that was not. Then the newest version counts, then the level that its proofs reach, then
    the build number, then the newest manylinux tag. A newer version that is passed over is named.

    If the index has another file that fits the same version, the commands name the URL of the wheel: installers differ
    in which file they take.

    Without --torch, --cuda and --python, the machine is this one with the current environment. If no wheel fits, the
    reason is printed for each wheel, and the exit code is 1.

    An index that needs a token gets the one in the environment variable BUILDFARM_TOKEN, or in the netrc file.

    Examples:
        buildfarm resolve my_ext --index index
        buildfarm resolve my_ext --index URL --torch 2.6 --cuda 12.4 --python 3.11 --glibc 2.31 --gpu "RTX 4090"
    """
    name, index, compat = options.name, options.index, Compat.load()
    complete = bool(options.torch and options.cuda and options.python)  # it may be another machine
    own_glibc = "" if complete else (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").rpartition(" ")[2]
    glibc = _glibc(options.glibc or own_glibc)
    gpu = compat.gpu_named(options.gpu) if options.gpu else None if complete else min(own_gpus(), default=None)
    cell = Cell(
        compat.resolve_torch(options.torch) if options.torch else current_environment().torch,
        compat.resolve_cuda(options.cuda) if options.cuda else current_environment().cuda,
        compat.resolve_python(options.python) if options.python else current_environment().python,
        Platform(f"linux_{os.uname().machine}"),
    )
    target = Target(cell, glibc, gpu)
    why = None
    if cell.torch in compat.torches:  # that of the current environment may be newer
        why = compat.why_not_cuda(cell.torch, cell.cuda) or compat.why_not_python(cell.torch, cell.python)
    if why and complete:
        where = f"--torch {options.torch} --cuda {options.cuda} --python {options.python}"
        raise UsageError(why.reason, Code.NO_SUCH_COMBINATION, where=where)
    reader = IndexReader(index)
    try:
        entries = reader.entries(name)
    except UsageError as error:
        if error.code is Code.NOT_IN_INDEX:
            error.hints = (how_to_build(name, target, []).text,)
        raise
    found = best_wheel(entries, reader.requires, target)
    commands = commands_from_index(reader.url, entries, found.best, [cell]) if found.best else []
    cure = Cure() if found.best or why else how_to_build(name, target, entries)
    text, data = _text(target, found, commands, cure.text), _data(target, found, commands, cure)
    print_result(text, data, as_json=options.as_json)
    if found.best and reader.login:
        print_line("The commands contain no password: pip and uv read it from ~/.netrc.")
    return Exit.OK if found.best else Exit.FAILED


@dataclass(frozen=True)
class Target:
    """The machine that a wheel is for."""

    cell: Cell
    #: None: any.
    glibc: tuple[int, int] | None = None
    #: The compute capability; None: any.
    gpu: Arch | None = None


@dataclass(frozen=True)
class Resolution:
    """The wheels of a project for one target."""

    #: The wheel to install.
    best: Entry | None
    #: What its proofs show in the target's cell: `none`, `static`, `cpu` or `gpu`; empty: not tested there.
    level: str
    #: Why each wheel that does not fit does not, by file name; the newest version first.
    misfits: dict[str, str]
    #: A wheel of the newest version that fits, if it is newer than `best`, and why it was passed over.
    newer: Entry | None = None
    reason: str = ""


def best_wheel(entries: Sequence[Entry], requires: Callable[[Entry], Sequence[str]], target: Target) -> Resolution:
    """Choose a wheel: stable before a pre-release, tested in the target's cell before untested, then the newest
    version, then the best level, then the highest build number, then the newest platform tag.

    `requires` returns the Requires-Dist lines of a wheel; it is called only for wheels that fit otherwise.
    """
    reasons = {entry.filename: misfit(entry, requires, target) for entry in entries}
    fits = [entry for entry in entries if not reasons[entry.filename]]
    others = [entry for entry in entries if reasons[entry.filename]]
    others.sort(key=lambda entry: (entry.version, entry.filename), reverse=True)
    misfits = {entry.filename: reasons[entry.filename] for entry in others}
    if not fits:
        return Resolution(None, "", misfits)

    def level(entry: Entry) -> str:
        return entry.farm.cells.get(str(target.cell), "") if entry.farm else ""

    def rank(entry: Entry) -> int:
        return [*Level].index(Level(level(entry) or Level.NONE))

    def newest(entry: Entry) -> tuple[Version, int, Version, tuple[object, ...], tuple[int, int]]:
        build = parse_wheel_filename(entry.filename)[2]
        glibc = max((glibc_of(tag.platform) or (0, 0) for tag in entry.tags_for(target.cell)), default=(0, 0))
        version = Version(current_form(str(entry.version)))
        return Version(entry.version.public), rank(entry), version, build, glibc

    best = max(fits, key=lambda entry: (not entry.version.is_prerelease, rank(entry) > 0, newest(entry)))
    newer = max(fits, key=newest)
    if Version(newer.version.public) <= Version(best.version.public):
        return Resolution(best, level(best), misfits)
    is_worse = newer.version.is_prerelease and not best.version.is_prerelease
    return Resolution(best, level(best), misfits, newer, "a pre-release" if is_worse else "not tested in this cell")


@dataclass(frozen=True)
class Cure:
    """How to build a wheel for a target."""

    #: The command, what to do before and where to run it; or why no wheel can be built.
    text: str = ""
    #: Empty if no wheel can be built.
    command: str = ""
    #: What to do before, each as the start of a sentence.
    before: tuple[str, ...] = ()


def how_to_build(name: str, target: Target, entries: Sequence[Entry]) -> Cure:
    """The command that builds a wheel for a target, with the matrix.yaml of this folder if it has the extension.

    For a GPU that the matrix does not compile for (without a matrix: for which some wheel has no code), the command
    names its architecture, and those that the wheels for the same Python and CUDA serve. A published file never
    changes, so the version must be raised if a wheel of this version is yanked or has no code for the GPU.
    """
    compat, cell, gpu = Compat.load(), target.cell, target.gpu
    if cell.torch not in compat.torches:
        return Cure(f"no wheel can be built: this version of buildfarm does not know torch {cell.torch}")
    if gpu and (reason := compat.why_not_arch(cell.cuda, gpu)):
        return Cure(f"no wheel can be built: {reason.reason}")
    near = [entry for entry in entries if entry.tags_for(cell) and not _cuda_misfit(entry, cell.cuda)]
    blocking = [entry for entry in near if entry.yanked is not None or _gpu_misfit(entry, gpu)]
    place, archs, lacks_code = f" in the project of {name}", set[Arch](), any(_gpu_misfit(one, gpu) for one in entries)
    own = True
    before = [f"list torch {cell.torch}, CUDA {cell.cuda} and Python {cell.python} in matrix.yaml"]
    with suppress(UsageError, StopIteration):  # no matrix.yaml here, or one without the extension
        matrix = load_matrix(MATRIX)
        recipes = load_recipes(matrix)
        recipe = next(recipe for recipe in recipes if recipe.makes(name))
        select = Selection((str(cell.torch),), (str(cell.cuda),), (str(cell.python),), (recipe.name,))
        wider = replace(with_selected(matrix, select), platforms=(cell.platform,))
        try:
            build = make_plan(wider, recipes, select, compat).builds[0]
        except NothingSelectedError as error:
            return Cure(f"no wheel can be built: {'; '.join(error.hints)}")
        name, place, archs, before = recipe.name, "", set(build.archs), additions(matrix, select, compat)
        own = isinstance(recipe.source, PathSource)
        before += [] if cell.platform in matrix.platforms else [f"add {cell.platform} under `platforms`"]
        version = Version(f"{build.version}+{build.local_version}")
        blocking = [entry for entry in blocking if entry.version == version]
        lacks_code = gpu is not None and not codes_for((code for arch in archs for code in arch.codes), gpu)
    source, ext = list[str](), ["--ext", name]
    if place and not entries:  # no project is known, and `build` makes one of a source
        source, ext, place, before = [f"{name}==VERSION"], [], " (or name a git repository or a folder)", []
    words = ["buildfarm", "build", *source, "--torch", str(cell.torch), "--cuda", str(cell.cuda)]
    words += ["--python", str(cell.python), *ext]
    if gpu and lacks_code:
        codes = (code for entry in near if entry.farm for code in entry.farm.archs if code.startswith("sm_"))
        archs |= {gpu, *filter(None, map(Arch.of_code, codes))}
        words += [word for arch in sorted(archs, key=lambda arch: arch.number) for word in ("--arch", str(arch))]
    before += [_RAISE if own else _NOT_OURS] if blocking else []
    if target.glibc and any(_glibc_misfit(entry, target) for entry in near):
        before.append(f"choose a machine or a base image with glibc {target.glibc[0]}.{target.glibc[1]} or older")
    command = shlex.join(words)
    steps = "".join(f"{step}, then " for step in before)
    return Cure(f"to build one{place}, {steps}run: {command}", command, tuple(before))


def misfit(entry: Entry, requires: Callable[[Entry], Sequence[str]], target: Target) -> str:
    """The first reason why a wheel does not fit a target; empty if the wheel fits."""
    cell = target.cell
    if entry.yanked is not None:
        return f"yanked: {entry.yanked}" if entry.yanked else "yanked"
    if not entry.tags_for(cell):
        return f"its tag is not for Python {cell.python} on {cell.platform.machine}"
    if not requires_admit(entry.requires_python, cell.python):
        return f"it requires Python {entry.requires_python}"
    reason = _glibc_misfit(entry, target) or _cuda_misfit(entry, cell.cuda) or _gpu_misfit(entry, target.gpu)
    return reason or StatedTorch(str(entry.version), requires(entry)).why_not(cell)


def _glibc_misfit(entry: Entry, target: Target) -> str:
    own = entry.farm.platform if entry.farm else ""  # a tag such as linux_x86_64 promises no glibc
    suitable = entry.tags_for(target.cell)
    needed = min((glibc_of(tag.platform) or glibc_of(own) or (0, 0) for tag in suitable), default=(0, 0))
    if target.glibc and needed > target.glibc:
        return f"it needs glibc {needed[0]}.{needed[1]}; this target has {target.glibc[0]}.{target.glibc[1]}"
    return ""


def _cuda_misfit(entry: Entry, cuda: Cuda) -> str:
    variants = entry.farm.cuda if entry.farm else ()
    # A wheel for one CUDA major version, such as one of the stable ABI, says so in its local version.
    admitted = {*variants, entry.local.cuda}
    fits = not variants or cuda.variant in variants or f"cu{cuda.major}" in admitted
    return "" if fits else f"it is for {', '.join(variants)}, not {cuda.variant}"


def _gpu_misfit(entry: Entry, gpu: Arch | None) -> str:
    archs = entry.farm.archs if entry.farm else ()
    if gpu is None or not archs or codes_for(archs, gpu):
        return ""
    return f"it has no code for a GPU of compute capability {gpu.major}.{gpu.minor}, only {', '.join(archs)}"


def _glibc(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    if not (match := re.fullmatch(r"(\d+)\.(\d+)", text)):
        raise UsageError(f"{text!r} is not a glibc version; write it like 2.31", Code.VALUE_INVALID, where="--glibc")
    return int(match[1]), int(match[2])


def _text(target: Target, found: Resolution, commands: Sequence[str], cure: str) -> str:
    """The wheel and the commands that install it; else why each wheel does not fit, and the command that builds one."""
    if found.best:
        tested = f"tested in this cell: {found.level}" if found.level else "not tested in this cell"
        newer = [f"passed over: {found.newer.filename} is newer, but {found.reason}"] if found.newer else []
        remark = found.best.local.remark
        doubt = [f"the version {found.best.version} {remark}"] if remark else []
        return "\n".join([f"{found.best.filename} ({tested})", *newer, *doubt, "", *commands, ""])
    place = f"{target.cell}, {target.cell.platform.machine}"
    if target.glibc:
        place += f", glibc {target.glibc[0]}.{target.glibc[1]}"
    if target.gpu:
        place += f", a GPU of compute capability {target.gpu.major}.{target.gpu.minor}"
    lines = [f"no wheel fits {place}:"]
    lines += [f"  {name}: {reason}" for name, reason in list(found.misfits.items())[:_MOST]]
    if len(found.misfits) > _MOST:
        lines.append(f"  and {len(found.misfits) - _MOST} more; --json prints all")
    return "\n".join([*lines, *(["", cure] if cure else []), ""])


def _data(target: Target, found: Resolution, commands: Sequence[str], cure: Cure) -> dict[str, Any]:
    """Everything about the answer."""
    return {
        "cell": str(target.cell),
        "wheel": found.best.filename if found.best else None,
        "sha256": found.best.sha256 if found.best else None,
        "level": found.level,
        "install": dict(zip(("pip", "uv"), commands, strict=False)),
        "newer": {"wheel": found.newer.filename, "reason": found.reason} if found.newer else None,
        "misfits": found.misfits,
        "build": cure.command or None,
        "before_build": list(cure.before),
    }
