"""Signed requests: both cores allow the same of any stream, and nothing that the rules refuse."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.acl.requests import needs_of
from cometmq.acl.rules import AclRules, parse_rules
from cometmq.core.errors import AclDenied
from cometmq.protocol.acl import Credentials, signed
from cometmq.protocol.frame import decode_head
from cometmq.protocol.framer import Framer
from cometmq.speedups.plain.access import DECISIONS_MAX, NAMES_MAX_BYTES, SIGNED_MAX_BYTES
from cometmq.speedups.plain.headers import ALL_FIELDS_MAX
from tests.broker.serving import pull_fields
from tests.conftest import cores
from tests.speedups import test_pullanswers as pulls
from tests.speedups import test_sends as sends
from tests.speedups.test_sends import BATCH_BODIES, PROPERTIES, framed

HOST = "10.0.0.7"
ALICE = Credentials("alice-key", "secret-of-alice")
LISTED = Credentials("listed-key", "secret-of-listed")
LONG = Credentials("longer-key", "s" * 200)
STRANGER = Credentials("nobody-key", "secret-of-nobody")
ACCOUNTS = [
    {
        "accessKey": ALICE.access_key, "secretKey": ALICE.secret_key,
        "topicPerms": ["t=PUB|SUB", "ü漢=PUB"], "groupPerms": ["g=SUB"],
    },
    {"accessKey": LISTED.access_key, "secretKey": LISTED.secret_key, "whiteRemoteAddress": HOST},
    {"accessKey": LONG.access_key, "secretKey": LONG.secret_key, "admin": True},
]  # fmt: skip
RULES: AclRules = parse_rules({"acl.yml": {"accounts": ACCOUNTS}})[0]


def may(access_key: str, code: int, topic: str, group: str) -> bool:
    """Whether the rules allow a request of an account."""
    fields = {"topic": topic, "b": topic, "consumerGroup": group}
    try:
        RULES.account(HOST, access_key).check(code, needs_of(code, fields, b""), needs_admin=False)
    except AclDenied:
        return False
    return True


def made_cache(core: SimpleNamespace) -> Any:
    """The decisions of the rules for HOST."""
    return core.AccessCache(lambda access_key: RULES.secret_of(HOST, access_key), may)


def is_right(code: int, header: bytes, body: bytes) -> bool:
    """Whether the rules allow a request that is served alone."""
    fields = decode_head(0, header).ext
    try:
        account = RULES.authenticate(HOST, fields, body)
        assert account is not None
        account.check(code, needs_of(code, fields, body), needs_admin=False)
    except AclDenied:
        return False
    return True


def send_frame(
    changes: Mapping[str, str] | None = None,
    body: bytes = b"body",
    *,
    by: Credentials | None = ALICE,
    code: int = 310,
    more: Mapping[str, str] | None = None,
    escaped: bool = False,
) -> bytes:
    """A send that an account signed; ``more`` is added after that, or changed."""
    ext = sends.FIELDS | dict(changes or {})
    if code == 10:
        ext = {sends.NAMES[ord(name) - ord("a")]: value for name, value in ext.items()}
    return frame_of(code, ext, body, by=by, more=more, escaped=escaped)


def frame_of(
    code: int,
    ext: Mapping[str, str],
    body: bytes = b"",
    *,
    by: Credentials | None = ALICE,
    more: Mapping[str, str] | None = None,
    escaped: bool = False,
) -> bytes:
    fields = dict(ext) if by is None else {**ext, **signed(by, ext, body)}
    head = {"code": code, "extFields": fields | dict(more or {}), "flag": 0, "opaque": 7}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=escaped)
    return framed(text.encode("utf-8", "surrogatepass"), body)


def taken(core: SimpleNamespace, stream: bytes) -> tuple[int, int, int, bytes]:
    """What a core takes of the sends of a stream."""
    world = sends.World(core)
    found: tuple[int, int, int, bytes] = world.batch.append(
        stream, 0, sends.known_queues(core, world.queues), sends.BORN, sends.SUFFIX,
        sends.BODY_MAX_BYTES, 0, sends.FILE_BYTES, 1, 1_000, 1 << 30, made_cache(core),
    )  # fmt: skip
    return found


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize("by", [ALICE, LONG, Credentials(*("alice-key", "secret-of-alice"), "tok")])
def test_signed_sends_are_taken(core: SimpleNamespace, code: int, by: Credentials) -> None:
    for changes in ({}, {"i": 'a\x01"\\/\b\n😀漢'}, {"b": "ü漢", "e": "0"}, {"n": "broker-a"}):
        for body in (b"", b"x", b"x" * 4_000):
            for escaped in (False, "b" not in changes):
                frame = send_frame(changes, body, by=by, code=code, escaped=escaped)
                if "😀" in changes.get("i", "") and escaped:
                    continue  # pairs of surrogates are handled individually, signed or not
                assert taken(core, frame * 20)[0] == 20, (changes, escaped)


def test_a_send_from_a_listed_address_needs_no_signature(core: SimpleNamespace) -> None:
    for more in ({"Signature": "wrong"}, {}):
        frame = send_frame(by=LISTED, more=more)
        assert taken(core, frame)[0] == 1
    assert taken(core, send_frame(by=None, more={"AccessKey": "listed-key"}))[0] == 1


#: Sends that an individual decision refuses, or has to look at.
REFUSED = {
    "nobody": send_frame(by=None),
    "unknown": send_frame(by=STRANGER),
    "no name": send_frame(more={"AccessKey": ""}),
    "no signature": send_frame(by=None, more={"AccessKey": "alice-key"}),
    "an empty one": send_frame(more={"Signature": ""}),
    "a shorter one": send_frame(more={"Signature": "QUJD"}),
    "a wrong one": send_frame(more={"Signature": "A" * 27 + "="}),
    "another's": send_frame(by=Credentials("alice-key", "another-secret")),
    "another field": send_frame(more={"h": "9"}),
    "a field more": send_frame(more={"n": "broker-a"}),
    "a field that sorts first": send_frame(more={"A": "1"}),
    "another body": send_frame(body=b"body")[:-1] + b"x",
    "another topic": send_frame({"b": "u"}),
    "only for others": send_frame({"b": "%RETRY%g"}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_other_sends_are_left_and_cost_their_neighbours_nothing(
    core: SimpleNamespace, why: str
) -> None:
    good, bad = send_frame(), REFUSED[why]
    for before in (0, 1, 7, 15, 16, 17):
        found = taken(core, good * before + bad + good)
        assert found[:3] == (before, before * len(good), 1)


def test_fields_that_are_not_clear_are_left(core: SimpleNamespace) -> None:
    frame = send_frame()
    header, body = frame[8:-4], frame[-4:]
    for twice in (b'"n":"1","n":"1"', b'"z":"1","z":"1"', b'"AccessKey":"alice-key"'):
        doubled = header.replace(b'"extFields":{', b'"extFields":{' + twice + b",")
        assert taken(core, framed(doubled, body))[0] == 0
    many = {f"x{n:02}": "1" for n in range(ALL_FIELDS_MAX)}
    unsigned = len(sends.FIELDS) + 2
    for more in (0, 1):
        some = dict([*many.items()][: ALL_FIELDS_MAX - unsigned + more])
        ext = sends.FIELDS | some
        assert taken(core, frame_of(310, ext, b"body"))[0] == 1 - more


def test_long_requests_are_left(core: SimpleNamespace) -> None:
    world = sends.World(core)
    known = sends.known_queues(core, world.queues)
    names = len("".join(sends.FIELDS.values())) + len(ALICE.access_key)
    for size, expected in ((SIGNED_MAX_BYTES - names, 1), (SIGNED_MAX_BYTES - names + 1, 0)):
        frame = send_frame(body=b"x" * size)
        found = world.batch.append(
            frame, 0, known, sends.BORN, sends.SUFFIX, 1 << 20, 0, 1 << 30, 1, 9, 1 << 30,
            made_cache(core),
        )  # fmt: skip
        assert found[0] == expected


def test_decisions_are_kept_and_bounded(core: SimpleNamespace) -> None:
    asked: list[tuple[Any, ...]] = []

    def allows(*request: Any) -> bool:
        asked.append(request)
        return bool(request[2] != "no")

    cache = core.AccessCache(lambda _: b"", allows)
    fields = {b"AccessKey": b"k"}
    for _ in range(3):
        assert cache.permits(310, fields, b"", b"yes", b"")
    assert asked == [("k", 310, "yes", "")]
    for _ in range(3):
        assert not cache.permits(310, fields, b"", b"no", b"")
    assert len(asked) == 4, "a refusal is not kept"
    assert cache.permits(11, fields, b"", b"yes", b"g")
    assert not cache.permits(11, fields, b"", b"y" * NAMES_MAX_BYTES, b"g")
    assert not cache.permits(11, fields, b"", b"\xff", b"g")
    assert len(asked) == 5
    for number in range(DECISIONS_MAX):
        assert cache.permits(310, fields, b"", b"%d" % number, b"")
    asked.clear()
    assert cache.permits(11, fields, b"", b"yes", b"g")
    assert len(asked) == 1, "the oldest were dropped"
    assert "secret" not in repr(made_cache(core))


def test_an_error_of_the_rules_takes_nothing(core: SimpleNamespace) -> None:
    def fails(*_: object) -> Any:
        raise ZeroDivisionError

    for cache in (core.AccessCache(fails, may), core.AccessCache(lambda _: b"", fails)):
        world = sends.World(core)
        with pytest.raises(ZeroDivisionError):
            world.batch.append(
                send_frame(), 0, sends.known_queues(core, world.queues), sends.BORN, sends.SUFFIX,
                1 << 20, 0, 1 << 30, 1, 9, 1 << 30, cache,
            )  # fmt: skip
        assert world.batch.count == 0


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Sends, signed well or not, some of them damaged."""
    frames = []
    for _ in range(draw(st.integers(1, 20))):
        code = draw(st.sampled_from([10, 310, 310, 320]))
        changes = draw(
            st.fixed_dictionaries(
                {"e": st.sampled_from(["0", "1"]), "i": PROPERTIES},
                optional={"b": st.sampled_from(["ü漢", "u"]), "h": st.just("5")},
            )
        )
        if code == 320:
            changes |= {"m": "true", "i": "a\x01b"}
        frame = send_frame(
            changes,
            draw(st.binary(max_size=300) if code != 320 else BATCH_BODIES),
            by=draw(st.sampled_from([ALICE, ALICE, LONG, LISTED, STRANGER, None])),
            code=code,
            more=draw(
                st.dictionaries(
                    st.sampled_from(["Signature", "AccessKey", "x", "A", "i", "SecurityToken"]),
                    st.sampled_from(["", "listed-key", "alice-key", "A" * 27 + "=", "é"]),
                    max_size=draw(st.sampled_from([0, 0, 1, 2])),
                )
            ),
            escaped=draw(st.booleans()),
        )
        frames.append(frame)
    stream = bytearray(b"".join(frames))
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, len(stream) - 1), st.integers(0, 255)), max_size=1)
    ):
        stream[at] = value
    return bytes(stream)


