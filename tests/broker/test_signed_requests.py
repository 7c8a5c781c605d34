"""A broker with accounts: what the core decides together has the answers, the order and the effects
of requests that are checked one by one."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cometmq.acl import control
from cometmq.acl.control import AccessControl
from cometmq.acl.files import AclFiles
from cometmq.acl.rules import AclRules
from cometmq.core.clock import SystemClock
from cometmq.message.record import Record, iter_decode
from cometmq.net.peer import Peer
from cometmq.net.router import Router
from cometmq.protocol.acl import Credentials, signed
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import BINARY, JSON, Head, encode_head
from tests.broker.serving import (
    BrokerClient,
    RunningBroker,
    pull_fields,
    running_broker,
    send_fields,
)

ALICE = Credentials("alice-key", "secret-of-alice")
ADMIN = Credentials("admin-key", "secret-of-admin")
STRANGER = Credentials("nobody-key", "secret-of-nobody")
RULES = """\
accounts:
- accessKey: admin-key
  secretKey: secret-of-admin
  admin: true
- accessKey: alice-key
  secretKey: secret-of-alice
  topicPerms:
  - t=PUB|SUB
  groupPerms:
  - g=SUB
"""
PREPARED = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01k"
#: Code of a refusal, as upstream.
REFUSED = 1


@asynccontextmanager
async def guarded(home: Path, rules: str = RULES) -> AsyncIterator[tuple[RunningBroker, Any]]:
    """A broker with accounts, a queue that its core knows, and a connection to it."""
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(rules)
    async with running_broker(home, aclEnable="true") as running:
        client = await running.connect()
        head = await ask(client, send(by=ADMIN))
        assert head.code == 0, head.remark
        yield running, client


def frame(
    code: int,
    ext: dict[str, Any],
    body: bytes = b"",
    *,
    by: Credentials | None = ALICE,
    opaque: int = 1,
    codec: int = JSON,
) -> bytes:
    """A request, signed by an account."""
    fields = ext if by is None else ext | signed(by, ext, body)
    head = encode_head(
        code=code, opaque=opaque, flag=0, ext=fields, codec=codec, body_bytes=len(body)
    )
    return head + body


def send(body: bytes = b"body", *, by: Credentials | None = ALICE, **changes: Any) -> bytes:
    options = {name: changes.pop(name) for name in ("opaque", "codec") if name in changes}
    return frame(RequestCode.SEND_MESSAGE_V2, send_fields(**changes), body, by=by, **options)


def pull(offset: int, *, by: Credentials | None = ALICE, opaque: int = 1, **changes: Any) -> bytes:
    fields = pull_fields(offset, **changes)
    return frame(RequestCode.PULL_MESSAGE, fields, by=by, opaque=opaque)


async def ask(client: BrokerClient, *requests: bytes) -> Head:
    """Write requests in one piece, and read the answer to the last."""
    client.writer.write(b"".join(requests))
    for _ in requests:
        head, _ = await client.frame()
    return head


async def answers(client: BrokerClient, requests: list[bytes]) -> dict[int, tuple[int, str]]:
    """Code and remark of each answer by its opaque, in the order of arrival."""
    client.writer.write(b"".join(requests))
    heads = [(await client.frame())[0] for _ in requests]
    return {head.opaque: (head.code, head.remark or "") for head in heads}


async def alone(client: BrokerClient, request: bytes) -> tuple[int, str]:
    """The answer to a request that comes in two pieces, and so is not taken together."""
    client.writer.write(request[:20])
    await client.writer.drain()
    await asyncio.sleep(0)
    client.writer.write(request[20:])
    head, _ = await client.frame()
    return head.code, head.remark or ""


@pytest.mark.core
async def test_refused_sends_stand_between_others(tmp_path: Path) -> None:
    refused = {
        3: (send(by=None, opaque=3), "No accessKey is configured"),
        4: (send(by=STRANGER, opaque=4), "No acl config for nobody-key"),
        9: (
            send(by=Credentials("alice-key", "another-secret"), opaque=9),
            "Check signature failed for accessKey=alice-key",
        ),
        17: (send(b="u", opaque=17), "No default permission for topic:u"),
    }
    requests = [
        refused[number][0] if number in refused else send(b"%d" % number, opaque=number)
        for number in range(40)
    ]
    async with guarded(tmp_path) as (running, client):
        found = await answers(client, requests)
        for number in range(40):
            code, remark = found[number]
            assert code == (REFUSED if number in refused else 0)
            if number in refused:
                assert refused[number][1] in remark
                assert (code, remark) == await alone(client, refused[number][0])
        queue = running.broker.store.find_queue("t", 1)
        assert queue is not None
        assert queue.max_offset == 1 + 36
        head, records = await pulled(client, 1)
        assert head.code == 0
        bodies = [int(record.body) for record in records]
        assert bodies == [number for number in range(40) if number not in refused][:32]
        assert running.broker.store.find_queue("u", 1) is None


async def pulled(client: BrokerClient, offset: int) -> tuple[Head, list[Record]]:
    client.writer.write(pull(offset))
    head, body = await client.frame()
    return head, list(iter_decode(body))


@pytest.mark.core
@pytest.mark.parametrize("codec", [JSON, BINARY])
async def test_headers_of_both_codecs_are_checked(tmp_path: Path, codec: int) -> None:
    async with guarded(tmp_path) as (_, client):
        assert (await ask(client, send(codec=codec))).code == 0
        assert (await ask(client, send(codec=codec, by=STRANGER))).code == REFUSED


@pytest.mark.core
async def test_pulls_are_checked(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, client):
        for offset, by, expected in (
            (0, ALICE, 0), (0, STRANGER, REFUSED), (0, None, REFUSED), (1, ALICE, 19),
        ):  # fmt: skip
            assert (await ask(client, pull(offset, by=by))).code == expected
        head = await ask(client, pull(0, consumerGroup="h"))
        assert (head.code, "group:h" in (head.remark or "")) == (REFUSED, True)


@pytest.mark.core
async def test_transactions_are_checked(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (running, client):
        head = await ask(client, *[send(i=PREPARED, f="4")] * 3)
        assert head.code == 0, head.remark
        place = head.ext["msgId"][16:]
        ext = {
            "commitLogOffset": str(int(place, 16)), "commitOrRollback": "8",
            "fromTransactionCheck": "false", "msgId": head.ext["msgId"],
            "producerGroup": "producers", "tranStateTableOffset": head.ext["queueOffset"],
            "transactionId": "k",
        }  # fmt: skip
        index = running.broker.transactions.open.index
        before = len(index.halves)
        assert (await ask(client, frame(37, ext, by=STRANGER))).code == REFUSED
        assert len(index.halves) == before
        assert (await ask(client, frame(37, ext))).code == 0
        assert len(index.halves) == before - 1


@pytest.mark.core
async def test_a_place_in_the_log_shows_no_message_of_another_topic(tmp_path: Path) -> None:
    """Neither by its offset, nor through a retry, nor through a consumer of the group."""
    beat = {
        "clientID": "c@1", "producerDataSet": [],
        "consumerDataSet": [{
            "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [],
            "unitMode": False,
        }],
    }  # fmt: skip
    async with guarded(tmp_path) as (running, client):
        consumer = await running.connect()
        head = await ask(consumer, frame(34, {}, msgspec.json.encode(beat)))
        while head.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            head, _ = await consumer.frame()
        assert head.code == 0
        own = await ask(client, send(b"own"))
        other = await ask(client, send(b"other", by=ADMIN, b="u"))
        waits = await ask(client, send(b"waits", by=ADMIN, b="u", i="DELAY\x015"))
        prepared = await ask(client, send(b"half", by=ADMIN, b="u", f="4", i=PREPARED))
        for head in (other, waits, prepared):
            assert head.code == 0, head.remark
            msg_id = head.ext["msgId"]
            place = str(int(msg_id[16:], 16))
            back = {"offset": place, "group": "g", "originTopic": "t", "delayLevel": "0"}
            directly = {"consumerGroup": "g", "clientId": "c@1", "msgId": msg_id}
            for code, fields in ((33, {"offset": place}), (36, back), (309, directly)):
                found = await ask(client, frame(code, fields))
                assert found.code == REFUSED
                if code != 36 or head is other:
                    assert "No default permission for topic:u" in (found.remark or "")
            assert (await ask(client, frame(33, {"offset": place}, by=ADMIN))).code == 0
        assert running.broker.store.find_queue("%RETRY%g", 0) is None
        assert running.broker.scheduled.delay.progress() == {5: (0, 1)}
        place = str(int(own.ext["msgId"][16:], 16))
        assert (await ask(client, frame(33, {"offset": place}))).code == 0
        back = {"offset": place, "group": "g", "originTopic": "t", "delayLevel": "0"}
        assert (await ask(client, frame(36, back))).code == 0


async def in_force(access: AccessControl, home: Path, rules: str) -> None:
    """Write other rules, and wait until they are in force."""
    before = access.content
    (home / "conf" / "plain_acl.yml").write_text(rules)
    async with asyncio.timeout(60):
        while access.content is before:
            await asyncio.sleep(0.01)


@pytest.mark.core
async def test_changed_rules_are_in_force_for_the_next_read(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (running, client):
        access = running.broker.access
        assert access is not None
        assert (await ask(client, *[send()] * 8)).code == 0
        await in_force(access, tmp_path, RULES.replace("t=PUB|SUB", "t=SUB"))
        found = await answers(client, [send(opaque=number) for number in range(8)])
        assert {code for code, _ in found.values()} == {REFUSED}
        assert (await ask(client, pull(0))).code == 0
        await in_force(access, tmp_path, RULES.replace("secret-of-alice", "other-of-alice"))
        head = await ask(client, send())
        assert "Check signature failed" in (head.remark or "")
        other = Credentials("alice-key", "other-of-alice")
        assert (await ask(client, *[send(by=other)] * 8)).code == 0
        listed = "globalWhiteRemoteAddresses:\n- 127.0.0.*\n" + RULES
        await in_force(access, tmp_path, listed)
        assert (await ask(client, *[send(by=None)] * 8)).code == 0
        await in_force(access, tmp_path, RULES + "  whiteRemoteAddress: 127.0.0.1\n")
        assert (await ask(client, send(by=None))).code == REFUSED
        head = await ask(client, *[send(by=Credentials("alice-key", "wrong"))] * 8)
        assert head.code == 0, head.remark


@pytest.mark.core
@pytest.mark.parametrize("subscription", ["*", "red || blue"])
@pytest.mark.parametrize("wakes", [True, False], ids=["a message", "its deadline"])
async def test_a_held_pull_gets_no_message_under_other_rules(
    tmp_path: Path, subscription: str, wakes: bool
) -> None:
    """Its client pulls again, and is refused then."""
    async with guarded(tmp_path) as (running, client):
        sender = await running.connect()
        hold: dict[str, Any] = {
            "sysFlag": "6", "suspendTimeoutMillis": "60000" if wakes else "500",
            "subscription": subscription,
        }  # fmt: skip
        longpoll = running.broker.pull.handler.longpoll
        for by in (ALICE, ADMIN):
            puller = client if by is ALICE else await running.connect()
            puller.writer.write(b"".join(pull(1, by=by, opaque=n, **hold) for n in range(3)))
        async with asyncio.timeout(60):
            while longpoll.count != 6:
                await asyncio.sleep(0.001)
        access = running.broker.access
        assert access is not None
        await in_force(access, tmp_path, RULES.partition("- accessKey: alice-key")[0])
        if wakes:
            assert (await ask(sender, send(by=ADMIN, i="TAGS\x01red"))).code == 0
        for connection in (client, puller):
            for _ in range(3):
                head, body = await connection.frame()
                assert (head.code, head.ext["nextBeginOffset"], body) == (19, "1", b"")
                assert head.ext["maxOffset"] == "1"
        assert (await ask(client, pull(1))).code == REFUSED
        assert (await ask(puller, pull(1, by=ADMIN))).code == (0 if wakes else 19)


@pytest.mark.compiled
async def test_signed_requests_are_taken_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is refused, or not plain, is checked alone."""
    checked: list[int] = []
    check = AccessControl.check

    def counted(self: AccessControl, peer: Any, request: Any) -> None:
        checked.append(request.code)
        check(self, peer, request)

    monkeypatch.setattr(AccessControl, "check", counted)
    async with guarded(tmp_path) as (running, client):
        assert (await ask(client, pull(0), send())).code == 0  # the core knows the queue now
        checked.clear()
        assert (await ask(client, *[send()] * 50)).code == 0
        assert (await ask(client, *[pull(0)] * 8)).code == 0
        assert checked == []
        await answers(client, [send(by=STRANGER, opaque=1), *[send(opaque=2)] * 9])
        assert checked == [310]
        access = running.broker.access
        assert access is not None
        assert "secret" not in repr(vars(access)["_caches"])
        assert len(vars(access)["_caches"]) == 1


