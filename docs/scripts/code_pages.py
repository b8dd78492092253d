"""Pages made of docstrings and tables of the code: cases.py, checks, errors, exit codes, the store."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import builder
from builder.proof import Check
from docs.scripts.markdown import code, one_line, page, sentence, table

_CASES_TEXT = Path(__file__).with_name("cases.md")
_STORE_TEXT = Path(__file__).with_name("store.md")

_FILE = "These checks read only the wheel file. They execute nothing in it and run on every machine."
_CELL = "These checks run in each cell, in a clean environment with the wheel and the torch of the cell."
_GPU = 'On a machine without a GPU, these checks are "not run".'


def cases_page() -> str:
    """What a recipe's cases.py may contain, from builder/gate/case.py."""
    path = Path(builder.__file__).parent / "gate" / "case.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    case, make = classes["Case"], classes["Make"]
    meanings = dict(attributes(ast.get_docstring(case) or ""))
    fields = [
        [code(name), sentence(meanings[name]), default or "required"]
        for name, default in _defaults(case)
        if name in meanings
    ]
    methods = [
        [code(f"make.{node.name}({_signature(node)})"), sentence((ast.get_docstring(node) or "").split("\n\n")[0])]
        for node in make.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    return page(
        "cases.py",
        _CASES_TEXT.read_text(encoding="utf-8"),
        "## Case",
        sentence((ast.get_docstring(case) or "").split("\n\n")[0]),
        table(["field", "meaning", "default"], fields),
        "## Make",
        one_line((ast.get_docstring(make) or "").replace("\n\n", " ")),
        table(["method", "result"], methods),
        "`make.device` and `make.dtype` are the device and the dtype under test.",
        "## Tolerances",
        "A case without `tolerances` uses these. Integers and booleans must be equal.",
        table(["dtype", "rtol", "atol"], _tolerances(tree)),
    )


def attributes(docstring: str) -> Iterator[tuple[str, str]]:
    """Each name and its text from the section `Attributes:`."""
    section = docstring.partition("Attributes:\n")[2]
    for part in re.split(r"\n(?=    \w[\w, ]*: )", "\n" + section):
        name, colon, text = part.strip().partition(": ")
        if colon:
            yield name, text


def _defaults(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = ast.unparse(statement.value) if statement.value else ""
            yield statement.target.id, code({"field(default_factory=dict)": "{}"}.get(text, text))


def _signature(node: ast.FunctionDef) -> str:
    return re.sub(r"^self(, )?", "", ast.unparse(node.args))


def _tolerances(tree: ast.Module) -> Iterator[list[str]]:
    """A row for each dtype of the mapping TOLERANCES."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == "TOLERANCES":
            for key, value in re.findall(r"(torch\.\w+): \(([^)]+)\)", ast.unparse(node.value)):
                yield [code(key), *(f"{float(part):g}" for part in value.split(","))]


def checks_page() -> str:
    """Every check and what it means if it passed."""
    on_file = [c for c in Check if list(Check).index(c) < list(Check).index(Check.IMPORT) and c is not Check.LINKAGE]
    on_gpu = [check for check in Check if check.on_gpu]
    in_cell = [check for check in Check if check not in on_file and check not in on_gpu]
    heads = ["check", "passed means"]
    return page(
        "Checks",
        "The verdict of a check is **passed**, **failed**, **not run** or **accepted**. [What each proof "
        "means](../explanation/proofs.md) explains the verdicts and the limits of the checks.",
        "## Of the wheel file",
        _FILE,
        table(heads, [[code(check.value), check.meaning] for check in on_file]),
        "`abi3` runs for wheels of the classes `abi3` and `stable`, and for each other wheel with an abi3 tag. "
        "`stable-abi` runs for wheels of the class `stable`.",
        "## In each cell",
        _CELL,
        table(heads, [[code(check.value), check.meaning] for check in in_cell]),
        "## In each cell, on a GPU",
        _GPU,
        table(heads, [[code(check.value), check.meaning] for check in on_gpu]),
    )


def _commented() -> Iterator[tuple[str, str, str]]:
    """The constants of builder/errors.py below a comment: name, value, and the text of the comment."""
    text = (Path(builder.__file__).parent / "errors.py").read_text(encoding="utf-8")
    for comment, name, value in re.findall(r"((?:^    #: .+\n)+)    ([A-Z_]+) = (\S+)$", text, re.MULTILINE):
        yield name, value, " ".join(line.strip(" #:") for line in comment.splitlines())


def exit_codes_page() -> str:
    """The exit codes and their meanings."""
    rows = [
        [code(value), name.lower().replace("_", " "), meaning]
        for name, value, meaning in _commented()
        if value.isdecimal()
    ]
    return page(
        "Exit codes",
        "Scripts may rely on these numbers. If several builds fail, the exit code is the largest of their codes.",
        table(["code", "name", "meaning"], rows),
        "[Errors](errors.md) have a code too, which says what is wrong.",
        "The exit code does not show which checks ran. A script that requires a check, such as `gpu-values`, must read "
        "its verdict from `dist/report.json` or from the output of `smoke --json`. `smoke` exits with 0 for a wheel "
        "without a recipe if the wheel imports, although no op was called. It exits with 1 if a case names an op that "
        "does not exist.",
    )


def errors_page() -> str:
    """The codes of errors and their meanings, from the comments of `Code`."""
    rows = [[code(value.strip('"')), meaning] for _, value, meaning in _commented() if '"' in value]
    return page(
        "Errors",
        "An error is one sentence on stderr, after its code in brackets. The sentence names the file, key or package "
        "that the error is about. Lines that start with `hint:` say what to do next.",
        "```text\nerror[package-missing]: https://git.example/ops.git: git is not on PATH\n  hint: install git\n```",
        "Scripts may rely on the codes, and not on the sentences. With `--json`, an error that stops the command is "
        'also on stdout, as `{"errors": [{"code", "error", "where", "hints"}]}`. `report.json` has the code of each '
        "failed build. A traceback means an error in buildfarm itself.",
        table(["code", "meaning"], rows),
        "## Former codes",
        Path(__file__).with_name("former_codes.md").read_text(encoding="utf-8"),
        "[Exit codes](exit-codes.md) are for scripts that only need to know whether a command succeeded. [When a build "
        "fails](../how-to/build-fails.md) lists the messages of other programs that buildfarm recognizes.",
    )


def store_page() -> str:
    """The files of the store; tests/unit/test_docs.py compares the folders with those that a store makes."""
    return page("Files of the store", _STORE_TEXT.read_text(encoding="utf-8"))
