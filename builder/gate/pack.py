"""Packs the gate, a spec and a recipe's cases into one folder, or one file, that any Python with torch can run."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipapp
from dataclasses import asdict
from pathlib import Path

from builder.gate.outcome import Spec

#: The folder beside a recipe's cases.py that cases.py may import from.
REFERENCES = "references"

_MAIN = '''\
"""Runs the packed gate from this folder or file."""
import os, sys, tempfile, zipfile

if sys.version_info < (3, 9):
    sys.stderr.write("gate: error: %s is Python %d.%d; use the Python of the environment with torch and the wheel, 3.9"
                     " or newer\\n" % ((sys.executable,) + tuple(sys.version_info[:2])))
    sys.exit(2)
here = os.path.dirname(os.path.abspath(__file__))
if os.path.isfile(here):  # a single file: the worker processes need a folder
    with tempfile.TemporaryDirectory(prefix="buildfarm-gate-") as folder:
        with zipfile.ZipFile(here) as packed:
            packed.extractall(folder)
        sys.path[0] = folder
        from builder.gate.run import main

        status = main(sys.argv[1:])
    sys.exit(status)
from builder.gate.run import main

sys.exit(main(sys.argv[1:]))
'''


def pack(target: Path, spec: Spec, cases: Path | None) -> Path:
    """Create the folder `target`, which must not exist, and return it; run it with `python -I <target>`.

    `cases` is a recipe's cases.py; a folder `references` beside it is packed too. Raises OSError.
    """
    package = Path(__file__).parent
    clean = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, target / "builder" / "gate", ignore=clean)
    (target / "builder" / "__init__.py").touch()
    (target / "__main__.py").write_text(_MAIN, encoding="utf-8")
    (target / "spec.json").write_text(json.dumps(asdict(spec), indent=1), encoding="utf-8")
    if cases is not None:
        shutil.copyfile(cases, target / "cases.py")
        references = cases.with_name(REFERENCES)
        if references.is_dir():
            shutil.copytree(references, target / REFERENCES, ignore=clean)
    return target


def pack_file(target: Path, spec: Spec, cases: Path | None) -> Path:
    """Pack the same content into one executable file, which needs only Python and torch: `python gate.pyz`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pack(Path(scratch, "gate"), spec, cases)
        zipapp.create_archive(folder, target, interpreter="/usr/bin/env python3", compressed=True)
    return target
