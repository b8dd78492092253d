"""Who goes with whom: a yes, or the reason why not. The facts themselves are in compat.yaml."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from builder.errors import UsageError
from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch
from builder.matrix.image_table import ImageFacts, ImageTable
from builder.matrix.table import Fact, Table, ToolkitFacts, TorchFacts, VariantFacts, read_table

__all__ = ["Compat", "Fact", "ImageFacts", "ToolkitFacts", "TorchFacts", "VariantFacts", "WhyNot", "and_list"]

_FILE = Path(__file__).with_name("compat.yaml")
_ADD = "a new release is one more row in builder/matrix/compat.yaml"


class WhyNot(NamedTuple):
    """Why something cannot be: a stable word for programs, and a sentence for people."""

    code: str
    reason: str


def and_list(items: Iterable[object]) -> str:
    """`11.8, 12.1 and 12.4`."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


class Compat:
    """Answers about torch, CUDA, Python and GPU architectures. Build it with `Compat.load()`."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._torch = table.torch
        self._toolkits = table.toolkits
        self.images: ImageTable = table.images
        self.torches = tuple(sorted(r for facts in table.torch.values() for r in facts.releases))
        self.cudas = tuple(sorted({*table.toolkits, *(c for facts in table.torch.values() for c in facts.variants)}))
        self.pythons = tuple(sorted({p for facts in table.torch.values() for ps in facts.pythons.values() for p in ps}))
        self._series = {r: facts for facts in table.torch.values() for r in facts.releases}
        # A plan asks the same few pairs thousands of times.
        self._arch_answers: dict[tuple[Cuda, Arch], WhyNot | None] = {}
        self._cuda_answers: dict[tuple[Torch, Cuda], WhyNot | None] = {}
        self._python_answers: dict[tuple[Torch, Python], WhyNot | None] = {}

    @classmethod
    def load(cls, path: Path = _FILE) -> Compat:
        """The facts of compat.yaml, parsed once in a process."""
        return _load(path)

    # Names to values.

    def releases(self, text: str) -> tuple[Torch, ...]:
        """Every release `text` stands for: `2.2` is 2.2.0, 2.2.1 and 2.2.2; `2.2.1` is itself. Oldest first.

        Raises:
            UsageError: no such release; names the nearest and the newest.

        """
        parts = text.split(".")
        if len(parts) not in (2, 3) or not all(part.isdecimal() for part in parts):
            raise UsageError(f"{text!r} is not a torch version; write it like 2.11 or 2.11.0")
        if len(parts) == 2 and text in self._torch:
            return self._torch[text].releases
        if len(parts) == 3 and (wanted := Torch.parse(text)) in self.torches:
            return (wanted,)
        series, newest = ".".join(parts[:2]), self.torches[-1]
        if series in self._torch:
            known = self._torch[series].releases
            near: object = min(known, key=lambda r: abs(r.patch - int(parts[2])))
        else:
            near = min(self._torch, key=lambda s: abs(_order(s) - _order(series)))
        raise UsageError(f"torch {text} is not known; the nearest is {near}, the newest {newest}", hints=[_ADD])

    def resolve_torch(self, text: str) -> Torch:
        """The release `text` means: a series is its newest patch. Raises UsageError as `releases` does."""
        return self.releases(text)[-1]

    def resolve_cuda(self, text: str) -> Cuda:
        """Read `13.0` or `cu130`; raises UsageError when unreadable, or unknown (names the nearest)."""
        cuda = Cuda.parse(text)
        if cuda not in self.cudas:
            near = min(self.cudas, key=lambda c: abs(_order(str(c)) - _order(str(cuda))))
            raise UsageError(
                f"CUDA {cuda} is not known; the nearest is {near}, the newest {self.cudas[-1]}", hints=[_ADD]
            )
        return cuda

    def resolve_python(self, text: str) -> Python:
        """Read `3.12`, `3.13t` or `cp312`; raises UsageError when unknown (names the nearest)."""
        python = Python.parse(text)
        if python not in self.pythons:
            near = min(
                self.pythons,
                key=lambda p: (p.free_threaded != python.free_threaded, abs(p.minor - python.minor), p),
            )
            raise UsageError(f"no torch has wheels for Python {python}; the nearest with some is {near}")
        return python

    # Facts.

    def torch(self, torch: Torch) -> TorchFacts:
        """What is known of a release's series. Raises UsageError for a release that is not known."""
        return self._series.get(torch) or self._torch[self.resolve_torch(str(torch)).series]

    def variant(self, torch: Torch, cuda: Cuda) -> VariantFacts:
        """What is known of a torch for one CUDA. Raises UsageError when there is no such wheel."""
        if why := self.why_not_cuda(torch, cuda):
            raise UsageError(why.reason)
        return self.torch(torch).variants[cuda]

    def toolkit(self, cuda: Cuda) -> ToolkitFacts:
        """What is known of a toolkit. Raises UsageError when compat.yaml has no row for it."""
        if cuda not in self._toolkits:
            raise UsageError(f"no toolkit of CUDA {cuda} is known; there are {and_list(sorted(self._toolkits))}")
        return self._toolkits[cuda]

    def official_archs(self, torch: Torch, cuda: Cuda, platform: Platform) -> tuple[Arch, ...]:
        """What torch's own wheel of that cell is built for, sorted; empty if there is no such wheel."""
        facts = self.torch(torch).variants.get(cuda)
        return facts.archs.get(platform, ()) if facts else ()

    def toolkit_pin(self, torch: Torch, cuda: Cuda) -> str | None:
        """The exact `cuda-toolkit` torch's wheel on the package index pins, if it is that wheel (2.11 on)."""
        facts = self.torch(torch)
        return facts.toolkit_pin or None if facts.default == cuda else None

    def is_default_variant(self, torch: Torch, cuda: Cuda) -> bool:
        """Whether the package index serves this CUDA for this torch; others come from torch's own index."""
        return self.torch(torch).default == cuda

    def gcc_range(self, torch: Torch, cuda: Cuda) -> tuple[int, int]:
        """Oldest and newest gcc major that nvcc, torch's headers and torch's own build check all take."""
        facts = self.torch(torch)
        limits = [
            self.toolkit(cuda).gcc_max.value,
            facts.gcc_max,
            self._table.gcc_checks.get((facts.series, cuda)),
        ]
        return facts.gcc_min.value, min(limit for limit in limits if limit is not None)

    def gpu_names(self, arch: Arch) -> tuple[str, ...]:
        """Products of that compute capability; may be empty."""
        return self._table.gpus.get((arch.major, arch.minor), ())

    def cudas_with(self, arch: Arch) -> tuple[Cuda, ...]:
        """The toolkits that know an architecture, oldest first."""
        plain = replace(arch, ptx=False)
        return tuple(sorted(c for c, facts in self._toolkits.items() if plain in facts.archs))

    # Reasons.

    def why_not(self, torch: Torch, cuda: Cuda, python: Python, platform: Platform) -> WhyNot | None:
        """None when torch has a wheel for the cell, else what hinders. UsageError for an unknown torch."""
        return (
            self.why_not_cuda(torch, cuda)
            or self.why_not_python(torch, python)
            or self.why_not_platform(torch, cuda, platform)
        )

    def why_not_cuda(self, torch: Torch, cuda: Cuda) -> WhyNot | None:
        """None when torch was built for that CUDA and a toolkit of it is known."""
        key = (torch, cuda)
        if key not in self._cuda_answers:
            self._cuda_answers[key] = self._ask_cuda(self.torch(torch), cuda)
        return self._cuda_answers[key]

    def _ask_cuda(self, facts: TorchFacts, cuda: Cuda) -> WhyNot | None:
        has = f"it has {and_list(sorted(facts.variants))}"
        if cuda in facts.unlisted:
            return WhyNot(
                "unlisted-torch-wheel",
                f"no official list names a torch {facts.series} wheel for CUDA {cuda}; {has}",
            )
        if cuda not in facts.variants:
            return WhyNot("no-torch-wheel-for-cuda", f"torch {facts.series} was never built for CUDA {cuda}; {has}")
        if cuda not in self._toolkits:
            return WhyNot(
                "no-toolkit",
                f"torch {facts.series} has a wheel for CUDA {cuda}, but no such toolkit is known here",
            )
        return None

    def why_not_python(self, torch: Torch, python: Python) -> WhyNot | None:
        """None when torch has a wheel for that Python."""
        key = (torch, python)
        if key not in self._python_answers:
            self._python_answers[key] = self._ask_python(self.torch(torch), torch, python)
        return self._python_answers[key]

    def _ask_python(self, facts: TorchFacts, torch: Torch, python: Python) -> WhyNot | None:
        if python in facts.pythons[torch]:
            return None
        served = [p for p in facts.pythons[torch] if p.free_threaded == python.free_threaded]
        kind = "free-threaded Python" if python.free_threaded else "Python"
        earlier = [r for r in facts.releases if r < torch and python in facts.pythons[r]]
        if earlier:
            name, rest = str(torch), f"{earlier[-1]} was the last of its series with one"
        elif not served:
            name, rest = facts.series, "it has none for any free-threaded Python"
        elif python > served[-1]:
            name, rest = facts.series, f"its newest is {served[-1]}"
        elif python < served[0]:
            name, rest = facts.series, f"its oldest is {served[0]}"
        else:
            name, rest = facts.series, f"it has {and_list(served)}"
        return WhyNot("no-torch-wheel-for-python", f"torch {name} has no wheel for {kind} {python}; {rest}")

    def why_not_platform(self, torch: Torch, cuda: Cuda, platform: Platform) -> WhyNot | None:
        """None when torch has wheels of that CUDA for that platform."""
        if self.official_archs(torch, cuda, platform):
            return None
        reason = f"torch {torch.series} for CUDA {cuda} has no known wheel for {platform}"
        return WhyNot("no-torch-wheel-for-platform", reason)

    def why_not_arch(self, cuda: Cuda, arch: Arch) -> WhyNot | None:
        """None when the toolkit of that CUDA makes code for the architecture and torch lets it be asked."""
        key = (cuda, arch)
        if key not in self._arch_answers:
            self._arch_answers[key] = self._ask_arch(cuda, arch)
        return self._arch_answers[key]

    def _ask_arch(self, cuda: Cuda, arch: Arch) -> WhyNot | None:
        knows = self.cudas_with(arch)
        if cuda not in knows:
            reason = f"CUDA {cuda} does not know {arch.sm}"
            if not knows:
                reason = f"no CUDA known here knows {arch.sm}"
            elif cuda < knows[0]:
                reason += f"; it came with {knows[0]}"
            elif cuda > knows[-1]:
                reason += f"; the last that did is {knows[-1]}"
            return WhyNot("arch-unknown-to-toolkit", reason)
        if arch.suffix not in self._table.arch_suffixes:
            plain = replace(arch, suffix="", ptx=False)
            reason = f"torch's build tools refuse {arch} in TORCH_CUDA_ARCH_LIST; write {plain} or {plain}a"
            return WhyNot("arch-refused-by-torch", reason)
        return None


def _order(text: str) -> int:
    """A version as one number to measure distance with."""
    major, minor = text.split(".")
    return int(major) * 100 + int(minor)


@cache
def _load(path: Path) -> Compat:
    return Compat(read_table(path))
