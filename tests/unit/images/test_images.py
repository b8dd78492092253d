"""Images: the base and compiler that are chosen, their Dockerfiles, and builds of them with a fake engine."""

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from builder.errors import BuildError, BuildfarmError, Code, MissingToolError
from builder.images import dockerfiles as render
from builder.images.dockerfiles import MARK, bases_of, digest, dockerfiles, unpinned, write_dockerfiles
from builder.images.engine import Engine
from builder.images.image_build import cached_contents, ensure_image, image_name, inspect_image
from builder.images.specs import BuildImage, ImageChooser
from builder.matrix.axes import Cell, Cuda, Platform
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule, Selection
from builder.matrix.load import read_plan
from builder.process import OWNER_VARIABLE
from builder.store import Store
from tests.conftest import PATIENCE, ROOT
from tests.refused import refused
from tests.unit.images.fake_engine import FakeEngine
from tests.unit.matrix.make import matrix
from tests.unit.wheels.make_record import build_for as build

COMPAT = Compat.load()
PYPA = "quay.io/pypa/manylinux_2_28_x86_64"


def chooser(lock: dict[str, str] | None = None, **settings: Any) -> ImageChooser:
    """The chooser of a matrix with these settings."""
    return ImageChooser(replace(matrix(["2.11"], ["13.0"], ["3.12"]), **settings), COMPAT, lock or {})


@pytest.mark.parametrize(
    ("cell", "base", "gcc"),
    [
        ("torch1.12.1-cu113-cp310", "11.3.1-devel-ubuntu20.04", 10),
        ("torch2.0.1-cu118-cp311", "11.8.0-devel-rockylinux8", 11),
        ("torch2.2.2-cu121-cp311", "12.1.1-devel-rockylinux8", 12),
        ("torch2.6.0-cu124-cp312", "12.4.1-devel-rockylinux8", 13),
        ("torch2.8.0-cu128-cp312", "12.8.1-devel-rockylinux8", 14),
        ("torch2.11.0-cu128-cp312", "12.8.1-devel-rockylinux8", 13),  # torch 2.11's own check is stricter than nvcc
        ("torch2.11.0-cu130-cp312", "13.0.3-devel-rockylinux8", 14),
        ("torch2.12.1-cu132-cp314", "13.2.1-devel-rockylinux8", 14),
    ],
)
def test_nvidias_image_of_the_cuda_version_and_the_newest_supported_gcc(cell: str, base: str, gcc: int) -> None:
    image = chooser().build_image(build(cell))
    assert (image.base, image.gcc) == (f"nvidia/cuda:{base}", gcc)


def test_every_existing_cell_has_an_image_with_a_supported_gcc() -> None:
    chosen = chooser()
    for torch in COMPAT.torches:
        for cuda in COMPAT.torch(torch).variants:
            for python in COMPAT.torch(torch).pythons[torch]:
                if COMPAT.why_not(torch, cuda, python, Platform.LINUX_X86_64) or cuda < Cuda(11, 8):
                    continue
                image = chosen.build_image(build(str(Cell(torch, cuda, python))))
                oldest, newest = COMPAT.gcc_range(torch, cuda)
                assert image.gcc is not None
                assert oldest <= image.gcc <= newest
                assert image.base.startswith(f"nvidia/cuda:{cuda}.")


@pytest.mark.parametrize(
    ("cell", "tag"),
    [
        ("torch2.4.1-cu121-cp38", "2026.03.20-1"),
        ("torch2.9.1-cu130-cp313t", "2026.03.20-1"),
        ("torch2.11.0-cu130-cp312", "2026.10.26-1"),
        ("torch2.11.0-cu130-cp314t", "2026.10.26-1"),
    ],
)
def test_a_python_comes_from_the_newest_image_that_has_it(cell: str, tag: str) -> None:
    image = chooser().build_image(build(cell))
    assert image.pythons.image == f"{PYPA}:{tag}"
    assert image.tools.image == f"{PYPA}:2026.10.26-1"


