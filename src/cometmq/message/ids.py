"""The two ids of a message, and the handle by which a timed message is recalled.

    offset id   store host ip 4|16, port 4, physical offset 8          32 or 56 hex digits
    unique key  ip 4|16, pid 2, loader hash 4, ms of the month 4, counter 2       the same lengths

The broker creates the offset id, the producer the unique key (upstream:
MessageDecoder.createMessageId, MessageClientIDSetter.java). The two cannot be told apart by their
form. In the key of a message made from a numbered item, such as an outbox row, the number replaces
pid and hash (:func:`lasting_key`).

A recall handle is the URL-safe base64 of "v1 topic brokerName deliverMs uniqueKey" (upstream:
RecallMessageHandle.java).
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import NamedTuple

from cometmq.speedups import unique_keys


class OffsetId(NamedTuple):
    """Parts of an offset id: the broker's address and the physical offset of the record."""

    host: str
    port: int
    physical_offset: int


def pack_host(host: str, port: int) -> bytes:
    """Return an address as records hold it: 8 bytes for IPv4, 20 for IPv6.

    Raises ValueError when ``host`` is not an IP address.
    """
    return ip_address(host).packed + port.to_bytes(4, "big")


def unpack_host(packed: bytes) -> tuple[str, int]:
    """Return host and port of 8 or 20 packed bytes."""
    return str(ip_address(packed[:-4])), int.from_bytes(packed[-4:], "big")


def encode_offset_id(store_host: bytes, physical_offset: int) -> str:
    """Return the offset id of a record, from its packed store host."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    """Return the parts of an offset id. Raises ValueError when ``text`` is not one."""
    if len(text) not in (32, 56):
        raise ValueError(f"{text!r} has {len(text)} characters; an offset id has 32 or 56")
    raw = bytes.fromhex(text)
    host, port = unpack_host(raw[:-8])
    return OffsetId(host, port, int.from_bytes(raw[-8:], "big"))


class UniqueKeys:
    """Creates unique keys for one process.

    ``ip`` is the packed address (4 or 16 bytes). ``salt`` distinguishes several instances in one
    process; Java uses the hash of its class loader.
    """

    __slots__ = ("_counter", "_made_ms", "_month_end_ms", "_month_start_ms", "_prefix", "_stem")

    def __init__(self, ip: bytes, pid: int, salt: int) -> None:
        fixed = ip + (pid & 0xFFFF).to_bytes(2, "big") + (salt & 0xFFFFFFFF).to_bytes(4, "big")
        self._prefix = fixed.hex().upper()
        self._counter = 0
        #: Common prefix of all keys of the millisecond ``_made_ms``.
        self._stem = ""
        self._made_ms = -1
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """Return a new unique key; ``now_ms`` is wall time."""
        if now_ms != self._made_ms:
            self._set_time(now_ms)
        self._counter = counter = (self._counter + 1) & 0xFFFF
        return f"{self._stem}{counter:04X}"

    def many(self, now_ms: int, count: int) -> list[str]:
        """Return ``count`` new unique keys; ``now_ms`` is wall time."""
        if now_ms != self._made_ms:
            self._set_time(now_ms)
        first = self._counter + 1
        self._counter = (self._counter + count) & 0xFFFF
        return unique_keys(self._stem, first, count)

    def _set_time(self, now_ms: int) -> None:
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_of(now_ms)
        self._stem = f"{self._prefix}{now_ms - self._month_start_ms & 0xFFFFFFFF:08X}"
        self._made_ms = now_ms


def lasting_key(number: int, made_ms: int, check: int) -> str:
    """Return a stable unique key of a numbered item: equal arguments yield the same key.

    It has the form of a unique key with the loopback address, so that a tool that takes it for an
    offset id queries no other machine. It contains the time ``made_ms`` (since the epoch), from
    which tools begin to search. It holds 48 bits of ``number``, and 16 bits of ``check``, which
    distinguishes different items with the same number.
    """
    start_ms, _ = _month_of(made_ms)
    fixed = f"7F000001{number & 0xFFFF_FFFF_FFFF:012X}"
    return f"{fixed}{made_ms - start_ms & 0xFFFFFFFF:08X}{check & 0xFFFF:04X}"


def lasting_number(key: str) -> int:
    """Return the number in a key made by :func:`lasting_key`.

    Raises ValueError for a text of another length, and if the number is not in hex digits.
    """
    if len(key) != 32:
        raise ValueError(f"{key!r} has {len(key)} characters; a lasting key has 32")
    return int(key[8:20], 16)


def _month_of(now_ms: int) -> tuple[int, int]:
    """Return the start of the month (UTC) that contains ``now_ms``, and of the next month."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)


_VERSION = "v1"
_PARTS = 5


class RecallHandle(NamedTuple):
    """Identity of a timed message.

    ``deliver_ms`` is within the second in which the message is due, -1 if the text has no time.
    """

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the text that a producer receives with the response to its send."""
        words = (_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_key)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


def decode_recall(text: str) -> RecallHandle:
    """Decode a handle from untrusted text. Raises ValueError when it is invalid."""
    problem = "recall handle is invalid"
    try:
        raw = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise ValueError(problem) from error
    words = raw.split(" ")
    if len(words) < _PARTS or words[0] != _VERSION:
        raise ValueError(problem)
    _, topic, broker_name, deliver, unique_key = words[:_PARTS]
    is_time = deliver.isascii() and deliver.isdigit() and len(deliver) < 20
    return RecallHandle(topic, broker_name, int(deliver) if is_time else -1, unique_key)
