"""A watermark against the plainest model of one."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cometmq.core.offsetwaiters import OffsetWaiters

small = st.integers(0, 50)


class WatermarkMachine(RuleBasedStateMachine):
    """Park, cancel, advance and expire in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.watermark: OffsetWaiters[int] = OffsetWaiters()
        self.parked: dict[int, tuple[int, int]] = {}
        self.position = 0
        self.next_token = 0

    def released(self, tokens: list[int], due: set[int], part: int) -> None:
        assert set(tokens) == due
        order = [self.parked[token][part] for token in tokens]
        assert order == sorted(order)
        for token in due:
            del self.parked[token]

    @rule(offset=small, deadline_ms=small)
    def park(self, offset: int, deadline_ms: int) -> None:
        key = self.watermark.park(offset, deadline_ms, self.next_token)
        assert key == self.next_token
        self.parked[self.next_token] = (offset, deadline_ms)
        self.next_token += 1

    @rule(token=small)
    def cancel(self, token: int) -> None:
        expected = token if token in self.parked else None
        assert self.watermark.cancel(token) == expected
        self.parked.pop(token, None)

    @rule(position=small)
    def advance(self, position: int) -> None:
        self.position = max(self.position, position)
        due = {token for token, (offset, _) in self.parked.items() if offset <= self.position}
        self.released(self.watermark.advance(position), due, 0)

    @rule(now_ms=small)
    def expire(self, now_ms: int) -> None:
        due = {token for token, (_, deadline) in self.parked.items() if deadline <= now_ms}
        self.released(self.watermark.expire(now_ms), due, 1)

    @rule(bound=small, limit=st.integers(1, 4), by_time=st.booleans())
    def take_some(self, bound: int, limit: int, by_time: bool) -> None:
        """The first of those that are due; the others stay."""
        if by_time:
            found = self.watermark.expire(bound, limit)
        else:
            self.position = bound = max(self.position, bound)
            found = self.watermark.advance(bound, limit)
        due = {token for token, parked in self.parked.items() if parked[by_time] <= bound}
        assert len(found) == min(limit, len(due))
        later = [self.parked[token][by_time] for token in due - set(found)]
        assert all(self.parked[token][by_time] <= min(later, default=bound) for token in found)
        self.released(found, set(found), int(by_time))

    @rule()
    def drain(self) -> None:
        assert self.watermark.drain() == list(self.parked)
        self.parked.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.watermark) == len(self.parked)
        assert self.watermark.position == self.position
        deadlines = [deadline for _, deadline in self.parked.values()]
        assert self.watermark.next_deadline_ms() == min(deadlines, default=None)


TestWatermark = WatermarkMachine.TestCase


def test_a_reached_offset_is_released_by_the_next_advance() -> None:
    watermark: OffsetWaiters[str] = OffsetWaiters(10)
    watermark.park(5, 1_000, "token")
    assert watermark.advance(0) == ["token"]
    assert watermark.position == 10


def test_cancelled_tokens_leave_no_garbage() -> None:
    """Neither one by one nor after many."""
    watermark: OffsetWaiters[int] = OffsetWaiters()
    watermark.park(20_000, 30_000, -1)
    for _ in range(3):
        keys = [watermark.park(number, number, number) for number in range(3_000)]
        for key in keys:
            assert watermark.cancel(key) is not None
    for number in range(5_000):
        assert watermark.cancel(watermark.park(number, number, number)) == number
    assert len(watermark._by_deadline) < 2_000
    assert len(watermark._by_offset) < 2_000
    assert watermark.advance(20_000) == [-1]


@given(st.booleans())
def test_released_tokens_leave_no_garbage(by_offset: bool) -> None:
    watermark: OffsetWaiters[int] = OffsetWaiters()
    for number in range(10_000):
        watermark.park(number, number, number)
        released = watermark.advance(number) if by_offset else watermark.expire(number)
        assert released == [number]
    assert len(watermark._by_deadline) < 2_000
    assert len(watermark._by_offset) < 2_000
    # What is parked survives the clearing.
    watermark.park(20_000, 30_000, 1)
    assert watermark.advance(20_000) == [1]
