"""Wheels with several builds of one library: one for each torch, CUDA or FFmpeg. A process loads one of them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from builder.gate.amounts import grouped
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import Compat
from builder.matrix.local_version import read_local
from builder.wheelfile.facts import Library, WheelFacts

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_OF_TORCH = re.compile(r"torch[-_.]?#")  # in a path whose numbers are `#`


def variants(facts: WheelFacts) -> list[WheelFacts]:
    """The wheel with one build of each library at a time, the newest last; the whole wheel if it has one build only.

    Libraries whose paths differ in numbers only are builds of one library if they have one file name, as in
    `torch-2.9/lib/libops.so` and `torch-2.10/lib/libops.so`, or if they need different versions of another library, as
    `libops_cuda12.so` and `libops_cuda13.so` need different CUDA runtimes, or if the number is that of a torch, as in
    `libops_pytorch_2.2.1.so`.
    """
    groups = grouped((_NUMBER.sub("#", one.path), one) for one in facts.libraries if not one.foreign)
    several = (group for form, group in groups.items() if len(group) > 1 and _one_of_many(form, group))
    builds = {library.path: key for group in several for library, key in _keyed(group)}
    keys = sorted(set(builds.values()), key=lambda key: [[int(part) for part in one.split(".")] for one in key])
    if not keys:
        return [facts]
    return [
        replace(facts, libraries=tuple(one for one in facts.libraries if builds.get(one.path, key) == key))
        for key in keys
    ]


def loaded(facts: WheelFacts, torch: Torch | None, cuda: Cuda | None) -> WheelFacts:
    """The wheel with the build that a process with this torch and CUDA loads; None: with the newest one of this torch.

    The paths of a build name its torch or its CUDA, or its libraries need the runtime of its CUDA. Without a build for
    this CUDA, the nearest one of its major version counts. Builds that do not differ in torch and CUDA count together.
    """
    cuda = cuda or (max(Compat.load().torch(torch).variants) if torch else None)
    builds = variants(facts)
    shared = {one.path for one in facts.libraries if all(one in build.libraries for build in builds)}
    ranks = [_rank([one for one in build.libraries if one.path not in shared], torch, cuda) for build in builds]
    best = [build for build, rank in zip(builds, ranks, strict=True) if rank == max(ranks)]
    return replace(facts, libraries=tuple(one for one in facts.libraries if any(one in b.libraries for b in best)))


def _rank(own: Sequence[Library], torch: Torch | None, cuda: Cuda | None) -> tuple[object, ...]:
    """How well the libraries of one build suit a process, the best one last: first those with GPU code."""
    named = [read_local(re.sub(r"[-_/]", ".", library.path.lower())) for library in own]
    series = next((one.series[-1] for one in named if one.series), "")
    majors = [f"cu{major}" for library in own for major in library.cuda_runtimes]
    variant = max([one.cuda for one in named if one.cuda] or majors, default="")
    of_torch = torch is None or (1 if not series else 2 * (series == torch.series))
    of_cuda = 1 if not variant or cuda is None else 0
    if variant and cuda and variant.startswith(f"cu{cuda.major}"):
        of_cuda = 4 if variant in (cuda.variant, f"cu{cuda.major}") else 3 if variant < cuda.variant else 2
    number = [int(part) for part in series.split(".") if part]
    return any(one.sass or one.ptx for one in own), of_torch, of_cuda, number, variant[2:].ljust(3, "0")


def _one_of_many(form: str, group: Sequence[Library]) -> bool:
    if _OF_TORCH.search(form) or len({library.basename for library in group}) == 1:
        return True
    needed = {name for library in group for name in library.needed}
    return any(len(names) > 1 for names in grouped((name.partition(".so")[0], name) for name in needed).values())


def _keyed(group: Sequence[Library]) -> Iterator[tuple[Library, tuple[str, ...]]]:
    """Each library with the numbers of its path that the others have not."""
    numbers = [_NUMBER.findall(library.path) for library in group]
    differ = [at for at, values in enumerate(zip(*numbers, strict=True)) if len(set(values)) > 1]
    for library, values in zip(group, numbers, strict=True):
        yield library, tuple(values[at] for at in differ)