@pytest.mark.compiled
async def test_what_is_refused_again_and_again_is_not_decided_together_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each signature of the worst client would be computed twice; it may be good every other time.
    Once its requests are right, they are decided together again.
    """
    together: list[object] = []
    cache = AccessControl.cache

    def counted(self: AccessControl, peer: Any) -> Any:
        together.append(peer)
        return cache(self, peer)

    monkeypatch.setattr(AccessControl, "cache", counted)
    async with guarded(tmp_path) as (_, client):
        wrong = Credentials("alice-key", "another-secret")
        for frames in (
            [send(by=wrong, opaque=number) for number in range(256)],
            [send(by=wrong if number % 2 else ALICE, opaque=number) for number in range(256)],
            [pull(0, by=wrong if number % 2 else ALICE, opaque=number) for number in range(256)],
        ):
            together.clear()
            found = await answers(client, frames)
            assert sum(code == REFUSED for code, _ in found.values()) in (128, 256)
            assert len(together) <= 256 // 16
        for _ in range(4):  # each in a read of its own
            assert (await ask(client, *[send()] * 32)).code == 0
        together.clear()
        assert (await ask(client, *[send()] * 32)).code == 0
        assert together


@pytest.mark.compiled
async def test_a_broker_without_accounts_takes_signed_requests_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the fields of a signature, whatever they are."""
    alone: list[int] = []
    handle = Router.handle

    def counted(self: Router, peer: Any, event: Any) -> None:
        alone.append(event.code)
        handle(self, peer, event)

    monkeypatch.setattr(Router, "handle", counted)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        for _ in range(2):  # the core knows the queue then
            assert (await ask(client, send())).code == 0
        alone.clear()
        for by in (ALICE, STRANGER, None):
            assert (await ask(client, *[send(by=by)] * 20)).code == 0
            assert (await ask(client, *[pull(0, by=by)] * 20)).code == 0
        assert alone == []


