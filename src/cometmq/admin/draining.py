"""Drains a broker: name servers remove the write permission of its topics from routes, or restore
it.

The request goes to every name server, because name servers do not know of each other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import ClientError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fields import from_ext
from cometmq.protocol.headers import AddWritePermResponse, BrokerName, WipeWritePermResponse

if TYPE_CHECKING:
    from cometmq.client.session import Session

_TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Told:
    """Response of one name server: the number of changed topics, or the problem if it failed."""

    name_server: str
    topics: int
    problem: str = ""


async def drain(session: Session, broker_name: str) -> list[Told]:
    """Make producers avoid a broker, by its name, at all name servers of a session.

    Consumers still read its messages. The change lasts until the broker registers changed topics.
    """
    return await _tell_all(session, RequestCode.WIPE_WRITE_PERM_OF_BROKER, broker_name)


async def undrain(session: Session, broker_name: str) -> list[Told]:
    """Make producers send to a broker again; all its topics become readable and writable."""
    return await _tell_all(session, RequestCode.ADD_WRITE_PERM_OF_BROKER, broker_name)


async def _tell_all(session: Session, code: RequestCode, broker_name: str) -> list[Told]:
    async def tell(name_server: str) -> Told:
        try:
            response = await session.remoting.call(
                name_server, code, BrokerName(broker_name), timeout_ms=_TIMEOUT_MS
            )
        except ClientError as error:
            return Told(name_server, 0, str(error))
        if code is RequestCode.WIPE_WRITE_PERM_OF_BROKER:
            return Told(name_server, from_ext(WipeWritePermResponse, response.ext).wipe_topic_count)
        return Told(name_server, from_ext(AddWritePermResponse, response.ext).add_topic_count)

    return list(await asyncio.gather(*map(tell, session.config.name_servers)))
