"""Compilers write the folder names that the flags of buildfarm give, and not those of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from builder.wheels.variables import prefix_map_flags


@pytest.mark.parametrize("hashed", [True, False], ids=["source", "store"])
def test_a_compiler_calls_the_folders_as_it_is_told(tmp_path: Path, *, hashed: bool) -> None:
    texts = []
    for name in ("one", "another place".replace(" ", "-")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.c").write_text("const char *where(void) { return __FILE__; }\n")
        named = {folder: "."}
        maps = prefix_map_flags(named if hashed else {}, "12.2.0", stores={} if hashed else named)
        flags = maps["CPPFLAGS"].split()
        subprocess.run(["gcc", "-c", "-g", *flags, folder / "a.c", "-o", folder / "a.o"], check=True, cwd=folder)
        texts.append((folder / "a.o").read_bytes())
    assert texts[0] == texts[1]
    assert os.fsencode(tmp_path) not in texts[0]
