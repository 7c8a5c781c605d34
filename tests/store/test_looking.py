"""Requests and answers of the looker, as they are sent."""

from __future__ import annotations

import pytest

from cometmq.store.looking import MAX_FRAME_BYTES, BadFrame, Frames, Look, Seen, frame

LOOKS = [
    Look("a = 'ä'", "/store/commitlog/00000000000000000000", 0, b""),
    Look("a > 1", "/store/commitlog/00000000001073741824", 1 << 30, bytes(range(200)), 3),
]


@pytest.mark.parametrize("step", [1, 3, 4, 50, 1_000])
def test_a_stream_comes_in_any_pieces(step: int) -> None:
    stream = b"".join(map(frame, LOOKS))
    frames = Frames(Look)
    found = [
        look for at in range(0, len(stream), step) for look in frames.take(stream[at : at + step])
    ]
    assert found == LOOKS


@pytest.mark.parametrize("seen", [Seen([]), Seen([0, 2_047]), Seen([3, 5], [300, 700]), Seen(None)])
def test_answers(seen: Seen) -> None:
    assert [*Frames(Seen).take(frame(seen))] == [seen]


@pytest.mark.parametrize(
    "data",
    [
        b"print('hello')",
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x01x",
        frame(LOOKS[0]),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Frames(Seen).take(data))
