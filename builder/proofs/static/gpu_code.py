"""Check GPU code: machine code for every claimed architecture, PTX for `+PTX`, and on which GPUs it runs.

The rule about the claim is stricter than what GPUs can run. Machine code for 8.0 also runs on 8.6, and a new enough
driver compiles PTX. But a claim of `8.6` says that the wheel was compiled for it, so `sm_86` must exist. Code for
`sm_90a` satisfies a claim of 9.0, because every GPU of 9.0 runs it; only `sm_90a` satisfies a claim of 9.0a.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from builder.gate.amounts import grouped, join_names
from builder.matrix.axes import Arch, Gpu
from builder.matrix.compat import Compat, and_list
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, make_proof
from builder.wheelfile.compatibility import code_number, codes_for, is_older, numbers
from builder.wheelfile.facts import Library, WheelFacts

#: What nvcc compiles for without an option: CUDA 11 and 12, CUDA 13 (`nvcc --help`).
_DEFAULTS = (("sm_52",), ("sm_75",))


def check_device_code(facts: WheelFacts, claim: WheelClaim) -> Proof:
    """Every library with GPU code holds code for every claimed architecture; grafted libraries do not count."""
    coded, archs = [library for library in facts.libraries if library.fatbin and not library.foreign], claim.archs
    suffixes = {arch: (arch.suffix,) if arch.suffix else ("", "a", "f") for arch in archs}
    errors = []
    if not coded and claim.cuda_required:
        errors.append("no library contains GPU code")
    for library in coded:
        has = {code.removeprefix("sm_") for code in library.sass}
        if missing := [a for a in archs if has.isdisjoint(f"{a.number}{suffix}" for suffix in suffixes[a])]:
            errors.append(_no_code(library, missing))
        ptx = [f"compute_{arch.number}{arch.suffix}" for arch in archs if arch.ptx]
        if no_ptx := [name for name in ptx if name not in library.ptx]:
            cure = ": the device link of relocatable code drops PTX, so leave out +PTX" * library.device_link
            errors.append(
                f"{library.path} has no PTX {join_names(no_ptx)}, without which newer GPUs cannot run the library{cure}"
            )
    evidence: dict[str, Any] = {
        "claimed": [str(arch) for arch in archs],
        "libraries": {one.path: {"sass": list(one.sass), "ptx": list(one.ptx)} for one in coded},
        "beyond": _beyond(coded, archs),
    }
    allowed = claim.cuda_optional or not claim.foreign  # a wheel of others has no recipe
    every = sorted({code for library in coded for code in (*library.sass, *library.ptx, *library.gpu_code)}, key=_order)
    good = " ".join(every) or "no GPU code" + ", which the recipe allows (`cuda: optional`)" * allowed
    remarks = [
        f"{one.path} has GPU code that buildfarm does not know ({join_names(one.unknown_code)}): ask `cuobjdump"
        " --list-elf --list-ptx` of the newest CUDA"
        for one in coded
        if one.unknown_code
    ]
    return make_proof(facts, Check.DEVICE_CODE, errors, good=good, evidence=evidence, remarks=remarks)


def _beyond(libraries: Sequence[Library], archs: Sequence[Arch]) -> dict[str, int]:
    """Bytes of GPU code for architectures that were not claimed, by architecture and sorted by number."""
    sass = {f"sm_{arch.number}{suffix}" for arch in archs for suffix in ("", "a", "f")}
    ptx = {f"compute_{arch.number}{suffix}" for arch in archs if arch.ptx for suffix in ("", "a", "f")}
    sizes: Counter[str] = Counter()
    for library in libraries:
        sizes.update({
            code: size for code, size in library.gpu_code.items()
            if code.startswith(("sm_", "compute_")) and code not in sass | ptx
        })  # fmt: skip
    return {code: sizes[code] for code in sorted(sizes, key=_order)}


def _no_code(library: Library, missing: Sequence[Arch]) -> str:
    affected = [gpu for arch in missing for gpu in Compat.load().gpus.get(arch.capability, ())]
    products = f" ({join_names(affected)})" if affected else ""
    names = join_names([arch.sm for arch in missing], most=8)
    have = f", only for {', '.join(library.sass)}" if library.sass else ""
    if tuple(library.sass) in _DEFAULTS:
        have += (
            ", nvcc's default: torch names no architecture if the letters `arch` are in an option for nvcc, such as a"
            " folder or -march"
        )
    return (
        f"{library.path} has no machine code for {names}{products}{have}: if the source names its own architectures"
        " (-gencode), set `override_architectures: true` in the recipe; if the library is for one architecture only,"
        " add the check to `accepts`"
    )


def _order(code: str) -> tuple[int, str]:
    return code_number(code), code.partition("_")[0]


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
    return tuple(names[0] for names in grouped((gpu.arch, str(gpu)) for gpu in gpus).values())


def _too_old(found: Sequence[GpuAnswer], driver: str, floor: str) -> list[str]:
    if not driver:
        return []
    if is_older(driver, floor):
        return [f"driver {driver} is too old for the CUDA of the wheel, which needs driver {floor} or newer"]
    late = [one for one in found if one.how is How.PTX and is_older(driver, one.driver)]
    by_driver = grouped(((one.library, one.code, one.driver), str(one.gpu)) for one in late)
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
