"""IP addresses, names, and hosts of this machine."""

import pytest

from cometmq.core.hosts import is_ip_address, is_loopback


@pytest.mark.parametrize(
    ("host", "is_address", "is_local"),
    [
        ("127.0.0.1", True, True),
        ("127.9.9.9", True, True),
        ("::1", True, True),
        ("::", True, False),
        ("0.0.0.0", True, False),
        ("10.0.0.1", True, False),
        ("fe80::1%eth0", True, False),
        ("localhost", False, True),
        ("broker-a", False, False),
        ("10.0.0", False, False),
        ("[::1]", False, False),
        ("", False, False),
    ],
)
def test_what_a_host_is(host: str, is_address: bool, is_local: bool) -> None:
    assert is_ip_address(host) is is_address
    assert is_loopback(host) is is_local
