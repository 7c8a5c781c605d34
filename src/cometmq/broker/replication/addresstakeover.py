"""Addresses and ports on which a broker listens, and the takeover of a former master's address.

After a takeover, clients that know the former master's address continue without a new route.

A broker listens on its own port and on the "VIP" port two below it. A master also listens on a port
for slaves.

    check    is the address one of this machine's, and free?
    take     listen there, save the address for restarts (roles.py), and register under it

A step that fails undoes the steps before it.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.config import VIP_DISTANCE, join, resolve
from cometmq.broker.replication.roles import keep_role, put_back_role, role_path
from cometmq.broker.topics.registration import BrokerPlace
from cometmq.core.errors import BadRequest, NotConnected, SettingsError
from cometmq.message.ids import pack_host
from cometmq.net.client import split_address
from cometmq.net.resources import backlog
from cometmq.net.server import Reserve, reserve
from cometmq.protocol.bodies import AddressState, TakeAddress
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.frame import Reply
from cometmq.store.files import read_file

if TYPE_CHECKING:
    import socket

    from cometmq.broker.config import BrokerConfig, BrokerRole
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

_PORT_TRIES: Final = 50
#: Maximum time to resolve and bind an address. An admin client waits for less time, and asks again.
RESERVE_TIMEOUT_MS: Final = 30_000


def reserve_ports(host: str, port: int, reserve: Reserve = reserve) -> list[socket.socket]:
    """Return sockets for ``port`` and the VIP port two below it; 0 picks a free pair.

    Raises OSError if one of them cannot be bound.
    """
    for _ in range(_PORT_TRIES if port == 0 else 1):
        main = reserve(host, port)
        vip_port = main.getsockname()[1] - VIP_DISTANCE
        if vip_port <= 0:
            return [main]
        try:
            return [main, reserve(host, vip_port, exclusive=port == 0)]
        except OSError:
            main.close()
            if port:
                raise
    raise OSError(f"found no two free ports {VIP_DISTANCE} apart on {host}")


def reserve_ha(reserve: Reserve, host: str, port: int, listen_port: int) -> socket.socket:
    """Return a socket for slaves, at ``port``.

    Port 0 means ``listen_port`` + 1, or any free port if that one cannot be bound. Raises OSError
    if ``port`` is not 0 and cannot be bound.
    """
    if port:
        return reserve(host, port)
    try:
        return reserve(host, listen_port + 1, exclusive=True)
    except OSError:
        found = reserve(host, 0)
        log.info("ha_port_moved from=%d to=%d", listen_port + 1, found.getsockname()[1])
        return found


_STATES: Final = {errno.EADDRINUSE: "in_use", errno.EADDRNOTAVAIL: "not_here"}


class _Reservation:
    """Sockets that a thread opens for a caller. The caller may give up before they are open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._given_up = False
        self._found: list[socket.socket] = []
        self.is_running = True

    def run(self, reserve_at: Callable[[str], list[socket.socket]], address: str) -> None:
        """Open the sockets, and close them if the caller has given up meanwhile.

        This is never called if the caller gives up before a thread is free.
        """
        with self._lock:
            self._begun = True
        try:
            found = reserve_at(address)
            with self._lock:
                if not self._given_up:
                    self._found, found = found, []
            _close(found)
        finally:
            self.is_running = False

    def take(self) -> list[socket.socket]:
        """Return the sockets. The caller owns them from now on."""
        found, self._found = self._found, []
        return found

    def give_up(self) -> None:
        """Close the sockets, now or once the thread has them."""
        with self._lock:
            self._given_up = True
            if not self._begun:
                self.is_running = False
        _close(self.take())


