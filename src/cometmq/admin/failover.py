"""Moves the work of a broker on request: drains it, promotes a slave, takes over an address.

To drain a broker, name servers remove the write permission of its topics from routes. The request
goes to every name server, because name servers do not know of each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import ClientError, CometError, NotConnected, RequestTimedOut
from cometmq.protocol.bodies import AddressState, KvTable, Promote, Promotion, TakeAddress
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.fields import from_ext
from cometmq.protocol.headers import AddWritePermResponse, BrokerName, WipeWritePermResponse

if TYPE_CHECKING:
    from cometmq.client.session import Session
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting

_TIMEOUT_MS: Final = 5_000
_PROMOTION_TIMEOUT_MS: Final = 15_000
_STEP_MS: Final = 50
#: Time for a promotion: a large store takes long. The broker's log shows the progress.
PROMOTION_WAIT_MS: Final = 120_000
#: Time that an operator has to stop the old master.
TAKEOVER_WAIT_MS: Final = 120_000


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


class NotPromoted(CometError):
    """A slave that was asked to become the master did not do so in time."""


@dataclass(frozen=True, slots=True)
class PromotionOutcome:
    """Response of a broker, and the time until it served as master (-1: it was not promoted)."""

    promotion: Promotion
    duration_ms: int


async def promote(
    remoting: Remoting,
    clock: Clock,
    address: str,
    wanted: Promote,
    *,
    wait_ms: int = PROMOTION_WAIT_MS,
) -> PromotionOutcome:
    """Make the slave at ``address`` the master and wait until it serves.

    If ``wanted`` only checks, or a finding refuses the promotion, return at once. Raises
    NotConnected and RequestTimedOut when the slave does not respond, BrokerRefused when it is not a
    slave or does not accept the request from other machines, and NotPromoted after ``wait_ms``.
    """
    begun_ms = clock.monotonic_ms()
    body = encode_json(wanted)
    code = RequestCode.PROMOTE_BROKER
    response = await remoting.call(address, code, None, body, timeout_ms=_PROMOTION_TIMEOUT_MS)
    found = parse_json(response.body, Promotion)
    if not found.begins:
        return PromotionOutcome(found, -1)
    while clock.monotonic_ms() - begun_ms < wait_ms:
        if await _role(remoting, address) == wanted.role:
            return PromotionOutcome(found, clock.monotonic_ms() - begun_ms)
        await clock.sleep_ms(_STEP_MS)
    raise NotPromoted(
        f"{address} does not serve as {wanted.role} after {wait_ms // 1000} s: see its log "
        "for the reason"
    )


async def _role(remoting: Remoting, address: str) -> str:
    """Return the role of a broker; "" while it does not respond."""
    try:
        response = await remoting.call(
            address, RequestCode.GET_BROKER_RUNTIME_INFO, None, timeout_ms=1_000
        )
    except (NotConnected, RequestTimedOut):
        return ""
    return parse_json(response.body, KvTable).table.get("brokerRole", "")


class NotTaken(CometError):
    """An address could not be taken over; the new master keeps serving on its own address."""


async def look_at_address(remoting: Remoting, broker: str, address: str) -> AddressState:
    """Return whether the broker at ``broker`` could listen on ``address``; change nothing.

    Raises NotConnected, RequestTimedOut and BrokerRefused.
    """
    return await _ask(remoting, broker, TakeAddress(address, check=True))


async def take_address(
    remoting: Remoting,
    clock: Clock,
    broker: str,
    address: str,
    *,
    wait_ms: int = TAKEOVER_WAIT_MS,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Make the master at ``broker`` also listen on ``address``, and register by it.

    Waits until no other process listens there; ``say`` is called with a line about that. Returns
    the time in ms. Raises NotTaken when the address belongs to another machine or is not taken
    within ``wait_ms``, and BrokerRefused.
    """
    begun_ms = clock.monotonic_ms()
    waits = False
    while True:
        try:
            found = await _ask(remoting, broker, TakeAddress(address))
        except (NotConnected, RequestTimedOut) as error:
            found = AddressState("unheard", str(error))
        passed_ms = clock.monotonic_ms() - begun_ms
        if found.state == "taken":
            return passed_ms
        if found.state == "not_here":
            raise NotTaken(f"{found.text}: that is not an address of the machine of {broker}")
        if passed_ms > wait_ms:
            raise NotTaken(
                f"after {wait_ms // 1000} s {broker} has not taken {address} over "
                f"({found.text}): stop the process that listens there, then run: cometmq "
                f"migrate take-address {broker} {address}"
            )
        if not waits and found.state == "in_use":
            waits = True
            left_s = wait_ms // 1000
            say(f"waiting: {address} is in use; the old master has to stop within {left_s} s")
        await clock.sleep_ms(_STEP_MS)


async def _ask(remoting: Remoting, broker: str, wanted: TakeAddress) -> AddressState:
    body, code = encode_json(wanted), RequestCode.TAKE_ADDRESS
    response = await remoting.call(broker, code, None, body, timeout_ms=_TIMEOUT_MS)
    return parse_json(response.body, AddressState)
