"""Builds in containers that are interrupted, killed, or run out of disk: nothing is left, and the next run succeeds.

The other failures of containers are in tests/full/containers/test_container_faults.py.
"""

import contextlib
import signal
from collections.abc import Iterator

import pytest

from tests.fixtures.container_farm import ContainerFarm, container_farm, ended, error_text, small_disk

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerFarm]:
    with container_farm(tmp_path_factory.mktemp("farm")) as made:
        yield made


def test_interrupted_and_killed_runs_and_then_a_wheel(farm: ContainerFarm) -> None:
    package = farm.recipe("ended")
    for ending, barrier, volume in (
        (signal.SIGTERM, farm.fetches, ""),
        (signal.SIGHUP, farm.compiles, ""),
        (signal.SIGINT, farm.compiles, ""),
        (signal.SIGINT, farm.fetches, f"{farm.packages}.empty"),
    ):
        with farm.held(barrier, packages=volume) as run:
            assert farm.containers()
            run.send_signal(ending)
            done = ended(run)
        assert done.code == 130, done.all
        assert "interrupted; finished builds are kept" in done.err
        farm.nothing_left()
        assert farm.wheels() == []

    left = set[str]()
    for _ in range(2):  # and the same job again
        with farm.held(farm.compiles) as run:
            assert not left & set(farm.containers()), "the container of the killed run is still running"
            run.kill()
            ended(run)
            left = set(farm.containers())
        assert left
    (package / "_C.c").write_text((package / "_C.c").read_text().replace("42", "43"))  # so this job never runs again
    done = farm.build()
    assert done.code == 0, done.all
    assert farm.containers() == []
    farm.nothing_left()
    assert len(farm.wheels()) == 1


def test_the_disk_is_full_under_the_store(farm: ContainerFarm) -> None:
    farm.recipe("cramped")
    store = farm.root / "cramped-store"
    with small_disk(store):
        with (
            farm.held(farm.compiles, store=store.name) as run,
            contextlib.suppress(OSError),
            (store / "filler").open("wb") as filler,
        ):
            while True:
                filler.write(bytes(4096))
                filler.flush()
        errors = error_text(ended(run), 1)
        assert "the disk is full" in errors, errors
        assert not list((store / "builds").iterdir())
        assert farm.containers(store.name) == []
        (store / "filler").unlink()
        done = farm.build(store=store.name)
        assert done.code == 0, done.all
