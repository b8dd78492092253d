"""Compares the reader of GPU code with `cuobjdump --list-elf --list-ptx`, for wheels and for what it compiles.

    python tests/benchmarks/reader_and_cuobjdump.py TOOLKIT [WHEEL ...]

TOOLKIT is a folder with `bin/nvcc` and `bin/cuobjdump`: the folder `nvidia/cu13` of an environment with the packages
nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime, nvidia-cuda-cccl, nvidia-cuda-tileiras and
nvidia-cuda-cuobjdump.
Without wheels, it compiles the libraries of reader_and_cuobjdump.yaml. A case whose compiler, linker or tool is not on
PATH is not run, and says so. Prints each library whose codes differ; the exit code is then 1.

Known, and no difference: cuobjdump drops the suffix of family-specific machine code (see the script
findings/cuobjdump_family_code.sh), and does not list LTO-IR, which no GPU runs. Of a library without a device link, it
lists the code that waits for the link. It stops at machine code of CUDA 12.1 for sm_90 ("Invalid ELF"): such a library
is not compared, and its codes are printed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from builder.wheelfile.elf import HEAD, MAGIC, read_elf
from builder.wheelfile.facts import open_wheel
from builder.wheelfile.fatbin import gpu_entries

CASES = Path(__file__).with_suffix(".yaml")
#: Differences that were examined, by library.
KNOWN = {"tile": "tileiras compiles for sm_90a; the header of the code, its ELF file and nvcc's own commands say sm_90"}
_LISTED = re.compile(r"^(ELF|PTX) file +\d+: .*\.sm_(\w+)\.(?:cubin|ptx)$", re.MULTILINE)


def by_reader(library: Path) -> Counter[str]:
    """The number of codes of each architecture, under the names of cuobjdump."""
    names = (entry.name for entry in gpu_entries(library))
    return Counter(name.rstrip("f") if name.startswith("sm_") else name for name in names if name[:4] != "lto_")


def by_cuobjdump(cuobjdump: Path, library: Path) -> tuple[Counter[str], str]:
    """The number of codes of each architecture that are linked, and what cuobjdump says about a fault."""
    argv = [str(cuobjdump), "--list-elf", "--list-ptx", str(library)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    found: Iterable[str] = (
        f"{'sm' if kind == 'ELF' else 'compute'}_{number}" for kind, number in _LISTED.findall(done.stdout)
    )
    elf = read_elf(library)
    if elf is not None and elf.device_link and not elf.fatbin:
        found = ()
    return Counter(found), "\n".join(re.findall(r".*(?:fatal|error).*", done.stdout + done.stderr))


def compiled(toolkit: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The name and the library of each case."""
    table = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    environment = {**os.environ, **table["variables"], "PATH": f"{toolkit / 'bin'}:{os.environ['PATH']}"}
    environment["CUDA"] = str(toolkit)
    for number, (name, command) in enumerate(table["cases"].items()):
        place = folder / str(number)
        place.mkdir()
        for file, text in table["sources"].items():
            (place / file).write_text(text, encoding="utf-8")
        argv = ["bash", "-euc", command]
        done = subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"NOT RUN {name}: {(done.stderr or done.stdout).strip()[:300]}", flush=True)
        else:
            yield name, place / "out.so"


def unpacked(wheels: list[Path], folder: Path) -> Iterator[tuple[str, Path]]:
    """The name and a copy of each library of wheels; the next one has the same path."""
    for wheel in wheels:
        with open_wheel(wheel) as archive:
            for name in sorted(archive.names):
                with archive.open(name) as member:
                    is_elf = member.read(HEAD).startswith(MAGIC)
                if is_elf:
                    yield f"{wheel.name}: {name}", archive.unpack(name, folder / "library.so")


def main() -> int:
    """Compare each library."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("toolkit", type=Path)
    parser.add_argument("wheels", type=Path, nargs="*")
    options = parser.parse_args()
    toolkit, counted, codes = options.toolkit.absolute(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found = unpacked(options.wheels, folder) if options.wheels else compiled(toolkit, folder)
        for name, library in found:
            ours, (theirs, said) = by_reader(library), by_cuobjdump(toolkit / "bin" / "cuobjdump", library)
            state = "not compared" if "Invalid ELF" in said else "same" if ours == theirs else "DIFFERS"
            if state == "DIFFERS" and name in KNOWN:
                state = "known"
                print(f"known {name}: {KNOWN[name]}; {dict(ours)} and {dict(theirs)}")
            elif state == "DIFFERS":
                print(f"DIFFERS {name}: only read {dict(ours - theirs)}, only listed {dict(theirs - ours)}; {said}")
            elif ours or not options.wheels:
                print(f"{state} {name}: {ours.total()} codes, {' '.join(ours)}", flush=True)
            counted[state] += 1
            codes += ours.total()
    print(f"{codes} codes; libraries:", ", ".join(f"{number} {state}" for state, number in counted.items()))
    return 1 if counted["DIFFERS"] else 0


if __name__ == "__main__":
    sys.exit(main())
