"""Light queues (LMQ) are left out: what is asked of them is refused, or visibly not done."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.config import load
from cometmq.core.errors import SettingsError
from cometmq.message import properties as props
from cometmq.protocol.codes import RequestCode
from tests.broker.serving import running_broker

LIGHT = "%LMQ%device-1"


@pytest.mark.parametrize("key", ["enableLmq", "enableMultiDispatch"])
def test_their_settings_are_refused(key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        load({"storePathRootDir": "/nowhere", key: "true"})
    load({"storePathRootDir": "/nowhere", key: "false"})


async def test_a_message_for_them_stays_in_its_own_topic(tmp_path: Path) -> None:
    text = f"{props.INNER_MULTI_DISPATCH}\x01{LIGHT},%LMQ%device-2\x02UNIQ_KEY\x01U"
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        head = await client.send(i=text)
        assert (head.code, head.ext["queueOffset"]) == (0, "0")
        _, (record,) = await client.pull()
        stored = props.decode(record.properties)
        assert stored[props.INNER_MULTI_DISPATCH] == f"{LIGHT},%LMQ%device-2"
        assert props.INNER_MULTI_QUEUE_OFFSET not in stored
        assert not [name for name in running.broker.store.topics() if name.startswith("%LMQ%")]


async def test_nobody_reads_them(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        head, _ = await client.pull(topic=LIGHT, queueId="0")
        assert head.code == 17
        head, _ = await client.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="g",
            topic=LIGHT,
            queueId="0",
            commitOffset="1",
        )
        assert head.code == 17
