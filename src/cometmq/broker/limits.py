"""How large a message may be; what is refused says what to do."""

from __future__ import annotations

from cometmq.core.errors import MessageIllegal
from cometmq.message import properties as props


def check_properties(raw: bytes) -> None:
    """Raises MessageIllegal for a property text that no record holds."""
    if len(raw) > props.MAX_SIZE_BYTES:
        raise MessageIllegal(
            f"message properties length is {len(raw)} bytes, the limit is {props.MAX_SIZE_BYTES}: "
            "move large values into the body"
        )


def check_body(body: bytes, limit_bytes: int) -> None:
    """Raises MessageIllegal for a body, or the body of a batch, over the limit."""
    if len(body) > limit_bytes:
        raise MessageIllegal(
            f"message body is {len(body)} bytes, the limit is {limit_bytes}: "
            "send less at once, or raise maxMessageSize"
        )
