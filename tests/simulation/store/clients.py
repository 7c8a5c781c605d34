"""Clients of a simulated store: producers, a consumer group, an administrator."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from cometmq.broker.acknowledgement import WaitingSend
from cometmq.core.errors import MessageIllegal, StoreError
from cometmq.filter.tags import tag_code
from cometmq.message import batch
from cometmq.message import properties as props
from cometmq.message.record import Record, decode_one, iter_decode
from cometmq.protocol.codes import ResponseCode
from cometmq.store.layout import SCHEDULE_TOPIC
from cometmq.store.read.reader import ReadStatus
from tests.simulation.faults.files import ProcessEnded
from tests.simulation.store.checks import name_of
from tests.simulation.store.history import Commits, Fate, Message
from tests.simulation.store.process import GROUP
from tests.simulation.store.world import World
from tests.store.stores import BORN, shared

PROBE_TOPIC = "probe"
_PREPARED = 4
_RECENT = 50
_PROBE_TURNS = 200
T = TypeVar("T")


class Clients:
    """Sends the requests of all clients, and records the answers in the history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = world.history
        self._count = 0
        world.answered = self._answered

    # --- producers ---------------------------------------------------------------------------

    def _message(
        self, topic: str, queue_id: int, size: int, tag: str, keys: tuple[str, ...]
    ) -> Message:
        name = b"m%05d" % self._count
        self._count += 1
        found: dict[str, str] = {}
        if keys:
            found[props.UNIQ_KEY] = keys[0]
        if keys[1:]:
            found[props.KEYS] = " ".join(keys[1:])
        if tag:
            found[props.TAGS] = tag
        body = name + b":" + bytes(size)
        message = Message(name, topic, queue_id, body, props.encode(found), keys, tag_code(tag))
        self.history.messages[name] = message
        return message

    def send(
        self,
        topic: str,
        queue_id: int,
        size: int = 100,
        *,
        tag: str = "",
        keys: tuple[str, ...] = (),
    ) -> Message:
        """Append one message in this turn of the loop."""
        self.world.note(f"send {topic}/{queue_id} {size}")
        message = self._message(topic, queue_id, size, tag, keys)
        self._append(message, sys_flag=0)
        return message

    def send_delayed(self, level: int) -> None:
        """Append a delayed message."""
        self.world.note(f"send delayed {level}")
        message = self._message(SCHEDULE_TOPIC, level - 1, 60, "", ())
        message.properties = props.encode({props.DELAY: str(level)})
        message.delay_ms = self.world.process.store.delays_ms[level - 1]
        self._append(message, sys_flag=0)

    def send_prepared(self) -> None:
        """Append a half message, which has no entry in its queue."""
        self.world.note("send prepared")
        self._append(self._message("half", 0, 60, "", ()), sys_flag=_PREPARED)

    def _append(self, message: Message, *, sys_flag: int) -> None:
        store = self.world.process.store
        try:
            message.phys, message.offset = store.append(
                store.queue(message.topic, message.queue_id),
                message.body,
                message.properties,
                flag=0,
                sys_flag=sys_flag,
                born_ms=1,
                born_host=BORN,
                tag_code=message.code,
                keys=message.keys,
            )
        except StoreError as error:
            self._refused([message], error)
        else:
            self._wait([message])

    def send_batch(self, topic: str, queue_id: int, count: int, size: int = 50) -> None:
        """Append a batch in this turn of the loop."""
        self.world.note(f"batch {topic}/{queue_id} {count} x {size}")
        sent = [
            self._message(topic, queue_id, size, "", (f"u{self._count}",)) for _ in range(count)
        ]
        raw = batch.pack([(0, message.body, message.properties) for message in sent])
        store = self.world.process.store
        try:
            queue = store.queue(topic, queue_id)
            first, (rows, begin, stop) = store.append_batch(queue, raw, shared(store))
        except (StoreError, MessageIllegal) as error:
            self._refused(sent, error)
            return
        for number, (message, place) in enumerate(zip(sent, rows.places(begin, stop), strict=True)):
            message.phys, message.offset = place, first + number
        self._wait(sent)

    def _refused(self, messages: list[Message], error: Exception) -> None:
        self.world.trace.append(f"  refused: {error}")
        for message in messages:
            self.history.fail(message)

    def _wait(self, messages: list[Message]) -> None:
        send = cast("WaitingSend", (messages, None, 0, 0, 0))
        self.world.process.appender.add_send(send, wait_durable=True)

    def _answered(self, sends: list[WaitingSend], code: int, remark: str | None) -> None:
        if not self.world.is_heard:
            return
        for send in sends:
            for message in cast("list[Message]", send[0]):
                if code == ResponseCode.SUCCESS:
                    self.history.acknowledge(message)
                elif code != ResponseCode.FLUSH_DISK_TIMEOUT:
                    self.history.fail(message)

    def probe(self) -> None:
        """Check that a healthy store acknowledges a message soon."""
        message = self.send(PROBE_TOPIC, 0, 10)
        process = self.world.process
        for _ in range(_PROBE_TURNS):
            if message.fate is not Fate.SENT or process.files.ended:
                break
            process.turn()
            process.threads.step()
        if not process.files.ended and process.store.log.failure is None:
            assert message.fate is Fate.ACKNOWLEDGED, f"writes do not resume: {self.world.trace}"

    # --- consumers ---------------------------------------------------------------------------

    def pull(self, topic: str, queue_id: int, count: int = 16) -> None:
        """Read the next messages of a queue for the group, and commit the offset."""
        self.world.note(f"pull {topic}/{queue_id} {count}")
        process, history = self.world.process, self.history
        offset = max(process.offsets.query(GROUP, topic, queue_id), 0)
        found = self._guarded(self._read(topic, queue_id, offset, count))
        if found is None:
            return
        status, next_offset, records = found
        seen = history.seen.setdefault((topic, queue_id), {})
        for number, record in enumerate(records):
            message = history.messages[name_of(record.body)]
            assert record.body == message.body
            assert record.queue_offset == next_offset - len(records) + number
            assert message.offset in (-1, record.queue_offset)
            assert message.fate is not Fate.LOST
            seen[record.queue_offset] = message.name
        if records or status is ReadStatus.OFFSET_TOO_SMALL:
            process.offsets.commit(GROUP, topic, queue_id, next_offset)
            history.commits.setdefault((topic, queue_id), Commits()).values.append(next_offset)

    async def _read(
        self, topic: str, queue_id: int, offset: int, count: int
    ) -> tuple[ReadStatus, int, list[Record]]:
        store = self.world.process.store
        result = store.read(topic, queue_id, offset, count)
        if result.cold:
            await store.load(result)
        records = [record for chunk in result.chunks for record in iter_decode(chunk)]
        return result.status, result.next_offset, records

    def save_offsets(self) -> None:
        """Write the group's offsets."""
        self.world.note("save offsets")
        self._guarded(self.world.process.offsets.saved())

    def find(self, number: int) -> None:
        """Look up an acknowledged message by its key."""
        self.world.note("find")
        history, store = self.history, self.world.process.store
        known = [
            message
            for message in list(history.messages.values())[-_RECENT:]
            if message.fate is Fate.ACKNOWLEDGED
            and message.keys
            and message.topic not in history.ends
            and store.log.segments.start <= message.phys < store.dispatched_offset
        ]
        if not known:
            return
        message = known[number % len(known)]
        result = self._guarded(store.query_index(message.topic, message.keys[0], 64, 0, 1 << 60))
        is_kept = message.phys >= store.log.segments.start
        if result is not None and is_kept and store.dispatcher.problem is None:
            found = [decode_one(record).body for record in result.records]
            assert message.body in found, f"{message.name!r} is not found by its key"

    # --- an administrator --------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its offsets."""
        self.world.note(f"delete {topic}")
        self._guarded(self._delete(topic))

    async def _delete(self, topic: str) -> None:
        process, history = self.world.process, self.history
        end = process.store.log.position
        deletion = await process.delete_topic(topic)
        # From here on a crash may keep or undo the deletion.
        places = history.delete(topic, max(end, deletion.end))
        await process.settle(deletion)
        if not process.files.ended:
            history.settle(topic)
            for key, place in places.items():
                history.commits[key].note_saved(place)

    def _guarded(self, coro: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a request; None if the disk failed or the process ended."""
        world = self.world
        try:
            return world.process.complete(coro)
        except (OSError, StoreError) as error:
            problem = f"{error!r}"
        except ProcessEnded:
            return None
        assert world.disk_failed or world.process.store.log.failure, problem
        world.trace.append(f"  failed: {problem}")
        return None
