"""Draining a broker: name servers take its topics' permission to write out of routes, and give it
back. Each of them has to be told, for they do not know of each other."""

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
    """What one name server answered: in how many topics the permission changed, or why it was not
    told."""

    name_server: str
    topics: int
    problem: str = ""


async def drain(session: Session, broker_name: str) -> list[Told]:
    """Have producers leave a broker out, by its name, at all name servers of a session; consumers
    read what it has. It lasts until the broker registers other topics."""
    return await _tell_all(session, RequestCode.WIPE_WRITE_PERM_OF_BROKER, broker_name)


async def undrain(session: Session, broker_name: str) -> list[Told]:
    """Have producers send to a broker again: every topic of it may be read and written then."""
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
