"""Sources in containers: one changes every file that it can, one needs options of its backend and a driver."""

import hashlib
import os
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from builder.commands.building.build import run_build
from builder.publish.results import BuildResult
from builder.wheelfile.facts import read_facts
from builder.wheels.sccache.configure import find_sccache
from tests.conftest import lacking
from tests.fixtures.container_farm import BASE, ContainerFarm, add_toolkit, container_farm
from tests.fixtures.small_project import MODULE, SmallProject, small_project
from tests.unit import loopback

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: Changes every file below some folders, and adds files to every folder. The build's own folders come back as they
#: were. Links are not followed: they lead to this machine's Python.
ATTACK = """
import os, tempfile
from pathlib import Path

def attack(*roots):
    done = 0
    own = (os.getcwd(), os.path.dirname(os.path.abspath(__file__)))
    for folder, _, names in (entry for root in roots for entry in os.walk(root)):
        if folder.startswith(own) or "hostile" in folder:
            continue
        for name in ("poison.pth", "sitecustomize.py"):
            try:
                Path(folder, name).write_text("poisoned")
                done += 1
            except OSError:
                pass
        for path in (Path(folder, name) for name in names):
            if path.is_symlink() or not path.is_file():
                continue
            for way in (in_place, by_link, by_truncation, by_replacement):
                try:
                    way(path)
                    done += 1
                except OSError:
                    pass
    return done

def in_place(path):
    with path.open("ab") as stream:
        stream.write(b"poison")

def by_link(path):
    link = Path(tempfile.mkdtemp(), "link")
    link.hardlink_to(path)
    in_place(link)

def by_truncation(path):
    os.truncate(path, 1)

def by_replacement(path):
    path.with_name("poison").write_bytes(b"poison")
    os.replace(path.with_name("poison"), path)
"""


def in_two_steps(package: Path) -> Path:
    """Make an extension's build backend compile an object before it links; sccache keeps objects only."""
    backend = package.parent / "backend.py"
    old = '    if subprocess.run([*argv, f"{NAME}/_C.c", "-o", library]).returncode:\n'
    new = '    subprocess.run([argv[0], *argv[2:], "-c", f"{NAME}/_C.c", "-o", "C.o"], check=True)\n'
    text = "".join(line for line in backend.read_text().splitlines(keepends=True) if "/env.txt" not in line)
    assert old in text
    backend.write_text(text.replace(old, new + old.replace('f"{NAME}/_C.c"', '"C.o"')))
    return package


def write_hostile(package: Path, *roots: str) -> None:
    """Add the attack to an extension's build backend and to its import."""
    call = f"Path({package.name + '/attacked'!r}).write_text(str(attack(*{roots!r})))\n"
    backend = package.parent / "backend.py"
    first = "    library = "
    text = backend.read_text()
    assert first in text
    attacked = '        f"{NAME}/attacked": Path(f"{NAME}/attacked").read_bytes(),\n'
    text = text.replace(first, f"    {call}{first}").replace("        library: P", f"{attacked}        library: P")
    backend.write_text(text.replace('"""\n', '"""\n' + ATTACK, 1))
    (package / "__init__.py").write_text(f"{ATTACK}\nattack(*{roots!r})\nfrom ._C import answer\n")


def digests(root: Path) -> dict[str, str]:
    """sha256 of each file below a folder, without what belongs to the hostile extension and without what runs note."""
    noted = (
        "locks",
        "logs",
        "runs",
        "work",
        "used",
        "wheels-v",
        "interpreter-v",
        "simple-v",
        ".lock",
        "report",
        "simple",
    )
    found = {}
    for path in sorted(root.rglob("*")):
        words = path.relative_to(root).parts
        if path.is_file() and not any(word.startswith(noted) or "hostile" in word for word in words):
            found["/".join(words)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def wheel_of(result: BuildResult) -> bytes:
    assert result.error is None, result.error
    assert result.stored is not None
    return result.stored.wheel.read_bytes()


def attacks(result: BuildResult) -> int:
    """How many changes the hostile build made."""
    assert result.stored is not None, result.error
    with zipfile.ZipFile(result.stored.wheel) as archive:
        return int(archive.read("hostile/attacked"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[SmallProject]:
    if find_sccache() is None:
        lacking("no sccache beside buildfarm's Python")
    with pytest.MonkeyPatch.context() as monkeypatch, small_project(tmp_path / "project", monkeypatch) as made:
        monkeypatch.setattr("builder.wheels.local.find_sccache", find_sccache)
        monkeypatch.delenv("CUDA_HOME")  # the toolkit's packages have no nvcc that runs, so gcc alone is behind sccache
        monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "nvcc").exists()))
        add_toolkit(made.index)
        yield made


def build(project: SmallProject, *names: str) -> Mapping[str, BuildResult]:
    project.matrix(*names)
    _, results, _ = run_build(project.options())
    return {result.build.extension: result for result in results}


