"""The launchers and sccache's server: made before a build, stopped after it. Without a server, a build has no cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: The name of the source that the self-test compiles, without its suffix.
SOURCE_NAME = "buildfarm-check"

_LAUNCHER = Path(__file__).with_name("launch.sh")

#: sccache preprocesses a .cu file for a key, and stores nothing under that key: it stores the results of nvcc's steps,
#: each under a key of its own. So the answer to that call is a random token, which no key ever matches. Any other call
#: goes to nvcc.
_SERVER_NVCC = """\
#!/bin/sh
case " $* " in
    *" -E -Xcompiler=-P ") read -r new < /proc/sys/kernel/random/uuid && echo "$new" ;;
    *) exec "{toolkit}/bin/nvcc" "$@" ;;
esac
"""

#: Compiler caches that Meson and many a setup.py put before each compiler if they find them on PATH.
_OTHER_CACHES = ("sccache", "ccache")

#: In the place of such a program: it says that it does not work, and calls the compiler for those that do not ask. The
#: launcher of this compiler calls sccache, unless the compiler cache is turned off.
_NO_CACHE = """\
#!/bin/sh
while :; do
    case ${1-} in
        [A-Za-z_]*=*) shift ;; # a setting of ccache
        --version | -V) exit 1 ;;
        "" | -*) exit 0 ;;
        *) exec "$@" ;;
    esac
done
"""


class Layout:
    """The folder of a build's launchers. It has the same name in every container.

    Paths in it reach the keys of objects (nvcc's own path, torch's headers), so a name that is always the same lets
    builds for different Pythons and torches share objects.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.launch = root / "launch"  # gcc, g++, cc, c++, $CC and $CXX: copies of launch.sh; first on PATH
        self.compilers = root / "compilers"  # links to the real compilers, under the same names
        self.cuda = root / "cuda"  # CUDA_HOME of the build: links into the toolkit, but bin/nvcc is a copy of launch.sh
        self.toolkit = root / "toolkit"  # link to the real CUDA toolkit; absent in a build without nvcc
        self.server_nvcc = root / "whole" / "nvcc"  # the program that sccache's server calls as nvcc
        self.site = root / "site"  # link to the build's site-packages
        self.self_test = root / "check"  # sources and objects of the cache's self-test


@dataclass(frozen=True)
class CacheSettings:
    """One build's compilers and its compiler cache."""

    objects: Path  # the folder of the launchers; `Layout` describes it
    statistics_dir: Path  # where the statistics of sccache go, for `builder.wheels.sccache.configure`
    toolkit: Path  # the real CUDA toolkit; it may have no nvcc
    site: Path  # the real site-packages
    cc: str  # cc, cxx: the compilers that buildfarm found
    cxx: str
    cache_dir: Path  # where sccache keeps objects
    #: Where its server listens. The path may have 107 bytes (unix(7)), and nobody else may write its folder.
    socket: Path
    sccache: str = "sccache"  # the program
    #: recipe_cc, recipe_cxx: CC and CXX of the build, which a recipe may set to different compilers.
    recipe_cc: str = ""
    recipe_cxx: str = ""
    disabled: str = ""  # why the compiler cache is turned off, or empty
    refused: str = ""  # why objects of this source must not be cached, or empty
    reads: bool = True  # whether objects of earlier builds may be used

    @property
    def layout(self) -> Layout:
        """The folder of the launchers."""
        return Layout(self.objects)

    @property
    def refusal_file(self) -> Path:
        """Holds the reason when the compiler cache is not used."""
        return self.statistics_dir / "refused"


def lay_out(settings: CacheSettings) -> None:
    """Delete the folder of a build's launchers, which `Layout` describes, and make it again; raises OSError."""
    layout = settings.layout
    shutil.rmtree(layout.root, ignore_errors=True)
    others = [name for name in _OTHER_CACHES if shutil.which(name)]
    for folder in (layout.launch, layout.compilers, layout.cuda / "bin"):
        folder.mkdir(parents=True)
    pairs = [
        *((name, settings.cc) for name in ("gcc", "cc")),
        *((name, settings.cxx) for name in ("g++", "c++")),
        # A recipe may name a CC or CXX of its own.
        *((name, name) for name in (settings.recipe_cc, settings.recipe_cxx, settings.cc, settings.cxx)),
    ]
    for name, program in pairs:
        if real := shutil.which(program):
            link = layout.compilers / Path(name).name
            link.unlink(missing_ok=True)
            link.symlink_to(real)
    # After the real compilers were looked up, because the launchers are first on PATH.
    for compiler in layout.compilers.iterdir():
        _write_program(layout.launch / compiler.name, _LAUNCHER.read_text(encoding="utf-8"))
    for name in others:
        _write_program(layout.launch / name, _NO_CACHE)
    if os.access(settings.toolkit / "bin" / "nvcc", os.X_OK):
        # Links into the toolkit. Compilers read every header through them, so each link leads to the final path.
        layout.toolkit.symlink_to(os.path.realpath(settings.toolkit))
        for below in ("", "bin"):
            for entry in (layout.toolkit / below).iterdir():
                link = layout.cuda / below / entry.name
                if not entry.name.startswith(".") and not link.exists():
                    link.symlink_to(os.path.realpath(entry))
        nvcc = layout.cuda / "bin" / "nvcc"
        nvcc.unlink()
        _write_program(nvcc, _LAUNCHER.read_text(encoding="utf-8"))
        layout.server_nvcc.parent.mkdir()
        _write_program(layout.server_nvcc, _SERVER_NVCC.format(toolkit=layout.toolkit))
    layout.site.symlink_to(os.path.realpath(settings.site))


