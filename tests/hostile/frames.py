"""Mutated frames: captured ones with bytes, numbers, fields and lengths changed, by a seed."""

import json
import struct
from collections.abc import Mapping
from random import Random
from typing import Any, Final, get_args

import msgspec

from cometmq.core.errors import LocalProtocolError, RemoteProtocolError
from cometmq.protocol.acl import Credentials, signed
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import BINARY, JSON, decode_head, encode_head
from cometmq.protocol.registry import REGISTRY, Side
from tests.golden import library

NUMBERS = (0, 1, -1, 7, 255, 2**15, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64)
TEXTS = (
    "",
    "x",
    "true",
    "None",
    "../../etc/passwd",
    "%RETRY%" * 20,
    "a\x01b\x02KEYS\x01k\x02",
    "TAGS\x01" + "t" * 300,
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "9" * 5_000,
    "日本\u202e\x1b[2J",
    "a=" * 200 + "a",
    "a > 1.5 AND " * 50 + "b = 1",
)
BODIES = (b"", b"{", b"[" * 200, b"\x00" * 64, b'"\\' * 100, b"9" * 5_000, b"\xff" * 16)
#: Requests that change who may do what: after one of them a probe fails rightly.
LEFT_OUT = frozenset((25, 100, 101, 205, 215, 318, 327, 31001, 31002))
_LEFT_OUT_TEXTS = tuple(b'"code":%d,' % code for code in LEFT_OUT)
_VALUES = (*map(str, NUMBERS), *TEXTS)
#: The values of made requests: the names that the captured ones are about.
_NAMES: Final[Mapping[str, str]] = {
    "topic": "golden",
    "origin_topic": "golden",
    "default_topic": "TBW102",
    "access_key": "stranger-key",
    "secret_key": "stranger-secret",
    "global_white_remote_addresses": "*",
    "topic_perms": "golden=PUB|SUB",
    "group_perms": "golden-group=SUB",
    "default_topic_perm": "PUB|SUB",
    "admin": "true",
}
_MADE_BODIES: Final[Mapping[int, bytes]] = {
    RequestCode.SEND_REPLY_MESSAGE: b"reply",
    RequestCode.SEND_REPLY_MESSAGE_V2: b"reply",
    RequestCode.UPDATE_NAMESRV_CONFIG: b"orderMessageEnable=true\nexpiryScanMs=1\n",
    RequestCode.PROMOTE_BROKER: b'{"role":"SLAVE","force":true}',
    RequestCode.TAKE_ADDRESS: b'{"address":"127.0.0.1:1"}',
    RequestCode.CHECK_CLIENT_CONFIG: b'{"clientId":"c","group":"golden-group","namespace":"",'
    b'"subscriptionData":{"topic":"golden","subString":"a > 1","expressionType":"SQL92"}}',
}


def golden_frames(mostly_to: str = "") -> list[bytes]:
    """The captured requests, each whole; those to one kind of node eight times, when it is said."""
    found = []
    for row in library.frames():
        if not row["flag"] & 1 and row["code"] not in LEFT_OUT:
            times = 8 if mostly_to and row["to"].endswith(mostly_to) else 1
            found += [library.frame_bytes(row["file"])] * times
    return found


def made_frames(codes: set[int]) -> list[bytes]:
    """A request of each code, once with each header codec; texts and numbers are plausible."""
    made = []
    for code in sorted(codes):
        ext = {}
        for field in msgspec.structs.fields(REGISTRY[code].header):
            ext[field.encode_name] = _plausible(field.name, field.type)
        body = _MADE_BODIES.get(code, b"")
        for codec in (JSON, BINARY):
            head = encode_head(
                code=code, opaque=code, flag=0, ext=ext, codec=codec, body_bytes=len(body)
            )
            made.append(head + body)
    return made


def requests_of(side: Side, mostly_to: str = "") -> list[bytes]:
    """The captured requests, and made ones of the codes of a side that were not captured."""
    captured = {row["code"] for row in library.frames() if not row["flag"] & 1}
    of_side = {code for code, spec in REGISTRY.items() if spec.side & side}
    return golden_frames(mostly_to) + 8 * made_frames(of_side - captured)


def changing_frames(side: Side) -> list[bytes]:
    """The captured requests of LEFT_OUT, and made ones of every code that changes a server."""
    captured = [
        library.frame_bytes(row["file"])
        for row in library.frames()
        if not row["flag"] & 1 and row["code"] in LEFT_OUT
    ]
    changing = {code for code, spec in REGISTRY.items() if spec.mutates and spec.side & side}
    return captured + made_frames(changing)


