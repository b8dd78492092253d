"""With which torch releases a wheel links, compared with those that METADATA allows."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from builder.matrix.axes import AbiClass, Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.proof import Check, Proof, Verdict
from builder.proofs.claimed_cells import CellClaims, abi_class, range_text, uses_torch
from builder.proofs.inventory import Release, Shelf
from builder.proofs.static.claim import make_proof, not_run
from builder.proofs.static.linkage import link_one
from builder.proofs.static.symbol_table import SymbolTable
from builder.proofs.static.variants import variants
from builder.wheelfile.facts import WheelFacts

#: Claimed series whose symbols are read unasked, and those that a command names.
_MOST_READ, _MOST_NAMED = 2, 3


@dataclass(frozen=True)
class Linker:
    """Links a wheel with the inventories, as far as its CUDA, its Python and the selection allow."""

    facts: WheelFacts
    shelf: Shelf
    #: The torch, CUDA and Python that the user asks about; empty: all.
    select: Selection
    _tables: dict[Release, SymbolTable] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def claims(self) -> CellClaims:
        """What the wheel says about the cells that it is for."""
        return CellClaims(self.facts)

    @cached_property
    def platform(self) -> Platform:
        """The platform of the wheel's libraries."""
        machine = next((library.machine for library in self.facts.libraries), "x86_64")
        return Platform.LINUX_AARCH64 if machine == "aarch64" else Platform.LINUX_X86_64

    @cached_property
    def cells(self) -> dict[Cell, Release]:
        """A cell for each inventory that can be linked, oldest torch first: one Python that the tags admit.

        An inventory of a different CUDA major version counts only if the user names the CUDA, or names a torch without
        an inventory of the wheel's CUDA.
        """
        asked = (one for one in self.shelf.releases if one.machine == self.platform.machine and self._asked(one))
        cells = {
            Cell(one.torch, one.cuda, python, self.platform): one
            for one in asked
            if (python := self._python(one.torch))
        }
        if self.select.cuda:
            return cells
        same = {cell: release for cell, release in cells.items() if not self._other_runtime(cell.cuda)}
        known = {cell.torch for cell in same}
        return {
            cell: release
            for cell, release in cells.items()
            if cell in same or (self.select.torch and cell.torch not in known)
        }

    @cached_property
    def proofs(self) -> dict[Cell, Proof]:
        """The check `linkage` in each cell."""
        builds = variants(self.facts)
        return {cell: link_one(builds, cell, self._table(cell)) for cell in self.cells}

    @property
    def libraries(self) -> frozenset[str]:
        """The file names of the libraries that the claimed torch releases and their NVIDIA packages provide."""
        return frozenset(name for cell in self._claimed for name in self._table(cell).libraries)

    @cached_property
    def _claimed(self) -> list[Cell]:
        """The cells that the wheel claims. A patch release stands for its series, which has one C++ ABI."""
        releases = Compat.load().torches
        return [
            cell
            for cell in self.cells
            if any(
                not self.claims.why_not(replace(cell, torch=torch))
                for torch in (cell.torch, *(one for one in releases if one.series == cell.torch.series))
            )
        ]

    def _table(self, cell: Cell) -> SymbolTable:
        release = self.cells[cell]
        if release not in self._tables:
            self._tables[release] = self.shelf.read(release)
        return self._tables[release]

    def linkage(self) -> list[Proof]:
        """The proofs to report: those asked for; else those of the torch releases that the wheel claims.

        Of several claimed releases one must link, maybe one whose symbols are unknown; whether all of them do is a
        matter of the check `window`.
        """
        asked = self.select.torch or self.select.cuda
        found = [proof for cell, proof in self.proofs.items() if asked or cell in self._claimed]
        passed = [proof for proof in found if proof.verdict is Verdict.PASSED]
        if not found or not (asked or passed or not self._without_symbols(self._claimed_series)):
            return [not_run(self.facts, Check.LINKAGE, self._no_inventory())]
        return found if asked else passed or found[-1:]

    def window(self) -> Proof:
        """Compare the torch series that link with those that METADATA and the version allow."""
        links: dict[str, bool] = {}
        for cell, proof in self.proofs.items():
            links[cell.torch.series] = links.get(cell.torch.series, False) or proof.verdict is Verdict.PASSED
        # What METADATA does not say, the check `metadata` reports.
        stated = self._stated if self.claims.stated.is_required or self.claims.variant else []
        good = [series for series, passed in links.items() if passed]
        bad = [series for series, passed in links.items() if not passed]
        below = [series for series in stated if _number(series) < self.claims.floor]
        # Symbols alone do not prove a C++ ABI: torchvision 0.23.0 for torch 2.8 links with torch 2.9.1, and crashes.
        window = good if self._stable or not stated else [series for series in good if series in stated]
        evidence = {"window": window, "links": good, "does_not_link": bad, "allowed": stated}
        errors = self._too_wide([series for series in bad if series in stated and series not in below], good)
        if below:
            since = self.claims.floor.series
            errors.append(
                f"METADATA allows torch {_range(below)}, but the libraries call functions that torch has since {since}:"
                f" require torch>={since}"
            )
        if self.select.torch and (excluded := [series for series in good if series not in window]):
            errors.append(
                f"METADATA or the version excludes torch {_range(excluded)}, which has every symbol, but whose C++"
                " classes may have a different layout: build the wheel for this torch"
            )
        if not errors and not good:
            why = f"the wheel links with no torch whose symbols are known ({_range(list(links))})" if links else ""
            unknown = self._no_inventory() if not links else _unknown(self._without_symbols(self._claimed_series))
            return not_run(self.facts, Check.WINDOW, "; ".join(filter(None, (why, unknown))))
        remarks = self._remarks(good, stated)
        text = f"links with torch {_range(window or good)}" if good else f"needs torch {self.claims.floor.series}"
        return make_proof(self.facts, Check.WINDOW, errors, good=text, evidence=evidence, remarks=remarks)

    def _too_wide(self, wide: Sequence[str], good: Sequence[str]) -> list[str]:
        if not wide or not good:
            return []
        newest = max(wide, key=_number)
        proof = next(proof for cell, proof in reversed(self.proofs.items()) if cell.torch.series == newest)
        return [
            f"METADATA allows torch {_range(wide)}, but the wheel links with torch {_range(good)} only; with torch"
            f" {newest}: {proof.reason.partition('; ')[0]}"
        ]

    def _remarks(self, good: Sequence[str], stated: Sequence[str]) -> list[str]:
        remarks = []
        if stated and (narrow := [series for series in good if series not in stated]):
            also = f"the wheel also links with torch {_range(narrow)}, which METADATA or the version excludes"
            doubt = "" if self._stable else "; that does not prove that torch's C++ classes have the same layout there"
            remarks.append(also + doubt)
        unknown = self._without_symbols(self._claimed_series) if stated else []
        if unknown and not (self.select.torch or self.select.cuda):
            remarks.append(f"METADATA allows torch {_range(unknown)}; {_unknown(unknown)}")
        future = Cell(Torch(99, 0, 0), Cuda(13, 0), Python(3, 12), self.platform)
        if stated and not self._stable and not self.claims.stated.why_not_release(future):
            remarks.append(
                "METADATA sets no upper limit for torch, and torch's C++ ABI changes with every release: pin the series"
            )
        return remarks

    @cached_property
    def _stated(self) -> list[str]:
        """The series that METADATA and the version allow, of those with a wheel for the wheel's Python and CUDA."""
        compat, series = Compat.load(), dict[str, None]()
        for torch in compat.torches:
            for cuda in compat.torch(torch).variants:
                if compat.why_not_platform(torch, cuda, self.platform) or self._other_runtime(cuda):
                    continue
                python = self._python(torch)
                if python and not self.claims.stated.why_not_release(Cell(torch, cuda, python, self.platform)):
                    series[torch.series] = None
        return list(series)

    @cached_property
    def _stable(self) -> bool:
        """Whether the wheel uses no C++ class of torch, but only its stable C functions."""
        return abi_class(self.facts) is AbiClass.STABLE

    def _other_runtime(self, cuda: Cuda) -> bool:
        """Whether the libraries or the version name a different CUDA major version."""
        if self.claims.runtimes:
            return cuda.major not in self.claims.runtimes
        variant = self.claims.variant
        return bool(variant) and not variant.startswith(f"cu{cuda.major}")

    def _asked(self, release: Release) -> bool:
        torches, cudas = self.select.torch, [Cuda.parse(text) for text in self.select.cuda]
        of_torch = not torches or str(release.torch) in torches or release.torch.series in torches
        return of_torch and (not cudas or release.cuda in cudas)

    def _python(self, torch: Torch) -> Python | None:
        """The newest Python that the wheel's tags admit and this torch has a wheel for; None if there is none."""
        compat = Compat.load()
        asked = [Python.parse(text) for text in self.select.python]
        newest = sorted(compat.pythons, key=lambda one: (not one.free_threaded, one), reverse=True)
        for python in asked or newest:
            try:
                fits = compat.why_not_python(torch, python) is None
            except KeyError:  # a torch that compat.yaml does not have
                fits = True
            if fits and self.claims.admits_python(python, self.platform):
                return python
        return None

    @cached_property
    def unread(self) -> list[Release]:
        """The releases whose symbols the checks need and the shelf lacks: those asked for, or those that are claimed.

        None if the wheel claims more series than two, for a release is a download of up to 1 GB.
        """
        if not (self.facts.libraries and uses_torch(self.facts)):
            return []
        compat, claimed = Compat.load(), self._without_symbols(self._claimed_series)
        series = self.select.torch or (claimed if len(claimed) <= _MOST_READ else [])
        linked = [one.torch for one in self.cells if self.select.cuda or not self._other_runtime(one.cuda)]
        known = {name for torch in linked for name in (str(torch), torch.series)}
        wanted = [
            Release(torch, cuda, self.platform.machine)
            for torch in (compat.releases(text)[-1] for text in series if text not in known)
            for cuda in self._cudas(torch)
            if self._python(torch) and not compat.why_not_platform(torch, cuda, self.platform)
        ]
        return [release for release in wanted if release not in self.shelf.releases]

    def _cudas(self, torch: Torch) -> list[Cuda]:
        """The CUDA versions of a torch to link with: those asked for, or one of the wheel's major version."""
        facts = Compat.load().torch(torch)
        if self.select.cuda:
            return [cuda for cuda in map(Cuda.parse, self.select.cuda) if cuda in facts.variants]
        fits = sorted(cuda for cuda in facts.variants if not self._other_runtime(cuda))
        named = [cuda for cuda in fits if cuda.variant == self.claims.variant]
        return [*named, *(cuda for cuda in fits if cuda == facts.default), *reversed(fits), facts.default][:1]

    @property
    def _claimed_series(self) -> list[str]:
        return [series for series in self._stated if _number(series) >= self.claims.floor]

    def _without_symbols(self, series: Sequence[str]) -> list[str]:
        known = {cell.torch.series for cell in self.cells}
        return [one for one in series if one not in known]

    def _no_inventory(self) -> str:
        missing = _unknown(self._without_symbols(self.select.torch or self._claimed_series))
        return missing or "no torch of buildfarm's version table suits this wheel, so no symbol was looked up"


def _unknown(series: Sequence[str]) -> str:
    """That the symbols of these series are unknown, and how the user has them read; empty without a series."""
    named = " ".join(f"--torch {one}" for one in series) if len(series) <= _MOST_NAMED else "--torch SERIES"
    text = f"the symbols of torch {_range(series)} are unknown: `buildfarm verify` with `{named}` reads them"
    return text if series else ""


def _number(series: str) -> Torch:
    major, minor = series.split(".")[:2]
    return Torch(int(major), int(minor), 0)


def _range(series: Sequence[str]) -> str:
    """Series as text: `2.9 to 2.11 and 2.13`."""
    known = {torch.series for torch in Compat.load().torches}
    return range_text(sorted(known.union(series), key=_number), series)
