"""Two masters under one name are noticed, on both sides and by the name server."""

from pathlib import Path

import pytest

from cometmq.broker.replication import promotion as rivals
from tests.broker.replicated import group
from tests.broker.serving import running_broker
from tests.replication.pairs import until


async def test_both_masters_and_the_name_server_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rivals, "INTERVAL_MS", 10)
    async with group(tmp_path) as made:
        one = await made.start(0)
        await until(lambda: bool(one.broker.registered))
        place = f"127.0.0.1:{one.broker.port}"
        async with running_broker(tmp_path / "other", namesrvAddr=made.namesrv) as other:
            there = f"127.0.0.1:{other.broker.port}"
            await until(lambda: one.broker.replication.rivals.found == [there])
            assert f"another_master name=broker-a address={there}" in caplog.text
            assert f"master_displaced name=broker-a address={place} by={there}" in caplog.text
            info = await (await one.connect()).ask(28)
            assert there.encode() in info[1]
        await until(lambda: one.broker.replication.rivals.found == [])


async def test_a_name_server_that_is_gone_tells_of_nobody(tmp_path: Path) -> None:
    async with running_broker(tmp_path, namesrvAddr="127.0.0.1:1") as alone:
        await alone.broker.replication.rivals.look()
        assert alone.broker.replication.rivals.found == []
