"""What the commands print that build, test and publish, compared with `tests/real/transcripts`."""

from pathlib import Path

import pytest

from tests.real.transcripts import FOLDER, played


@pytest.mark.usefixtures("headers")
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_commands_print_what_their_transcript_says(file: Path) -> None:
    text = file.read_text()
    assert played(text) == text, "if the new text is right, run `python -m tests.real.transcripts`"
