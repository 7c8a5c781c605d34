"""What other clients send, as recorded, is sent to CometMQ: it answers as the real servers did.

The frames are those of `handmade.py`: clients in C++, Node and Go, codes of slaves and dashboards,
and mistakes.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from cometmq.protocol.fastjson import parse_json
from cometmq.testing.cluster import Cluster, cluster_in_thread
from tests.compat.anchor import route_code, wait_until
from tests.golden import library
from tests.golden.library import GoldenFrame

WORD: Final = struct.Struct(">I")
#: Values that belong to one broker or one moment.
OWN_VALUES: Final = {"msgId"}
#: Java sends them with refused sends too; clients look at them only after a send that was stored.
OF_STORED_SENDS: Final = {"MSG_REGION", "TRACE_ON"}

REQUESTS: Final = [
    line
    for line in library.frames()
    if not line["sender"].startswith("java-") and "answers" not in line
]
ANSWERS: Final = {line["answers"]: line for line in library.frames() if "answers" in line}


class Answer(NamedTuple):
    """What is compared of an answer."""

    code: int
    ext: dict[str, str]
    has_remark: bool
    body_keys: list[str] | int


def understood(frame: bytes) -> Answer:
    """The parts of an answer that must be equal. A body that is not JSON counts its bytes."""
    header_bytes = WORD.unpack_from(frame, 4)[0] & 0xFFFFFF
    header = json.loads(frame[8 : 8 + header_bytes])
    ignored = OF_STORED_SENDS if header["code"] else set()
    fields = (header.get("extFields") or {}).items()
    ext = {key: value for key, value in fields if key not in ignored}
    for key in OWN_VALUES & ext.keys():
        ext[key] = f"{len(ext[key])} characters"
    body = frame[8 + header_bytes :]
    keys: list[str] | int = len(body)
    if body.startswith(b"{"):
        parsed = parse_json(body)
        assert isinstance(parsed, dict)
        keys = sorted(map(str, parsed))
    return Answer(header["code"], ext, "remark" in header, keys)


def ask(address: str, frame: bytes, *, answered: bool) -> bytes:
    """Sends a frame; gives the answer, requests of the server's own left out."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(frame)
        if not answered:
            # A lookup on the same connection shows that the one-way request was taken.
            connection.sendall(library.frame_bytes("ali-ons-query-offset-request.bin"))
        with connection.makefile("rb") as stream:
            while True:
                length = stream.read(4)
                assert length, "the connection was closed"
                answer = length + stream.read(WORD.unpack(length)[0])
                header_bytes = WORD.unpack_from(answer, 4)[0]
                if json.loads(answer[8 : 8 + header_bytes])["flag"] & 1:
                    return answer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path_factory.mktemp("replay"), brokerName="broker-a") as running:
        yield running


@pytest.fixture(scope="module")
def answers(cluster: Cluster) -> dict[str, bytes]:
    """All answers, asked for in the order in which they were recorded."""
    places = {"broker": cluster.broker, "namesrv": cluster.namesrv}
    found = {}
    for line in REQUESTS:
        if line["to"] == "namesrv":
            wait_until(lambda: route_code(cluster.namesrv, "golden") == 0, "the route", 5)
        frame = library.frame_bytes(line["file"])
        found[line["file"]] = ask(places[line["to"]], frame, answered=line["file"] in ANSWERS)
    return found


@pytest.mark.parametrize("line", REQUESTS, ids=lambda line: str(line["file"]))
def test_the_answer_is_that_of_the_real_server(
    answers: dict[str, bytes], line: GoldenFrame
) -> None:
    got = understood(answers[line["file"]])
    if line["file"] in ANSWERS:
        assert got == understood(library.frame_bytes(ANSWERS[line["file"]]["file"]))
    else:
        assert (got.code, got.ext) == (0, {"offset": "1"})


def test_there_is_enough_to_replay() -> None:
    assert {line["sender"] for line in REQUESTS} == {
        "cpp",
        "ali-ons",
        "go",
        "slave",
        "admin",
        "odd",
    }
    assert len(REQUESTS) > 30
