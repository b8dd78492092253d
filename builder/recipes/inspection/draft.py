"""A recipe before it is written: its keys, what the inspection of the source found, and the text of the file."""

import re
import textwrap
from dataclasses import dataclass, field

from builder.recipes.matrix_file import scalar

_WIDTH = 118


@dataclass(frozen=True)
class SourceFinding:
    """One fact about a source."""

    found: str  # what the source does
    consequence: str  # what follows for the recipe or the build
    question: bool = False  # whether the user has to decide something


@dataclass
class Draft:
    """A recipe before it is written."""

    #: The keys of extension.yaml as plain data, in the order of the file, each with the reason for it or "".
    keys: dict[str, tuple[object, str]] = field(default_factory=dict)
    findings: list[SourceFinding] = field(default_factory=list)  # what was found, in the order in which it is printed
    #: Which of name and version the files of the source do not state; only the build backend knows them.
    unknown: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the extension: that of the wheel without patterns such as `{cuda}`."""
        return re.sub(r"_*\{\w+\}", "", str(self.keys["name"][0]))

    @property
    def python(self) -> str:
        """The Pythons that the source supports, such as `>=3.10`; empty if the source does not say."""
        return str(self.keys.get("python", ("", ""))[0])

    def add(self, key: str, value: object, found: str, consequence: str) -> None:
        """Add a key and the finding that leads to it."""
        self.keys[key] = (value, f"{found}: {consequence}")
        self.note(found, consequence)

    def note(self, found: str, consequence: str) -> None:
        """Add a finding that changes no key."""
        self.findings.append(SourceFinding(found, consequence))

    def ask(self, found: str, question: str) -> None:
        """Add a question that only the user can answer."""
        self.findings.append(SourceFinding(found, question, question=True))

    def text(self, command: str) -> str:
        """The file extension.yaml, as `command` writes it, with a comment for each key that the inspection decided."""
        lines = _comment(
            f"Written by `{command}` from an inspection of the source. Change what is wrong:"
            " `build` only adds cures at its end. All keys: docs/reference/extension-yaml.md in the repository of"
            " buildfarm"
        )
        for key, (value, comment) in self.keys.items():
            lines += _comment(comment)
            if isinstance(value, dict) and key == "source":
                lines += [f"{key}:", *(f"  {inner}: {scalar(one)}" for inner, one in value.items())]
            else:
                lines.append(f"{key}: {scalar(value)}")
        for each in self.findings:
            lines += _comment(f"QUESTION: {each.found}: {each.consequence}") if each.question else []
        return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ") if text else []
