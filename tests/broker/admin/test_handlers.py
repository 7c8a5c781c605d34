"""What operators ask is served."""

from __future__ import annotations

from pathlib import Path

from cometmq.protocol.codes import RequestCode
from tests.broker.serving import running_broker


async def test_the_codes_of_operators_are_served(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        codes = running.broker.admin.handlers().keys()
    assert {
        RequestCode.QUERY_MESSAGE,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
    } <= codes
