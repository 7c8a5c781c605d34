"""Having a new master take the address of the old one, once that has stopped."""

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
#: How long an operator has for stopping the old master.
WAIT_MS: Final = 120_000


class NotTaken(CometError):
    """An address was not taken over, and why; the new master serves on its own all the same."""


async def look_at_address(remoting: Remoting, broker: str, address: str) -> AddressState:
    """Whether the broker at ``broker`` could listen on ``address``; changes nothing.

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
    """Have the master at ``broker`` listen on ``address`` and register by it, as soon as nobody
    else listens there; gives how long that took, in ms. ``say`` is told what is waited for.

    Raises NotTaken when it is another machine's, or in use for ``wait_ms``, and BrokerRefused.
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
            raise NotTaken(f"{found.text}: that is no address of the machine of {broker}")
        if passed_ms > wait_ms:
            raise NotTaken(
                f"after {wait_ms // 1000} s {broker} has not taken {address} over ({found.text}): "
                f"stop who listens there, then: cometmq migrate take-address {broker} {address}"
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