class _RoleWithAddress:
    """The role file, to which a thread writes the address; a takeover that fails restores it.

    Otherwise the broker would try to listen on the address at its next start, and would not start
    if another process, such as the former master, listened there.
    """

    def __init__(self, root: str, files: Files, clock: Clock) -> None:
        self._root = root
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = self._undone = False
        self._former: bytes | None = None

    def keep(self, role: BrokerRole, address: str) -> None:
        """Write the file, unless the takeover has already failed."""
        with self._lock:
            if self._undone:
                return
            self._former = read_file(self._files, role_path(self._root))
            self._begun = True
            keep_role(role, self._root, self._files, self._clock, address=address)

    def undo(self) -> None:
        """Restore the former content of the file; wait for :meth:`keep` if it is running."""
        with self._lock:
            self._undone = True
            if not self._begun:
                return
            try:
                put_back_role(self._former, self._root, self._files)
            except OSError as error:
                log.error(
                    "role_file_not_restored path=%s error=%s hint=%r",
                    role_path(self._root), error,
                    "remove the address from it before the next start",
                )  # fmt: skip


class Addresses:
    """Addresses of one broker. ``root`` is the directory of its store; ``port`` is valid after
    :meth:`reserve`."""

    def __init__(self, config: BrokerConfig, root: str, reserve: Reserve) -> None:
        self._config = config
        self._root = root
        self._reserve = reserve
        self._ha_port = config.ha_listen_port
        self._reservation: _Reservation | None = None
        self.port = 0

    @property
    def store_host(self) -> bytes:
        """Address written into messages and their ids. Raises SettingsError if there is none."""
        return pack_host(resolve(self._config.broker_ip1), self.port)

    @property
    def own(self) -> str:
        """Address from the broker's own settings."""
        return join(self._config.broker_ip1, self.port)

    @property
    def current(self) -> str:
        """Address reported to others: the one taken over, otherwise the broker's own."""
        return self._config.taken_address or self.own

    def reserve(self) -> list[socket.socket]:
        """Return sockets for all addresses of the broker.

        Raises OSError if one of its own cannot be bound, and SettingsError if the address that was
        taken over cannot.
        """
        config = self._config
        own = reserve_ports(config.bind_address, config.listen_port, self._reserve)
        self.port = own[0].getsockname()[1]
        if not config.taken_address:
            return own
        try:
            return [*own, *self.reserve_at(config.taken_address)]
        except (OSError, SettingsError) as error:
            _close(own)
            raise SettingsError(
                "takenAddress",
                f"this broker took over {config.taken_address} and cannot listen there ({error}): "
                "stop the process that listens there, or remove the address from the settings "
                f"and from {role_path(self._root)}",
            ) from None

    def reserve_ha(self) -> socket.socket | None:
        """Return the socket for slaves; None on a slave. Call :meth:`reserve` first."""
        config = self._config
        if config.is_slave:
            return None
        found = reserve_ha(self._reserve, config.bind_address, config.ha_listen_port, self.port)
        self._ha_port = found.getsockname()[1]
        return found

    def place(self) -> BrokerPlace:
        """Return the names and addresses under which this broker registers."""
        config = self._config
        return BrokerPlace(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            broker_addr=self.current,
            ha_server_addr=join(config.broker_ip2 or config.broker_ip1, self._ha_port),
        )

    def reserve_at(self, address: str) -> list[socket.socket]:
        """Return sockets for an address and its VIP port, except those on which the broker listens
        already.

        Raises OSError if one cannot be bound, SettingsError for a host that has no address, and
        NotConnected for a malformed address.
        """
        name, port = split_address(address)
        host = resolve(name)
        wanted = [each for each in (port, port - VIP_DISTANCE) if each > 0]
        if _covers(self._config.bind_address, host):
            # A broker bound to all addresses listens on this one only if it is the machine's own.
            self._reserve(host, 0).close()
            own = self.port, self.port - VIP_DISTANCE
            wanted = [each for each in wanted if each not in own]
        found: list[socket.socket] = []
        try:
            for each in wanted:
                listener = self._reserve(host, each)
                found.append(listener)
        except OSError:
            _close(found)
            raise
        return found

    async def reserve_soon(self, address: str) -> list[socket.socket]:
        """Call :meth:`reserve_at` in a thread, because resolving a host name may take seconds.

        Raises the errors of :meth:`reserve_at`, and TimeoutError after RESERVE_TIMEOUT_MS or while
        an earlier call is still running. No socket stays open after a timeout or a cancellation.
        """
        if self._reservation is not None and self._reservation.is_running:
            raise TimeoutError("the host of an earlier request is still being resolved")
        reservation = self._reservation = _Reservation()
        try:
            async with asyncio.timeout(RESERVE_TIMEOUT_MS / 1000):
                await asyncio.to_thread(reservation.run, self.reserve_at, address)
            return reservation.take()
        except TimeoutError as error:
            raise TimeoutError(f"not resolved and bound within {RESERVE_TIMEOUT_MS} ms") from error
        finally:
            reservation.give_up()

    async def take(
        self,
        address: str,
        files: Files,
        clock: Clock,
        serve: Callable[[socket.socket], Awaitable[None]],
    ) -> None:
        """Take over an address: listen there now, and again after each restart.

        Raises the errors of :meth:`reserve_soon`, and OSError if the address cannot be saved. After
        these errors nothing has changed. After a later error the broker may listen on one of the
        ports until it stops, but not after a restart.
        """
        listeners = await self.reserve_soon(address)
        kept = _RoleWithAddress(self._root, files, clock)
        try:
            for listener in listeners:
                # Listen at once, before another process that has bound the same address. Clients
                # that connect now wait until the server accepts.
                listener.listen(backlog())
            await asyncio.to_thread(kept.keep, self._config.broker_role, address)
            while listeners:
                await serve(listeners[0])
                del listeners[0]
        except BaseException:
            _close(listeners)
            # A cancellation of this task does not stop the thread that writes: undo waits for it.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, kept.undo))
            raise
        self._config.taken_address = address


