"""Failed logins: what one address and one account may do, and how much is remembered."""

import pytest

from cometmq.dashboard import attempts
from cometmq.dashboard.attempts import ADDRESS_FAILURES_MAX, MINUTE_MS, Attempts


def test_an_address_keeps_nobody_else_out() -> None:
    tried = Attempts()
    results = [tried.begin("10.1.2.3", "operator", 0) for _ in range(ADDRESS_FAILURES_MAX + 1)]
    assert results == [True] * ADDRESS_FAILURES_MAX + [False]
    assert not tried.begin("10.1.2.3", "another", MINUTE_MS - 1)
    assert tried.begin("10.1.2.4", "operator", 1)
    assert tried.begin("10.1.2.3", "operator", MINUTE_MS)


def test_many_addresses_do_not_guess_one_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ACCOUNT_FAILURES_MAX", 3)
    tried = Attempts()
    assert [tried.begin(f"10.0.0.{n}", "operator", 0) for n in range(4)] == [True] * 3 + [False]
    assert tried.begin("10.0.0.9", "reader", 0)


def test_a_network_of_ipv6_is_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ADDRESS_FAILURES_MAX", 1)
    tried = Attempts()
    assert tried.begin("2001:db8::1", "a", 0)
    assert not tried.begin("2001:db8::2", "b", 0)
    assert tried.begin("2001:db8:0:1::1", "c", 0)
    assert tried.begin("::ffff:10.1.2.3", "d", 0)
    assert not tried.begin("10.1.2.3", "e", 0)


def test_what_succeeds_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ADDRESS_FAILURES_MAX", 1)
    tried = Attempts()
    for now_ms in range(5):
        assert tried.begin("10.1.2.3", "operator", now_ms)
        tried.succeed("10.1.2.3", "operator", now_ms)
    assert not tried._failed_ms


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "NAMES_MAX", 10)
    tried = Attempts()
    for n in range(100):
        tried.begin(f"host-{n}" + "x" * 10_000, "y" * 10_000 + str(n), n)
    assert len(tried._failed_ms) == 10
    assert all(len(name) <= 128 for _, name in tried._failed_ms)
