"""Clocks, tasks and files each have one door."""

from pathlib import Path

import pytest

from tests.architecture import rules
from tests.architecture.calls import BANS, DEVICE, STORE_FILES, banned_calls, lone_sleeps


def test_effects_go_through_their_door() -> None:
    assert banned_calls(rules.PACKAGE, rules.python_files(rules.PACKAGE)) == []


def test_the_doors_exist() -> None:
    doors = {path for ban in BANS for path in ban.allowed}
    assert [door for door in doors if not (rules.PACKAGE / door).is_file()] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("client/a.py", "import time\n"),
        ("client/a.py", "from time import monotonic\n"),
        ("client/a.py", "import asyncio\nasync def f(): await asyncio.sleep(1)\n"),
        ("client/a.py", "from asyncio import sleep as nap\nasync def f(): await nap(1)\n"),
        ("client/a.py", "from datetime import datetime\nx = datetime.now()\n"),
        ("client/a.py", "import asyncio\ndef f(c): asyncio.create_task(c)\n"),
        ("client/a.py", "import asyncio\ndef f(c): asyncio.get_running_loop().create_task(c)\n"),
        ("net/a.py", "from asyncio import ensure_future\ndef f(c): ensure_future(c)\n"),
        ("broker/a.py", "import os\nos.fdatasync(3)\n"),
        ("broker/a.py", "import os\nsync = os.fsync\n"),
        ("store/a.py", "import mmap\nm = mmap.mmap(3, 0)\n"),
        ("store/a.py", "f = open('x')\n"),
        ("store/a.py", "from pathlib import Path\nPath('x').unlink()\n"),
    ],
)
def test_a_side_door_is_found(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    assert len(banned_calls(tmp_path, [path])) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("core/clock.py", "import time\ntime.sleep(1)\n"),
        ("net/tasks.py", "import asyncio\ndef f(c): asyncio.create_task(c)\n"),
        ("store/files.py", "import os\nos.fdatasync(os.open('x', 0))\n"),
        ("cli/a.py", "f = open('x')\n"),
        ("client/a.py", "async def f(clock): await clock.sleep(1)\n"),
        ("store/a.py", "def f(self): self._files.unlink('x')\n"),
        ("client/a.py", "import asyncio\nasync def f(): await asyncio.sleep(0)\n"),
        ("client/a.py", "async def f(tasks, c): tasks.create_task(c)\n"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    assert banned_calls(tmp_path, [path]) == []


def test_a_ban_on_the_store_reaches_only_the_store() -> None:
    assert STORE_FILES.covers("store/index.py")
    assert not STORE_FILES.covers("store/files.py")
    assert not STORE_FILES.covers("client/config.py")
    assert DEVICE.covers("client/config.py")


def test_no_test_sleeps_for_luck() -> None:
    assert lone_sleeps(rules.python_files(rules.TESTS)) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("    time.sleep(1)", 1),
        ("    time.sleep(60)", 0),
        ("    while not ready():\n        time.sleep(0.01)", 0),
        (
            "    for _ in range(9):\n        if ready():\n            break\n        time.sleep(1)",
            0,
        ),
    ],
)
def test_a_sleep_for_luck_is_found(tmp_path: Path, body: str, found: int) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(f"import time\ndef test_a():\n{body}\n", encoding="utf-8")
    assert len(lone_sleeps([path])) == found
