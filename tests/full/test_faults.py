"""Bad input and missing things, as a person meets them: one sentence, hints, an exit code, no traceback."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, Farm, Ran

RECIPE = """
name: demo
version: "1.0"
summary: A demonstration
source: {source}
abi: abi3
imports: [demo]
"""
MATRIX = """
torch: ["2.11"]
cuda: ["13.0"]
python: ["3.11"]
extensions: [demo]
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """A farm of one small recipe."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/extension.yaml").write_text(RECIPE.format(source="{path: .}"))
    (tmp_path / "demo/setup.py").write_text("from setuptools import setup\nsetup(name='demo', version='1.0')\n")
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def spoken(ran: Ran, code: int) -> str:
    """What the farm said on stderr; a traceback or another exit code is a fault of ours."""
    assert ran.code == code, ran.all
    assert "Traceback" not in ran.all
    assert ran.err.count("error[") == 1, ran.err
    return " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("matrix.yaml", 'torch: ["2.11"]', 'torch: ["2.11"', ["matrix.yaml:3:1"]),
        ("matrix.yaml", "python:", "pyhton:", ["pyhton", "python"]),
        ("matrix.yaml", '"2.11"', '"2.99"', ["2.99"]),
        ("matrix.yaml", "[demo]", "[dmeo]", ["dmeo"]),
        ("demo/extension.yaml", "abi: abi3", "abi: abi4", ["abi"]),
        ("demo/extension.yaml", "imports:", "import:", ["import", "imports"]),
        ("demo/extension.yaml", "{path: .}", "{path: ../..}", ["source"]),
        ("demo/extension.yaml", "abi: abi3", "abi: abi3\npatches: [../../etc/x.patch]", ["patches"]),
        ("demo/extension.yaml", "{path: .}", "{sdist: demo, version: '1', sha256: abc}", ["sha256"]),
        ("demo/extension.yaml", "{path: .}", "{git: 'https://example.org/x', revision: main}", ["revision"]),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str) else None,
)
def test_a_wrong_file_is_named(bench: Path, farm: Farm, file: str, old: str, new: str, words: list[str]) -> None:
    path = bench / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    said = spoken(farm("plan", cwd=bench), 2)
    for word in words:
        assert word in said, said


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--torch", "2.99"], 2, "2.99"),
        (["--torch", "2.2", "--cuda", "13.0"], 2, "torch 2.2"),
        (["--torch", "2.2", "--python", "3.13"], 2, "3.12"),
        (["--ext", "ms_deform_atn"], 2, "ms_deform_attn"),
        (["--cuda", "twelve"], 2, "twelve"),
        (["--arch", "sm_90"], 2, "9.0"),
        (["--matrix", "nowhere.yaml"], 2, "nowhere.yaml"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_selection_is_named(farm: Farm, words: list[str], code: int, expected: str) -> None:
    assert expected in spoken(farm("plan", *words), code)


def test_a_toolkit_that_is_not_there(farm: Farm, tmp_path: Path) -> None:
    """The headline command on a machine without CUDA 12.1: exit 4, one sentence, each way out."""
    ran = farm(
        "build",
        "--torch",
        "2.2",
        "--cuda",
        "12.1",
        "--executor",
        "local",
        "--store",
        tmp_path,
        "--dist",
        tmp_path / "d",
    )
    assert ran.code == 4, ran.all
    assert "Traceback" not in ran.all
    # Six builds want it, one sentence says it; a machine that lacks Pythons as well is told of those too.
    assert ran.err.count("error[toolkit-missing]: no CUDA 12.1 toolkit on this machine") == 1, ran.err
    others = [line for line in ran.err.splitlines() if line.startswith("error[") and "CUDA 12.1" not in line]
    assert all("Python" in line for line in others), ran.err
    said = " ".join(ran.err.split())
    for way in (
        "CUDA_HOME",
        "--allow-cuda-minor-mismatch",
        "--torch 2.11 --cuda 13.0",
    ):
        assert way in said, said


OFFLINE = {
    "UV_DEFAULT_INDEX": "http://user:secret@127.0.0.1:9/simple",
    "UV_CACHE_DIR": "",
    "UV_HTTP_RETRIES": "0",
    "UV_FIND_LINKS": "",
}


def test_no_network(farm: Farm, bench: Path, tmp_path: Path) -> None:
    env = OFFLINE | {"UV_CACHE_DIR": str(tmp_path / "cache")}
    said = spoken(farm("build", "--executor", "local", "--store", tmp_path / "s", cwd=bench, env=env), 4)
    assert "torch" in said
    assert "UV_DEFAULT_INDEX=http://***@127.0.0.1:9/simple" in said
    assert "secret" not in said


def member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, b"x" if kind == tarfile.REGTYPE else b""


def publish(root: Path, *members: tuple[tarfile.TarInfo, bytes]) -> str:
    """Put an sdist with these members into a folder of files; returns its sha256."""
    archive = root / "buildfarm-demo-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for info, data in (member("buildfarm-demo-1.0/PKG-INFO"), *members):
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return hashlib.sha256(archive.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        ([], ["sha256"]),
        ([member("/etc/hostile")], ["/etc/hostile"]),
        ([member("buildfarm-demo-1.0/../../hostile")], ["../../hostile"]),
        ([member("buildfarm-demo-1.0/link", kind=tarfile.SYMTYPE, link="/etc")], ["buildfarm-demo-1.0/link"]),
        (
            [member("buildfarm-demo-1.0/hard", kind=tarfile.LNKTYPE, link="../../../etc/passwd")],
            ["../../../etc/passwd"],
        ),
        ([member("buildfarm-demo-1.0/null", kind=tarfile.CHRTYPE)], ["buildfarm-demo-1.0/null"]),
    ],
    ids=["wrong-sha256", "absolute", "dotdot", "link-out", "hard-link-out", "device"],
)
def test_a_hostile_or_changed_source_stops_before_anything_is_made(
    farm: Farm,
    bench: Path,
    tmp_path: Path,
    hostile: list[tuple[tarfile.TarInfo, bytes]],
    words: list[str],
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    digest = publish(folder, *hostile)
    wanted = digest if hostile else "0" * 64
    recipe = RECIPE.format(source=f"{{sdist: buildfarm-demo, version: '1.0', sha256: '{wanted}'}}")
    (bench / "demo/extension.yaml").write_text(recipe)
    env = {"UV_FIND_LINKS": str(folder)}
    said = spoken(farm("build", "--executor", "local", "--store", bench / "s", cwd=bench, env=env), 2)
    for word in (*words, "demo"):
        assert word in said, said
    assert not list((bench / "s/envs").iterdir()), "no environment was made for a source that cannot be used"
    assert not (bench.parent / "hostile").exists()


def test_a_patch_that_does_not_apply(farm: Farm, bench: Path) -> None:
    recipe = RECIPE.format(source="{path: .}") + "patches: [fix.patch]\n"
    (bench / "demo/extension.yaml").write_text(recipe)
    (bench / "demo/fix.patch").write_text("--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-never\n+there\n")
    said = spoken(farm("build", "--executor", "local", "--store", bench / "s", cwd=bench), 2)
    assert "fix.patch" in said
    assert "setup.py" in said


def test_all_problems_at_once(farm: Farm, bench: Path) -> None:
    """A missing toolkit and a patch that does not apply, in one run."""
    (bench / "matrix.yaml").write_text(MATRIX.replace("2.11", "2.2").replace("13.0", "12.1"))
    (bench / "demo/extension.yaml").write_text(RECIPE.format(source="{path: .}") + "patches: [fix.patch]\n")
    (bench / "demo/fix.patch").write_text("--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-never\n+there\n")
    ran = farm("build", "--executor", "local", "--store", bench / "s", cwd=bench)
    assert ran.code == 4, ran.all
    assert ran.err.count("error[") == 2, ran.err
    assert "fix.patch" in ran.err
    assert "CUDA 12.1" in ran.err


def test_the_shipped_matrix_and_every_recipe_are_well(farm: Farm) -> None:
    ran = farm("plan")
    assert ran.code == 0, ran.all
    assert "torch_scatter" in ran.out
    assert "ms_deform_attn" in ran.out


def test_a_folder_without_a_matrix(farm: Farm, tmp_path: Path) -> None:
    said = spoken(farm("plan", cwd=tmp_path), 2)
    assert "matrix.yaml" in said


def test_running_from_another_folder(farm: Farm, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "extensions", tmp_path / "a b" / "extensions")
    shutil.copyfile(ROOT / "matrix.yaml", tmp_path / "a b" / "matrix.yaml")
    assert farm("plan", "--matrix", "a b/matrix.yaml", cwd=tmp_path).code == 0
