"""The handle that recalls a timed message."""

import base64

import pytest

from cometmq.message.ids import RecallHandle, decode_recall


def test_a_handle_comes_back() -> None:
    handle = RecallHandle("orders", "broker-a", 1_700_000_000_001, "7F0000010001")
    text = handle.encode()
    assert base64.urlsafe_b64decode(text) == b"v1 orders broker-a 1700000000001 7F0000010001"
    assert decode_recall(text) == handle


@pytest.mark.parametrize(
    "raw", [b"", b"v2 t b 1 k", b"v1 t b 1", b"\xff\xfe", b"v1"], ids=lambda raw: raw.hex()
)
def test_what_is_no_handle_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        decode_recall(base64.urlsafe_b64encode(raw).decode())


def test_text_that_is_no_base64_is_refused() -> None:
    for text in ("***", "a", "é"):
        with pytest.raises(ValueError, match="recall handle is invalid"):
            decode_recall(text)


@pytest.mark.parametrize("time", ["x", "-5", "9" * 30, "²"])
def test_a_time_that_is_none_is_before_all_others(time: str) -> None:
    text = base64.urlsafe_b64encode(f"v1 t b {time} k".encode()).decode()
    assert decode_recall(text).deliver_ms == -1
