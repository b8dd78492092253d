"""What goes wrong around containers, made to happen: a sentence, an exit code, nothing left, the next run goes on."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import Ran, lacking
from tests.integration.container_farm import ABSENT, BASE, PYTHONS, ContainerFarm, container_farm, ended
from tests.integration.engine_proxy import engine_proxy

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

#: An image of the one step that fetches the farm's tools, of which one is nowhere to be had.
OTHER_TOOL = f"""
import builder.images.making as making
making.render_template = lambda *_: '''FROM {PYTHONS}
RUN --mount=type=secret,id=network,target=/run/secrets/network . /run/secrets/network; \\\\
    $(readlink -f /opt/python/cp312-cp312/bin/python3) -m pip download {ABSENT}
'''
"""

#: A small image of another name on top of what is there already.
OTHER_LABEL = """
import builder.images.making as making
plain = making.render_template
making.render_template = lambda *words: plain(*words) + "LABEL buildfarm.test={label}\\n"
"""

#: Ten million numbers, which the compiler keeps in memory one by one.
GREEDY = "".join(f"#define N{n + 1} {','.join([f'N{n}'] * 10)}\n" for n in range(7)).replace("N0", "1")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerFarm]:
    with container_farm(tmp_path_factory.mktemp("farm"), f"buildfarm-test-{uuid4().hex[:8]}") as made:
        yield made


def spoken(ran: Ran, code: int, errors: int = 1) -> str:
    """What the farm said on stderr; a traceback or another exit code is a fault of ours."""
    assert ran.code == code, ran.all
    assert "Traceback" not in ran.all
    assert ran.err.count("error:") + ran.err.count("failed:") >= errors, ran.err
    return " ".join(ran.err.split())


def test_ended_again_and_again_and_then_a_whole_wheel(farm: ContainerFarm) -> None:
    package = farm.recipe("ended")
    for ending, bar in (
        (signal.SIGTERM, farm.fetches),
        (signal.SIGHUP, farm.compiles),
        (signal.SIGINT, farm.compiles),
        (signal.SIGINT, farm.fetches),
    ):
        with bar.down():
            came = bar.visits
            run = farm.start()
            bar.await_visit(came + 1, run)
            assert farm.containers()
            run.send_signal(ending)
            done = ended(run)
        assert done.code == 130, done.all
        assert "interrupted; what was finished is kept" in done.err
        farm.nothing_left()
        assert farm.wheels() == []

    left = killed(farm)
    with farm.compiles.down():  # the same job once more
        came = farm.compiles.visits
        run = farm.start()
        farm.compiles.await_visit(came + 1, run)
        assert not left & set(farm.containers()), "a killed run's container goes on beside this one"
        run.kill()
        ended(run)
    left = set(farm.containers())
    assert left
    (package / "_C.c").write_text((package / "_C.c").read_text().replace("42", "43"))  # it will never run again
    done = farm.build()
    assert done.code == 0, done.all
    assert farm.containers() == []
    farm.nothing_left()
    assert len(farm.wheels()) == 1


def killed(farm: ContainerFarm) -> set[str]:
    """The containers of a run that met SIGKILL while it compiled."""
    with farm.compiles.down():
        came = farm.compiles.visits
        run = farm.start()
        farm.compiles.await_visit(came + 1, run)
        run.kill()
        ended(run)
        left = set(farm.containers())
    assert left
    return left


def test_interrupted_while_an_image_is_made(farm: ContainerFarm) -> None:
    farm.recipe("unmade")
    with farm.asks.down():
        came = farm.asks.visits
        run = farm.start(patch=OTHER_TOOL)
        farm.asks.await_visit(came + 1, run)
        assert farm.processes(), "buildx was to run by now"
        run.send_signal(signal.SIGINT)
        done = ended(run)
        assert done.code == 130, done.all
        farm.nothing_left()
        gone_by = time.monotonic() + 30  # the engine hears of it a moment later
        while asking := in_containers(ABSENT):
            assert time.monotonic() < gone_by, asking
            time.sleep(0.2)


def in_containers(word: str) -> list[str]:
    """Command lines, whoever's, that hold a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in (line := path.read_bytes()):
                found.append(line.decode(errors="replace"))
    return found


def test_the_network_is_cut_while_an_image_is_made(farm: ContainerFarm) -> None:
    farm.recipe("cut_image")
    farm.cut = True
    try:
        said = spoken(farm.build(patch=OTHER_TOOL), 4)
    finally:
        farm.cut = False
    assert "the image could not be made for want of network" in said
    farm.nothing_left()


def test_the_network_is_cut_while_packages_are_installed(farm: ContainerFarm) -> None:
    farm.recipe("cut")
    with farm.fetches.down():
        came = farm.fetches.visits
        run = farm.start(packages=f"{farm.packages}-cut")
        farm.fetches.await_visit(came + 1, run)
        farm.cut = True
    try:
        said = spoken(ended(run), 4)
    finally:
        farm.cut = False
        subprocess.run(["docker", "volume", "rm", f"{farm.packages}-cut"], capture_output=True, check=True)
    assert "the package index cannot be reached" in said, said
    assert "UV_DEFAULT_INDEX" in said
    farm.nothing_left()


