"""Groups, their members and their offsets, on a real CometMQ broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.groups import (
    GroupInUse,
    Groups,
    MemberStatus,
    OffsetChange,
    Progress,
    blocked_queues,
    differing_subscriptions,
)
from cometmq.admin.messages import EARLIEST, LATEST, at_offset, at_time
from cometmq.client.client import Client
from cometmq.core.errors import NotFound, RequestTimedOut, RouteNotFound, SettingsError
from cometmq.message.model import Message, MessageQueue
from cometmq.protocol.bodies import (
    ClientConnection,
    ConsumeOffset,
    ProcessQueueInfo,
    RunningInfoRead,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.headers import Header
from tests.admin.dead import die
from tests.client.shared_broker import fresh_name, fresh_topic


@pytest.fixture
def groups(admin: Admin) -> Groups:
    return Groups(admin)


async def topic_of(client: Client, count: int = 10, queues: int = 2) -> list[MessageQueue]:
    """A topic with messages in each queue."""
    topic = await fresh_topic(client, queues)
    found = list(await client.queues(topic))
    for queue in found:
        await client.send_batch([Message(topic, b"%d" % at) for at in range(count)], queue=queue)
    return found


async def group_at(admin: Admin, offsets: dict[MessageQueue, int]) -> str:
    """A group with these offsets."""
    group = fresh_name("g")
    await admin.update_group(SubscriptionGroupConfig(group))
    await admin.commit_group_offsets(group, offsets)
    return group


async def test_groups_are_listed(client: Client, admin: Admin, groups: Groups) -> None:
    queues = await topic_of(client)
    group = await group_at(admin, {queues[0]: 4, queues[1]: 10})
    without = fresh_name("g")
    await admin.commit_group_offsets(without, {queues[0]: 1})
    assert {group, without} <= set(await groups.names())
    fresh = await group_at(admin, {})
    rows = {each.group: each for each in await groups.summaries([group, fresh])}
    assert (rows[group].lag, rows[group].members, rows[group].message_model) == (6, 0, "")
    assert rows[fresh].lag is None
    assert group in {each.group for each in await groups.summaries()}
    (config,) = (await groups.config(group)).values()
    assert config.retry_max_times == 16
    assert await groups.config(without) == {}
    assert await groups.topics_of(group) == [queues[0].topic]


async def test_nothing_is_said_of_groups_that_do_not_exist(
    client: Client, admin: Admin, groups: Groups
) -> None:
    topic = (await topic_of(client))[0].topic
    calls = (
        lambda: groups.config("nobody"),
        lambda: groups.members("nobody"),
        lambda: groups.status("nobody"),
        lambda: groups.progress("nobody"),
        lambda: groups.progress("nobody", topic),
        lambda: groups.plan_reset("nobody", topic, EARLIEST),
        lambda: groups.plan_clone("nobody", "somebody", topic),
        lambda: groups.delete("nobody"),
        lambda: groups.forget_offsets("nobody"),
        lambda: groups.producers("nobody"),
    )
    for call in calls:
        with pytest.raises(NotFound, match="'nobody'"):
            await call()
    group = await group_at(admin, {})
    assert (await groups.progress(group)).lag is None
    with pytest.raises(NotFound, match="has not consumed"):
        await groups.progress(group, topic)
    with pytest.raises(NotFound, match="no offset in topic"):
        await groups.plan_clone(group, "somebody", topic)
    with pytest.raises(RouteNotFound):
        await groups.progress(group, "no-such-topic")
    with pytest.raises(NotFound, match="cluster 'nowhere'"):
        await groups.delete(group, "nowhere")
    with pytest.raises(SettingsError, match="offsets of one topic"):
        await groups.plan_offsets(group, {})


async def test_a_reset_is_planned_and_carried_out(
    client: Client, admin: Admin, groups: Groups
) -> None:
    queues = await topic_of(client)
    group = await group_at(admin, {queues[0]: 4})
    topic = queues[0].topic
    plan = await groups.plan_reset(group, topic, at_offset(6))
    assert plan.changes == (
        OffsetChange(queues[0], 4, 6, 0, 10),
        OffsetChange(queues[1], None, 6, 0, 10),
    )
    assert [(each.skipped, each.repeated) for each in plan.changes] == [(2, 0), (6, 0)]
    assert (plan.at_ms, plan.members) == (None, ())
    assert await admin.group_offset(group, queues[0]) == 4
    assert await groups.apply(plan) == {queues[0]: 6, queues[1]: 6}
    assert await admin.group_offset(group, queues[0]) == 6
    plan = await groups.plan_reset(group, topic, LATEST, never_skip=True)
    assert [each.wanted for each in plan.changes] == [6, 6]
    plan = await groups.plan_reset(group, topic, EARLIEST, queues=[1])
    assert [(each.queue, each.repeated) for each in plan.changes] == [(queues[1], 6)]
    assert await groups.apply(plan) == {queues[1]: 0}
    plan = await groups.plan_reset(group, topic, at_time(0))
    assert plan.at_ms == 0
    new = await groups.plan_reset("new-" + group, topic, LATEST, is_new=True)
    assert [each.skipped for each in new.changes] == [10, 10]
    plan = await groups.plan_offsets(group, {queues[0]: 99})
    assert [each.wanted for each in plan.changes] == [10]


async def test_offsets_are_cloned(client: Client, admin: Admin, groups: Groups) -> None:
    queues = await topic_of(client)
    source = await group_at(admin, {queues[0]: 4})
    target = fresh_name("g")
    plan = await groups.plan_clone(source, target, queues[0].topic)
    assert [(each.queue, each.committed, each.wanted) for each in plan.changes] == [
        (queues[0], None, 4)
    ]
    await groups.apply(plan)
    assert await admin.group_offset(target, queues[0]) == 4


async def test_running_members(client: Client, admin: Admin, groups: Groups) -> None:
    queues = await topic_of(client)
    topic, group = queues[0].topic, fresh_name("g")
    async with client.subscribe(topic, group=group, start="first") as subscription:
        async with asyncio.timeout(60):
            message = await anext(subscription)
        async with message.processing():
            pass
        connected = await groups.members(group)
        assert connected is not None
        (member,) = connected.connection_set
        (state,) = await groups.status(group)
        assert state.connection == member
        assert state.info is not None
        assert state.problem == ""
        (row,) = await groups.summaries([group])
        assert (row.members, row.message_model) == (1, "CLUSTERING")
        plan = await groups.plan_reset(group, topic, at_offset(1))
        assert plan.members == (member.client_id,)
        with pytest.raises(GroupInUse, match="1 connected consumer: stop them") as raised:
            await groups.apply(plan)
        assert raised.value.members == (member.client_id,)
        for call in (groups.forget_offsets(group), groups.delete(group)):
            with pytest.raises(GroupInUse):
                await call
        plan = await groups.plan_reset(group, topic, LATEST)
        assert await groups.apply(plan) == {queue: 10 for queue in queues}
    assert await groups.members(group) is None
    assert await groups.status(group) == []


async def test_a_member_that_does_not_answer(
    client: Client, admin: Admin, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = await topic_of(client)
    group = fresh_name("g")

    async def silent(*_: object, **__: object) -> None:
        raise RequestTimedOut("member", 307, 1)

    monkeypatch.setattr(admin.consumers, "running_info", silent)
    async with client.subscribe(queues[0].topic, group=group):
        (state,) = await groups.status(group)
    assert state.info is None
    assert "no answer to request 307" in state.problem


async def test_groups_and_their_offsets_are_deleted(
    client: Client, admin: Admin, groups: Groups
) -> None:
    queues = await topic_of(client)
    group = await group_at(admin, {queues[0]: 4})
    await admin.update_group(SubscriptionGroupConfig(group, retry_max_times=3))
    await groups.forget_offsets(group)
    assert (await groups.progress(group)).lag is None
    assert [each.retry_max_times for each in (await groups.config(group)).values()] == [3]
    await die(client, queues[0].topic, group, [b"dead"])
    await groups.delete(group, topics=True)
    assert group not in await groups.names()
    assert f"%DLQ%{group}" not in await admin.list_topics()


async def test_producers(client: Client, groups: Groups) -> None:
    queues = await topic_of(client, 1)
    group = client.session.config.producer_group
    await client.session.introduce(group)
    found = await groups.producers(group, queues[0].topic)
    assert client.session.client_id in {each.client_id for each in found}
    assert [each.client_id for each in await groups.producers(group)] == [
        each.client_id for each in found
    ]
    every = await groups.all_producers()
    assert client.session.client_id in {each.client_id for each in every[group]}
    with pytest.raises(NotFound, match="broker 'nobody'"):
        await groups.all_producers("nobody")


async def test_an_allocation(client: Client, groups: Groups) -> None:
    queues = await topic_of(client, 1, queues=3)
    assert await groups.allocation(queues[0].topic, ["a", "b"]) == {
        "a": queues[:2],
        "b": queues[2:],
    }


def test_lag() -> None:
    queue = MessageQueue("t", "b", 0)
    assert Progress("g", {}, 0.0).lag is None
    assert Progress("g", {queue: ConsumeOffset(5, 9, 0)}, 0.0).lag == 0


def state(client_id: str, *subscriptions: SubscriptionData) -> MemberStatus:
    info = RunningInfoRead(subscription_set=subscriptions)
    return MemberStatus(ClientConnection(client_id, "h:1", "JAVA", 407), info)


def test_subscriptions_that_differ() -> None:
    first = state("a", SubscriptionData("t", "x"), SubscriptionData("u", "*"))
    second = state("b", SubscriptionData("t", "y"), SubscriptionData("u", "*"))
    third = state("c", SubscriptionData("u", "*"))
    silent = MemberStatus(first.connection, None, "no answer")
    assert differing_subscriptions([first, second, third, silent]) == {
        "t": {"a": "x", "b": "y", "c": ""}
    }
    assert differing_subscriptions([first, silent]) == {}


def test_queues_that_are_blocked() -> None:
    def key(queue_id: int) -> str:
        return f'{{"topic":"t","brokerName":"b","queueId":{queue_id}}}'

    table = {
        key(0): ProcessQueueInfo(cached_msg_count=1, last_pull_timestamp=90_000),
        key(1): ProcessQueueInfo(cached_msg_count=0, last_pull_timestamp=90_000),
        key(2): ProcessQueueInfo(
            cached_msg_count=1, last_pull_timestamp=90_000, last_consume_timestamp=80_000
        ),
    }
    assert blocked_queues(RunningInfoRead(mq_table=table)) == [MessageQueue("t", "b", 0)]


async def test_what_only_rocketmq_5_has_stays(
    admin: Admin, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that the structs here do not have survive a change, and that offsets are deleted."""
    group = await group_at(admin, {})
    known = {"groupName": group, "retryMaxTimes": 16, "consumeMessageOrderly": True}
    of_5 = known | {"groupRetryPolicy": {"type": "EXPONENTIAL"}, "attributes": {"lite.bind": "t"}}
    sent: list[dict[str, Any]] = []
    call = admin.call

    async def as_5(
        address: str, code: RequestCode, header: Header | None, body: bytes = b"", **more: int
    ) -> Any:
        if code is RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            return SimpleNamespace(body=encode_json({"subscriptionGroupTable": {group: of_5}}))
        if code is RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            sent.append(parse_json(body, dict[str, Any]))
        return await call(address, code, header, body, **more)

    monkeypatch.setattr(admin, "call", as_5)
    broker = (await admin.brokers())[0].name
    assert await groups.change(group, {"retryMaxTimes": 3}) == [broker]
    policy = {"groupRetryPolicy": {"type": "EXPONENTIAL"}}
    assert sent == [known | policy | {"retryMaxTimes": 3}]
    await groups.forget_offsets(group)
    # A request adds attributes by a plus sign.
    assert sent[1:] == [known | policy | {"attributes": {"+lite.bind": "t"}}]
    assert await groups.change("nobody", {"retryMaxTimes": 3}) == []
