"""Lays out the folder of a build's launchers; `Layout` describes it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from builder.wheels.sccache.launchers.environment import CacheSettings, Layout

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


def lay_out(settings: CacheSettings) -> None:
    """Delete the folder and make it again; raises OSError."""
    layout = settings.layout
    shutil.rmtree(layout.root, ignore_errors=True)
    for folder in (layout.launch, layout.compilers, layout.cuda / "bin"):
        folder.mkdir(parents=True)
    _link_compilers(settings)
    # After the real compilers were looked up, because the launchers are first on PATH.
    for compiler in layout.compilers.iterdir():
        _copy_launcher(layout.launch / compiler.name)
    if os.access(settings.toolkit / "bin" / "nvcc", os.X_OK):
        _lay_out_toolkit(layout, settings.toolkit)
    layout.site.symlink_to(os.path.realpath(settings.site))


def _link_compilers(settings: CacheSettings) -> None:
    pairs = [
        ("gcc", settings.cc),
        ("cc", settings.cc),
        ("g++", settings.cxx),
        ("c++", settings.cxx),
        # A recipe may name a CC or CXX of its own.
        (settings.recipe_cc, settings.recipe_cc),
        (settings.recipe_cxx, settings.recipe_cxx),
        (settings.cc, settings.cc),
        (settings.cxx, settings.cxx),
    ]
    for name, program in pairs:
        if real := shutil.which(program):
            link = settings.layout.compilers / Path(name).name
            link.unlink(missing_ok=True)
            link.symlink_to(real)


def _lay_out_toolkit(layout: Layout, toolkit: Path) -> None:
    """Links into the toolkit. Compilers read every header through them, so each link leads to the final path."""
    layout.toolkit.symlink_to(os.path.realpath(toolkit))
    for folder in ("", "bin"):
        for entry in (layout.toolkit / folder).iterdir():
            link = layout.cuda / folder / entry.name
            if not entry.name.startswith(".") and not link.exists():
                link.symlink_to(os.path.realpath(entry))
    nvcc = layout.cuda / "bin" / "nvcc"
    nvcc.unlink()
    _copy_launcher(nvcc)
    layout.server_nvcc.parent.mkdir()
    layout.server_nvcc.write_text(_SERVER_NVCC.format(toolkit=layout.toolkit), encoding="utf-8")
    layout.server_nvcc.chmod(0o755)


def _copy_launcher(target: Path) -> None:
    shutil.copyfile(_LAUNCHER, target)
    target.chmod(0o755)
