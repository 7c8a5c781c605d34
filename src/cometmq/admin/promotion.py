"""Promoting a slave from outside: what speaks against it, and waiting until it is the master."""

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
#: A large store takes its time; the broker's log shows how far it is.
WAIT_MS: Final = 120_000


class NotPromoted(CometError):
    """A slave that was told to did not become the master in time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a broker answered, and how long it took until it served as the master: -1 when it was
    not to."""

    promotion: Promotion
    duration_ms: int


async def promote(
    remoting: Remoting, clock: Clock, address: str, wanted: Promote, *, wait_ms: int = WAIT_MS
) -> Outcome:
    """Have the slave at ``address`` become the master, and wait until it serves as that.

    Raises NotConnected and RequestTimedOut when it does not answer, BrokerRefused when it is no
    slave or other machines may not ask, NotPromoted.
    """
    begun_ms = clock.monotonic_ms()
    body = encode_json(wanted)
    code = RequestCode.PROMOTE_BROKER
    response = await remoting.call(address, code, None, body, timeout_ms=_TIMEOUT_MS)
    found = parse_json(response.body, Promotion)
    if not found.begins:
        return Outcome(found, -1)
    while clock.monotonic_ms() - begun_ms < wait_ms:
        if await _role(remoting, address) == wanted.role:
            return Outcome(found, clock.monotonic_ms() - begun_ms)
        await clock.sleep_ms(_STEP_MS)
    raise NotPromoted(
        f"{address} does not serve as {wanted.role} after {wait_ms // 1000} s: its log says why"
    )


async def _role(remoting: Remoting, address: str) -> str:
    """The role of a broker, "" while it does not answer."""
    try:
        response = await remoting.call(
            address, RequestCode.GET_BROKER_RUNTIME_INFO, None, timeout_ms=1_000
        )
    except (NotConnected, RequestTimedOut):
        return ""
    return parse_json(response.body, KvTable).table.get("brokerRole", "")
