"""Both sides of the replication protocol, with bytes in pieces and peers that lie."""

import random

import pytest

from cometmq.replication.transfer import (
    HEARTBEAT_MS,
    REPORT,
    SILENCE_MS,
    TRANSFER,
    TRANSFER_MAX_BYTES,
    BadPeer,
    Bounds,
    MasterLink,
    OddBegin,
    SlaveLink,
)

BOUNDS = Bounds(1_000, 9_000)


def connected(report: int = 2_000) -> SlaveLink:
    link = SlaveLink(0)
    link.receive_data(REPORT.pack(report), BOUNDS, 1_000, 0)
    return link


def test_a_slave_begins_where_it_says() -> None:
    link = SlaveLink(0)
    assert not link.receive_data(REPORT.pack(2_000)[:5], BOUNDS, 1_000, 0)
    assert link.acked == -1
    assert link.receive_data(REPORT.pack(2_000)[5:], BOUNDS, 1_000, 0)
    assert (link.acked, link.sent) == (2_000, 2_000)
    assert link.header(500, 1) == TRANSFER.pack(2_000, 500)
    assert link.sent == 2_500
    assert link.is_known


def test_an_empty_slave_begins_where_the_master_says() -> None:
    link = connected(0)
    assert (link.acked, link.sent) == (0, 1_000)


def test_reports_acknowledge_what_was_sent() -> None:
    link = connected()
    link.header(500, 0)
    reports = REPORT.pack(2_100) + REPORT.pack(2_500)
    assert link.receive_data(reports, BOUNDS, 1_000, 0)
    assert link.acked == 2_500
    assert not link.receive_data(REPORT.pack(2_500), BOUNDS, 1_000, 0)


@pytest.mark.parametrize("bounds", [Bounds(0, 0), BOUNDS])
def test_an_empty_slave_that_asks_for_the_whole_log_begins_again(bounds: Bounds) -> None:
    link = SlaveLink(0)
    with pytest.raises(OddBegin):
        link.receive_data(REPORT.pack(1), bounds, bounds.start, 0)
    assert link.acked == -1
    link = SlaveLink(0)
    link.receive_data(REPORT.pack(1), Bounds(0, 9_000), 0, 0)
    assert (link.acked, link.sent) == (1, 1)


@pytest.mark.parametrize("offset", [-1, 999, 9_001, 1 << 62])
def test_a_first_report_outside_the_log_is_refused(offset: int) -> None:
    link = SlaveLink(0)
    with pytest.raises(BadPeer, match=r"log (ends|begins)"):
        link.receive_data(REPORT.pack(offset), BOUNDS, 1_000, 0)
    assert link.acked == -1


@pytest.mark.parametrize("offset", [1_999, 2_501, 9_000, -1])
def test_a_report_of_what_was_not_sent_acknowledges_nothing(offset: int) -> None:
    link = connected()
    link.header(500, 0)
    with pytest.raises(BadPeer, match="but was sent 2500"):
        link.receive_data(REPORT.pack(offset), BOUNDS, 1_000, 0)
    assert link.acked == 2_000


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01"]
)
def test_what_other_programs_send_acknowledges_nothing(greeting: bytes) -> None:
    link = SlaveLink(0)
    with pytest.raises(BadPeer):
        link.receive_data(greeting, Bounds(0, 1 << 40), 0, 0)
    assert link.acked == -1


def test_a_slave_hears_a_heartbeat_when_there_is_nothing_else() -> None:
    link = connected()
    assert link.heartbeat(HEARTBEAT_MS - 1) is None
    assert link.heartbeat(HEARTBEAT_MS) == TRANSFER.pack(2_000, 0)
    assert link.heartbeat(HEARTBEAT_MS + 1) is None
    assert SlaveLink(0).heartbeat(HEARTBEAT_MS) is None


def test_silence_ends_a_connection() -> None:
    slave, master = connected(), MasterLink(0, 0)
    for link in (slave, master):
        assert not link.is_silent(SILENCE_MS)
        assert link.is_silent(SILENCE_MS + 1)
    slave.receive_data(b"\0", BOUNDS, 0, SILENCE_MS)
    assert slave.is_silent(SILENCE_MS + 1)  # a part of a report says nothing
    slave = connected()
    slave.receive_data(REPORT.pack(slave.acked), BOUNDS, 0, SILENCE_MS)
    master.receive_data(memoryview(b""), SILENCE_MS)
    assert not slave.is_silent(2 * SILENCE_MS)
    assert not master.is_silent(2 * SILENCE_MS)


@pytest.mark.parametrize("seed", range(10))
def test_the_log_arrives_whole_in_any_pieces(seed: int) -> None:
    chance = random.Random(seed)
    log = chance.randbytes(20_000)
    stream, at = bytearray(), 3_000
    while at < len(log):
        size = chance.choice((0, 1, 700, 3_000))
        stream += TRANSFER.pack(at, len(log[at : at + size])) + log[at : at + size]
        at += len(log[at : at + size])
    link = MasterLink(3_000, 0)
    got = bytearray()
    while stream:
        size = chance.choice((1, 5, 12, 13, 900))
        for offset, piece in link.receive_data(memoryview(bytes(stream[:size])), 0):
            assert offset == 3_000 + len(got)
            got += piece
        del stream[:size]
    assert got == log[3_000:]
    assert link.received == len(log)


def test_an_empty_slave_begins_where_it_is_told() -> None:
    link = MasterLink(0, 0)
    assert link.receive_data(memoryview(TRANSFER.pack(5_000, 0)), 0) == []
    found = link.receive_data(memoryview(TRANSFER.pack(6_000, 2) + b"ab"), 0)
    assert [(offset, bytes(piece)) for offset, piece in found] == [(6_000, b"ab")]
    with pytest.raises(BadPeer, match="from 7000, but this log ends at 6002"):
        link.receive_data(memoryview(TRANSFER.pack(7_000, 2)), 0)


@pytest.mark.parametrize(
    "head",
    [(100, -1), (100, TRANSFER_MAX_BYTES + 1), (99, 1), (101, 0), (-5, 1)],
)
def test_a_transfer_that_does_not_go_on_is_refused(head: tuple[int, int]) -> None:
    with pytest.raises(BadPeer):
        MasterLink(100, 0).receive_data(memoryview(TRANSFER.pack(*head)), 0)


def test_a_report_is_due_on_progress_and_every_five_seconds() -> None:
    link = MasterLink(100, 0)
    assert link.report(100, 0) == REPORT.pack(100)
    assert link.report(100, HEARTBEAT_MS - 1) is None
    assert link.report(200, HEARTBEAT_MS - 1) == REPORT.pack(200)
    assert link.report(200, HEARTBEAT_MS) is None
    assert link.report(200, 2 * HEARTBEAT_MS) == REPORT.pack(200)


def test_heartbeats_in_a_row_are_counted() -> None:
    link = MasterLink(100, 0)
    beat = TRANSFER.pack(100, 0)
    link.receive_data(memoryview(beat + beat), 1)
    assert link.beats == 2
    link.receive_data(memoryview(TRANSFER.pack(100, 3) + b"abc"), 2)
    assert link.beats == 0
    link.receive_data(memoryview(TRANSFER.pack(103, 0)), 3)
    assert link.beats == 1
