"""Store directories from the command line."""

from pathlib import Path

import pytest

from cometmq.cli.commands.store import settings
from cometmq.core.errors import SettingsError


def test_settings_come_from_the_broker_s_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\nstorePathCommitLog=/log\nstorePathRootDir=/elsewhere\n")
    found = settings(tmp_path / "store", file)
    assert found.commit_log_directory == "/log"
    assert found.store_path_root_dir == str(tmp_path / "store")
    file.write_text("mappedFileSizeCommitLog=many\n")
    with pytest.raises(SettingsError, match="mappedFileSizeCommitLog"):
        settings(tmp_path, file)
