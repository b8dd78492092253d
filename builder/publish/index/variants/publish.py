"""Writes the path `variants/` of an index: variant wheels, the variants of each version, and pages for installers."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from builder.errors import UsageError
from builder.publish.index.entry import Entry
from builder.publish.index.pages import plain_pages, root_pages
from builder.publish.index.repository import VARIANTS, Repository, file_path
from builder.publish.index.variants.variant import Variant, metadata_of, variant_of
from builder.publish.index.variants.variant_wheel import variant_filename, write_variant_wheel
from builder.publish.people.site import write_changed


@dataclass
class VariantsResult:
    """What is in `variants/` afterwards.

    Attributes:
        wheels: file names of the variant wheels, by project.
        skipped: why a published wheel has no variant, by file name.

    """

    wheels: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def publish_variants(repository: Repository) -> VariantsResult:
    """Write the path `variants/` from the published wheels that are not yanked; existing files stay as they are."""
    result = VariantsResult()
    for project in sorted({*repository.projects(), *repository.projects_of(VARIANTS)}):
        _write_project(repository, project, result)
    write_changed(repository.objects, VARIANTS, root_pages(sorted(result.wheels)))
    return result


def update_variants(repository: Repository, projects: Iterable[str]) -> None:
    """Write the pages of `variants/` again for those projects that have one; their wheels have changed."""
    for project in (changed := set(projects) & set(repository.projects_of(VARIANTS))):
        _write_project(repository, project, VariantsResult())
    if changed:
        write_changed(repository.objects, VARIANTS, root_pages(repository.projects_of(VARIANTS)))


def variant_faults(repository: Repository) -> Iterator[str]:
    """What is wrong with `variants/`: wheels that are yanked or no longer published, missing and changed files."""
    for project in repository.projects_of(VARIANTS):
        page = f"{VARIANTS}/{project}/index.json"
        wanted = {name for entry in repository.entries(project) if (name := _variant_name(entry))}
        try:
            listed = {
                str(file["filename"]): (unquote(str(file["url"])).removeprefix("../../"), file["hashes"]["sha256"])
                for file in json.loads(repository.objects.read(page))["files"]
            }
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            yield f"{page}: the page is missing or damaged; `buildfarm index variants` writes it"
            continue
        for name, (path, sha256) in sorted(listed.items()):
            if name.endswith(".whl") and name not in wanted:
                yield f"{page}: {name} is yanked or deleted; `buildfarm index variants` removes it from the page"
            elif _sha256(repository, path) != sha256:
                yield f"{path}: the file is missing or its content changed"


def _variant_name(entry: Entry) -> str:
    """The file name of the variant wheel of a published wheel; empty if it gets none."""
    try:
        return variant_filename(entry.filename, variant_of(entry)) if entry.yanked is None else ""
    except UsageError:
        return ""


def _sha256(repository: Repository, path: str) -> str:
    found = hashlib.sha256()
    try:
        for chunk in repository.objects.chunks(path):
            found.update(chunk)
    except (FileNotFoundError, UsageError):
        return ""
    return found.hexdigest()


def _write_project(repository: Repository, project: str, result: VariantsResult) -> None:
    files = _project_files(repository, repository.entries(project), result)
    names = [file["filename"] for file in files]
    if names:
        result.wheels[project] = [name for name in names if name.endswith(".whl")]
        write_changed(repository.objects, f"{VARIANTS}/{project}", plain_pages(project, files))
    else:
        for name in ("index.html", "index.json"):
            repository.objects.delete(f"{VARIANTS}/{project}/{name}")


def _project_files(repository: Repository, entries: Sequence[Entry], result: VariantsResult) -> list[dict[str, Any]]:
    """The variant wheels of a project and the JSON file of each version, as file objects of PEP 691."""
    versions: dict[str, dict[str, Variant]] = {}
    files = []
    for entry in sorted(entries, key=lambda one: one.filename):
        try:
            if entry.yanked is not None:
                raise UsageError("it is yanked", where=entry.filename)
            variant = variant_of(entry)
            known = versions.setdefault(variant.version, {}).setdefault(variant.label, variant)
            if known != variant:
                raise UsageError("a different wheel of this version has other properties", where=entry.filename)
        except UsageError as error:
            result.skipped[entry.filename] = error.sentence
            continue
        files.append(_add_wheel(repository, entry, variant))
    stem = next((file["filename"].partition("-")[0] for file in files), "")
    for version in sorted({file["filename"].split("-")[1] for file in files}):
        data = json.dumps(metadata_of(versions[version]), indent=1, sort_keys=True).encode() + b"\n"
        files.append(_add(repository, f"{stem}-{version}-variants.json", data))
    return files


def _add_wheel(repository: Repository, entry: Entry, variant: Variant) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, entry.filename)
        wheel.write_bytes(repository.objects.read(entry.path))
        made = write_variant_wheel(wheel, variant, Path(folder))
        file = _add(repository, made.name, made.read_bytes())
    return file | ({"requires-python": entry.requires_python} if entry.requires_python else {})


def _add(repository: Repository, name: str, data: bytes) -> dict[str, Any]:
    sha256 = hashlib.sha256(data).hexdigest()
    path = file_path(sha256, name)
    repository.objects.create(path, data)
    return {"filename": name, "url": path, "hashes": {"sha256": sha256}, "size": len(data)}
