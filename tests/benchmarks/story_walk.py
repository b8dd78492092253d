"""Count the walk of a reader through one build and one proof: run both, and follow what travels from call to call.

    python tests/benchmarks/story_walk.py [--list] [ROOT]

ROOT is a clone of buildfarm, by default this one. The small project of the tests is built there by the local executor,
with a canned op gate, under `sys.setprofile`. The walk of a build begins at `run_build`, that of a proof at the first
method of `WheelProver`.

How it is counted. A call belongs to a walk if its caller does, and if an argument is what travels: the options, the
plan, a build, its tools, the job, a wheel, a cell. The reader reads each function once, in the order of the calls, and
stops at the door of another subject (`DOORS`): he reads the function that he is sent to, and follows no call in it.

- files: distinct files that the walk enters.
- returns: how often the reader goes back from a file to the function that sent him there, in order to go on.
- names: distinct names of parameters for what travels.
"""

import argparse
import os
import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

#: Types of what travels, by name: those of this version and of the version before the story had one module.
TRAVELS = {
    *("BuildOptions", "Plan", "Build", "LocalBuild", "CompileJob", "Compiled", "RawWheel"),
    *("StoredBuild", "Subject", "WheelFacts", "CellProofs", "Cell"),
}
#: Folders and modules that a reader of the story enters, and does not read on in.
DOORS = (
    *("cli/", "diagnosis/", "images/", "matrix/", "progress/", "publish/", "recipes/", "wheelfile/"),
    *("wheels/repair/", "wheels/sccache/", "wheels/sources/", "wheels/toolchain/", "wheels/build_scripts/"),
    *("proofs/static/", "proofs/file_checks.py", "gate/"),
    *("wheels/failures.py", "wheels/variables.py"),
)
#: The function that ends the walk of a build: it writes the wheels to dist/.
LAST = "publish_wheels"


def travels(value: object) -> bool:
    """Whether a value is what travels."""
    return type(value).__name__ in TRAVELS or (isinstance(value, Path) and value.suffix == ".whl")


class Walk:
    """The functions of one walk, in the order in which a reader reads them."""

    def __init__(self, package: Path, first: str) -> None:
        self._package = f"{package}{os.sep}"
        self._first = first
        self.entered: dict[CodeType, tuple[str, CodeType | None]] = {}  # file, caller
        self.names: set[str] = set()
        self._ended = False

    def place(self, frame: FrameType) -> str:
        """The file of a function of the package, relative to it; empty for any other."""
        name = frame.f_code.co_filename
        return name.removeprefix(self._package) if name.startswith(self._package) else ""

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Take a call."""
        place = self.place(frame) if event == "call" else ""
        code = frame.f_code
        if not place or code in self.entered or code.co_name.startswith("<") or self._ended:
            return
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = {name for name in given if name != "self" and travels(frame.f_locals.get(name))}
        caller = self._caller(frame)
        if f"{place}:{code.co_qualname}".startswith(self._first) and not self.entered:
            caller = None
        elif not names or caller is None:
            return
        self.entered[code] = (place, caller)
        self.names |= names
        self._ended = code.co_name == LAST

    def _caller(self, frame: FrameType) -> CodeType | None:
        """The function of the walk that made a call; a thread of a pool is called by the last function of the walk."""
        back = frame.f_back
        while back:
            place = self.place(back)
            of_pool = back.f_code.co_qualname.startswith("in_threads.")
            if place and not of_pool and not back.f_code.co_name.startswith("<"):
                open_door = not place.startswith(DOORS) and "/" in place
                return back.f_code if back.f_code in self.entered and open_door else None
            back = back.f_back
        if threading.current_thread() is threading.main_thread() or not self._first.startswith("commands/"):
            return None
        return next(reversed(self.entered), None)

    def returns(self) -> int:
        """How often the reader climbs back to another file in order to go on."""
        steps, climbs = list(self.entered.items()), 0
        for (before, (file, _)), (_, (_, caller)) in pairwise(steps):
            climbs += caller is not None and caller is not before and self.entered[caller][0] != file
        return climbs

    def text(self, *, listed: bool) -> str:
        """The numbers, and with `listed` the functions."""
        files = dict.fromkeys(file for file, _ in self.entered.values())
        lines = [
            f"{len(files)} files, {self.returns()} returns, {len(self.names)} names, {len(self.entered)} functions"
        ]
        lines += [f"  {file}:{code.co_qualname}" for code, (file, _) in self.entered.items() if listed]
        return "\n".join(lines)


def main() -> None:
    """Print the numbers of both walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--list", action="store_true", help="also print the functions of the walks")
    given = parser.parse_args()
    root = given.root.resolve()
    sys.path.insert(0, str(root))

    import pytest

    import builder
    from builder.commands.building.build import run_build
    from builder.wheels import make
    from tests.fixtures.small_project import small_project

    package = Path(str(builder.__file__)).parent
    assert package == root / "builder", package
    assert make.__file__
    walks = {
        "build": Walk(package, "commands/building/build.py:run_build"),
        "proof": Walk(package, "proofs/cells/prover.py:WheelProver.prove"),
    }

    def profile(frame: FrameType, event: str, value: object) -> None:
        for walk in walks.values():
            walk.profile(frame, event, value)

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as monkeypatch,
        small_project(Path(folder, "project"), monkeypatch) as project,
    ):
        project.recipe("tiny")
        project.matrix("tiny")
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            run_build(project.options())
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    for name, walk in walks.items():
        print(f"{name}: {walk.text(listed=given.list)}")


if __name__ == "__main__":
    main()
