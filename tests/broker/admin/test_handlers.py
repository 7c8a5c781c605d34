"""The parts for operators serve what operators ask, each code by one of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cometmq.protocol.codes import RequestCode
from tests.broker.serving import running_broker


async def test_each_code_is_served_by_one_part(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        codes = Counter(code for part in running.broker._admin_parts() for code in part.handlers())
    assert codes.most_common(1)[0][1] == 1
    assert {
        RequestCode.QUERY_MESSAGE,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
    } <= codes.keys()
