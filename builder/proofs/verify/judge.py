"""All verdicts on a wheel that its file allows: the static checks of `build`, and the checks of `verify` alone."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.gate.amounts import grouped, join_names
from builder.matrix.axes import Cuda, Gpu, Torch
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import Selection
from builder.proof import Check, Proof, Verdict
from builder.proofs.claimed_cells import ClaimedCells, claimed_cells, foreign_claim, provided_by_torch, uses_torch
from builder.proofs.file_checks import check_loader, check_record, static_proofs
from builder.proofs.inventory import Shelf
from builder.proofs.static.claim import make_proof, not_run
from builder.proofs.static.gpu_code import check_gpus, coded
from builder.proofs.static.metadata import read_requirement
from builder.proofs.static.tags import system_libraries
from builder.proofs.static.variants import loaded
from builder.proofs.verify.torch_window import Linker
from builder.records import FILE
from builder.untrusted import JsonError, parse_json
from builder.wheelfile.archive import WheelFile, installed_path, wheel_fault
from builder.wheelfile.compatibility import is_driver_library
from builder.wheelfile.facts import Library, WheelFacts
from builder.wheelfile.text_files import python_uses

#: Libraries that are not named after their project.
_PROJECTS = {"nvinfer": "tensorrt", "nvonnxparser": "tensorrt"}
#: A library that torch brings in releases before this one (METADATA of torch 2.14.1 and 2.15.0).
_DROPPED, _DROPPED_IN = "libcurand.so.10", Torch(2, 15, 0)
#: First parts of run paths that lead to no other package.
_NO_PACKAGES = {"torch", "nvidia", "lib", "lib64", "libs", "", ".", ".."}
#: Characters of a name that may name a project.
_MIN_STEM = 4


@dataclass(frozen=True)
class Outside:
    """The libraries of a wheel that need what neither it, torch nor a manylinux system has, but that may be absent."""

    #: Its Python files say which libraries are imported.
    wheel: WheelFile
    facts: WheelFacts
    #: Names of the libraries that torch and its NVIDIA packages provide.
    provided: frozenset[str]

    @cached_property
    def others(self) -> dict[str, str]:
        """Where a needed library comes from, by the name of the library: another project that METADATA requires.

        A project has a library if its name contains that of the library, as metatensor-core and `libmetatensor.so`, or
        begins that of the library, or if its words begin with those of the library, as cuequivariance-ops and
        `libcue_ops.so`. Else, a run path leads from the wheel into another package.
        """
        required = (read_requirement(line) for line in self.facts.requires_dist)
        projects = [canonicalize_name(one.name).replace("-", "_") for one in required if one]
        found = {}
        for name in self._absent:
            stem = name.partition(".so")[0].removeprefix("lib").replace("-", "_").lower()
            names = [stem, *(project for library, project in _PROJECTS.items() if stem.startswith(library))]
            for project in projects:
                words = project.removeprefix("lib").split("_")
                same = len(stem) >= _MIN_STEM and any(one in project or one.startswith(project) for one in names)
                short = "_" in stem and all(any(word.startswith(one) for word in words) for one in stem.split("_"))
                if project != "torch" and (same or short or stem in words):
                    found[name] = f"{project}, which METADATA requires"
            if name not in found and {*projects} - {"torch"} and (packages := self._packages(name)):
                found[name] = f"another package, as the run path into {and_list(packages)} says"
        return found

    def _packages(self, name: str) -> list[str]:
        """The packages outside of the wheel, of torch and of NVIDIA to which run paths for a needed library lead."""
        inside = {path.partition("/")[0] for path in self.facts.installed()} | _NO_PACKAGES
        found = set[str]()
        for library in (one for one in self.facts.libraries if name in one.needed):
            folder = posixpath.dirname(installed_path(library.path))
            ends = (
                path.replace("{ORIGIN}", "ORIGIN").removeprefix("$ORIGIN")
                for path in library.search
                if "ORIGIN" in path
            )
            found |= {posixpath.normpath(f"{folder}/{end}").partition("/")[0] for end in ends}
        return sorted(found - inside)

    @cached_property
    def optional(self) -> dict[str, list[str]]:
        """Needed libraries without which the package works, each with the wheel's libraries that need it.

        These are libraries that no unindented line of a Python file names: a function or `try` may load them, if the
        system has what they need. Some library of the wheel must work without them.
        """
        users = {name: self._users(name) for name in self._absent if name not in self.others}
        # The names of libraries, up to the first dot, that Python files always import.
        imported = python_uses(self.wheel, stems={_stem(library) for used in users.values() for library in used}).named
        lazy = {name: used for name, used in users.items() if imported.isdisjoint(map(_stem, used))}
        affected = {library.path for used in lazy.values() for library in used}
        own = {library.path for library in self.facts.libraries if not library.foreign}
        if own <= affected:
            return {}
        return {name: [library.path for library in used] for name, used in lazy.items()}

    def remarks(self) -> Iterator[str]:
        """What to say about both kinds."""
        for name, project in self.others.items():
            yield f"{name} must come from {project}"
        for users, names in grouped((tuple(used), name) for name, used in self.optional.items()).items():
            yield f"{join_names(users)} can be loaded only where the system has {join_names(names)}"

    @cached_property
    def _absent(self) -> list[str]:
        inside = {name for library in self.facts.libraries for name in (library.basename, library.soname)}
        known = inside | self.provided
        return sorted(
            {
                name
                for library in self.facts.libraries
                for name in library.needed
                if name not in known | system_libraries(library.machine) and not is_driver_library(name)
            }
        )

    def _users(self, name: str) -> list[Library]:
        """The libraries that need a library, directly or through other libraries of the wheel."""
        names, used = {name}, dict[str, Library]()
        while more := [one for one in self.facts.libraries if one.path not in used and names & set(one.needed)]:
            used |= {one.path: one for one in more}
            names |= {text for one in more for text in (one.basename, one.soname) if text}
        return list(used.values())


def _stem(library: Library) -> str:
    return library.basename.partition(".")[0]


@dataclass(frozen=True)
class WheelVerdict:
    """Everything that `verify` found out about one wheel."""

    facts: WheelFacts
    origin: str
    proofs: tuple[Proof, ...]

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(proof.verdict is Verdict.FAILED for proof in self.proofs)


@dataclass(frozen=True)
class Judge:
    """What the wheels of one run share."""

    shelf: Shelf
    #: The torch, CUDA and Python that the user asks about.
    select: Selection
    gpus: tuple[Gpu, ...] = ()
    #: The version of the NVIDIA driver that the user asks about, or empty.
    driver: str = ""
    #: Bytes that a wheel file may have; 0: any number.
    max_size: int = 0

    def judge(self, wheel: WheelFile, facts: WheelFacts, origin: str = "", fault: str | None = None) -> WheelVerdict:
        """Every check of one wheel. Raises UsageError if it is damaged.

        `fault` is what `wheel_fault` said before; `wheel` then needs its Python files and its metadata only.
        """
        fault = wheel_fault(wheel) if fault is None else fault
        proofs = sorted(self._proofs(wheel, facts, fault), key=lambda proof: list(Check).index(proof.check))
        return WheelVerdict(facts, origin, tuple(proofs))

    def _proofs(self, wheel: WheelFile, facts: WheelFacts, fault: str) -> Iterator[Proof]:
        yield check_record(facts, fault)
        linker = Linker(facts, self.shelf, self.select)
        outside = Outside(wheel, facts, provided_by_torch(facts) | linker.libraries)
        provided = outside.provided.union(outside.others, outside.optional)
        claimed = claimed_cells(facts, Compat.load(), linker.platform)
        spare = frozenset(path for used in outside.optional.values() for path in used)
        claim = replace(foreign_claim(facts, claimed.cells), max_size=self.max_size, spare=spare)
        if needs_no_gpu_code(wheel):
            claim = replace(claim, cuda_required=False, cuda_optional=True)
        # Every cell of the claim would repeat the same verdict on the file.
        for proof in static_proofs(facts, claim, provided, {}):
            if proof.check is Check.METADATA and not claimed.cells and uses_torch(facts):
                yield _no_cell(facts, proof, claimed)
            elif proof.check is Check.TAGS:
                yield _floor(facts, proof, [*outside.remarks(), *_dropped(facts, claimed)])
            else:
                yield proof
        yield check_loader(facts)
        yield from self._gpus(facts)
        if facts.libraries and uses_torch(facts):
            yield from linker.linkage()
            yield linker.window()
        else:
            yield not_run(facts, Check.LINKAGE, "no library of the wheel uses torch")

    def _gpus(self, facts: WheelFacts) -> Iterator[Proof]:
        """The check `gpus` of each build of the wheel that the selected torch and CUDA load; else of the newest one."""
        compat = Compat.load()
        torches: list[Torch | None] = [compat.releases(text)[-1] for text in self.select.torch]
        cudas: list[Cuda | None] = [Cuda.parse(text) for text in self.select.cuda]
        judged: list[Sequence[Library]] = []
        for torch, cuda in product(torches or [None], cudas or [None]):
            build = loaded(facts, torch, cuda)
            if build.libraries not in judged:
                judged.append(build.libraries)
                floor = _driver_floor(Linker(build, self.shelf, self.select))
                proof = check_gpus(build, self.gpus, self.driver, compat, floor)
                own = coded(build)
                if own != coded(facts) and own[0].path not in proof.reason:
                    proof = replace(proof, reason=f"{join_names([one.path for one in own])}: {proof.reason}")
                yield proof


def needs_no_gpu_code(wheel: WheelFile) -> bool:
    """Whether the record of the wheel's build says that its recipe accepts a wheel without GPU code.

    Every version that buildfarm writes names a CUDA, which does not promise GPU code then.
    """
    if f"{wheel.dist_info}/{FILE}" not in wheel.names:
        return False
    try:
        return parse_json(wheel.read_dist_info(FILE), lambda record: bool(record["recipe"].get("cuda") == "optional"))
    except JsonError:
        return False


def _driver_floor(linker: Linker) -> str:
    """The oldest driver of the CUDA that the libraries or the version name; empty if they name none."""
    variant = re.match(r"cu(\d\d)", linker.claims.variant)
    majors = linker.claims.runtimes or ({int(variant[1])} if variant else set())
    floors = [one.driver_floor for one in Compat.load().toolkits if majors and one.cuda.major == max(majors)]
    return floors[0] if floors else ""


def _floor(facts: WheelFacts, proof: Proof, remarks: Sequence[str]) -> Proof:
    """The check of the tags, with the platform that the libraries really need, and these remarks."""
    evidence, reason = dict(proof.evidence), proof.reason
    if proof.verdict is Verdict.PASSED and facts.libraries:
        late = evidence["late"]
        who = f"all libraries but {join_names(late)}" if late else "the libraries"
        reason = f"{reason}; {who} need {evidence['platform']}"
    if remarks:
        evidence["remarks"] = [*evidence.get("remarks", ()), *remarks]
    return replace(proof, reason=reason, evidence=evidence)


def _dropped(facts: WheelFacts, claimed: ClaimedCells) -> list[str]:
    """A remark on a library that older releases of torch bring, and the newest claimed one does not."""
    users = [library.path for library in facts.libraries if _DROPPED in library.needed]
    newest = max((cell.torch for cell in claimed.cells), default=Torch(0, 0, 0))
    if not users or newest < _DROPPED_IN or any("curand" in line for line in facts.requires_dist):
        return []
    since = f"which torch {_DROPPED_IN.series} and newer do not bring: require nvidia-curand"
    return [f"{join_names(users)} needs {_DROPPED}, {since}"]


def _no_cell(facts: WheelFacts, proof: Proof, claimed: ClaimedCells) -> Proof:
    """The check of METADATA for a wheel that suits no torch, CUDA and Python that go together."""
    newest = Compat.load().torches[-1]
    if any(_beyond(line, f"{newest.major}.{newest.minor + 1}.0") for line in facts.requires_dist):
        return proof
    reasons = [*([proof.reason] if proof.verdict is Verdict.FAILED else [])]
    reasons.append(f"no torch, CUDA and Python suit the wheel together: not for {', nor for '.join(claimed.others)}")
    return make_proof(facts, Check.METADATA, reasons, evidence=proof.evidence)


def _beyond(line: str, version: str) -> bool:
    """Whether a requirement is of a torch that is newer than buildfarm's version table."""
    name, _, rest = line.partition("==")
    try:
        return name.strip() == "torch" and Version(rest.partition(";")[0].strip()) >= Version(version)
    except ValueError:
        return False
