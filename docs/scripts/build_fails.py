"""The page about failed builds, with the tables of builder/diagnosis/known_errors.yaml."""

from __future__ import annotations

from pathlib import Path

from builder.diagnosis.known_errors import KnownError, Package, knowledge
from docs.scripts.markdown import code, page, sentence, table

_TEXT = Path(__file__).with_name("build_fails.md")


def build_fails_page() -> str:
    """The page of the how-tos."""
    packages = [package for package in knowledge().packages if package.debian]
    return page(
        "A build fails",
        _TEXT.read_text(encoding="utf-8"),
        "## Names and headers that torch removed",
        table(["error about", "torch", "what to do", "source"], _rows("removed_from_torch")),
        "## A missing `#include`",
        "These names exist, but no header that the file includes declares them.",
        table(["error about", "what to do", "source"], _rows("missing_include", release=False)),
        "## Names and headers that CUDA removed",
        table(["error about", "CUDA", "what to do", "source"], _rows("removed_from_cuda")),
        "## Compilers and their options",
        table(["error about", "what to do", "source"], _rows("compilers", release=False)),
        "## What a source expects of its build",
        table(["error about", "what to do", "source"], _rows("sources", release=False)),
        "## What other programs print",
        "buildfarm looks for these failures in the output of every program that it starts.",
        table(
            ["failure", "cause", "what to do", "example", "source"],
            [
                [error.about, error.cause, sentence(error.hint), code(error.example.replace("`", "'")), error.source]
                for error in knowledge().errors
                if error.section in ("outputs", "imports")
            ],
        ),
        "## Missing headers, libraries and CMake packages",
        "A build in a container needs the package in its image: [use your own base images](base-images.md). A build on "
        "this machine needs it here. The column Debian holds for Ubuntu too, the column dnf for Fedora, and for Rocky "
        "Linux and AlmaLinux with EPEL.",
        table(["header", "library", "CMake", "Debian", "dnf"], map(_package_row, packages)),
        "Python modules and programs that are missing belong in `build_requires` of the recipe. If the requirement has "
        f"another name than the module, the hint says so: {_modules()}.",
    )


def _rows(section: str, *, release: bool = True) -> list[list[str]]:
    return [_row(error, release=release) for error in knowledge().errors if error.section == section]


def _row(error: KnownError, *, release: bool) -> list[str]:
    since = error.torch.series if error.torch else str(error.cuda or "")
    hint = sentence(error.hint.format_map(_AsWritten()))
    return [error.about, *([since] if release else ()), f"{hint} *(cured)*" if error.cure else hint, error.source]


class _AsWritten(dict[str, str]):
    """Names in braces as words: `{name}` is the name in the error."""

    def __missing__(self, key: str) -> str:
        return {"torch": "X", "cuda": "X", "standard": "17", "gcc": "N"}.get(key, key.upper())


def _package_row(package: Package) -> list[str]:
    header = package.headers.split("|")[0].replace("(?:", "").replace(")?", "").replace("\\", "").replace(".*", "…")
    return [code(header), code(package.library), code(package.cmake), code(package.debian), code(package.dnf)]


def _modules() -> str:
    return ", ".join(
        f"`{module}` is in `{name}`" for module, name in sorted(knowledge().modules.items()) if module != name
    )