def test_aarch64_has_its_own_manylinux_image_and_name() -> None:
    image = chooser().build_image(build("torch2.11.0-cu130-cp312-linux_aarch64"))
    assert image.tools.image == "quay.io/pypa/manylinux_2_28_aarch64:2026.10.26-1"
    assert image.name == "build-cu130-rockylinux8-gcc14-cp312-aarch64"
    run = chooser().runtime_image(Cell.parse("torch2.11.0-cu130-cp312-linux_aarch64"))
    assert run.name == "run-torch2.11.0-cu130-cp312-linux-aarch64"


OLD, NEW = "torch2.2.2-cu121-cp311", "torch2.11.0-cu130-cp313"


@pytest.mark.parametrize(
    ("rule", "cell", "chosen"),
    [
        (
            ImageRule("*-cu121-*", "mirror.example/cuda:12.1.1-devel-ubuntu22.04"),
            OLD,
            {
                "gcc": 12,
                "toolkit": Cuda(12, 1),
                "name": "build-cu121-mirror-example-cuda-12-1-1-devel-ubuntu22-04-gcc12-cp311",
            },
        ),
        # The package index does not have this nvcc, so a base image of an unknown distribution must.
        (
            ImageRule("*", "registry.example/base:7"),
            OLD,
            {"distribution": None, "gcc": None, "gcc_range": (9, 12), "toolkit": Cuda(12, 1)},
        ),
        # From CUDA 13.0 on, only a name with the same CUDA version means that a base image has the toolkit.
        (ImageRule("*", "nvidia/cuda:13.0.3-devel-ubuntu22.04"), NEW, {"toolkit": Cuda(13, 0)}),
        (ImageRule("*", "nvidia/cuda:13.2.1-devel-ubuntu22.04"), NEW, {"toolkit": None}),
        (ImageRule("*", "mirror.example/manylinux_2_28_x86_64_cuda13_0:latest"), NEW, {"toolkit": Cuda(13, 0)}),
        (ImageRule("*", "quay.io/manylinux_cuda/manylinux_2_28_x86_64_cuda12_9:latest"), NEW, {"toolkit": None}),
        (ImageRule("*", "buildfarm-base:bookworm"), NEW, {"toolkit": None}),
        # A declared toolkit is required, and limits the compiler.
        (
            ImageRule("*", "in-house/cuda:trixie", toolkit=Cuda(12, 4)),
            OLD,
            {"toolkit": Cuda(12, 4), "release": "12.4", "any_minor": False, "gcc": 12},
        ),
    ],
    ids=lambda value: value.image if isinstance(value, ImageRule) else "",
)
def test_an_image_of_the_matrix_comes_first(rule: ImageRule, cell: str, chosen: dict[str, Any]) -> None:
    image = chooser(images=(rule,)).build_image(build(cell))
    assert {"base": image.base, **{name: getattr(image, name) for name in chosen}} == {"base": rule.image, **chosen}


def test_a_declared_toolkit_of_a_different_major_is_an_error() -> None:
    rule = ImageRule("*", "in-house/cuda:trixie", toolkit=Cuda(12, 4))
    with refused(Code.IMAGE_UNSUITABLE, "12.4", "11.8"):
        chooser(images=(rule,)).build_image(build("torch2.3.1-cu118-cp311"))


def test_any_minor_version_can_be_allowed() -> None:
    settings = replace(matrix(["2.2"], ["12.1"], ["3.11"]), images=(ImageRule("*", "in-house/base:7"),))
    chosen = ImageChooser(settings, COMPAT, {}, minor_mismatch=True)
    image = chosen.build_image(build("torch2.2.2-cu121-cp311"))
    assert (image.toolkit, image.release) == (Cuda(12, 1), "12.")


def test_manylinux_base_images_have_their_own_pythons() -> None:
    base = "quay.io/manylinux_cuda/manylinux_2_28_x86_64_cuda12_9:latest"
    chosen = chooser(images=(ImageRule("*", base),))
    image = chosen.build_image(build("torch2.8.0-cu129-cp313"))
    assert (image.pythons.image, image.tools.image) == (None, base)
    assert image.gcc == 14
    old = chosen.build_image(build("torch2.8.0-cu129-cp313t"))
    assert old.pythons.image == f"{PYPA}:2026.03.20-1", "current images no longer have it"


