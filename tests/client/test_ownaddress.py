"""The own address faces the name server."""

from __future__ import annotations

import pytest

from cometmq.client.config import ClientConfig
from cometmq.client.session import Session, own_ip


@pytest.mark.parametrize(("address", "ip"), [("localhost:1", "127.0.0.1"), ("[::1]:1", "::1")])
def test_the_own_address_faces_the_name_server(address: str, ip: str) -> None:
    assert own_ip(address) in (ip, "127.0.0.1")  # machines without IPv6 fall back
    session = Session(ClientConfig((address,)))
    assert len(session.unique_keys.next(0)) in (32, 56)


def test_a_name_server_by_name_is_not_looked_up() -> None:
    assert own_ip("namesrv.invalid:9876").count(".") == 3
