"""Name server lists in every form that people write."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cometmq.client.config import ClientConfig, parse_name_servers
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
    assert config.offsets_dir.name == ".rocketmq_offsets"
