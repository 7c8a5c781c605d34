"""Options from URLs and transport options."""

from __future__ import annotations

import kombu
import pytest

import cometmq.kombu
from cometmq.core.errors import SettingsError
from cometmq.kombu.options import options_of, tls_of

SCHEME = cometmq.kombu.Transport.driver_type


def test_a_url_names_the_server_the_account_and_the_namespace() -> None:
    connection = kombu.Connection(f"{SCHEME}://me:se%2Fcret@mq:19876/shop")
    config = options_of(connection).config
    assert config.name_servers == ("mq:19876",)
    assert config.credentials is not None
    assert (config.credentials.access_key, config.credentials.secret_key) == ("me", "se/cret")
    assert config.namespace == "shop"


def test_transport_options_are_settings_of_the_client_or_our_own() -> None:
    given = {"visibility_timeout": 60, "request_timeout_ms": 9, "queues": 2, "priority_steps": [5]}
    options = options_of(kombu.Connection(f"{SCHEME}://", transport_options=given))
    assert options.config.consume_timeout_ms == 60_000
    assert options.config.request_timeout_ms == 9
    assert options.config.name_servers == ("localhost:9876",)
    assert (options.queues, options.priority_steps) == (2, (0, 5))
    assert [options.step_of(priority) for priority in (0, 4, 5, 9)] == [0, 0, 5, 5]


def test_unknown_options_are_refused() -> None:
    with pytest.raises(SettingsError, match="colour"):
        options_of(kombu.Connection(f"{SCHEME}://", transport_options={"colour": 1}))
    with pytest.raises(SettingsError, match="delays"):
        options_of(kombu.Connection(f"{SCHEME}://", transport_options={"delays": "never"}))
    for name, value in (
        ("visibility_timeout", "3600"),
        ("visibility_timeout", 0),
        ("visibility_timeout", float("nan")),
        ("queues", "8"),
        ("queues", 0),
        ("group", 5),
        ("transient_topic", None),
        ("priority_steps", "36"),
        ("priority_steps", ["3"]),
    ):
        with pytest.raises(SettingsError, match=name):
            options_of(kombu.Connection(f"{SCHEME}://", transport_options={name: value}))
    with pytest.raises(SettingsError, match="ssl"):
        tls_of({"ssl_version": 3})


def test_tls_has_the_names_of_kombu() -> None:
    url = f"{SCHEME}://mq?ssl_ca_certs=/ca.pem&ssl_check_hostname=false"
    tls = options_of(kombu.Connection(url)).config.tls
    assert tls is not None
    assert (tls.ca_path, tls.verify, tls.check_host_name) == ("/ca.pem", True, False)
    assert tls_of({"cert_reqs": 0}).verify is False
    assert tls_of(True).verify is True
