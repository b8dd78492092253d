"""kill -9 during a build, and the main job made again in another store: equal bit for bit."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from builder.commands.building.build import BuildOptions, run_build
from builder.errors import Exit
from builder.store import Store
from builder.wheelfile.facts import read_facts
from tests.conftest import Farm, committed, lacking, owned
from tests.fixtures.built_cells import changed_sections
from tests.fixtures.killed import seeded, together
from tests.fixtures.small_project import MODULE, RECIPE, small_project

pytestmark = [pytest.mark.network, pytest.mark.slow]

SELECT = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--ext", "ms_deform_attn")


#: A macro that torch 1.5 renamed; the cure writes the new name.
OLD = f"#define TORCH_CHECK 42\n{MODULE.format(answer='AT_CHECK')}"


def build(options: BuildOptions) -> None:
    """One run; its exit code is that of the process."""
    sys.exit(max(result.exit for result in run_build(options)[1]))


@pytest.mark.parametrize("old", [False, True], ids=["one-cell", "cured-in-two-cells"])
def test_kills_at_random_moments_of_a_small_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """200 and 50 kills: of each source, the run after five killed ones completes; prints what the kills left.

    An `old` source does not compile without a cure, and its wheels for two Pythons are built and tested side by side.
    """
    random, table, process = seeded(), Counter[tuple[int, str]](), multiprocessing.get_context("fork").Process
    with small_project(tmp_path / "project", monkeypatch) as project:
        package = project.recipe("tiny", source=OLD if old else None)
        store, options, recipe = Store(project.store), project.options(), package.parents[1] / "extension.yaml"
        project.matrix("tiny", python="3.11, 3.12" if old else "")

        def write(text: str) -> None:
            (package / "__init__.py").write_text(text)
            if old:
                shutil.rmtree(recipe.parent / "patches", ignore_errors=True)
                source = f"{{git: '{package.parent.as_uri()}', revision: {committed(package.parent)}}}"
                recipe.write_text(RECIPE.format(name="tiny", cuda="optional", more="").replace("{path: src}", source))

        for content in ("", "number = -1\n"):  # the first one also makes the environments
            write(content)
            started = time.monotonic()
            assert together(build, [[options]]) == [Exit.OK]
            seconds = time.monotonic() - started
        for number in range(60 if old else 240):
            if number % 6 == 0:
                write(f"number = {number}\n")
            run, moment = process(target=build, args=(options,)), random.uniform(0, seconds)
            run.start()
            if number % 6 < 5:
                run.join(moment)
                run.kill()
            run.join()
            wheels = [*(store.root / "builds").glob("*/*.whl"), *options.dist.glob("*.whl")]
            whole = [f"number = {number - number % 6}\n".encode() == zipped_init(wheel) for wheel in wheels]
            if number % 6 < 5:
                left = "in dist" if whole[-1] else "in the store" if any(whole) else "no wheel"
                table[int(10 * moment / seconds), left] += 1
                continue
            assert (run.exitcode, whole[-1 - old :]) == (Exit.OK, [True] * (1 + old))
            assert not owned(store.owner("")), "nothing runs on"
            assert not list((store.root / "work").iterdir()), "scratch folders of killed runs are deleted"
            assert ("patches" in recipe.read_text()) is old
    print(*sorted(table.items()), sep="\n")


def test_a_disk_that_is_full_at_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store and dist/ on disks of 16 KiB to 2.2 MiB: one sentence, no wheel, and the next run goes on."""
    if os.geteuid():
        lacking("only root mounts a disk")
    with small_project(tmp_path / "project", monkeypatch) as project:
        project.recipe("tiny")
        project.matrix("tiny")
        disk, failed = tmp_path / "disk", 0
        options = replace(project.options(), store=disk / "store", dist=disk / "dist")
        for size in (*range(16, 400, 16), *range(400, 2200, 50)):
            disk.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], check=True)
            try:
                (code,) = together(build, [[options]])
                failed += code != Exit.OK
                assert (code == Exit.OK) is bool([*options.dist.glob("*.whl")])
                subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
                assert together(build, [[options]]) == [Exit.OK]
                assert not list((disk / "store" / "work").iterdir())
            finally:
                subprocess.run(["umount", str(disk)], check=True)
    assert failed > 20


def zipped_init(wheel: Path) -> bytes:
    """The `__init__.py` of a wheel, each of whose members can be read."""
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return archive.read("tiny/__init__.py")


#: A kernel that is local to its file, so that nvcc has to make up a name for it.
KERNEL = """
namespace { __global__ void twice(float *p) { p[threadIdx.x] *= 2; } }
void run(float *p) { twice<<<1, 32>>>(p); }
"""


@pytest.fixture(scope="module")
def wheel(farm: Farm, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("reproducible") / "dist"
    farm("build", *SELECT, "--executor", "local", "--store", store, "--dist", dist).ok()
    (found,) = dist.glob("*.whl")
    return found


def test_made_again_in_another_store_it_is_equal(wheel: Path, farm: Farm, tmp_path: Path) -> None:
    before = wheel.read_bytes()
    done = farm("rebuild", "--verify", wheel, "--store", tmp_path / "another" / "store").ok()
    sha256 = read_facts(wheel).sha256
    assert done.out == f"equal, sha256 {sha256}\n"
    assert wheel.read_bytes() == before


@pytest.fixture
def nvcc(wheel: Path, store: Path) -> Path:
    """The store's own, which the wheel's environment holds."""
    del wheel
    return next(store.glob("envs/*/lib/python3.*/site-packages/nvidia/cu13/bin/nvcc"))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two of names that no other run has."""
    made = (tmp_path / uuid4().hex, tmp_path / uuid4().hex)
    for folder in made:
        folder.mkdir()
        (folder / "kernel.cu").write_text(KERNEL)
    return made


def compiled(nvcc: Path, folder: Path, *flags: str) -> Path:
    """The object of the kernel in that folder, in an archive of one file."""
    subprocess.run([nvcc, "-c", "-arch=sm_90", *flags, "kernel.cu", "-o", "kernel.o"], cwd=folder, check=True)
    archive = folder / f"{uuid4().hex}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr(zipfile.ZipInfo("kernel.o"), (folder / "kernel.o").read_bytes())
    return archive


def test_nvcc_needs_the_fixed_folder_and_its_files_beside_the_object(nvcc: Path, folders: tuple[Path, Path]) -> None:
    """Were this to fail, a newer nvcc would need less than `place` and -objtemp do for it."""
    here, there = folders
    assert changed_sections(compiled(nvcc, here, "-objtemp"), compiled(nvcc, here, "-objtemp")) == set()
    assert changed_sections(compiled(nvcc, here), compiled(nvcc, here)) == {".strtab"}
    assert ".nv_fatbin" in changed_sections(compiled(nvcc, here, "-objtemp"), compiled(nvcc, there, "-objtemp"))