def test_the_engine_goes_away_in_the_middle(farm: ContainerFarm) -> None:
    farm.recipe("bereft")
    with engine_proxy() as proxy, farm.compiles.down():
        came = farm.compiles.visits
        run = farm.start(DOCKER_HOST=proxy.address)
        farm.compiles.await_visit(came + 1, run)
        proxy.cut()
        said = spoken(ended(run), 4)
        assert "the Docker engine went away in the middle of the compile stage" in said
        assert "status" not in said
        left = set(farm.containers())
        assert left, "nobody could end it"
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
        said = spoken(farm.build(packages=volume), 1)
    finally:
        subprocess.run(["docker", "volume", "rm", volume], capture_output=True, check=True)
    assert "the disk is full" in said, said
    farm.nothing_left()
    assert builds(farm) == before


def builds(farm: ContainerFarm) -> set[Path]:
    """What the store has finished."""
    return set((farm.root / "store" / "builds").glob("*"))


def test_the_disk_is_full_under_the_store(farm: ContainerFarm) -> None:
    farm.recipe("cramped")
    store = farm.root / "cramped-store"
    with small_disk(store):
        with farm.compiles.down():
            came = farm.compiles.visits
            run = farm.start(store=store.name)
            farm.compiles.await_visit(came + 1, run)
            with contextlib.suppress(OSError), (store / "filler").open("wb") as filler:
                while True:
                    filler.write(bytes(4096))
                    filler.flush()
        said = spoken(ended(run), 1)
        assert "the disk is full" in said, said
        assert not list((store / "builds").iterdir())
        assert farm.containers(store.name) == []
        (store / "filler").unlink()
        done = farm.build(store=store.name)
        assert done.code == 0, done.all


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 16 MB on a folder."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        lacking(f"no file system can be mounted: {made.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_the_compiler_is_killed_for_memory(farm: ContainerFarm) -> None:
    farm.recipe("greedy", source=GREEDY + "int numbers[] = {N7};\n")
    said = spoken(farm.build(CREATE="--memory=100m --memory-swap=100m"), 1)
    assert "a compiler was killed, most likely for memory" in said, said
    assert "--jobs" in said
    assert "memory_per_job" in said
    farm.nothing_left()


def test_images_that_are_nowhere(farm: ContainerFarm) -> None:
    farm.recipe("baseless")
    farm.matrix("baseless", images="{image: wheels.invalid/a:1, pythons: wheels.invalid/b:1}")
    said = spoken(farm.build(), 4, errors=2)
    for image in ("wheels.invalid/a:1", "wheels.invalid/b:1"):
        assert said.count(f"images, cells *: the base image {image} is not on this machine and cannot be pulled") == 1


def test_farms_side_by_side(farm: ContainerFarm) -> None:
    """Two of one store make a wheel once; one of another store makes its own, and none ends another's container.

    Both stores make the image at once, and the other's clock is three days ahead.
    """
    farm.recipe("shared")
    label = uuid4().hex[:12]
    patch = OTHER_LABEL.format(label=label)
    try:
        with farm.compiles.down():
            came = farm.compiles.visits
            runs = [farm.start(store="one", patch=patch), farm.start(store="two", patch=patch)]
            farm.compiles.await_visit(came + 2)
            held = {*farm.containers("one"), *farm.containers("two")}
            assert len(held) == 2
            backdate(farm)
            runs += [farm.start(store="one", patch=patch), farm.start(store="three", patch=patch)]
            farm.compiles.await_visit(came + 3)
            assert runs[2].stderr is not None
            said = ""
            while "wait for another farm" not in said:
                said += (line := runs[2].stderr.readline())
                assert line, said
            assert held <= {*farm.containers("one"), *farm.containers("two")}
        for run in runs:
            done = ended(run)
            assert done.code == 0, done.all
        assert farm.compiles.visits == came + 3
        assert farm.wheels("one") == farm.wheels("two") == farm.wheels("three")
        for store in ("one", "two", "three"):
            farm.nothing_left(store)
    finally:
        farm.end()
        subprocess.run(
            f"docker image rm $(docker images --quiet --filter label=buildfarm.test={label})", shell=True, check=True
        )


def backdate(farm: ContainerFarm) -> None:
    """Make all environments of builds look three days old, as they do to a clock that is ahead."""
    touch = "find /it -maxdepth 1 -name 'buildfarm-*' -exec touch -d '3 days ago' {} +"
    argv = ["docker", "run", "--rm", "--volume", f"{farm.packages}:/it", BASE, "sh", "-c", touch]
    subprocess.run(argv, check=True)
