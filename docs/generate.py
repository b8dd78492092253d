"""Writes every generated page and picture of the documentation: run `python -m docs.generate` in the repository.

tests/unit/test_docs.py compares the committed files with what this module makes of the code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from docs.atlas.page import atlas_page
from docs.scripts.build_fails import build_fails_page
from docs.scripts.code_pages import cases_page, checks_page, errors_page, exit_codes_page, store_page
from docs.scripts.command_page import cli_page
from docs.scripts.flow import draw
from docs.scripts.packages import with_packages
from docs.scripts.support import support_page
from docs.scripts.terminal import picture
from docs.scripts.yaml_pages import extension_page, matrix_page

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
ARCHITECTURE = DOCS.parent / "ARCHITECTURE.md"


def generated() -> Iterator[tuple[Path, str]]:
    """Each generated file with the text that it should hold."""
    reference = DOCS / "reference"
    yield DOCS / "pictures" / "flow.svg", draw(DOCS / "pictures" / "flow.yaml")
    for recording in sorted((DOCS / "recordings").glob("*.ansi")):
        yield DOCS / "pictures" / f"{recording.stem}.svg", picture(recording)
    yield reference / "cli.md", cli_page()
    yield reference / "matrix-yaml.md", matrix_page()
    yield reference / "extension-yaml.md", extension_page()
    yield reference / "cases-py.md", cases_page()
    yield reference / "checks.md", checks_page()
    yield reference / "errors.md", errors_page()
    yield reference / "exit-codes.md", exit_codes_page()
    yield reference / "store.md", store_page()
    yield DOCS / "how-to" / "build-fails.md", build_fails_page()
    yield reference / "support-matrix.md", support_page()
    yield DOCS / "atlas" / "index.md", atlas_page()
    yield ARCHITECTURE, with_packages(ARCHITECTURE.read_text(encoding="utf-8"))


def main() -> None:
    """Write the files that differ."""
    for path, text in generated():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stderr.write(f"wrote {path.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
