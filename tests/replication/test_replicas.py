"""Up to where enough logs hold the log, and whether waiting for them makes sense."""

from dataclasses import dataclass

import pytest

from cometmq.replication.replicas import are_enough, reached


@dataclass(frozen=True)
class Slave:
    acked: int


def slaves(*acked: int) -> list[Slave]:
    return [Slave(offset) for offset in acked]


@pytest.mark.parametrize(
    ("copies", "acked", "expected"),
    [
        (1, (), 100),
        (2, (), 0),
        (2, (70,), 70),
        (2, (-1,), 0),
        (2, (70, 90), 90),
        (3, (70, 90), 70),
        (3, (70, 90, 80), 80),
        (3, (70,), 0),
    ],
)
def test_where_enough_logs_hold_it(copies: int, acked: tuple[int, ...], expected: int) -> None:
    assert reached(slaves(*acked), copies, 100) == expected


@pytest.mark.parametrize(
    ("copies", "acked", "expected"),
    [
        (1, (), True),
        (2, (), False),
        (2, (-1,), False),
        (2, (50,), False),
        (2, (51,), True),
        (3, (51, 50), False),
        (3, (51, 99), True),
    ],
)
def test_whether_enough_are_near(copies: int, acked: tuple[int, ...], expected: bool) -> None:
    assert are_enough(slaves(*acked), copies, 100, 50) is expected
