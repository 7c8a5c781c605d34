"""Messages as users of a client see them."""

import pytest

from cometmq.message import properties as props
from cometmq.message.compression import compress
from cometmq.message.ids import pack_host
from cometmq.message.model import Message, MessageQueue, from_record, stored_messages
from cometmq.message.record import COMPRESSED, BadRecord, Record, iter_decode, pack


def stored(properties: dict[str, str], body: bytes = b"b", sys_flag: int = 0) -> Record:
    return Record(
        100, 0, 2, 0, 9, 0x10, sys_flag, 1, pack_host("::1", 80), 2, pack_host("10.0.0.1", 90), 0,
        0, body, "t", props.encode(properties),
    )  # fmt: skip


def test_message_to_properties() -> None:
    message = Message("t", b"", "tag", ("a", "b"), delay_level=3, properties={"own": "x"})
    assert message.to_properties() == {
        "own": "x", "TAGS": "tag", "KEYS": "a b", "DELAY": "3", "WAIT": "true",
    }  # fmt: skip
    assert Message("t", b"", wait_store=False).to_properties() == {"WAIT": "false"}


def test_stored_message_reads_its_properties() -> None:
    message = from_record(stored({"TAGS": "x", "KEYS": "a b", "UNIQ_KEY": "U", "DELAY": "4"}), "br")
    assert (message.tag, message.keys, message.unique_key) == ("x", ("a", "b"), "U")
    assert (message.delay_level, message.message_id) == (4, "U")
    assert message.offset_id == "0A0000010000005A0000000000000010"
    assert message.born_address == "[::1]:80"
    assert message.store_address == "10.0.0.1:90"
    assert message.queue == MessageQueue("t", "br", 2)


def test_stored_message_without_properties() -> None:
    message = from_record(stored({}))
    assert (message.tag, message.keys, message.delay_level) == ("", (), 0)
    assert message.message_id == message.offset_id
    assert from_record(stored({"DELAY": "x"})).delay_level == 0


def test_packed_body_is_unpacked() -> None:
    assert from_record(stored({}, compress(b"long"), COMPRESSED)).body == b"long"
    assert from_record(stored({}, b"", COMPRESSED)).body == b""


def test_queues_sort_as_in_java() -> None:
    queues = [MessageQueue("b", "a", 0), MessageQueue("a", "b", 0), MessageQueue("a", "a", 1)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]


def test_a_message_may_have_a_time_of_its_own() -> None:
    late = Message("t", b"", delay_ms=1_500)
    assert late.to_properties() == {"TIMER_DELAY_MS": "1500", "WAIT": "true"}
    moment = Message("t", b"", deliver_at_ms=1_700_000_000_000)
    assert moment.to_properties() == {"TIMER_DELIVER_MS": "1700000000000", "WAIT": "true"}
    assert late.is_delayed
    assert moment.is_delayed
    assert Message("t", b"", delay_level=1).is_delayed
    assert not Message("t", b"").is_delayed


def test_all_messages_of_a_pull_at_once() -> None:
    packed = compress(b"packed" * 100)
    body = pack(stored({"TAGS": "a"})) + pack(stored({}, packed, COMPRESSED))
    assert stored_messages(body, "b") == [from_record(each, "b") for each in iter_decode(body)]
    assert stored_messages(body)[1].body == b"packed" * 100
    with pytest.raises(BadRecord):
        stored_messages(body[:-1])
