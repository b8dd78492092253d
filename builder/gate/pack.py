"""Puts the gate, a spec and a recipe's cases into one folder, or one file, that any Python with torch runs."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipapp
from pathlib import Path

from builder.gate.outcome import Spec

#: What a recipe's cases.py may import beside itself: a folder of this name next to it.
REFERENCES = "references"

_MAIN = '''\
"""Runs the gate from the folder, or the file, it stands in."""
import os, sys, tempfile, zipfile

here = os.path.dirname(os.path.abspath(__file__))
if os.path.isfile(here):  # one file: the processes it starts need a folder
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
    """Fill the folder `target`, which must not exist; run it with `python -I <target>`. Returns it.

    `cases` is a recipe's cases.py; the folder `references` beside it, if there is one, travels along.
    """
    room = Path(__file__).parent
    clean = shutil.ignore_patterns("__pycache__")
    shutil.copytree(room, target / "builder" / "gate", ignore=clean)
    (target / "builder" / "__init__.py").touch()
    (target / "__main__.py").write_text(_MAIN, encoding="utf-8")
    (target / "spec.json").write_text(json.dumps(spec.to_json(), indent=1), encoding="utf-8")
    if cases is not None:
        shutil.copyfile(cases, target / "cases.py")
        beside = cases.with_name(REFERENCES)
        if beside.is_dir():
            shutil.copytree(beside, target / REFERENCES, ignore=clean)
    return target


def pack_file(target: Path, spec: Spec, cases: Path | None) -> Path:
    """The same as one executable file, for a machine that has torch and nothing else: `python gate.pyz`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pack(Path(scratch, "gate"), spec, cases)
        zipapp.create_archive(folder, target, interpreter="/usr/bin/env python3", compressed=True)
    return target
