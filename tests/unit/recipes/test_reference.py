"""What SOURCE may be: a project, a repository, a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code
from builder.matrix.config import GitSource, PathSource, SdistSource
from builder.recipes.fetch import parse_reference
from tests.refused import refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch-scatter==2.1.2", SdistSource("torch-scatter", "2.1.2", "")),
        ("torch-scatter", SdistSource("torch-scatter", "", "")),
        ("https://host/owner/name", GitSource("https://host/owner/name", "", "")),
        ("https://host/owner/name.git@v1.0", GitSource("https://host/owner/name.git", "v1.0", "")),
        ("https://user:key@host/name@feature/x", GitSource("https://user:key@host/name", "feature/x", "")),
        ("git+https://host/name@main#subdirectory=python", GitSource("https://host/name", "main", "python")),
        ("git+https://host/name@v1#egg=z&subdirectory=a/b", GitSource("https://host/name", "v1", "a/b")),
        ("git@host:owner/name.git@main", GitSource("git@host:owner/name.git", "main", "")),
        ("git@host:owner/name.git", GitSource("git@host:owner/name.git", "", "")),
    ],
)
def test_source_is_parsed(text: str, expected: object) -> None:
    assert parse_reference(text) == expected


def test_an_unknown_part_of_the_url_is_refused() -> None:
    with refused(Code.SOURCE_UNSUPPORTED, "only `subdirectory=FOLDER`"):
        parse_reference("https://host/name@v1#subdir=python")


def test_a_folder_and_a_local_repository(tmp_path: Path) -> None:
    (tmp_path / "name" / ".git").mkdir(parents=True)
    name = tmp_path / "name"
    assert parse_reference(str(name)) == PathSource(name)
    assert parse_reference(f"{name}@v1") == GitSource(name.as_uri(), "v1", "")