def test_a_rule_can_name_the_image_of_pythons() -> None:
    rules = (ImageRule("torch2.2.*", "in-house/base:1", "in-house/pythons:1"), ImageRule("*", "in-house/other:1"))
    chosen = chooser(images=rules)
    assert chosen.build_image(build("torch2.2.2-cu121-cp311")).pythons.image == "in-house/pythons:1"
    assert chosen.build_image(build("torch2.3.1-cu121-cp311")).pythons.image == f"{PYPA}:2026.10.26-1"


def test_a_rule_with_an_unsupported_compiler_is_an_error() -> None:
    with refused(Code.IMAGE_UNSUITABLE, "trixie", "12, 13, 14", "2.0.1", "5 to 11"):
        chooser(images=(ImageRule("*", "debian:trixie"),)).build_image(build("torch2.0.1-cu118-cp311"))


def test_a_runtime_image_has_the_exact_torch_and_no_toolkit() -> None:
    default, other = (chooser().runtime_image(Cell.parse(f"torch2.2.2-{cuda}-cp311")) for cuda in ("cu121", "cu118"))
    assert (default.base, *default.packages) == ("nvidia/cuda:12.1.1-base-ubuntu22.04", "torch==2.2.2", "numpy<2")
    assert (other.base, other.packages[0]) == ("nvidia/cuda:11.8.0-base-ubuntu22.04", "torch==2.2.2+cu118")


def test_cells_can_run_on_a_different_base_than_they_are_built_on() -> None:
    rule = ImageRule("*", "in-house/devel:1", "in-house/pythons:1", "in-house/pythons:1")
    chosen = chooser(images=(rule,))
    run = chosen.runtime_image(Cell.parse("torch2.2.2-cu121-cp311"))
    assert (run.base, run.pythons.image) == ("in-house/pythons:1", None)
    assert run.bases == ("in-house/pythons:1",)
    assert chosen.build_image(build("torch2.2.2-cu121-cp311")).bases == ("in-house/devel:1", "in-house/pythons:1")


DIGEST = "sha256:" + "ab" * 32

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
def shipped() -> dict[str, str]:
    """Every file of the shipped matrix.yaml."""
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", Selection())
    return dockerfiles(plan, matrix, {})


@cache
def files_of(name: str) -> dict[str, str]:
    """The build file and the runtime file of a typical cell."""
    torch, cuda, python, images, lock = TYPICAL[name]
    select = Selection(torch=(torch,), cuda=(cuda,), python=(python,), extensions=("torch_scatter",))
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", select)
    return dockerfiles(plan, replace(matrix, images=images), lock)


def every_file() -> dict[str, str]:
    """The files of the shipped matrix.yaml and of the typical cells."""
    return shipped() | {f"{name} {file}": text for name in TYPICAL for file, text in files_of(name).items()}


@pytest.mark.parametrize("name", TYPICAL)
def test_the_text_equals_the_golden_file(name: str) -> None:
    for kind, text in zip(("build", "runtime"), files_of(name).values(), strict=True):
        assert text == (Path(__file__).parent / "golden" / f"{kind}-{name}.Dockerfile").read_text()


def test_every_cell_of_the_shipped_matrix_has_an_image() -> None:
    _, _, plan = read_plan(ROOT / "matrix.yaml", Selection())
    run = {name for name in shipped() if name.startswith("run-")}
    assert run == {f"run-{cell}.Dockerfile".replace("_", "-") for build in plan.builds for cell in build.serves}


def test_no_file_uses_features_newer_than_docker_20_10() -> None:
    newer = re.compile(r"^# *syntax=|<<|--link|--checksum|--network|--parents=|--exclude|^ADD ", re.MULTILINE)
    for name, text in every_file().items():
        assert not newer.search(text), name


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
    assert files == shipped(), "same input, same bytes"
    for name, text in files.items():
        assert not [word for word in strange if word in text], name


def test_network_settings_reach_steps_only_as_secrets() -> None:
    for name, text in shipped().items():
        assert not re.search(r"(?im)^(ARG|ENV).*(_PROXY|INDEX|_CERT|CA_)", text), name
        for step in re.findall(r"^RUN (?:.*\\\n)*.*", text, re.MULTILINE):
            fetches = re.search(r"\b(dnf|apt-get|pip) (\S+ )*install|uv pip install", step)
            assert bool(fetches) == ("type=secret,id=ca" in step and "type=secret,id=network" in step), step


