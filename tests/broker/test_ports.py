"""Ports of a broker, picked or asked for."""

import socket
from contextlib import ExitStack

import pytest

from cometmq.broker.config import VIP_DISTANCE, join
from cometmq.broker.replication.addresstakeover import reserve_ha, reserve_ports
from cometmq.net.server import reserve

#: A loopback address of this file's own: servers of other tests take no ports of it.
ALONE = "127.0.93.1"


def test_a_port_whose_vip_port_is_taken_is_no_pair() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] + VIP_DISTANCE
        with pytest.raises(OSError, match="in use"):
            reserve_ports("127.0.0.1", port)
        reserve("127.0.0.1", port).close()


def test_picked_ports_are_nobody_else_s() -> None:
    pairs = [reserve_ports("127.0.0.1", 0) for _ in range(200)]
    try:
        listeners = [listener for pair in pairs for listener in pair]
        assert len({listener.getsockname()[1] for listener in listeners}) == len(listeners)
        for listener in listeners:
            listener.listen()
    finally:
        for pair in pairs:
            for listener in pair:
                listener.close()


def test_slaves_connect_behind_the_listen_port_or_anywhere_free() -> None:
    with ExitStack() as held:
        port = held.enter_context(reserve_below_a_free_port()).getsockname()[1]
        first = held.enter_context(reserve_ha(reserve, ALONE, 0, port))
        second = held.enter_context(reserve_ha(reserve, ALONE, 0, port))
        assert first.getsockname()[1] == port + 1
        assert second.getsockname()[1] not in (port, port + 1)
        first.listen()
        with pytest.raises(OSError, match="in use"):
            reserve_ha(reserve, ALONE, port + 1, 1)


def reserve_below_a_free_port() -> socket.socket:
    """Return a listener on ALONE whose next port is free."""
    for _ in range(50):
        listener = reserve(ALONE, 0)
        try:
            reserve(ALONE, listener.getsockname()[1] + 1, exclusive=True).close()
        except OSError:
            listener.close()
        else:
            return listener
    raise AssertionError(f"no two free ports side by side on {ALONE}")


def test_an_address_names_both() -> None:
    assert join("10.0.0.1", 7) == "10.0.0.1:7"
    assert join("::1", 7) == "[::1]:7"
