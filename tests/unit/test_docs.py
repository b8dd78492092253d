"""The documentation and the code agree: pages, pictures, commands, links, the atlas, versions, format numbers."""

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder import formats, tested_versions
from builder.images.specs import TOOLS
from builder.matrix.axes import Platform, Python
from builder.matrix.compat import Compat
from builder.store import Store
from builder.tested_versions import (
    FIRST_SAFE,
    TESTED,
    installed_versions,
    unsafe,
    unsafe_images,
    untested,
)
from builder.wheels.build_scripts import PACKAGE
from docs.atlas.entry import GPUS
from docs.atlas.facts import FACTS, Atlas
from docs.atlas.page import Checked, atlas_page, failures_of
from docs.generate import DOCS, README, generated
from docs.scripts.command_page import all_commands
from tests.unit.formats import FILE, GROUPS, NOT_COVERED, changed, code_hash, files_of, message, renewed

ROOT = README.parent
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if "scripts" not in path.parts]
PAGES += [*sorted(ROOT.glob("*.md")), ROOT / "extensions" / "README.md"]
GENERATED = list(generated())


@pytest.mark.parametrize(("path", "text"), GENERATED, ids=[path.name for path, _ in GENERATED])
def test_generated_file_is_up_to_date(path: Path, text: str) -> None:
    if path.parent.name == "pictures" and path.name != "flow.svg":  # rich draws it; its releases draw differently
        assert _texts(path.read_text(encoding="utf-8")) == _texts(text)
        return
    assert path.read_text(encoding="utf-8") == text, "run `python -m docs.generate`"


def _texts(svg: str) -> list[str]:
    return re.findall(r">([^<>\n]+)</text>", svg)


def test_store_page_names_the_folders_of_a_store(tmp_path: Path) -> None:
    Store(tmp_path / "store")
    page = (DOCS / "reference" / "store.md").read_text(encoding="utf-8")
    for folder in filter(Path.is_dir, (tmp_path / "store").iterdir()):
        assert f"| `{folder.name}/" in page, folder.name


