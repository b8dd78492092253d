"""The archive with the files of a recipe: equal for equal files, complete on the other side, harmless to unpack."""

import contextlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.commands.distributed import protocol
from builder.commands.distributed.protocol import LOCK, LOCKS, WorkerAnswer, moved, packed, unpack
from builder.commands.distributed.worker import child
from builder.matrix.compat import Compat
from builder.matrix.config import PathSource, Recipe
from builder.store import Store
from tests.unit.commands.distributed.made_up import BUILD_TASK
from tests.unit.matrix import make


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    folder = tmp_path / "mine" / "ops"
    (folder / "src" / "a folder").mkdir(parents=True)
    (folder / "src" / "a folder" / "größe.cu").write_text("// µ\n")
    (folder / "src" / "make.sh").write_text("#!/bin/sh\n")
    (folder / "src" / "make.sh").chmod(0o755)
    (folder / "src" / "link").symlink_to("make.sh")
    (folder / "cases.py").write_text("CASES = []\n")
    (folder / "references").mkdir()
    (folder / "references" / "table.bin").write_bytes(b"\0\1")
    (folder / "fix.patch").write_text("--- a\n")
    return replace(
        make.recipe("ops"), folder=folder, source=PathSource(folder / "src"), patches=(folder / "fix.patch",)
    )


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def parts(recipe: Recipe, folder: Path) -> list[bytes]:
    """The files of a recipe, with the lock files in a folder."""
    return list(packed(recipe, folder / "matrix.yaml", Store(folder / "store")).values())


def test_the_files_arrive(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "buildfarm.lock").write_text("images: {}\n")
    (Store(tmp_path / "store").root / "envs" / "env.json").write_text("{}")
    there = tmp_path / "there"
    folder = unpack(parts(recipe, tmp_path), there)
    expected = {"src/a folder/größe.cu", "src/make.sh", "src/link", "cases.py", "references/table.bin", "fix.patch"}
    assert files(folder) == expected
    assert os.access(folder / "src" / "make.sh", os.X_OK)
    assert not os.access(folder / "cases.py", os.X_OK)
    assert (folder / "src" / "link").readlink() == Path("make.sh")
    assert ((there / LOCK).read_text(), (there / LOCKS / "env.json").read_text()) == ("images: {}\n", "{}")
    again = moved(recipe, folder)
    assert (again.patches, again.source) == ((folder / "fix.patch",), PathSource(folder / "src"))


def test_a_worker_reads_the_facts_of_the_project(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started anywhere, and knows what the client's facts.yaml says about a new torch."""
    row = "python: [3.12], variants: {cu999: {x86_64: [1.0]}}, default: cu999, toolkit_pin: '', cxx_standard: 20,"
    row += " gcc_max: {}, arch_list: [], companions: {}"
    (tmp_path / "facts.yaml").write_text(f"format: 1\ntorch: {{2.99.0: {{{row}}}}}\n")
    monkeypatch.setattr("builder.matrix.compat._facts", [Path("facts.yaml")])
    known = []

    def build(*_: object) -> WorkerAnswer:
        known.append(Compat.load().has_torch("2.99.0"))
        return WorkerAnswer()

    monkeypatch.setattr(child, "_build", build)
    monkeypatch.setattr(child, "set_verbosity", lambda **_: None)  # it is for the whole process
    task = replace(BUILD_TASK, recipe=recipe)
    child.run(child.Work(task, parts(recipe, tmp_path), tmp_path / "worker", 1), print)
    assert known == [True]


def test_equal_files_give_equal_parts(recipe: Recipe, tmp_path: Path) -> None:
    first = parts(recipe, tmp_path)
    os.utime(recipe.folder / "cases.py", (1, 1))
    assert parts(recipe, tmp_path) == first
    (recipe.folder / "cases.py").write_text("CASES = [1]\n")
    assert parts(recipe, tmp_path) != first


def test_a_large_source_becomes_several_parts(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PART", 1 << 16)
    data = os.urandom(300_000)
    (recipe.folder / "src" / "weights.bin").write_bytes(data)
    found = parts(recipe, tmp_path)
    assert len(found) == 5
    assert max(map(len, found)) <= 1 << 16
    assert (unpack(found, tmp_path / "there") / "src" / "weights.bin").read_bytes() == data


@pytest.mark.parametrize(
    ("name", "link"), [("../outside", ""), ("/etc/outside", ""), ("recipe/link", "/etc"), ("recipe/link", "../../x")]
)
def test_what_leads_out_is_refused(tmp_path: Path, name: str, link: str) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        member = tarfile.TarInfo(name)
        if link:
            member.type, member.linkname = tarfile.SYMTYPE, link
        archive.addfile(member, io.BytesIO())
    there = tmp_path / "there"
    with contextlib.suppress(tarfile.FilterError):
        unpack([stream.getvalue()], there)
    assert not (tmp_path / "outside").exists()
    assert not Path("/etc/outside").exists()
    assert not any(path.is_symlink() for path in there.rglob("*"))
