"""Who is there: heartbeats, leaving, expiry, and who is told of it."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.consumers import members as broker_members
from cometmq.broker.consumers.members import EXPIRY_MS, Members, language_name
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.net.peer import Peer
from cometmq.protocol.bodies import (
    ConsumerConnections,
    ConsumerData,
    ConsumerIds,
    Heartbeat,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.frame import Reply, Request
from cometmq.protocol.headers import ConsumerGroup, UnregisterClient
from tests.broker.world import answer, connect, open_tables, request, sent_to

TELL = [(Code.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup("g"))]


def consumer(group: str = "g", *topics: str, version: int = 1) -> ConsumerData:
    return ConsumerData(
        group,
        subscription_data_set=tuple(SubscriptionData(topic, "*", version) for topic in topics),
    )


async def beat(
    members: Members,
    peer: Peer,
    client: str,
    consumers: Sequence[ConsumerData] = (),
    producers: Sequence[str] = (),
) -> None:
    body = Heartbeat(client, tuple(ProducerData(name) for name in producers), tuple(consumers))
    asked = request(Code.HEART_BEAT, body=encode_json(body))
    assert (await answer(peer, members.heartbeat(peer, asked))).code == 0


def ids(members: Members, group: str = "g") -> list[str]:
    asked = request(Code.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup(group))
    return parse_json(members.consumer_ids(connect(), asked).body, ConsumerIds).consumer_id_list


async def test_a_heartbeat_creates_group_and_retry_topic(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        await beat(tables.members, connect(1), "c1", [consumer("g", "t")])
        assert tables.groups.get("g") is not None
        assert tables.topics.get("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1, 6)
        assert tables.members.subscription("g", "t") == SubscriptionData("t", "*", 1)
        assert tables.members.subscription("g", "u") is None
        assert tables.members.subscription("h", "t") is None
        assert tables.members.groups_of("t") == ["g"]


async def test_without_automatic_creation_a_heartbeat_creates_nothing(tmp_path: Path) -> None:
    config = BrokerConfig(auto_create_subscription_group=False)
    async with open_tables(tmp_path, config) as tables:
        await beat(tables.members, connect(1), "c1", [consumer("g", "t")])
        assert tables.groups.get("g") is None
        assert tables.topics.get("%RETRY%g") is None


async def test_members_are_told_of_each_other(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        first, second = connect(1), connect(2)
        await beat(tables.members, first, "c1", [consumer("g", "t")])
        assert sent_to(first) == TELL
        await beat(tables.members, first, "c1", [consumer("g", "t")])
        assert sent_to(first) == TELL
        await beat(tables.members, second, "c2", [consumer("g", "t")])
        assert sent_to(first) == TELL * 2
        assert sent_to(second) == TELL
        assert ids(tables.members) == ["c1", "c2"]
        second.close()
        assert sent_to(first) == TELL * 3
        assert ids(tables.members) == ["c1"]


async def test_a_group_can_be_silent(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        tables.groups.put(SubscriptionGroupConfig("g", notify_consumer_ids_changed_enable=False))
        peer = connect(1)
        await beat(tables.members, peer, "c1", [consumer("g", "t")])
        assert sent_to(peer) == []


async def test_the_last_heartbeat_s_subscriptions_hold_for_the_group(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        first, second = connect(1), connect(2)
        await beat(tables.members, first, "c1", [consumer("g", "t", "u")])
        await beat(tables.members, second, "c2", [consumer("g", "t", "v", version=2)])
        group = tables.members.group("g")
        assert group is not None
        assert {name: one.sub_version for name, one in group.subscriptions.items()} == {
            "t": 2,
            "v": 2,
        }
        await beat(tables.members, second, "c2", [consumer("g", "t", "v", version=1)])
        assert group.subscriptions["t"].sub_version == 2
        told = len(sent_to(first))
        await beat(tables.members, second, "c2", [consumer("g", "t", "v", version=9)])
        assert group.subscriptions["t"].sub_version == 9
        assert len(sent_to(first)) == told  # another filter is no reason to divide queues anew


async def test_a_client_leaves(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        first, second = connect(1), connect(2)
        await beat(tables.members, first, "c1", [consumer("g", "t")], ["p"])
        await beat(tables.members, second, "c2", [consumer("g", "t")])
        leave = request(Code.UNREGISTER_CLIENT, UnregisterClient("c1", "p", "g"))
        tables.members.unregister(first, leave)
        tables.members.unregister(first, leave)
        assert sent_to(second) == TELL * 2
        assert ids(tables.members) == ["c2"]
        assert tables.members.table.producers == {}
        first.close()
        second.close()
        with pytest.raises(BadRequest, match="no consumer for this group"):
            ids(tables.members)
        assert tables.members.table.channels() == set()


async def test_connections_of_a_group_are_described(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        asked = request(Code.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup("g"))
        with pytest.raises(BadRequest, match="not online") as error:
            tables.members.connections(connect(), asked)
        assert error.value.code == 206
        await beat(tables.members, connect(7), "c1", [consumer("g", "t")])
        body = tables.members.connections(connect(), asked).body
        found = parse_json(body, ConsumerConnections)
        assert found.connection_set[0].client_addr == "127.0.0.1:7"
        assert found.connection_set[0].language == "JAVA"
        assert found.connection_set[0].version == 407
        assert found.subscription_table["t"].sub_string == "*"
        assert found.message_model == "CLUSTERING"


async def test_two_channels_of_one_client_count_once(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        await beat(tables.members, connect(1), "c1", [consumer("g", "t")])
        await beat(tables.members, connect(2), "c1", [consumer("g", "t")])
        assert ids(tables.members) == ["c1"]


async def test_the_silent_expire(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_tables(tmp_path, clock=clock) as tables:
        silent, lively = connect(1), connect(2)
        await beat(tables.members, silent, "c1", [consumer("g", "t")], ["p"])
        await beat(tables.members, lively, "c2", [consumer("g", "t")])
        clock.advance(EXPIRY_MS - 1)
        await beat(tables.members, lively, "c2", [consumer("g", "t")])
        tables.members.expire()
        assert [silent.closed, lively.closed] == [False, False]
        clock.advance(1)
        tables.members.expire()
        assert [silent.closed, lively.closed] == [True, False]
        assert ids(tables.members) == ["c2"]
        assert sent_to(lively)[-1:] == TELL
        assert tables.members.table.producers == {}


async def test_a_new_group_is_told_after_name_servers_know_its_retry_topic(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        known = asyncio.Event()

        async def announced() -> None:
            await known.wait()

        tables.topics.announced = announced  # type: ignore[method-assign]
        peer = connect(1)
        first = asyncio.create_task(beat(tables.members, peer, "c1", [consumer("g", "t")]))
        while tables.topics.get("%RETRY%g") is None:
            await asyncio.sleep(0)
        assert ids(tables.members) == ["c1"]
        assert sent_to(peer) == []
        known.set()
        await first
        assert sent_to(peer) == TELL


async def test_heartbeats_that_wait_for_an_announcement_are_bounded_and_keep_no_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_members, "MAX_LATE", 2)
    async with open_tables(tmp_path) as tables:
        known = asyncio.Event()
        monkeypatch.setattr(tables.topics, "announced", known.wait)
        peer = connect(1)

        def start(group: str) -> tuple[Request[None], Reply | None]:
            body = encode_json(Heartbeat("c1", (), (consumer(group, "t"),)))
            asked = request(Code.HEART_BEAT, body=body)
            return asked, tables.members.heartbeat(peer, asked)

        for count, group in enumerate(("g", "h"), 1):
            asked, reply = start(group)
            assert reply is None
            assert not asked.body
            assert tables.members.late_count == count
        # One more is served, and answered at once.
        _, reply = start("i")
        assert reply is not None
        assert reply.code == 0
        assert ids(tables.members, "i") == ["c1"]
        assert tables.topics.get("%RETRY%i") is not None
        assert "limit_reached limit=newGroupHeartbeats" in caplog.text
        assert tables.members.late_count == 2
        known.set()
        for _ in range(2):
            assert (await answer(peer, None)).code == 0
        assert tables.members.late_count == 0
        assert start("k")[1] is None


async def test_a_client_that_is_gone_by_then_gets_no_answer(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        peer = connect(1)
        body = encode_json(Heartbeat("c1", (), (consumer("g", "t"),)))
        assert tables.members.heartbeat(peer, request(Code.HEART_BEAT, body=body)) is None
        peer.close()
        while len(tables.tasks):
            await asyncio.sleep(0.001)
        with pytest.raises(BadRequest, match="no consumer"):
            ids(tables.members)


@pytest.mark.parametrize("name", ["bad name", "g" * 200])
async def test_a_bad_group_name_is_refused(tmp_path: Path, name: str) -> None:
    async with open_tables(tmp_path) as tables:
        with pytest.raises(BadRequest, match="illegal"):
            await beat(tables.members, connect(), "c1", [consumer(name, "t")])
        with pytest.raises(BadRequest, match="illegal"):
            await beat(tables.members, connect(), "c1", (), [name])


async def test_a_group_without_a_name_spoils_no_heartbeat(tmp_path: Path) -> None:
    """The client's other groups are entered; so is a producer without a group, which may be asked
    for the transactions that it began."""
    async with open_tables(tmp_path) as tables:
        peer = connect()
        await beat(tables.members, peer, "c1", [consumer("", "t"), consumer("g", "t")], ["", "p"])
        assert set(tables.members.table.consumers) == {"g"}
        assert set(tables.members.table.producers) == {"", "p"}
        assert tables.topics.get("%RETRY%") is None
        await beat(tables.members, peer, "c1", [consumer("", "t")])
        assert set(tables.members.table.consumers) == {"g"}


async def test_a_subscription_without_a_version_is_new_each_time(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        peer = connect()
        versions = []
        for text in ("red", "blue"):
            body = (
                b'{"clientID":"c1","consumerDataSet":[{"groupName":"g","subscriptionDataSet":['
                b'{"topic":"t","subString":"%s"},{"topic":"u","subVersion":7}]}]}' % text.encode()
            )
            asked = request(Code.HEART_BEAT, body=body)
            await answer(peer, tables.members.heartbeat(peer, asked))
            await tables.clock.sleep_ms(2)
            group = tables.members.group("g")
            assert group is not None
            assert group.subscriptions["t"].sub_string == text
            assert group.subscriptions["u"].sub_version == 7
            versions.append(group.subscriptions["t"].sub_version)
        assert tables.clock.wall_ms() - 60_000 < versions[0] < versions[1]


def test_languages_have_names() -> None:
    assert language_name("GO") == "GO"
    assert language_name(1) == "CPP"
    assert language_name(99) == "OTHER"
    assert language_name("KLINGON" * 100) == "OTHER"


TAGS = tuple(f"tag{number}" for number in range(4_097))


@pytest.mark.parametrize(
    ("client", "data", "problem"),
    [
        ("c" * 1_025, consumer("g", "t"), "1025 characters, the limit is 1024"),
        ("c", consumer("g", "t" * 256), "of 256 characters, the limit is 255"),
        ("c", ConsumerData("g", subscription_data_set=(SubscriptionData("t", "*", 1, TAGS),)),
         "4097 tags of topic 't', the limit is 4096"),
    ],
)  # fmt: skip
async def test_names_have_bounds(
    tmp_path: Path, client: str, data: ConsumerData, problem: str
) -> None:
    async with open_tables(tmp_path) as tables:
        peer = connect(1)
        with pytest.raises(BadRequest, match=problem) as caught:
            await beat(tables.members, peer, client, [data])
        assert len(str(caught.value)) < 300
        assert tables.members.group("g") is None
        await beat(tables.members, peer, "c" * 1_024, [consumer("g", "t" * 255)])
        assert tables.members.group("g") is not None


async def test_a_connection_has_so_many_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_members, "MAX_GROUPS", 10)
    async with open_tables(tmp_path) as tables:
        members, peer = tables.members, connect(1)
        await beat(members, peer, "c", [consumer(f"g{number}", "t") for number in range(6)])
        await beat(members, peer, "c", [], [f"p{number}" for number in range(4)])
        for _ in range(2):  # the same ones again are none more
            await beat(members, peer, "c", [consumer(f"g{number}", "t") for number in range(6)])
        with pytest.raises(BadRequest, match="has 11 groups, the limit is 10 per connection"):
            await beat(members, peer, "c", [], ["p9"])
        await beat(members, connect(2), "c2", [], ["p9"])
        members.unregister(peer, request(Code.UNREGISTER_CLIENT, UnregisterClient("c", "p0", "g0")))
        await beat(members, peer, "c", [consumer("more", "t")], ["p9"])
        with pytest.raises(BadRequest, match="has 11 groups"):
            await beat(members, peer, "c", [consumer("too-much", "t")])
        assert members.group("too-much") is None
        peer.close()
        assert list(members._kept) == [next(iter(members.table.channels()))]


async def test_what_a_connection_tells_is_kept_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_members, "MAX_KEPT_CHARS", 10_000)
    async with open_tables(tmp_path) as tables:
        members, peer = tables.members, connect(1)
        long = ConsumerData("g0", subscription_data_set=(SubscriptionData("t", "a" * 6_000, 1),))
        for _ in range(3):
            await beat(members, peer, "c", [long])
        more = ConsumerData("g1", subscription_data_set=(SubscriptionData("t", "a" * 6_000, 1),))
        with pytest.raises(BadRequest, match="the limit is 10000 per connection"):
            await beat(members, peer, "c", [more])
        await beat(members, connect(2), "c", [more])
        await beat(members, peer, "c", [consumer("g0", "t")])
        await beat(members, peer, "c", [more])


async def test_a_line_of_the_log_names_some_of_those_who_disagree(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_tables(tmp_path) as tables:
        for number in range(20):
            client = f"{number}" * 400
            await beat(tables.members, connect(number), client, [wanting(f"{number}" * 9_000)])
        lines = [each.message for each in caplog.records if "differ" in each.message]
        assert "and 12 more" in lines[-1]
        assert max(map(len, lines)) < 5_000


def wanting(expression: str, version: int = 1) -> ConsumerData:
    subscription = SubscriptionData("t", expression, version, tuple(expression.split(" || ")))
    return ConsumerData("g", subscription_data_set=(subscription,))


async def test_members_that_do_not_agree_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_tables(tmp_path) as tables:
        members, first, second = tables.members, connect(1), connect(2)
        asked = request(Code.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup("g"))
        with caplog.at_level(logging.INFO):
            await beat(members, first, "c1", [wanting("a")])
            assert members.facts() == {"subscriptionConflicts": "0", "conflictingGroups": ""}
            assert b"conflicting" not in members.connections(connect(), asked).body
            for version in range(2, 5):
                await beat(members, second, "c2", [wanting("b", version)])
                await beat(members, first, "c1", [wanting("a", version)])
        lines = [each.message for each in caplog.records if "differ" in each.message]
        assert len(lines) == 1
        assert "group=g c1={'t': 'a'} c2={'t': 'b'}" in lines[0]
        assert members.facts() == {"subscriptionConflicts": "1", "conflictingGroups": "g"}
        found = parse_json(members.connections(connect(), asked).body, ConsumerConnections)
        assert found.conflicting_subscriptions == {"c1": {"t": "a"}, "c2": {"t": "b"}}
        with caplog.at_level(logging.INFO):
            second.close()
        assert "subscriptions agree again group=g" in caplog.text
        assert members.facts() == {"subscriptionConflicts": "1", "conflictingGroups": ""}


async def test_who_listens_hears_of_subscriptions_and_of_their_end(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        heard: list[object] = []
        tables.members.on_subscribed.append(heard.append)
        tables.members.on_group_gone.append(heard.append)
        first, second = connect(1), connect(2)
        await beat(tables.members, first, "c1", [wanting("a")])
        await beat(tables.members, second, "c2", [wanting("a")])
        first.close()
        assert heard == [wanting("a"), wanting("a")]
        second.close()
        assert heard[2:] == ["g"]
        assert tables.members.subscribed_since("g", "t") is None
