"""What the cures of known causes change: contents of files and keys of the recipe, and what stays as it is and why.

Nothing is written here. A cure is for a cause that the compilers named; with it come the cures of what else the release
removed, so that a build does not fail once for each name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath

from builder.diagnosis.known_errors import KnownCause, KnownError, removed
from builder.diagnosis.rewrite import NotRewrittenError, defines, matches, rewrite, with_include
from builder.diagnosis.target_version import NATIVE, source_files
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import and_list

_SETUP = "setup.py"
#: Files that a line names.
_FILES = 3


@dataclass
class Treatment:
    """What the cures change."""

    files: dict[str, bytes] = field(default_factory=dict)  # the new content of files, by their path in the source
    recipe: list[tuple[str, str, str]] = field(default_factory=list)  # key of extension.yaml, name in it or "", value
    done: list[str] = field(default_factory=list)  # one line for each cure: where, what, why
    refused: list[str] = field(default_factory=list)  # why a cure was not applied


def treat(tree: Path, found: Sequence[KnownCause], torch: Torch, cuda: Cuda) -> Treatment:
    """What the cures of these causes change in the source below `tree`."""
    treatment = Treatment()
    named: dict[str, list[KnownCause]] = {}
    for cause in found:
        if cause.known.cure:
            named.setdefault(cause.known.hint, []).append(cause)
    if not named:
        return treatment
    others = [known for known in removed(torch, cuda) if known.cure and known.hint not in named]
    sources = dict(_sources(tree))
    for name in [*sources]:
        if twice := _twice((tree / name).read_bytes(), [*(each[0].known for each in named.values()), *others]):
            del sources[name]
            treatment.refused.append(f"{name} is not changed: two cures are for one place, {twice}")
    for causes in named.values():
        _cure(causes, tree, sources, treatment)
    for known in others if treatment.files else ():
        own = [name for name, (_, foreign) in sources.items() if not foreign]
        _rewrite(known, _unless_defined(known, own, tree, treatment), tree, treatment, sure=False)
    return treatment


def _sources(tree: Path) -> Iterator[tuple[str, tuple[Path, bool]]]:
    """Path in the source, path, and whether it is code of others, of each file of C++ and CUDA."""
    for path, foreign in source_files(tree, NATIVE):
        name = path.relative_to(tree).as_posix()
        if name.isprintable() and not path.is_symlink():
            yield name, (path, foreign)


def _twice(code: bytes, rows: Sequence[KnownError]) -> str:
    """A pattern that finds the same place of the code as that of another row; empty if there is none."""
    seen: dict[tuple[int, int], str] = {}
    for known in rows:
        for pattern in known.cure.rewrite if known.cure else ():
            if any(seen.setdefault(place, known.hint) != known.hint for place in matches(code, pattern)):
                return pattern
    return ""


def _cure(
    causes: Sequence[KnownCause], tree: Path, sources: Mapping[str, tuple[Path, bool]], treatment: Treatment
) -> None:
    """Apply the cure of one row, which these causes have."""
    known, groups = causes[0].known, causes[0].groups
    assert known.cure  # noqa: S101 - the caller chose such rows
    places = [normpath(cause.error.place.file) for cause in causes if cause.error.place]
    reported = [name for name in dict.fromkeys(places) if name in sources]
    before = (len(treatment.done), len(treatment.refused))
    if known.cure.rewrite:
        # Other files may compile, unless a release removed the form, or the program (ptxas, ld) named no file.
        certain = known.torch or known.cuda or not places
        own = [name for name, (_, foreign) in sources.items() if certain and not foreign and name not in reported]
        _rewrite(known, [*reported, *_unless_defined(known, own, tree, treatment)], tree, treatment, sure=True)
    elif known.cure.include:
        for cause in causes:
            if cause.error.place and (name := normpath(cause.error.place.file)) in sources:
                _include([header.format_map(cause.groups) for header in known.cure.include], name, tree, treatment)
    if known.cure.setup:
        _setup(known, groups, tree, treatment)
    for key, value in known.cure.recipe.items():
        listed = [("", value)] if isinstance(value, str) else [("", each) for each in value]
        for name, text in value.items() if isinstance(value, dict) else listed:
            treatment.recipe.append((key, name, text))
            treatment.done.append(f"extension.yaml: {key}: {f'{name}: ' if name else ''}{text}")
    if before == (len(treatment.done), len(treatment.refused)):
        lost = next((name for name in places if name not in sources and not known.cure.setup), "")
        where = f"{lost} is no file of the source" if lost else "no file has code of the form that the cure knows"
        treatment.refused.append(f"{known.about} is not cured: {where}")


def _unless_defined(known: KnownError, names: Iterable[str], tree: Path, treatment: Treatment) -> list[str]:
    """The files, or none of them if one defines by itself what the row is about: then the source has its own cure."""
    names, rules = list(names), known.cure.rewrite if known.cure else ()
    contents = [treatment.files.get(name) or (tree / name).read_bytes() for name in names]
    plain = [pattern for pattern in rules if re.fullmatch(r"\w+", pattern)]
    return [] if any(defines(code, pattern) for code in contents for pattern in plain) else names


def _rewrite(known: KnownError, names: Sequence[str], tree: Path, treatment: Treatment, *, sure: bool) -> None:
    """Rewrite the files that have code of a row's patterns; `sure`: say so if a file cannot be rewritten."""
    cure, changed, used = known.cure, list[str](), dict[str, str]()
    assert cure  # noqa: S101 - the caller chose such rows
    for name in names:
        code = treatment.files.get(name) or (tree / name).read_bytes()
        try:
            new = rewrite(code, cure.rewrite, cure.include)
        except NotRewrittenError as error:
            if sure:
                treatment.refused.append(f"{name} is not changed: {error}")
            continue
        if new != code:
            treatment.files[name] = new
            changed.append(name)
            used |= {pattern: text for pattern, text in cure.rewrite.items() if matches(code, pattern)}
    if changed:
        why = f" ({known.reason()})" if known.reason() else ""
        treatment.done.append(f"{_named(changed)}: {'; '.join(map(_form, used.items()))}{why}")


