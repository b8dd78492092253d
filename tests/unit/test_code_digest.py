"""Which files of buildfarm's own code each digest covers: shown for every file of the package and every template."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from builder.code_digest import (
    BUILD,
    CELL_PROOFS,
    LINKAGE_PROOFS,
    OP_PROOFS,
    PACKAGE,
    STATIC_PROOFS,
    code_digest,
    files_of,
)
from builder.images import render
from builder.images.chooser import ImageChooser
from builder.images.image_build import image_name
from builder.images.specs import BuildImage, RuntimeImage
from builder.matrix.axes import AbiClass, Arch, Cell
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule
from builder.matrix.plan import Build
from builder.proof import Check
from builder.proofs.cells import op_gate, prover
from builder.proofs.cells.prover import cell_basis
from builder.wheels import job
from builder.wheels.job import code_version
from tests.unit.matrix.make import matrix, recipe

DIGESTS = {
    "build": BUILD,
    "static": STATIC_PROOFS,
    "linkage": LINKAGE_PROOFS,
    "cell": CELL_PROOFS,
    "ops": OP_PROOFS,
}
IN_CELL = {"linkage", "cell", "ops"}

#: Folder of the package → the digests that a change of any file in it changes. The longest fitting folder decides.
COVERED: dict[str, set[str]] = {
    "cli": set(),
    "commands": set(),
    "diagnosis": set(),
    "gate": {"ops"},
    "images": set(),
    "matrix": set(),
    "progress": set(),
    "proofs/cells": IN_CELL,
    "proofs/environment": set(),
    "proofs/foreign": set(),
    "proofs/inventory": set(),
    "proofs/static": {"static", "linkage"},
    "proofs/verify": set(),
    "publish": set(),
    "recipes": set(),
    "records": {"build"},
    "storage": set(),
    "timeline": set(),
    "untrusted": set(),
    "wheelfile": {"build", "static", "linkage"},
    "wheels": {"build"},
    "wheels/toolchain": {"build", *IN_CELL},
}

FILES = [path.relative_to(PACKAGE).as_posix() for path in files_of((".",))]


def expected(name: str) -> set[str]:
    """The digests that cover a file; files at the top of the package and of `proofs` are in none of them."""
    if "/" not in name or name == "proofs/__init__.py":
        return set()
    folders = [folder for folder in COVERED if name.startswith(f"{folder}/")]
    assert folders, f"add the folder of {name} to COVERED, and to builder/code_digest.py if a digest must cover it"
    return COVERED[max(folders, key=len)]


def digests(package: Path) -> dict[str, str]:
    """Every digest of a copy of the package; the cache is bypassed, because the copy changes."""
    return {name: code_digest.__wrapped__(folders, package) for name, folders in DIGESTS.items()}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package."""
    copy = tmp_path_factory.mktemp("copy") / "builder"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def before(package: Path) -> dict[str, str]:
    """The digests of the unchanged copy."""
    return digests(package)


@pytest.fixture
def touch(package: Path) -> Iterator[Callable[[str], None]]:
    """Change a file of the copy; the test's end restores it."""
    contents: dict[Path, bytes] = {}

    def change(name: str) -> None:
        file = package / name
        contents[file] = file.read_bytes()
        file.write_bytes(contents[file] + b"\n")

    yield change
    for file, data in contents.items():
        file.write_bytes(data)


def test_every_file_is_in_the_digests_of_its_folder() -> None:
    covered = {
        digest: {path.relative_to(PACKAGE).as_posix() for path in files_of(folders)}
        for digest, folders in DIGESTS.items()
    }
    found = {name: {digest for digest, names in covered.items() if name in names} for name in FILES}
    assert {name: digests for name, digests in found.items() if digests != expected(name)} == {}


@pytest.mark.parametrize("folder", sorted(COVERED))
def test_a_changed_file_changes_the_digests_of_its_folder(
    folder: str, package: Path, before: dict[str, str], touch: Callable[[str], None]
) -> None:
    touch(name := next(name for name in FILES if name.startswith(f"{folder}/")))
    assert changed(before, digests(package)) == expected(name)