def test_the_last_user_is_not_root() -> None:
    for text in shipped().values():
        assert re.findall(r"^USER (.*)", text, re.MULTILINE)[-1] == "1000:1000"


def test_cells_share_the_stages_that_do_not_depend_on_a_cell() -> None:
    tools = {re.search(r"^FROM .* AS tools\n.*?(?=\n\n)", text, re.M | re.S)[0] for text in shipped().values()}  # type: ignore[index]
    assert len(tools) == 1
    per_cuda: dict[str, set[str]] = {}
    for name, text in shipped().items():
        if name.startswith("build-"):
            shared = text.partition(f"FROM {bases_of(text)[-1]}")[2].partition("COPY --from=python")[0]
            shared = shared if " AS python" in text else ""
            per_cuda.setdefault(name.rpartition("-cp")[0], set()).add(shared)
    assert all(len(found - {""}) == 1 for found in per_cuda.values()), "Pythons come before what they share"


def test_a_lock_changes_the_digest_that_names_an_image() -> None:
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", Selection(torch=("2.2",), cuda=("12.1",), python=("3.12",)))
    free, pinned = (
        next(iter(dockerfiles(plan, matrix, lock).values())) for lock in ({}, {f"{PYPA}:2026.10.26-1": DIGEST})
    )
    assert digest(free) != digest(pinned)
    assert unpinned([free, pinned]) == ["nvidia/cuda:12.1.1-devel-rockylinux8", f"{PYPA}:2026.10.26-1"]


def test_two_images_have_two_files() -> None:
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", Selection(torch=("2.2", "2.3"), cuda=("12.1",), python=("3.12",)))
    pairs = (("2.2", "a"), ("2.3", "b"))
    images = tuple(ImageRule(f"torch{torch}.*", f"in-house@sha256:{d * 64}") for torch, d in pairs)
    built = [name for name in dockerfiles(plan, replace(matrix, images=images), {}) if name.startswith("build-")]
    assert len(built) == 2
    assert all(name.startswith("build-cu121-in-house-own-gcc-cp312-") for name in built)