class _Caller:
    """What access control looks at of a connection from an address."""

    note_decision = Peer.note_decision
    refused = 0
    is_checked_alone = False

    def __init__(self, host: str) -> None:
        self.host = self.address = host
        self.host_bytes = ip_address(host).packed + bytes(4)
        self.decisions: tuple[object, object] = (None, None)


def peer_at(host: str) -> Any:
    return _Caller(host)


def test_addresses_that_the_same_accounts_trust_share_their_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the memory for them does not grow with the number of addresses."""
    monkeypatch.setattr(control, "_HOSTS_MAX", 4)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses:\n- 10.9.9.9\n" + RULES + "  whiteRemoteAddress: 10.0.0.*\n"
    )
    access = AccessControl(AclFiles(str(tmp_path), lambda: 0), SystemClock())
    first = access.cache(peer_at("10.1.0.1"))
    assert first is not None
    assert access.cache(peer_at("10.1.0.1")) is first
    assert access.cache(peer_at("fe80::1")) is first
    trusted = access.cache(peer_at("10.0.0.1"))
    assert trusted is access.cache(peer_at("10.0.0.2")) is not first
    assert access.cache(peer_at("10.9.9.9")) is None
    assert len(vars(access)["_caches"]) == 4, "only the oldest was dropped"
    assert access.cache(peer_at("10.1.0.1")) is first
    assert len(vars(access)["_shared"]) == 2


async def test_files_that_cannot_be_read_now_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else an account that was revoked meanwhile would stay until the next change."""
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf" / "plain_acl.yml"
    path.write_text(RULES)
    access = AccessControl(AclFiles(str(tmp_path), lambda: 0), SystemClock())
    path.write_text(RULES.partition("- accessKey: alice-key")[0])

    def failing(self: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing)
        for _ in range(3):
            await access._look()
    assert ALICE.access_key in access.content.rules.accounts
    assert caplog.text.count("acl files not in force") == 1
    await access._look()
    assert ALICE.access_key not in access.content.rules.accounts


