"""The folder of a run is emptied only when it is the demo's own."""

from pathlib import Path

import pytest

from cometmq.core.errors import SettingsError
from examples.demo.folder import MARKER, empty_folder


def test_a_new_folder_is_made_and_an_old_run_removed(tmp_path: Path) -> None:
    root = tmp_path / "a" / "demo-out"
    folder = empty_folder(root)
    folder.base.write_text("old")
    folder.spark.mkdir()
    (folder.spark / "part").write_text("old")
    again = empty_folder(root)
    assert again == folder
    assert [path.name for path in root.iterdir()] == [MARKER]


def test_nothing_foreign_is_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SettingsError, match="not the demo's"):
        empty_folder(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(SettingsError, match="is not a directory"):
        empty_folder(tmp_path / "thesis.txt")


def test_a_link_is_removed_but_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    folder = empty_folder(tmp_path / "out")
    (folder.root / "link").symlink_to(elsewhere)
    empty_folder(tmp_path / "out")
    assert (elsewhere / "kept").exists()
    assert not (folder.root / "link").exists()


def test_every_place_is_inside(tmp_path: Path) -> None:
    folder = empty_folder(tmp_path)
    places = [folder.store, folder.broker_log, folder.base, folder.spark, folder.copy("social")]
    assert len({*places}) == 5
    assert all(place.is_relative_to(folder.root) for place in places)
