"""Errors that CometMQ raises on purpose, as one tree.

    CometError
    ├── SettingsError                 a setting is unknown or has a bad value
    ├── ProtocolError                 bytes or headers break the remoting protocol
    │   ├── LocalProtocolError        we would have sent something illegal (our bug)
    │   └── RemoteProtocolError       the peer sent something illegal
    │       └── BadRequest            one request is illegal; only that request fails
    │           └── AclDenied         its sender may not send it, or an access rule is invalid
    ├── StoreError                    the store cannot do what was asked
    │   ├── StoreCorrupt              bytes on disk contradict each other
    │   ├── StoreFull                 no room on the device
    │   ├── StoreOffline              the log failed or is closed; writes are refused
    │   ├── StoreLocked               another process owns the directory
    │   ├── NoStore                   a directory holds no store
    │   └── MessageIllegal            the message itself cannot be stored
    │       └── WrongArgument         an argument of a call has a wrong type (also a TypeError)
    ├── UndecodableMessage            a body is no value of its typed topic (also a ValueError)
    ├── NotOpen                       an object is used before it is open (also a RuntimeError)
    └── ClientError                   a call to a remote side did not succeed
        ├── AlreadyInUse              this client has a member of the group (also a ValueError)
        ├── NotConnected              no connection could be made, or it broke
        ├── RequestTimedOut           no answer before the deadline
        ├── RouteNotFound             no name server knows the topic
        ├── NotFound                  a group, broker, message, ... does not exist
        └── BrokerRefused             the remote side answered with an error code

Errors carry fields; ``str(error)`` is a readable sentence. If an error is sent to a peer, the
answer has its ``code`` and ``remark``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, TypeVar

E = TypeVar("E", bound=Exception)

#: Words for the most common requests, by request code. The codes are plain numbers, because core
#: imports nothing above it.
_OPERATIONS: Final = {
    10: "a send",
    11: "a pull",
    12: "a query by key",
    14: "a query of a group's offset",
    15: "an update of a group's offset",
    29: "a query of an offset by time",
    30: "a query of the end of a queue",
    31: "a query of the beginning of a queue",
    33: "a query by message id",
    34: "a heartbeat",
    35: "the end of a membership",
    36: "the return of a message for a retry",
    37: "the end of a transaction",
    38: "a query of the members of a group",
    41: "a lock of queues",
    42: "an unlock of queues",
    46: "a check of a filter",
    105: "a query of a topic's route",
    310: "a send",
    320: "a send of a batch",
    325: "a reply",
    370: "the recall of a message",
}


def operation_name(request_code: int) -> str:
    """Return words for a common request; for others, the name or number of the code."""
    known = _OPERATIONS.get(request_code)
    if known is not None:
        return known
    name = request_code.name if isinstance(request_code, IntEnum) else request_code
    return f"request {name}"


class CometError(Exception):
    """Root of all errors of this package.

    ``code`` is the response code if the error is sent to a peer.
    """

    code: int = 1  # ResponseCode.SYSTEM_ERROR; a plain int, because core imports nothing above it

    @property
    def remark(self) -> str:
        """The error's sentence for a peer. Characters that UTF-8 cannot encode, such as those of
        some file names, are escaped."""
        return str(self).encode("utf-8", "backslashreplace").decode()


class SettingsError(CometError):
    """A setting is unknown or its value cannot be used.

    ``where`` is the place that the setting came from, such as ``broker.conf:12``, if it is known.
    ``is_unusable`` says that the setting is known but its value cannot be used. ``more`` are errors
    about other settings; the text has a line for each.
    """

    def __init__(
        self,
        key: str,
        problem: str,
        *,
        where: str = "",
        is_unusable: bool = True,
        more: Sequence[SettingsError] = (),
    ) -> None:
        self.key = key
        self.problem = problem
        self.where = where
        self.is_unusable = is_unusable
        self.more = tuple(more)
        place = f"{where}: " if where else ""
        lines = [f"{place}setting {key!r}: {problem}", *map(str, self.more)]
        super().__init__("\n".join(lines))


class ProtocolError(CometError):
    """Bytes or header fields break the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """This side was about to send something that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that cannot be a frame; its connection is closed."""


class BadRequest(RemoteProtocolError):
    """One request is illegal: it gets ``code`` and ``remark``, and its connection stays open."""

    def __init__(self, code: int, remark: str) -> None:
        self.code = code
        super().__init__(remark)


class AclDenied(BadRequest):
    """Access control refuses a request, or an access rule is invalid.

    The code for the peer is SYSTEM_ERROR, as a 4.9 broker answers (upstream: AclException.java).
    """

    def __init__(self, problem: str) -> None:
        super().__init__(CometError.code, problem)


class StoreError(CometError):
    """The store cannot do what was asked."""


def fresh_copy(error: E) -> E:
    """Return a copy of an error without its traceback, to raise for one of several callers.

    If one object were raised for all of them, its traceback would grow by the frames of each raise,
    and these frames would keep the callers' requests alive.
    """
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy


