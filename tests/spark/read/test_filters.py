"""What a read wants, whoever filters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.client.blocking import Client
from cometmq.filter.tags import TagFilter, tag_code
from cometmq.message.model import Message, MessageQueue
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.spark.decode import Block
from cometmq.spark.options import BadOption
from cometmq.spark.read.fetcher import QueueFetcher, batches
from cometmq.spark.read.filters import RowFilter, parse
from cometmq.spark.read.planning import Range
from cometmq.testing.cluster import Cluster, cluster_in_thread
from tests.spark.records import plain_record
from tests.spark.store.reading import rows
from tests.spark.topics import make_topic, options

EXPRESSIONS = (
    "TAGS = 'a' AND amount > 20",
    "amount BETWEEN 5 AND 30 OR TAGS IN ('b', 'c')",
    "amount IS NULL",
    "NOT (TAGS = 'a')",
    "amount = 'x'",
    "UNKNOWN_PROPERTY = 5",
)


def chosen(row_filter: RowFilter, *tags: str) -> list[int]:
    block = Block(b"".join(plain_record(at, tag=tag) for at, tag in enumerate(tags)))
    row_filter.choose(block)
    found: list[int] = block.queue_offsets.tolist()
    return found


def test_nothing_is_filtered_unless_asked() -> None:
    assert parse({}) == RowFilter()
    assert RowFilter().matches_all
    assert (RowFilter().expression, RowFilter().expression_type) == ("*", "TAG")
    assert chosen(RowFilter(), "a", "b") == [0, 1]


def test_tags_are_compared_not_hashes() -> None:
    assert tag_code("Aa") == tag_code("BB")
    found = parse({"filter": "BB || x"})
    assert (found.expression, found.expression_type) == ("BB || x", "TAG")
    assert chosen(found, "Aa", "BB", "", "x") == [1, 3]


def test_an_expression() -> None:
    for given in (
        {"sqlFilter": "TAGS = 'a'"},
        {"filter": "TAGS = 'a'", "filterType": "sql92"},
    ):
        found = parse(given)
        assert (found.expression, found.expression_type) == ("TAGS = 'a'", "SQL92")
        assert not found.matches_all
        assert chosen(found, "a", "b", "", "a") == [0, 3]


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"filter": "||"}, "filter"),
        ({"filter": "a >", "filterType": "SQL92"}, "filter"),
        ({"sqlFilter": "a >"}, "sqlFilter"),
        ({"sqlFilter": ""}, "sqlFilter"),
        ({"sqlFilter": "a = 1", "filter": "a"}, "filter"),
        ({"sqlFilter": "a = 1", "filterType": "tags"}, "filterType"),
        ({"filterType": "SQL92"}, "filterType"),
        ({"filter": "a", "filterType": "regex"}, "filterType"),
    ],
)
def test_a_mistake_names_its_option(given: dict[str, str], option: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse(given)
    assert caught.value.option == option


def test_a_filter_narrowed_to_some_tags() -> None:
    assert parse({}).narrowed(["b", "a"]).expression == "a || b"
    both = parse({"filter": "a || b"}).narrowed(["b", "c"])
    assert both == RowFilter(TagFilter("b", frozenset("b"), frozenset({tag_code("b")})))
    assert chosen(both, "a", "b", "c") == [1]
    none = parse({"filter": "a"}).narrowed(["b"])
    assert none.matches_none
    assert not none.matches_all
    assert none.narrowed(["a"]).matches_none
    assert chosen(none, "a", "b", "") == []


@pytest.fixture(scope="module", params=["filtering", "not filtering"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    is_able = request.param == "filtering"
    with cluster_in_thread(folder, enable_property_filter=is_able) as found:
        yield found


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> MessageQueue:
    """A queue of 1000 messages: amounts and tags, some without either, some no number."""
    with Client(cluster.namesrv) as client:
        (found,) = make_topic(client, "Filtered", 1)
        fill(client, found)
    return found


def fill(client: Client, queue: MessageQueue) -> None:
    messages = []
    for at in range(1000):
        properties = {"amount": "many" if at % 11 == 0 else str(at % 50)} if at % 7 else {}
        tag = ["a", "b", ""][at % 3]
        messages.append(
            Message(queue.topic, str(at).encode(), tag=tag, keys=(str(at),), properties=properties)
        )
    for start in range(0, 1000, 100):
        client.wait(client.inner.send_batch(messages[start : start + 100], queue=queue))


def expected(expression: str) -> set[int]:
    """What plain Python says of the expressions above."""
    found = set()
    for at in range(1000):
        amount = None if at % 7 == 0 else "many" if at % 11 == 0 else at % 50
        tag = ["a", "b", None][at % 3]
        number = amount if isinstance(amount, int) else None
        matches = {
            EXPRESSIONS[0]: tag == "a" and number is not None and number > 20,
            EXPRESSIONS[1]: (number is not None and 5 <= number <= 30)
            or (amount != "many" and tag == "b"),
            EXPRESSIONS[2]: amount is None,
            EXPRESSIONS[3]: tag == "b",
            EXPRESSIONS[4]: False,
            EXPRESSIONS[5]: False,
        }
        if matches[expression]:
            found.add(at)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_equal_rows_whoever_filters(cluster: Cluster, queue: MessageQueue, expression: str) -> None:
    read = options(cluster.namesrv, "Filtered", sqlFilter=expression)
    found = [
        offset
        for batch in batches([Range(queue, 0, 1000)], read, ("queue_offset",))
        for offset in batch.column("queue_offset").to_pylist()
    ]
    assert found == sorted(expected(expression))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_equal_rows_from_the_brokers_store(
    cluster: Cluster, queue: MessageQueue, expression: str
) -> None:
    found = rows(cluster.store, ("queue_offset",), topic="Filtered", sqlFilter=expression)
    assert sorted(row["queue_offset"] for row in found) == sorted(expected(expression))


def test_a_broker_that_can_gives_no_more_than_asked_for(
    cluster: Cluster, queue: MessageQueue, request: pytest.FixtureRequest
) -> None:
    read = options(cluster.namesrv, "Filtered", sqlFilter=EXPRESSIONS[0])
    spans = list(QueueFetcher(queue, read).spans(Range(queue, 0, 1000)))
    given = len({at for span in spans for at in Block(span.data).queue_offsets.tolist()})
    is_able = "not" not in request.node.callspec.params["cluster"]
    assert given == (len(expected(EXPRESSIONS[0])) if is_able else 1000)
    assert {span.filtered for span in spans} == {is_able}


def test_delayed_messages_are_found_by_their_tags(cluster: Cluster) -> None:
    """Their queue entries hold the time of delivery, and no hash of the tag."""
    with Client(cluster.namesrv) as client:
        (queue,) = make_topic(client, "Delayed", 1)
        for at in range(6):
            client.send("Delayed", str(at).encode(), tag="ab"[at % 2], delay_level=18, queue=queue)
    wanted = {"topic": SCHEDULE_TOPIC, "filter": "b"}
    read = options(cluster.namesrv, **wanted)
    scheduled = MessageQueue(SCHEDULE_TOPIC, "broker-a", 17)
    over_wire = [
        offset
        for batch in batches([Range(scheduled, 0, 6)], read, ("queue_offset",))
        for offset in batch.column("queue_offset").to_pylist()
    ]
    from_store = rows(cluster.store, ("queue_offset",), **wanted)
    assert over_wire == [row["queue_offset"] for row in from_store] == [1, 3, 5]
