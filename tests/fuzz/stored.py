"""Files of JSON that the program keeps: in an index, in `dist/` and in the store. Inputs change one of them."""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.proof import proofs_json, proofs_path
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.runs.history import save_run
from builder.publish.server.tokens import Tokens
from builder.store import Store, work_name
from tests.fuzz.mutate import mutated
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import proofs_of, ready
from tests.unit.wheels.make_record import TOOLCHAIN, build_record

_REPORT = {
    "builds": [
        {
            "build": "ops-1.0-cpython-torch2.11.0-cu130-cp312",
            "extension": "ops",
            "version": "1.0",
            "serves": ["torch2.11.0-cu130-cp312"],
            "archs": ["9.0"],
            "status": "failed",
            "error": "no nvcc",
            "hints": ["install nvcc"],
            "proofs": [{"check": "import", "cell": None, "verdict": "failed", "reason": "no", "evidence": {}}],
        }
    ],
    "skips": [{"torch": "2.2", "cuda": "12.1", "python": "3.12", "extension": "ops", "code": "x", "reason": "old"}],
}
_VALUES: list[Any] = [
    None, True, 0, -1, 10**30, 1e999, float("nan"), "", "x", "../../x", "\x1b[31m", "\ud800", "\0", "9" * 5000,
    [], [[]], {}, {"x": None}, ["x"], ["\n"],
]  # fmt: skip
_COMMANDS: list[list[str]] = [
    ["index", "check", "index"],
    ["index", "prune", "index", "--keep", "1"],
    ["resolve", "my_ext", "--index", "index", "--torch", "2.11", "--cuda", "13.0", "--python", "3.12"],
    ["publish", "--to", "index", "--require", "none"],
    ["yank", "my_ext-1.0-py3-none-any.whl", "--index", "index", "--reason", "bad"],
    ["token", "list", "index"],
    ["store", "history"],
    ["store", "prune", "--keep-days", "0", "--dry-run"],
    ["report"],
    ["smoke", "--matrix", "matrix.yaml", "--dist", "reports"],
    ["rebuild", "dist/my_ext-1.0-py3-none-any.whl", "--verify"],
]


@dataclass(frozen=True)
class Stored:
    """A folder with an index, a `dist/` and a store, and the paths of its JSON files."""

    folder: Path
    files: Sequence[Path]


def prepare(folder: Path) -> Stored:
    """Make the folder."""
    repository = Repository(Folder(folder / "index"))
    repository.add(ready(folder / "dist"))
    repository.add(ready(folder / "dist", version="2.0"))
    Tokens(folder / "index").add("ci", ("read",), None)
    for wheel in (folder / "dist").glob("*.whl"):
        proofs_path(wheel).write_bytes(proofs_json(proofs_of(wheel)))
    for name in ("dist", "reports"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "report.json").write_text(json.dumps(_REPORT))
    store, digest = Store(folder / "store"), "ab" * 32
    wheel = pure_wheel(folder / "raw", "ops", "1.0")
    with store.work(work_name(digest)):
        stored = store.add(digest, wheel, build_record())
    store.save_proofs(proofs_of(stored.wheel))
    (stored.wheel.parent / "facts-0123456789ab.json").write_text(json.dumps({"sha256": stored.sha256}))
    (folder / "store/envs/0123456789abcdef").mkdir()
    record = {"requirements": ["torch"], "packages": list(TOOLCHAIN.packages)}
    (folder / "store/envs/0123456789abcdef.json").write_text(json.dumps(record))
    save_run(store, datetime(2026, 1, 2, tzinfo=UTC), 1.0, json.dumps(_REPORT))
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if _is_json(path)]
    return Stored(folder, files)


def changed(stored: Stored, rng: random.Random, folder: Path) -> list[str]:
    """Copy the folder, change one of its JSON files, and return a command line that may read it."""
    shutil.copytree(stored.folder, folder, dirs_exist_ok=True)
    file = folder / rng.choice(stored.files)
    data = file.read_bytes()
    if rng.random() < 0.4:
        file.write_bytes(mutated(data, rng, most=3))
    elif rng.random() < 0.05:
        file.write_bytes(rng.choice([b"[", b'{"a":', b'{"files":[']) * rng.choice([3000, 200_000]))
    else:
        file.write_text(json.dumps(_replaced(json.loads(data), rng)))
    return rng.choice(_COMMANDS)


def _is_json(path: Path) -> bool:
    try:
        return path.is_file() and isinstance(json.loads(path.read_bytes()), dict | list)
    except ValueError:
        return False


def _replaced(data: Any, rng: random.Random) -> Any:
    """The data with a random value of it replaced by another, or left out."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(list(data))
        if rng.random() < 0.1:
            return {name: value for name, value in data.items() if name != key}
        return {**data, key: _replaced(data[key], rng)}
    if isinstance(data, list) and data and rng.random() < 0.9:
        place = rng.randrange(len(data))
        return [*data[:place], _replaced(data[place], rng), *data[place + 1 :]]
    return rng.choice(_VALUES)
