"""What the inspection of a source found, and the recipe that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SourceFinding:
    """One fact about a source."""

    #: What the source does.
    found: str
    #: What follows for the recipe or the build.
    consequence: str
    #: Whether the user has to decide something.
    question: bool = False


@dataclass(frozen=True)
class RecipeEntry:
    """One key of extension.yaml: its value as plain data, and the reason for it."""

    key: str
    value: object
    comment: str = ""


@dataclass
class Draft:
    """A recipe before it is written."""

    #: Of the extension.
    name: str
    #: Of the wheel.
    version: str
    #: Which of name and version the files of the source do not state; only the build backend knows them.
    unknown: tuple[str, ...] = ()
    #: The keys, in the order of the file.
    entries: list[RecipeEntry] = field(default_factory=list)
    #: What was found, in the order in which it is printed.
    findings: list[SourceFinding] = field(default_factory=list)

    def add(self, key: str, value: object, found: str, consequence: str) -> None:
        """Add a key and the finding that leads to it."""
        self.entries.append(RecipeEntry(key, value, f"{found}: {consequence}"))
        self.findings.append(SourceFinding(found, consequence))

    def note(self, found: str, consequence: str) -> None:
        """Add a finding that changes no key."""
        self.findings.append(SourceFinding(found, consequence))

    def ask(self, found: str, question: str) -> None:
        """Add a question that only the user can answer."""
        self.findings.append(SourceFinding(found, question, question=True))

    @property
    def python(self) -> str:
        """The Pythons that the source supports, such as `>=3.10`; empty if the source does not say."""
        return next((str(entry.value) for entry in self.entries if entry.key == "python"), "")

    @property
    def questions(self) -> list[str]:
        """The questions for the file, each with the line to write."""
        return [f"{each.found}: {each.consequence}" for each in self.findings if each.question]
