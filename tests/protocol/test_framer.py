"""Bytes to frames, however the bytes arrive."""

import itertools
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import RemoteProtocolError
from cometmq.protocol.framer import (
    ALL,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    Framer,
    FrameTooLarge,
    RawFrame,
)

frames = st.builds(RawFrame, st.integers(0, 255), st.binary(max_size=40), st.binary(max_size=200))


def encode(frame: RawFrame) -> bytes:
    lengths = (4 + len(frame.header) + len(frame.body), frame.codec << 24 | len(frame.header))
    return struct.pack(">II", *lengths) + frame.header + frame.body


def take_all(framer: Framer, limit: int) -> list[RawFrame]:
    """What an owner of a socket takes after each read."""
    taken: list[RawFrame] = []
    while framer.has_more:
        taken += framer.take(limit)
    return taken


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 2000)), st.integers(1, 5))
def test_any_split_gives_the_same_frames(sent: list[RawFrame], cuts: list[int], limit: int) -> None:
    stream = b"".join(map(encode, sent))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    framer = Framer()
    taken: list[RawFrame] = []
    for start, stop in itertools.pairwise(edges):
        framer.receive_data(stream[start:stop])
        taken += take_all(framer, limit)
    assert taken == sent
    assert framer.buffered_bytes == 0


def test_frames_behind_a_longer_one_are_found_at_once() -> None:
    long, short = RawFrame(0, b"h" * 1000, b""), RawFrame(0, b"h", b"b")
    framer = Framer()
    framer.receive_data(encode(long)[:20])
    assert framer.take(1) == []
    framer.receive_data(encode(long)[20:] + encode(short) + encode(short))
    assert framer.take(1) == [long]
    assert framer.has_more
    assert framer.take(5) == [short, short]


def test_a_part_of_a_frame_is_nothing_yet() -> None:
    frame = encode(RawFrame(0, b"header", b"body"))
    framer = Framer()
    for at in range(len(frame) - 1):
        framer.receive_data(frame[at : at + 1])
        assert framer.take(1) == []
        assert not framer.has_more
        assert framer.buffered_bytes == at + 1
    framer.receive_data(frame[-1:])
    assert framer.take(1) == [RawFrame(0, b"header", b"body")]


def test_good_frames_come_before_the_refusal() -> None:
    good = RawFrame(0, b"h", b"")
    framer = Framer()
    framer.receive_data(encode(good) + b"GET / HTTP/1.1\r\n")
    assert framer.take(10) == [good]
    assert framer.has_more
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="is the peer speaking another protocol"):
            framer.take(10)


@pytest.mark.parametrize(
    ("total", "word"),
    [(0, 0), (3, 0), (4, 1), (100, 97), (2**31, 0), (2**32 - 1, 5), (MAX_FRAME_BYTES, 0xFFFFFF)],
)
def test_lengths_that_contradict_each_other_are_refused(total: int, word: int) -> None:
    framer = Framer()
    framer.receive_data(struct.pack(">II", total, word) + b"x" * 100)
    with pytest.raises(RemoteProtocolError, match=f"total {total}, header {word}"):
        framer.take(1)


def test_a_tls_handshake_is_refused_with_its_first_bytes() -> None:
    framer = Framer()
    framer.receive_data(bytes.fromhex("160301020001000001fc0303"))
    with pytest.raises(RemoteProtocolError, match="TLS is off here"):
        framer.take(1)


def test_the_largest_frame_is_taken_and_one_byte_more_refused() -> None:
    header = b"h" * 10
    body = b"b" * (MAX_FRAME_BYTES - 8 - len(header))
    framer = Framer()
    framer.receive_data(encode(RawFrame(0, header, body)))
    assert framer.take(1) == [RawFrame(0, header, body)]
    framer.receive_data(encode(RawFrame(1, header, body + b"b"))[:18])
    with pytest.raises(FrameTooLarge) as info:
        framer.take(1)
    assert (info.value.size_bytes, info.value.codec, info.value.code) == (
        MAX_FRAME_BYTES + 1,
        1,
        13,
    )
    assert info.value.header == header


def test_a_frame_that_is_too_large_is_refused_once_its_header_came() -> None:
    framer = Framer()
    framer.receive_data(struct.pack(">II", MAX_FRAME_BYTES, MAX_HEADER_BYTES) + b"h" * 5)
    assert framer.take(1) == []
    assert not framer.has_more
    framer.receive_data(b"h" * MAX_HEADER_BYTES)
    with pytest.raises(FrameTooLarge, match=f"over the limit of {MAX_FRAME_BYTES}"):
        framer.take(1)


@given(st.lists(st.binary(max_size=60)), st.integers(1, 3))
def test_random_bytes_are_frames_or_refused(pieces: list[bytes], limit: int) -> None:
    framer = Framer()
    fed = taken = 0
    for piece in pieces:
        framer.receive_data(piece)
        fed += len(piece)
        try:
            taken += sum(len(encode(frame)) for frame in take_all(framer, limit))
        except RemoteProtocolError:
            return
        assert framer.buffered_bytes == fed - taken


