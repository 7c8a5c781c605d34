"""What a slave refuses, and what it serves like a master."""

from typing import Any

import pytest

from cometmq.broker.replication.roles import as_slave
from cometmq.core.errors import BadRequest
from cometmq.net.peer import Peer
from cometmq.net.router import Handler
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply, Request
from tests.broker.world import connect, request


def served(_peer: Peer, _request: Request[Any]) -> Reply:
    return Reply()


async def served_in_task(_peer: Peer, _request: Request[Any]) -> Reply:
    return Reply()


def handlers(master: str = "m:1") -> dict[int, Handler]:
    """The handlers of a slave, of which those of a master would serve everything."""
    made: dict[int, Handler] = dict.fromkeys(RequestCode, served)
    made[RequestCode.RECALL_MESSAGE] = served_in_task
    return as_slave(made, lambda: master)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (RequestCode.SEND_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.SEND_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.SEND_BATCH_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.END_TRANSACTION, ResponseCode.SLAVE_NOT_AVAILABLE),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, ResponseCode.SYSTEM_ERROR),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_only_a_master_does_is_refused_and_says_where_to_ask(
    code: RequestCode, expected: ResponseCode
) -> None:
    with pytest.raises(BadRequest, match=r"ask the master m:1$") as refused:
        handlers()[code](connect(), request(code))
    assert refused.value.code == expected


def test_a_master_that_is_not_known_is_not_named() -> None:
    with pytest.raises(BadRequest, match=r"ask the master$"):
        handlers("")[RequestCode.SEND_MESSAGE](connect(), request(RequestCode.SEND_MESSAGE))


async def test_a_refusal_is_a_task_where_the_handler_is_one() -> None:
    answer = handlers()[RequestCode.RECALL_MESSAGE](connect(), request(RequestCode.RECALL_MESSAGE))
    with pytest.raises(BadRequest, match="accepts no sends"):
        await answer  # type: ignore[misc]


def test_consumers_are_served() -> None:
    for code in (
        RequestCode.PULL_MESSAGE,
        RequestCode.HEART_BEAT,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
    ):
        assert handlers()[code] is served
