"""Permissions that a request needs for topics and groups, and whether it needs an administrator.

Upstream (PlainAccessResource.parse, Permission.ADMIN_CODE) does not check all codes that reach the
same messages or settings. It leaves out batches, replies, lite pulls, queue locks, recalls,
requests relayed to consumers, and most changes of settings. Here these need the same permissions as
the codes that upstream checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cometmq.acl.rules import Permission
from cometmq.core.errors import AclDenied, RemoteProtocolError
from cometmq.message.names import RETRY_PREFIX
from cometmq.protocol.bodies import Heartbeat, QueueLockRequest, parse_client_body
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.registry import REGISTRY

Needs = list[tuple[str, Permission]]
_Reader = Callable[[Mapping[str, str], bytes], Needs]

#: Codes that change a server, and one that shows secrets.
_FOR_ADMINISTRATORS: Final = frozenset(
    {code for code, spec in REGISTRY.items() if spec.mutates} | {Code.GET_BROKER_CLUSTER_ACL_CONFIG}
)


def needs_admin(code: int) -> bool:
    """Return whether only an administrator may send requests with this code."""
    return code in _FOR_ADMINISTRATORS


def needs_of(code: int, fields: Mapping[str, str], body: bytes) -> Needs:
    """Return the permissions that a request needs, each with a topic; a group is its retry topic.

    Raises AclDenied if the body cannot be read.
    """
    read = _READERS.get(code)
    return [] if read is None else read(fields, body)


def _group(name: str | None) -> tuple[str, Permission]:
    return RETRY_PREFIX + (name or ""), Permission.SUB


def _send(topic_field: str) -> _Reader:
    def read(fields: Mapping[str, str], _body: bytes) -> Needs:
        topic = fields.get(topic_field, "")
        if topic.startswith(RETRY_PREFIX):
            # The group in the topic's name gets the message, even if the sender names another one.
            return [_group(topic.removeprefix(RETRY_PREFIX))]
        return [(topic, Permission.PUB)]

    return read


def _consume(fields: Mapping[str, str], _body: bytes) -> Needs:
    return [(fields.get("topic", ""), Permission.SUB), _group(fields.get("consumerGroup"))]


def _read_topic(fields: Mapping[str, str], _body: bytes) -> Needs:
    return [(fields.get("topic", ""), Permission.SUB)]


def _read_group(fields: Mapping[str, str], _body: bytes) -> Needs:
    return [_group(fields.get("consumerGroup"))]


def _consumer_status(fields: Mapping[str, str], _body: bytes) -> Needs:
    return [(fields.get("topic", ""), Permission.SUB), _group(fields.get("group"))]


def _unregister(fields: Mapping[str, str], _body: bytes) -> Needs:
    # A client unregisters its producer groups with the same code; they need no permission.
    group = fields.get("consumerGroup")
    return [_group(group)] if group else []


def _send_back(fields: Mapping[str, str], _body: bytes) -> Needs:
    return [_group(fields.get("group")), (fields.get("originTopic", ""), Permission.PUB)]


def _heartbeat(_fields: Mapping[str, str], body: bytes) -> Needs:
    try:
        heartbeat = parse_client_body(body, Heartbeat)
    except RemoteProtocolError as error:
        raise AclDenied(f"the heartbeat cannot be read: {error}") from None
    needs: Needs = []
    for consumer in heartbeat.consumer_data_set:
        needs.append(_group(consumer.group_name))
        needs += [(each.topic, Permission.SUB) for each in consumer.subscription_data_set]
    return needs


def _locks(_fields: Mapping[str, str], body: bytes) -> Needs:
    try:
        return [_group(parse_client_body(body, QueueLockRequest).consumer_group)]
    except RemoteProtocolError as error:
        raise AclDenied(f"the queue locks cannot be read: {error}") from None


def _recall(fields: Mapping[str, str], _body: bytes) -> Needs:
    return [(fields.get("topic", ""), Permission.PUB)]


_READERS: Final[Mapping[int, _Reader]] = {
    Code.SEND_MESSAGE: _send("topic"),
    Code.SEND_MESSAGE_V2: _send("b"),
    Code.SEND_BATCH_MESSAGE: _send("b"),
    Code.SEND_REPLY_MESSAGE: _send("topic"),
    Code.SEND_REPLY_MESSAGE_V2: _send("b"),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _consumer_status,
    Code.GET_CONSUMER_RUNNING_INFO: _read_group,
    Code.CONSUME_MESSAGE_DIRECTLY: _read_group,
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.PULL_MESSAGE: _consume,
    Code.LITE_PULL_MESSAGE: _consume,
    Code.QUERY_MESSAGE: _read_topic,
    Code.QUERY_CONSUME_QUEUE: _read_topic,
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: _read_group,
    Code.UPDATE_CONSUMER_OFFSET: _consume,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.RECALL_MESSAGE: _recall,
}
