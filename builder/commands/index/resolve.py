"""`buildfarm resolve`: the wheel of an index for a machine, and the commands that install it."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

from builder.commands.current_environment import cuda_here, python_here, torch_here
from builder.errors import UsageError
from builder.matrix.compat import Compat
from builder.proofs.verify.gpus import gpu_named
from builder.publish.index.reader import IndexReader
from builder.publish.index.repository import ALL
from builder.publish.index.resolve import Resolution, Target, resolve
from builder.publish.index.text.install import install_commands
from builder.resources import own_gpus


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

    """

    name: str
    index: str
    torch: str = ""
    cuda: str = ""
    python: str = ""
    glibc: str = ""
    gpu: str = ""
    torch_index: str = ""


@dataclass(frozen=True)
class Resolved:
    """What was found.

    Attributes:
        target: the machine.
        resolution: the wheel, or why none fits.
        commands: how to install it with pip and with uv; without a wheel empty.
        build_command: what builds a wheel for the target.

    """

    target: Target
    resolution: Resolution
    commands: list[str]
    build_command: str


def run_resolve(options: ResolveOptions) -> Resolved:
    """Find the wheel of a project for a target.

    Raises UsageError for an unknown project, version or GPU, and for an environment without torch.
    """
    compat = Compat.load()
    target = make_target(options, compat)
    reader = IndexReader(options.index)
    resolution = resolve(reader.entries(options.name), reader.requires, target)
    commands = []
    if best := resolution.best:
        variant = target.cuda.variant
        path = variant if best.farm and variant in best.farm.cuda else ALL
        torch = [compat.torch_requirement(target.torch, target.cuda)]
        default = compat.is_default_variant(target.torch, target.cuda)
        torch_index = "" if default else options.torch_index.replace("{variant}", variant)
        commands = install_commands(f"{reader.url}{path}/", best.project, str(best.version), torch, torch_index)
    cell = ["--torch", str(target.torch), "--cuda", str(target.cuda), "--python", str(target.python)]
    return Resolved(target, resolution, commands, shlex.join(["buildfarm", "build", *cell, "--ext", options.name]))


def make_target(options: ResolveOptions, compat: Compat) -> Target:
    """The target that options and the current environment give; raises UsageError."""
    complete = bool(options.torch and options.cuda and options.python)  # it may be another machine
    return Target(
        torch=compat.resolve_torch(options.torch) if options.torch else torch_here(),
        cuda=compat.resolve_cuda(options.cuda) if options.cuda else cuda_here(),
        python=compat.resolve_python(options.python) if options.python else python_here(),
        machine=os.uname().machine,
        glibc=_glibc(options.glibc) if options.glibc else None if complete else _own_glibc(),
        gpu=gpu_named(options.gpu, compat) if options.gpu else None if complete else min(own_gpus(), default=None),
    )


def _glibc(text: str) -> tuple[int, int]:
    if not (match := re.fullmatch(r"(\d+)\.(\d+)", text)):
        raise UsageError(f"{text!r} is not a glibc version; write it like 2.31", where="--glibc")
    return int(match[1]), int(match[2])


def _own_glibc() -> tuple[int, int]:
    return _glibc((os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").rpartition(" ")[2])
