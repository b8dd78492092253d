"""The names of axes and cells: parsing, printing, sorting and errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.matrix.axes import Arch, Cell, Cuda, Platform, Python, Torch

torches = st.builds(Torch, st.integers(1, 9), st.integers(0, 99), st.integers(0, 99))
cudas = st.builds(Cuda, st.integers(1, 99), st.integers(0, 9))
pythons = st.builds(Python, st.just(3), st.integers(6, 99), st.booleans())
archs = st.builds(Arch, st.integers(1, 99), st.integers(0, 9), st.sampled_from(["", "a", "f"]), st.booleans())
cells = st.builds(Cell, torches, cudas, pythons, st.sampled_from(Platform))


@given(st.one_of(torches, cudas, pythons, archs, cells))
def test_names_round_trip(value: Torch | Cuda | Python | Arch | Cell) -> None:
    assert type(value).parse(str(value)) == value


@given(cudas, pythons)
def test_tags_are_parsed(cuda: Cuda, python: Python) -> None:
    assert Cuda.parse(cuda.variant) == cuda
    assert Python.parse(python.tag) == python


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        pytest.param(Torch.parse, "2.11", "'2.11' is not a torch release; write it like 2.11.0", id="torch"),
        pytest.param(Cuda.parse, "13", "'13' is not a CUDA version; write it like 13.0 or cu130", id="cuda"),
        pytest.param(Python.parse, "py3", "'py3' is not a Python version; write it like 3.12 or cp312", id="python"),
        pytest.param(Arch.parse, "sm_90", "'sm_90' is not a GPU architecture; write it like 9.0 or 9.0+PTX", id="arch"),
        pytest.param(Cell.parse, "x", "'x' is not a cell; write it like torch2.11.0-cu130-cp312", id="cell"),
        pytest.param(
            Cell.parse,
            "torch2.11.0-cu130-cp312-win",
            "'win' is not a platform; the platforms are linux_x86_64, linux_aarch64",
            id="platform",
        ),
    ],
)
def test_an_unreadable_name_is_an_error(parse: Callable[[str], object], text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.sentence == sentence


def test_versions_sort_as_numbers() -> None:
    assert sorted(map(Torch.parse, ["2.10.0", "2.9.1", "2.9.0"])) == [Torch(2, 9, 0), Torch(2, 9, 1), Torch(2, 10, 0)]
    assert Python.parse("3.9") < Python.parse("3.10") < Python.parse("3.10t")
    assert Arch.parse("9.0a").sm == "sm_90a"
    assert Arch.parse("12.0+PTX").number == 120


@pytest.mark.parametrize("parse", [Torch.parse, Cuda.parse, Python.parse, Arch.parse])
@pytest.mark.parametrize("form", ["{}", "3.{}", "2.11.{}", "cu{}0", "cp3{}", "{}.0"])
def test_a_number_with_more_digits_than_python_converts(parse: Callable[[str], object], form: str) -> None:
    with pytest.raises(UsageError, match=r"9999…' is not a .*; write it like") as refused:
        parse(form.format("9" * 5000))
    assert len(str(refused.value)) < 150
