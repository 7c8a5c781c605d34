"""Which queues a read covers."""

import pytest

from cometmq.client.blocking import Client
from cometmq.core.errors import RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.spark.options import BadOption
from cometmq.spark.read.topics import Assigned, Pattern, Topics, find, find_all, matching, parse
from cometmq.testing.cluster import Cluster
from tests.spark.topics import access, make_topic

CLUSTER = frozenset({"DefaultCluster", "broker-a"})
KNOWN = [
    *("orders", "orders-eu", "my-orders", "%RETRY%billing", "%DLQ%billing"),
    *("DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "our_REPLY_TOPIC"),
    *("TBW102", "SELF_TEST_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"),
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "OFFSET_MOVED_EVENT"),
]


def test_options() -> None:
    assert parse({"topic": "a, b"}) == Topics(("a", "b"))
    assert parse({"subscribePattern": "a.*"}) == Pattern("a.*")
    pattern = parse({"subscribePattern": "a.*", "includeSystemTopics": "true"})
    assert pattern == Pattern("a.*", has_system_topics=True)
    assigned = parse({"assign": '{"T": {"broker-a": [0, 2]}}'})
    assert assigned == Assigned(frozenset(MessageQueue("T", "broker-a", at) for at in (0, 2)))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "'topic': is required"),
        ({"topic": ","}, "'topic'"),
        ({"topic": "a", "assign": "{}"}, "'assign': cannot be given together with topic"),
        ({"subscribePattern": "("}, "'subscribePattern'.*not a regular expression"),
        ({"topic": "a", "includeSystemTopics": "true"}, "'includeSystemTopics': needs"),
        ({"assign": "{}"}, "'assign': contains no queue"),
        ({"assign": '{"T": [0]}'}, "'assign': is not like"),
    ],
)
def test_bad_options(given: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        parse(given)


def test_a_pattern_matches_whole_names_and_leaves_the_systems_out() -> None:
    assert matching(Pattern("orders.*"), KNOWN, CLUSTER) == ["orders", "orders-eu"]
    assert matching(Pattern(".*"), KNOWN, CLUSTER) == [
        *("my-orders", "orders", "orders-eu", "our_REPLY_TOPIC")
    ]
    everything = Pattern(".*", has_system_topics=True)
    assert matching(everything, KNOWN, CLUSTER) == sorted(KNOWN)
    assert matching(Pattern("%DLQ%.*", has_system_topics=True), KNOWN, CLUSTER) == ["%DLQ%billing"]


def test_topics_of_a_real_cluster(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        one, two = (make_topic(client, f"Choice{name}", 2) for name in ("One", "Two"))
    assert find_all(Topics(("ChoiceTwo", "ChoiceOne")), reached) == [*one, *two]
    assert find_all(Pattern("Choice.*"), reached) == [*one, *two]
    assert find_all(Pattern("Nothing.*"), reached) == []
    assert find_all(Assigned(frozenset({one[1], two[0]})), reached) == [one[1], two[0]]
    names = {queue.topic for queue in find_all(Pattern(".*"), reached)}
    assert {"ChoiceOne", "ChoiceTwo"} <= names
    assert not names & {"TBW102", "broker-a", "DefaultCluster", "SELF_TEST_TOPIC"}
    everything = find_all(Pattern(".*", has_system_topics=True), reached)
    assert "SELF_TEST_TOPIC" in {queue.topic for queue in everything}


def test_what_is_not_there_is_named(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        (there,) = make_topic(client, "ChoiceThere", 1)
    choice = Topics(("ChoiceThere", "ChoiceNowhere"))
    found = find(choice, reached)
    assert (found.queues, found.unknown) == ([there], ["ChoiceNowhere"])
    with pytest.raises(RouteNotFound, match="'ChoiceNowhere'"):
        find_all(choice, reached)
    absent = MessageQueue("ChoiceThere", "broker-a", 5)
    with pytest.raises(BadOption, match="'assign': no queue 5 of 'ChoiceThere'"):
        find_all(Assigned(frozenset({there, absent})), reached)
