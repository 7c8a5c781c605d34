"""Settings that an operator changed are in force after a kill."""

from pathlib import Path

from cometmq.core.settings import parse_properties
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import NoFields
from tests.cluster.servers import BrokerProcess, NamesrvProcess
from tests.operation.raw import RawPeer, send_header

#: Far in the future, in ms since the epoch.
NOT_YET = 4_102_444_800_000


async def shown(address: str) -> dict[str, str]:
    """The settings of a running broker."""
    peer = await RawPeer.connect(address)
    answer = await peer.ask(RequestCode.GET_BROKER_CONFIG, NoFields())
    await peer.close()
    return parse_properties(answer.body.decode())


async def send_code(address: str) -> int:
    """The response code of a send."""
    peer = await RawPeer.connect(address)
    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("t", 0, "", 1), b"x")
    await peer.close()
    return answer.code


async def test_a_killed_broker_still_refuses_sends_until_the_time_that_was_set(
    tmp_path: Path,
) -> None:
    namesrv = NamesrvProcess(tmp_path)
    namesrv.start()
    broker = BrokerProcess(tmp_path, namesrv.namesrv)
    broker.start()
    try:
        assert await send_code(broker.broker) == ResponseCode.SUCCESS
        peer = await RawPeer.connect(broker.broker)
        body = f"startAcceptSendRequestTimeStamp={NOT_YET}\nfileReservedTime=48\n".encode()
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, NoFields(), body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await peer.close()
        broker.kill()
        broker.start()
        found = await shown(broker.broker)
        assert found["startAcceptSendRequestTimeStamp"] == str(NOT_YET)
        assert found["fileReservedTime"] == "48"
        assert await send_code(broker.broker) != ResponseCode.SUCCESS
    finally:
        broker.kill()
        namesrv.kill()
