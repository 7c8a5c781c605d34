"""A broker that is started while its disk has no room left."""

from pathlib import Path

from cometmq.protocol.codes import ResponseCode
from tests.broker.serving import running_broker
from tests.store.full import FullFiles


async def test_a_broker_serves_what_it_has_without_a_byte_of_room(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "s") as running:
        client = await running.connect()
        for number in range(20):
            head = await client.send(b"%d" % number)
            assert head.code == ResponseCode.SUCCESS
    files = FullFiles()
    async with running_broker(tmp_path / "s", files) as running:
        client = await running.connect()
        _, records = await client.pull()
        assert [record.body for record in records] == [b"%d" % number for number in range(20)]
        head = await client.send(b"late")
        assert head.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "free space there" in (head.remark or "")
        files.full = False
        await running.broker.store.maintenance.expiry.check()
        await running.broker.store.maintenance.flush_entries()
        head = await client.send(b"late")
        assert head.code == ResponseCode.SUCCESS
