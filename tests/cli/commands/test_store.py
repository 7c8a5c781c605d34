"""Store directories from the command line."""

import json
import os
import re
import sys
import time
from pathlib import Path
from subprocess import PIPE, run

import pytest

from cometmq.cli.commands.store import Bar, settings, time_ms
from cometmq.cli.main import main
from cometmq.core.errors import SettingsError
from cometmq.store.log.checksums import BLOCK_BYTES
from cometmq.testing.cluster import Cluster
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.stores import fill, opened
from tests.store.tools.verifying import flip_byte, written


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return written(tmp_path / "s", sealed=True)


def test_settings_come_from_the_broker_s_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\nstorePathCommitLog=/log\nstorePathRootDir=/elsewhere\n")
    found = settings(tmp_path / "store", file)
    assert found.commit_log_directories == ("/log",)
    assert found.store_path_root_dir == str(tmp_path / "store")
    file.write_text("mappedFileSizeCommitLog=many\n")
    with pytest.raises(SettingsError, match="mappedFileSizeCommitLog"):
        settings(tmp_path, file)


def test_directories_without_new_files_are_read_too(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("storePathCommitLog=/a,/b\nreadOnlyCommitLogStorePaths=/b,/old\n")
    assert settings(tmp_path, file).commit_log_directories == ("/a", "/b", "/old")
    file.write_text("readOnlyCommitLogStorePaths=/old\n")
    own = str(tmp_path / "commitlog")
    assert settings(tmp_path, file).commit_log_directories == (own,)


def test_a_log_in_several_directories(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = store / "commitlog", tmp_path / "second"
    second.mkdir()
    for name in sorted(path.name for path in first.iterdir())[1::2]:
        (first / name).rename(second / name)
    file = tmp_path / "broker.conf"
    file.write_text(f"storePathCommitLog={first},{second}\n")
    with_file = ["-c", str(file)]
    assert main(["store", "verify", str(store), *with_file]) == 0
    assert main(["store", "verify", str(store)]) == 1
    capsys.readouterr()
    flip_byte(store / "consumequeue" / "t" / "0" / f"{0:020d}", 8)
    assert main(["store", "verify", str(store), *with_file]) == 1
    assert main(["store", "repair", str(store), *with_file, "--yes"]) == 0
    assert main(["store", "verify", str(store), *with_file]) == 0
    assert main(["store", "redact", str(store), *with_file, "--key", "k3", "--in-place"]) == 2
    assert "not rewritten in place" in capsys.readouterr().err
    target = tmp_path / "one"
    assert main(["store", "snapshot", str(store), str(target), *with_file, "--copy"]) == 0
    assert main(["store", "verify", str(target)]) == 0
    capsys.readouterr()
    assert main(["store", "info", str(target), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["topics"] == [{"topic": "t", "queues": 3, "messages": 2_500}]


def test_info(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "info", str(store)]) == 0
    shown = capsys.readouterr().out
    assert re.search("last written by: +CometMQ", shown)
    assert re.search(f"log file bytes: +{FILE_BYTES}", shown)
    assert " 2500" in shown
    assert "2023-11-14T22:13:" in shown
    assert shown.count("  yes\n") == 2
    assert main(["store", "info", str(store), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["topics"] == [{"topic": "t", "queues": 3, "messages": 2_500}]
    assert value["checkpoint"]["clean"] is True


def test_info_of_a_java_broker_s_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = library.unpack_store("killed", tmp_path)
    (sorted((root / "index").iterdir())[0]).write_bytes(b"")
    assert main(["store", "info", str(root)]) == 0
    shown = capsys.readouterr()
    assert "crashed: the next start recovers it" in shown.out
    assert "noted:" not in shown.out
    assert "damage:" in shown.out
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    assert main(["store", "info", str(tmp_path / "empty")]) == 0
    assert "TOPIC" not in capsys.readouterr().out


def test_verify(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "verify", str(store)]) == 0
    shown = capsys.readouterr()
    assert f"{store} is sound: 2,500 records" in shown.out
    assert shown.err == ""
    assert main(["store", "verify", str(store), "--full", "--json", "--processes", "1"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["sound"], summary["records"], summary["findings"]) == (True, 2_500, [])


def test_verify_finds_damage(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store / "commitlog" / f"{0:020d}"
    flip_byte(path, BLOCK_BYTES + 17)
    assert main(["store", "verify", str(store)]) == 1
    shown = capsys.readouterr()
    assert f"damage: {path} at offset {BLOCK_BYTES}: the 65536 bytes there" in shown.out
    assert "is DAMAGED" in shown.out
    assert "restore the file" in shown.err
    assert main(["store", "verify", str(store), "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    (found,) = summary["findings"]
    assert (found["severity"], found["kind"], found["offset"]) == ("damage", "block", BLOCK_BYTES)
    assert summary["sound"] is False
    flip_byte(path, BLOCK_BYTES + 17)
    flip_byte(sorted((store / "consumequeue" / "t" / "0").iterdir())[0], 19)
    assert main(["store", "verify", str(store)]) == 1
    assert "The log is intact" in capsys.readouterr().err


def test_dump(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "dump", str(store), "--limit", "3"]) == 0
    values = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [value["properties"]["UNIQ_KEY"] for value in values] == ["k0", "k1", "k2"]
    assert "body_base64" not in values[0]
    place = str(values[1]["offset"])
    words = ["--from", place, "--to", str(values[2]["offset"]), "--body", "base64"]
    assert main(["store", "dump", str(store), *words]) == 0
    (value,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert value["offset"] == int(place)
    assert value["body_base64"]
    words = ["--key", "k7", "--topic", "t", "--queue", "1", "--since", "2023-11-14T00:00Z"]
    assert main(["store", "dump", str(store), *words, "--until", "9999999999999"]) == 0
    assert json.loads(capsys.readouterr().out)["queue_offset"] == 2


def test_dump_steps_over_damage(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_byte(store / "commitlog" / f"{0:020d}", 5)
    assert main(["store", "dump", str(store), "--key", "k0"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no record at offset 0: magic is" in shown.err


def test_snapshot_and_restore(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snap, back = str(tmp_path / "snap"), str(tmp_path / "back")
    assert main(["store", "snapshot", str(store), snap]) == 0
    assert f"{2 * FILE_BYTES:,} bytes shared" in capsys.readouterr().out
    assert main(["store", "restore", snap, back]) == 0
    shown = capsys.readouterr().out
    assert f"restored {back}" in shown
    assert f"{back} is sound" in shown
    assert main(["store", "restore", snap, back]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["store", "restore", snap, str(tmp_path / "other"), "--no-verify"]) == 0
    assert "sound" not in capsys.readouterr().out


def test_a_restored_snapshot_that_is_damaged(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snap = tmp_path / "snap"
    assert main(["store", "snapshot", str(store), str(snap), "--copy"]) == 0
    flip_byte(snap / "commitlog" / f"{0:020d}", 17)
    assert main(["store", "restore", str(snap), str(tmp_path / "back")]) == 1
    assert "is DAMAGED" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["info", "verify", "dump"])
def test_what_cannot_be_done_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", command, str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cometmq store: {tmp_path} is not a store directory")
    assert main(["store", command, str(tmp_path), "-c", str(tmp_path / "none")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"cometmq store: {tmp_path / 'none'}: No such file or directory"


def test_a_running_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = opened(tmp_path)
    fill(store, 5)
    for command in ("info", "verify", "dump"):
        assert main(["store", command, str(tmp_path)]) == 2
        assert "is in use by a CometMQ broker: stop it first" in capsys.readouterr().err
    assert main(["store", "info", str(tmp_path), "--while-running"]) == 0
    assert main(["store", "dump", str(tmp_path), "--while-running"]) == 0
    assert capsys.readouterr().out.count('"topic":"t"') == 5
    store.close()


def test_a_broker_on_a_store_in_use_is_refused(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    root = cometmq_cluster.store
    words = ["start", "--store", str(root), "--namesrv-port", "0", "--broker-port", "0"]
    done = run(
        [sys.executable, "-m", "cometmq.cli", *words], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "is in use by another process" in done.stderr.splitlines()[-1]
    assert main(["store", "verify", str(root)]) == 2
    assert "is in use by a CometMQ broker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 7), ("1700000000000", 1_700_000_000_000), ("2023-11-14T22:13:20Z", 1_700_000_000_000)],
)
def test_times(text: str, expected: int) -> None:
    assert time_ms(text, 7) == expected


def test_times_that_are_none(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "dump", str(store), "--since", "yesterday"]) == 2
    assert "is not a time" in capsys.readouterr().err


def test_the_bar_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("working") as bar:
        bar.began(10)
        bar.advance(10)
    assert capsys.readouterr() == ("", "")


def test_a_time_without_a_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert time_ms("2023-11-14T22:13:20", 0) == 1_700_000_000_000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_dump_that_nobody_reads_ends(store: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "cometmq.cli", "store", "dump", str(store)]
    done = run(words, stdout=writer, stderr=PIPE, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
