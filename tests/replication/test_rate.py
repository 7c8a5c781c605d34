"""A bound on bytes a second."""

from cometmq.replication.rate import Rate


def test_bytes_leave_at_the_rate() -> None:
    rate, now_ms, sent = Rate(1_000_000), 5_000, 0
    while now_ms < 15_000:
        if wait_ms := rate.wait_ms(now_ms):
            now_ms += wait_ms
        else:
            rate.spend(10_000, now_ms)
            sent += 10_000
    assert 10_000_000 <= sent <= 10_200_000


def test_what_was_not_sent_is_not_saved_up() -> None:
    rate = Rate(1_000_000)
    rate.spend(1, 0)
    assert rate.wait_ms(60_000) == 0
    for _ in range(11):
        rate.spend(10_000, 60_000)
    assert rate.wait_ms(60_000) > 0


def test_no_rate_is_no_bound() -> None:
    rate = Rate(0)
    rate.spend(1 << 40, 0)
    assert rate.wait_ms(0) == 0
