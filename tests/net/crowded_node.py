"""A program: a node that may open few files, its ports full of connections, sends to new topics.
Its arguments are a directory and how many files.

Prints how many connections each port serves and how many sends were refused. The connections are
another process's, so that their descriptors are too.
"""

from __future__ import annotations

import asyncio
import resource
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

TOPICS = 300
AT_ONCE = 50
DECIDED_S = 30
#: What both servers answer at once: a code that nobody knows.
_HEADER = b'{"code":9999,"flag":0,"opaque":1}'
QUESTION = struct.pack(">II", 4 + len(_HEADER), len(_HEADER)) + _HEADER


def crowd() -> None:
    """Connect to each port of the first line as often as its first word says, print how many are
    served, and stay until the end of input."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    counts, kept = [], []
    count, *ports = map(int, sys.stdin.readline().split())
    for port in ports:
        mine = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        kept += mine
        counts.append(served(mine))
    print(*counts, flush=True)
    sys.stdin.read()


def served(connections: list[socket.socket]) -> int:
    """How many connections answer a request; the others have to end."""
    deadline = time.monotonic() + DECIDED_S
    answered = 0
    with selectors.DefaultSelector() as waiting:
        for one in connections:
            one.setblocking(False)
            waiting.register(one, selectors.EVENT_READ)
            with suppress(OSError):  # refused already
                one.send(QUESTION)
        while waiting.get_map():
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{len(waiting.get_map())} connections neither served nor refused"
            for key, _ in waiting.select(left_s):
                waiting.unregister(key.fileobj)
                answered += _has_answer(key.fileobj)
    return answered


def _has_answer(connection: object) -> bool:
    assert isinstance(connection, socket.socket)
    try:
        return connection.recv(1) != b""
    except OSError:
        return False


async def main(directory: Path, files: int) -> None:
    from cometmq.cli.node import node_config, running_node
    from cometmq.client.client import Client
    from cometmq.core.clock import SystemClock
    from cometmq.testing.cluster import cluster_settings

    strangers = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "crowd",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert strangers.stdin is not None
    assert strangers.stdout is not None
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    config = node_config(directory, cluster_settings({"brokerName": "broker-n"}))
    async with running_node(config, SystemClock()) as node, Client(node.namesrv) as client:
        await client.send("first", b"x")
        ports = [address.rpartition(":")[2] for address in (node.namesrv, node.broker)]
        strangers.stdin.write(" ".join([str(files * 6 // 10), *ports]).encode() + b"\n")
        counts = (await strangers.stdout.readline()).decode().split()
        refused, why = 0, ""
        for first in range(0, TOPICS, AT_ONCE):
            answers = await asyncio.gather(
                *[client.send(f"topic-{first + number}", b"x") for number in range(AT_ONCE)],
                return_exceptions=True,
            )
            problems = [answer for answer in answers if isinstance(answer, BaseException)]
            refused, why = refused + len(problems), str(problems[-1]) if problems else why
        print(f"namesrv={counts[0]} broker={counts[1]} refused={refused} last={why}")
        strangers.stdin.close()
        await strangers.wait()


if __name__ == "__main__":
    if sys.argv[1] == "crowd":
        crowd()
    else:
        asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
