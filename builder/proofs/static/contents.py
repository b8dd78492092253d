"""Check what a wheel holds: its library and GPU code, no library of torch, CUDA or the driver, not too many bytes."""

import posixpath
import re
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from builder.gate.amounts import counted, grouped, join_names, size_text
from builder.matrix.compat import and_list
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, make_proof, why_no_cuda
from builder.proofs.static.metadata import read_requirement
from builder.wheelfile.compatibility import is_driver_library
from builder.wheelfile.elf import MISHAPS
from builder.wheelfile.facts import Library, WheelFacts

#: Libraries that a wheel must never hold, even if the cell's packages are unknown.
_NEVER = re.compile(
    r"lib(torch(_cpu|_cuda(_cpp|_cu|_linalg)?|_global_deps|_hip|_nvshmem|_python|_xpu)?|c10(_cuda|_hip|_xpu)?|cudart"
    r"|cublas|cublasLt|cudnn(_\w+)?|nvrtc|nvJitLink|nccl)"
)
#: auditwheel adds a hash to the name of a copied library: `libcudart.so.13` becomes `libcudart-1a2b3c4d.so.13.0.96`.
#: torchvision's own tool writes `libcudart.1a2b3c4d.so.13`.
_GRAFT_HASH = re.compile(r"[-.][0-9a-f]{8,}$")
#: A runtime of CUDA, NVRTC or OpenMP whose name has such a hash.
_RENAMED_RUNTIME = re.compile(r"/lib(?:cudart|gomp|nvrtc)[-.][0-9a-f]{8,}\.so[.\d]*$")
_OPENMP = re.compile(r"lib(?:gomp|iomp5|omp)")
#: The name of a Python module for Linux.
_LINUX_MODULE = re.compile(r"\.(?:cpython-\d+t?(?:-\w+-linux-\w+)?|abi3)\.so$")
#: Names that many projects give their C++ module or the folder of their ops, as their examples do.
_NATIVE = (
    r"_?C(?:_(?:ops|cpu|cuda|gpu|ext))?|_?(?:c(?:pp|uda)_)?(?:ext|extensions?|ops|kernels?)(?:_(?:cpp|cuda))?"
    r"|_?custom_ops?|_?my_?(?:ops?|ext(?:ension)?)"
)
#: Folders of a source.
_FOLDERS = r"tests?|testing|benchmarks?|csrc|src|examples?|docs?|tools|scripts|build|utils"
_MODULE = re.compile(f"{_FOLDERS}|{_NATIVE}")
_FILE = re.compile(rf"(?:{_FOLDERS}|{_NATIVE}|conftest|setup)\.(?:py|(?:.+\.)?so)")
_NAMESPACE = re.compile(rf"(?:_?tests?|examples?|utils?|cpp|cuda|native|TORCH_EXTENSION_NAME|{_NATIVE})")
#: Characters of a line of code that a remark shows.
_MOST_CODE = 80
#: Libraries, and architectures of each, that a failure names.
_MOST = 3


def check_payload(facts: WheelFacts, claim: WheelClaim) -> Proof:
    """The wheel holds at least one library of its own; for a CUDA extension, one of them holds GPU code."""
    errors = []
    # In a wheel of others, auditwheel may have copied in the only library, which Python code opens by its path.
    copied = claim.foreign and not claim.cuda_required
    own = [library for library in facts.libraries if copied or not library.foreign]
    if claim.foreign and not facts.libraries and all(tag.endswith("-any") for tag in facts.tags):
        return make_proof(facts, Check.PAYLOAD, [], good="pure Python, without a library")
    if not own:
        tags = ", ".join(facts.tags) or "untagged"
        why = why_no_cuda(claim.cuda_sources) if claim.cuda_required else "check `ext_modules` in setup.py"
        errors.append(f"the wheel ({tags}) contains no library: the build compiled no source; {why}")
    elif claim.cuda_required and not any(library.fatbin for library in own):
        names = join_names([library.basename for library in own])
        errors.append(f"no GPU code in {names}: {why_no_cuda(claim.cuda_sources)}")
    good = f"{len(own)} {'library' if len(own) == 1 else 'libraries'}"
    return make_proof(facts, Check.PAYLOAD, errors, good=good)


