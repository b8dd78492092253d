"""facts.yaml, which `buildfarm facts` writes beside matrix.yaml: rows that this version's table of facts lacks.

    torch:
      2.16.0:
        python: [3.11, 3.12, 3.13, 3.14, 3.14t]
        default: cu132                     # the variant on the package index
        variants:                          # architectures of torch's own kernels
          cu132: {x86_64: [7.5, 8.0, 8.6, 9.0, 10.0, 12.0], aarch64: [8.0, 9.0]}
        toolkit_pin: 13.2.2                # the cuda-toolkit that METADATA requires, or empty
        cxx_standard: 20                   # the oldest C++ standard of an extension
        gcc_max: {12.6: 13, 13.0: 15}      # the newest gcc that torch's build tools accept
        arch_list: [7.5, 8.0, 9.0, 9.0a]   # what TORCH_CUDA_ARCH_LIST may name
        companions: {torchvision: 0.31.0}  # the release that belongs to it
        sources: {FILE: {sha256: ..., read: {default: torch/version.py}}}
    toolkits:
      13.6:
        ptx: 9.6
        archs: [7.5, 8.0, 9.0, 9.0a]       # what its compiler knows
        gcc_max: 16                        # the newest gcc that its headers accept
        sources: ...

A row of this version's own table wins: facts.yaml adds releases and toolkits, and changes none.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from builder.errors import Code, UsageError
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat_table import read_text_yaml

#: Its name; it lies beside matrix.yaml.
FACTS = Path("facts.yaml")
_FORMAT = "1"
_HEAD = """\
# Facts that this version of buildfarm does not have itself, read from the package index by `buildfarm facts`.
# A plan depends on this file: review a change, and commit it like a lock. `buildfarm facts --check` reads all again.
"""

T = TypeVar("T")
Rows = dict[str, dict[str, dict[str, Any]]]


def read_rows(path: Path) -> Rows:
    """The rows of the file by `torch` and `toolkits`, as text. Raises UsageError for a file that this cannot be."""
    try:
        raw = read_text_yaml(path)
        if raw.pop("format") != _FORMAT or not all(isinstance(rows, dict) for rows in raw.values()):
            raise ValueError("it has a different format")
        return {key: raw.get(key, {}) for key in ("torch", "toolkits")}
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise _wrong(path, error) from error


def facts_text(rows: Rows) -> str:
    """The file with these rows, sorted: the same rows are the same bytes."""
    listed = {
        "torch": sorted(rows["torch"].items(), key=lambda row: Torch.parse(row[0])),
        "toolkits": sorted(rows["toolkits"].items(), key=lambda row: Cuda.parse(row[0])),
    }
    data = {"format": _FORMAT, **{key: dict(found) for key, found in listed.items() if found}}
    text: str = yaml.safe_dump(data, default_flow_style=None, sort_keys=False, width=110)
    return _HEAD + text


def with_facts(raw: dict[str, Any], path: Path, parse: Callable[[dict[str, Any]], T]) -> T:
    """What `parse` makes of compat.yaml and the rows of the file that it lacks, which become rows of compat.yaml.

    Raises UsageError for a file that cannot be read.
    """
    rows = read_rows(path)
    try:
        for name, row in rows["toolkits"].items():
            _add_toolkit(raw, Cuda.parse(name), row)
        for name, row in sorted(rows["torch"].items(), key=lambda row: Torch.parse(row[0])):
            _add_torch(raw, Torch.parse(name), row)
        return parse(raw)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise _wrong(path, error) from error


def _add_toolkit(raw: dict[str, Any], cuda: Cuda, row: dict[str, Any]) -> None:
    # A rule, because no package says it: all CUDA of one major version run on the same oldest driver.
    floors = raw["driver_floors"]["rows"]
    floors.setdefault(str(cuda.major), floors[max(floors, key=int)])
    images = {"version": "", "ubuntu": [], "rhel_like": []}
    facts = {"ptx": row["ptx"], "archs": row["archs"], "gcc_max": {"value": row["gcc_max"]}, "images": images}
    raw["toolkits"].setdefault(str(cuda), facts)


def _add_torch(raw: dict[str, Any], torch: Torch, row: dict[str, Any]) -> None:
    old = raw["torch"].get(torch.series)
    if old and str(torch) in old["releases"]:
        return
    for name, version in row["companions"].items():
        raw["companions"]["rows"][name][str(torch)] = version
    if old:  # a patch release: the rest of the series is known
        ended = old.setdefault("python_ended", {})
        ended[str(torch)] = [python for python in old["python"] if python not in row["python"]]
        new = [python for python in row["python"] if python not in old["python"]]
        for release in old["releases"]:
            ended[release] = [*ended.get(release, []), *new]
        old["python"], old["releases"] = [*old["python"], *new], [*old["releases"], str(torch)]
        return
    standards = raw["cxx_standards"]  # a rule for a newer one: at least what the newest known standard needs
    standards.setdefault(row["cxx_standard"], standards[max(standards, key=int)])
    keys = ("python", "default", "toolkit_pin", "cxx_standard", "variants")
    raw["torch"][torch.series] = {"releases": [str(torch)], **{key: row[key] for key in keys}}
    raw["torch_gcc_checks"]["rows"].append({"torch": [torch.series], "gcc_max": row["gcc_max"]})
    since, until = (raw["torch_arch_list"][key] for key in ("since", "until"))
    known = {arch for archs in since.values() for arch in archs}
    gone = known - set(row["arch_list"]) - {arch for archs in until.values() for arch in archs}
    since[torch.series], until[torch.series] = sorted(set(row["arch_list"]) - known), sorted(gone)


def _wrong(path: Path, error: Exception) -> UsageError:
    reason = error.sentence if isinstance(error, UsageError) else str(error).splitlines()[0]
    if isinstance(error, KeyError):
        reason = f"the key {reason} is missing"
    return UsageError(
        f"the file cannot be read: {reason}",
        Code.FILE_INVALID,
        where=str(path),
        hints=["delete the file, and run `buildfarm facts`, which writes it again"],
    )
