"""The judge imports no module of the wheel, and executes no code that a wheel adds to the start of Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import builder
from builder.gate.imports.packages import NeedsExtensionError, Stub, needs_extension

ROOT = Path(builder.__file__).parents[1]


def judge_python(site: Path, code: str) -> str:
    """Run code after the judge has prepared its imports; `site` holds the installed packages."""
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from builder.gate.imports.packages import *\n"
        f"import site; site.getsitepackages = lambda *_: [{str(site)!r}]\n"
        f"add_packages()\nWithoutExtension(['ops', 'shared.ops'], files_of('ops')).install()\n{code}\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Packages: the wheel `ops` with a hook, a `numpy` and a part of the folder `shared`; and `other`."""
    hostile = "import os\nos.write(1, b'executed')\n"
    files = {
        "ops/__init__.py": hostile,
        "ops.pth": "import ops\n",
        "other.start": "ops:main\n",
        "sitecustomize.py": hostile,
        "numpy.py": hostile,
        "shared/ops.py": hostile,
        "deep/hidden.py": hostile,
        "paths.pth": "shared/../deep\n",
    }
    info = {"ops-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n"}
    record = "".join(f"{name},,\n" for name in [*files, *info, "ops-1.0.dist-info/RECORD"])
    more = {"ops-1.0.dist-info/RECORD": record, "other.py": "good = 1\n", "shared/other.py": "good = 1\n"}
    more |= {"deeper/found.py": "", "more.pth": "# a comment\ndeeper\nimport ops\n/nonexistent\n"}
    for name, text in {**files, **info, **more}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


MISSING = "try: import {}\nexcept ModuleNotFoundError as error: print(error.name)"
STUBS = "import ops, ops.more.still, shared.ops; from ops.sub import scatter; print(type(scatter).__name__)"


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        pytest.param("import other, shared.other; print(other.good, shared.other.good)", "1 1", id="other packages"),
        pytest.param(STUBS, "Stub", id="modules of the wheel are stubs"),
        pytest.param(MISSING.format("numpy"), "numpy", id="another package in the wheel is not found"),
        pytest.param(MISSING.format("hidden"), "hidden", id="a file of the wheel is known by every path"),
        pytest.param("import found; print('found')", "found", id="a .pth file adds folders only"),
    ],
)
def test_what_the_judge_imports(site: Path, code: str, printed: str) -> None:
    assert judge_python(site, code) == printed


def test_the_use_of_a_stub_says_that_the_case_needs_the_extension() -> None:
    stub = Stub("ops.scatter")
    for use in (lambda: stub(1), lambda: stub.other, lambda: [*stub], lambda: bool(stub), lambda: stub + 1):
        with pytest.raises(NeedsExtensionError) as raised:
            use()
        outer = RuntimeError("the reference raises")
        outer.__cause__ = raised.value
        assert needs_extension(outer)
    assert not needs_extension(RuntimeError("no"))
