"""Messages on stderr, secrets that reach no terminal, log or file, and JSON that others wrote."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

import builder
from builder import log
from builder.errors import Code, MissingToolError, UsageError, mask_credentials, mask_log
from builder.log import PlainConsole, Verbosity, print_error, print_line, print_warning
from builder.matrix.axes import Cell
from builder.proof import Check, Proof, Verdict, proofs_of
from builder.publish.index.pages import Entry
from builder.publish.runs.history import RUN
from builder.records import BuildRecord
from builder.untrusted import JsonError, parse_json, read_json, split_url, visible, visible_with_colours
from tests.unit.wheels.make_record import build_record

#: A title, a cursor movement, a colour, a backspace, an 8-bit control sequence, a change of direction.
HOSTILE = "\x1b]0;title\x07a\x1b[2Jb\x1b[31mc\bd\x9b31me\u202ef\r"
SHOWN = r"\x1b]0;title\x07a\x1b[2Jbc\x08d\x9b31me\u202ef\r"
ODD = r"std::vector<int>[0] of [red]x[/red] [bold] :warning: C:\path\ "


def test_text_is_printed_unchanged(output: io.StringIO) -> None:
    print_line(ODD)
    print_warning(ODD)
    print_error(UsageError(ODD, Code.VALUE_INVALID, where="[tool.x]", hints=[ODD]))
    assert output.getvalue().splitlines() == [
        ODD,
        f"warning: {ODD}",
        f"error[value-invalid]: [tool.x]: {ODD}",
        f"  hint: {ODD}",
    ]


@pytest.mark.parametrize(
    ("who", "about"), [((), ""), (("a-1.0",), "a-1.0: "), (("a-1.0", "b-1.0", "c-1.0"), "a-1.0 and 2 more: ")]
)
def test_an_error_names_the_stopped_builds_and_its_hints(who: tuple[str, ...], about: str, output: io.StringIO) -> None:
    print_error(
        MissingToolError("no nvcc", Code.TOOLKIT_MISSING, where="CUDA_HOME", hints=["set it", "install one"]), who=who
    )
    assert (
        output.getvalue() == f"error[toolkit-missing]: {about}CUDA_HOME: no nvcc\n  hint: set it\n  hint: install one\n"
    )


def test_each_code_is_that_of_an_error() -> None:
    package = Path(builder.__file__).parent
    code = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    assert [each.name for each in Code if f"Code.{each.name}" not in code] == []
    assert list(Code) == sorted(Code, key=str)
    assert all(each.name == each.replace("-", "_").upper() for each in Code)


def test_quiet_prints_warnings_and_errors_only(output: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "verbosity", Verbosity(quiet=True))
    print_line("hello")
    print_warning("careful")
    print_error(UsageError("wrong", Code.VALUE_INVALID))
    assert output.getvalue() == "warning: careful\nerror[value-invalid]: wrong\n"


def test_control_characters_become_visible() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("a\tb\né☃\U0001f600\udcff") == "a\tb\né☃\U0001f600\\udcff"
    assert visible_with_colours("\x1b[1mbold\x1b[0m\x1b[2J") == "\x1b[1mbold\x1b[0m\\x1b[2J"


def test_messages_are_plain(output: io.StringIO) -> None:
    print_line(HOSTILE)
    print_warning(HOSTILE)
    print_error(UsageError(HOSTILE, Code.VALUE_INVALID, where=HOSTILE, hints=[HOSTILE]))
    assert output.getvalue().count(r"\x1b[2Jb") == 5
    assert visible(output.getvalue()) == output.getvalue()


def test_tables_keep_their_own_colours() -> None:
    stream = io.StringIO()
    table = Table("[red]name[/]", style="green")
    table.add_row(HOSTILE)
    console = PlainConsole(file=stream, force_terminal=True, color_system="standard", width=200)
    console.print(table)
    assert "\x1b[32m" in stream.getvalue()
    assert r"\x1b]0;titlea\x1b[2Jb" in stream.getvalue()  # rich itself drops the bell
    assert "\x1b[2J" not in stream.getvalue()


@pytest.mark.parametrize("text", ["http://[x", "https://[::1/a.whl", "http://[x]y/"])
def test_a_text_that_is_no_url_has_no_host_and_no_path(text: str) -> None:
    assert (split_url(text).scheme, split_url(text).hostname, split_url(text).path) == ("", None, "")


SECRETS = {
    "password": ("git clone https://me:hunter2secret@host/x.git", "git clone https://***@host/x.git"),
    "user": ("https://hunter2secret@host/simple", "https://***@host/simple"),
    "password of git": ("ssh://git:hunter2secret@host/x", "ssh://***@host/x"),
    "user and host": ("ssh://git@hunter2secret@host/x", "ssh://***@host/x"),
    "query": ("https://host/x?a=1&private_token=hunter2secret&b=2", "https://host/x?a=1&private_token=***&b=2"),
    "signature": ("https://b/x.whl?X-Amz-Signature=hunter2secret", "https://b/x.whl?X-Amz-Signature=***"),
    "path": ("https://conda.host/t/hunter2secret/main/x", "https://conda.host/t/***/main/x"),
    "token path": ("see 'https://host/token/hunter2secret'.", "see 'https://host/token/***'."),
    "header": ("> Authorization: Basic hunter2secret==", "> Authorization: Basic ***"),
    "header in JSON": ('{"authorization": "Bearer hunter2secret"}', '{"authorization": "Bearer ***"}'),
    "GitHub": ("ghp_hunter2secrethunter2secret", "ghp_***"),
    "PyPI": ("pypi-hunter2secrethunter2secret", "pypi-***"),
}
HARMLESS = [
    "https://host/simple/t/x",
    "x @ https://github.com/me/x@main",
    "https://host/tokens?page=1",
    "// a comment",
    "ssh://git@host:22/x",
    "authorization of the user",
    "pypi-attestations==0.0.28",
]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_masked(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, shown = SECRETS[name]
    assert mask_credentials(text) == shown
    assert mask_credentials(shown) == shown
    error = UsageError(text, Code.VALUE_INVALID, where=text, hints=[text])
    assert (str(error), error.hints) == (f"{shown}: {shown}", (shown,))
    print_line(text)
    assert capsys.readouterr().err == f"{shown}\n"
    log = tmp_path / "log"
    log.write_bytes(f"{text}\nbefore\n".encode())
    start = log.stat().st_size
    with log.open("ab") as stream:
        stream.write(b"\xff " + text.encode() + b"\nafter\n")
        stream.flush()
        mask_log(log, start)
        stream.write(b"later\n")
    data = log.read_bytes()
    assert data[:start] == f"{text}\nbefore\n".encode()
    assert b"hunter2" not in data[start:]
    assert len(data) == start + len(text) + 2 + len(b"\nafter\nlater\n")
    assert data.endswith(b"\nafter\nlater\n")


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay(text: str) -> None:
    assert mask_credentials(text) == text


NO_JSON = {
    "empty": b"",
    "cut": b"[",
    "no UTF-8": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "one level too deep": b"[" * 201 + b"]" * 201,
    "digits": b"9" * 5000,
    "surrogate": b'"\\ud800"',
    "two values": b"[1] " * 20,
    "large": b"[" + b"1," * 2**19 + b"1]",
}


@pytest.mark.parametrize("data", NO_JSON.values(), ids=NO_JSON.keys())
def test_what_is_no_json_is_one_error(data: bytes) -> None:
    with pytest.raises(JsonError):
        parse_json(data, lambda plain: plain, limit=2**20)


def test_a_file_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(JsonError, match="larger than 1024 bytes"):
        read_json(tmp_path / "large.json", dict, limit=1024)


READERS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "build record": (build_record().to_json(), BuildRecord.from_json),
    "proofs": ([Proof("ab", Cell.parse("torch2.11.0-cu130-cp312"), Check.TAGS, Verdict.PASSED).to_json()], proofs_of),
    "entry": (
        Entry("ops-1.0-py3-none-any.whl", "files/ab/c/ops-1.0-py3-none-any.whl", "ab", 1, "2026", "", "cd").to_json(),
        Entry.from_json,
    ),
    "run": (
        {
            "id": "1",
            "started": "2026-01-01T00:00:00+00:00",
            "seconds": 1,
            "command": "buildfarm",
            "folder": "",
            "logs": {},
            "report": {"builds": [{"build": "a", "status": "built"}], "skips": []},
        },
        RUN.validate_python,
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_wrong_types_are_the_same_error(name: str) -> None:
    """Each value of the data in turn is replaced by values of other types: the data is read, or the error is raised."""
    data, parse = READERS[name]
    parse_json(json.dumps(data), parse)
    refused = 0
    for place in places(data):
        values: list[Any] = [None, 1, -1, 1e999, "x", "", [], {}, [[]], {"x": {}}, True]
        for value in values:
            try:
                parse_json(json.dumps(replaced(data, place, value)), parse)
            except JsonError:
                refused += 1
    assert refused


def places(data: Any) -> list[list[Any]]:
    """The keys on the way to each value."""
    found: list[list[Any]] = [[]]
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += [[key, *rest] for rest in places(value)]
    return found


def replaced(data: Any, place: list[Any], value: Any) -> Any:
    """A copy of the data with another value at this place."""
    if not place:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[place[0]] = replaced(data[place[0]], place[1:], value)
    return copy