@pytest.mark.parametrize("folder", sorted(COVERED))
def test_a_file_in_a_new_sub_folder_counts(folder: str, package: Path, before: dict[str, str]) -> None:
    file = package / folder / "new" / "sub" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    try:
        assert changed(before, digests(package)) == COVERED[folder]
    finally:
        shutil.rmtree(package / folder / "new")


def test_a_new_top_level_folder_needs_a_decision() -> None:
    with pytest.raises(AssertionError, match="add the folder of drawer/module"):
        expected("drawer/module.py")


def test_bytecode_does_not_count(package: Path, before: dict[str, str]) -> None:
    cached = package / "gate" / "__pycache__" / "case.pyc"
    cached.parent.mkdir()
    cached.write_bytes(b"")
    try:
        assert digests(package) == before
    finally:
        shutil.rmtree(cached.parent)


@pytest.mark.parametrize(
    ("name", "build", "linkage", "import_check", "ops"),
    [
        pytest.param("gate/context.py", False, False, False, True, id="gate"),
        pytest.param("gate/checks/values.py", False, False, False, True, id="check of the gate"),
        pytest.param("proofs/cells/local.py", False, True, True, True, id="cell environment"),
        pytest.param("proofs/static/shims.yaml", False, True, False, False, id="static check"),
        pytest.param("wheelfile/elf.py", True, True, False, False, id="reader of wheel files"),
        pytest.param("wheels/local.py", True, False, False, False, id="local executor"),
        pytest.param("wheels/toolchain/pythons.py", True, True, True, True, id="toolchain"),
        pytest.param("publish/index/pages.py", False, False, False, False, id="index"),
    ],
)
def test_the_bases_of_proofs_and_the_build_digest_use_these_digests(
    package: Path,
    touch: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    build: bool,
    linkage: bool,
    import_check: bool,
    ops: bool,
) -> None:
    for module in (job, prover, op_gate):
        monkeypatch.setattr(module, "code_digest", partial(code_digest.__wrapped__, package=package))

    def bases() -> tuple[str, ...]:
        basis = cell_basis(recipe())
        return code_version(), basis[Check.LINKAGE], basis[Check.IMPORT], basis[Check.GPU_VALUES]

    old = bases()
    touch(name)
    assert tuple(a != b for a, b in zip(old, bases(), strict=True)) == (build, linkage, import_check, ops)


CELL = Cell.parse("torch2.11.0-cu130-cp312")


def images() -> dict[str, BuildImage | RuntimeImage]:
    """A build image and a runtime image, by template."""
    rules = (ImageRule("*", "base:bookworm", "pythons:1"),)
    chooser = ImageChooser(replace(matrix(["2.11"], ["13.0"], ["3.12"]), images=rules), Compat.load(), {})
    build = Build(
        "toy", "1.0", AbiClass.CPYTHON, CELL.torch, CELL.cuda, (CELL.python,), (Arch(9, 0),), CELL.platform, (CELL,)
    )
    found = (chooser.build_image(build), chooser.runtime_image(CELL))
    return {image.template: image for image in found}


@pytest.mark.parametrize("name", sorted(path.name for path in render.template_dir().iterdir()))
def test_a_changed_template_changes_the_name_of_its_images(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's name is part of the toolchain, and the toolchain is part of the build digest."""
    copy = shutil.copytree(render.template_dir(), tmp_path / "templates")
    monkeypatch.setattr(render, "template_dir", lambda: copy)
    render._environment.cache_clear()
    try:
        old = {template: image_name(image, ["sha256:base"]) for template, image in images().items()}
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace("RUN ", "RUN true && "))
        render._environment.cache_clear()
        new = {template: image_name(image, ["sha256:base"]) for template, image in images().items()}
    finally:
        render._environment.cache_clear()
    users = {name} if name in old else set(old)  # the stages are part of every image
    assert {template for template in old if old[template] != new[template]} == users
