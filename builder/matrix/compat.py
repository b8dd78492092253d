"""Which torch, CUDA, Python and GPU architecture go together, or the reason why not; compat.yaml holds the facts."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from builder.errors import Code, UsageError
from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch, shown
from builder.matrix.compat_table import (
    FACTS,
    ToolkitFacts,
    TorchFacts,
    read_images,
    read_text_yaml,
    read_toolkit,
    read_torch,
    with_facts,
)

_FILE = Path(__file__).with_name("compat.yaml")
#: How to use a release that compat.yaml does not have.
_READ = "; `buildfarm facts` reads a newer one from the package index"


class WhyNot(NamedTuple):
    """The reason why a combination does not exist: an identifier for programs and a sentence."""

    code: str
    reason: str


def and_list(items: Iterable[object]) -> str:
    """Join items as text: `11.8, 12.1 and 12.4`."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


class Compat:
    """Facts about torch, CUDA, Python and GPU architectures. `Compat.load()` reads compat.yaml."""

    def __init__(self, raw: dict[str, Any]) -> None:
        """Parse compat.yaml. A mistake in the file is a bug and raises KeyError or ValueError."""
        torch, floors, companions = raw["torch"], raw["driver_floors"]["rows"], raw["companions"]
        standards = {name: int(row["gcc_min"]) for name, row in raw["cxx_standards"].items()}
        self._torch = {name: read_torch(name, row, standards[row["cxx_standard"]]) for name, row in torch.items()}
        self._toolkits = {Cuda.parse(name): read_toolkit(name, row, floors) for name, row in raw["toolkits"].items()}
        self._gcc_checks = {
            (series, Cuda.parse(cuda)): int(limit)
            for row in raw["torch_gcc_checks"]["rows"]
            for series in row["torch"]
            for cuda, limit in row["gcc_max"].items()
        }
        #: For each architecture that some torch accepts in TORCH_CUDA_ARCH_LIST: the first series; the first that
        #: refuses it again.
        self._listed_since, self._listed_until = (
            {Arch.parse(arch): series for series, archs in raw["torch_arch_list"][key].items() for arch in archs}
            for key in ("since", "until")
        )
        self.gpus = {Arch.parse(arch).capability: tuple(names) for arch, names in raw["gpus"]["rows"].items()}
        #: Expressions of further names of GPUs.
        self._gpu_families = {names: Arch.parse(arch) for names, arch in raw["gpus"]["families"].items()}
        self.images = read_images(raw)
        #: Version of torchvision and torchaudio by torch release; the oldest torch of a version that admits older ones.
        self.companions: dict[str, dict[Torch, str]] = {
            name: {Torch.parse(torch): version for torch, version in row.items()}
            for name, row in companions["rows"].items()
        }
        self.companion_floors: dict[str, dict[str, Torch]] = {
            name: {version: Torch.parse(torch) for version, torch in row.items()}
            for name, row in companions["oldest"].items()
        }
        self.toolkits = tuple(self._toolkits.values())
        #: The oldest CUDA whose complete toolkit is on the package index.
        self.first_packaged_toolkit = Cuda.parse(raw["first_packaged_toolkit"]["value"])
        every = self._torch.values()
        self._series = {release: facts for facts in every for release in facts.releases}
        self.torches = tuple(sorted(self._series))
        #: The newest release of each series, oldest first.
        self.newest_patches = tuple(sorted(facts.releases[-1] for facts in every))
        self.cudas = tuple(sorted({*self._toolkits, *(cuda for facts in every for cuda in facts.variants)}))
        self.pythons = tuple(
            sorted({python for facts in every for found in facts.pythons.values() for python in found})
        )

    @classmethod
    def load(cls) -> Compat:
        """Return the facts of compat.yaml and of the project's facts.yaml. Raises UsageError for a wrong facts.yaml.

        The project is that of the last matrix.yaml that was read, else the current folder.
        """
        return _loaded(_facts[0])

    def releases(self, text: str) -> tuple[Torch, ...]:
        """Return every release that `text` names, oldest first: `2.2` is 2.2.0, 2.2.1 and 2.2.2; `2.2.1` is itself.

        Raises UsageError: the release is unknown; the message names the nearest and the newest.
        """
        parts = text.split(".")
        if not re.fullmatch(r"\d{1,4}(\.\d{1,4}){1,2}", text):
            sentence = f"{shown(text)!r} is not a torch version; write it like 2.11 or 2.11.0"
            raise UsageError(sentence, Code.VALUE_INVALID)
        series, newest, known = ".".join(parts[:2]), self.torches[-1], self._torch
        if len(parts) == 2 and text in known:
            return known[text].releases
        if len(parts) == 3 and (wanted := Torch.parse(text)) in self.torches:
            return (wanted,)
        if series in known:
            near: object = min(known[series].releases, key=lambda r: abs(r.patch - int(parts[2])))
        else:
            near = min(known, key=lambda s: abs(_order(s) - _order(series)))
        raise UsageError(
            f"this version of buildfarm does not know torch {text}; the nearest is {near}, the newest {newest}{_READ}",
            Code.VERSION_UNKNOWN,
        )

    def has_torch(self, text: str) -> bool:
        """Return whether the release or the series is known. Raises UsageError for text that is no version."""
        try:
            return bool(self.releases(text))
        except UsageError as error:
            if error.code is Code.VERSION_UNKNOWN:
                return False
            raise

    def has_toolkit(self, cuda: Cuda) -> bool:
        """Return whether the toolkit is known, or older than all toolkits that can be known."""
        return cuda in self._toolkits or cuda < min(self._toolkits)

    def resolve_torch(self, text: str) -> Torch:
        """Return the release that `text` names; a series means its newest patch. Raises what `releases` raises."""
        return self.releases(text)[-1]

    def resolve_cuda(self, text: str) -> Cuda:
        """Parse `13.0` or `cu130`. Raises UsageError if it is unreadable or unknown; the message names the nearest."""
        cuda = Cuda.parse(text)
        if cuda not in self.cudas:
            near = min(self.cudas, key=lambda c: abs(_order(str(c)) - _order(str(cuda))))
            raise UsageError(
                f"this version of buildfarm does not know CUDA {cuda}; the nearest is {near}, the newest"
                f" {self.cudas[-1]}{_READ}",
                Code.VERSION_UNKNOWN,
            )
        return cuda

    def resolve_python(self, text: str) -> Python:
        """Parse `3.12`, `3.13t` or `cp312`. Raises UsageError if it is unknown; the message names the nearest."""
        python = Python.parse(text)
        if python not in self.pythons:
            near = min(
                self.pythons, key=lambda p: (p.free_threaded != python.free_threaded, abs(p.minor - python.minor), p)
            )
            raise UsageError(
                f"no torch release has wheels for Python {python}; the nearest Python with wheels is {near}",
                Code.VERSION_UNKNOWN,
            )
        return python

    def torch(self, torch: Torch) -> TorchFacts:
        """Return the facts of a release's series. Raises UsageError if the release is unknown."""
        return self._series.get(torch) or self._series[self.resolve_torch(str(torch))]

    def toolkit(self, cuda: Cuda) -> ToolkitFacts:
        """Return the facts of a CUDA toolkit. Raises UsageError if compat.yaml has no row for it."""
        if cuda not in self._toolkits:
            known = and_list(sorted(self._toolkits))
            raise UsageError(
                f"buildfarm's version table lists no toolkit of CUDA {cuda}; it lists {known}", Code.VERSION_UNKNOWN
            )
        return self._toolkits[cuda]

    def official_archs(self, torch: Torch, cuda: Cuda, platform: Platform) -> tuple[Arch, ...]:
        """Return the architectures of torch's own wheel, sorted; empty if there is no such wheel."""
        return self.torch(torch).variants.get(cuda, {}).get(platform, ())

    def is_default_variant(self, torch: Torch, cuda: Cuda) -> bool:
        """Return whether the package index serves this torch for this CUDA. Other variants are on torch's own index."""
        return self.torch(torch).default == cuda

    def torch_requirement(self, torch: Torch, cuda: Cuda) -> str:
        """The exact requirement of a cell's torch. The default variant on the package index has no local version."""
        return f"torch=={torch}" if self.is_default_variant(torch, cuda) else f"torch=={torch}+{cuda.variant}"

    def cell_requirements(self, torch: Torch, cuda: Cuda) -> tuple[str, ...]:
        """The packages of a cell, which the commands for users name too: its torch, and for an old torch NumPy 1.

        torch requires no NumPy: a cell has NumPy 2 only if the wheel requires it.
        """
        # torch before 2.3 was compiled for NumPy 1; with NumPy 2 it warns or fails.
        old = (torch.major, torch.minor) < (2, 3)
        return (self.torch_requirement(torch, cuda), *(["numpy<2"] if old else []))

    def gcc_range(self, torch: Torch, cuda: Cuda) -> tuple[int, int]:
        """Return the oldest and the newest gcc major that nvcc, torch's headers and torch's build check all accept."""
        facts = self.torch(torch)
        limits = [self.toolkit(cuda).gcc_max, facts.gcc_max, self._gcc_checks.get((facts.series, cuda))]
        return facts.gcc_min, min(limit for limit in limits if limit is not None)

    def gpu_named(self, text: str) -> Arch:
        """The compute capability of a GPU's name, such as `RTX 4090`, or of `8.9` or `sm_89`; raises UsageError.

        `RTX4090` and `NVIDIA A100-SXM4-80GB` are names too.
        """
        if re.fullmatch(r"\d+\.\d", text):
            return Arch.parse(text)
        if text.startswith("sm_") and (code := Arch.of_code(text)):
            return Arch(*code.capability)
        words = re.sub(r"\b([RG]TX)(?=\d)", r"\1 ", text.upper().replace("-", " "))
        wanted = f" {words.removeprefix('NVIDIA ').replace('GEFORCE ', '')} "
        for (major, minor), names in self.gpus.items():
            for name in names:
                known = re.split(r" / | \(|\)", name.upper())  # `Jetson T5000 / Thor`, `GB10 (DGX Spark)`
                if any(one and f" {one} " in wanted for one in known):
                    return Arch(major, minor)
        for expression, arch in self._gpu_families.items():
            if re.search(expression, wanted):
                return arch
        raise UsageError(
            f"buildfarm knows no GPU {text!r}",
            Code.VERSION_UNKNOWN,
            where="--gpu",
            hints=["write its compute capability, such as --gpu 8.9"],
        )

    def cudas_with(self, arch: Arch) -> tuple[Cuda, ...]:
        """Return the CUDA versions whose nvcc knows an architecture, oldest first."""
        plain = replace(arch, ptx=False)
        return tuple(sorted(c for c, facts in self._toolkits.items() if plain in facts.archs))

    def why_not(self, torch: Torch, cuda: Cuda, python: Python, platform: Platform) -> WhyNot | None:
        """Return the reason why torch has no wheel for the cell, or None. Raises UsageError if the torch is unknown."""
        return (
            self.why_not_cuda(torch, cuda)
            or self.why_not_python(torch, python)
            or self.why_not_platform(torch, cuda, platform)
        )

    # A plan asks for the same few pairs thousands of times. The instance lives as long as the process.
    @cache  # noqa: B019
    def why_not_cuda(self, torch: Torch, cuda: Cuda) -> WhyNot | None:
        """Return the reason why torch cannot be used with that CUDA, or None if it can."""
        facts = self.torch(torch)
        if cuda not in facts.variants:  # others, such as a package of a distribution, may have built one
            reason = f"torch {facts.series} was not released for CUDA {cuda}; it has {and_list(sorted(facts.variants))}"
            return WhyNot("no-torch-wheel-for-cuda", reason)
        if cuda not in self._toolkits:
            reason = f"torch {facts.series} has a wheel for CUDA {cuda}, but buildfarm's version table lists no toolkit"
            return WhyNot("no-toolkit", f"{reason} of CUDA {cuda}")
        return None

    @cache  # noqa: B019
    def why_not_python(self, torch: Torch, python: Python) -> WhyNot | None:
        """Return the reason why torch has no wheel for that Python, or None if it has one."""
        facts, kind = self.torch(torch), "free-threaded Python" if python.free_threaded else "Python"
        if python in facts.pythons[torch]:
            return None
        # Another release of the series may have such a wheel.
        name = torch if any(python in pythons for pythons in facts.pythons.values()) else facts.series
        served = [one for one in facts.pythons[torch] if one.free_threaded == python.free_threaded]
        has = and_list(served) or f"none for any {kind}"
        return WhyNot("no-torch-wheel-for-python", f"torch {name} has no wheel for {kind} {python}; it has {has}")

    def why_not_platform(self, torch: Torch, cuda: Cuda, platform: Platform) -> WhyNot | None:
        """Return the reason why torch has no wheel of that CUDA for the platform, or None if it has one."""
        if self.official_archs(torch, cuda, platform):
            return None
        reason = f"buildfarm's version table lists no torch {torch.series} wheel for CUDA {cuda} on {platform}"
        return WhyNot("no-torch-wheel-for-platform", reason)

    def check_archs(self, archs: Iterable[Arch], where: str) -> None:
        """Raise UsageError for an architecture that no toolkit knows; the message names the nearest ones."""
        for arch in archs:
            if not self.cudas_with(arch) and (why := self.why_not_arch(self.cudas[-1], arch)):
                raise UsageError(why.reason, Code.VALUE_INVALID, where=where)

    @cache  # noqa: B019
    def why_not_arch(self, cuda: Cuda, arch: Arch) -> WhyNot | None:
        """Return the reason why that CUDA cannot compile for the architecture, or None if it can."""
        knows = self.cudas_with(arch)
        if cuda not in knows:
            reason = f"CUDA {cuda} cannot compile for {arch.sm}"
            if not knows:
                every = sorted({each for facts in self.toolkits for each in facts.archs if not each.suffix})
                next_one = bisect(every, arch)
                near = and_list(every[max(0, next_one - 1) : next_one + 1])
                reason = f"no CUDA toolkit that buildfarm knows compiles for {arch}; the nearest: {near}"
            elif cuda < knows[0]:
                reason += f"; the first toolkit that can is {knows[0]}"
            elif cuda > knows[-1]:
                reason += f"; the last toolkit that can is {knows[-1]}"
            return WhyNot("arch-unknown-to-toolkit", reason)
        return None

    def why_not_listed(self, torch: Torch, arch: Arch) -> WhyNot | None:
        """Return the reason why torch's build tools refuse the architecture in TORCH_CUDA_ARCH_LIST, or None."""
        plain = replace(arch, ptx=False)
        first, until = self._listed_since.get(plain, ""), self._listed_until.get(plain)
        series = _order(torch.series)
        if first and _order(first) <= series and (until is None or series < _order(until)):
            return None
        reason = f"torch {torch.series} refuses {arch} in TORCH_CUDA_ARCH_LIST"
        if first and series < _order(first):
            reason += f"; torch {first} is the first that accepts it"
        elif until:
            reason += f"; torch before {until} accepts it"
        cure = "with `override_architectures: true` in the recipe, nvcc compiles for it"
        return WhyNot("arch-refused-by-torch", f"{reason}; {cure}")


#: The facts.yaml of the project, which need not exist.
_facts = [FACTS]


def use_facts_of(folder: Path) -> None:
    """Take the facts.yaml of this folder from now on, as it is now."""
    _facts[0] = folder / FACTS
    _loaded.cache_clear()


@cache
def _loaded(facts: Path) -> Compat:
    raw = read_text_yaml(_FILE)
    return with_facts(raw, facts, Compat) if facts.is_file() else Compat(raw)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean `python`?` if one of the words is similar, else empty text."""
    near = get_close_matches(word, list(words), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _order(text: str) -> int:
    major, minor = text.split(".")
    return int(major) * 100 + int(minor)