class AddressAdmin:
    """Serves the request to take an address over. ``moved`` notifies the name servers."""

    def __init__(
        self,
        addresses: Addresses,
        *,
        config: BrokerConfig,
        files: Files,
        clock: Clock,
        serve: Callable[[socket.socket], Awaitable[None]],
        moved: Callable[[], Awaitable[None]],
    ) -> None:
        self._addresses = addresses
        self._config = config
        self._files = files
        self._clock = clock
        self._serve = serve
        self._moved = moved
        self._taking = asyncio.Lock()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.TAKE_ADDRESS: self.take}

    async def take(self, peer: Peer, request: Request[Any]) -> Reply:
        """Take over the address, or only check whether that is possible."""
        wanted = parse_json(request.body, TakeAddress)
        if self._config.is_slave and not wanted.check:
            raise _refused(
                "this broker is a slave and its master uses the address: promote this broker first"
            )
        async with self._taking:
            try:
                state = await self._state(wanted)
            except TimeoutError as error:
                state = AddressState("resolving", f"{wanted.address}: {error}")
            except OSError as error:
                name = _STATES.get(error.errno or 0)
                if name is None:
                    raise _refused(f"{wanted.address}: {error}") from None
                state = AddressState(name, f"{wanted.address}: {error.strerror}")
            except (SettingsError, NotConnected) as error:
                raise _refused(str(error)) from None
        log.info(
            "address_takeover_requested by=%s of=%s state=%s", peer.address, wanted, state.state
        )
        return Reply(body=encode_json(state))

    async def _state(self, wanted: TakeAddress) -> AddressState:
        """Take over or check the address; return the state to answer."""
        if wanted.address == self._addresses.current:
            return AddressState("taken")
        if self._config.taken_address:
            raise _refused(f"this broker has already taken over {self._config.taken_address}")
        if wanted.check:
            _close(await self._addresses.reserve_soon(wanted.address))
            return AddressState("free")
        await self._addresses.take(wanted.address, self._files, self._clock, self._serve)
        log.warning("address_taken_over address=%s own=%s", wanted.address, self._addresses.own)
        await self._moved()
        return AddressState("taken")


def _covers(bind_address: str, host: str) -> bool:
    """Return whether a socket bound to ``bind_address`` also serves the address ``host``."""
    bound = ipaddress.ip_address(resolve(bind_address))
    return bound.is_unspecified or bound == ipaddress.ip_address(host)


def _close(listeners: Iterable[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def _refused(problem: str) -> BadRequest:
    return BadRequest(ResponseCode.ILLEGAL_OPERATION, problem)
