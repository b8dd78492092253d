"""A change of code that can change wheels or verdicts needs a decision: raise a number, or say why nothing changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder import formats
from builder.wheels.scripts import PACKAGE
from tests.unit.formats import FILE, GROUPS, NOT_COVERED, changed, code_hash, files_of, message, renewed


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