def hardware() -> Iterator[str]:
    """Let the compiled core hash in each way that this processor can, one after the other."""
    if len(cores()) == 1:
        yield "plain"
        return
    access = import_module("cometmq.speedups.compiled.access")
    for sha in (False, True):
        for lanes in (0, 8, 16):
            if access.use_hardware(sha, lanes):
                yield f"sha={sha} lanes={lanes}"


def test_both_cores_take_the_same_and_only_what_the_rules_allow() -> None:
    """The ways to hash take turns; the last is the best that there is."""
    total = 0

    @settings(max_examples=5 * settings().max_examples)
    @given(streams())
    def same(stream: bytes) -> None:
        nonlocal total
        for _ in hardware():
            first, *others = [taken(core, stream) for core in cores()]
            assert others == [first] * len(others)
        framer = Framer()
        framer.receive_data(stream[: first[1]])
        for frame in framer.take(first[0]):
            code = int(decode_head(0, frame.header).code)
            assert is_right(code, frame.header, frame.body)
        total += first[0]

    same()
    assert total > settings().max_examples, "or it would prove nothing"


@given(
    rows=st.lists(
        st.tuples(st.binary(max_size=700), st.sampled_from([b"s" * 7, b"k" * 64, b"k" * 65])),
        min_size=1,
        max_size=40,
    )
)
def test_signatures_are_those_of_hashlib(rows: list[tuple[bytes, bytes]]) -> None:
    for _ in hardware():
        for core in cores():
            for number, (body, secret) in enumerate(rows):
                cache = core.AccessCache(lambda _, secret=secret: secret, lambda *_: True)
                text = b"%d" % number
                digest = hmac.new(secret, b"key" + text + body, hashlib.sha1).digest()
                fields = {b"b": text, b"AccessKey": b"key", b"Signature": b64encode(digest)}
                assert cache.permits(310, fields, body, b"t", b"")
                assert not cache.permits(310, fields, body + b"x", b"t", b"")