def _commands(text: str) -> Iterator[str]:
    """Every `buildfarm …` line of the fenced blocks, and every one of the inline code."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            for part in line.removeprefix("$ ").split("&&"):
                if match := re.match(r"(?:\.venv/bin/)?buildfarm (?!\[|.*\[OPTIONS\])(.*)", part.strip()):
                    yield match[1]
    yield from re.findall(r"`buildfarm ([^`…]+)`", text)


DOCUMENTED = [(path, line) for path in PAGES for line in _commands(path.read_text(encoding="utf-8"))]


def _unknown(line: str) -> str:
    """The first word of a command line that buildfarm does not know, or an empty text."""
    words = shlex.split(line, comments=True)
    if words in (["--version"], ["--help"], ["--install-completion"]):
        return ""
    commands = dict(all_commands())
    command = commands.get(words[0]) or commands.get(" ".join(words[:2]))
    if command is None:
        group = any(name.startswith(f"{words[0]} ") for name in commands)
        return "" if group and set(words[1:]) <= {"--help"} else words[0]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    return next((word for word in words if word.startswith("--") and word not in known), "")


def test_documented_commands_exist() -> None:
    offenders = [f"{path.name}: {line}: {unknown}" for path, line in DOCUMENTED if (unknown := _unknown(line))]
    assert offenders == []


def test_readme_keeps_its_promises() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    for name, last in (
        ("run", ".venv/bin/buildfarm build --torch 2.11 --cuda 13.0 --ext ms_deform_attn"),
        ("test", ".venv/bin/python -m pytest -n 2"),
    ):
        found = re.search(rf"^<!-- {name} -->\n```\n(.+)\n```$", text, re.MULTILINE)
        assert found, name
        assert found[1].endswith(last)


def _prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_lead_somewhere() -> None:
    offenders = []
    for path in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(path)):
            name, _, anchor = target.partition("#")
            if "://" in name:
                continue
            there = (path.parent / name).resolve() if name else path
            if not there.exists() or (anchor and anchor not in _anchors(there)):
                offenders.append(f"{path.name}: {target}")
    assert offenders == []


def test_named_files_exist() -> None:
    offenders = []
    for path in PAGES:
        text = _prose(path)
        named = re.findall(r"`((?:builder|tests|docs|extensions)/[\w./-]+)`", text)
        if path.name == "ARCHITECTURE.md":
            written = re.sub("<!-- packages -->.*<!-- end of packages -->", "", text, flags=re.DOTALL)
            names = re.findall(r"`(\w+/[\w./]*|\w+\.py)`", written)
            named += [name if (ROOT / name).exists() else f"builder/{name}" for name in names]
        offenders += [f"{path.name}: {name}" for name in named if not (ROOT / name).exists()]
    assert offenders == []


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load(text)["nav"])))
    there = {str(path.relative_to(DOCS)) for path in PAGES if DOCS in path.parents}
    assert named == there


TAG = "cp312-cp312-manylinux_2_28_x86_64"


def entry(version: str, **changes: Any) -> dict[str, Any]:
    """What the atlas says about a wheel without a fault."""
    return {
        "wheel": f"ops-{version}-{TAG}.whl",
        "version": version,
        "sha256": "0" * 64,
        "size": 1000,
        "day": "2026-11-23",
        "requires": ["torch>=2.9"],
        "allowed": ["2.9", "2.10"],
        "links": ["2.9", "2.10"],
        "does_not_link": [],
        "tags": ["manylinux_2_28_x86_64"],
        "glibc": [2, 27],
        "libstdcxx": [3, 4, 21],
        "elsewhere": [],
        "libraries": 1,
        "gpus": {arch: [1, 0, 0] for arch in GPUS},
        "sizes": {},
        "failed": [],
        "not_run": [],
        "remarks": [],
        **changes,
    }


TAGS_FAILED = {"check": "tags", "says": "ops/_C.so needs x@GLIBC_2.32, newer than manylinux_2_28_x86_64 guarantees"}
FOUND = Checked(
    title="The tag is too old",
    kind="differs",
    check="tags",
    about=["newer than manylinux"],
    wheels={"ops": ["1.1", "1.0"]},
    says="It needs\n2.32.",
    evidence="$ readelf -V x\n",
)


def test_a_finding_is_printed_for_the_releases_that_still_fail() -> None:
    page = atlas_page(Atlas([], {"ops": [entry("1.1"), entry("1.0", failed=[TAGS_FAILED])]}), [FOUND])
    assert "### The tag is too old\n\nops 1.0.\n\nIt needs 2.32.\n" in page
    assert "`buildfarm verify ops==1.0 --python 3.12`" in page
    assert "$ readelf -V x" in page
    assert "Not compared" not in page
    assert "The tag is too old" not in atlas_page(Atlas([], {"ops": [entry("1.0")]}), [FOUND])


def test_every_finding_is_about_failures_of_the_committed_atlas() -> None:
    atlas = Atlas.load()
    failures = failures_of(atlas)
    for one in Checked.load():
        for project in one.wheels.keys() & atlas.projects.keys():
            for release in one.wheels[project]:
                named = [failure for name, version, failure in failures if (name, version) == (project, release)]
                assert any(one.covers(project, release, failure) for failure in named), f"{one.title}: {project}"
        assert one.kind in ("differs", "design"), one.title
        assert one.evidence.startswith("$ "), one.title


def test_the_committed_atlas_is_large_enough_and_names_no_address() -> None:
    atlas = Atlas.load()
    assert sum(len(entries) == 3 for entries in atlas.projects.values()) >= 20
    assert "://" not in FACTS.read_text(encoding="utf-8")


def test_code_behind_a_number_changes_with_a_decision() -> None:
    assert (names := changed(FILE.read_text())) == [], message(names)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, which tests change."""
    target = tmp_path_factory.mktemp("copy") / "builder"
    return shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def package(copy: Path) -> Path:
    """A small part of the copy, unchanged."""
    for name in ("proofs/cells", "proofs/verify"):
        shutil.rmtree(copy / name)
        shutil.copytree(PACKAGE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def test_every_folder_has_a_number_or_needs_none() -> None:
    """A new folder needs a decision."""
    covered = {path for name in GROUPS for path in files_of(name)}
    offenders = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if path not in covered and path.parent not in (PACKAGE, PACKAGE / "proofs"):
            offenders += [name] * (not any(name.startswith(f"{folder}/") for folder in NOT_COVERED))
    assert offenders == []
    assert [name for names in GROUPS.values() for name in names if not (PACKAGE / name).exists()] == []
    assert {name for name in vars(formats) if name.isupper()} == set(GROUPS)


PROOF = '''"""Documentation."""

def check(wheel):
    """Documentation."""
    # A comment.
    return wheel.tags == f"{wheel.name:>{9}}"
'''


@pytest.mark.parametrize(
    ("new", "counts"),
    [
        (PROOF.replace("Documentation", "Better documentation"), False),
        (PROOF.replace("    # A comment.\n", ""), False),
        (PROOF.replace("wheel.tags ==", "(\n        wheel.tags) ==\\\n"), False),
        (PROOF.replace("==", "!="), True),
        (PROOF.replace("9", "8"), True),
        (PROOF.replace("return wheel", "wheel"), True),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(new: str, package: Path, *, counts: bool) -> None:
    assert new != PROOF
    (package / "proofs/verify/new.py").write_text(PROOF)
    before = code_hash("VERIFY_FORMAT", package)
    (package / "proofs/verify/new.py").write_text(new)
    assert (code_hash("VERIFY_FORMAT", package) != before) is counts


def test_a_line_is_renewed_with_a_reason_or_a_raised_number(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FILE.read_text()
    (package / "proofs/verify/new.py").write_text(PROOF)
    assert renewed(text, "", package)[1] == ["VERIFY_FORMAT"]
    equal, refused = renewed(text, "a new sentence", package)
    assert refused == changed(equal, package) == []
    assert [line for line in equal.splitlines() if line not in text.splitlines()] == [
        f"VERIFY_FORMAT {formats.VERIFY_FORMAT} {code_hash('VERIFY_FORMAT', package)} a new sentence"
    ]
    monkeypatch.setattr(formats, "VERIFY_FORMAT", formats.VERIFY_FORMAT + 1)
    assert changed(equal, package) == ["VERIFY_FORMAT"]
    raised, refused = renewed(text, "", package)
    assert refused == changed(raised, package) == []
    assert f"VERIFY_FORMAT {formats.VERIFY_FORMAT} {code_hash('VERIFY_FORMAT', package)} raised\n" in raised


@pytest.mark.parametrize("markers", [False, True], ids=["union", "conflict"])
def test_after_a_merge_one_command_renews_the_line(markers: bool) -> None:
    text = FILE.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("OPS_FORMAT"))
    number, value, _, _ = line.split(maxsplit=3)
    theirs = f"{number} {value} {'0' * 16} their reason"
    both = f"<<<<<<< ours\n{line}\n=======\n{theirs}\n>>>>>>> theirs" if markers else f"{theirs}\n{line}"
    merged = text.replace(line, both)
    assert changed(merged) == ["OPS_FORMAT"]
    assert renewed(merged, "merge")[0] == text.replace(line, f"{line.rsplit(' ', len(line.split()) - 3)[0]} merge")


@pytest.mark.parametrize(
    ("name", "installed", "newer"),
    [
        ("cibuildwheel", "99.0.0", True),
        ("cibuildwheel", "99.0.0a1", True),
        ("cibuildwheel", TESTED["cibuildwheel"], False),
        ("uv", f"{TESTED['uv']}.99", False),
        ("uv", "0.99.0", True),
        ("requests", "99.0.0", False),
    ],
)
def test_a_version_that_was_not_tested_is_named(name: str, installed: str, newer: bool) -> None:
    expected = f"{name} {installed} is newer than {TESTED.get(name)}, with which buildfarm was tested"
    assert untested({name: installed}) == [expected] * newer


@pytest.mark.parametrize(
    ("name", "installed", "named"),
    [
        ("uv", "0.13.3", True),
        ("uv", "0.13.4", False),
        ("uv", "0.14.0", False),
        ("certifi", "2026.7.4", True),
        ("certifi", "2026.10.19", False),
        ("certifi", "2026.10.19.post1", False),
        ("requests", "0.1", False),
    ],
)
def test_a_version_that_trusts_compromised_authorities_is_named(name: str, installed: str, named: bool) -> None:
    sentences = [*unsafe({name: installed}).values()]
    expected = f"{name} {installed} trusts certificate authorities that were compromised"
    assert [sentence.startswith(expected) for sentence in sentences] == [True] * named


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("quay.io/pypa/manylinux_2_28_x86_64:2026.10.09-1", True),
        ("quay.io/pypa/manylinux_2_28_x86_64:2026.10.21-1@sha256:0", False),
        ("quay.io/pypa/manylinux2014_x86_64:2023-11-20-f4fefb7", True),
        ("quay.io/pypa/manylinux_2_28_x86_64:latest", False),
        ("registry.example/team/tools:2024.01.01-1", False),
        ("", False),
    ],
)
def test_an_image_that_trusts_compromised_authorities_is_named(image: str, named: bool) -> None:
    assert [image in sentence for sentence in unsafe_images([image, image])] == [True] * named


def test_this_installation_and_its_images_are_safe() -> None:
    images = Compat.load().images
    current = images.pythons_image(Python(3, 12), Platform.LINUX_X86_64)
    tools = [requirement for requirement in TOOLS if requirement.startswith("uv==")]
    assert unsafe_images([str(current)]) == []
    assert unsafe({"uv": tools[0].removeprefix("uv==")}) == unsafe(installed_versions()) == {}


def test_a_package_that_is_not_installed_is_no_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tested_versions, "version", absent)
    assert installed_versions() == {}


