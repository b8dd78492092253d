"""Check METADATA: the version names the build, and Requires-Dist admits only proven torch releases."""

from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import unquote

import packaging
from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.gate.amounts import join_names
from builder.matrix.axes import Cell, Python
from builder.matrix.local_version import read_local
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, make_proof
from builder.untrusted import split_url
from builder.wheelfile.compatibility import TORCHES, oldest_python
from builder.wheelfile.facts import WheelFacts

_REFUSES = f"twine with packaging {packaging.__version__} does not upload the wheel"
#: What to do about a wheel whose file was renamed.
RELABEL = "run `buildfarm relabel WHEEL`, which writes a wheel in which both agree"


def check_metadata(facts: WheelFacts, claim: WheelClaim) -> Proof:
    """Name and version agree with the file name; local version, torch range and Pythons agree with the claim."""
    errors = _identity_errors(facts, claim)
    required, unreadable = _requirements(facts.requires_dist)
    errors += [f"Requires-Dist {line!r} is not a valid requirement" for line in unreadable]
    errors += _requires_errors(facts, claim, required)
    errors += _python_errors(facts, claim)
    of_torch, lines = required.get("torch", ()), dict.fromkeys(facts.requires_dist)
    by_url = [one for line in lines if (one := read_requirement(line)) and one.url]
    errors += [_by_url(one) for one in by_url if one in of_torch]
    remarks = [_by_url(one) for one in by_url if one not in of_torch]
    with suppress(ValueError):  # among the errors
        if uncertain := read_local(Version(facts.version).local or "").remark:
            remarks.append(f"the version {facts.version} {uncertain}")
    if facts.metadata_faults:
        remarks.append(f"{_REFUSES}: METADATA: {join_names(facts.metadata_faults)}")
    return make_proof(facts, Check.METADATA, errors, good=facts.version, remarks=remarks)


def _identity_errors(facts: WheelFacts, claim: WheelClaim) -> list[str]:
    project, version, _, _ = parse_wheel_filename(facts.filename)
    try:
        written = Version(facts.version)
    except ValueError:
        return [f"METADATA has the version {facts.version!r}, which PEP 440 does not allow"]
    errors = []
    if canonicalize_name(facts.name) != project:
        errors.append(f"the project is {project} in the file name and {facts.name} in METADATA: {RELABEL}")
    if written != version:
        errors.append(
            f"the version is {version} in the file name and {written} in METADATA, so installers refuse the wheel or"
            f" install it again each time: {RELABEL}"
        )
    if claim.local and written.local != claim.local:
        errors.append(
            f"the version {written} lacks the local part +{claim.local}: pip cannot distinguish this wheel from "
            "wheels for other torch and CUDA versions"
        )
    return errors


def _by_url(requirement: Requirement) -> str:
    """What is wrong with a requirement that names a URL. The URL may contain a token, so only its host is printed."""
    host = split_url(requirement.url or "").hostname or "a file"
    text = f"METADATA requires {requirement.name} by a URL ({host}): uv and PyPI refuse such a wheel"
    if canonicalize_name(requirement.name) != "torch":
        return f"{text}; require a version"
    wish = f"such as torch{requirement.specifier}" if requirement.specifier else "because the URL does not say it"
    return f"{text}, and pip replaces the installed torch; require a version, {wish}"


def read_requirement(line: str) -> Requirement | None:
    """A Requires-Dist line; None for one that is not valid or has a number that Python refuses to convert.

    The URL of a wheel gives the requirement the version of the file name.
    """
    try:
        one = Requirement(line)
        if one.url:
            with suppress(InvalidWheelFilename):
                name = unquote(split_url(one.url).path).rpartition("/")[2]
                one.specifier = SpecifierSet(f"=={parse_wheel_filename(name)[1]}")
        _convert(one.specifier)
    except ValueError:  # InvalidRequirement is one
        return None
    return one


def counts_in(requirement: Requirement, cell: Cell) -> bool:
    """Whether a requirement counts in a cell, by its marker and without an extra; one that means nothing counts."""
    python = cell.python.series
    variables = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    try:
        return requirement.marker is None or requirement.marker.evaluate({**variables})
    except (UndefinedComparison, UndefinedEnvironmentName):  # such as python_version ~= "abc"
        return True


