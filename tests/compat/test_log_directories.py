"""A log in several directories, which a Java broker and ours write in turn, in place."""

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


def test_a_log_in_several_directories(jars: Path, peers: SharedPeers, tmp_path: Path) -> None:
    peers.stop_java()
    old, first, second = (tmp_path / name / "commitlog" for name in ("old", "first", "second"))
    before = {"storePathCommitLog": f"{old},{first}"}
    now = {
        "storePathCommitLog": f"{old},{first},{second}", "readOnlyCommitLogStorePaths": str(old),
    }  # fmt: skip
    ours = ProcessCluster(tmp_path / "ours", **{**moving.SETTINGS, **now})
    settings = dict(moving.SETTINGS)
    java = anchor.JavaCluster(jars, tmp_path / "java", settings | before, store=ours.store)
    try:
        java.start()
        asyncio.run(moving.fill_with_old(java.broker, java.namesrv))
        java.stop()
        kept = log_files(old)
        assert len(kept) >= 2
        assert len(log_files(first)) >= 2
        java = anchor.JavaCluster(jars, tmp_path / "java", settings | now, store=ours.store)
        java.start()
        asyncio.run(moving.fill_with_old(java.broker, java.namesrv))
        asyncio.run(moving.fill(java.broker, java.namesrv))
        held = asyncio.run(moving.contents(java.broker))
    finally:
        java.kill()
    assert log_files(old) == kept
    by_java = log_files(second)
    assert by_java
    conf = ["-c", str(tmp_path / "java" / "conf" / "broker.conf")]
    assert main(["store", "verify", str(ours.store), *conf]) == 0
    copy = tmp_path / "copy"
    assert main(["store", "snapshot", str(ours.store), str(copy), *conf, "--copy"]) == 0
    assert main(["store", "verify", str(copy)]) == 0
    try:
        ours.start()
        moving.check_kept(held, asyncio.run(moving.contents(ours.broker)))
        asyncio.run(moving.check_keys(ours.broker))
        asyncio.run(moving.fill_with_old(ours.broker, ours.namesrv))
        asyncio.run(moving.go_on(ours.namesrv, "more-"))
        held = asyncio.run(moving.contents(ours.broker))
        assert ours.terminate() == 0
    finally:
        ours.kill()
    assert log_files(old) == kept
    assert len(log_files(second)) > len(by_java)
    everywhere = sorted(log_files(old) + log_files(first) + log_files(second))
    assert everywhere == list(range(len(everywhere)))
    java = anchor.JavaCluster(jars, tmp_path / "java", settings | now, store=ours.store)
    with java.until_killed():
        moving.check_kept(held, asyncio.run(moving.contents(java.broker)))
        asyncio.run(moving.check_keys(java.broker))
        asyncio.run(moving.go_on(java.namesrv, "java-"))
        held = asyncio.run(moving.contents(java.broker))
    # Once more, after a kill.
    try:
        ours.start()
        moving.check_kept(held, asyncio.run(moving.contents(ours.broker)))
        assert ours.terminate() == 0
    finally:
        ours.kill()
