"""Write a wheel under its final name, with its version, requirements and RECORD; same input, same bytes."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import Code, UsageError
from builder.formats import sha256_of
from builder.matrix.local_version import current_form
from builder.untrusted import JsonError, parse_json
from builder.wheelfile.archive import UNLISTED, WheelFile, record_fault
from builder.wheelfile.compatibility import check_wheel_name, narrowed

_OLDEST = (1980, 1, 1, 0, 0, 0)  # the first second a zip can hold
_LIMITED = re.compile(r"[^;]*(?:[=~]=|<)[^;]*")  # a requirement with a newest version, without a marker


@dataclass(frozen=True)
class Label:
    """The metadata that the wheel gets."""

    local_version: str  # PEP 440 local version that is appended, e.g. `cu130.torch2.11`.
    #: The torch releases that the wheel works with, e.g. `torch==2.11.*`; empty: METADATA keeps the requirement of the
    #: source.
    torch: str
    requires: tuple[str, ...] = ()  # further requirements
    built_with: str = ""  # the torch release that the wheel was compiled with, or empty
    #: How it was made, as plain data, for `.dist-info/buildfarm.json`; empty: no such file.
    made_by: Mapping[str, object] = field(default_factory=dict)
    #: Makes, from the wheel's project, version and file name, the bytes of `.dist-info/sboms/buildfarm.cdx.json` (PEP
    #: 770); None for none.
    sbom: Callable[[str, str, str], bytes] | None = None


@dataclass(frozen=True)
class Member:
    """One file of a wheel: its path, its bytes, and whether it may be executed."""

    path: str
    data: bytes
    executable: bool


def read_members(wheel: Path) -> list[Member]:
    """All files of a wheel, without folders. Raises DamagedWheelError where it cannot be read."""
    with WheelFile(wheel) as archive:
        return [Member(name, archive.read(name), archive.executable(name)) for name in archive.names]


def relabelled_version(version: str, local_version: str) -> str:
    """The version with the local version appended: `1.0` to `1.0+cu13`, `1.0+git7` to `1.0+git7.cu13`.

    A version that already ends with it is kept, so that relabelling twice changes nothing.
    """
    old = Version(current_form(str(Version(version))))
    wanted = Version(f"0+{local_version}").local or ""
    if not old.local or old.local == wanted:
        return f"{old.public}+{wanted}"
    if old.local.endswith(f".{wanted}"):
        return str(old)
    return f"{old.public}+{old.local}.{wanted}"


def relabel_metadata(metadata: str, label: Label) -> tuple[str, str]:
    """METADATA with the new version and requirements, and that version; all other lines are kept.

    A further requirement without a version takes the place of one that names the newest version that it accepts.

    One line replaces all lines that require torch, at the position of the first: no marker, no extra and none of
    `label.requires` can allow other releases than the tested ones. Extras of torch itself are kept, and so is a range
    that is narrower than `label.torch` (`narrowed`).
    Raises ValueError when the version or a requirement of the label is malformed.
    """
    head, gap, body = _split(metadata)
    headers, version, kept = _fields(head), "", list[tuple[str, str]]()
    theirs = [text.partition(":")[2].strip() for name, text in headers if name == "requires-dist"]
    theirs = [line for line in theirs if _project(line) == "torch"]
    torch = narrowed(label.torch, theirs, label.built_with) if label.torch else None
    if torch:
        for line in theirs:
            with suppress(InvalidRequirement):
                old = Requirement(line)
                torch.extras |= set() if old.marker else old.extras
    ours = ("requires-dist", f"Requires-Dist: {torch}")
    free = {_project(wish) for wish in label.requires if not Requirement(wish).specifier} - {"torch"}
    for name, text in headers:
        if name == "requires-dist" and _project(text) in free and _LIMITED.fullmatch(text):
            continue
        if name == "version":
            version = relabelled_version(text.partition(":")[2].strip(), label.local_version)
            kept.append((name, f"Version: {version}"))
        elif not (torch and name == "requires-dist" and _project(text) == "torch"):
            kept.append((name, text))
        elif ours not in kept:
            kept.append(ours)
    if not version:
        raise ValueError("no Version")
    if torch and ours not in kept:
        kept.insert(_after_requirements(kept), ours)
    present = {_canonical(text.partition(":")[2]) for name, text in kept if name == "requires-dist"}
    new = [wish for wish in label.requires if _canonical(wish) not in present and _project(wish) != "torch"]
    end = _after_requirements(kept)
    kept[end:end] = [("requires-dist", f"Requires-Dist: {Requirement(wish)}") for wish in new]
    return "\n".join(text for _, text in kept) + (gap or "\n") + body, version


def _split(metadata: str) -> tuple[str, str, str]:
    """The headers, the empty line after them, and the description, unchanged."""
    found = re.search(r"\r?\n\r?\n", metadata)
    if not found:
        return metadata.rstrip("\r\n"), "", ""
    return metadata[: found.start()], "\n\n", metadata[found.end() :]


def _fields(head: str) -> list[tuple[str, str]]:
    """Lower-case name and text of each header; a line that begins with a space continues the header before it."""
    fields: list[tuple[str, str]] = []
    for line in head.replace("\r\n", "\n").split("\n"):
        if line[:1] in (" ", "\t") and fields:
            name, text = fields[-1]
            fields[-1] = (name, f"{text}\n{line}")
        else:
            fields.append((line.partition(":")[0].strip().lower(), line))
    return fields


def _project(text: str) -> str:
    """The project of a header or requirement, also in old spellings that packaging no longer accepts."""
    found = re.match(r"(?:[Rr]equires-[Dd]ist:)?\s*([A-Za-z0-9][A-Za-z0-9._-]*)", text)
    return canonicalize_name(found[1]) if found else ""


def _canonical(requirement: str) -> str:
    try:
        return str(Requirement(requirement.strip()))
    except InvalidRequirement:
        return requirement.strip()


def _after_requirements(fields: Sequence[tuple[str, str]]) -> int:
    return max((at + 1 for at, (name, _) in enumerate(fields) if name == "requires-dist"), default=len(fields))


def relabel(members: Sequence[Member], filename: str, label: Label) -> tuple[str, list[Member]]:
    """The new file name and the files under their new paths, with a new RECORD at the end.

    Raises ValueError when there is no METADATA, or its version or the file's name is malformed.
    """
    project = parse_wheel_filename(filename)[0]
    by_path = {member.path: member for member in members}
    info = _info(members)
    text, version = relabel_metadata(_text(by_path[f"{info}/METADATA"]), label)
    stem = f"{canonicalize_name(project).replace('-', '_')}-{version}"
    new_name = _new_name(filename, stem)
    moved = _moved(by_path, info, stem, {"METADATA": text})
    moved = [_relabel_sbom(member, new_name, version) for member in moved]
    ours: dict[str, bytes] = {}
    if label.made_by:
        ours[f"{stem}.dist-info/buildfarm.json"] = json.dumps(label.made_by, indent=1, sort_keys=True).encode() + b"\n"
    if label.sbom:
        ours[f"{stem}.dist-info/sboms/buildfarm.cdx.json"] = label.sbom(project, version, new_name)
    moved = [member for member in moved if member.path not in ours]
    moved += [Member(path, data, executable=False) for path, data in ours.items()]
    return new_name, _with_record(moved, stem)


def correct(members: Sequence[Member], filename: str, *, tag: str = "") -> tuple[str, list[Member]]:
    """The new file name and the files of a wheel in which file name, METADATA and WHEEL agree: with those of the name.

    A tag, such as `cp312-cp312-manylinux_2_28_x86_64`, takes the place of those of the file name. Raises ValueError for
    a malformed file name, and when there is no METADATA.
    """
    project, version, _, tags = parse_wheel_filename(filename)
    tags = parse_tag(tag) if tag else tags
    by_path = {member.path: member for member in members}
    info = _info(members)
    head, gap, body = _split(_text(by_path[f"{info}/METADATA"]))
    headers = _fields(head)
    changed = {"version": f"Version: {version}"}
    if canonicalize_name(dict(headers).get("name", "").partition(":")[2].strip()) != project:
        changed["name"] = f"Name: {project}"
    lines = [changed.get(key, text) for key, text in headers]
    wheel = [text for key, text in _fields(_split(_text(by_path[f"{info}/WHEEL"]))[0]) if key != "tag"]
    wheel += [f"Tag: {each}" for each in sorted(map(str, tags))]
    stem = f"{project.replace('-', '_')}-{version}"
    texts = {"METADATA": "\n".join(lines) + (gap or "\n") + body, "WHEEL": "\n".join(wheel) + "\n"}
    return _new_name(filename, stem, tag), _with_record(_moved(by_path, info, stem, texts), stem)


def relabel_wheel(wheel: Path, out: Path) -> Path:
    """Write the wheel that `correct` makes into the folder `out`; returns its path. The wheel itself is not changed.

    Raises UsageError for a wheel that cannot be read or differs from its RECORD, and when `out` has a different file of
    this name.
    """
    with WheelFile(wheel) as archive:
        check_wheel_name(wheel.name, str(wheel))
        fault = record_fault(archive)
    if fault:
        raise UsageError(fault, Code.WHEEL_DAMAGED, where=str(wheel), hints=["get the wheel from its source again"])
    try:
        final_name, final = correct(read_members(wheel), wheel.name)
    except ValueError as error:
        raise UsageError(f"this wheel cannot be relabelled: {error}", Code.VALUE_INVALID, where=str(wheel)) from None
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".relabel-", dir=out) as scratch:
        made = Path(scratch, final_name)
        write_wheel(final, made)
        target = out / final_name
        if target.exists() and sha256_of(target) != sha256_of(made):
            sentence, hint = "the folder has a different file of this name", "pass another folder with --out"
            raise UsageError(sentence, Code.ALREADY_EXISTS, where=str(target), hints=[hint])
        made.replace(target)
    return target


def _info(members: Sequence[Member]) -> str:
    paths = [m.path for m in members if re.fullmatch(r"[^/]+\.dist-info/METADATA", m.path)]
    if len(paths) != 1:
        raise ValueError(f"expected one *.dist-info/METADATA, found {len(paths)}")
    return paths[0].partition("/")[0]


def _text(member: Member) -> str:
    return member.data.decode("utf-8", "surrogateescape")


def _new_name(filename: str, stem: str, tag: str = "") -> str:
    build = parse_wheel_filename(filename)[2]
    number = f"{build[0]}{build[1]}-" if build else ""
    return f"{stem}-{number}{tag or '-'.join(filename.removesuffix('.whl').rsplit('-', 3)[1:])}.whl"


def _moved(by_path: Mapping[str, Member], info: str, stem: str, texts: Mapping[str, str]) -> list[Member]:
    """The files under their new paths, without RECORD; `texts` replaces files of .dist-info."""
    moved = []
    for path, member in by_path.items():
        top, slash, rest = path.partition("/")
        if top == info and rest in UNLISTED:
            continue
        if top == info:
            top = f"{stem}.dist-info"
            if rest in texts:
                member = replace(member, data=texts[rest].encode("utf-8", "surrogateescape"))  # noqa: PLW2901
        elif top.endswith(".data") and "-" in top:  # no package's name has a hyphen
            top = f"{stem}.data"
        moved.append(replace(member, path=top + slash + rest))
    return moved


def _with_record(members: Sequence[Member], stem: str) -> list[Member]:
    """The files with RECORD; .dist-info comes last, as the wheel format recommends, and RECORD at the very end."""
    ordered = sorted(members, key=lambda member: (member.path.startswith(f"{stem}.dist-info/"), member.path))
    path, text = f"{stem}.dist-info/RECORD", io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    for member in ordered:
        digest = base64.urlsafe_b64encode(hashlib.sha256(member.data).digest()).rstrip(b"=").decode()
        rows.writerow((member.path, f"sha256={digest}", len(member.data)))
    rows.writerow((path, "", ""))
    return [*ordered, Member(path, text.getvalue().encode(), executable=False)]


def _relabel_sbom(member: Member, new_name: str, version: str) -> Member:
    """auditwheel's SBOM of the grafted libraries names the wheel by its old name; replace it by the new name."""
    if not re.fullmatch(r"[^/]+\.dist-info/sboms/auditwheel\.cdx\.json", member.path):
        return member

    def renamed(sbom: dict[str, Any]) -> bytes:
        old_ref = str(sbom["metadata"]["component"]["purl"])
        project = old_ref.removeprefix("pkg:pypi/").partition("@")[0]
        new_ref = f"pkg:pypi/{project}@{quote(version, safe='')}?file_name={quote(new_name, safe='')}"
        sbom["metadata"]["component"]["version"] = sbom["components"][0]["version"] = version
        return json.dumps(sbom).replace(json.dumps(old_ref)[1:-1], new_ref).encode()

    try:
        return replace(member, data=parse_json(member.data, renamed))
    except JsonError:  # auditwheel did not write it: a source that ships such a file keeps it
        return member


def write_wheel(members: Sequence[Member], path: Path) -> None:
    """Write a zip, synced to disk, whose bytes depend only on the files: no clock, no SOURCE_DATE_EPOCH."""
    with path.open("wb") as out:
        with zipfile.ZipFile(out, "w") as zipped:
            for member in members:
                info = zipfile.ZipInfo(member.path, _OLDEST)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = (stat.S_IFREG | (0o755 if member.executable else 0o644)) << 16
                zipped.writestr(info, member.data)
        out.flush()
        os.fsync(out.fileno())
