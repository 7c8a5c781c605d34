"""Promotes a slave by request and waits until it serves as the master."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import CometError, NotConnected, RequestTimedOut
from cometmq.protocol.bodies import KvTable, Promote, Promotion
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting

_TIMEOUT_MS: Final = 15_000
_STEP_MS: Final = 50
#: A large store takes time; the broker's log shows the progress.
WAIT_MS: Final = 120_000


class NotPromoted(CometError):
    """A slave that was asked to become the master did not do so in time."""


@dataclass(frozen=True, slots=True)
class PromotionOutcome:
    """Response of a broker, and the time until it served as the master; -1 if it was not
    promoted.
    """

    promotion: Promotion
    duration_ms: int


async def promote(
    remoting: Remoting, clock: Clock, address: str, wanted: Promote, *, wait_ms: int = WAIT_MS
) -> PromotionOutcome:
    """Make the slave at ``address`` the master and wait until it serves.

    Raises NotConnected and RequestTimedOut when it does not respond, BrokerRefused when it is not a
    slave or does not accept the request from other machines, and NotPromoted.
    """
    begun_ms = clock.monotonic_ms()
    body = encode_json(wanted)
    code = RequestCode.PROMOTE_BROKER
    response = await remoting.call(address, code, None, body, timeout_ms=_TIMEOUT_MS)
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
