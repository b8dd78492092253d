"""Apply the cures of known causes of a failed compile to a source, and keep what they change in its recipe.

The recipe gets one patch file, and keys in extension.yaml. A cure is for a cause that the compilers named; with it come
the cures of what else the release removed, so that a build does not fail once for each name.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import normpath

from builder.diagnosis.known_errors import KnownCause, KnownError, SourceCure, removed
from builder.diagnosis.rewrite import NotRewrittenError, defines, matches, rewrite, with_include
from builder.diagnosis.target_version import NATIVE, source_files
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import and_list
from builder.matrix.config import RECIPE, PathSource, Recipe
from builder.matrix.load import recipe_of
from builder.matrix.plan import Build
from builder.matrix.yaml_document import parse_document
from builder.recipes.project_files import extended
from builder.store import Store, project_key, write_atomic
from builder.wheels.sources.patches import make_patch
from builder.wheels.sources.prepare import prepare_source, project_folder

#: The patch with all cures of a recipe, which buildfarm writes.
PATCH = "patches/buildfarm-cures.patch"
_HEAD = b"Cures of errors of compilers, written by `buildfarm build`. Review them.\n"
_COMMENT = "# a cure that `buildfarm build` added"
_DIFF = b"diff --git "
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


def cure(recipe: Recipe, build: Build, found: Sequence[KnownCause], store: Store) -> tuple[Recipe, Treatment]:
    """Apply the cures of causes to the recipe of a build; return the new recipe and what was done.

    The recipe is the same object if nothing was done. The source of a user's own folder is not changed. Raises what
    `prepare_source` raises, and UsageError if extension.yaml has a form that cannot be extended.
    """
    patch, built = recipe.folder / PATCH, recipe.of(build.torch, build.cuda)
    if isinstance(recipe.source, PathSource):
        return recipe, Treatment()
    if patch in recipe.patches and built.patches[-1:] != (patch,):
        return recipe, Treatment(
            refused=[f"nothing is cured: `patches` has {PATCH} for other builds, or not at its end"]
        )
    with store.work(f"cure-{project_key(recipe.folder)}") as scratch:
        trees = [scratch / "before", scratch / "now"]
        uncured = replace(built, patches=tuple(each for each in built.patches if each != patch))
        for tree, each in zip(trees, (uncured, built), strict=True):
            tree.mkdir()
            prepare_source(each, tree, cache=store.root / "sources")
        before, now = (project_folder(recipe, tree) for tree in trees)
        treatment = treat(now, found, build.torch, build.cuda)
        lines = [each for each in treatment.recipe if _lacks(recipe, *each)]
        if treatment.files and patch not in recipe.patches:
            lines.append(("patches", "", PATCH))
        if not lines and not treatment.files:
            return recipe, treatment
        text = _extended(recipe, lines)
        if treatment.files:
            _write_patch(patch, patch.read_bytes() if patch in recipe.patches else b"", before, now, treatment)
    document = parse_document(text, recipe.folder / RECIPE)
    changed = recipe_of(document, recipe.folder)
    if lines:
        write_atomic(document.path, text.encode())
    return replace(recipe, **{key: getattr(changed, key) for key, _, _ in lines}), treatment


def _lacks(recipe: Recipe, key: str, name: str, value: str) -> bool:
    given = getattr(recipe, key)
    return not given if isinstance(given, bool) else (name or value) not in given


def _write_patch(patch: Path, old: bytes, before: Path, now: Path, treatment: Treatment) -> None:
    """Write all cures of a recipe to one file: those of the old one, and the new ones."""
    head = old.partition(_DIFF)[0].rstrip() or _HEAD
    head += "".join(f"\n  {line}" for line in treatment.done if not line.startswith(RECIPE)).encode() + b"\n\n"
    names = sorted({*treatment.files, *changed_files(old)})
    after = {name: treatment.files.get(name) or (now / name).read_bytes() for name in names}
    text = make_patch({name: (before / name).read_bytes() for name in names}, after)
    patch.parent.mkdir(exist_ok=True)
    write_atomic(patch, head + text)


def changed_files(patch: bytes) -> list[str]:
    """The files that the patch of cures changes."""
    heads = [line for line in patch.splitlines() if line.startswith(b"+++ b/")]
    return [line.removeprefix(b"+++ b/").rstrip(b"\t").decode() for line in heads]


def _extended(recipe: Recipe, lines: Sequence[tuple[str, str, str]]) -> str:
    """The text of the recipe with these items: key, name in it or "", value."""
    path = recipe.folder / RECIPE
    text = path.read_text(encoding="utf-8")
    for key, name, value in lines:
        if isinstance(getattr(recipe, key), bool):
            text = f"{text.rstrip()}\n{_COMMENT}\n{key}: {value}\n"
        else:
            text = extended(text, path, key, value, name, _COMMENT)
    return text


def treat(tree: Path, found: Sequence[KnownCause], torch: Torch, cuda: Cuda) -> Treatment:
    """What the cures of these causes change in the source below `tree`."""
    named: dict[str, list[KnownCause]] = {}
    for cause in found:
        if cause.known.cure:
            named.setdefault(cause.known.hint, []).append(cause)
    if not named:
        return Treatment()
    others = [known for known in removed(torch, cuda) if known.cure and known.hint not in named]
    source = _Source(tree, [*(causes[0].known for causes in named.values()), *others])
    for causes in named.values():
        source.cure(causes[0].known, causes)
    for known in others if source.treatment.files else ():
        source.rewrite(known, ())
    return source.treatment


class _Source:
    """The files of a source while it is cured."""

    def __init__(self, tree: Path, rows: Sequence[KnownError]) -> None:
        """`rows` are all that may be applied. A file in which two find the same place is left out."""
        self.treatment = Treatment()
        self._tree = tree
        self._foreign: dict[str, bool] = {}  # whether a file of C++ or CUDA is code of others
        for path, foreign in source_files(tree, NATIVE):
            name = path.relative_to(tree).as_posix()
            if name.isprintable() and not path.is_symlink():
                self._foreign[name] = foreign
                if twice := _twice(self._code(name), rows):
                    del self._foreign[name]
                    self.treatment.refused.append(f"{name} is not changed: two cures are for one place, {twice}")

    def cure(self, known: KnownError, causes: Sequence[KnownCause]) -> None:
        """Apply the cure of a row to the errors that have this cause, and what else is certain to have it."""
        cure, done = known.cure or SourceCure(), self.treatment.done
        before = [*done, *self.treatment.refused]
        places = [(normpath(each.error.place.file), each.groups) for each in causes if each.error.place]
        if cure.rewrite:
            # ptxas and ld name no file.
            self.rewrite(known, [name for name in dict(places) if name in self._foreign], anywhere=not places)
        for name, groups in places if not cure.rewrite else ():
            for header in cure.include if name in self._foreign else ():
                self._include(name, header.format_map(groups))
        self._setup(cure, causes[0].groups)
        for key, value in cure.recipe.items():
            listed = [("", value)] if isinstance(value, str) else [("", each) for each in value]
            for name, text in value.items() if isinstance(value, dict) else listed:
                self.treatment.recipe.append((key, name, text))
                done.append(f"extension.yaml: {key}: {f'{name}: ' if name else ''}{text}")
        if [*done, *self.treatment.refused] == before:
            lost = next((name for name, _ in places if name not in self._foreign and not cure.setup), "")
            why = f"{lost} is no file of the source" if lost else "no file has code of the form that the cure knows"
            self.treatment.refused.append(f"{known.about} is not cured: {why}")

    def rewrite(self, known: KnownError, reported: Sequence[str], *, anywhere: bool = False) -> None:
        """Rewrite the files that a compiler reported, and all own files if a release removed the form, or `anywhere`.

        Own files stay if one of them defines by itself what the row is about: the source has a cure of its own.
        """
        cure, changed, used = known.cure or SourceCure(), list[str](), dict[str, str]()
        own = [name for name, foreign in self._foreign.items() if not foreign and name not in reported]
        plain = [pattern for pattern in cure.rewrite if re.fullmatch(r"\w+", pattern)]
        certain = known.torch or known.cuda or anywhere  # else other files may compile
        if not certain or any(defines(self._code(name), each) for name in own for each in plain):
            own = []
        for name in [*reported, *own]:
            code = self._code(name)
            try:
                new = rewrite(code, cure.rewrite, cure.include)
            except NotRewrittenError as error:
                if name in reported:
                    self.treatment.refused.append(f"{name} is not changed: {error}")
                continue
            if new != code:
                self.treatment.files[name] = new
                changed.append(name)
                used |= {pattern: text for pattern, text in cure.rewrite.items() if matches(code, pattern)}
        if changed:
            why = f" ({known.reason()})" if known.reason() else ""
            more = [f"{len(changed) - _FILES} more"] if len(changed) > _FILES else []
            names = and_list([*changed[:_FILES], *more])
            self.treatment.done.append(f"{names}: {'; '.join(map(_form, used.items()))}{why}")

    def _code(self, name: str) -> bytes:
        return self.treatment.files.get(name) or (self._tree / name).read_bytes()

    def _include(self, name: str, header: str) -> None:
        try:
            new = with_include(code := self._code(name), header)
        except NotRewrittenError as error:
            self.treatment.refused.append(f"{name} is not changed: {error}")
            return
        if new != code:
            self.treatment.files[name] = new
            self.treatment.done.append(f"{name}: #include <{header}>")

    def _setup(self, cure: SourceCure, groups: Mapping[str, str]) -> None:
        """Replace options in the strings of setup.py, by its syntax tree."""
        try:
            module = ast.parse(code := self._code(_SETUP))
        except (OSError, ValueError, SyntaxError):  # ValueError: not UTF-8
            return
        lines, done = code.splitlines(keepends=True), dict[str, None]()
        texts = [node for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        for node in sorted(texts, key=lambda node: (node.lineno, node.col_offset), reverse=True):
            for pattern, replacement in cure.setup.items():
                old, line = str(node.value), lines[node.lineno - 1]
                if node.end_lineno != node.lineno or not old.startswith("-"):
                    continue
                new = re.sub(rf"(?<!\S)(?:{pattern})(?!\S)", replacement.format_map(groups), old)
                literal = line[node.col_offset : node.end_col_offset]
                changed = literal.replace(old.encode(), new.encode())
                if changed != literal:
                    lines[node.lineno - 1] = line[: node.col_offset] + changed + line[node.end_col_offset :]
                    done[f"{_SETUP}: {old} → {new}"] = None
        self.treatment.done += done
        if (after := b"".join(lines)) != code:
            self.treatment.files[_SETUP] = after


def _twice(code: bytes, rows: Sequence[KnownError]) -> str:
    """A pattern that finds the same place of the code as that of another row; empty if there is none."""
    seen: dict[tuple[int, int], str] = {}
    for known in rows:
        for pattern in known.cure.rewrite if known.cure else ():
            if any(seen.setdefault(place, known.hint) != known.hint for place in matches(code, pattern)):
                return pattern
    return ""


def _form(rule: tuple[str, str]) -> str:
    """A pattern and its replacement as people read them: `AT_DISPATCH_…(x.type()) → AT_DISPATCH_…(x.scalar_type())`."""
    holes = re.compile(r"\$\$\$[A-Z]+|(?<=\w)\$[A-Z]+|\$([A-Z]+)")
    before, after = (holes.sub(lambda hole: hole[1].lower() if hole[1] else "…", text) for text in rule)
    return f"{before} → {after}" if after else f"without {before}"
