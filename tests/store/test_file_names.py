"""Whether a path still names an open file, asked without looking at the file's times."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.files import PosixFiles


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """An open file in a folder of its own."""
    path = tmp_path / "log" / "00000000000000000000"
    path.parent.mkdir()
    handle = PosixFiles().open(str(path), create=True)
    yield handle, path
    os.close(handle)


def _delete(path: Path) -> None:
    path.unlink()


def _move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def _move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def _replace(path: Path) -> None:
    path.with_name("other").touch()
    path.with_name("other").replace(path)


def _make_anew(path: Path) -> None:
    path.unlink()
    path.touch()


@pytest.mark.parametrize("harm", [_delete, _move, _move_folder, _replace, _make_anew])
def test_a_name_that_is_gone_is_noticed(
    opened: tuple[int, Path], harm: Callable[[Path], None]
) -> None:
    handle, path = opened
    assert PosixFiles().is_same_file(handle, str(path))
    harm(path)
    assert not PosixFiles().is_same_file(handle, str(path))


def test_a_second_name_in_its_place_is_the_same_file(opened: tuple[int, Path]) -> None:
    handle, path = opened
    os.link(path, path.with_name("second"))
    path.unlink()
    path.with_name("second").rename(path)
    assert PosixFiles().is_same_file(handle, str(path))


@pytest.mark.parametrize("of_file", [False, True])
def test_a_symbolic_link_on_the_way_names_it_too(
    opened: tuple[int, Path], *, of_file: bool
) -> None:
    handle, path = opened
    link = path.parent.with_name("link")
    link.symlink_to(path if of_file else path.parent)
    name = link if of_file else link / path.name
    assert PosixFiles().is_same_file(handle, str(name))
    link.unlink()
    assert not PosixFiles().is_same_file(handle, str(name))


def test_a_relative_path_names_it_too(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, path = opened
    monkeypatch.chdir(path.parent.parent)
    assert PosixFiles().is_same_file(handle, f"log/{path.name}")
    monkeypatch.chdir(path.parent)
    assert PosixFiles().is_same_file(handle, path.name)


def for_this_thread(instead: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls ``instead`` here: brokers of other tests may run in threads of theirs."""
    here = threading.get_ident()

    def call(*args: Any, **named: Any) -> Any:
        return (instead if threading.get_ident() == here else real)(*args, **named)

    return call


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system names no open files")
def test_the_file_itself_is_not_looked_at(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, path = opened
    asked: list[object] = []
    with monkeypatch.context() as watched:
        for name in ("stat", "fstat"):
            watched.setattr(os, name, for_this_thread(asked.append, getattr(os, name)))
        is_same_file = PosixFiles().is_same_file(handle, str(path))
    assert is_same_file
    assert not asked


def test_what_may_not_be_looked_at_is_not_gone(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, path = opened

    def refused(*_: object) -> os.stat_result:
        raise PermissionError(13, "not for you")

    with monkeypatch.context() as watched:
        watched.setattr(os, "access", for_this_thread(lambda *_: False, os.access))
        watched.setattr(os, "stat", for_this_thread(refused, os.stat))
        is_same_file = PosixFiles().is_same_file(handle, str(path))
    assert is_same_file