def check_grafted(
    facts: WheelFacts, provided: frozenset[str], *, foreign: bool = False, uses_torch: bool = True
) -> Proof:
    """The wheel holds no library that the cell's torch, its NVIDIA packages or the driver provide.

    `provided` holds file names such as `libtorch_cpu.so` and `libcudart.so.13`. A copy is recognised by its file name
    or soname, also with the hash that auditwheel adds. Two copies in one process have two separate states of CUDA.
    In a `foreign` wheel, a runtime under a name of its own is a remark: it works, as a linked one does. So is any
    library but those of the driver if the wheel does not use torch, such as triton with its own CUPTI. The packages of
    NVIDIA and torch themselves have their libraries in `nvidia/` and `torch/`.
    """
    # Compare names with their hash: a torch with `libgomp-a34b3233.so.1` does not provide `libgomp.so.1`.
    theirs = {name.partition(".so")[0] for name in provided}
    project = canonicalize_name(facts.name)
    own = "torch/" if project == "torch" else "nvidia/" if project.startswith("nvidia-") else ""
    grafted = [
        library.path
        for library in facts.libraries
        if not (own and library.path.startswith(own))
        and any(_is_theirs(name, theirs) for name in (library.basename, library.soname) if name)
    ]
    errors, remarks, good = [], [], "none"
    driver = any(is_driver_library(posixpath.basename(path)) for path in grafted)
    renamed = all(map(_RENAMED_RUNTIME.search, grafted))
    if grafted and foreign and (renamed or not (uses_torch or driver)):
        good = "only a runtime of CUDA, NVRTC or OpenMP" if renamed else "the wheel does not use torch"
        remarks.append(
            f"the wheel contains {join_names(grafted)}: a second copy in a process with torch, which an update of torch"
            " does not replace"
        )
    elif grafted:
        errors.append(
            f"the wheel contains {join_names(grafted)}, which torch, its NVIDIA packages or the driver provide; two "
            "copies in one process break each other: repair the wheel with `auditwheel repair --exclude`"
        )
    openmp = [one.path for one in facts.libraries if _OPENMP.fullmatch(_stem(one.basename)) and one.path not in grafted]
    required = [one.name for line in facts.requires_dist if (one := read_requirement(line))]
    if openmp and ("torch" in required or any(library.needs_torch for library in facts.libraries)):
        remarks.append(
            f"the wheel contains {join_names(openmp)}: an OpenMP runtime beside that of torch, with threads of its own"
        )
    return make_proof(facts, Check.GRAFTED, errors, good=good, evidence={"grafted": grafted}, remarks=remarks)


def _stem(name: str) -> str:
    return _GRAFT_HASH.sub("", name.partition(".so")[0])


def _is_theirs(name: str, theirs: set[str]) -> bool:
    stem = _stem(name)
    return (
        not theirs.isdisjoint((stem, name.partition(".so")[0]))
        or _NEVER.fullmatch(stem) is not None
        or is_driver_library(f"{stem}.so")
    )


def check_contents(facts: WheelFacts) -> Proof:
    """No file that is imported as a library is something else. Remarks on what harms others or wastes space."""
    errors, remarks = _no_libraries(facts)
    remarks += [*startup_remarks(facts), *_stray(facts), *_equal(facts), *_per_cuda(facts), *_missing_headers(facts)]
    if facts.purelib and facts.libraries:
        remarks.append(
            "WHEEL has `Root-Is-Purelib: true`, but the wheel contains libraries: where Python has a folder lib64, pip"
            " installs them into lib"
        )
    return make_proof(facts, Check.CONTENTS, errors, good=counted(len(facts.files), "file"), remarks=remarks)


def _no_libraries(facts: WheelFacts) -> tuple[list[str], list[str]]:
    """Errors about files with the name of a library that are none and that something loads; remarks about others."""
    needed = {name for library in facts.libraries for name in library.needed}
    errors: list[str] = []
    remarks: list[str] = []
    for one in facts.no_libraries:
        name, cure = one.path.rpartition("/")[2], MISHAPS.get(one.what)
        text = f"{one.path} is {one.what}, and no library" + (f": {cure}" if cure else "")
        failed = cure or one.imported or name in needed or _LINUX_MODULE.search(name)
        (errors if failed else remarks).append(text)
    return errors, remarks


def startup_remarks(facts: WheelFacts) -> Iterator[str]:
    """Code that runs whenever a Python of the environment starts, also in programs that do not use the package."""
    for path, line in facts.startup_code.items():
        shown = line if len(line) <= _MOST_CODE else f"{line[:_MOST_CODE]}…"
        yield f"every Python of the environment executes {path} when it starts, even without an import: {shown}"


