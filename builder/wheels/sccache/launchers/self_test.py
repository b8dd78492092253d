"""Whether the compiler cache tells apart two sources that differ only in code for the host.

A cache whose key is the text for the GPU returns the old object (sccache before 0.10, ccache 4.11). The test runs once
for each sccache, compiler, nvcc and cache; its result is kept beside the cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from builder.wheels.sccache.launchers.environment import CacheSettings

STALE = "the compiler cache returned an old object for a changed source"

#: The name of the compiled source, without its suffix.
SOURCE_NAME = "buildfarm-check"

_SOURCE = """\
#ifndef __CUDA_ARCH__
extern "C" const char *buildfarm_check() {{ return "buildfarm answers {answer}"; }}
#endif
"""


class SelfTestError(Exception):
    """The self-test did not compile; the message is the last line that the compiler printed."""


def cache_problem(settings: CacheSettings) -> str:
    """Why the cache must not be used, or empty; raises OSError or SelfTestError when the test cannot run."""
    result_file = _result_file(settings)
    if not result_file.exists():
        result_file.parent.mkdir(parents=True, exist_ok=True)
        scratch = result_file.with_name(f"{result_file.name}.{os.getpid()}")
        scratch.write_text("sound\n" if _tells_apart(settings) else "stale\n", encoding="utf-8")
        scratch.replace(result_file)
    return "" if result_file.read_text(encoding="utf-8").strip() == "sound" else STALE


def _result_file(settings: CacheSettings) -> Path:
    """Beside the objects and not among them: the server takes each file there for an object."""
    programs: list[str | Path] = [settings.sccache, settings.host_compiler]
    if settings.layout.toolkit.exists():
        programs.append(settings.layout.toolkit / "bin" / "nvcc")
    versions = [subprocess.run([p, "--version"], stdout=subprocess.PIPE, check=False).stdout for p in programs]
    name = hashlib.sha256(b"\0".join(versions)).hexdigest()[:32]
    return settings.cache_dir.with_name(f"{settings.cache_dir.name}.checked") / name


def _tells_apart(settings: CacheSettings) -> bool:
    folder = settings.layout.self_test
    folder.mkdir(parents=True, exist_ok=True)
    has_nvcc = settings.layout.toolkit.exists()
    compiler = settings.layout.cuda / "bin" / "nvcc" if has_nvcc else settings.host_launcher
    source = folder / f"{SOURCE_NAME}.{'cu' if has_nvcc else 'cpp'}"
    for answer in ("first", "second"):
        source.write_text(_SOURCE.format(answer=answer), encoding="utf-8")
        argv: list[str | Path] = [compiler, "-c", source, "-o", folder / f"{answer}.o"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise SelfTestError(done.stdout.decode(errors="replace").strip().rpartition("\n")[2])
    return b"buildfarm answers second" in (folder / "second.o").read_bytes()
