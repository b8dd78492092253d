"""Check GPU code against the claim: machine code for every claimed architecture, and PTX for `+PTX`.

The rule is stricter than what GPUs can run. Machine code for 8.0 also runs on 8.6, and a new enough driver compiles
PTX. But a claim of `8.6` says that the wheel was compiled for it, so `sm_86` must exist. Code for `sm_90a` satisfies a
claim of 9.0, because every GPU of 9.0 runs it; only `sm_90a` satisfies a claim of 9.0a.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from builder.gate.amounts import join_names
from builder.matrix.axes import Arch
from builder.matrix.compat import Compat
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, make_proof
from builder.wheelfile.compatibility import code_number
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
    }
    if beyond := _beyond(coded, archs):
        evidence["beyond"] = beyond
    allowed = claim.cuda_optional or not claim.foreign  # a wheel of others has no recipe
    every = sorted({code for library in coded for code in (*library.sass, *library.ptx, *library.gpu_code)}, key=_order)
    return make_proof(
        facts,
        Check.DEVICE_CODE,
        errors,
        good=" ".join(every) or "no GPU code" + ", which the recipe allows (`cuda: optional`)" * allowed,
        evidence=evidence,
        remarks=[
            f"{one.path} has GPU code that buildfarm does not know ({join_names(one.unknown_code)}): ask `cuobjdump"
            " --list-elf --list-ptx` of the newest CUDA"
            for one in coded
            if one.unknown_code
        ],
    )


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
