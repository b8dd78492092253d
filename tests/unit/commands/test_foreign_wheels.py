"""`adopt`: which wheels the arguments name, and where they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.commands.index.foreign_wheels import foreign_wheels
from builder.errors import Code
from builder.hashing import sha256_of
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from tests.refused import refused
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import ready


def test_the_origin_has_no_secret_of_the_url(tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "ops", "1.0")
    sha256 = sha256_of(wheel)
    kept = tmp_path / "cache" / "wheels" / sha256 / wheel.name  # a kept wheel is not downloaded again
    kept.parent.mkdir(parents=True)
    wheel.rename(kept)
    place = "dl.example/basic/team/t/{token}/python/" + wheel.name
    url = f"https://user:s3cr3t@{place.format(token='s3cr3ts3cr3t')}?token=s3cr3ts3cr3t#sha256={sha256}"
    (found,) = foreign_wheels([url], tmp_path / "cache", "", ())
    assert (found.path, found.origin) == (kept, f"https://{place.format(token='***')}")


def test_only_what_an_index_offers_is_taken_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "index"
    repository = Repository(Folder(root))
    for name, version in (("ops", "1.0"), ("ops", "2.0"), ("ops", "3.0")):
        repository.add(ready(tmp_path, name, version))
    repository.yank("ops-2.0-py3-none-any.whl", "wrong on sm_120")
    repository.yank("ops-3.0-py3-none-any.whl", "")
    unfinished = root / "files" / "ab" / "cdef" / "killed-1.0-py3-none-any.whl"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(b"PK")
    found = foreign_wheels([str(root)], tmp_path / "cache", "", ())
    assert [(one.path.name, one.path.is_file(), one.origin) for one in found] == [
        ("ops-1.0-py3-none-any.whl", True, "a file")
    ]
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("not taken: ")] == [
        "not taken: ops-2.0-py3-none-any.whl: yanked: wrong on sm_120",
        "not taken: ops-3.0-py3-none-any.whl: yanked",
    ]
    repository.yank("ops-1.0-py3-none-any.whl", "")
    with refused(Code.NO_WHEEL):
        foreign_wheels([str(root)], tmp_path / "cache", "", ())
