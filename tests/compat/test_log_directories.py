"""A Java broker's log in several directories. The store tools read all of it. A snapshot puts
it into one directory, on which CometMQ starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.cli.main import main
from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor, moving
from tests.compat.conftest import SharedPeers


def log_files(place: Path) -> list[int]:
    """The numbers of the log files in a directory."""
    return sorted(int(path.name) // moving.FILE_BYTES for path in place.iterdir())


def test_from_java_with_several_directories(jars: Path, peers: SharedPeers, tmp_path: Path) -> None:
    peers.stop_java()
    old, first, second = (tmp_path / name / "commitlog" for name in ("old", "first", "second"))
    before = {"storePathCommitLog": f"{old},{first}"}
    now = {
        "storePathCommitLog": f"{old},{first},{second}", "readOnlyCommitLogStorePaths": str(old),
    }  # fmt: skip
    store, settings = tmp_path / "java-store", dict(moving.SETTINGS)
    java = anchor.JavaCluster(jars, tmp_path / "java", settings | before, store=store)
    try:
        java.start()
        asyncio.run(moving.fill_with_old(java.broker, java.namesrv))
        java.stop()
        kept = log_files(old)
        assert len(kept) >= 2
        assert len(log_files(first)) >= 2
        java = anchor.JavaCluster(jars, tmp_path / "java", settings | now, store=store)
        java.start()
        asyncio.run(moving.fill_with_old(java.broker, java.namesrv))
        asyncio.run(moving.fill(java.broker, java.namesrv))
        held = asyncio.run(moving.contents(java.broker))
    finally:
        java.kill()
    assert log_files(old) == kept
    assert log_files(second)
    conf = ["-c", str(tmp_path / "java" / "conf" / "broker.conf")]
    assert main(["store", "verify", str(store), *conf]) == 0
    ours = ProcessCluster(tmp_path / "ours", **moving.SETTINGS)
    ours.store.parent.mkdir()
    assert main(["store", "snapshot", str(store), str(ours.store), *conf, "--copy"]) == 0
    try:
        ours.start()
        moving.check_kept(held, asyncio.run(moving.contents(ours.broker)))
        asyncio.run(moving.check_keys(ours.broker))
        asyncio.run(moving.go_on(ours.namesrv, "more-"))
        assert ours.terminate() == 0
    finally:
        ours.kill()
