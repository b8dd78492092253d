"""The text of a project's YAML files: a drafted recipe, a new matrix.yaml, and items added to a file of the user.

The rest of a file that items are added to stays as it is, with its comments.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from builder.errors import Code, UsageError
from builder.matrix.config import Matrix
from builder.matrix.yaml_document import parse_document, read_document
from builder.store import write_atomic

_WIDTH = 118
_NEW = """\
# The versions that buildfarm builds for, and the extensions that it builds. Combinations that do not exist are skipped.
torch: [{torch}]
cuda: [{cuda}]
python: [{python}]

# GPU architectures to compile for, such as [8.0, 9.0, 12.0+PTX]. Without this key, each build takes the architectures
# of torch's own wheel. Fewer architectures compile faster.
{archs}

# Folders with an extension.yaml, relative to this file.
extensions:
  - {extension}
"""


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


def axes_text(matrix: Matrix) -> str:
    """The versions of a new matrix, and its GPU architectures: `torch 2.11.0, CUDA 13.0, Python 3.12`."""
    archs = f", archs {_joined(matrix.archs)}" if matrix.archs else ""
    return f"torch {_joined(matrix.torch)}, CUDA {_joined(matrix.cuda)}, Python {_joined(matrix.python)}{archs}"


def create_matrix(path: Path, extension: str, axes: Matrix) -> None:
    """Write a new matrix.yaml with these versions and one extension; without architectures, it has no key `archs`."""
    text = _NEW.format(
        torch=_joined(axes.torch),
        cuda=_joined(axes.cuda),
        python=_joined(axes.python),
        archs=f"archs: [{_joined(axes.archs)}]" if axes.archs else "# archs: [9.0]",
        extension=scalar(extension),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())


def add_extension(path: Path, extension: str) -> None:
    """Add a folder to `extensions` of an existing matrix.yaml, unless it is there already.

    Raises UsageError if the file is not valid, or if its `extensions` has a form that cannot be extended.
    """
    if extension not in (read_document(path).data.get("extensions") or []):
        write_atomic(path, extended(path.read_text(encoding="utf-8"), path, "extensions", extension).encode())


def extended(text: str, path: Path, key: str, value: str, name: str = "", comment: str = "") -> str:
    """The text of the file `path` as `with_item` makes it; raises UsageError if the file then says something else."""
    old = parse_document(text, path).data
    values: object = {**(old.get(key) or {}), name: value} if name else [*(old.get(key) or ()), value]
    new = with_item(text, key, value, name, comment)
    if parse_document(new, path).data != {**old, key: values}:
        sentence = f"`{key}` has a form that buildfarm cannot extend"
        hint = f"add this line under `{key}`: {f'{name}: {value}' if name else f'- {value}'}"
        raise UsageError(sentence, Code.KEY_INVALID, where=str(path), hints=[hint])
    return new


def with_item(text: str, key: str, value: str, name: str = "", comment: str = "") -> str:
    """The text of a file with one more item in the list `key`; with a `name`, in the mapping `key`.

    A new key comes at the end, below the comment, or an empty line. Not every form can be extended: see `extended`.
    """
    item = f"{scalar(name)}: {scalar(value)}" if name else f"- {scalar(value)}"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    node = next((inner for outer, inner in pairs if outer.value == key), None)
    if node is None:
        return text.rstrip("\n") + f"\n{comment}\n{key}:\n  {item}\n"
    if isinstance(node, yaml.ScalarNode):  # the key without a value
        return _with_line(text, node.start_mark.index, f"  {item}")
    if node.flow_style:
        end = node.end_mark.index - 1
        head = text[:end].rstrip()
        comma = "" if not node.value or head.endswith(",") else ","
        return f"{head}{comma}{'' if head[-1] in '[{' else ' '}{item.removeprefix('- ')}{text[len(head) :]}"
    last = node.value[-1][1] if name else node.value[-1]
    end = last.end_mark.index if isinstance(last, yaml.ScalarNode) else last.start_mark.index
    return _with_line(text, end, " " * node.start_mark.column + item)


def scalar(value: object) -> str:
    """A value as YAML has it, on one line. Quotes are added only where YAML needs them."""
    dumped: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ") if text else []


def _with_line(text: str, after: int, line: str) -> str:
    """The text with a line below the one that has this index."""
    end = text.find("\n", after)
    end = len(text) if end < 0 else end
    return f"{text[:end]}\n{line}{text[end:] or chr(10)}"


def _joined(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
