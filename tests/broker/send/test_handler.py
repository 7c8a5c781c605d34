"""Sends over a socket to a whole broker: what is stored, what is answered, what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cometmq.broker.send import admission
from cometmq.broker.send.admission import Admission
from cometmq.core.errors import BadRequest
from cometmq.message import batch, properties
from cometmq.net import server as servers
from cometmq.net.peer import Peer
from cometmq.net.resources import MemoryBudget
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import BINARY, FLAG_ONEWAY, JSON, Request, encode_head
from tests.broker.serving import BATCH, NO_SPACE, SEND, FailingFiles, running_broker, send_fields
from tests.net.serving import until


def long_names(fields: dict[str, Any]) -> dict[str, Any]:
    """V2 fields under the names of the first version."""
    names = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
        "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
        "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
    }  # fmt: skip
    return {names[key]: value for key, value in fields.items()}


async def test_a_message_is_answered_with_its_place_and_stored_as_sent(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        heads = [await client.send(f"body {n}".encode()) for n in range(3)]
        _, records = await client.pull()
    assert [head.code for head in heads] == [0, 0, 0]
    assert [head.ext["queueOffset"] for head in heads] == ["0", "1", "2"]
    assert {head.ext["queueId"] for head in heads} == {"1"}
    assert heads[0].ext["MSG_REGION"] == "DefaultRegion"
    assert heads[0].ext["TRACE_ON"] == "true"
    port = running.broker.port
    for head, record in zip(heads, records, strict=True):
        assert head.ext["msgId"] == f"7F000001{port:08X}{record.physical_offset:016X}"
    first = records[0]
    assert (first.topic, first.body, first.flag, first.born_ms) == (
        "t", b"body 0", 7, 1_700_000_000_000,
    )  # fmt: skip
    assert properties.decode(first.properties) == {
        "UNIQ_KEY": "U1",
        "TAGS": "red",
        "CLUSTER": "DefaultCluster",
    }


async def test_sends_create_topics_up_to_a_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path) as running:
        topics = running.broker.topics.table
        running.broker.config.max_topics = len(topics) + 1
        client = await running.connect()
        first = await client.send(b="first")
        refused = [await client.send(b=name) for name in ("second", "%DLQ%nobody")]
        again = await client.send(b="first")
        assert "second" not in topics
        running.broker.config.max_topics = 0
        unlimited = await client.send(b="second")
    assert [head.code for head in (first, again, unlimited)] == [0, 0, 0]
    assert [head.code for head in refused] == [ResponseCode.TOPIC_NOT_EXIST] * 2
    assert caplog.text.count("limit_reached limit=topics") == 2
    assert all("raise maxTopics" in (head.remark or "") for head in refused)


async def test_topics_of_groups_are_bounded_by_their_groups(tmp_path: Path) -> None:
    """However many topics there are, a consumer can send messages back. Retry topics are created
    for known groups only."""
    async with running_broker(tmp_path) as running:
        topics, config = running.broker.topics.table, running.broker.config
        client = await running.connect()
        assert (await client.send()).code == 0
        for name in ("one", "two"):
            running.broker.consumers.groups.put(SubscriptionGroupConfig(name))
        config.max_topics = len(topics) + 1
        back = [await client.send(b=f"%RETRY%{name}", e="0") for name in ("one", "two")]
        assert [head.code for head in back] == [0, 0]
        assert (await client.send(b="last")).code == 0  # retry topics do not count
        late = [await client.send(b=name) for name in ("late", "%DLQ%one", "%DLQ%nobody")]
        assert [head.code for head in late] == [ResponseCode.TOPIC_NOT_EXIST] * 3
        config.max_topics += 1
        letters = [await client.send(b=f"%DLQ%{name}") for name in ("one", "two")]
        assert [head.code for head in letters] == [0, ResponseCode.TOPIC_NOT_EXIST]
        for automatic in (True, False):
            config.auto_create_subscription_group = automatic
            config.max_subscription_groups = 1
            head = await client.send(b="%RETRY%nobody", e="0")
            assert head.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "%RETRY%nobody" not in topics


async def test_a_refused_creation_names_its_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path, autoCreateTopicEnable="false") as running:
        running.broker.config.max_topics = 1
        client = await running.connect()
        head = await client.send(b="fresh")
        assert head.code == ResponseCode.TOPIC_NOT_EXIST
        assert "set autoCreateTopicEnable=true" in (head.remark or "")
        assert "limit_reached limit=topics" not in caplog.text


async def test_every_form_of_send_is_understood(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        v1, _ = await client.ask(RequestCode.SEND_MESSAGE, b"v1", **long_names(send_fields()))
        binary, _ = await client.ask(SEND, b"binary", BINARY, **send_fields())
        random_queue = await client.send(e="-1")
        _, records = await client.pull()
    assert [head.code for head in (v1, binary, random_queue)] == [0, 0, 0]
    assert binary.ext["queueOffset"] == "1"
    assert int(random_queue.ext["queueId"]) in range(4)
    assert [record.body for record in records][:2] == [b"v1", b"binary"]


async def test_oneway_sends_are_stored_and_not_answered(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        client.writer.write(encode_head(code=SEND, opaque=99, flag=FLAG_ONEWAY, ext=send_fields()))
        head = await client.send()
        assert (head.opaque, head.ext["queueOffset"]) == (1, "1")


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"b": "unknown", "c": "no-such-default"}, 17, "cometmq topic create"),
        ({"b": "bad name!"}, 1, "illegal characters"),
        ({"b": " "}, 1, "blank"),
        ({"b": "x" * 128}, 1, "127"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, 16, "forbidden"),
        ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, 16, "forbidden"),
        ({"e": "4"}, 1, "4 write queues"),
        ({"f": "4"}, 13, "TRAN_MSG"),
        ({"i": "K\x01" + "v" * 32_766}, 13, "32767"),
        ({"b": "%RETRY%unknown-group"}, 26, "unknown-group"),
        ({"g": "soon"}, 1, "field g"),
        ({"e": "9999999999"}, 1, "32 bits"),
    ],
)
async def test_refusals_name_the_cause_and_store_nothing(
    tmp_path: Path, changes: dict[str, Any], code: int, says: str
) -> None:
    async with running_broker(tmp_path, autoCreateSubscriptionGroup="false") as running:
        client = await running.connect()
        assert (await client.send()).code == 0
        head = await client.send(**changes)
        assert head.code == code
        assert says in (head.remark or "")
        assert (await client.send()).ext["queueOffset"] == "1"


async def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, maxMessageSize="1000") as running:
        client = await running.connect()
        for code in (SEND, BATCH):
            head = await client.send(bytes(1001), code=code)
            assert head.code == 13
            assert "raise maxMessageSize" in (head.remark or "")
        assert (await client.send(bytes(1000))).ext["queueOffset"] == "0"


async def test_topics_are_created_after_the_default_only_when_allowed(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "a") as running:
        client = await running.connect()
        assert (await client.send(b="fresh", d="3", e="2")).code == 0
        created = running.broker.topics.table.get("fresh")
        assert created is not None
        assert (created.write_queue_nums, created.perm) == (3, 6)
    async with running_broker(tmp_path / "b", autoCreateTopicEnable="false") as running:
        client = await running.connect()
        head = await client.send()
        assert head.code == 17
        assert "autoCreateTopicEnable" in (head.remark or "")


async def test_a_topic_without_write_permission_takes_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic="t", defaultTopic="TBW102", readQueueNums="4", writeQueueNums="4", perm="4",
            topicFilterType="SINGLE_TAG", topicSysFlag="0", order="false",
        )  # fmt: skip
        assert (await client.send()).code == 16


async def test_a_delayed_message_waits_in_the_queue_of_its_level(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.send()
        head = await client.send(i="UNIQ_KEY\x01U\x02DELAY\x0118\x02WAIT\x01true")
        assert (head.code, head.ext["queueId"]) == (0, "17")
        _, records = await client.pull(topic="SCHEDULE_TOPIC_XXXX", queueId="17")
    (record,) = records
    found = properties.decode(record.properties)
    assert (found["REAL_TOPIC"], found["REAL_QID"], found["DELAY"]) == ("t", "1", "18")
    assert "WAIT" not in found


async def test_a_retry_that_was_tried_often_enough_is_a_dead_letter(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        fields: dict[str, Any] = {"b": "%RETRY%g", "e": "0", "i": "DELAY\x013"}
        delayed = await client.send(**fields, j="2", l="3")
        assert (delayed.code, delayed.ext["queueId"]) == (0, "2")
        dead = await client.send(b"dead", **fields, j="3", l="3")
        assert dead.code == 0
        _, records = await client.pull(topic="%DLQ%g", queueId="0")
    assert [(record.body, record.reconsume_times) for record in records] == [(b"dead", 3)]


def batch_body(count: int) -> bytes:
    return batch.pack(
        (n, f"body {n}".encode(), f"UNIQ_KEY\x01U{n}\x02TAGS\x01t{n % 2}".encode())
        for n in range(count)
    )


@pytest.mark.parametrize("code", [SEND, BATCH])
async def test_a_batch_gets_consecutive_offsets_and_an_id_a_message(
    tmp_path: Path, code: int
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.send()
        head = await client.send(batch_body(5), code=code, m="true", i="WAIT\x01true\x02A\x01b")
        _, records = await client.pull(1)
    assert (head.code, head.ext["queueOffset"]) == (0, "1")
    prefix = f"7F000001{running.broker.port:08X}"
    assert head.ext["msgId"] == ",".join(
        f"{prefix}{record.physical_offset:016X}" for record in records
    )
    assert [record.queue_offset for record in records] == [1, 2, 3, 4, 5]
    assert [record.body for record in records] == [f"body {n}".encode() for n in range(5)]
    assert properties.decode(records[3].properties) == {
        "UNIQ_KEY": "U3", "TAGS": "t1", "A": "b", "CLUSTER": "DefaultCluster",
    }  # fmt: skip


async def test_an_id_of_the_batch_hides_none_of_its_messages(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        of_batch = "A\x01b\x02UNIQ_KEY\x01UB\x02WAIT\x01true"
        bare = batch.pack([(0, b"bare", b"")])
        for body in (batch_body(3), bare):
            assert (await client.send(body, code=BATCH, i=of_batch)).code == 0
        _, records = await client.pull()
    found = [properties.decode(record.properties) for record in records]
    assert [each["UNIQ_KEY"] for each in found] == ["U0", "U1", "U2", "UB"]
    assert {each["A"] for each in found} == {"b"}


@pytest.mark.parametrize(
    ("changes", "body", "code", "says"),
    [
        ({"b": "%RETRY%g", "e": "0"}, batch_body(1), 13, "retry"),
        ({"f": "4"}, batch_body(1), 13, "transaction"),
        ({"i": "DELAY\x013"}, batch_body(1), 13, "delayed"),
        ({}, b"", 13, "batch"),
        ({}, b"\0\0\0\x05junk", 13, "batch"),
        ({}, batch_body(3)[:-2], 13, "batch"),
    ],
    ids=["retry", "transaction", "delay", "empty", "junk", "cut off"],
)
async def test_batches_that_cannot_be_stored_whole_are_refused(
    tmp_path: Path, changes: dict[str, Any], body: bytes, code: int, says: str
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        head = await client.send(body, code=BATCH, **changes)
        assert head.code == code
        assert says in (head.remark or "")
        assert (await client.send(batch_body(2), code=BATCH)).ext["queueOffset"] == "0"


async def test_hooks_see_sends_that_succeed_and_can_refuse(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    class Hook:
        def before(self, peer: Peer, request: Request[Any]) -> None:
            if request.body == b"refuse":
                raise BadRequest(16, "not this one")

        def after(self, peer: Peer, request: Request[Any], code: int, count: int) -> None:
            seen.append((request.header.topic, code, count))

    async with running_broker(tmp_path) as running:
        running.broker.send_hooks.add(Hook())
        client = await running.connect()
        assert (await client.send(b"take")).ext["queueOffset"] == "0"
        assert (await client.send(b"refuse")).code == 16
        assert (await client.send(batch_body(3), code=BATCH)).code == 0
        assert (await client.send(b"no batch", code=BATCH)).code == 13
        assert (await client.send(b"take", e="99")).code == 1
    assert seen == [("t", 0, 1), ("t", 0, 3), ("t", 13, 0), ("t", 1, 0)]


async def test_hooks_see_what_is_sent_back(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []

    class Hook:
        def before(self, peer: Peer, request: Request[Any]) -> None:
            return None

        def after(self, peer: Peer, request: Request[Any], code: int, count: int) -> None:
            seen.append((request.code, code, count))

    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.send()
        _, records = await client.pull()
        running.broker.send_hooks.add(Hook())
        back = {"group": "g", "delayLevel": "1"}
        offset = str(records[0].physical_offset)
        await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, b"", JSON, offset=offset, **back)
        await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, b"", JSON, offset="1", **back)
    assert seen == [(36, 0, 1), (36, 1, 0)]


async def test_a_congested_connection_is_told_to_send_slower(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.send()
        (peer,) = running.broker.server.peers
        peer.congested = True
        head = await client.send()
        assert head.code == 2
        assert (head.remark or "").startswith("[OVERLOAD]")
        _, records = await client.pull()
        assert len(records) == 1, "pulls go on"


async def test_a_fenced_broker_takes_no_sends_until_the_moment(tmp_path: Path) -> None:
    key = b"startAcceptSendRequestTimeStamp"
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        assert (await client.send()).code == 0
        for moment, code in ((b"99999999999999", 1), (b"1", 0)):
            head, _ = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, key + b"=" + moment)
            assert head.code == 0
            assert (await client.send()).code == code
            head = await client.send(batch.pack([(0, b"x", b"")]), code=BATCH, m="true")
            assert head.code == code
        _, records = await client.pull()
        assert len(records) == 3


async def test_a_fenced_broker_is_fenced_after_a_restart(tmp_path: Path) -> None:
    key = b"startAcceptSendRequestTimeStamp"
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        assert (await client.send()).code == 0
        await client.ask(RequestCode.UPDATE_BROKER_CONFIG, key + b"=99999999999999")
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        head = await client.send()
        assert (head.code, "startAcceptSendRequestTimeStamp" in (head.remark or "")) == (1, True)
        await client.ask(RequestCode.UPDATE_BROKER_CONFIG, key + b"=1")
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        assert (await client.send()).code == 0


@pytest.mark.compiled
async def test_sends_after_the_moment_are_taken_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, startAcceptSendRequestTimeStamp="1") as running:
        client = await running.connect()
        for _ in range(3):  # which create the topic and its queue
            assert (await client.send()).code == 0

        def alone(*_: object) -> None:
            raise AssertionError("served alone")

        monkeypatch.setattr(Admission, "check_load", alone)
        assert (await client.send()).code == 0


async def test_a_full_disk_is_code_14_and_nothing_of_the_turn_is_visible(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files) as running:
        client = await running.connect()
        await client.send(b"before")
        files.write_errno = NO_SPACE
        for _ in range(3):
            client.post(SEND, b"lost", **send_fields())
        heads = [(await client.frame())[0] for _ in range(3)]
        assert {head.code for head in heads} == {14}
        assert "free space" in (heads[0].remark or "")
        files.write_errno = 0
        async with asyncio.timeout(60):  # the store looks by itself whether there is room again
            while (again := await client.send(b"after")).code == 14:
                await asyncio.sleep(0.02)
        _, records = await client.pull()
    assert (again.code, again.ext["queueOffset"]) == (0, "1")
    assert [record.body for record in records] == [b"before", b"after"]


async def test_the_first_answer_waits_until_name_servers_know_the_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        announced = asyncio.Event()
        running.broker.topics.table.announced = announced.wait  # type: ignore[assignment]
        first, second = await running.connect(), await running.connect()
        first.post(SEND, b"1", **send_fields(b="fresh"))
        second.post(SEND, b"2", **send_fields(b="fresh"))
        assert (await first.ask(RequestCode.GET_MIN_OFFSET, topic="fresh", queueId="1"))[
            0
        ].code == 0
        assert (await second.ask(RequestCode.GET_MIN_OFFSET, topic="fresh", queueId="1"))[0].opaque
        announced.set()
        offsets = [(await client.frame())[0].ext["queueOffset"] for client in (first, second)]
        assert sorted(offsets) == ["0", "1"]


async def test_sends_that_wait_for_the_announcement_of_their_topic_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "MAX_WAITING_SENDS", 3)
    async with running_broker(tmp_path) as running:
        announced = asyncio.Event()
        topics = running.broker.topics.table
        sender, other = await running.connect(), await running.connect()
        assert (await other.send()).code == 0
        topics.announced = announced.wait  # type: ignore[assignment]
        answers = running.broker.answers
        for count in range(1, 4):
            sender.post(SEND, b"held", **send_fields(b="fresh"))
            await until(lambda count=count: answers.held_count == count)  # type: ignore[misc]
        refused = [await other.send(b=topic) for topic in ("fresh", "newer")]
        assert [head.code for head in refused] == [ResponseCode.SYSTEM_BUSY] * 2
        assert all("until name servers know" in (head.remark or "") for head in refused)
        assert caplog.text.count("limit_reached limit=newTopicSends") == 2
        assert "newer" not in topics
        assert (await other.send()).code == 0  # to a topic that is known
        announced.set()
        assert [(await sender.frame())[0].code for _ in range(3)] == [0, 0, 0]
        assert (answers.held_count, answers.held_bytes) == (0, 0)
        assert (await other.send(b="newer")).code == 0


@pytest.mark.parametrize("failing", ["saved", "announced"])
async def test_a_send_is_answered_although_its_topic_cannot_be_written_or_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    async with running_broker(tmp_path) as running:
        topics, answers = running.broker.topics.table, running.broker.answers

        def fail() -> NoReturn:
            raise RuntimeError("no such luck")

        async def fail_later() -> None:
            fail()

        if failing == "saved":
            monkeypatch.setattr(topics._table.file, "_encode", fail)
        else:
            monkeypatch.setattr(topics, "announced", fail_later)
        client = await running.connect()
        assert (await client.send(b="fresh")).code == 0
        assert (answers.held_count, answers.held_bytes) == (0, 0)
        await until(lambda: not answers.unannounced)
        assert "no such luck" in caplog.text
        assert "topics.json" in caplog.text or failing == "announced"
        monkeypatch.undo()


async def test_the_messages_of_a_batch_that_waits_for_an_announcement_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = MemoryBudget(1 << 20)
    monkeypatch.setattr(servers, "process_budget", lambda: budget)
    async with running_broker(tmp_path) as running:
        announced = asyncio.Event()
        topics, answers = running.broker.topics.table, running.broker.answers
        topics.announced = announced.wait  # type: ignore[assignment]
        sender, other = await running.connect(), await running.connect()
        messages = batch.pack((0, b"", b"") for _ in range(5_000))
        sender.post(BATCH, messages, **send_fields(b="fresh", m="true"))
        await until(lambda: answers.held_count == 1)
        assert (await other.send(b="fresh")).code == ResponseCode.SYSTEM_BUSY
        announced.set()
        assert (await sender.frame())[0].code == 0
        assert (answers.held_count, answers.held_bytes) == (0, 0)
