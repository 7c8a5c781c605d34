"""Encodes responses: whole ones, and for plain sends and pulls the parts around their numbers.

The parts are cut from the output of the encoder in :mod:`cometmq.protocol.frame`, so that all
responses have the same form.
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


#: Most responses contain only SUCCESS: the parts of their header before and after the opaque.
DONE_HEAD, _DONE_TAIL = _pieces(ResponseCode.SUCCESS, {}, ())


def encode_done(opaque: int) -> bytes:
    """Return the bytes of a JSON response with SUCCESS and nothing else."""
    head = b"%b%d%b" % (DONE_HEAD, opaque, _DONE_TAIL)
    return lengths(len(head)) + head


def send_pieces(region: str, trace_on: bool) -> tuple[bytes, ...]:
    """Return the parts of the header of a response to a stored send.

    They surround the message ids, the queue id, the queue offset and the opaque.
    """
    fields = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
    return _pieces(
        ResponseCode.SUCCESS, fields | dict.fromkeys(_SEND_FIELDS, ""), _SEND_FIELDS
    )  # fmt: skip


@cache
def pull_pieces(code: int, remark: str) -> tuple[bytes, ...]:
    """Return the parts of the header of a response to a pull.

    They surround the maximum, minimum and next offset, the suggested broker id and the opaque.
    """
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
    """Return the bytes of a response in the request's codec, up to its body of ``body_bytes``."""
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
