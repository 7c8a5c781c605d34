"""What is dropped and when writes are refused."""

from dataclasses import replace

import pytest

from cometmq.store.files import DiskSpace
from cometmq.store.maintenance.retention import LogAge, plan
from tests.store.stores import SMALL

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
CONFIG = replace(SMALL, file_reserved_time=10, delete_when="04;16")


def ages(*hours: int) -> list[LogAge]:
    return [LogAge(number * 100, NOW_MS - age * HOUR_MS) for number, age in enumerate(hours)]


def disk(percent: int) -> DiskSpace:
    return DiskSpace(100 << 20, percent << 20, (100 - percent) << 20)


@pytest.mark.parametrize(
    ("percent", "hour", "drops"),
    [(10, 4, 2), (10, 16, 2), (10, 5, 0), (76, 5, 2), (86, 5, 4), (95, 5, 4)],
)
def test_drops(percent: int, hour: int, drops: int) -> None:
    found = plan(ages(30, 11, 9, 1), disk(percent), NOW_MS, hour, CONFIG)
    assert found.drop_count == drops


def test_a_full_disk_is_told_as_the_reason() -> None:
    assert plan(ages(1), disk(86), NOW_MS, 5, CONFIG).is_forced
    assert not plan(ages(99), disk(76), NOW_MS, 5, CONFIG).is_forced


def test_at_once_is_whatever_the_hour_but_not_the_age() -> None:
    assert plan(ages(30, 11, 9, 1), disk(10), NOW_MS, 5, CONFIG, at_once=True).drop_count == 2


def test_young_files_stay_when_nothing_goes_by_force() -> None:
    gentle = replace(CONFIG, clean_file_forcibly_enable=False)
    assert plan(ages(30, 11, 9, 1), disk(95), NOW_MS, 5, gentle).drop_count == 2


def test_at_most_ten_files_a_round() -> None:
    assert plan(ages(*[99] * 30), disk(10), NOW_MS, 4, CONFIG).drop_count == 10
    assert plan(ages(*[1] * 30), disk(90), NOW_MS, 5, CONFIG).drop_count == 10


def test_refusal_names_the_numbers() -> None:
    assert plan([], disk(89), NOW_MS, 5, CONFIG).refusal == ""
    refusal = plan([], disk(91), NOW_MS, 5, CONFIG).refusal
    assert "91.0 % full (9 MiB free)" in refusal
    assert "at 90 % and above" in refusal
    assert "resume by themselves" in refusal
    several = replace(
        CONFIG, store_path_commit_log="/b,/a,/c", read_only_commit_log_store_paths="/c"
    )
    refusal = plan([], disk(91), NOW_MS, 5, several).refusal
    assert refusal.startswith("the least used of the disks under /a and /b is 91.0 % full")
    assert disk(100).used_ratio == 1.0
    assert DiskSpace(0, 0, 0).used_ratio == 1.0
