"""Judges real wheels of the package index with `buildfarm verify`, and compares the failures with those known.

    python tests/benchmarks/real_wheels.py --store STORE

real_wheels.yaml lists the wheels. Each failure in it was examined; the text there is a part of the sentence that
names the evidence. A failure that is not in the list is a false alarm or a new finding: the command exits with 1. So it
does if a known failure is no longer found. The store needs the inventories that `python -m docs.atlas` reads. The
wheels are downloaded, 3 GB in all, and stay in the store.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import yaml

from builder.errors import Exit

LIST = Path(__file__).with_suffix(".yaml")


def failures(wheel: str, store: Path) -> dict[str, str]:
    """The failed checks of a wheel NAME==VERSION, each with its sentence."""
    argv = [sys.executable, "-m", "builder", "verify", wheel, "--python", "3.12", "--store", str(store), "--json", "-q"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in (Exit.OK, Exit.FAILED):
        return {"verify": done.stderr.strip()}
    proofs = [proof for verdict in json.loads(done.stdout) for proof in verdict["proofs"]]
    return {proof["check"]: proof["reason"] for proof in proofs if proof["verdict"] == "failed"}


def differences(known: dict[str, str], found: dict[str, str]) -> list[str]:
    """A sentence for each failure that was not expected, and for each that was."""
    new = [f"{check}: {reason[:300]}" for check, reason in found.items() if check not in known]
    lost = [f"{check} does not say {text!r}" for check, text in known.items() if text not in found.get(check, "")]
    return new + lost


def main() -> int:
    """Judge each wheel of the list."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True, help="store with symbol inventories")
    options = parser.parse_args()
    table = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    wheels = {name: known or {} for name, known in table["wheels"].items()}
    wrong = 0
    for wheel, known in wheels.items():
        errors = differences(known, failures(wheel, options.store))
        wrong += bool(errors)
        print(
            f"{'BAD ' if errors else 'ok  '} {wheel}: {', '.join(known) or 'sound'}", *errors, sep="\n    ", flush=True
        )
    print(f"{len(wheels)} wheels, {sum(not known for known in wheels.values())} without a fault; {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
