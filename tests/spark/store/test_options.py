"""Options of reads from store directories."""

import pytest

from cometmq.spark.options import BadOption
from cometmq.spark.read.positions import AtTimes
from cometmq.spark.read.topics import Pattern, Topics
from cometmq.spark.store.options import SPLIT_BYTES, StoreRoot, broker_of, parse


def test_defaults() -> None:
    found = parse({"STORE": "/data/broker-a/store"})
    assert found.roots == (StoreRoot("/data/broker-a/store", "broker-a"),)
    assert found.choice == Pattern(".*")
    assert (found.min_partitions, found.max_bytes_per_partition) == (1, SPLIT_BYTES)
    assert found.fail_on_data_loss
    assert found.only_queued
    assert found.row_filter.matches_all


def test_what_is_given() -> None:
    found = parse(
        {
            "store": "/a,/b",
            "brokerName": "x, y",
            "topic": "t,u",
            "startingTimestamp": "5",
            "onlyQueued": "false",
            "filter": "g",
        }
    )
    assert found.roots == (StoreRoot("/a", "x"), StoreRoot("/b", "y"))
    assert found.choice == Topics(("t", "u"))
    assert found.starting is not None
    assert found.starting.position == AtTimes(5)
    assert not found.only_queued
    assert found.row_filter.tags.tags == {"g"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/broker-a/store", "broker-a"),
        ("/data/broker-a/store/", "broker-a"),
        ("/data/broker-a", "broker-a"),
        ("/store", "store"),
    ],
)
def test_a_brokers_name_by_its_path(path: str, name: str) -> None:
    assert broker_of(path) == name


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"store": "/a/store,/b/a"}, None),
        ({"store": "/a/store,/b/a/store"}, "brokerName"),
        ({"store": "/a", "nameservers": "x:1"}, "nameservers"),
        ({"store": "/a", "maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger"),
        ({"store": ","}, "store"),
        ({"store": "/a", "includeSystemTopics": "true"}, "includeSystemTopics"),
        ({"store": "/a", "dataLossReport": "/r"}, "dataLossReport"),
        ({"store": "/a", "startingOffsets": '{"t": {"b": {"0": 1}}}'}, "startingOffsets"),
        ({"store": "/a", "startingTimestamp": "9", "endingTimestamp": "5"}, "endingTimestamp"),
    ],
)
def test_refused(more: dict[str, str], named: str | None) -> None:
    with pytest.raises(BadOption) as found:
        parse(more)
    assert found.value.option == (named or "brokerName")
