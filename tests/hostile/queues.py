"""Queue entries with other bytes: what consumers get has to be the records of their queue.

Two topics have messages of one size, in turns and one behind the other. Bytes of the queue file of
the one are changed, and it is read to its end. `judge` says what is wrong with what came.
"""

import tempfile
from asyncio import run
from functools import cache
from pathlib import Path

from cometmq.filter.tags import tag_code
from cometmq.message.record import iter_decode
from cometmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from cometmq.store.messagestore import MessageStore
from cometmq.store.read.reader import ReadStatus
from tests.hostile.grammar import Grammar
from tests.store.stores import opened, put

#: To which topic each message goes.
ORDER = "ab" * 8 + "a" * 8 + "b" * 8
COUNT = ORDER.count("a")
TAG = "red"
#: A record has 128 bytes, so that one bit of a place leads to another.
RECORD_BYTES = 128
BODY = bytes(RECORD_BYTES - 91 - 1 - len("TAGS_red"))
#: How many are asked for at once, and whether by the tag.
WAYS = ((32, False), (1, False), (5, True))


class Lie(Exception):
    """What was served is not what was asked for. `kind` is the same for all of the same kind."""

    def __init__(self, kind: str, more: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {more}")


def judge(topic: str, offset: int, next_offset: int, body: bytes) -> None:
    """Raise Lie unless a body is the records of a queue from `offset` to `next_offset`, all whole.

    What was removed is not missing: all messages of these tests are there.
    """
    try:
        records = list(iter_decode(body))
    except Exception as error:
        raise Lie("no record", f"{type(error).__name__} in {len(body)} bytes") from error
    size = sum(record.size_bytes for record in records)
    if size != len(body):
        raise Lie("another length", f"{len(body)} bytes with records of {size}")
    for record in records:
        if record.topic != topic or not offset <= record.queue_offset < next_offset:
            said = f"{record.topic} {record.queue_offset} for {topic} {offset} to {next_offset}"
            raise Lie("another record", said)
    if [record.queue_offset for record in records] != [*range(offset, next_offset)]:
        raise Lie("messages skipped", f"{len(records)} from {offset} to {next_offset}")


class DamagedStore:
    """A store whose queue file can be overlaid with any bytes."""

    def __init__(self, root: Path) -> None:
        self._store = _filled(root)
        self._path = Path(self._store.pool.directory, "a", "0", "0" * 20)
        self._right = self._path.read_bytes()[: COUNT * QUEUE_ENTRY_BYTES]

    def read_with(self, data: bytes) -> int:
        """Read all with these bytes at the begin of the file; gives how many messages came.

        Raises Lie, or whatever the store raises.
        """
        data = data[: len(self._right)]
        codes = frozenset((tag_code(TAG),))
        count = 0
        for asked, by_tag in WAYS:
            with self._path.open("r+b") as file:
                file.write(data + self._right[len(data) :])
            count += self._read_all(asked, codes if by_tag else None)
        return count

    def _read_all(self, asked: int, codes: frozenset[int] | None) -> int:
        offset = 0
        while offset < COUNT:
            result = self._store.read("a", 0, offset, asked, codes=codes)
            if result.cold:
                run(self._store.load(result))
            body = b"".join(result.chunks)
            if result.status is ReadStatus.FOUND and len(body) != result.size_bytes:
                raise Lie("another length", f"{result.size_bytes} announced, {len(body)} given")
            try:
                judge("a", offset, result.next_offset, body)
            except Lie as lie:
                # A tag code is not proven: who asks for one may miss messages.
                if lie.kind != "messages skipped" or codes is None:
                    raise
            if result.next_offset <= offset:
                raise Lie("no progress", f"{result.status} at {offset}")
            offset = result.next_offset
        return offset


def _filled(root: Path) -> MessageStore:
    store = opened(root, mapped_file_size_commit_log=1 << 20)
    for name in ORDER:
        put(store, name, 0, BODY, tag=TAG)
    store.commit()
    store.close()
    return opened(root, mapped_file_size_commit_log=1 << 20)


@cache
def _shared() -> DamagedStore:
    return DamagedStore(Path(tempfile.mkdtemp(prefix="cometmq-queues-")))


def read_with(data: bytes) -> object:
    """As DamagedStore.read_with, with one store a process."""
    return _shared().read_with(data)


def _entry(number: int, size: int = RECORD_BYTES) -> bytes:
    return QUEUE_ENTRY.pack(number * RECORD_BYTES, size, tag_code(TAG))


#: Entries of records of either topic, of no record, too long, of nothing.
ENTRIES = Grammar(
    tokens=(
        _entry(0),
        _entry(1),
        _entry(2),
        _entry(0, RECORD_BYTES + 1),
        _entry(4, RECORD_BYTES * 2),
        _entry(6, 1 << 20),
        bytes(QUEUE_ENTRY_BYTES),
        QUEUE_ENTRY.pack(-1, RECORD_BYTES, 0),
        b"\x00",
        b"\xff",
        b"\x80",
    ),
)