class StoreCorrupt(StoreError):
    """Bytes on disk contradict each other, or are missing.

    ``path`` is the file. ``offset`` is the physical offset, -1 for the file as a whole.
    ``next_offset`` is the offset at which good bytes continue, -1 if there are none or it is
    unknown. ``ways_out`` are the actions that an operator can take.
    """

    def __init__(
        self,
        path: str,
        offset: int,
        problem: str,
        *,
        next_offset: int = -1,
        ways_out: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.offset = offset
        self.problem = problem
        self.next_offset = next_offset
        self.ways_out = ways_out
        place = path if offset < 0 else f"{path} at offset {offset}"
        choices = "".join(f" ({number}) {way}." for number, way in enumerate(ways_out, 1))
        super().__init__(f"{place}: {problem}" + (f". What to do:{choices}" if choices else ""))


class StoreFull(StoreError):
    """The device has no room; nothing of the failed append is visible."""

    code = 14  # ResponseCode.SERVICE_NOT_AVAILABLE


class StoreOffline(StoreError):
    """Writes are refused: the log failed on a device error, or the store is closed."""

    code = 14  # ResponseCode.SERVICE_NOT_AVAILABLE


class StoreLocked(StoreError):
    """Another process owns the store directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"store {path} is in use by another process: stop that broker, or choose another "
            "--store"
        )


class NoStore(StoreError):
    """The directory at ``path`` holds no store."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path} is not a store directory: {problem}")


class MessageIllegal(StoreError):
    """A message breaks a limit of the store (size, property length, topic length)."""

    code = 13  # ResponseCode.MESSAGE_ILLEGAL


class WrongArgument(MessageIllegal, TypeError):
    """The argument called ``argument`` has a wrong type; ``problem`` says which one it needs."""

    def __init__(self, argument: str, problem: str) -> None:
        self.argument = argument
        self.problem = problem
        super().__init__(f"{argument} {problem}")


class UndecodableMessage(CometError, ValueError):
    """The body of message ``message_id`` is no value of its typed topic; ``reason`` says why."""

    def __init__(self, topic: str, message_id: str, reason: str) -> None:
        self.topic = topic
        self.message_id = message_id
        self.reason = reason
        super().__init__(f"message {message_id} of topic {topic!r} cannot be decoded: {reason}")


class NotOpen(CometError, RuntimeError):
    """An object is used before it is open, or after it was closed."""


class ClientError(CometError):
    """A call to a remote side did not succeed."""


class AlreadyInUse(ClientError, ValueError):
    """This client already has a ``kind`` (consumer, transaction checker) of group ``name``."""

    def __init__(self, kind: str, name: str, problem: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"this client already has a {kind} of group {name!r}: {problem}")


class NotConnected(ClientError):
    """No connection to ``address`` could be made, or it broke before the answer."""

    def __init__(self, address: str, problem: str) -> None:
        self.address = address
        self.problem = problem
        super().__init__(f"{address}: {problem}")


class RequestTimedOut(ClientError):
    """``address`` did not answer request ``request_code`` within ``timeout_ms``.

    ``text`` replaces the generated sentence.
    """

    def __init__(self, address: str, request_code: int, timeout_ms: int, *, text: str = "") -> None:
        self.address = address
        self.request_code = request_code
        self.timeout_ms = timeout_ms
        operation = operation_name(request_code)
        super().__init__(text or f"{address}: no answer to {operation} within {timeout_ms} ms")


class RouteNotFound(ClientError):
    """No name server knows a route for ``topic``."""

    code = 17  # ResponseCode.TOPIC_NOT_EXIST

    def __init__(self, topic: str, problem: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r}: {problem}")


class NotFound(ClientError):
    """There is no ``kind`` (group, broker, cluster, message, account, ...) called ``name``."""

    def __init__(self, kind: str, name: str, problem: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"{kind} {name!r}: {problem}")


#: Words in the remarks of servers with access control (upstream: PlainPermissionManager.java).
_OF_ACCOUNTS = ("AclException", "accessKey", "No acl config", "No default permission")
#: Response code for a refused change of an account. The remark is about the account that was to be
#: changed, not about the caller's.
_ACCOUNT_NOT_CHANGED = 209
_NO_PERMISSION = 16


class BrokerRefused(ClientError):
    """The remote side answered with an error ``code`` and the reason in ``broker_remark``.

    ``text`` replaces the generated sentence.
    """

    def __init__(
        self, address: str, request_code: int, code: int, broker_remark: str, *, text: str = ""
    ) -> None:
        self.address = address
        self.request_code = request_code
        self.code = code
        self.broker_remark = broker_remark
        hint = ""
        if self.is_about_account:
            hint = "; compare the credentials of this program with the accounts of the server"
        operation = operation_name(request_code)
        super().__init__(
            text or f"{address} refused {operation} with code {code}: {broker_remark}{hint}"
        )

    @property
    def is_denial(self) -> bool:
        """True if the caller, its group or the topic lacks a permission."""
        return self.code == _NO_PERMISSION or self.is_about_account

    @property
    def is_about_account(self) -> bool:
        """True if access control refused the caller's account, not if everybody is refused."""
        about_caller = self.code != _ACCOUNT_NOT_CHANGED
        return about_caller and any(word in self.broker_remark for word in _OF_ACCOUNTS)
