"""Failures of containers: each gives an error and an exit code, leaves nothing behind, and the next run succeeds."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import wait_until
from tests.fixtures.container_farm import ABSENT, BASE, PYTHONS, ContainerFarm, container_farm, ended, error_text
from tests.fixtures.engine_proxy import engine_proxy

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

#: An image with one step, which downloads a package that does not exist.
OTHER_TOOL = f"""
import builder.images.image_build
builder.images.image_build.render_template = lambda *_: '''FROM {PYTHONS}
RUN --mount=type=secret,id=network,target=/run/secrets/network . /run/secrets/network; \\\\
    $(readlink -f /opt/python/cp312-cp312/bin/python3) -m pip download {ABSENT}
'''
"""

#: The normal image with one more label, so that its name differs.
OTHER_LABEL = """
import builder.images.image_build
plain = builder.images.image_build.render_template
builder.images.image_build.render_template = lambda *arguments: plain(*arguments) + "LABEL buildfarm.test={label}\\n"
"""

#: Containers of builds get 100 MB.
LITTLE_MEMORY = """
from builder.resources import Resources
builder.wheels.cibuildwheel.config.measure_resources = lambda: Resources(2, 100 << 20)
"""

#: Options of gcc that replace the compiler by a small program that takes memory without end. A real compiler near its
#: limit reads its own program from the disk again and again, for minutes, before the kernel ends it.
GREEDY = '"-wrapper", "sh,-c,exec tail /dev/zero", '


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerFarm]:
    with container_farm(tmp_path_factory.mktemp("farm")) as made:
        yield made


def test_interrupted_while_an_image_is_built(farm: ContainerFarm) -> None:
    farm.recipe("unmade")
    with farm.held(farm.lookups, patch=OTHER_TOOL) as run:
        assert farm.processes(), "buildx must be running"
        run.send_signal(signal.SIGINT)
        done = ended(run)
        assert done.code == 130, done.all
        farm.nothing_left()
        # The engine stops the step a moment later.
        wait_until(lambda: in_containers(ABSENT) == [], lambda: f"the end of {in_containers(ABSENT)}")


def in_containers(word: str) -> list[str]:
    """Command lines of all processes that contain a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in (line := path.read_bytes()):
                found.append(line.decode(errors="replace"))
    return found


def test_the_network_breaks_while_an_image_is_built(farm: ContainerFarm) -> None:
    farm.recipe("cut_image")
    farm.cut = True
    try:
        errors = error_text(farm.build(patch=OTHER_TOOL), 4)
    finally:
        farm.cut = False
    assert "the image could not be built because the network cannot be reached" in errors
    farm.nothing_left()


def test_the_network_breaks_while_packages_are_installed(farm: ContainerFarm) -> None:
    farm.recipe("cut")
    with farm.held(farm.fetches, packages=f"{farm.packages}-cut") as run:
        farm.cut = True
    try:
        errors = error_text(ended(run), 4)
    finally:
        farm.cut = False
        subprocess.run(["docker", "volume", "rm", f"{farm.packages}-cut"], capture_output=True, check=True)
    assert "the package index cannot be reached" in errors, errors
    assert "UV_DEFAULT_INDEX" in errors
    farm.nothing_left()


def test_the_engine_stops_during_a_compile(farm: ContainerFarm) -> None:
    farm.recipe("bereft")
    with engine_proxy() as proxy, farm.held(farm.compiles, DOCKER_HOST=proxy.address) as run:
        proxy.cut()
        errors = error_text(ended(run), 4)
        assert "the Docker engine stopped answering during the compile stage" in errors
        assert "status" not in errors
        left = set(farm.containers())
        assert left, "without an engine, the container cannot be removed"
        assert farm.processes() == []
    done = farm.build()
    assert done.code == 0, done.all
    farm.nothing_left()


def test_the_disk_is_full_in_the_container(farm: ContainerFarm) -> None:
    farm.recipe("crammed")
    before = builds(farm)
    volume = f"{farm.packages}-small"
    options = ["type=tmpfs", "device=tmpfs", "o=size=128k,uid=1000"]
    subprocess.run(["docker", "volume", "create", *(f"--opt={word}" for word in options), volume], check=True)
    try:
        errors = error_text(farm.build(packages=volume), 1)
    finally:
        subprocess.run(["docker", "volume", "rm", volume], capture_output=True, check=True)
    assert "the disk is full" in errors, errors
    farm.nothing_left()
    assert builds(farm) == before


def builds(farm: ContainerFarm) -> set[Path]:
    """Finished builds in the store."""
    return set((farm.root / "store" / "builds").glob("*"))


def test_the_compiler_is_killed_when_memory_runs_out(farm: ContainerFarm) -> None:
    backend = farm.recipe("greedy").parent / "backend.py"
    before, option, after = backend.read_text().partition('"-shared", ')
    assert option
    backend.write_text(before + GREEDY + option + after)
    errors = error_text(farm.build(patch=LITTLE_MEMORY), 1)
    assert "a compiler was killed, probably because memory ran out" in errors, errors
    assert "--jobs" in errors
    assert "memory_per_job" in errors
    farm.nothing_left()


def test_parallel_runs(farm: ContainerFarm) -> None:
    """Runs with one store build a wheel once, a different store builds its own, and no run removes others' containers.

    Two stores build the image at the same time, and one environment looks three days old.
    """
    farm.recipe("shared")
    label = uuid4().hex[:12]
    patch = OTHER_LABEL.format(label=label)
    try:
        with farm.compiles.closed():
            before = farm.compiles.arrivals
            runs = [farm.start(store="one", patch=patch), farm.start(store="two", patch=patch)]
            farm.compiles.await_arrival(before + 2)
            held = {*farm.containers("one"), *farm.containers("two")}
            assert len(held) == 2
            backdate(farm)
            runs += [farm.start(store="one", patch=patch), farm.start(store="three", patch=patch)]
            farm.compiles.await_arrival(before + 3)
            assert runs[2].stderr is not None
            errors = ""
            while "which builds this project too" not in errors:
                errors += (line := runs[2].stderr.readline())
                assert line, errors
            assert held <= {*farm.containers("one"), *farm.containers("two")}
        for run in runs:
            done = ended(run)
            assert done.code == 0, done.all
        assert farm.compiles.arrivals == before + 3
        assert farm.wheels("one") == farm.wheels("two") == farm.wheels("three")
        for store in ("one", "two", "three"):
            farm.nothing_left(store)
    finally:
        farm.end()
        subprocess.run(
            f"docker image rm $(docker images --quiet --filter label=buildfarm.test={label})", shell=True, check=True
        )


def backdate(farm: ContainerFarm) -> None:
    """Make all build environments look three days old, as with a clock that is three days ahead."""
    touch = "find /it -maxdepth 1 -name 'env-*' -exec touch -d '3 days ago' {} +"
    argv = ["docker", "run", "--rm", "--volume", f"{farm.packages}:/it", BASE, "sh", "-c", touch]
    subprocess.run(argv, check=True)
