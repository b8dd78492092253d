"""`store prune` while builds run, and the commands of `store` on a small project."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builder.commands.building.build import run_build
from builder.errors import Exit
from builder.matrix.fields import parse_size
from builder.store import Store
from tests.conftest import wait_until
from tests.fixtures.small_project import MODULE, SmallProject, small_project

pytestmark = pytest.mark.usefixtures("headers")

#: Deletes what was not used for some days, again and again, and prints what was deleted, and whether it had to wait.
PRUNE = """
import sys, time
from pathlib import Path
from builder.commands.store import prune_store as prune
from builder.store import Store
while True:
    time.sleep(0.02)  # leaves the processors to the builds
    deleted, in_use = prune(Store(Path(sys.argv[1])), float(sys.argv[2]))
    for item in deleted:
        print("deleted", item.target.partition("/")[0], flush=True)
    if in_use:
        print("in use", flush=True)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProject]:
    with small_project(tmp_path / "project", monkeypatch) as found:
        found.recipe("tiny")
        found.recipe("other")
        found.matrix("tiny", "other")
        yield found


@contextmanager
def pruning(store: Path, output: Path, days: float = 0) -> Iterator[None]:
    """Run the prune loop in a process of its own while the body runs."""
    with output.open("w") as stream:
        process = subprocess.Popen([sys.executable, "-c", PRUNE, str(store), str(days)], stdout=stream, stderr=stream)
        try:
            yield
            assert process.poll() is None, output.read_text()
        finally:
            process.kill()
            process.wait()


def test_prune_disturbs_no_running_build(project: SmallProject, tmp_path: Path) -> None:
    options, output = project.options(), tmp_path / "pruned"
    source = project.root / "tiny" / "src" / "tiny" / "_C.c"
    wanted = {"deleted builds", "deleted envs", "in use"}

    def seen() -> set[str]:
        return wanted & set(output.read_text().splitlines())

    with pruning(Store(project.store).root, output):
        for answer in range(30):  # until the other process has looked at each kind while it was in use
            source.write_text(MODULE.format(answer=answer))
            results = run_build(options)[1]
            assert [result.exit for result in results] == [Exit.OK] * 2, [result.error for result in results]
            assert len(list((project.root / "dist").glob("*.whl"))) == 2
            if answer >= 2 and "in use" in seen():
                break
        gc.collect()
        builds = Store(project.store).root / "builds"
        wait_until(lambda: not list(builds.iterdir()), "all builds deleted")
        wait_until(lambda: seen() == wanted, lambda: f"all of {wanted}: {seen()}")


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500MiB", 500 * 2**20), ("1.5GB", 1_500_000_000), ("20G", 20 * 2**30), ("2 kb", 2000)]
)
def test_a_size(text: str, size: int) -> None:
    assert parse_size(text) == size
