"""Makes the variant wheel of a published wheel: the same files under a version without the label, and variant.json."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.publish.index.variants.variant import Variant, metadata_of
from builder.untrusted.json_data import JsonError, parse_json
from builder.wheels.repair.relabel import Member, read_members, record_of, write_wheel


def variant_filename(filename: str, variant: Variant) -> str:
    """The file name of the variant wheel: `my_ext-1.0+torch211-cp312-cp312-linux_x86_64-cu126.whl`."""
    stem = f"{filename.partition('-')[0]}-{variant.version}"
    return f"{stem}-{filename.removesuffix('.whl').split('-', 2)[2]}-{variant.label}.whl"


def write_variant_wheel(wheel: Path, variant: Variant, folder: Path) -> Path:
    """Write the variant wheel into a folder; the same wheel and variant give the same bytes.

    The version in METADATA, in the names of folders and in the SBOMs is the variant's. Everything else stays.
    Raises DamagedWheelError for a wheel that cannot be read.
    """
    name = variant_filename(wheel.name, variant)
    members = [member for member in read_members(wheel) if not re.search(r"\.dist-info/RECORD(\.\w+)?$", member.path)]
    info = next(member.path for member in members if member.path.endswith(".dist-info/METADATA")).partition("/")[0]
    new_info = f"{name.partition('-')[0]}-{variant.version}.dist-info"
    names = _Names(wheel.name, name, str(parse_wheel_filename(wheel.name)[1]), variant.version)
    moved = [_moved(member, info, new_info, names) for member in members]
    data = json.dumps(metadata_of({variant.label: variant}), indent=1, sort_keys=True).encode() + b"\n"
    moved.append(Member(f"{new_info}/variant.json", data, executable=False))
    moved.sort(key=lambda member: (member.path.startswith(f"{new_info}/"), member.path))
    target = folder / name
    write_wheel([*moved, record_of(moved, f"{new_info}/RECORD")], target)
    return target


@dataclass(frozen=True)
class _Names:
    """The file names and versions of both wheels."""

    old_file: str
    new_file: str
    old: str
    new: str


def _moved(member: Member, info: str, new_info: str, names: _Names) -> Member:
    top, _, rest = member.path.partition("/")
    data = member.data
    if top == info and rest == "METADATA":
        data = re.sub(rb"(?m)^Version:.*$", f"Version: {names.new}".encode(), data, count=1)
    elif top == info and rest.startswith("sboms/") and rest.endswith(".json"):
        with suppress(JsonError):  # an SBOM that the source brings may be no JSON; it stays as it is
            data = json.dumps(parse_json(data, lambda sbom: _renamed(sbom, names)), indent=2).encode() + b"\n"
    if top == info:
        top = new_info
    elif top == f"{info.removesuffix('.dist-info')}.data":
        top = f"{new_info.removesuffix('.dist-info')}.data"
    return replace(member, path=f"{top}/{rest}" if rest else member.path, data=data)


def _renamed(value: Any, names: _Names) -> Any:  # noqa: ANN401 - a value of a JSON file
    """A value of an SBOM with the new version and file name of the wheel; other components stay."""
    project = canonicalize_name(names.old_file.partition("-")[0])
    if isinstance(value, dict):
        ours = canonicalize_name(str(value.get("name", ""))) == project and value.get("version") == names.old
        changed = {key: _renamed(item, names) for key, item in value.items()}
        return {**changed, "version": names.new} if ours else changed
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if not isinstance(value, str):
        return value
    found = re.match(rf"pkg:pypi/([^@]+)@{re.escape(quote(names.old, safe=''))}(?=[?#]|$)", value)
    if found and canonicalize_name(found[1]) == project:
        value = f"pkg:pypi/{found[1]}@{quote(names.new, safe='')}{value[found.end() :]}"
    for spell in (str, partial(quote, safe="")):
        value = value.replace(spell(names.old_file), spell(names.new_file))
    return value
