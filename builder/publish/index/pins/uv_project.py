"""Pins in a pyproject.toml for uv: dependencies, `[[tool.uv.index]]` and `[tool.uv.sources]`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any, cast

import tomlkit
import tomlkit.exceptions
import tomlkit.items
from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.errors import UsageError
from builder.publish.index.pins.pins import Pins, without_credentials

_TORCH_INDEX = re.compile(r"pytorch-cu\d+")


def pin_project(text: str, pins: Pins, where: str) -> str:
    """The text of a pyproject.toml with the pins; comments, order and other entries stay. `where` is named in errors.

    A dependency on the same project is replaced if it has the marker of the pins, or if it excludes their version. Both
    indexes are explicit: uv takes only the packages from them that name them as their source.

    Raises UsageError for broken TOML, a missing `[project]` table, dynamic dependencies, values of a wrong type, and
    tables of `[tool.uv]` in different places.
    """
    try:
        document = tomlkit.parse(text)
    except tomlkit.exceptions.TOMLKitError as error:
        raise UsageError(f"this file is not valid TOML: {error}", where=where) from None
    plain = tomlkit.parse(tomlkit.dumps(document.unwrap()))
    try:
        _pin(document, pins, where)
        _pin(plain, pins, where)
    except (AttributeError, TypeError, KeyError, tomlkit.exceptions.TOMLKitError):
        raise UsageError(
            "a value of [project] or [tool.uv] has a type that uv does not accept", where=where, hints=["run `uv lock`"]
        ) from None
    new = tomlkit.dumps(document)
    if tomllib.loads(new) != plain.unwrap():  # tomlkit cannot add to an array of tables with other tables in between
        raise UsageError("the tables of [tool.uv] are in different places of this file; put them together", where=where)
    return new


def _pin(document: tomlkit.TOMLDocument, pins: Pins, where: str) -> None:
    if "project" not in document:
        raise UsageError("the file has no [project] table", where=where, hints=["run `uv init --bare` first"])
    project = cast(MutableMapping[str, Any], document["project"])
    if "dependencies" in project.get("dynamic", ()):
        raise UsageError(
            "the dependencies of this project are dynamic, so they are not in this file",
            where=where,
            hints=["write a constraints file for pip: --write constraints.txt"],
        )
    if not project.get("dependencies"):
        project["dependencies"] = tomlkit.array().multiline(multiline=True)
    for requirement in (pins.requirement, pins.torch):
        _set_dependency(project["dependencies"], requirement, pins.marker)
    uv = _table(_table(document, "tool"), "uv")
    index = _set_index(uv, pins.index_name, pins.index)
    torch_index = _set_index(uv, pins.torch_index_name, pins.torch_index) if pins.torch_index else ""
    sources = _table(uv, "sources", tomlkit.table())
    _set_source(sources, pins.project, index, pins.marker, everywhere=True)
    if torch_index:
        _set_source(sources, "torch", torch_index, pins.marker)
    else:
        _remove_torch_source(sources, pins.marker)


def _table(parent: MutableMapping[str, Any], name: str, new: tomlkit.items.Table | None = None) -> Any:  # noqa: ANN401
    if name not in parent:
        parent[name] = new or tomlkit.table(is_super_table=True)
    return parent[name]


def _set_dependency(dependencies: tomlkit.items.Array, requirement: Requirement, marker: str) -> None:
    """Replace the lines that the pin takes the place of; without one, append the pin."""
    version = next(iter(requirement.specifier)).version
    replaced = []
    for position, line in enumerate(dependencies):
        try:
            old = Requirement(line)
        except InvalidRequirement:
            continue
        excludes = old.marker is None and (old.url is not None or not old.specifier.contains(version, prereleases=True))
        if canonicalize_name(old.name) == requirement.name and (excludes or _same(old.marker, marker)):
            replaced.append((position, old.extras))
    extras = ",".join(sorted({extra for _, extras in replaced for extra in extras}))
    new = f"{requirement.name}{f'[{extras}]' if extras else ''}{requirement.specifier} ; {marker}"
    for position, _ in reversed(replaced[1:]):
        del dependencies[position]
    if not replaced:
        dependencies.append(new)
    elif dependencies[replaced[0][0]] != new:
        dependencies[replaced[0][0]] = new


def _set_index(uv: MutableMapping[str, Any], name: str, url: str) -> str:
    """Add an explicit index, or update the one of this name; returns the name of the index with this URL."""
    url = without_credentials(url)
    if "index" not in uv:
        uv["index"] = tomlkit.aot()
    indexes = uv["index"]
    for index in indexes:
        if str(index["url"]).rstrip("/") == url.rstrip("/") and "name" in index:
            return str(index["name"])
    for index in indexes:
        if index.get("name") == name:
            index["url"] = url
            return name
    new: Any = tomlkit.table() if isinstance(indexes, tomlkit.items.AoT) else tomlkit.inline_table()
    new.update({"name": name, "url": url, "explicit": True})
    indexes.append(new)
    return name


def _set_source(
    sources: MutableMapping[str, Any], project: str, index: str, marker: str, *, everywhere: bool = False
) -> None:
    """Take a project from an index: on machines with the marker, or everywhere if no other source stays."""
    key = _key(sources, project)
    others = [item for item in _items(sources.get(key)) if not _replaceable(item, marker)]
    own = {"index": index} if everywhere and not others else {"index": index, "marker": marker}
    if key not in sources or tomlkit.item(sources[key]).unwrap() != ([*others, own] if others else own):
        sources[key] = _inline_list([*others, own]) if others else _inline(own)


def _remove_torch_source(sources: MutableMapping[str, Any], marker: str) -> None:
    """Remove the index of a CUDA variant, which would replace the torch of the default index."""
    key = _key(sources, "torch")
    items = _items(sources.get(key))
    kept = [
        item for item in items if not (_replaceable(item, marker) and _TORCH_INDEX.fullmatch(item.get("index", "")))
    ]
    if not kept and items:
        del sources[key]
    elif len(kept) < len(items):
        sources[key] = _inline_list(kept)


def _key(sources: Mapping[str, Any], project: str) -> str:
    return next((name for name in sources if canonicalize_name(name) == project), project)


def _items(source: Any) -> list[Mapping[str, Any]]:  # noqa: ANN401 - a value of a TOML file
    if source is None:
        return []
    return list(source) if isinstance(source, list) else [source]


def _replaceable(item: Mapping[str, Any], marker: str) -> bool:
    """Whether a source is for every machine or for the marker, and for no extra or dependency group."""
    if item.keys() & {"extra", "group"}:
        return False
    try:
        return "marker" not in item or _same(Marker(item["marker"]), marker)
    except InvalidMarker:
        return False


def _same(marker: Marker | None, text: str) -> bool:
    return marker is not None and marker == Marker(text)


def _inline(values: Mapping[str, Any]) -> tomlkit.items.InlineTable:
    table = tomlkit.inline_table()
    table.update(values)
    return table


def _inline_list(items: list[Any]) -> tomlkit.items.Array:
    array = tomlkit.array().multiline(multiline=True)
    for item in items:
        array.append(_inline(item))
    return array
