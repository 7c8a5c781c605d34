"""A task's rows are stored when its message to the driver leaves."""

from __future__ import annotations

import logging
import pickle

import pyarrow as pa
import pytest

from cometmq.client.blocking import Client
from cometmq.spark.write.options import parse
from cometmq.spark.write.rows import BadRow
from cometmq.spark.write.writer import TopicStreamWriter, TopicWriter, Written
from cometmq.testing.cluster import Cluster
from tests.spark.topics import make_topic


def rows(*bodies: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.string())})


def test_a_task_stores_all_batches_and_says_how_many(
    cometmq_session_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        (queue,) = make_topic(client, "SinkWriter", 1)
        options = parse({"nameservers": cometmq_session_cluster.namesrv, "topic": "SinkWriter"})
        writer = TopicWriter(options)
        tasks = [pickle.loads(pickle.dumps(writer)) for _ in range(2)]
        written = [task.write(iter([rows("a", "b"), rows("a")])) for task in tasks]
        assert written == [Written(3, 3, 0)] * 2
        found = client.puller.pull(queue, 0).messages
        ids = [message.unique_key for message in found]
        # A task that Spark repeats has the same ids; equal rows of it have their own.
        assert ids[:3] == ids[3:]
        assert len(set(ids)) == 3
        with pytest.raises(BadRow, match="row 1"):
            writer.write(iter([rows("a", None)]))
        with caplog.at_level(logging.INFO):
            writer.commit([*written, None])
        assert "topic_written batch=None rows=6 bytes=6 retries=0" in caplog.text


def test_query_and_batch_decide_the_ids_of_a_micro_batch(
    cometmq_session_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        (queue,) = make_topic(client, "SinkStreamWriter", 1)
        for batch in ("7", "7", "8"):
            options = {"nameservers": cometmq_session_cluster.namesrv, "topic": "SinkStreamWriter"}
            writer = TopicStreamWriter(parse({**options, "queryId": "q", "batchId": batch}))
            written = writer.write(iter([rows("a")]))
        ids = [message.unique_key for message in client.puller.pull(queue, 0).messages]
        assert (ids[0] == ids[1], len(set(ids))) == (True, 2)
        with caplog.at_level(logging.INFO):
            writer.commit([written], 8)
        assert "topic_written batch=8 rows=1" in caplog.text