def test_an_installation_allows_what_was_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = {requirement.name: requirement for requirement in map(Requirement, project["dependencies"])}
    for name, tested in TESTED.items():
        oldest = min(Version(s.version) for s in allowed[name].specifier if s.operator in {">=", "=="})
        assert max(Version(tested), oldest) in allowed[name].specifier
        assert oldest >= Version(FIRST_SAFE.get(name, "0"))


def test_this_installation_was_tested() -> None:
    assert untested(installed_versions()) == []


def test_the_lock_is_installed_without_a_resolver() -> None:
    """For `coverage[toml]>=7` of a package, pip 23 takes the newest coverage, and then refuses it for its hash."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / ".github/workflows").iterdir()]
    lines = [line for file in files for line in file.read_text().splitlines() if "-r requirements.lock" in line]
    assert len(lines) >= 5
    assert [line for line in lines if "--no-deps -r requirements.lock" not in line] == []


def test_the_lock_has_every_package_and_extra_that_its_packages_ask_for() -> None:
    pins = re.findall(r"^([\w.-]+)(?:\[(.+)\])?==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    locked = {canonicalize_name(name): set(extras.split(",")) for name, extras in pins}
    missing = []
    for name, extras in locked.items():
        with suppress(PackageNotFoundError):  # a package of a different Python or platform
            for text in requires(name) or ():
                wanted = Requirement(text)
                marker = wanted.marker
                if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                    of = locked.get(canonicalize_name(wanted.name))
                    if of is None or not wanted.extras <= of:
                        missing.append(f"{name}: {text}")
    assert missing == []
