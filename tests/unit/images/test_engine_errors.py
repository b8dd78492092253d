"""Why an image was not built: from real output of buildx to an error and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Exit
from builder.images.engine_errors import image_build_error

RETRY = (
    "#5 13.7 WARNING: Retrying (Retry(total={left}, connect=None, read=None, redirect=None, status=None)) after"
    " connection broken by 'NewConnectionError('<pip object at 0x7f>: Failed to establish a new connection:"
    " [Errno 111] Connection refused')': /simple/uv/"
)
PIP = "#5 21.38 ERROR: No matching distribution found for uv==9"
BUILDKIT = "#5 ERROR: executor failed running [/bin/sh -c pip install uv==9]: exit code: 1"
SUMMARY = "ERROR: failed to solve: executor failed running [/bin/sh -c pip install uv==9]: exit code: 1"


@pytest.mark.parametrize(
    ("lines", "code", "sentence"),
    [
        (
            [PIP, BUILDKIT, SUMMARY],
            Exit.FAILED,
            "the image could not be built: No matching distribution found for uv==",
        ),
        ([BUILDKIT, SUMMARY], Exit.FAILED, "the image could not be built: failed to solve: executor failed running"),
        (
            ["#5 0.3 error: the base has gcc 14, and this build takes 9 to 12", BUILDKIT],
            Exit.FAILED,
            "the base has gcc",
        ),
        ([RETRY.format(left=4), PIP, SUMMARY], Exit.FAILED, "No matching distribution"),
        (
            [RETRY.format(left=1), RETRY.format(left=0), PIP, SUMMARY],
            Exit.TOOL_MISSING,
            "because the network cannot be reached: Failed to establish a new connection (/simple/uv/)",
        ),
        (
            ["#7 2.1 W: Failed to fetch http://deb/x  Temporary failure resolving 'deb'", "#7 2.2 E: Unable to locate"],
            Exit.TOOL_MISSING,
            "because the network cannot be reached: Failed to fetch http://deb/x  Temporary failure resolving 'deb'",
        ),
        (
            ["#7 9.1  - Curl error (6): Couldn't resolve host name for https://rocky/repodata"],
            Exit.TOOL_MISSING,
            "because the network cannot be reached: Curl error (6)",
        ),
        (
            [
                "#7 1.9  - Curl error (60): SSL peer certificate or SSH remote key was not OK for https://rocky/x",
                "#7 1.9 Error: Failed to download metadata for repo 'appstream': All mirrors were tried",
            ],
            Exit.TOOL_MISSING,
            "because a server's certificate is not trusted: Curl error (60): SSL peer certificate",
        ),
        (
            [
                "#9 1.0 error: Failed to fetch: `http://i/uv/`",
                "#9 1.0   cause: error sending request for url (http://i)",
            ],
            Exit.TOOL_MISSING,
            "because the network cannot be reached: cause: error sending request",
        ),
        (["#8 1.1 cp: error writing '/x': No space left on device"], Exit.FAILED, "the disk of the Docker engine is"),
    ],
)
def test_the_error_for_an_output_of_buildx(lines: list[str], code: Exit, sentence: str) -> None:
    error = image_build_error(lines, tag="buildfarm/build:abc", log=Path("/logs/build"))
    assert error.exit_code == code
    assert sentence in error.sentence
    assert error.where == "buildfarm/build:abc"
    assert "the full output is in /logs/build" in error.hints
