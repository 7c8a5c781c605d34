"""The file of consumer filters beside RocketMQ's own table: each reads what the other wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.broker.config import BrokerConfig
from cometmq.broker.pull.filterdata import FilterTable
from cometmq.broker.tables import TableDirectory
from cometmq.core.clock import SystemClock
from cometmq.net.tasks import Tasks
from cometmq.protocol.bodies import ConsumerData, SubscriptionData
from cometmq.protocol.fastjson import parse_json
from tests.compat.driver import Driver

ROWS = [
    ["t", "g", "a > 5 AND b = 'it''s'", 17],
    ["t", "another-group-with-a-longer-name", "a IS NOT NULL", 18],
    ["%RETRY%g", "g", "c IN ('ä', 'b')", 3],
]
#: What the Java class has where no broker made it.
SETTINGS = BrokerConfig(expect_consumer_num_use_filter=64)


async def ours(directory: Path, rows: list[list[Any]]) -> tuple[FilterTable, Tasks]:
    """Our table, from the file in ``directory`` and some heartbeats."""
    tasks = Tasks()
    table = FilterTable(TableDirectory(str(directory), SystemClock(), tasks), SETTINGS)
    table.load()
    for topic, group, expression, version in rows:
        wanted = SubscriptionData(topic, expression, version, expression_type="SQL92")
        others = [row for row in rows if row[1] == group and row[0] != topic]
        kept = [SubscriptionData(row[0], row[2], row[3], expression_type="SQL92") for row in others]
        table.subscribed(ConsumerData(group, subscription_data_set=(wanted, *kept)))
    return table, tasks


async def test_java_reads_our_file_and_we_read_its(driver: Driver, tmp_path: Path) -> None:
    table, tasks = await ours(tmp_path, ROWS)
    await table.close()
    await tasks.close()
    path = tmp_path / "consumerFilter.json"
    mine = path.read_bytes()
    read = driver.ask("filterTableRead", text=mine.decode(), rows=ROWS)
    assert read == [[*row, True] for row in ROWS]

    text = driver.ask("filterTable", rows=ROWS)
    assert isinstance(text, str)
    assert _without_times(text.encode()) == _without_times(mine)
    path.write_text(text, encoding="utf-8")
    table, tasks = await ours(tmp_path, [])
    for topic, group, expression, version in ROWS:
        found = table.get(str(topic), str(group))
        assert found is not None
        assert (found.expression, found.client_version) == (expression, version)
    await table.close()
    await tasks.close()


def _without_times(text: bytes) -> Any:
    found: Any = parse_json(text)
    for of_topic in found["filterDataByTopic"].values():
        for each in of_topic["groupFilterData"].values():
            each["bornTime"] = 0
    return found