def test_only_a_proved_account_is_named(tmp_path: Path) -> None:
    """Not the text of a request from an address that needs no account."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses:\n- 10.9.9.9\n" + RULES
    )
    access = AccessControl(AclFiles(str(tmp_path), lambda: 0), SystemClock())
    fields = {"topic": "t", "AccessKey": ALICE.access_key}
    forged: Any = SimpleNamespace(code=310, fields={"b": "t", **fields}, body=b"")
    assert access.check(peer_at("10.9.9.9"), forged) is None
    signed_fields = {"topic": "t", **signed(ALICE, {"topic": "t"})}
    proved: Any = SimpleNamespace(code=10, fields=signed_fields, body=b"")
    assert access.check(peer_at("10.1.0.1"), proved) == ALICE.access_key


def test_the_decisions_about_a_connection_are_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though more addresses are connected than are kept: each look goes through all accounts."""
    monkeypatch.setattr(control, "_HOSTS_MAX", 2)
    looks: list[str] = []
    trusting = AclRules.trusting

    def counted(self: AclRules, host: str) -> frozenset[str]:
        looks.append(host)
        return trusting(self, host)

    monkeypatch.setattr(AclRules, "trusting", counted)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(RULES)
    access = AccessControl(AclFiles(str(tmp_path), lambda: 0), SystemClock())
    connections = [peer_at(f"10.1.0.{number}") for number in range(8)]
    for _ in range(3):
        for connection in connections:
            assert access.cache(connection) is not None
    assert len(looks) == 8
    access.cache(peer_at("10.1.0.7"))  # another connection of an address that is kept
    assert len(looks) == 8
