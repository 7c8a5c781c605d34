"""Responses as bytes: whole ones, and those of plain sends and pulls as what stands round their
numbers.

What stands there is cut out of what the encoder of :mod:`cometmq.protocol.frame` makes, so that a
response reads the same whoever wrote it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from cometmq.protocol.codes import Language, ResponseCode
from cometmq.protocol.fields import to_ext
from cometmq.protocol.frame import FLAG_RESPONSE, JSON, Request, encode_head, head_pieces, lengths

if TYPE_CHECKING:
    from cometmq.protocol.headers import Header

_SEND_FIELDS: Final = ("msgId", "queueId", "queueOffset")
_PULL_FIELDS: Final = ("maxOffset", "minOffset", "nextBeginOffset", "suggestWhichBrokerId")


def _pieces(
    code: int, fields: dict[str, str], names: tuple[str, ...], remark: str | None = None
) -> tuple[bytes, ...]:
    return head_pieces(
        code, fields, Language.PYTHON, names, flag=FLAG_RESPONSE, remark=remark
    )  # fmt: skip


#: The commonest header of all says that it is done, and no more: up to its opaque, and behind it.
DONE_HEAD, _DONE_TAIL = _pieces(ResponseCode.SUCCESS, {}, ())


def encode_done(opaque: int) -> bytes:
    """Bytes of the response in JSON that says success, and no more."""
    head = b"%b%d%b" % (DONE_HEAD, opaque, _DONE_TAIL)
    return lengths(len(head)) + head


def send_pieces(region: str, trace_on: bool) -> tuple[bytes, ...]:
    """The header of the response to a stored send: what stands before the ids, the queue, its
    offset and the opaque, and behind that."""
    fields = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
    return _pieces(
        ResponseCode.SUCCESS, fields | dict.fromkeys(_SEND_FIELDS, ""), _SEND_FIELDS
    )  # fmt: skip


@cache
def pull_pieces(code: int, remark: str) -> tuple[bytes, ...]:
    """The header of the response to a pull: what stands before the largest offset, the smallest,
    the next one, the broker to ask next and the opaque, and behind that."""
    return _pieces(code, dict.fromkeys(_PULL_FIELDS, ""), _PULL_FIELDS, remark)


def encode_response(
    request: Request[Any],
    code: int,
    *,
    header: Header | None = None,
    ext: dict[str, str] | None = None,
    remark: str | None = None,
    body_bytes: int = 0,
) -> bytes:
    """Bytes of a response, in the request's own codec; its body of ``body_bytes`` follows them."""
    nothing = header is None and not ext and remark is None and not body_bytes
    if nothing and not code and request.codec == JSON:
        return encode_done(request.opaque)
    return encode_head(
        code=code,
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        ext=to_ext(header) if ext is None else ext,
        remark=remark,
        codec=request.codec,
        body_bytes=body_bytes,
    )