def _convert(specifiers: SpecifierSet) -> None:
    """Raise ValueError for a version that cannot be compared; packaging converts it at its first use only."""
    for one in specifiers:
        one.contains("0")


def _requirements(lines: Iterable[str]) -> tuple[dict[str, list[Requirement]], list[str]]:
    """Requirements by project, without those of extras; and the lines that are not valid requirements."""
    found: dict[str, list[Requirement]] = {}
    unreadable = []
    for line in lines:
        one = read_requirement(line)
        if one is None:
            unreadable.append(line)
            continue
        if one.marker is None or "extra" not in str(one.marker):
            found.setdefault(canonicalize_name(one.name), []).append(one)
    return found, unreadable


def _requires_errors(facts: WheelFacts, claim: WheelClaim, required: dict[str, list[Requirement]]) -> list[str]:
    errors = []
    for line in claim.requires:
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name not in required:
            errors.append(f"METADATA does not require {line}: pip would install the wheel with any {wanted.name}")
        elif name == "torch":
            window = _combined(required[name])
            wide = [str(one) for one in TORCHES if one in window and one not in wanted.specifier]
            if wide:
                errors.append(f"METADATA allows torch {join_names(wide)}, but this build is only for {line}")
        elif set(wanted.specifier) - set(_combined(required[name])):
            errors.append(f"METADATA requires {required[name][0]}, but `requires` in extension.yaml has {line}")
    uses_torch = any(library.needs_torch for library in facts.libraries)
    if "torch" in required:
        windows = {cell: _combined([one for one in required["torch"] if counts_in(one, cell)]) for cell in claim.cells}
        # A pin such as ==2.11.0+cu130 admits only the release on PyTorch's own index, which has that local version.
        excluded = [
            cell
            for cell, window in windows.items()
            if str(cell.torch) not in window and f"{cell.torch}+{cell.cuda.variant}" not in window
        ]
        if excluded:
            names = join_names([str(cell) for cell in excluded])
            errors.append(f"METADATA requires torch{windows[excluded[0]]}, which excludes cells of this build: {names}")
    elif uses_torch and not any(Requirement(line).name == "torch" for line in claim.requires):
        errors.append("the libraries link torch, but METADATA does not require torch")
    return errors


def _combined(requirements: list[Requirement]) -> SpecifierSet:
    return SpecifierSet(",".join(str(one.specifier) for one in requirements if str(one.specifier)))


def requires_admit(requires_python: str, python: Python) -> bool:
    """Whether Requires-Python admits the newest patch release of a Python; one that cannot be read excludes none."""
    try:
        return f"{python.series}.99" in SpecifierSet(requires_python)
    except ValueError:  # InvalidSpecifier or a too long number; reported by the check `metadata`
        return True


def lower_bounds(requires_python: str) -> str:
    """Requires-Python as uv 0.13.9 reads it, without upper bounds and exclusions: `>=3.12` for `==3.12.*,!=3.12.4`."""
    try:
        each = list(SpecifierSet(requires_python))
    except ValueError:
        return requires_python
    least = (one for one in each if one.operator not in ("<", "<=", "!="))
    return ",".join(f"{'>' if one.operator == '>' else '>='}{one.version.removesuffix('.*')}" for one in least)


def _python_errors(facts: WheelFacts, claim: WheelClaim) -> list[str]:
    if not facts.requires_python:
        return []
    try:
        pythons = SpecifierSet(facts.requires_python)
        _convert(pythons)
    except ValueError:
        return [f"Requires-Python {facts.requires_python!r} is not a valid version range"]
    errors = []
    excluded = sorted({str(cell.python) for cell in claim.cells if f"{cell.python.series}.99" not in pythons})
    if excluded:
        errors.append(
            f"Requires-Python {facts.requires_python} excludes Python {join_names(excluded)}, which cells of this "
            "build have"
        )
    for tag in sorted({tag for line in facts.tags for tag in parse_tag(line)}, key=str):
        # `cp310` means 3.10 and later. Nobody can install a wheel whose Requires-Python excludes all of them.
        oldest = oldest_python(tag)
        later = range(oldest.minor, oldest.minor + 20) if oldest else ()
        if oldest and not any(f"{oldest.major}.{minor}.99" in pythons for minor in later):
            named = f"{tag.interpreter}-{tag.abi}"
            errors.append(f"Requires-Python {facts.requires_python} and the tag {named} have no Python in common")
    return errors
