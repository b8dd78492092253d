"""The Dockerfiles of a plan: exact text for two typical cells, and properties of all files of the shipped matrix."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from builder.images.dockerfiles import (
    MARK,
    Dockerfile,
    digest,
    dockerfiles,
    unpinned,
    write_dockerfiles,
)
from builder.matrix.config import ImageRule, Selection
from builder.matrix.load import read_plan
from tests.conftest import ROOT

GOLDEN = Path(__file__).parent / "golden"
DIGEST = "sha256:" + "ab" * 32
PYPA = "quay.io/pypa/manylinux_2_28_x86_64"

#: Typical cases: a cell of the shipped matrix, `images:` of the matrix, and the lock file.
TYPICAL = {
    "cu121-pinned": ("2.2", "12.1", "3.12", (), {"nvidia/cuda:12.1.1-devel-rockylinux8": DIGEST}),
    "cu130-in-house": (
        "2.11",
        "13.0",
        "3.12",
        (ImageRule("torch2.11.*", "registry.example/farm/base:7", "registry.example/farm/pythons:7"),),
        {},
    ),
}


@cache
def shipped() -> tuple[Dockerfile, ...]:
    """Every file of the shipped matrix.yaml."""
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", Selection())
    return tuple(dockerfiles(plan, matrix, {}))


def files_of(name: str) -> tuple[Dockerfile, Dockerfile]:
    """The build file and the runtime file of a typical cell."""
    torch, cuda, python, images, lock = TYPICAL[name]
    select = Selection(torch=(torch,), cuda=(cuda,), python=(python,), extensions=("torch_scatter",))
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", select)
    build, runtime = dockerfiles(plan, replace(matrix, images=images), lock)
    return build, runtime


@pytest.mark.parametrize("name", TYPICAL)
def test_the_text_equals_the_golden_file(name: str) -> None:
    for file in files_of(name):
        assert file.text == (GOLDEN / f"{file.kind}-{name}.Dockerfile").read_text()


def test_every_build_and_every_cell_of_the_shipped_matrix_has_an_image() -> None:
    _, _, plan = read_plan(ROOT / "matrix.yaml", Selection())
    built = [build for file in shipped() for build in file.builds]
    assert sorted(map(str, built)) == sorted(map(str, plan.builds))
    run = [cell for file in shipped() if file.kind == "runtime" for cell in file.cells]
    assert set(run) == {cell for build in plan.builds for cell in build.serves}
    assert len({file.name for file in shipped()}) == len(shipped())


@pytest.mark.parametrize(
    "newer", [r"^# *syntax=", r"<<", r"--link", r"--checksum", r"--network", r"--parents=", r"--exclude", r"^ADD "]
)
def test_no_file_uses_features_newer_than_docker_20_10(newer: str) -> None:
    for file in (*shipped(), *(file for name in TYPICAL for file in files_of(name))):
        assert not re.search(newer, file.text, re.MULTILINE), file.name


def test_no_file_contains_settings_of_this_machine_or_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "https://someone:hunter2@index.example/simple")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/somewhere/ca.pem")
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", Selection())
    with_password = replace(matrix, torch_index="https://someone:hunter2@torch.example/{variant}")
    strange = {"hunter2", "index.example", "torch.example", "somewhere", str(ROOT), socket.gethostname(), sys.prefix}
    if Path.home() != Path("/root"):  # the container has the same home directory
        strange.add(f"{Path.home()}/")
    files = dockerfiles(plan, with_password, {})
    assert files == list(shipped()), "same input, same bytes"
    for file in files:
        assert not [word for word in strange if word in file.text], file.name


def test_network_settings_reach_steps_only_as_secrets() -> None:
    for file in shipped():
        assert not re.search(r"(?im)^(ARG|ENV).*(_PROXY|INDEX|_CERT|CA_)", file.text), file.name
        for step in re.findall(r"^RUN (?:.*\\\n)*.*", file.text, re.MULTILINE):
            fetches = re.search(r"\b(dnf|apt-get|pip) (\S+ )*install|uv pip install", step)
            assert bool(fetches) == ("type=secret,id=ca" in step and "type=secret,id=network" in step), step


def test_the_last_user_is_not_root() -> None:
    for file in shipped():
        assert re.findall(r"^USER (.*)", file.text, re.MULTILINE)[-1] == "1000:1000"


def test_cells_share_the_stages_that_do_not_depend_on_a_cell() -> None:
    tools = {re.search(r"^FROM .* AS tools\n.*?(?=\n\n)", file.text, re.M | re.S)[0] for file in shipped()}  # type: ignore[index]
    assert len(tools) == 1
    per_cuda: dict[str, set[str]] = {}
    for file in shipped():
        if file.kind == "build":
            shared = file.text[file.text.index(f"FROM {file.base}") : file.text.index("COPY --from=python")] \
                if " AS python" in file.text else ""  # fmt: skip
            per_cuda.setdefault(re.sub(r"-cp\d+$", "", file.name), set()).add(shared)
    assert all(len(found - {""}) == 1 for found in per_cuda.values()), "Pythons come before what they share"


def test_a_lock_changes_the_digest_that_names_an_image() -> None:
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", Selection(torch=("2.2",), cuda=("12.1",), python=("3.12",)))
    free, pinned = (dockerfiles(plan, matrix, lock)[0] for lock in ({}, {f"{PYPA}:2026.10.26-1": DIGEST}))
    assert digest(free.text) != digest(pinned.text)
    assert unpinned([free, pinned]) == ("nvidia/cuda:12.1.1-devel-rockylinux8", f"{PYPA}:2026.10.26-1")


def test_two_images_have_two_files() -> None:
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", Selection(torch=("2.2", "2.3"), cuda=("12.1",), python=("3.12",)))
    pairs = (("2.2", "a"), ("2.3", "b"))
    images = tuple(ImageRule(f"torch{torch}.*", f"in-house@sha256:{d * 64}") for torch, d in pairs)
    built = [file for file in dockerfiles(plan, replace(matrix, images=images), {}) if file.kind == "build"]
    assert len({file.name for file in built}) == 2
    assert all(file.name.startswith("build-cu121-in-house-own-gcc-cp312-") for file in built)


def test_other_rendered_files_are_deleted_and_all_else_stays(tmp_path: Path) -> None:
    (tmp_path / "gone.Dockerfile").write_text(MARK + "a template\n")
    (tmp_path / "mine.Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "notes.txt").write_text(MARK)
    files = files_of("cu121-pinned")
    write_dockerfiles(tmp_path, files)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.Dockerfile", "notes.txt", *(f.file for f in files)}
    assert (tmp_path / files[0].file).read_text() == files[0].text


def test_every_step_is_valid_shell() -> None:
    texts = [file.text for file in (*shipped(), *(file for name in TYPICAL for file in files_of(name)))]
    steps = {step for text in texts for step in re.findall(r"^RUN ((?:.*\\\n)*.*)", text, re.MULTILINE)}
    for step in steps:
        words = re.sub(r"^(\s*--mount=\S+\s*(\\\n\s*)?)+", "", step)
        subprocess.run(["bash", "-n", "-c", words], check=True)
