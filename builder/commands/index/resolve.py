"""`buildfarm resolve`: the wheel of an index for a machine, and the commands that install it."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from builder.commands.current_environment import CurrentEnvironment, current_environment, installed_version
from builder.commands.index.write_pins import check_pin_file, pin_commands, pin_notes, write_pins
from builder.errors import UsageError
from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.compat import Compat
from builder.proofs.verify.gpus import gpu_named
from builder.publish.index.entry import Entry
from builder.publish.index.pins.pins import Pins, without_credentials
from builder.publish.index.reader import IndexReader
from builder.publish.index.repository import ALL
from builder.publish.index.resolve import Resolution, Target, resolve
from builder.publish.index.text.install import install_commands
from builder.resources import own_gpus
from builder.wheels.build_scripts.cuda_packages import torch_cuda


@dataclass(frozen=True)
class ResolveOptions:
    """The options of one `buildfarm resolve`; what is empty comes from the current environment.

    Attributes:
        name: the project.
        index: folder or URL of the index.
        torch: release or series.
        cuda: version.
        python: version.
        glibc: version, such as 2.31.
        gpu: name or compute capability of a GPU.
        torch_index: URL of PyTorch's index, with `{variant}`.
        write: the file that gets the versions and indexes, or None.

    """

    name: str
    index: str
    torch: str = ""
    cuda: str = ""
    python: str = ""
    glibc: str = ""
    gpu: str = ""
    torch_index: str = ""
    write: Path | None = None


@dataclass(frozen=True)
class Resolved:
    """What was found.

    Attributes:
        target: the machine.
        resolution: the wheel, or why none fits.
        commands: how to install it, by installer; empty without a wheel.
        notes: the file that was written, and what else a user must do.
        build_command: what builds a wheel for the target.

    """

    target: Target
    resolution: Resolution
    commands: dict[str, str]
    notes: list[str]
    build_command: str


def run_resolve(options: ResolveOptions) -> Resolved:
    """Find the wheel of a project for a target.

    Raises UsageError for an unknown project, version or GPU, for an environment without torch, and for a file that
    cannot get the versions. Nothing is written without a wheel.
    """
    kind = check_pin_file(options.write) if options.write else None
    compat = Compat.load()
    target = make_target(options, compat)
    reader = IndexReader(options.index)
    resolution = resolve(reader.entries(options.name), reader.requires, target)
    commands: dict[str, str] = {}
    notes: list[str] = []
    cell = ["--torch", str(target.torch), "--cuda", str(target.cuda), "--python", str(target.python)]
    if resolution.best:
        pins = _pins(resolution.best, target, reader, compat, options.torch_index)
        if options.write and kind:
            words = [options.name, "--index", without_credentials(options.index), *cell, *_machine_words(target)]
            write_pins(options.write, kind, pins, target, words)
            commands, notes = pin_commands(options.write, kind, pins, target), pin_notes(options.write, kind, pins)
        else:
            lines = install_commands(pins.index, pins.project, str(pins.version), [str(pins.torch)], pins.torch_index)
            commands = dict(zip(("pip", "uv"), lines, strict=True))
    return Resolved(
        target, resolution, commands, notes, shlex.join(["buildfarm", "build", *cell, "--ext", options.name])
    )


def _pins(best: Entry, target: Target, reader: IndexReader, compat: Compat, torch_index: str) -> Pins:
    variant = target.cuda.variant
    path = variant if best.farm and variant in best.farm.cuda else ALL
    default = compat.is_default_variant(target.torch, target.cuda)
    return Pins(
        project=best.project,
        version=best.version,
        path=path,
        index=f"{reader.url}{path}/",
        wheel=f"{reader.url_of(best.path)}#sha256={best.sha256}",
        torch=Requirement(compat.torch_requirement(target.torch, target.cuda)),
        cuda=target.cuda,
        torch_index="" if default else torch_index.replace("{variant}", variant),
        machine=target.machine,
    )


def _machine_words(target: Target) -> list[str]:
    glibc = ["--glibc", "{}.{}".format(*target.glibc)] if target.glibc else []
    return [*glibc, *(["--gpu", f"{target.gpu.major}.{target.gpu.minor}"] if target.gpu else [])]


def make_target(options: ResolveOptions, compat: Compat) -> Target:
    """The target that options and the current environment give; raises UsageError."""
    here = None if options.torch and options.cuda and options.python else current_environment()
    return Target(
        torch=compat.resolve_torch(options.torch) if options.torch else _torch_of(here),
        cuda=compat.resolve_cuda(options.cuda) if options.cuda else _cuda_of(here),
        python=compat.resolve_python(options.python) if options.python else _python_of(here),
        machine=os.uname().machine,
        glibc=_glibc(options.glibc) if options.glibc else _own_glibc() if here else None,
        gpu=gpu_named(options.gpu, compat) if options.gpu else min(own_gpus(), default=None) if here else None,
    )


def _torch_of(here: CurrentEnvironment | None) -> Torch:
    version = installed_version(here.site_packages, "torch") if here else ""
    if not version:
        raise UsageError(
            f"the current environment has no torch{f' ({here.prefix})' if here else ''}",
            hints=["name the target: --torch VERSION --cuda VERSION --python VERSION"],
        )
    return Torch.parse(Version(version).base_version)


def _cuda_of(here: CurrentEnvironment | None) -> Cuda:
    cuda = torch_cuda(here.site_packages) if here and (here.site_packages / "torch" / "version.py").is_file() else ""
    if not cuda:
        raise UsageError("the torch of the current environment is not for CUDA", hints=["name it: --cuda VERSION"])
    return Cuda.parse(cuda)


def _python_of(here: CurrentEnvironment | None) -> Python:
    folder = here.site_packages.parent.name if here else ""
    return Python.parse(folder.removeprefix("python"))


def _glibc(text: str) -> tuple[int, int]:
    if not (match := re.fullmatch(r"(\d+)\.(\d+)", text)):
        raise UsageError(f"{text!r} is not a glibc version; write it like 2.31", where="--glibc")
    return int(match[1]), int(match[2])


def _own_glibc() -> tuple[int, int]:
    return _glibc((os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").rpartition(" ")[2])
