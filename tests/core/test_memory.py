"""How much memory a process may use, read from control groups that a test makes up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cometmq.core.memory import limit_bytes
from cometmq.store.files import PosixFiles

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine(root: Path, cgroup: str, **limits: str) -> str:
    """A machine whose process is in the groups that ``cgroup`` tells of, with limits by path."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "50000000\n"}, 50_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "40000000\n"}, 40_000_000),
        ("0::/a\n", {"a/memory.max": "60000000\n", "memory.max": "30000000\n"}, 30_000_000),
        ("0::/\n", {"memory.max": "70000000\n"}, 70_000_000),
        ("0::/docker/not-seen-from-inside\n", {"memory.max": "70000000\n"}, 70_000_000),
        ("0::/../../x\n", {"x/memory.max": "70000000\n"}, 70_000_000),
        (
            "5:cpu:/a\n4:memory:/a\n0::/\n",
            {"memory/a/memory.limit_in_bytes": "20000000\n"},
            20_000_000,
        ),
        (
            "4:hugetlb,memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.limit_in_bytes": "20000000\n",
            },
            20_000_000,
        ),
        ("0::/a\n", {"a/memory.max": "max\n"}, PHYSICAL),
        ("0::/a\n", {"a/memory.max": str(1 << 59)}, PHYSICAL),
        ("0::/a\n", {"a/memory.max": "no number"}, PHYSICAL),
        ("0::/a\n", {"a/memory.max": "9" * 10_000}, PHYSICAL),
        ("nonsense\n\n:::\n", {}, PHYSICAL),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, cgroup: str, limits: dict[str, str], expected: int
) -> None:
    assert limit_bytes(machine(tmp_path, cgroup, **limits)) == min(expected, PHYSICAL)


def test_a_machine_without_control_groups_has_its_own_memory(tmp_path: Path) -> None:
    assert limit_bytes(str(tmp_path)) == PHYSICAL


def test_a_store_asks_for_what_the_process_may_use() -> None:
    assert PosixFiles().memory_bytes() == limit_bytes() <= PHYSICAL
