"""Names that many projects use: top-level modules, and namespaces of ops."""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name

#: Names that many projects give their C++ module or the folder of their ops, as their examples do.
_NATIVE = (
    r"_?C(?:_(?:ops|cpu|cuda|gpu|ext))?|_?(?:c(?:pp|uda)_)?(?:ext|extensions?|ops|kernels?)(?:_(?:cpp|cuda))?"
    r"|_?custom_ops?|_?my_?(?:ops?|ext(?:ension)?)"
)
#: Folders of a source.
_FOLDERS = r"tests?|testing|benchmarks?|csrc|src|examples?|docs?|tools|scripts|build|utils"
_MODULE = re.compile(f"{_FOLDERS}|{_NATIVE}")
_FILE = re.compile(rf"(?:{_FOLDERS}|{_NATIVE}|conftest|setup)\.(?:py|(?:.+\.)?so)")
_NAMESPACE = re.compile(rf"(?:_?tests?|examples?|utils?|cpp|cuda|native|TORCH_EXTENSION_NAME|{_NATIVE})")


def is_common_module(top: str, project: str) -> bool:
    """Whether a file or a folder at the top of site-packages has a name that other projects install too."""
    stem = top.partition(".")[0]
    pattern = _FILE if "." in top else _MODULE
    return pattern.fullmatch(top) is not None and not _same(stem, project)


def is_common_namespace(namespace: str, project: str) -> bool:
    """Whether other projects register ops in a namespace of this name."""
    return _NAMESPACE.fullmatch(namespace) is not None and not _same(namespace, project)


def _same(name: str, project: str) -> bool:
    return canonicalize_name(name).strip("-") == canonicalize_name(project)
