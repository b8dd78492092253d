"""The folder of one name for all machines, and the flags that hide the folders of one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from builder.store import Store
from builder.wheels import build_dir
from builder.wheels.build_dir import clear_abandoned, fixed_folder, folder_of
from builder.wheels.variables import prefix_map_flags
from tests.conftest import PATIENCE


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setattr(build_dir, "ROOT", folder)
    return folder


def test_the_name_alone_decides_the_path_and_nothing_is_left(root: Path, tmp_path: Path) -> None:
    for otherwise in ("one", "two"):
        with fixed_folder("ops-1.0", tmp_path / otherwise) as folder:
            assert folder == folder_of("ops-1.0")
            assert folder.parent == root
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "src").mkdir()
    assert list(root.iterdir()) == []


def test_what_a_killed_farm_left_is_cleared(tmp_path: Path) -> None:
    left = folder_of("ops")
    (left / "src").mkdir(parents=True, mode=0o700)
    left.chmod(0o700)
    (left / "src" / "stale.o").touch()
    (left / "link").symlink_to(tmp_path)
    with fixed_folder("ops", tmp_path / "otherwise") as folder:
        assert list(folder.iterdir()) == []
    assert tmp_path.is_dir()


def test_two_farms_take_turns(tmp_path: Path) -> None:
    waits, order, holders = threading.Event(), [], []

    def on_wait(who: str) -> None:
        holders.append(who)
        waits.set()

    def second() -> None:
        with fixed_folder("ops", tmp_path / "b", on_wait) as folder:
            order.append("second")
            assert list(folder.iterdir()) == []

    with fixed_folder("ops", tmp_path / "a") as folder:
        (folder / "src").touch()
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(PATIENCE)
        waits.clear()
        with fixed_folder("another", tmp_path / "c", on_wait):  # who makes something else does not wait
            pass
        assert not waits.is_set()
        order.append("first")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert order == ["first", "second"]
    shown = f"process {os.getpid()} in {Path.cwd()}, which compiles in the same folder, {folder_of('ops')}"
    assert holders == [shown]


@pytest.mark.parametrize("case", ["writable by others", "a link", "no folder", "no room"])
def test_a_folder_that_is_not_ours_alone_is_not_used(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = folder_of("ops")
    if case == "writable by others":
        there.mkdir()
        there.chmod(0o777)
    elif case == "a link":
        (tmp_path / "elsewhere").mkdir()
        there.symlink_to(tmp_path / "elsewhere")
    elif case == "no folder":
        there.touch()
    else:
        monkeypatch.setattr(build_dir, "WORK_BYTES", 2**62)
    with fixed_folder("ops", tmp_path / "otherwise") as folder:
        assert folder == tmp_path / "otherwise"
        assert folder.is_dir()


def test_only_what_nobody_holds_is_abandoned(root: Path, tmp_path: Path) -> None:
    left, others = root / "buildfarm.build.left", root / "of another program"
    store = Store(tmp_path / "store")
    (store.root / "work" / "dead").mkdir()
    left.mkdir(mode=0o700)
    others.mkdir()
    with fixed_folder("held", tmp_path / "otherwise") as held:
        clear_abandoned(store)
        assert held.is_dir()
    assert not left.exists()
    assert others.is_dir()
    assert list((store.root / "work").iterdir()) == []


def test_flags_go_to_nvcc_as_well_and_not_to_what_cannot_read_them() -> None:
    folders = {Path("/a"): ".", Path("/b,c"): "x", Path("/d=e"): "y"}
    flags = prefix_map_flags(folders, "12.2.0", stores={Path("/s"): "z", Path("/t,u"): "z"})
    assert flags == {
        "CPPFLAGS": "-ffile-prefix-map=/a=. -Wp,-ffile-prefix-map=/s=z",
        "NVCC_PREPEND_FLAGS": "-Xcompiler -ffile-prefix-map=/a=. -Xcompiler -Xpreprocessor"
        " -Xcompiler -ffile-prefix-map=/s=z",
    }
    assert prefix_map_flags({Path("/a"): "."}, "7.5.0", stores={}) == {}
