"""The server commands as processes: the ready line, the first message, the stop, the refusals."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.operation.raw import RawPeer, send_header
from tests.pace import slowness

COMETMQ = str(Path(sys.executable).parent / "cometmq")
SMALL = ("--set", "mappedFileSizeCommitLog=4194304", "--set", "maxHashSlotNum=1000")
STARTS = 5
#: Usual are 400 to 600. Where others use the caches it is up to 800, which `slowness` does not see.
FIRST_MESSAGE_MS_MAX = 900


@contextmanager
def running(*words: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """A server process, and the fields of its ready line."""
    process = subprocess.Popen(
        [COMETMQ, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("ready "):
            pytest.fail(f"{words}: {process.communicate(timeout=60)}")
        yield process, dict(word.split("=") for word in line.split()[1:])
    finally:
        process.kill()
        process.communicate(timeout=60)


async def send_one(broker: str) -> None:
    peer = await RawPeer.connect(broker)
    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("first", 0, "", 1), b"x")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await peer.close()


def start_words(store: Path) -> list[str]:
    return ["start", "--store", str(store), "--namesrv-port", "0", "--broker-port", "0", *SMALL]


def processor_ms(pid: int) -> int:
    """Processor time that a process has used, all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")


def test_the_first_message_is_acknowledged_after_900_ms_of_work(tmp_path: Path) -> None:
    """On a quiet machine this is the time since the start; benchmarks/ measures that one."""
    used: list[int] = []
    while len(used) < STARTS and min(used, default=FIRST_MESSAGE_MS_MAX) >= FIRST_MESSAGE_MS_MAX:
        with running(*start_words(tmp_path / str(len(used)))) as (process, ready):
            asyncio.run(send_one(ready["broker"]))
            used.append(processor_ms(process.pid))
    assert min(used) < FIRST_MESSAGE_MS_MAX * slowness(), used


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with running(*start_words(tmp_path / "store")) as (process, ready):
        assert set(ready) == {"namesrv", "broker"}
        process.send_signal(number)
        out, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out == "", "standard output carries the ready line and nothing else"
        assert "Traceback" not in log
    assert not (tmp_path / "store" / "abort").exists()


async def send_and_read(namesrv: str) -> bytes:
    async with Client(namesrv) as client:
        result = await client.send("apart", b"hello")
        pulled = await client.puller.pull(result.queue, result.queue_offset)
        return pulled.messages[0].body


def test_a_name_server_and_a_broker_apart(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "# as an administrator of RocketMQ wrote it\n"
        "brokerClusterName = DefaultCluster\nbrokerName = broker-b\nbrokerId = 0\n"
        "deleteWhen = 04\nfileReservedTime = 48\nbrokerRole = ASYNC_MASTER\n"
        f"flushDiskType = ASYNC_FLUSH\nstorePathRootDir = {tmp_path / 'store'}\n"
        "mappedFileSizeCommitLog = 4194304\nmaxHashSlotNum = 1000\nlistenPort = 0\n"
        "sendMessageThreadPoolNums = 16\n",
        encoding="utf-8",
    )
    kv = f"kvConfigPath={tmp_path / 'kv.json'}"
    with (
        running("namesrv", "-p", "0", "--set", kv) as (_, namesrv),
        running("broker", "-c", str(conf), "-n", namesrv["namesrv"]) as (process, broker),
    ):
        assert set(namesrv) == {"namesrv"}
        assert set(broker) == {"broker"}
        assert asyncio.run(send_and_read(namesrv["namesrv"])) == b"hello"
        process.terminate()
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "no effect in CometMQ and are ignored: sendMessageThreadPoolNums" in log


def refused(*words: str) -> str:
    """The one line that a start which cannot be leaves on standard error."""
    done = subprocess.run(
        [COMETMQ, *words, "--log-level", "error"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_what_cannot_start_says_so_on_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    blocked = start_words(file / "store")
    assert "file" in refused(*blocked)
    assert "flushDiskType" in refused("start", "--set", "flushDiskTyp=SYNC_FLUSH")
    with running(*start_words(tmp_path / "store")) as (_, ready):
        port = ready["broker"].rpartition(":")[2]
        assert "in use by another process" in refused(*start_words(tmp_path / "store"))
        taken = ["start", "--store", str(tmp_path / "other"), "--namesrv-port", "0"]
        assert "choose another port" in refused(*taken, "--broker-port", port, *SMALL)
        assert "choose another port" in refused(
            "namesrv", "-p", ready["namesrv"].rpartition(":")[2]
        )
    free = start_words(tmp_path / "free")
    assert "must be a pipe or a terminal" in refused(*free, "--stop-with-input")
    if os.geteuid() != 0:
        assert "may use" in refused("namesrv", "-p", "1")
