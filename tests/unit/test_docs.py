"""The documentation agrees with the code: generated pages, pictures, commands, links, the README's blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from builder.store import Store
from docs.generate import DOCS, README, generated
from docs.scripts.command_page import all_commands

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
