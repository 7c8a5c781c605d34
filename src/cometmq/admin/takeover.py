"""Makes a new master take the address of the old one, once the old one has stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import CometError, NotConnected, RequestTimedOut
from cometmq.protocol.bodies import AddressState, TakeAddress
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting

_TIMEOUT_MS: Final = 5_000
_STEP_MS: Final = 50
#: Time that an operator has to stop the old master.
WAIT_MS: Final = 120_000


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
    wait_ms: int = WAIT_MS,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Make the master at ``broker`` listen on ``address`` and register with it; return the ms
    taken.

    It waits until no other process listens there; ``say`` is called with a line that says so.
    Raises NotTaken when the address belongs to another machine or stays in use for ``wait_ms``, and
    BrokerRefused.
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
