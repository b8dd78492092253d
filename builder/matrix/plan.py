"""Make the plan from the matrix, the recipes and a selection: builds, the cells each serves, why cells are skipped.

The functions here read no file and start no program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from builder.errors import Code, NothingSelectedError, UsageError
from builder.gate.amounts import counted, grouped, join_names
from builder.matrix.axes import ABI3T_SINCE, STABLE_FLOOR, AbiClass, Arch, Cell, Cuda, Platform, Python, Torch, shown
from builder.matrix.compat import Compat, WhyNot, and_list, did_you_mean
from builder.matrix.config import AbiRule, Matrix, Recipe, Selection, WheelSource

#: One build serves all cells with the same key: the platform, and what a binary of the ABI class depends on.
GroupKey = tuple[str, AbiClass, str, Cuda | int, Python | None]

#: Oldest Python of abi3 wheels: the Py_LIMITED_API that torch >= 2.10 itself sets.
_LIMITED_SINCE = Python(3, 10)

#: Pythons to compile with if a binary does not depend on one, the preferred one first.
_COMPILE_WITH = (Python(3, 12), Python(3, 11), Python(3, 13), Python(3, 10))


class RecipeRules:
    """The rules of one recipe. Answers are cached, because a plan asks for the same few values many times."""

    def __init__(self, recipe: Recipe, matrix: Matrix, compat: Compat) -> None:
        self.recipe = recipe
        self._compat = compat
        self._explicit = _merged([*(recipe.archs or matrix.archs)])
        #: The Python that compiles abi3t wheels; None if the matrix has no Python that only they serve.
        self._abi3t = min((p for p in matrix.python if p.free_threaded and p >= ABI3T_SINCE), default=None)
        self._pythons = SpecifierSet(recipe.python, prereleases=True)
        self._rule = cache(recipe.rule_of)
        self._python_reason = cache(self._why_not_python)
        self._arch_reason = cache(self._why_not_archs)

    def why_not(self, cell: Cell) -> WhyNot | None:
        """Return the reason why the recipe cannot serve the cell, or None if it can."""
        rule = self._rule(cell.torch)
        if rule is None:
            takes = ", ".join(rule.specifier for rule in self.recipe.abi)
            reason = f"{self.recipe.name} is not for torch {cell.torch.series}: its abi rules take {takes}"
            return WhyNot("no-abi-rule-for-torch", reason)
        if rule.abi is AbiClass.STABLE and cell.torch < STABLE_FLOOR:
            reason = (
                f"{self.recipe.name} claims LibTorch's stable ABI for torch {cell.torch.series},"
                f" but torch has this ABI only since {STABLE_FLOOR.series}"
            )
            return WhyNot("stable-abi-needs-newer-torch", reason)
        return self._python_reason(rule, cell.python) or self._arch_reason(cell.torch, cell.cuda)

    def _why_not_python(self, rule: AbiRule, python: Python) -> WhyNot | None:
        name = self.recipe.name
        if not self._pythons.contains(python.series):
            reason = f"{name} is not for Python {python}: its extension.yaml takes {self.recipe.python}"
            return WhyNot("python-not-supported", reason)
        if rule.abi is AbiClass.CPYTHON:
            return None
        if python.free_threaded and not (rule.abi3t and python >= ABI3T_SINCE):
            reason = (
                f"{name} is built as {rule.abi}, so its wheel has an abi3 tag. Free-threaded Python {python} cannot "
                "install it. Use `abi: cpython`"
            )
            if python >= ABI3T_SINCE:
                reason += f", or `abi: [{{class: {rule.abi}, abi3t: true}}]` if the source compiles for abi3t"
            return WhyNot("free-threaded-needs-own-build", reason)
        if python < _LIMITED_SINCE:
            reason = f"{name} is built as {rule.abi}, which needs Python {_LIMITED_SINCE} or newer"
            return WhyNot("abi3-needs-newer-python", reason)
        return None

    def _why_not_archs(self, torch: Torch, cuda: Cuda) -> WhyNot | None:
        for arch in self._explicit:
            why = self._compat.why_not_arch(cuda, arch)
            if not why and not self.recipe.override_architectures:
                why = self._compat.why_not_listed(torch, arch)
            if why:
                of_recipe = f" (required by the recipe of {self.recipe.name})" if self.recipe.archs else ""
                return WhyNot(why.code, why.reason + of_recipe)
        return None

    def group_key(self, cell: Cell) -> GroupKey:
        """Return what a binary for the cell depends on. Call this only for cells that the recipe can serve."""
        rule = self._rule(cell.torch) or AbiRule(AbiClass.CPYTHON)
        if rule.abi is AbiClass.CPYTHON:
            return (cell.platform, rule.abi, cell.torch.series, cell.cuda, cell.python)
        python = self._abi3t if rule.abi3t and cell.python >= ABI3T_SINCE else None
        if python and self._compat.why_not(cell.torch, cell.cuda, python, cell.platform):
            python = None
        if rule.abi is AbiClass.ABI3:
            return (cell.platform, rule.abi, cell.torch.series, cell.cuda, python)
        return (cell.platform, rule.abi, "", cell.cuda.major, python)

    def archs(self, cells: Sequence[Cell], cuda: Cuda) -> tuple[Arch, ...]:
        """Return the GPU architectures of a group's build.

        These are the architectures of the recipe or of the matrix. If neither names any, they are torch's own
        architectures of all the cells, without those that the toolkit does not know. If the toolkit is too old for the
        newest GPUs, the last architecture gets PTX, which the driver translates for those GPUs.
        """
        if self._explicit:
            return self._explicit
        wheels = {(cell.torch, cell.cuda, cell.platform) for cell in cells}
        wanted = {arch for wheel in wheels for arch in self._compat.official_archs(*wheel)}
        known = [arch for arch in _merged(wanted) if not self._compat.why_not_arch(cuda, arch)]
        if known and max(wanted).number > known[-1].number:
            known[-1] = replace(known[-1], ptx=True)
        return tuple(known)

    def build(self, key: GroupKey, cells: Sequence[Cell]) -> Build:
        """Return the build of a group of cells: for their oldest torch, and the oldest CUDA of that torch.

        The oldest CUDA of all cells would be wrong: perhaps only a newer torch has it.
        """
        torch, cuda = min(cells).torch, min(cells).cuda
        python = key[-1]
        usable = {python} if python else {c.python for c in cells if not self._compat.why_not_python(torch, c.python)}
        preferred = [python for python in _COMPILE_WITH if python in usable]
        return Build(
            extension=self.recipe.name,
            version=self.recipe.wheel_version(torch, cuda),
            abi=key[1],
            torch=torch,
            cuda=cuda,
            pythons=(*preferred, *sorted(usable.difference(preferred))),
            archs=self.archs(cells, cuda),
            platform=cells[0].platform,
            serves=tuple(cells),
            project=self.recipe.wheel_name(torch, cuda) if self.recipe.pattern else "",
        )


def _merged(archs: Collection[Arch]) -> tuple[Arch, ...]:
    """Return the architectures sorted, without 9.0 if 9.0+PTX is among them: the latter includes the former."""
    with_ptx = {arch for arch in archs if arch.ptx}
    plain = {arch for arch in archs if replace(arch, ptx=True) not in with_ptx}
    return tuple(sorted(with_ptx | plain))


@dataclass(frozen=True, order=True)
class Build:
    """One compile: it makes one wheel of an extension for one or more cells."""

    #: The recipe's name.
    extension: str
    #: The extension's own version, without a local part.
    version: str
    #: What the binary depends on.
    abi: AbiClass
    #: The torch it is compiled against: the oldest among the cells.
    torch: Torch
    #: The CUDA toolkit it is compiled with: the oldest that this torch has among the cells.
    cuda: Cuda
    #: Pythons it may be compiled with, the preferred one first; exactly one for the class `cpython` and for abi3t.
    pythons: tuple[Python, ...]
    #: The GPU architectures that the wheel must hold device code for.
    archs: tuple[Arch, ...]
    #: Operating system and processor.
    platform: Platform
    #: The cells that the wheel is for, sorted.
    serves: tuple[Cell, ...]
    #: The distribution name of the wheel, if it is not the name of the extension; else empty.
    project: str = ""

    @property
    def needs_python(self) -> bool:
        """Whether the binary depends on the Python that compiles it: of the class `cpython`, and for abi3t."""
        return self.abi is AbiClass.CPYTHON or self.pythons[0].free_threaded

    @property
    def wheel_name(self) -> str:
        """The distribution name of the wheel."""
        return self.project or self.extension

    @property
    def local_version(self) -> str:
        """The local version of the wheel (PEP 440), which names its ABI: `cu13` or `cu130.torch2.11`.

        Installers compare the part after the point as a number, so torch 2.11 is newer than torch 2.9.
        """
        if self.abi is AbiClass.STABLE:
            return f"cu{self.cuda.major}"
        return f"{self.cuda.variant}.torch{self.torch.series}"

    def __str__(self) -> str:
        """Return the name of the build: `ms_deform_attn-0.1.0-stable-torch2.11.0-cu130-py3`."""
        return f"{self.extension}-{self.version}-{self._target}"

    @property
    def name_without_version(self) -> str:
        """The name of the build without the version, for what a new version goes on with."""
        return f"{self.extension}-{self._target}"

    @property
    def _target(self) -> str:
        python = self.pythons[0].tag if self.needs_python else "py3"
        name = f"{self.abi}-torch{self.torch}-{self.cuda.variant}-{python}"
        return name if self.platform is Platform.LINUX_X86_64 else f"{name}-{self.platform}"


@dataclass(frozen=True, order=True)
class Skip:
    """A combination of the axes that gets no wheel, with the reason."""

    #: The combination may not exist: torch 2.2 has no wheel for Python 3.13.
    cell: Cell
    #: Name of the recipe; empty: every recipe.
    extension: str
    #: An identifier of the reason for programs, such as `no-torch-wheel-for-python`.
    code: str
    #: The reason, one sentence.
    reason: str

    def to_json(self) -> dict[str, str]:
        """Plain data, with the axes of the cell."""
        return {key: str(value) for key, value in {**vars(self.cell), **vars(self)}.items() if key != "cell"}


@dataclass(frozen=True)
class Plan:
    """What is built and what is skipped, in an order that depends only on the input."""

    builds: tuple[Build, ...]
    skips: tuple[Skip, ...]


@dataclass(frozen=True)
class SkipSummary:
    """The skips of one reason."""

    #: code, reason: those of every skip.
    code: str
    reason: str
    #: The different cells, sorted.
    cells: tuple[Cell, ...]
    #: The extensions as text: `a, b, c and 2 more`; empty for a reason about every extension.
    about: str


def make_plan(matrix: Matrix, recipes: Sequence[Recipe], select: Selection, compat: Compat) -> Plan:
    """Return the builds that a selection needs, each with the cells it serves, and a Skip for every other combination.

    The order of the input does not change the plan. Skips that concern every extension come first, then those of each
    extension by name; within these, the order is torch, CUDA, Python, platform.

    Raises UsageError: the selection holds an unknown value or two values that exclude each other; NothingSelectedError:
    no cell is left, with three reasons as hints.
    """
    served, skips = _served_and_skipped(matrix, recipes, select, compat)
    builds = list[Build]()
    for rules, cells in served:
        if isinstance(rules.recipe.source, WheelSource):
            reason = "its source is an official wheel, so there is nothing to build; `buildfarm smoke` tests this wheel"
            skips += [Skip(cell, rules.recipe.name, "nothing-to-build", reason) for cell in cells]
            continue
        groups = grouped((rules.group_key(cell), cell) for cell in cells)
        builds += [rules.build(key, group) for key, group in groups.items()]
    plan = Plan(tuple(builds), tuple(skips))
    if plan.builds:
        return plan
    # What a recipe or the matrix says comes first: a user can change that, but not which combinations torch has.
    said = sorted(summarise_skips(plan), key=lambda s: 0 if s.about else 1 if s.code == "excluded" else 2)
    reasons = [(f"{s.about}: " if s.about else "") + f"{s.reason} ({counted(len(s.cells), 'cell')})" for s in said[:3]]
    raise NothingSelectedError(
        "every selected cell is skipped", Code.NO_CELL_LEFT, where=str(matrix.path), hints=reasons
    )


def served_cells(
    matrix: Matrix, recipes: Sequence[Recipe], select: Selection, compat: Compat
) -> list[tuple[Recipe, tuple[Cell, ...]]]:
    """Return the cells of each selected recipe, also of recipes that build nothing. Raises what `make_plan` raises."""
    served, _ = _served_and_skipped(matrix, recipes, select, compat)
    return [(rules.recipe, tuple(cells)) for rules, cells in served]


def _served_and_skipped(
    matrix: Matrix, recipes: Sequence[Recipe], select: Selection, compat: Compat
) -> tuple[list[tuple[RecipeRules, list[Cell]]], list[Skip]]:
    """Return, for each recipe, its rules and the cells it can serve, and a Skip for every other combination."""
    if not recipes:
        raise NothingSelectedError(
            "the matrix lists no extensions", Code.EXTENSION_UNKNOWN, hints=["add a folder under `extensions`"]
        )
    wanted = selected_recipes(recipes, select)
    torches, cudas, pythons = select_versions(matrix, select, compat)
    platforms = sorted(set(matrix.platforms))
    cells, skips, served = list[Cell](), list[Skip](), list[tuple[RecipeRules, list[Cell]]]()
    excluded = _why_excluded(matrix, "")
    for torch, cuda in product(torches, cudas):
        why_not_cuda = compat.why_not_cuda(torch, cuda)
        for python, platform in product(pythons, platforms):
            cell = Cell(torch, cuda, python, platform)
            if why := why_not_cuda or compat.why_not(torch, cuda, python, platform) or excluded(cell):
                skips.append(Skip(cell, "", *why))
            else:
                cells.append(cell)
    for recipe in wanted:
        rules, excluded = RecipeRules(recipe, matrix, compat), _why_excluded(matrix, recipe.name)
        selected: list[Cell] = []
        for cell in cells:
            if why := excluded(cell) or rules.why_not(cell):
                skips.append(Skip(cell, recipe.name, *why))
            else:
                selected.append(cell)
        served.append((rules, selected))
    return served, skips


def summarise_skips(plan: Plan) -> tuple[SkipSummary, ...]:
    """Group the skips of a plan by reason, in the order of the first skip of each."""
    found = []
    for (code, reason), members in grouped(((one.code, one.reason), one) for one in plan.skips).items():
        extensions = list(dict.fromkeys(one.extension for one in members))
        cells = tuple(sorted({one.cell for one in members}))
        found.append(SkipSummary(code, reason, cells, join_names(extensions) if all(extensions) else ""))
    return tuple(found)


def _why_excluded(matrix: Matrix, extension: str) -> Callable[[Cell], WhyNot | None]:
    """Return what says why the matrix excludes a cell for one extension; empty: for every extension."""
    # Sorted by reason, so that their order in the file does not matter.
    excludes = sorted((e for e in matrix.exclude if e.extension == extension), key=lambda e: e.reason)

    def why_not(cell: Cell) -> WhyNot | None:
        for one in excludes:
            if (
                one.torch in ("", str(cell.torch), cell.torch.series)
                and one.cuda in (None, cell.cuda)
                and one.python in (None, cell.python)
            ):
                return WhyNot("excluded", one.reason)
        return None

    return why_not


#: The axes, and what each is called in a sentence. Its option is `--torch`, `--cuda` or `--python`.
_AXES = {"torch": "torch", "cuda": "CUDA", "python": "Python"}
#: For each axis, the values that each text of the command line names; a series of torch names several.
_Selected = dict[str, list[Sequence[Any]]]


def select_versions(
    matrix: Matrix, select: Selection, compat: Compat
) -> tuple[tuple[Torch, ...], tuple[Cuda, ...], tuple[Python, ...]]:
    """Narrow torch, CUDA and Python of the matrix to a selection; a series selects each of its releases in the matrix.

    Raises UsageError: a value is unknown (the message names the nearest), or two values exclude each other;
    NothingSelectedError: matrix.yaml does not list a selected value.
    """
    # Read before the matrix is: the hint to add an impossible combination to matrix.yaml would be wrong.
    selected = _read(select, compat, matrix)
    if missing := _missing(matrix, selected):
        axis = missing[0][0]
        alone = all(other == axis for other, _ in missing)
        raise NothingSelectedError(
            f"the matrix does not list {and_list(f'{_AXES[axis]} {value}' for axis, value in missing)}",
            Code.NO_CELL_LEFT,
            where=f"{matrix.path}, `{axis}`" if alone else str(matrix.path),
            hints=[
                *(_to_add(matrix, axis, value, compat) for axis, value in missing),
                *([f"the matrix lists {and_list(sorted(getattr(matrix, axis)))}"] if alone else []),
            ],
        )
    listed = ((getattr(matrix, axis), set(chain(*groups))) for axis, groups in selected.items())
    torch, cuda, python = (tuple(sorted(set(have) & wanted if wanted else set(have))) for have, wanted in listed)
    return torch, cuda, python


def selected(cells: Sequence[Cell], select: Selection, compat: Compat) -> list[Cell]:
    """Return the cells that a selection names; an axis without a value selects all.

    Raises UsageError for an unknown value (the message names the nearest), and for two values that exclude each other.
    """
    values = {axis: set(chain(*groups)) for axis, groups in _read(select, compat).items() if groups}
    return [cell for cell in cells if all(getattr(cell, axis) in wanted for axis, wanted in values.items())]


def additions(matrix: Matrix, select: Selection, compat: Compat) -> list[str]:
    """What to add to matrix.yaml, so that it has every selected value: `add 2.12.1 under `torch``; empty: nothing."""
    return [_to_add(matrix, axis, value, compat) for axis, value in _missing(matrix, _read(select, compat, matrix))]


def _read(select: Selection, compat: Compat, matrix: Matrix | None = None) -> _Selected:
    """Return the selected values; of a torch series, the releases in the matrix.

    Raises UsageError for an unknown value, with the option, and for two values that exclude each other.
    """
    readers: dict[str, Callable[[str], Sequence[Any]]] = {
        "torch": compat.releases,
        "cuda": lambda text: [compat.resolve_cuda(text)],
        "python": lambda text: [compat.resolve_python(text)],
    }
    found: _Selected = {axis: [] for axis in _AXES}
    for axis, read in readers.items():
        for text in getattr(select, axis):
            try:
                found[axis].append(read(text))
            except UsageError as error:
                where = f"--{axis} {shown(text)}"
                raise UsageError(error.sentence, error.code, where=where, hints=error.hints) from None
    if matrix:
        found["torch"] = [[r for r in matrix.torch if r in group] or group[-1:] for group in found["torch"]]
    whys: dict[str, Callable[[Torch, Any], WhyNot | None]] = {
        "cuda": compat.why_not_cuda,
        "python": compat.why_not_python,
    }
    for axis, why_not in whys.items():
        reasons = [why_not(*pair) for pair in product(chain(*found["torch"]), chain(*found[axis]))]
        if reasons and (first := reasons[0]) and all(reasons):
            where = " ".join(f"--{name} {text}" for name in ("torch", axis) for text in getattr(select, name))
            raise UsageError(first.reason, Code.NO_SUCH_COMBINATION, where=where)
    return found


def _missing(matrix: Matrix, selected: _Selected) -> list[tuple[str, Any]]:
    return [
        (axis, values[-1])
        for axis, groups in selected.items()
        for values in groups
        if not any(value in getattr(matrix, axis) for value in values)
    ]


def _to_add(matrix: Matrix, axis: str, value: object, compat: Compat) -> str:
    """What to add to matrix.yaml, so that it has cells of a value."""
    add = f"add {value} under `{axis}`"
    if isinstance(value, Python):
        fitting = [torch for torch in compat.torches if not compat.why_not_python(torch, value)]
        if fitting and not set(fitting) & set(matrix.torch):
            return f"{add}, and a torch that has wheels for it under `torch`, such as {fitting[-1]}"
    return add


def selected_recipes(recipes: Sequence[Recipe], select: Selection) -> tuple[Recipe, ...]:
    """Return the recipes of the selected extensions, or all. Raises UsageError for an extension without a recipe."""
    known = {recipe.name: recipe for recipe in recipes}
    alike = {canonicalize_name(name): name for name in known}
    wanted = [alike.get(canonicalize_name(name), name) for name in select.extensions]
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"no extension is named {name!r}{did_you_mean(name, known)}",
                Code.EXTENSION_UNKNOWN,
                where=f"--ext {name}",
                hints=[f"the matrix has {and_list(sorted(known))}"] if known else (),
            )
    return tuple(known[name] for name in sorted(set(wanted) or known))
