"""Interprets a broker's response to a send: where the messages are stored, and how safely. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.core.errors import BrokerRefused, CometError
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fields import from_ext
from cometmq.protocol.headers import SendMessageResponse

if TYPE_CHECKING:
    from cometmq.client.outgoing import Packed
    from cometmq.protocol.frame import Response


class SendStatus(Enum):
    """Safety with which a message was stored. With every status, the message is stored."""

    OK = ResponseCode.SUCCESS.value
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT.value
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT.value
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE.value


_STATUS: Final = {status.value: status for status in SendStatus}


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Location of a stored message.

    ``message_id`` is its unique key, ``offset_id`` the broker's id of it. ``region`` is the
    broker's region; it is empty when the broker wants no traces. ``recall_handle`` recalls a
    message with a delay or delivery time of its own.
    """

    status: SendStatus
    message_id: str
    offset_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    region: str = ""
    recall_handle: str = ""


def read_results(
    address: str, packed: Packed, queue: MessageQueue, response: Response
) -> list[SendResult]:
    """Return one result for each message of a request that was sent to ``queue``.

    Raises BrokerRefused when nothing was stored, CometError for a malformed response.
    """
    status = _STATUS.get(response.code)
    if status is None:
        raise BrokerRefused(address, packed.code, response.code, response.remark or "")
    header = _stored_at(response)
    stored = (
        queue
        if header.queue_id == queue.queue_id
        else MessageQueue(queue.topic, queue.broker_name, header.queue_id)
    )
    keys = packed.unique_keys
    ext = response.ext
    region = "" if ext.get("TRACE_ON") == "false" else ext.get("MSG_REGION", "")
    if packed.code != RequestCode.SEND_BATCH_MESSAGE:
        transaction_id = ext.get("transactionId", "")
        handle = ext.get("recallHandle", "")
        at = header.queue_offset
        return [
            SendResult(status, keys[0], header.msg_id, stored, at, transaction_id, region, handle)
        ]
    offset_ids = header.msg_id.split(",")
    if len(offset_ids) != len(keys):
        problem = f"{len(offset_ids)} ids for {len(keys)} messages"
        raise CometError(f"{address}: bad answer to a batch: {problem}")
    first = header.queue_offset
    offsets: Iterable[int] = range(first, first + len(keys))
    if scattered := ext.get("queueOffsets"):
        offsets = _numbers(address, scattered, len(keys))
    return [
        SendResult(status, key, offset_id, stored, offset, "", region)
        for key, offset_id, offset in zip(keys, offset_ids, offsets, strict=True)
    ]


def _numbers(address: str, text: str, count: int) -> list[int]:
    found = [int(part) for part in text.split(",") if part.isdecimal()]
    if len(found) != count:
        problem = f"{len(found)} queue offsets for {count} messages"
        raise CometError(f"{address}: bad answer to a batch: {problem}")
    return found


def _stored_at(response: Response) -> SendMessageResponse:
    ext = response.ext
    try:
        # The fields that every broker sends; from_ext takes three times as long.
        return SendMessageResponse(ext["msgId"], int(ext["queueId"]), int(ext["queueOffset"]))
    except (KeyError, ValueError):
        return from_ext(SendMessageResponse, ext)  # raises an error that names the problem