def kept_bytes(feed: Callable[[], Framer]) -> int:
    """What 16 framers keep in memory after they were fed."""
    tracemalloc.start()
    framers = [feed() for _ in range(16)]
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(framers) == 16
    return kept


def test_a_byte_of_the_next_frame_does_not_keep_a_large_one() -> None:
    body = bytes(1 << 20)
    frame = (4 + len(body)).to_bytes(4, "big") + bytes(4) + body

    def feed() -> Framer:
        framer = Framer()
        framer.receive_data(frame + b"\0")
        assert len(framer.take(10)) == 1
        return framer

    assert kept_bytes(feed) < 1 << 20


def test_many_small_pieces_take_little_more_than_their_bytes() -> None:
    head = (1 << 20).to_bytes(4, "big") + bytes(4)

    def feed() -> Framer:
        framer = Framer()
        framer.receive_data(head)
        for _ in range(10_000):
            framer.receive_data(bytes(1) + b"\1")
        assert framer.buffered_bytes == 20_008
        return framer

    assert kept_bytes(feed) < 16 * 60_000


def test_a_header_over_the_limit_is_refused_as_soon_as_its_length_is_known() -> None:
    framer = Framer(max_header_bytes=1000)
    framer.receive_data((2000).to_bytes(4, "big") + (1001).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="header of 1001 bytes is over the limit of 1000"):
        framer.take(1)


def request(code: int, body: bytes = b"") -> bytes:
    return encode(RawFrame(0, b'{"code":%d,"opaque":1}' % code, body))


def taking(code: int, taken: list[int]) -> Callable[[str, bytes, int], tuple[int, int]]:
    """A bulk handler of frames of one code, which wants none with a body."""

    def take(owner: str, data: bytes, at: int) -> tuple[int, int]:
        assert owner == "peer"
        wanted = request(code)
        while data.startswith(wanted, at):
            taken.append(code)
            at += len(wanted)
        return at, int(len(data) - at > 8)

    return take


def test_frames_go_to_the_taker_of_their_code() -> None:
    taken: list[int] = []
    bulk_handlers = {b"%d" % code: taking(code, taken) for code in (310, 11)}
    framer = Framer()
    odd = request(310, b"odd")
    framer.receive_data(request(310) * 2 + request(11) + request(34) * 2 + request(310) + odd * 2)
    assert framer.offer(bulk_handlers, "peer") == 0
    assert framer.offer(bulk_handlers, "peer") == 0
    assert taken == [310, 310, 11]
    # Nobody takes these two; behind them somebody does again.
    assert framer.offer(bulk_handlers, "peer") == 2
    assert [frame.body for frame in framer.take(2)] == [b"", b""]
    # The same bulk handler does not want what follows.
    assert framer.offer(bulk_handlers, "peer") == 1
    assert taken[3:] == [310]
    assert framer.take(1)[0].body == b"odd"
    assert framer.offer(bulk_handlers, "peer") == 1
    assert framer.take(1)[0].body == b"odd"
    framer.receive_data(request(11))
    assert framer.offer(bulk_handlers, "peer") == ALL
    assert not framer.has_more


def test_of_a_broken_stream_nothing_is_offered() -> None:
    taken: list[int] = []
    framer = Framer()
    framer.receive_data(request(310))
    framer.broken = RemoteProtocolError("no more")
    assert framer.has_more
    assert framer.offer({b"310": taking(310, taken)}, "peer") == 1
    assert taken == []


@pytest.mark.parametrize("sizes", [(0, 0), (4, 0), (0, 7), (1 << 31, 9), (1 << 24, 1 << 24)])
def test_lengths_that_cannot_be_right_are_passed_over_and_refused(sizes: tuple[int, int]) -> None:
    framer = Framer()
    framer.receive_data(struct.pack(">II", *sizes) + b'{"code":34,' * 5)
    assert 1 <= framer.offer({b"310": taking(310, [])}, "peer") <= 32


@pytest.mark.parametrize("bulk_handlers", [(), (310,), (310, 11)])
def test_a_read_goes_to_its_bulk_handler_whole_or_in_part(bulk_handlers: tuple[int, ...]) -> None:
    taken: list[int] = []
    chosen = {b"%d" % code: taking(code, taken) for code in bulk_handlers}
    framer = Framer()
    assert framer.receive_whole(request(310) * 3, chosen, "peer") == bool(bulk_handlers)
    assert taken == [310] * 3 * bool(bulk_handlers)
    if not bulk_handlers:
        assert len(framer.take(9)) == 3
    # The second is another's, and what follows waits behind it.
    assert not framer.receive_whole(request(310) + request(34) + request(310), chosen, "peer")
    assert [frame.header[8:10] for frame in take_all(framer, 9)][-2:] == [b"34", b"31"]
    # A frame that was begun goes on before the bulk handler has anything.
    begun = len(taken)
    assert not framer.receive_whole(request(310)[:30], chosen, "peer")
    assert not framer.receive_whole(request(310)[30:] + request(310), chosen, "peer")
    assert len(taken) == begun
    assert [frame.header[8:11] for frame in take_all(framer, 9)] == [b"310"] * 2
    framer.broken = RemoteProtocolError("no more")
    assert not framer.receive_whole(request(310), chosen, "peer")
    assert len(taken) == begun