@given(lengths=st.lists(st.integers(0, 700), min_size=1, max_size=40), wrong=st.integers(0, 60))
def test_requests_of_different_lengths_are_decided_together(lengths: list[int], wrong: int) -> None:
    """The first wrong one, if there is any, ends what is taken."""
    numbers = count()
    frames = [
        send_frame(
            {"h": str(next(numbers))},
            b"y" * size,
            by=Credentials("alice-key", "another-secret") if at == wrong else ALICE,
        )
        for at, size in enumerate(lengths)
    ]
    for _ in hardware():
        for core in cores():
            assert taken(core, b"".join(frames))[0] == min(wrong, len(frames))


@pytest.mark.parametrize("code", [11, 361])
def test_signed_pulls_are_answered_and_others_left(core: SimpleNamespace, code: int) -> None:
    good = frame_of(code, pull_fields(5))
    fields: Any = pull_fields(5)
    for bad in (
        frame_of(code, fields, by=None),
        frame_of(code, fields, by=STRANGER),
        frame_of(code, fields, more={"queueOffset": "6"}),
        frame_of(code, fields | {"consumerGroup": "h"}),
        frame_of(code, fields | {"topic": "ü"}),
    ):
        world = pulls.World(core)
        frames, at, odd, _ = world.answers.take(good + bad, 0, 0, True, made_cache(core))
        assert (at, odd) == (len(good), 1)
        assert frames
        assert len([each for each in world.asked if each[0] == "plan"]) == 1
    listed = pulls.World(core)
    frame = frame_of(code, fields | {"consumerGroup": "h"}, by=LISTED)
    assert listed.answers.take(frame, 0, 0, True, made_cache(core))[1] == len(frame)


