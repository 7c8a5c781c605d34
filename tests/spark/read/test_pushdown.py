"""What filters of Spark's spare, and what they leave to Spark."""

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from cometmq.message.model import MessageQueue
from cometmq.spark.read.filters import RowFilter, parse
from cometmq.spark.read.pushdown import CLOCK_SLACK_MS, Bounds, Push, Pushed, split_filters

QUEUES = [MessageQueue(topic, name, at) for topic in "TU" for name in "ab" for at in range(3)]
START = dict.fromkeys(QUEUES, 10)
END = dict.fromkeys(QUEUES, 100)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def cut(*filters: Filter, row_filter: RowFilter | None = None) -> dict[MessageQueue, range]:
    """What is left to read; offset 0 is stored a day before noon, each further one a minute on."""

    def at_time(moment_ms: int, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        first_ms = NOON_MS - 86_400_000
        return dict.fromkeys(queues, max(-(-(moment_ms - first_ms) // 60_000), 0))

    pushed, _ = split_filters(filters, row_filter or RowFilter())
    start, end = pushed.cut(START, END, at_time)
    assert start.keys() == end.keys()
    return {queue: range(start[queue], end[queue]) for queue in end if start[queue] < end[queue]}


def rest(*filters: Filter) -> list[Filter]:
    return split_filters(filters, RowFilter())[1]


@pytest.mark.parametrize(
    ("one", "left"),
    [
        (EqualTo(("queue_id",), 1), {queue for queue in QUEUES if queue.queue_id == 1}),
        (EqualNullSafe(("queue_id",), 1), {queue for queue in QUEUES if queue.queue_id == 1}),
        (In(("queue_id",), (0, 2)), {queue for queue in QUEUES if queue.queue_id != 1}),
        (Not(EqualTo(("queue_id",), 1)), {queue for queue in QUEUES if queue.queue_id != 1}),
        (GreaterThan(("queue_id",), 1), {queue for queue in QUEUES if queue.queue_id > 1}),
        (GreaterThanOrEqual(("queue_id",), 1), {queue for queue in QUEUES if queue.queue_id}),
        (LessThan(("queue_id",), 1), {queue for queue in QUEUES if not queue.queue_id}),
        (LessThanOrEqual(("queue_id",), 1), {queue for queue in QUEUES if queue.queue_id < 2}),
        (EqualTo(("broker_name",), "b"), {queue for queue in QUEUES if queue.broker_name == "b"}),
        (StringStartsWith(("broker_name",), "x"), set()),
        (StringEndsWith(("broker_name",), "a"), {q for q in QUEUES if q.broker_name == "a"}),
        (StringContains(("broker_name",), ""), set(QUEUES)),
        (IsNotNull(("broker_name",)), set(QUEUES)),
    ],
)
def test_whole_queues_are_left_out(one: Filter, left: set[MessageQueue]) -> None:
    assert cut(one) == dict.fromkeys(left, range(10, 100))
    assert rest(one) == []


def test_topics_are_left_out_and_looked_at_again() -> None:
    one = EqualTo(("topic",), "U")
    assert set(cut(one)) == {queue for queue in QUEUES if queue.topic == "U"}
    assert rest(one) == [one]


@pytest.mark.parametrize(
    ("one", "left", "is_exact"),
    [
        (EqualTo(("queue_offset",), 20), range(20, 21), True),
        (EqualNullSafe(("queue_offset",), 20), range(20, 21), True),
        (GreaterThan(("queue_offset",), 20), range(21, 100), True),
        (GreaterThanOrEqual(("queue_offset",), 20), range(20, 100), True),
        (LessThan(("queue_offset",), 20), range(10, 20), True),
        (LessThanOrEqual(("queue_offset",), 20), range(10, 21), True),
        (In(("queue_offset",), (30, 20)), range(20, 31), False),
        (In(("queue_offset",), (30, None)), range(10, 100), False),
        (Not(EqualTo(("queue_offset",), 20)), range(10, 100), False),
    ],
)
def test_offsets_cut_ranges(one: Filter, left: range, is_exact: bool) -> None:
    assert cut(one) == dict.fromkeys(QUEUES, left)
    assert rest(one) == ([] if is_exact else [one])


def test_bounds_meet() -> None:
    both = (GreaterThan(("queue_offset",), 20), LessThan(("queue_offset",), 30))
    assert cut(*both) == dict.fromkeys(QUEUES, range(21, 30))
    assert cut(EqualTo(("queue_offset",), 20), EqualTo(("queue_offset",), 21)) == {}
    assert Bounds(1, 9).within(Bounds(3, None)) == Bounds(3, 9)


def test_times_cut_ranges_wider_than_they_say() -> None:
    # Offset 60 was stored 23 hours before noon; the clock may have been set back by a minute.
    moment = NOON - timedelta(hours=23)
    slack = CLOCK_SLACK_MS // 60_000
    for one, left in (
        (GreaterThanOrEqual(("store_timestamp",), moment), range(60 - slack, 100)),
        (LessThan(("store_timestamp",), moment), range(10, 60 + slack)),
        (EqualTo(("store_timestamp",), moment), range(60 - slack, 61 + slack)),
        (In(("store_timestamp",), (moment,)), range(60 - slack, 61 + slack)),
        (GreaterThan(("store_timestamp",), NOON), None),
    ):
        assert cut(one) == ({} if left is None else dict.fromkeys(QUEUES, left))
        assert rest(one) == [one]


def test_times_between_milliseconds() -> None:
    between = datetime.fromtimestamp(1, UTC) + timedelta(microseconds=1500)
    pushed = [
        split_filters([kind(("store_timestamp",), between)], RowFilter())[0].store_ms
        for kind in (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    ]
    assert pushed == [Bounds(1002), Bounds(1002), Bounds(high=1002), Bounds(high=1002)]


def test_tags_are_asked_of_the_broker() -> None:
    pushed, left = split_filters(
        [In(("tags",), ("b", "a", None)), IsNotNull(("tags",))], RowFilter()
    )
    assert pushed.row_filter.expression == "a || b"
    assert left == [IsNotNull(("tags",))]
    both, _ = split_filters([EqualTo(("tags",), "b")], parse({"filter": "a || b"}))
    assert both.row_filter.expression == "b"
    assert cut(EqualTo(("tags",), "c"), row_filter=parse({"filter": "a || b"})) == {}
    assert cut(EqualTo(("tags",), "a"), EqualTo(("tags",), "b")) == {}


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("tags",), "a||b"),
        EqualTo(("tags",), " a"),
        EqualTo(("tags",), "*"),
        EqualTo(("tags",), ""),
        EqualTo(("tags",), "\ufffd"),
        EqualNullSafe(("tags",), None),
        In(("tags",), tuple(map(str, range(65)))),
        Not(EqualTo(("tags",), "a")),
        StringStartsWith(("tags",), "a"),
        IsNull(("queue_id",)),
        IsNotNull(("keys",)),
        EqualTo(("keys",), "a"),
        EqualTo(("queue_id",), None),
        EqualTo(("queue_id",), "1"),
        GreaterThan(("store_timestamp",), datetime(2026, 1, 1)),
        EqualTo(("properties", "a"), "x"),
    ],
)
def test_what_spares_nothing_is_left_to_spark(one: Filter) -> None:
    assert cut(one) == dict.fromkeys(QUEUES, range(10, 100))
    assert rest(one) == [one]


def test_tags_beside_an_expression_are_left_to_spark() -> None:
    one = EqualTo(("tags",), "a")
    pushed, left = split_filters([one], RowFilter(sql="x = 1"))
    assert (pushed, left) == (Pushed(RowFilter(sql="x = 1")), [one])


class Reader(DataSourceReader):
    """Takes every filter."""

    def __init__(self) -> None:
        self.taken: list[Filter] = []
        self.pushFilters = Push(self.take)  # type: ignore[method-assign]

    def take(self, filters: object) -> list[Filter]:
        self.taken = list(filters)  # type: ignore[call-overload]
        return []

    def read(self, partition: object) -> object:  # type: ignore[override]
        return iter(())


def test_spark_takes_the_way_to_push_for_its_own() -> None:
    """What pyspark/sql/worker/plan_data_source_read.py asks where pushing is switched off."""
    reader = Reader()
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    again = pickle.loads(pickle.dumps(reader))
    assert list(again.pushFilters([IsNull(("a",))])) == []
    assert again.taken == [IsNull(("a",))]
