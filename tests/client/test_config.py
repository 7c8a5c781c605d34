"""Name server lists in every form that people write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from cometmq.client.config import ClientConfig, make_config, parse_name_servers
from cometmq.core.errors import SettingsError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a:1", ("a:1",)),
        ("a:1;b:2", ("a:1", "b:2")),
        (" a:1 ; b:2;", ("a:1", "b:2")),
        ("a:1,b:2", ("a:1", "b:2")),
        (["a:1", " b:2 "], ("a:1", "b:2")),
        (("a:1",), ("a:1",)),
    ],
)
def test_lists(given: str | Iterable[str], expected: tuple[str, ...]) -> None:
    assert parse_name_servers(given) == expected


@pytest.mark.parametrize("given", ["", " ; ", []])
def test_no_address_is_an_error(given: str | list[str]) -> None:
    with pytest.raises(SettingsError, match="at least one address"):
        parse_name_servers(given)


def test_defaults_are_upstreams() -> None:
    config = ClientConfig(("a:1",))
    assert (config.send_timeout_ms, config.send_retries) == (3_000, 2)
    assert (config.max_queue_messages, config.max_queue_bytes) == (1_000, 100 << 20)
    assert Path(config.offsets_dir).name == ".rocketmq_offsets"
    assert not config.send_latency_fault
    assert config.send_attempt_timeout_ms == 0


def test_recommended_settings_leave_bad_brokers_alone() -> None:
    config = ClientConfig.recommended("a:1;b:2", send_retries=5)
    assert config.name_servers == ("a:1", "b:2")
    assert config.send_latency_fault
    assert 0 < config.send_attempt_timeout_ms < config.send_timeout_ms
    assert config.send_retries == 5
    assert not ClientConfig.recommended("a:1", send_latency_fault=False).send_latency_fault


def test_an_unknown_setting_is_named() -> None:
    for make in (make_config, lambda servers, them: ClientConfig.recommended(servers, **them)):
        with pytest.raises(SettingsError, match="no_such_setting"):
            make("a:1", {"no_such_setting": 1})