def stray_names(facts: WheelFacts) -> list[str]:
    """Names at the top of site-packages that hide modules of the user, or that other wheels install too."""
    tops = dict.fromkeys(name.partition("/")[0] for name in facts.installed())
    common = (top for top in tops if (_FILE if "." in top else _MODULE).fullmatch(top))
    return [top for top in common if not _same(top.partition(".")[0], facts.name)]


def is_common_namespace(namespace: str, project: str) -> bool:
    """Whether other projects register ops in a namespace of this name."""
    return _NAMESPACE.fullmatch(namespace) is not None and not _same(namespace, project)


def _same(name: str, project: str) -> bool:
    return canonicalize_name(name).strip("-") == canonicalize_name(project)


def _stray(facts: WheelFacts) -> Iterator[str]:
    if not (stray := stray_names(facts)):
        return
    cure = "move them into the package"
    if folders := [top for top in stray if "." not in top]:
        cure = (
            "leave them out of `packages` in setup.py, such as with"
            f" `find_packages(exclude={[f'{top}*' for top in folders]})`, or {cure}. If the source is another"
            f" project's, add `wheel_exclude: {[f'{top}/*' for top in folders]}` to extension.yaml"
        )
    yield (
        f"the wheel installs {and_list(stray)} at the top of site-packages, where they hide the user's modules of"
        f" these names and replace those of other wheels: {cure}"
    )


def _equal(facts: WheelFacts) -> Iterator[str]:
    """Libraries with the same bytes: a wheel cannot hold links, so each link becomes a copy."""
    groups = grouped((library.sha256, library) for library in facts.libraries if library.sha256)
    twins = [group for group in groups.values() if len(group) > 1]
    if not twins:
        return
    needed = {name for library in facts.libraries for name in library.needed}
    kept = next((one.path for one in twins[0] if one.basename in needed), "one of them")
    more = f", and so have {len(twins) - 1} more groups of libraries" if len(twins) > 1 else ""
    size = size_text(sum(group[0].size * (len(group) - 1) for group in twins))
    yield (
        f"{and_list([one.path for one in twins[0]])} have the same bytes{more}, {size} too much: a wheel holds no"
        f" links; keep only {kept}, because two copies in one process have separate states"
    )


def _per_cuda(facts: WheelFacts) -> Iterator[str]:
    """Libraries of which a process loads only those for its CUDA."""
    of_one = (library for library in facts.libraries if len(library.cuda_runtimes) == 1)
    groups = grouped((major, library.path) for library in of_one for major in library.cuda_runtimes)
    if len(groups) > 1:
        named = [f"CUDA {major} ({join_names(paths)})" for major, paths in sorted(groups.items())]
        yield f"the wheel has libraries for {and_list(named)}: a process can load only those for the CUDA of its torch"


def _missing_headers(facts: WheelFacts) -> Iterator[str]:
    if lacking := facts.missing_headers:
        headers = list(dict.fromkeys(path for paths in lacking.values() for path in paths))
        yield (
            f"the wheel contains CUDA sources, but not the headers {join_names(headers)} that"
            f" {join_names(list(lacking))} include: a compile at run time fails where the system lacks them; add them"
            " to `package_data`"
        )


def check_size(facts: WheelFacts, claim: WheelClaim) -> Proof | None:
    """The wheel has at most `claim.max_size` bytes; a failure names the largest libraries. None without a limit."""
    if not claim.max_size:
        return None
    errors = []
    if facts.size > claim.max_size:
        largest = sorted(facts.libraries, key=lambda library: -library.size)[:_MOST]
        named = [_text(library) for library in largest if library.size]
        why = f"; unpacked, the largest libraries are {join_names(named)}" if named else ""
        errors.append(f"the wheel has {size_text(facts.size)}, more than its limit of {size_text(claim.max_size)}{why}")
    good = f"{size_text(facts.size)} of at most {size_text(claim.max_size)}"
    return make_proof(facts, Check.SIZE, errors, good=good)


def _text(library: Library) -> str:
    """`ops/_C.so, 280.0 MiB (GPU code: sm_90 120.0 MiB, sm_80 90.0 MiB)`."""
    codes = sorted(library.gpu_code.items(), key=lambda item: -item[1])[:_MOST]
    shown = ", ".join(f"{code} {size_text(size)}" for code, size in codes)
    return f"{library.path} with {size_text(library.size)}" + (f" (GPU code: {shown})" if shown else "")
