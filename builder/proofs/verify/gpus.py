"""On which GPUs the GPU code of a wheel runs: as it is, compiled by the driver from PTX, or not at all."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from builder.gate.amounts import join_names
from builder.matrix.axes import Arch, Gpu
from builder.matrix.compat import Compat, and_list
from builder.proof import Check, Proof
from builder.proofs.cells.driver import is_older, numbers
from builder.proofs.static.claim import make_proof
from builder.wheelfile.compatibility import codes_for
from builder.wheelfile.facts import Library, WheelFacts

#: GPUs that no torch of the version table serves any more are not listed.
_OLDEST = (7, 0)


class How(StrEnum):
    """How a GPU runs the code of a wheel."""

    NATIVE = "native"
    PTX = "from PTX"
    UNKNOWN = "unknown"
    NOT = "cannot run"


@dataclass(frozen=True)
class GpuAnswer:
    """How one GPU runs a wheel."""

    gpu: Gpu
    #: Native if every library that the GPU runs has machine code for it.
    how: How
    #: The library that decides, i.e. the worst one that the GPU runs; if it runs none, the first.
    library: str
    #: The machine code or PTX that runs, such as sm_80 or compute_90; empty if none does.
    code: str = ""
    #: The oldest Linux driver that runs the code; empty if unknown.
    driver: str = ""


def known_gpus(compat: Compat) -> list[Gpu]:
    """The GPUs of the version table, one for each product."""
    return [
        Gpu(name, Arch(*capability)) for capability, names in sorted(compat.gpus.items()) for name in names
        if capability >= _OLDEST
    ]  # fmt: skip


def answer(facts: WheelFacts, gpu: Gpu, compat: Compat, floor: str) -> GpuAnswer | None:
    """How a GPU runs the wheel; None if no library has GPU code. `floor` is the oldest driver of the wheel's CUDA.

    Libraries that the GPU cannot run count only if it runs none: a package may have a library for each GPU.
    """
    order = list(How)
    answers = [_of_library(one, gpu, compat, floor) for one in coded(facts)]
    runs = [one for one in answers if one.how is not How.NOT]
    return max(runs or answers, key=lambda one: order.index(one.how), default=None)


def coded(facts: WheelFacts) -> list[Library]:
    """The libraries of a wheel with GPU code, without those that auditwheel copied into it."""
    return [one for one in facts.libraries if (one.sass or one.ptx or one.unknown_code) and not one.foreign]


def check_gpus(facts: WheelFacts, asked: Sequence[Gpu], driver: str, compat: Compat, floor: str) -> Proof:
    """Every GPU that is asked about runs a library of the wheel, with this driver if it is not empty.

    A remark names libraries that only some of the GPUs run. Without such a GPU, the check passes and says what each
    known GPU does.
    """
    found = [one for gpu in asked or known_gpus(compat) if (one := answer(facts, gpu, compat, floor))]
    sizes = Counter[str]()  # bytes by architecture
    for library in facts.libraries:
        sizes.update(library.gpu_code)
    evidence: dict[str, Any] = {
        "gpus": {str(one.gpu): {"how": str(one.how), "code": one.code, "driver": one.driver} for one in found},
        "sizes": dict(sizes),
    }
    if not found:
        return make_proof(facts, Check.GPUS, [], good="the wheel has no GPU code", evidence=evidence)
    errors = _too_old(found, driver, floor)
    if asked:
        libraries = {library.path: library for library in facts.libraries}
        errors += [
            f"{one.gpu} cannot run {one.library}, which has"
            f" {and_list([*libraries[one.library].sass, *libraries[one.library].ptx])}: build for"
            f" {one.gpu.arch.major}.{one.gpu.arch.minor}, or with PTX of an older architecture"
            for one in found
            if one.how is How.NOT
        ]
    remarks = list(_only_for(facts, [one.gpu for one in found if one.how is not How.NOT], compat))
    return make_proof(facts, Check.GPUS, errors, good=_summary(found), evidence=evidence, remarks=remarks)


def _only_for(facts: WheelFacts, gpus: Sequence[Gpu], compat: Compat) -> Iterator[str]:
    """Which GPUs run the libraries that not every GPU runs of those that run the wheel."""
    groups: dict[tuple[str, ...], list[Library]] = {}
    for library in coded(facts):
        if any(_of_library(library, gpu, compat, "").how is How.NOT for gpu in gpus):
            known = [gpu for gpu in known_gpus(compat) if _of_library(library, gpu, compat, "").how is not How.NOT]
            groups.setdefault(_by_arch(known), []).append(library)
    for names, libraries in groups.items():
        have = sorted({code for one in libraries for code in (*one.sass, *one.ptx)})
        only = f"only {and_list(names)} can run it" if names else "no GPU of the version table can run it"
        yield f"{join_names([one.path for one in libraries])} with {and_list(have)}: {only}"


def _of_library(library: Library, gpu: Gpu, compat: Compat, floor: str) -> GpuAnswer:
    if native := codes_for(library.sass, gpu.arch):
        return GpuAnswer(gpu, How.NATIVE, library.path, native[-1], floor)
    if ptx := codes_for(library.ptx, gpu.arch):
        isa = library.ptx_isa.get(ptx[-1], "")
        drivers = [one.driver for one in compat.toolkits if one.driver and one.ptx == isa]  # that read this PTX
        return GpuAnswer(gpu, How.PTX, library.path, ptx[-1], min(drivers, key=numbers, default=""))
    return GpuAnswer(gpu, How.UNKNOWN if library.unknown_code else How.NOT, library.path)


def _by_arch(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The first GPU of each architecture, as `A100 (8.0)`."""
    names: dict[Arch, str] = {}
    for gpu in gpus:
        names.setdefault(gpu.arch, str(gpu))
    return tuple(names.values())


def _too_old(found: Sequence[GpuAnswer], driver: str, floor: str) -> list[str]:
    if not driver:
        return []
    if is_older(driver, floor):
        return [f"driver {driver} is too old for the CUDA of the wheel, which needs driver {floor} or newer"]
    late = [one for one in found if one.how is How.PTX and is_older(driver, one.driver)]
    by_driver: dict[tuple[str, str, str], list[str]] = {}
    for one in late:
        by_driver.setdefault((one.library, one.code, one.driver), []).append(str(one.gpu))
    return [
        f"driver {driver} cannot compile the PTX ({code}) of {library}, which {join_names(gpus)} would need: it takes"
        f" driver {needed} or newer"
        for (library, code, needed), gpus in by_driver.items()
    ]


def _summary(found: Sequence[GpuAnswer]) -> str:
    """`native on A100 (8.0) and H100 (9.0); from PTX on …; cannot run on …`."""
    parts = []
    for how in How:
        if names := _by_arch([one.gpu for one in found if one.how is how]):
            shown = ", ".join(names)
            drivers = sorted({one.driver for one in found if one.how is how and one.driver}, key=numbers)
            text = f"{how} on {shown}" if how is not How.NOT else f"cannot run on {shown}"
            parts.append(f"{text} with driver {drivers[-1]} or newer" if drivers else text)
    return "; ".join(parts)
