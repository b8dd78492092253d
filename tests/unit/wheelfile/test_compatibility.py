"""Which Pythons and machines a wheel's tags admit."""

from __future__ import annotations

import pytest

from builder.errors import Code
from builder.matrix.axes import Python
from builder.wheelfile.compatibility import check_wheel_name, is_compatible
from tests.refused import refused


@pytest.mark.parametrize(
    ("name", "python", "expected"),
    [
        ("ops-1.0-py3-none-any.whl", "3.12", True),
        ("ops-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", "3.12", True),
        ("ops-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", "3.13", False),
        ("ops-1.0-cp310-abi3-manylinux_2_17_x86_64.whl", "3.13", True),
        ("ops-1.0-cp313-abi3-manylinux_2_17_x86_64.whl", "3.12", False),
        ("ops-1.0-cp313-cp313t-manylinux_2_17_x86_64.whl", "3.13t", True),
        ("ops-1.0-cp313-cp313-manylinux_2_17_x86_64.whl", "3.13t", False),
        ("ops-1.0-cp312-cp312-win_amd64.whl", "3.12", False),
        ("ops-1.0-py3-none-manylinux_2_17_x86_64.whl", "3.12", True),
        ("ops-1.0-py3-none-manylinux_2_99_x86_64.whl", "3.12", False),
        ("ops-1.0-py39-none-manylinux_2_17_x86_64.whl", "3.12", True),
        ("ops-1.0-py313-none-manylinux_2_17_x86_64.whl", "3.12", False),
        ("ops-1.0.tar.gz", "3.12", False),
    ],
)
def test_compatible_with_a_python_by_tags(name: str, python: str, expected: bool) -> None:
    assert is_compatible(name, Python.parse(python)) is expected


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("cp312-cp312-manylinux_2_99_x86_64", True),
        ("cp312-cp312-linux_x86_64", True),
        ("cp313-cp313-manylinux_2_99_x86_64", False),
        ("cp312-cp312-manylinux_2_99_s390x", False),
        ("cp312-cp312-win_amd64", False),
        ("cp312-cp312-macosx_11_0_x86_64", False),
        ("cp312-cp312-musllinux_1_2_x86_64", False),
        ("py3-none-manylinux_2_99_x86_64", True),
        ("py3-none-any", True),
    ],
)
def test_any_glibc_ignores_this_machines_glibc(tags: str, expected: bool) -> None:
    assert is_compatible(f"ops-1.0-{tags}.whl", Python(3, 12), any_glibc=True) is expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ops-1.0-py3-none-any-cu130.whl", "this is a wheel variant (cu130), which buildfarm does not support"),
        ("ops-1.0-2-cp312-cp312-linux_x86_64-x8664v3.whl", "this is a wheel variant (x8664v3)"),
        ("ops-1.0-x-py3-none-any-cu130.whl", "this is not the file name of a wheel"),
        ("ops-1.0.whl", "this is not the file name of a wheel"),
        ("ops-1.0.tar.gz", "this is not the file name of a wheel"),
    ],
)
def test_the_name_of_no_wheel_is_refused(name: str, sentence: str) -> None:
    with refused(Code.WHEEL_MISLABELLED, sentence, name):
        check_wheel_name(name)
    check_wheel_name("ops-1.0-2-py3-none-any.whl")