def _form(rule: tuple[str, str]) -> str:
    """A pattern and its replacement as people read them: `AT_DISPATCH_…(x.type()) → AT_DISPATCH_…(x.scalar_type())`."""
    holes = re.compile(r"\$\$\$[A-Z]+|(?<=\w)\$[A-Z]+|\$([A-Z]+)")
    before, after = (holes.sub(lambda hole: hole[1].lower() if hole[1] else "…", text) for text in rule)
    return f"{before} → {after}" if after else f"without {before}"


def _include(headers: Iterable[str], name: str, tree: Path, treatment: Treatment) -> None:
    code = treatment.files.get(name) or (tree / name).read_bytes()
    for header in headers:
        new = with_include(code, header)
        if new != code:
            treatment.files[name] = code = new
            treatment.done.append(f"{name}: #include <{header}>")


def _setup(known: KnownError, groups: Mapping[str, str], tree: Path, treatment: Treatment) -> None:
    """Replace the texts of setup.py that a row names, by the syntax tree."""
    try:
        code = treatment.files.get(_SETUP) or (tree / _SETUP).read_bytes()
        module = ast.parse(code)
    except (OSError, ValueError, SyntaxError):  # ValueError: not UTF-8
        return
    lines = code.splitlines(keepends=True)
    texts = [node for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for node in sorted(texts, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        for pattern, replacement in known.cure.setup.items() if known.cure else ():
            old = str(node.value)
            if node.end_lineno != node.lineno or not old.startswith("-"):
                continue
            new = re.sub(rf"(?<!\S)(?:{pattern})(?!\S)", replacement.format_map(groups), old)
            line = lines[node.lineno - 1]
            literal = line[node.col_offset : node.end_col_offset]
            changed = literal.replace(old.encode(), new.encode())
            if changed != literal:
                lines[node.lineno - 1] = line[: node.col_offset] + changed + line[node.end_col_offset :]
                treatment.done.append(f"{_SETUP}: {old} → {new}")
    treatment.files |= {_SETUP: b"".join(lines)} if b"".join(lines) != code else {}


def _named(names: Sequence[str]) -> str:
    more = len(names) - _FILES
    return and_list([*names[:_FILES], f"{more} more"] if more > 0 else names)
