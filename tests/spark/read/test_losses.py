"""What is lost is an error, or stands in the report."""

import json
import logging
from pathlib import Path

import pytest

from cometmq.message.model import MessageQueue
from cometmq.spark.options import BadOption
from cometmq.spark.read.losses import DataLoss, report_loss
from tests.spark.topics import options

QUEUE = MessageQueue("T", "broker-a", 3)


def test_a_loss_stops_the_query_and_names_queue_and_offsets() -> None:
    with pytest.raises(DataLoss, match=r"offsets 5 to 8 of queue 3 of topic 'T'") as caught:
        report_loss(QUEUE, 5, 9, options("h:1", "T"))
    assert (caught.value.queue, caught.value.start, caught.value.stop) == (QUEUE, 5, 9)


def test_each_loss_is_a_line_of_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "new" / "losses"
    read = options("h:1", "T", failOnDataLoss="false", dataLossReport=str(folder))
    with caplog.at_level(logging.WARNING):
        report_loss(QUEUE, 5, 9, read)
        report_loss(QUEUE, 11, 12, read)
    (path,) = folder.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(line.pop("at_ms") > 0 for line in lines)
    place = {"topic": "T", "broker": "broker-a", "queue": 3}
    assert lines == [
        {**place, "first": 5, "last": 8, "messages": 4},
        {**place, "first": 11, "last": 11, "messages": 1},
    ]
    assert len(caplog.records) == 2


def test_without_a_report_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report_loss(QUEUE, 5, 9, options("h:1", "T", failOnDataLoss="false"))
    assert "data_loss" in caplog.text


def test_a_report_that_cannot_be_written_stops_the_query(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    read = options("h:1", "T", failOnDataLoss="false", dataLossReport=str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        report_loss(QUEUE, 5, 9, read)


def test_a_report_of_nothing_is_refused() -> None:
    with pytest.raises(BadOption, match=r"'dataLossReport'.*failOnDataLoss"):
        options("h:1", "T", dataLossReport="losses")