def test_other_rendered_files_are_deleted_and_all_else_stays(tmp_path: Path) -> None:
    (tmp_path / "gone.Dockerfile").write_text(MARK + "a template\n")
    (tmp_path / "mine.Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "notes.txt").write_text(MARK)
    files = files_of("cu121-pinned")
    write_dockerfiles(tmp_path, files)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.Dockerfile", "notes.txt", *files}
    assert all((tmp_path / name).read_text() == text for name, text in files.items())


def test_every_step_is_valid_shell() -> None:
    steps = {step for text in every_file().values() for step in re.findall(r"^RUN ((?:.*\\\n)*.*)", text, re.MULTILINE)}
    for step in steps:
        words = re.sub(r"^(\s*--mount=\S+\s*(\\\n\s*)?)+", "", step)
        subprocess.run(["bash", "-n", "-c", words], check=True)


CELL = Cell.parse("torch2.11.0-cu130-cp312")


@pytest.fixture
def fake(fake: FakeEngine) -> FakeEngine:
    fake.add_image("base:bookworm", "sha256:base")
    fake.add_image("pythons:1", "sha256:pythons")
    fake.container_output = "gxx=12.2.0\nnvcc=\npython=3.12.1\npath=/usr/bin\n"
    return fake


IN_HOUSE = chooser(images=(ImageRule("*", "base:bookworm", "pythons:1"),))


@pytest.fixture
def image() -> BuildImage:
    return IN_HOUSE.build_image(build(CELL))


def build_error(fake: FakeEngine, store: Store, image: BuildImage) -> BuildfarmError:
    with pytest.raises(BuildfarmError) as caught:
        ensure_image(Engine(), store, image, log=fake.root / "log")
    return caught.value


def test_an_image_is_built_once_and_inspected_once(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    assert cached_contents(Engine(), store, image) is None
    tag, contents = inspect_image(Engine(), store, image, log=fake.root / "log")
    assert (contents.gxx, contents.python, contents.path) == ("12.2.0", "3.12.1", "/usr/bin")
    asked = len(fake.removed)
    assert inspect_image(Engine(), store, image, log=fake.root / "log") == (tag, contents)
    assert cached_contents(Engine(), store, image) == (tag, contents)
    assert ["--tag" in call and tag in call for call in fake.calls()].count(True) == 1
    assert len(fake.removed) == asked == 1


@pytest.mark.parametrize("name", sorted(path.name for path in render.template_dir().iterdir()))
def test_a_changed_template_changes_the_name_of_its_images(
    name: str, image: BuildImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's name is part of the toolchain, and the toolchain is part of the build digest."""
    images = {one.template: one for one in (image, IN_HOUSE.runtime_image(CELL))}
    copy = shutil.copytree(render.template_dir(), tmp_path / "templates")
    monkeypatch.setattr(render, "template_dir", lambda: copy)
    render._environment.cache_clear()
    try:
        old = {template: image_name(image, ["sha256:base"]) for template, image in images.items()}
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace("RUN ", "RUN true && "))
        render._environment.cache_clear()
        new = {template: image_name(image, ["sha256:base"]) for template, image in images.items()}
    finally:
        render._environment.cache_clear()
    users = {name} if name in old else set(old)  # the stages are part of every image
    assert {template for template in old if old[template] != new[template]} == users


def test_base_images_of_a_mirror_change_the_dockerfile_and_not_the_name_of_the_image(
    fake: FakeEngine, store: Store, image: BuildImage
) -> None:
    expected = image_name(image, [Engine().base_id(base) for base in image.bases])
    original = {base: (fake.root / "images" / quote(base, safe="")) for base in image.bases}
    for base, file in original.items():
        file.rename(file.with_name(quote(f"mirror.example/library/{base}", safe="")))
    engine = Engine({"docker.io": "mirror.example"})
    assert ensure_image(engine, store, image, log=fake.root / "log") == expected
    froms = re.findall(r"^FROM (\S+)", (fake.root / "Dockerfile").read_text(), re.MULTILINE)
    assert set(froms) == {f"mirror.example/library/{base}" for base in image.bases}
    tag, _ = inspect_image(engine, store, image, log=fake.root / "log")
    assert cached_contents(engine, store, image) is not None
    assert tag == expected


def test_the_error_of_a_failed_image(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    (fake.root / "fails").write_text("#7 1.23 ERROR: No matching distribution found for uv==9\n#7 DONE\n")
    error = build_error(fake, store, image)
    assert isinstance(error, BuildError)
    assert (error.stage, error.log, error.code) == ("environment", fake.root / "log", Code.ENVIRONMENT_FAILED)


def test_a_stopped_engine_is_reported_instead_of_the_output_of_buildx(
    fake: FakeEngine, store: Store, image: BuildImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake.root / "fails").write_text("ERROR: failed to receive status: rpc error: code = Unavailable")
    monkeypatch.setattr(
        Engine,
        "problem",
        lambda _: MissingToolError("the Docker engine does not answer: no socket", Code.ENGINE_NOT_ANSWERING),
    )
    error = build_error(fake, store, image)
    assert isinstance(error, MissingToolError)
    assert error.sentence.startswith("the Docker engine stopped answering while an image was built: ")
    assert "rpc error" not in error.sentence


def test_a_build_that_does_not_end_is_ended(
    fake: FakeEngine, store: Store, image: BuildImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.images.engine.BUILD_TIMEOUT", 1)
    (fake.root / "hangs").touch()
    error = build_error(fake, store, image)
    assert isinstance(error, MissingToolError)
    assert "because buildx was ended: it did not finish within 1 s" in error.sentence
    assert "restart the Docker engine, and run the command again" in error.hints


def test_the_buildx_of_a_killed_run_is_killed_first(fake: FakeEngine, store: Store, image: BuildImage) -> None:
    tag = ensure_image(Engine(), store, image, log=fake.root / "log")
    (fake.root / "images" / tag.replace("/", "%2F").replace(":", "%3A")).unlink()
    owner = store.owner(f"image-{tag.rpartition(':')[2]}")
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        argv, env={**os.environ, OWNER_VARIABLE: owner}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()  # it has its environment
        ensure_image(Engine(), store, image, log=fake.root / "log")
        assert left.wait(PATIENCE) == -9
