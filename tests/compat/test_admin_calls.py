"""Calls of our administration, on Java name servers and brokers and on ours."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.bundle import write_bundle
from cometmq.admin.deadletters import DeadLetter, DeadLetters, Destination, ResendStatus
from cometmq.admin.groups import GroupInUse, Groups
from cometmq.admin.health import Aspect, HealthLimits, check_health, wait_until_healthy
from cometmq.admin.messages import (
    EARLIEST,
    LATEST,
    HalfMessage,
    Messages,
    Selection,
    at_offset,
    at_time,
)
from cometmq.admin.servers import Account, Servers
from cometmq.admin.traces import EventKind, MessageLife, Traces, TrackStatus
from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.core.errors import BadRequest, BrokerRefused, NotFound
from cometmq.message.model import Message
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.testing.cluster import ProcessCluster
from tests.admin.dead import die
from tests.client.shared_broker import fresh_name, fresh_topic, until_found, until_listed
from tests.compat import anchor
from tests.compat.conftest import SharedPeers, Target
from tests.compat.driver import Driver

pytestmark = pytest.mark.runs("cometmq", "java")


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(target.namesrv, send_timeout_ms=10_000) as client:
        yield client


@pytest.fixture
def admin(client: Client) -> Admin:
    return Admin(client.session)


@pytest.fixture
def messages(admin: Admin) -> Messages:
    return Messages(admin)


async def test_a_topic_is_browsed(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client)
    queues = await client.queues(topic)
    bodies = [b"%d" % at for at in range(100)]
    sent = [
        await client.send(topic, body, tag="ab"[at % 2], queue=queues[at % len(queues)])
        for at, body in enumerate(bodies)
    ]
    await until_listed(client, sent)
    found = [message async for message in messages.browse(topic)]
    assert [message.body for message in found] == bodies
    begin_ms = found[60].store_ms
    since = [message.body async for message in messages.browse(topic, at_time(begin_ms))]
    assert since == [message.body for message in found if message.store_ms >= begin_ms]
    selection = Selection(queues=frozenset({1}), filter="b")
    one = [each.body async for each in messages.browse(topic, at_offset(5), selection=selection)]
    assert one == bodies[21::4]


async def test_sql_selects_where_the_broker_allows_it(
    client: Client, admin: Admin, messages: Messages, target: Target
) -> None:
    topic = await fresh_topic(client, 1)
    sent = await client.send_many([Message(topic, b"", "ab"[at % 2]) for at in range(10)])
    await until_listed(client, sent)
    await admin.update_broker_config(target.broker, {"enablePropertyFilter": "true"})
    by_sql = Selection(filter="TAGS = 'a'", sql=True)
    assert len([each async for each in messages.browse(topic, selection=by_sql)]) == 5


async def test_a_topic_is_tailed(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 2)
    first, second = await client.queues(topic)
    await client.send(topic, b"stored", queue=first)
    tail = messages.tail(topic, EARLIEST)
    async with asyncio.timeout(60):
        assert (await anext(tail)).body == b"stored"
        following = asyncio.ensure_future(anext(tail))
        await client.send(topic, b"later", queue=second)
        assert (await following).body == b"later"
        await client.send(topic, b"last", queue=first)
        assert (await anext(tail)).body == b"last"


async def test_messages_are_found_and_copied(client: Client, messages: Messages) -> None:
    topic, other = await fresh_topic(client, 1), await fresh_topic(client, 1)
    sent = await client.send(Message(topic, b"one", "t", ("k",), properties={"p": "v"}))
    original = await messages.by_id(sent.offset_id)
    placed = await until_found(lambda: messages.by_place(sent.queue, 0))
    assert original.body == placed.body == b"one"
    with pytest.raises(NotFound):
        await messages.by_place(sent.queue, 1)
    await until_found(lambda: messages.by_unique_key(topic, sent.message_id))
    stored = await messages.copy(original, other)
    copy = await messages.by_id(stored.offset_id)
    assert (copy.topic, copy.body, copy.tag, copy.keys) == (other, b"one", "t", ("k",))
    assert copy.properties["p"] == "v"
    with pytest.raises(NotFound):
        await messages.by_id("0" * 32, topic)


async def test_a_member_consumes_one_message(client: Client, messages: Messages) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    sent = await client.send(topic, b"again")
    stored = await until_found(lambda: messages.by_place(sent.queue, 0))
    with pytest.raises(NotFound, match="no broker knows it"):
        await messages.consume(stored, group)

    async def handle(message: ReceivedMessage) -> None:
        assert message.body == b"again"

    async with client.subscribe(topic, group=group, start="last") as subscription:
        running = asyncio.ensure_future(subscription.run(handle))
        assert (await messages.consume(stored, group)).consume_result == "CR_SUCCESS"
        running.cancel()


async def halves_of(messages: Messages, topic: str) -> list[HalfMessage]:
    """Return the half messages of a topic, oldest first."""
    return [each async for each in messages.half_messages() if each.topic == topic]


async def test_half_messages(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 1)

    async def is_over() -> bool:
        return topic not in {each.topic for each in await messages.open_transactions()}

    async with client.transaction(topic, b"half"):
        # None until the name server has the topic of half messages.
        found = await until_found(lambda: halves_of(messages, topic))
        assert not await is_over()
    first, *checked = found  # on a busy machine the broker may have stored it again to check it
    assert (first.message.body, first.queue_id, first.checks) == (b"half", 0, 0)
    assert all(each.checks and each.message.body == b"half" for each in checked)
    await until_found(is_over)
    (trip,) = await messages.round_trips(topic)
    assert trip.error is None


async def test_a_check_begins_again(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 1)

    async with client.transaction(topic, b"half"):
        found = await until_found(lambda: halves_of(messages, topic))
        await messages.resume_check(found[0])
        assert topic in {each.topic for each in await messages.open_transactions()}


async def test_entries_of_a_queue(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 1)
    sent = await client.send(topic, b"1", tag="a")
    # Java's broker has no such queue, or answers without a body, until it has dispatched the
    # message.
    found = await until_found(
        lambda: messages.queue_entries(sent.queue, 0, 5), absent=(BadRequest, BrokerRefused)
    )
    assert (found.min_queue_index, found.max_queue_index) == (0, 1)
    place = (await messages.by_place(sent.queue, 0)).physical_offset
    assert [(each.physic_offset, each.tags_code) for each in found.queue_data] == [(place, 97)]


async def test_dead_letters_are_sent_again_once(client: Client, admin: Admin) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    await die(client, topic, group, [b"one"])
    dead = DeadLetters(admin)
    (listed,) = [each for each in await dead.groups() if each.group == group]
    assert listed.letters == 1
    (letter,) = [each async for each in dead.browse(group)]
    assert (letter.origin, letter.message.body) == (topic, b"one")
    assert (await dead.resend(letter)).outcome is ResendStatus.SENT
    await until_repeated(dead, letter, Destination.ORIGIN)
    assert (await dead.resend(letter, Destination.RETRY)).outcome is ResendStatus.SENT
    await until_repeated(dead, letter, Destination.RETRY)
    bodies = [each.body async for each in Messages(admin).browse(topic)]
    assert bodies == [b"one", b"one"]
    async with asyncio.timeout(60):
        async with client.subscribe(topic, group=group, start="last") as subscription:
            message = await anext(subscription)
            async with message.processing():
                assert (message.topic, message.body) == (topic, b"one")


async def until_repeated(dead: DeadLetters, letter: DeadLetter, destination: Destination) -> None:
    """Waits until the index has the copy that was sent to a destination."""

    async def is_repeated() -> bool:
        resent = await dead.resend(letter, destination, dry_run=True)
        return resent.outcome is ResendStatus.REPEATED

    await until_found(is_repeated)


async def test_groups_and_plans_of_offsets(client: Client, admin: Admin) -> None:
    groups = Groups(admin)
    topic, group = await fresh_topic(client, 2), fresh_name("g")
    queues = list(await client.queues(topic))
    for queue in queues:
        batch = [Message(topic, b"%d" % at) for at in range(10)]
        await until_listed(client, await client.send_batch(batch, queue=queue))
    with pytest.raises(NotFound):
        await groups.progress(group)
    await admin.update_group(SubscriptionGroupConfig(group, retry_max_times=3))
    assert (await groups.progress(group)).lag is None
    await groups.apply(await groups.plan_reset(group, topic, at_offset(4)))
    assert (await groups.progress(group, topic)).lag == 12
    assert group in await groups.names()
    (row,) = await groups.summaries([group])
    assert (row.members, row.lag) == (0, 12)
    plan = await groups.plan_reset(group, topic, EARLIEST, queues=[1])
    assert [(each.committed, each.wanted, each.repeated) for each in plan.changes] == [(4, 0, 4)]
    await admin.update_group(SubscriptionGroupConfig(group + "-copy"))  # RocketMQ 5 asks for it
    clone = await groups.plan_clone(group, group + "-copy", topic)
    await groups.apply(clone)
    assert (await groups.progress(group + "-copy")).lag == 12
    async with client.subscribe(topic, group=group, start="first") as subscription:
        async with asyncio.timeout(60):
            message = await anext(subscription)
        async with message.processing():
            pass
        (state,) = await groups.status(group)
        assert state.info is not None, state.problem
        with pytest.raises(GroupInUse):
            await groups.apply(plan)
        whole = await groups.plan_reset(group, topic, LATEST)
        assert await groups.apply(whole) == {queue: 10 for queue in queues}
    await groups.forget_offsets(group)
    assert [each.retry_max_times for each in (await groups.config(group)).values()] == [3]
    await groups.delete(group, topics=True)
    assert group not in await groups.names()
    assert set(await groups.allocation(topic, ["a", "b"])) == {"a", "b"}
    producers = client.session.config.producer_group
    await client.session.introduce(producers)
    assert await groups.producers(producers)
    assert producers in await groups.all_producers()


async def test_a_reset_where_a_queue_has_no_offset(client: Client, admin: Admin) -> None:
    groups = Groups(admin)
    topic, group = await fresh_topic(client, 2), fresh_name("g")
    first, empty = await client.queues(topic)
    sent = [await client.send(Message(topic, b"order"), queue=first) for _ in range(3)]
    await until_listed(client, sent)
    async with client.subscribe(topic, group=group, start="first") as subscription:
        async with asyncio.timeout(60):
            message = await anext(subscription)
        async with message.processing():
            pass
        plan = await groups.plan_reset(group, topic, LATEST)
        assert await groups.apply(plan) == {first: 3, empty: 0}
    assert (await groups.progress(group, topic)).lag == 0


async def test_settings_and_tables_of_servers(client: Client, admin: Admin, target: Target) -> None:
    servers = Servers(admin)
    (shown,) = await servers.broker_settings(target.broker_name)
    before = shown.values["maxMessageSize"]
    for value in (str(int(before) - 1), before):
        (done,) = await servers.update_brokers({"maxMessageSize": value})
        assert done.error is None
        (after,) = await servers.broker_settings(target.broker)
        assert after.values["maxMessageSize"] == value
    with pytest.raises(NotFound, match="setting 'noSuch'"):
        await servers.update_brokers({"noSuch": "1"})
    for value in ("true", "false"):
        (done,) = await servers.update_name_servers({"orderMessageEnable": value})
        assert done.error is None
        (shown,) = await servers.name_server_settings()
        assert shown.values["orderMessageEnable"] == value
    namespace = fresh_name("namespace")
    assert await servers.kv_table(namespace) == {}
    with pytest.raises(NotFound):
        await servers.kv_value(namespace, "k")
    await servers.put_kv(namespace, "k", "v")
    assert await servers.kv_value(namespace, "k") == "v"
    await servers.delete_kv(namespace, "k")
    assert await servers.kv_table(namespace) == {}


async def test_topics_and_clean_ups(client: Client, admin: Admin, target: Target) -> None:
    servers = Servers(admin)
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    assert topic in await servers.topics_of_cluster(target.cluster_name)
    assert await servers.clusters_of(topic) == [target.cluster_name]
    (done,) = await servers.set_topic_perm(topic, 4, target.broker_name)
    assert done.error is None
    assert (await servers.topic_configs(target.broker_name)).topic_config_table[topic].perm == 4
    await servers.set_topic_perm(topic, 6)
    for call in (
        servers.delete_expired_queues(),
        servers.delete_expired_log(),
        servers.delete_unused_topics(),
    ):
        assert [each.error for each in await call] == [None]
    (told,) = await servers.stop_writes(target.broker_name)
    assert told.topics > 0
    (told,) = await servers.allow_writes(target.broker_name)
    assert told.topics > 0
    sent = await client.send(topic, b"x")
    await admin.update_group(SubscriptionGroupConfig(group))
    await admin.commit_group_offsets(group, {sent.queue: 0})
    assert group in {each.group for each in await servers.consumption(target.broker_name)}


async def test_traffic(client: Client, admin: Admin, target: Target) -> None:
    servers = Servers(admin)
    topic = await fresh_topic(client, 1)
    for _ in range(3):
        await client.send(topic, b"12345")

    async def is_sampled() -> bool:  # each figure at its own moment
        found = await servers.topic_traffic(topic)
        (broker,) = await servers.broker_traffic(target.broker_name)
        return (
            found.put.minute.sum == 3
            and found.put_bytes.minute.sum > 15
            and broker.put.minute.sum >= 3
        )

    await until_found(is_sampled)


@pytest.fixture(params=["cometmq", "java"])
def guarded(request: pytest.FixtureRequest, peers: SharedPeers, tmp_path: Path) -> Iterator[Target]:
    """A cluster of its own with access control, which knows this machine."""
    peers.stop_java()
    rules = tmp_path / "conf" / "plain_acl.yml"
    rules.parent.mkdir()
    rules.write_text("globalWhiteRemoteAddresses:\n- 127.0.0.*\naccounts: []\n")
    if request.param == "java":
        java = anchor.JavaCluster(anchor.fetch_jars(), tmp_path, {"aclEnable": "true"})
        with java.until_killed():
            yield Target("java", java.namesrv, java.broker, "broker-a")
    else:
        with ProcessCluster(tmp_path, aclEnable=True, rocketmqHome=str(tmp_path)) as ours:
            yield Target("cometmq", ours.namesrv, ours.broker, "broker-a")


async def test_accounts(guarded: Target) -> None:
    async with Client(guarded.namesrv) as client:
        servers = Servers(Admin(client.session))
        perms = ("t=PUB", "u=SUB")
        account = Account("some-key", "very-secret", None, False, "DENY", "SUB", perms, ("g=SUB",))
        (done,) = await servers.put_account(account)
        assert done.error is None
        (shown,) = await servers.accounts()
        (found,) = [each for each in shown.accounts if each.access_key == "some-key"]
        assert (found.admin, found.topic_perms, found.group_perms) == (False, perms, ("g=SUB",))
        assert "very-secret" not in repr(found)
        (version,) = await servers.acl_versions()
        (done,) = await servers.set_white_list(["127.0.0.*", "10.0.0.1"])
        assert done.error is None

        async def has_white_list() -> bool:
            (shown,) = await servers.accounts()
            return shown.white_list == ("127.0.0.*", "10.0.0.1")

        await until_found(has_white_list)
        (later,) = await servers.acl_versions()
        assert later.files != version.files
        (done,) = await servers.delete_account("some-key")
        assert done.error is None
        (shown,) = await servers.accounts()
        assert "some-key" not in {each.access_key for each in shown.accounts}


async def test_health(admin: Admin, target: Target) -> None:
    limits = HealthLimits(frozenset({target.broker_name}), disk_ratio=1.0)
    report = await wait_until_healthy(admin, limits, timeout_ms=60_000)
    found = {(each.aspect, each.subject) for each in report.checks}
    assert (Aspect.BROKER, target.broker) in found
    assert (Aspect.WRITES, target.broker_name) in found
    servers = Servers(admin)
    await servers.stop_writes(target.broker_name)
    try:
        problems = (await check_health(admin, limits)).problems
        assert [(each.aspect, each.subject) for each in problems] == [
            (Aspect.WRITES, target.broker_name)
        ]
    finally:
        await servers.allow_writes(target.broker_name)


@pytest.mark.runs("4.9.7-cometmq", "4.9.7-java")
async def test_traces_of_a_java_client_are_read(
    client: Client, driver: Driver, target: Target, admin: Admin
) -> None:
    topic = fresh_name("traced")
    producer, consumer = f"p-{topic}", f"c-{topic}"
    common = {"namesrv": target.namesrv, "topic": topic}
    sent = await asyncio.to_thread(driver.ask, "tracedSend", group=producer, key="k", **common)
    assert isinstance(sent, dict)
    await asyncio.to_thread(driver.ask, "tracedConsume", group=consumer, **common)
    life = await life_with(admin, str(sent["msgId"]), 3)
    found = [(each.kind, each.group, each.result) for each in life.events]
    assert found[0] == (EventKind.SENT, producer, "ok")
    assert (EventKind.STORED, "", "ok") in found
    assert found[-1] == (EventKind.CONSUMED, consumer, "success")
    assert life.message is not None
    message = life.message

    async def is_consumed() -> bool:  # once the consumer has committed its offset
        tracks = await Traces(admin).tracks(message)
        return [(each.group, each.status) for each in tracks] == [(consumer, TrackStatus.CONSUMED)]

    await until_found(is_consumed)


async def test_traces_of_our_client_are_read(target: Target) -> None:
    async with Client(target.namesrv, trace=True, send_timeout_ms=10_000) as client:
        topic, group = await fresh_topic(client, 1), fresh_name("g")
        sent = await client.send(topic, b"x", tag="a")
        async with client.subscribe(topic, group=group, start="first") as subscription:
            message = await anext(subscription)
            async with message.processing():
                pass
        life = await life_with(Admin(client.session), sent.message_id, 3)
    assert [each.kind for each in life.events] == [
        EventKind.SENT,
        EventKind.STORED,
        EventKind.CONSUMED,
    ]
    assert life.traced_groups == {group}
    assert [(each.group, each.status) for each in life.groups] == [(group, TrackStatus.CONSUMED)]


async def life_with(admin: Admin, message_id: str, events: int) -> MessageLife:
    """The life of a message once it has so many events."""

    async def whole() -> MessageLife | None:
        life = await Traces(admin).life(message_id)
        return life if len(life.events) >= events else None

    found = await until_found(whole)
    assert found is not None
    return found


async def test_a_bundle(admin: Admin, target: Target, tmp_path: Path) -> None:
    await asyncio.to_thread(anchor.wait_for_figures, target.broker)
    made = await write_bundle(admin, tmp_path / "bundle.tar.gz")
    with tarfile.open(made.path) as archive:
        names = {name.removeprefix("cometmq-bundle/") for name in archive.getnames()}
    assert {f"brokers/{target.broker_name}-0/settings.json", "topics.json", "groups.json"} <= names
    assert made.gaps == ()


@pytest.mark.runs("java5")
async def test_what_only_rocketmq_5_has_of_a_group_stays(admin: Admin) -> None:
    name, groups = fresh_name("g"), Groups(admin)
    (broker,) = await admin.brokers(masters_only=True)
    attributes = {"+priority.factor": "50"}
    made = {"groupName": name, "consumeMessageOrderly": True, "attributes": attributes}
    await admin.put_group(broker, made)
    for change in (groups.change(name, {"retryMaxTimes": 3}), groups.forget_offsets(name)):
        await change
        found = (await admin.group_settings(broker))[name]
        assert (found["consumeMessageOrderly"], found["retryMaxTimes"]) == (True, 3)
        assert found["attributes"] == {"priority.factor": "50"}