def test_local_builds_and_proofs_change_nothing_of_other_extensions(project: SmallProject) -> None:
    root = project.root.parent
    in_two_steps(project.recipe("victim"))
    write_hostile(in_two_steps(project.recipe("hostile")), str(root))
    victim = build(project, "victim")["victim"]
    wheel, before = wheel_of(victim), digests(root)
    assert any("-store/objects/" in name for name in before), "the object is in the cache"
    assert [name for name in before if name.startswith("project/uv-cache/archive-v0")]

    hostile = build(project, "hostile")["hostile"]
    after = digests(root)
    assert attacks(hostile) > 0, "its own job has folders where it can write"
    assert {name for name in before if before[name] != after.get(name)} <= {"project/matrix.yaml"}
    assert not [name for name in after if "poison" in name or "sitecustomize" in name]
    assert all(proof.verdict == proof2.verdict for proof, proof2 in zip(hostile.proofs, victim.proofs, strict=True))

    again = build(project, "victim")["victim"]
    assert again.reused
    assert again.proofs == victim.proofs
    assert wheel_of(again) == wheel
    assert victim.stored
    (victim.stored.wheel.parent / "build.json").unlink()  # the store has no wheel: compile again, from the cache
    rebuilt = build(project, "victim")["victim"]
    assert not rebuilt.reused
    assert wheel_of(rebuilt) == wheel
    assert rebuilt.stored is not None
    assert rebuilt.stored.record.objects is not None
    assert rebuilt.stored.record.objects.reused + rebuilt.stored.record.objects.compiled == 1


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[ContainerFarm]:
    with container_farm(tmp_path) as made:
        yield made


#: Prints each file of a volume with its digest, owner and mode.
LIST = "cd /volume && find . -type f ! -name '*.lock' -exec sha256sum {} + -exec stat -c '%n %U %a' {} + | sort"


def volume(name: str) -> list[str]:
    argv = ["docker", "run", "--rm", "--user=0", f"--volume={name}:/volume", BASE, "sh", "-c", LIST]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.docker
def test_builds_in_containers_change_nothing_of_other_extensions(farm: ContainerFarm) -> None:
    in_two_steps(farm.recipe("victim"))
    package = in_two_steps(farm.recipe("hostile"))
    write_hostile(package, "/buildfarm/uv", "/buildfarm/sccache", "/buildfarm/ca.pem")
    farm.matrix("victim")
    farm.build().ok()
    (wheel,) = (farm.root / "dist-store").glob("victim*.whl")
    content, packages = wheel.read_bytes(), volume(farm.packages)
    objects = volume(f"{farm.packages}-objects.victim")
    assert [line for line in packages if "/env-" in line and "/torch/" in line]
    assert objects

    farm.matrix("hostile")
    farm.build().ok()
    with zipfile.ZipFile(next((farm.root / "dist-store").glob("hostile*.whl"))) as archive:
        assert int(archive.read("hostile/attacked")) > 0, "it can change its own objects"
    assert volume(farm.packages) == packages
    assert volume(f"{farm.packages}-objects.victim") == objects

    farm.matrix("victim")
    farm.build(store="second").ok()  # a new store: everything is built again
    (other,) = (farm.root / "dist-second").glob("victim*.whl")
    assert other.read_bytes() == content


CUDA_H = "CUresult CUDAAPI cuInit(unsigned int Flags);\n"
CALLS_THE_DRIVER = MODULE.format(answer=42) + "int cuInit(unsigned);\nint call(void) { return cuInit(0); }\n"


def change(package: Path, *changes: tuple[str, str]) -> None:
    """Change the build backend of an extension."""
    backend = package.parent / "backend.py"
    text = backend.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    backend.write_text(text)


@pytest.mark.docker
def test_options_reach_the_backend_and_lcuda_links_a_stub(farm: ContainerFarm) -> None:
    """Reports 2 and 6: the same recipe key and the same stub as in a build on this machine."""
    files: dict[str, str | bytes] = {
        "nvidia/cu13/bin/nvcc": "#!/bin/sh\n",
        "nvidia/cu13/lib/libcudart.so.13": "",
        "nvidia/cu13/include/cuda.h": CUDA_H,
    }
    loopback.pure_wheel(farm.index.root / "default", "nvidia_cuda_nvcc", "13.0.88", files)
    more = "config_settings: {--flavour: [one, two]}\n"
    package = farm.recipe("toy", source=CALLS_THE_DRIVER, more=more)
    change(
        package,
        ('f"{NAME}/_C.c", "-o"', 'f"{NAME}/_C.c", "-L", os.environ["CUDA_HOME"] + "/lib64/stubs", "-lcuda", "-o"'),
        ('f"{k}={v}" for k, v in sorted(os.environ.items())', 'config_settings["--flavour"]'),
    )
    farm.build().ok()
    (wheel,) = (farm.root / "dist-store").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("toy/env.txt").decode().split() == ["one", "two"]
    (library,) = read_facts(wheel).libraries
    assert "libcuda.so.1" in library.needed