def _write_program(target: Path, text: str) -> None:
    target.write_text(text, encoding="utf-8")
    target.chmod(0o755)


def _sccache(settings: CacheSettings) -> str:
    """The real program, not what `lay_out` put in its place on PATH."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder != str(settings.layout.launch))
    return shutil.which(settings.sccache, path=path) or settings.sccache


def cache_problem(settings: CacheSettings) -> str:
    """Why the cache must not be used, or empty: sccache 0.16 cannot compile with nvcc 13.4 and 13.5.

    One compile tries it, once for each sccache, compiler, nvcc and cache: a file beside the cache says that it worked.
    """
    programs: list[str | Path] = [_sccache(settings), settings.layout.compilers / Path(settings.recipe_cxx).name]
    if settings.layout.toolkit.exists():
        programs.append(settings.layout.toolkit / "bin" / "nvcc")
    name = "sccache"
    try:
        versions = [subprocess.run([p, "--version"], stdout=subprocess.PIPE, check=False).stdout for p in programs]
        name = versions[0].decode(errors="replace").strip()
        if release := re.search(rb"Cuda compilation tools, release ([\d.]+)", versions[-1]):
            name += f" with nvcc {release[1].decode()}"
        # Beside the objects and not among them: the server takes each file there for an object.
        kept = settings.cache_dir.with_name(f"{settings.cache_dir.name}.checked")
        worked = kept / hashlib.sha256(b"\0".join(versions)).hexdigest()[:32]
        if not worked.exists():
            _try_compile(settings)
            kept.mkdir(parents=True, exist_ok=True)
            worked.touch()
    except OSError as error:
        return f"{name} failed its self-test: {error}"
    return ""


def _try_compile(settings: CacheSettings) -> None:
    """Raises OSError with the first line of the output, which nvcc's steps print."""
    folder = settings.layout.self_test
    folder.mkdir(parents=True, exist_ok=True)
    has_nvcc = settings.layout.toolkit.exists()
    cxx = settings.layout.launch / Path(settings.recipe_cxx).name
    source = folder / f"{SOURCE_NAME}.{'cu' if has_nvcc else 'cpp'}"
    source.write_text("int buildfarm_check;\n", encoding="utf-8")
    compiler = settings.layout.cuda / "bin" / "nvcc" if has_nvcc else cxx
    argv: list[str | Path] = [compiler, "-c", source, "-o", folder / "check.o"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        # sccache adds only that the compiler failed.
        lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        raise OSError(next((line for line in lines if not line.startswith("sccache:")), *lines[-1:]))


def run_behind_cache(settings: CacheSettings, argv: Sequence[str]) -> int:
    """Run a command with the compiler cache; returns its status. Ends by the same signal as the command."""
    start(settings)
    try:
        status = subprocess.run(argv, check=False).returncode
    finally:
        stop(settings)
    if status < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def start(settings: CacheSettings) -> None:
    """Lay out the launchers and start the server; raises SystemExit when the launchers cannot be made.

    Without a server the launchers call the compilers directly: a cache that does not work costs time and not the build.
    """
    try:
        lay_out(settings)
        settings.statistics_dir.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # made by the host's user, and open to all
            settings.statistics_dir.chmod(0o777)  # buildfarm deletes it, and may be a different user
    except OSError as error:
        sys.exit(f"error: cannot create the folder of compiler wrappers for sccache: {error}")
    if reason := settings.disabled or settings.refused:
        settings.refusal_file.write_text(f"{reason}\n", encoding="utf-8")
    if settings.disabled:
        return
    reason = _start_server(settings)
    if not reason and settings.reads:  # a cache that is not read needs no test
        reason = cache_problem(settings)
    if reason:
        settings.refusal_file.write_text(f"{reason}\n", encoding="utf-8")
        _stop_server(settings)
        sys.stdout.write(f"note: the compiler cache is not used: {reason}\n")
        sys.stdout.flush()
    else:  # the self-test compiled too
        _call_server(settings, "--zero-stats")


def stop(settings: CacheSettings) -> None:
    """Save the server's statistics and end it, if it runs."""
    if settings.socket.is_socket():
        argv = [_sccache(settings), "--show-stats", "--stats-format=json"]
        with suppress(OSError), (settings.statistics_dir / "stats.json").open("wb") as stream:
            subprocess.run(argv, stdout=stream, stderr=subprocess.DEVNULL, check=False)
        _stop_server(settings)


def _start_server(settings: CacheSettings) -> str:
    """Start the server; returns why it did not start, or empty.

    It stays in this session and process group, so that it ends with them. It holds none of this process's streams.
    """
    log = settings.statistics_dir / "start.log"
    variables = {
        **os.environ,
        "SCCACHE_DIRECT": "true",
        "SCCACHE_NO_DAEMON": "1",
        "SCCACHE_ERROR_LOG": str(settings.statistics_dir / "server.log"),
    }
    argv = [_sccache(settings), "--start-server"]
    try:
        settings.cache_dir.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stream:
            started = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=variables, check=False
            )
    except OSError as error:
        return str(error)
    if started.returncode == 0:
        return ""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return text.rpartition("\n")[2] or f"sccache ended with status {started.returncode}"


def _stop_server(settings: CacheSettings) -> None:
    _call_server(settings, "--stop-server")
    settings.socket.unlink(missing_ok=True)


def _call_server(settings: CacheSettings, option: str) -> None:
    with suppress(OSError):
        argv = [_sccache(settings), option]
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
