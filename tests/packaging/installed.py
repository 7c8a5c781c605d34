"""What an installed CometMQ can do with nothing of the repository at hand: a node starts, and a
message goes through it. Runs as a program, and under pytest where cibuildwheel tests a wheel."""

import asyncio
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import cometmq
from cometmq.speedups import CORE


async def send_and_receive(namesrv: str) -> bytes:
    """Send a message and give the body that a consumer gets."""
    async with cometmq.Client(namesrv) as client:
        await client.send("installed", b"hello", keys=["1"])
        async for message in client.subscribe("installed", group="readers", start="first"):
            async with message.processing():
                return message.body
    raise AssertionError("the subscription ended")


def run_node(folder: Path) -> None:
    """Start a node with the installed command, and stop it when a message went through."""
    command = Path(sys.executable).parent / "cometmq"
    words = [str(command), "start", "--store", str(folder / "store")]
    words += [
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
        "--set",
        "mappedFileSizeCommitLog=4194304",
    ]
    words += ["--set", "maxHashSlotNum=1000"]
    with (folder / "log").open("w") as log:
        node = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    assert node.stdout is not None
    try:
        line = node.stdout.readline()
        assert line.startswith("ready "), (folder / "log").read_text()
        addresses = dict(word.split("=") for word in line.split()[1:])
        assert asyncio.run(asyncio.wait_for(send_and_receive(addresses["namesrv"]), 60)) == b"hello"
        node.terminate()
        assert node.wait(30) == 0
    finally:
        node.kill()
        node.communicate(timeout=20)


def test_a_message_goes_through_a_node(tmp_path: Path) -> None:
    run_node(tmp_path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        run_node(Path(place))
    print(f"python={platform.python_version()} core={CORE} from={Path(cometmq.__file__).parent}")
