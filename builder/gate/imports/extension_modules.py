"""Extension modules: the names of their files, and the functions that `import` calls in them.

Sources: `importlib.machinery.EXTENSION_SUFFIXES` of CPython 3.10 to 3.15.2, PEP 489 (names that are not ASCII), PEP 793
(PyModExport), PEP 803 (abi3t).
"""

from __future__ import annotations

import re

#: The name of a file that the `import` of some CPython on Linux finds.
MODULE_FILE = re.compile(
    r"(?P<module>[^\W\d]\w*)(?P<suffix>(?:\.(?:(?P<abi>abi3t?)|cpython-(?P<version>\d+t?))(?:-(?P<triplet>[\w-]+))?)?\.so)"
)
#: A function that `import` calls.
ENTRY_POINT = re.compile(r"Py(?:Init|ModExport)U?_(?P<module>\w+)")


def entry_points(module: str) -> tuple[str, str]:
    """The functions that `import` of a module looks for, without packages; Python before 3.15 knows only the first."""
    unicode, name = ("", module) if module.isascii() else ("U", module.encode("punycode").decode().replace("-", "_"))
    return f"PyInit{unicode}_{name}", f"PyModExport{unicode}_{name}"
