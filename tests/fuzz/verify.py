"""What `verify` reads: wheels with planted changes, and inventories."""

import contextlib
import random
import zipfile
from dataclasses import dataclass
from pathlib import Path

from builder.commands.verify import verify_data, verify_text
from builder.errors import BuildfarmError
from builder.log import json_text
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.proofs.inventory import Shelf, inventory_of_wheel
from builder.proofs.static.gpu_code import known_gpus
from builder.proofs.verify.judge import Judge
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.facts import open_wheel, read_facts
from tests.fuzz.mutate import mutated, mutated_zip
from tests.real.verify.corpus import Wheel, inventory, stub_libraries


@dataclass(frozen=True)
class Prepared:
    """The files of a sound wheel and of a torch wheel, and a judge with one inventory."""

    wheel: dict[str, bytes]
    torch: dict[str, bytes]
    judge: Judge


def prepare(folder: Path) -> Prepared:
    """Compile the libraries, and put an inventory on a shelf."""
    stubs = stub_libraries(folder)
    with zipfile.ZipFile(Wheel().write(folder, stubs)) as archive:
        wheel = {name: archive.read(name) for name in archive.namelist()}
    torch = {f"torch/lib/{name}": (stubs / name).read_bytes() for name in ("libc10.so", "libtorch_cpu.so")}
    torch |= {"torch/version.py": b"__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'\n"}
    torch |= {"torch-2.11.0.dist-info/METADATA": b"Name: torch\nVersion: 2.11.0\nRequires-Dist: nvidia-cublas\n"}
    shelf = Shelf(folder / "inventories")
    shelf.add(*inventory("2.11.0"))
    judge = Judge(shelf, Selection(), tuple(known_gpus(Compat.load())[:2]), "580", max_size=1)
    return Prepared(wheel, torch, judge)


def read(prepared: Prepared, rng: random.Random, folder: Path) -> None:
    """Make one input of one kind and read it."""
    kind = rng.choice([_wheel, _wheel, _torch, _inventory])
    with contextlib.suppress(BuildfarmError):
        kind(prepared, rng, folder)


def _wheel(prepared: Prepared, rng: random.Random, folder: Path) -> None:
    path = folder / "ops-1.0+cu130-cp312-cp312-manylinux_2_17_x86_64.whl"
    path.write_bytes(mutated_zip(prepared.wheel, rng))
    with open_wheel(path) as wheel:
        verdicts = [prepared.judge.judge(wheel, read_facts(path), "fuzz")]
    verify_text(verdicts).encode()
    json_text(verify_data(verdicts, {})).encode()


def _torch(prepared: Prepared, rng: random.Random, folder: Path) -> None:
    path = folder / "torch-2.11.0-py3-none-any.whl"
    path.write_bytes(mutated_zip(prepared.torch, rng))
    with WheelFile(path) as wheel:
        inventory_of_wheel(wheel)


def _inventory(_: Prepared, rng: random.Random, folder: Path) -> None:
    path = (shelf := Shelf(folder)).add(*inventory("2.11.0"))
    path.write_bytes(mutated(path.read_bytes(), rng))
    shelf.read(*shelf.releases)
