"""The program that reads the symbols of torch's libraries in a container, whose Python has no buildfarm."""

from __future__ import annotations

import shutil
from pathlib import Path

import elftools

from builder import errors, masking
from builder.images.container import CONTAINER_DIR
from builder.proofs.static import symbol_table
from builder.wheelfile import elf, fatbin, limits

#: Reads the symbols of torch's libraries inside of the container, so that gigabytes need not be copied out.
READ_SYMBOLS = f"""\
import json, pathlib, sys, sysconfig
sys.path.insert(0, "{CONTAINER_DIR}/reader")
from builder.proofs.static.symbol_table import collect_symbols
table = collect_symbols(pathlib.Path(sysconfig.get_path("purelib")))
pathlib.Path("{CONTAINER_DIR}/symbols.json").write_text(json.dumps(table.to_json()))
"""


def write_reader(folder: Path) -> Path:
    """Copy `symbol_table` and the modules that it imports to a folder; return the folder."""
    for module in (errors, masking, symbol_table, elf, fatbin, limits):
        file = Path(str(module.__file__))
        target = folder.joinpath(*module.__name__.split(".")).with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    shutil.copytree(Path(elftools.__file__).parent, folder / "elftools", ignore=shutil.ignore_patterns("__pycache__"))
    return folder