END_FIELDS = {
    "commitLogOffset": "0", "commitOrRollback": "8", "fromTransactionCheck": "false",
    "msgId": "0" * 32, "producerGroup": "g", "tranStateTableOffset": "0",
}  # fmt: skip


def test_ends_of_transactions_need_a_signature(core: SimpleNamespace) -> None:
    asked: list[Any] = []

    def allows(*request: Any) -> bool:
        asked.append(request)
        return True

    for frame, expected in (
        (frame_of(37, END_FIELDS), 1), (frame_of(37, END_FIELDS, by=STRANGER), 0),
        (frame_of(37, END_FIELDS, more={"msgId": "1" * 32}), 0),
    ):  # fmt: skip
        asked.clear()
        cache = core.AccessCache(lambda access_key: RULES.secret_of(HOST, access_key), allows)
        taken_with(core, frame, cache)
        assert asked == [("alice-key", 37, "", "")] * expected


def taken_with(core: SimpleNamespace, frame: bytes, cache: Any) -> None:
    world = sends.World(core)
    batch = core.TransactionBatch(sends.HOST, sends.FILE_BYTES)
    batch.append_all(
        frame, 0, sends.known_queues(core, world.queues), sends.BORN, sends.SUFFIX, 1 << 20, 0,
        1 << 20, 1, 9, 1 << 30, core.OpenTransactions(), None, cache,
    )  # fmt: skip
