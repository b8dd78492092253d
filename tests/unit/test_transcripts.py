"""What the commands print, compared with the files that `python -m tests.unit.transcripts` writes."""

import pytest

from tests.unit.transcripts import FOLDER, Call, calls_of, renewed, run

CALLS = [
    pytest.param(call, id=f"{file.stem}-{number}")
    for file in sorted(FOLDER.glob("*.txt"))
    for number, call in enumerate(calls_of(file.read_text()))
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("call", CALLS)
def test_a_command_prints_what_its_transcript_says(call: Call) -> None:
    assert str(run(call)) == str(call), "if the new text is right, run `python -m tests.unit.transcripts`"


def test_every_line_of_a_transcript_belongs_to_a_call() -> None:
    assert CALLS
    for file in FOLDER.glob("*.txt"):
        text = file.read_text()
        assert "\n".join(map(str, calls_of(text))) == text, file.name


def test_a_changed_text_is_found_and_renewed() -> None:
    text = "$ buildfarm --version\nbuildfarm 0\n[0]\n"
    (call,) = calls_of(text)
    assert str(run(call)) != text
    assert renewed(text) == str(run(call))
