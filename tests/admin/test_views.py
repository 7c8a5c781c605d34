"""Values for people."""

from __future__ import annotations

import pytest

from cometmq.admin import views
from cometmq.protocol.bodies import ConsumeOffset


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, ""),
        (-1, ""),
        (1_700_000_000_123, "2023-11-14 22:13:20.123+00:00"),
        (4_837_492_869_153_907_061, "4837492869153907061"),
    ],
)
def test_moments(ms: int, text: str) -> None:
    assert views.moment(ms) == text


def test_a_lag_is_never_negative() -> None:
    assert views.total_lag([ConsumeOffset(10, 4, 0), ConsumeOffset(3, 5, 0)]) == 6


def test_secrets_are_removed() -> None:
    secret = {
        "tls.server.keyPassword": "x",
        "secretKey": "y",
        # Users in the settings of RocketMQ 5.
        "initAuthenticationUser": '{"username":"rocketmq","password":"12345678"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"rocketmq","secretKey":"12345678"}',
        "rmqAddressServerDomain": "http://ops:12345678@10.0.0.1",
    }
    shown = {
        "brokerName": "b",
        "credentialsPath": "/etc/cometmq/tools.yml",
        "namesrvAddr": "http://10.0.0.1:9876",
        "other": '{"a":1}',
        "password": "",
    }
    assert views.without_secrets(secret | shown) == shown | dict.fromkeys(secret, views.REMOVED)
