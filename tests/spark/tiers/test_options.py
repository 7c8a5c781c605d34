"""Options of reads of several tiers."""

import pytest
from pyspark.sql.types import StructType

from cometmq.spark.options import BadOption
from cometmq.spark.read.options import KNOWN as OF_TOPICS
from cometmq.spark.source import TopicSource
from cometmq.spark.store.options import KNOWN as OF_STORES
from cometmq.spark.tiers.options import KNOWN, are_tiered, parse

LIVE = {"nameservers": "h:1", "topic": "T"}


def test_tiers_are_given_together() -> None:
    assert are_tiered({"Archive": "/a"})
    assert are_tiered({"store": "/s", "namesrv": "h:1"})
    assert not are_tiered({"store": "/s"})
    assert not are_tiered(LIVE)


def test_each_tier_gets_its_options() -> None:
    read = parse({**LIVE, "archive": "file:///a", "store": "/x/broker-a/store",
                  "startingTimestamp": "5", "filter": "a || b", "minPartitions": "3",
                  "readFrom": "slave", "failOnDataLoss": "false"})  # fmt: skip
    assert read.archive == "/a"
    remote = parse({"archive": "s3://k:hush@bucket/a?region=x"})
    assert remote.archive == "s3://k:hush@bucket/a?region=x"
    assert "hush" not in repr(remote)
    assert read.store is not None
    assert read.live is not None
    assert [root.broker_name for root in read.store.roots] == ["broker-a"]
    assert read.store.row_filter == read.live.row_filter == read.row_filter
    assert not read.store.fail_on_data_loss
    assert not read.live.fail_on_data_loss
    assert read.starting is not None
    assert read.live.starting is None  # a broker that it names may have gone


def test_what_both_readers_know_is_known() -> None:
    left_out = {*OF_TOPICS, *OF_STORES} - {*KNOWN}
    assert left_out == {
        *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        *("reportLag", "onlyQueued"),
    }


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"nameservers": "h:1"}, "'topic': is required"),
        ({"archive": "s3a://k:hush@bucket/a"}, "'archive': .*'s3a', not s3.*write s3://"),
        ({"archive": ""}, "'archive': is empty"),
        ({"brokerName": "b"}, "'brokerName': needs store"),
        ({"onlyQueued": "false"}, "store directory alone"),
        ({"maxOffsetsPerTrigger": "5"}, "no such option"),
        ({"startingOffsets": "group", "consumerGroup": "g"}, "need nameservers"),
        ({"dataLossReport": "/r"}, "needs failOnDataLoss=false"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "is before startingTimestamp"),
    ],
)
def test_what_cannot_be_used(options: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        parse({"archive": "/a", **options})


@pytest.mark.parametrize("more", [{"archive": "/a"}, {"store": "/s"}])
def test_a_stream_is_refused(more: dict[str, str]) -> None:
    with pytest.raises(BadOption, match="is read in batches only"):
        TopicSource({**LIVE, **more}).streamReader(StructType())
