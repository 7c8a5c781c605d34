"""Traces as text: what Java's decoder takes out of it, and how records share messages."""

from __future__ import annotations

from cometmq.client.tracing import (
    MAX_RECORDS,
    Consumed,
    ConsumeEnd,
    Consuming,
    MessageKind,
    Sent,
    Trace,
    TraceRecord,
    TransactionEnded,
    decode_traces,
    gather,
)

SENT = Sent(
    "ID", "t", "g", "tag", ("k1", "k2"), 5, MessageKind.DELAYED, "h:1", "OFF", "R", 1000, 7, True
)


def java_fields(text: str) -> list[list[str]]:
    """The records and fields that Java's String.split gives: without empty ones at the end."""
    found = []
    for record in text.removesuffix("\x02").split("\x02"):
        fields = record.split("\x01")
        while fields and not fields[-1]:
            fields.pop()
        found.append(fields)
    return found


def test_a_sent_message() -> None:
    record = SENT.encode()
    assert record.keys == ("ID", "k1", "k2")
    assert java_fields(record.text) == [
        ["Pub", "1000", "R", "g", "t", "ID", "tag", "k1 k2", "h:1", "5", "7", "3", "OFF", "true"]
    ]


def test_a_consumed_message() -> None:
    begun = Consuming("ID", "g", (), 2, "", "REQ", 1000).encode()
    ended = Consumed("ID", "g", (), "REQ", 1009, 9, ConsumeEnd.FAILED).encode()
    assert java_fields(begun.text + ended.text) == [
        ["SubBefore", "1000", "null", "g", "REQ", "ID", "2", "null"],
        ["SubAfter", "REQ", "ID", "9", "false", "null", "4", "1009", "g"],
    ]


def test_the_end_of_a_transaction() -> None:
    states = []
    for committed in (True, False, None):
        end = TransactionEnded("ID", "t", "g", "", ("k",), "h:1", "TX", committed, True, "R", 1000)
        (fields,) = java_fields(end.encode().text)
        states.append(fields.pop(-2))
    assert states == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    assert fields == [
        "EndTransaction", "1000", "R", "g", "t", "ID", "null", "k", "h:1", "2", "TX", "true",
    ]  # fmt: skip


def test_separators_in_texts_tear_nothing_apart() -> None:
    record = Consuming("ID", "g", ("a\x01b\x02c",), 0, "", "R", 1).encode()
    assert java_fields(record.text)[0][-1] == "a b c"


def records(count: int, size: int = 10) -> list[TraceRecord]:
    return [TraceRecord("x" * size, (f"k{number}", "shared")) for number in range(count)]


def test_records_share_messages_within_the_limits() -> None:
    (one,) = gather(records(3), max_body_bytes=30, max_keys_bytes=100)
    assert one.body == b"x" * 30
    assert one.keys == ("k0", "shared", "k1", "k2")
    by_body = gather(records(3), max_body_bytes=29, max_keys_bytes=100)
    assert [len(each.body) for each in by_body] == [20, 10]
    by_keys = gather(records(3), max_body_bytes=99, max_keys_bytes=13)
    assert [each.keys for each in by_keys] == [("k0", "shared", "k1"), ("k2", "shared")]
    assert gather([], max_body_bytes=1, max_keys_bytes=1) == []


def test_a_record_over_the_limit_goes_alone() -> None:
    found = gather(records(2, size=50), max_body_bytes=40, max_keys_bytes=100)
    assert [len(each.body) for each in found] == [50, 50]


def test_what_is_written_is_read() -> None:
    traces: list[Trace] = [
        SENT,
        Consuming("ID", "g", ("k",), 2, "R", "REQ", 1000),
        Consumed("ID", "g", (), "REQ", 1009, 9, ConsumeEnd.TIMED_OUT),
        TransactionEnded("ID", "t", "g", "", ("k",), "h:1", "TX", None, True, "R", 1000),
    ]
    text = "".join(trace.encode().text for trace in traces)
    assert decode_traces(text.encode()) == traces


def test_records_of_other_releases_are_read() -> None:
    """Without an offset id, a result, a time and a group; with the address of the client."""
    old = "Pub|5|R|g|t|ID|null|k|h:1|7|3|1|false;SubAfter|REQ|ID|4|false|k;"
    new = "Pub|5|R|g|t|ID|tag|k|h:1|7|3|9|OFF|true|10.0.0.1;SubBefore|1|null|g|REQ|ID|0;"
    text = (old + new).replace("|", "\x01").replace(";", "\x02")
    first, end, second, start = decode_traces(text.encode())
    assert isinstance(first, Sent)
    assert (first.kind, first.offset_id, first.succeeded) == (MessageKind.HALF, "", False)
    assert isinstance(end, Consumed)
    assert (end.end, end.ended_ms, end.group) == (ConsumeEnd.FAILED, 0, "")
    assert isinstance(second, Sent)
    assert (second.kind, second.offset_id, second.succeeded) == (MessageKind.NORMAL, "OFF", True)
    assert isinstance(start, Consuming)
    assert start.keys == ()


def test_broken_records_are_left_out() -> None:
    good = SENT.encode().text.encode()
    for bad in (b"Pub\x02", b"Pub\x01x\x02", b"\xff\x02", b"Other\x011\x02", b"SubAfter\x01R\x02"):
        assert decode_traces(bad + good) == [SENT]
    assert decode_traces(b"") == []
    assert len(decode_traces(b"\x02" * (MAX_RECORDS + 5) + good)) == 0