def signed_frame(frame: bytes, account: Credentials) -> bytes:
    """A frame with the account's signature; unchanged if it cannot be read."""
    try:
        codec, header, body = parts(frame)
        head = decode_head(codec, header)
        ext = {**head.ext, **signed(account, head.ext, body)}
        whole = encode_head(
            code=head.code, opaque=head.opaque, flag=head.flag, ext=ext, remark=head.remark,
            codec=codec, body_bytes=len(body), version=head.version,
        )  # fmt: skip
    except (RemoteProtocolError, LocalProtocolError, UnicodeEncodeError, struct.error):
        return frame
    return whole + body


def _plausible(name: str, kind: Any) -> str:
    if name in _NAMES:
        return _NAMES[name]
    if any(hasattr(part, "__metadata__") for part in (kind, *get_args(kind))):
        return "1"
    return "golden-group" if "group" in name else "golden"


def parts(frame: bytes) -> tuple[int, bytes, bytes]:
    """Codec, header and body of a frame."""
    (word,) = struct.unpack_from(">I", frame, 4)
    size = word & 0xFFFFFF
    return word >> 24, frame[8 : 8 + size], frame[8 + size :]


def joined(codec: int, header: bytes, body: bytes) -> bytes:
    """The reverse of `parts`, with right lengths."""
    word = (codec & 0xFF) << 24 | len(header) & 0xFFFFFF
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def mutated(frames: list[bytes], chance: Random) -> bytes:
    """A frame of `frames`, changed. Its lengths are right, but for one of 50."""
    codec, header, body = parts(chance.choice(frames))
    kind = chance.randrange(8)
    if not body and chance.randrange(8):
        kind %= 5  # a body where none belongs is refused before anything else is looked at
    if kind < 4:
        changed = _with_other_binary_fields if codec == BINARY else _with_other_fields
        header = changed(header, chance)
    elif kind == 4:
        header = _with_other_bytes(header, chance)
    elif kind == 5:
        body = chance.choice(BODIES)
    else:
        body = _with_other_bytes(body, chance)
    frame = joined(codec, header, body)
    if chance.randrange(50) == 0:
        return _with_other_bytes(frame[:8], chance) + frame[8:]
    return frame


def with_codes_left_out(frame: bytes) -> bool:
    """Whether a frame asks, by now, for one of `LEFT_OUT`, as far as can be seen."""
    if len(frame) < 8:
        return False
    codec, header, _ = parts(frame)
    if codec == 1:
        return len(header) > 1 and int.from_bytes(header[:2], "big") in LEFT_OUT
    packed = header.replace(b" ", b"")
    return any(text in packed for text in _LEFT_OUT_TEXTS)


def _with_other_fields(header: bytes, chance: Random) -> bytes:
    try:
        head = json.loads(header)
    except ValueError:
        return _with_other_bytes(header, chance)
    fields = head.get("extFields") if isinstance(head, dict) else None
    if not isinstance(fields, dict):
        return header
    for _ in range(chance.choice((1, 1, 2, 5))):
        if fields and chance.randrange(4):
            _change_one(fields, chance)
        else:
            head[chance.choice(("code", "flag", "opaque", "version"))] = chance.choice(NUMBERS)
    return json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()


def _with_other_binary_fields(header: bytes, chance: Random) -> bytes:
    try:
        head = decode_head(BINARY, header)
    except RemoteProtocolError:
        return _with_other_bytes(header, chance)
    fields = dict(head.ext)
    for _ in range(chance.choice((1, 1, 2, 5))):
        if fields:
            _change_one(fields, chance)
    whole = encode_head(
        code=head.code, opaque=head.opaque, flag=head.flag, ext=fields, remark=head.remark,
        codec=BINARY, version=head.version,
    )  # fmt: skip
    return whole[8:]


def _change_one(fields: dict[str, str], chance: Random) -> None:
    name = chance.choice(sorted(fields))
    if chance.randrange(6) == 0:
        del fields[name]
    else:
        fields[name] = chance.choice(_VALUES)


def _with_other_bytes(data: bytes, chance: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if not changed:
            return chance.choice(BODIES)
        at = chance.randrange(len(changed))
        kind = chance.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x5C, 0x7B))
        elif kind == 2:
            del changed[at : at + chance.choice((1, 4, 40))]
        else:
            changed[at:at] = changed[at : at + chance.choice((1, 4, 40))]
    return bytes(changed)
