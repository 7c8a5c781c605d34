"""The fuzzer's target `queues`: a broker that reads queue files with other bytes.

The first byte of an input says how is asked: for how many, with which filter. Each four bytes
behind it change one entry of topic `a`, as `_changed` has it. The broker is pulled from to the end;
each answer has to be as long as it says, and be the records that were asked for.
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random

from cometmq.store.layout import QUEUE_ENTRY_BYTES
from tests.hostile import frames
from tests.hostile.finding import Finding
from tests.hostile.queues import BODY, COUNT, ORDER, TAG, Lie, judge

#: How many, by what kind of filter, by which expression.
WAYS = [
    (asked, kind, expression)
    for kind, expression in (("TAG", "*"), ("TAG", TAG), ("SQL92", "x = '12'"))
    for asked in (32, 1, 5)
]
OPAQUE = 7
EDIT_BYTES = 4
EDITS_MAX = 12
FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21

#: Sends a frame; gives the header and the body of its answer.
Ask = Callable[[bytes], Awaitable[tuple[bytes, bytes]]]


async def fill(ask: Ask, topics: Iterable[str] = ORDER) -> None:
    """Store a message to each of the topics."""
    for topic in topics:
        fields = {
            "producerGroup": "p", "topic": topic, "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "1", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
            "flag": "0", "properties": f"TAGS\x01{TAG}\x02x\x0112\x02", "reconsumeTimes": "0",
        }  # fmt: skip
        header, _ = await ask(_frame(10, fields, BODY))
        if json.loads(header)["code"] != 0:
            raise RuntimeError(f"a message was not stored: {header!r}")


class DamagedQueue:
    """The queue file of topic `a` in a broker's store, and what consumers get of it."""

    def __init__(self, root: Path) -> None:
        self._path, other = (Path(root, "consumequeue", name, "0", "0" * 20) for name in "ab")
        size = COUNT * QUEUE_ENTRY_BYTES
        self._right, self._other = (path.read_bytes()[:size] for path in (self._path, other))

    async def check(self, data: bytes, ask: Ask) -> None:
        """Change the file as an input says and read it all. Raises Finding."""
        asked, kind, expression = WAYS[data[0] % len(WAYS)]
        self._write(self._changed(data[1:]))
        try:
            await self._read_all(ask, asked, kind, expression)
        except Lie as lie:
            raise Finding(f"queues: {lie.kind}", str(lie)) from lie
        finally:
            self._write(self._right)

    def _changed(self, edits: bytes) -> bytearray:
        entries = bytearray(self._right)
        for start in range(0, min(len(edits), EDIT_BYTES * EDITS_MAX), EDIT_BYTES):
            kind, number, at, value = (*edits[start : start + EDIT_BYTES], 0, 0, 0, 0)[:EDIT_BYTES]
            first = number % COUNT * QUEUE_ENTRY_BYTES
            if kind % 4 == 0:
                entries[first + at % QUEUE_ENTRY_BYTES] ^= 1 << value % 8
            elif kind % 4 == 1:
                entries[first + at % QUEUE_ENTRY_BYTES] = value
            else:
                source = self._right if kind % 4 == 2 else self._other
                begin = value % COUNT * QUEUE_ENTRY_BYTES
                entry = source[begin : begin + QUEUE_ENTRY_BYTES]
                entries[first : first + QUEUE_ENTRY_BYTES] = entry
        return entries

    def _write(self, entries: bytes | bytearray) -> None:
        with self._path.open("r+b") as file:
            file.write(entries)

    async def _read_all(self, ask: Ask, asked: int, kind: str, expression: str) -> None:
        offset = 0
        while offset < COUNT:
            header, body = await ask(_pull("a", offset, asked, kind, expression))
            answer = _answer(header)
            if answer["code"] not in (FOUND, NOT_FOUND, RETRY, MOVED):
                raise Lie("an error", f"{answer['code']} {answer.get('remark')}")
            upto = int(answer["extFields"]["nextBeginOffset"])  # type: ignore[index]
            try:
                judge("a", offset, upto, body)
            except Lie as lie:
                # A tag code is not proven: who asks for one may miss messages.
                if lie.kind != "messages skipped" or expression != TAG:
                    raise
            if upto <= offset:
                raise Lie("no progress", f"{answer['code']} at {offset}")
            offset = upto


def _frame(code: int, fields: dict[str, str], body: bytes) -> bytes:
    head = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": OPAQUE}
    return frames.joined(0, json.dumps(head).encode(), body)


def _pull(topic: str, offset: int, asked: int, kind: str, expression: str) -> bytes:
    fields = {
        "consumerGroup": "g", "topic": topic, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": str(asked), "sysFlag": "4", "commitOffset": "0", "subVersion": "0",
        "suspendTimeoutMillis": "0", "subscription": expression, "expressionType": kind,
    }  # fmt: skip
    return _frame(11, fields, b"")


PULL_BY_EXPRESSION = _pull("golden", 0, 32, "SQL92", "x = '12'")


def _answer(header: bytes) -> dict[str, object]:
    try:
        return dict(json.loads(header))
    except ValueError as error:
        raise Lie("out of step", f"{header[:60]!r} is no header") from error


def seeds() -> list[bytes]:
    """Each way to ask, of queue files that are right."""
    return [bytes((way,)) for way in range(len(WAYS))]


def other_input(data: bytes, chance: Random) -> bytes:
    """Another input: one more change, or another way to ask."""
    if chance.randrange(3) == 0:
        return bytes((chance.randrange(256),)) + data[1:]
    return (data or b"\0") + bytes(chance.randrange(256) for _ in range(EDIT_BYTES))
